"""A consumer as a handle: `Stream.consumer`. Source: ADR-37."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..._runtime.calls import consumer_info
from ..._runtime.context import Context
from ..._runtime.handle import no_pickle
from ...errors import ConfigError, PermissionDeniedError
from ...protocol.consumers.priority import check_group_name
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.checks import check_count, check_server
from ...protocol.wire.codec import from_wire
from ...protocol.wire.nats_py import no_attribute
from ...protocol.wire.units import format_time, parse_time, time_of
from .fetch import PullReading
from .puller import Puller

__all__ = ["Consumer"]


class Consumer(PullReading):
    """A consumer on the server. Created by `Stream.consumer` and `Stream.create_consumer`.

    `fetch`, `next` and `messages` pull from it, and `run` calls a handler with its messages. A push consumer is read
    with `JetStream.subscribe`.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, info: ConsumerInfo) -> None:
        self._context = context
        self._info = info
        self._puller = Puller(context, info.stream_name, info.name, info.config)

    @property
    def name(self) -> str:
        """The name of the consumer."""
        return self._info.name

    @property
    def stream(self) -> str:
        """The stream of the consumer."""
        return self._info.stream_name

    @property
    def config(self) -> ConsumerConfig:
        """The configuration as the server last reported it. `info` updates it."""
        return self._info.config

    @property
    def cached_info(self) -> ConsumerInfo:
        """The state as the server last reported it. `info` updates it."""
        return self._info

    def __repr__(self) -> str:
        return f"<Consumer {self.stream}/{self.name}>"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the current state from the server.

        Args:
            timeout: Seconds, for a health check for instance. The default is the timeout of `connect`.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: The server did not answer within the timeout.

        Also raises the errors of any API request.
        """
        self._info = await consumer_info(self._context, self.stream, self.name, timeout=timeout)
        self._puller.config = self._info.config
        return self._info

    async def pause(self, until: datetime | timedelta | float) -> datetime | None:
        """Pause deliveries until a time, or for a duration over 0, measured by this machine's clock.

        A duration is a ``timedelta`` or a number of seconds. Readers stay open and wait. Needs server 2.11.

        Returns: the end of the pause as stored by the server, or None if it is in the past.

        Raises:
            ConfigError: The time is not usable (it has no time zone, for instance), or the server is older.
            ConsumerNotFoundError: The consumer was deleted.

        Also raises the errors of any API request.
        """
        moment = time_of(until, datetime.now(UTC))
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Resume deliveries. Does nothing if the consumer is not paused. Raises the errors of `pause`."""
        await self._pause({})

    async def _pause(self, body: dict[str, Any]) -> datetime | None:
        check_server(self._context.connection.server_version, (2, 11), "pausing a consumer")
        answer = await self._context.call(
            self._context.api.consumer_pause(self.stream, self.name), body, what="pause"
        )
        return parse_time(answer["pause_until"]) if answer.get("paused") else None

    async def reset(self, seq: int | None = None) -> int:
        """Restart delivery after the ack floor, or at stream sequence ``seq``. Needs server 2.14. Source: ADR-60.

        Messages that were delivered and not acked are delivered again, with ``metadata.consumer_seq`` from 1 on.
        Readers continue. A push subscription reports the event `ConsumerReset`. Messages buffered by readers stay
        buffered, so some messages may be delivered twice.

        Returns: the stream sequence at which delivery restarts.

        Raises:
            ConfigError: ``seq`` is not a valid sequence, or is after the next message; or the server is older.
            ApiError: The consumer cannot restart there (10204). ``seq`` requires the deliver policy all, or
                by_start_sequence or by_start_time and a sequence that is not below that start.
            ConsumerNotFoundError: The consumer was deleted.

        Also raises the errors of any API request.
        """
        if seq is not None:
            check_count("seq", seq, most=2**64 - 1)
        check_server(self._context.connection.server_version, (2, 14), "resetting a consumer")
        with suppress(PermissionDeniedError):
            await self.info()  # a reset of a deleted consumer is never answered
        if seq is not None:
            await self._check_reset(seq)
        body = {} if seq is None else {"seq": seq}
        answer = await self._context.call(
            self._context.api.consumer_reset(self.stream, self.name), body, what="reset"
        )
        first = answer.pop("reset_seq", 0)
        self._info = from_wire(ConsumerInfo, answer)
        return int(first)

    async def _check_reset(self, seq: int) -> None:
        """Refuse a sequence after the next message: the consumer would skip the messages before it."""
        try:
            answer = await self._context.call(
                self._context.api.stream_info(self.stream), what="end of the stream"
            )
        except PermissionDeniedError:
            return
        last = from_wire(StreamInfo, answer).state.last_seq
        if seq > last + 1:
            raise ConfigError(
                f"seq is {seq}, but the last message of stream {self.stream!r} is {last}: consumer {self.name!r} would "
                f"skip the next {seq - last - 1:,}; give {last + 1} to go on with the next message"
            )

    async def unpin(self, group: str) -> None:
        """Make the server deliver to another client of a priority group. Source: ADR-42."""
        body = {"group": check_group_name(group)}
        check_server(self._context.connection.server_version, (2, 11), "unpinning")
        await self._context.call(self._context.api.consumer_unpin(self.stream, self.name), body, what="unpin")

    async def delete(self) -> None:
        """Delete the consumer. Raises `ConsumerNotFoundError` if it does not exist."""
        await self._context.call(
            self._context.api.consumer_delete(self.stream, self.name), what="delete consumer"
        )

    async def close(self) -> None:
        """Stop reading through this handle. The consumer stays."""
        await self._puller.close(give_back=True)
