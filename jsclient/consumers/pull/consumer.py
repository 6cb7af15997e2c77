"""The handle for a consumer that `Stream.consumer` returns. Source: ADR-37."""

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
    """A handle for a consumer on the server. Returned by `Stream.consumer` and `Stream.create_consumer`.

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
            timeout: Seconds to wait for the reply. Defaults to the ``timeout`` passed to `connect`. Consider a shorter
                timeout for health checks.

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

        Readers stay open. They receive no messages until the pause ends or `resume` is called.

        Args:
            until: The end of the pause, as a ``datetime`` with a time zone. A ``timedelta`` or a number of seconds is
                added to the local clock.

        Returns: the end of the pause as stored by the server, or None if it is in the past.

        Raises:
            ConfigError: ``until`` is invalid (for example, it has no time zone), or the server is too old.
            ConsumerNotFoundError: The consumer was deleted.

        May also raise any error of an API request.
        """
        moment = time_of(until, datetime.now(UTC))
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Resume the deliveries after `pause`. Does nothing if the consumer isn't paused.

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

        All messages from that position on are delivered again, and ``metadata.consumer_seq`` restarts at 1. Readers
        stay open. They keep the messages in their buffers, so they may return some messages twice. A push subscription
        emits the event `ConsumerReset`.

        Args:
            seq: Stream sequence of the first message to deliver. By default, the deliveries restart after the ack
                floor, so only unacknowledged messages are delivered again.

        Returns: the stream sequence at which the deliveries restart.

        Raises:
            ConfigError: ``seq`` is invalid or beyond the next message of the stream, or the server is too old.
            ApiError: The consumer can't restart at ``seq`` (10204). This requires the deliver policy "all", or
                "by_start_sequence" or "by_start_time" with a start that isn't after ``seq``.
            ConsumerNotFoundError: The consumer was deleted.

        May also raise any error of an API request.
        """
        if seq is not None:
            check_count("seq", seq, most=2**64 - 1)
        check_server(self._context.connection.server_version, (2, 14), "resetting a consumer")
        with suppress(PermissionDeniedError):
            # Raises an error if the consumer was deleted. In that case, the server wouldn't answer the reset.
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
            ConfigError: The name of the group is invalid, or the server is too old.

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

        This doesn't delete the consumer. Use `delete` for that.
        """
        await self._puller.close(give_back=True)
