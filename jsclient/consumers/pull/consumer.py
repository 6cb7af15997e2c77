"""The handle of a consumer, which `Stream.consumer` returns. Source: ADR-37."""

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
    """A handle for a consumer on the server. Created by `Stream.consumer` and `Stream.create_consumer`.

    You can manage the consumer and read from it::

        stream = await js.stream("ORDERS")
        consumer = await stream.consumer("billing")
        for message in await consumer.fetch(100):
            ...
            await message.ack()

    `fetch`, `next`, `messages` and `run` need a pull consumer. To read from a push consumer, use `JetStream.subscribe`.
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
        """Name of the consumer."""
        return self._info.name

    @property
    def stream(self) -> str:
        """Name of the stream that the consumer reads."""
        return self._info.stream_name

    @property
    def config(self) -> ConsumerConfig:
        """Configuration of the consumer, as the server last reported it.

        Call `info` to update it, because other clients may have changed the consumer.
        """
        return self._info.config

    @property
    def cached_info(self) -> ConsumerInfo:
        """State of the consumer, as the server last reported it. Call `info` to update it."""
        return self._info

    def __repr__(self) -> str:
        return f"<Consumer {self.stream}/{self.name}>"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the current state and configuration of the consumer from the server.

        Args:
            timeout: Seconds to wait for the answer. Defaults to the ``timeout`` passed to `connect`. Use a shorter
                timeout for a health check.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: The server did not answer within the timeout.

        May also raise any error of an API request.
        """
        self._info = await consumer_info(self._context, self.stream, self.name, timeout=timeout)
        self._puller.config = self._info.config
        return self._info

    async def pause(self, until: datetime | timedelta | float) -> datetime | None:
        """Pause the deliveries of the consumer. Needs server 2.11.

        Readers stay open. They receive no messages until the end of the pause, or until `resume` is called.

        Args:
            until: The end of the pause. A ``datetime`` with a time zone is a point in time. A ``timedelta`` or a number
                of seconds is a duration, which is added to the clock of this machine.

        Returns: the end of the pause as stored by the server, or None if it is in the past.

        Raises:
            ConfigError: The time is not usable (it has no time zone, for instance), or the server is too old.
            ConsumerNotFoundError: The consumer was deleted.

        May also raise any error of an API request.
        """
        moment = time_of(until, datetime.now(UTC))
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Resume deliveries after `pause`. Does nothing if the consumer is not paused.

        Raises the errors of `pause`.
        """
        await self._pause({})

    async def _pause(self, body: dict[str, Any]) -> datetime | None:
        check_server(self._context.connection.server_version, (2, 11), "pausing a consumer")
        answer = await self._context.call(
            self._context.api.consumer_pause(self.stream, self.name), body, what="pause"
        )
        return parse_time(answer["pause_until"]) if answer.get("paused") else None

    async def reset(self, seq: int | None = None) -> int:
        """Make the consumer deliver messages again from an earlier position. Needs server 2.14. Source: ADR-60.

        All messages after that position are delivered again, and ``metadata.consumer_seq`` restarts at 1. Readers
        continue with them. A push subscription reports the event `ConsumerReset`. Readers keep the messages in their
        buffers, so they may return some messages twice.

        Args:
            seq: Stream sequence of the first message to deliver. By default, delivery restarts after the ack floor, so
                that only messages without an ack are delivered again.

        Returns: the stream sequence at which delivery restarts.

        Raises:
            ConfigError: ``seq`` is not a valid sequence, or it is after the next message, or the server is too old.
            ApiError: The consumer cannot restart there (10204). ``seq`` requires the deliver policy all, or
                by_start_sequence or by_start_time and a sequence that is not below that start.
            ConsumerNotFoundError: The consumer was deleted.

        May also raise any error of an API request.
        """
        if seq is not None:
            check_count("seq", seq, most=2**64 - 1)
        check_server(self._context.connection.server_version, (2, 14), "resetting a consumer")
        with suppress(PermissionDeniedError):
            # Raises an error if the consumer was deleted. The server wouldn't answer the reset.
            await self.info()
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
        """Refuse a sequence after the end of the stream, because the consumer would skip the messages up to it."""
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
        """Unpin the client that currently receives the messages of a priority group. Source: ADR-42.

        The server then pins another client of the group, or the same client again. Needs server 2.11.

        Raises:
            ConfigError: The name of the group is not valid, or the server is too old.

        May also raise any error of an API request.
        """
        body = {"group": check_group_name(group)}
        check_server(self._context.connection.server_version, (2, 11), "unpinning")
        await self._context.call(self._context.api.consumer_unpin(self.stream, self.name), body, what="unpin")

    async def delete(self) -> None:
        """Delete the consumer on the server. Pull requests in flight end with `ConsumerDeletedError`.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.

        May also raise any error of an API request.
        """
        await self._context.call(
            self._context.api.consumer_delete(self.stream, self.name), what="delete consumer"
        )

    async def close(self) -> None:
        """Stop reading through this handle, and return unread messages to the server.

        The consumer itself is not deleted. Use `delete` for that.
        """
        await self._puller.close(give_back=True)
