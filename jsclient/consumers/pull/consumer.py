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

    Use it to read messages, or to manage the consumer::

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
        """Name of the consumer. It is unique within the stream."""
        return self._info.name

    @property
    def stream(self) -> str:
        """Name of the stream from which the consumer delivers messages."""
        return self._info.stream_name

    @property
    def config(self) -> ConsumerConfig:
        """Configuration of the consumer, as last reported by the server.

        Other clients may have changed the consumer since then. Call `info` to refresh the configuration.
        """
        return self._info.config

    @property
    def cached_info(self) -> ConsumerInfo:
        """Configuration and state of the consumer, as last reported by the server.

        Reading it sends no request, so numbers such as ``num_pending`` may be outdated. Call `info` to refresh them.
        """
        return self._info

    def __repr__(self) -> str:
        return f"<Consumer {self.stream}/{self.name}>"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the current state and configuration of the consumer from the server.

        Args:
            timeout: How long to wait for the reply, in seconds. Defaults to the ``timeout`` passed to `connect`.
                Consider a shorter timeout for health checks.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            StreamNotFoundError: The stream was deleted.
            RequestTimeoutError: The server didn't answer within the timeout.
            NoRespondersError: No server currently answers JetStream requests.
            PermissionDeniedError: The user isn't allowed to request the state of the consumer.
            ClosedError: The connection is closed.
        """
        self._info = await consumer_info(self._context, self.stream, self.name, timeout=timeout)
        self._puller.config = self._info.config
        return self._info

    async def pause(self, until: datetime | timedelta | float) -> datetime | None:
        """Stop the deliveries of the consumer until a certain time.

        Readers stay open. They receive no messages until the pause ends or `resume` is called. Pausing requires
        nats-server 2.11 or later.

        Args:
            until: The end of the pause, as a ``datetime`` with a time zone. A ``timedelta`` or a number of seconds is
                added to the local clock.

        Returns:
            The end of the pause as stored by the server, or None if it is in the past, so the consumer isn't paused.

        Raises:
            ConfigError: ``until`` is invalid (for example, it has no time zone), or the server is too old.
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: No answer arrived in time. The consumer may or may not be paused.
            DisconnectedError: The connection was lost. The consumer may or may not be paused.
        """
        moment = time_of(until, datetime.now(UTC))
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Resume the deliveries after `pause`. Does nothing if the consumer isn't paused.

        Raises:
            ConfigError: The server is too old. Resuming requires nats-server 2.11 or later.
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: No answer arrived in time. You may call `resume` again.
            DisconnectedError: The connection was lost before the answer arrived. You may call `resume` again.
        """
        await self._pause({})

    async def _pause(self, body: dict[str, Any]) -> datetime | None:
        check_server(self._context.connection.server_version, (2, 11), "pausing a consumer")
        answer = await self._context.call(
            self._context.api.consumer_pause(self.stream, self.name), body, what="pause"
        )
        return parse_time(answer["pause_until"]) if answer.get("paused") else None

    async def reset(self, seq: int | None = None) -> int:
        """Move the consumer back to an earlier position, so it delivers the messages from there again.

        Readers stay open. Because they keep the messages in their buffers, they may return some messages twice.
        ``metadata.consumer_seq`` restarts at 1, and push subscriptions emit a `ConsumerReset` event.

        Requires nats-server 2.14 or later. See ADR-60 for the details.

        Args:
            seq: Stream sequence of the first message to deliver. By default, the deliveries restart after the ack
                floor, so only unacknowledged messages are delivered again.

        Returns:
            The stream sequence at which the deliveries restart.

        Raises:
            ConfigError: ``seq`` is invalid or beyond the next message of the stream, or the server is too old.
            ApiError: The consumer can't restart at ``seq`` (10204). This requires the deliver policy "all", or
                "by_start_sequence" or "by_start_time" with a start that isn't after ``seq``.
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: No answer arrived in time. The consumer may or may not have been reset.
            DisconnectedError: The connection was lost. The consumer may or may not have been reset.
        """
        if seq is not None:
            check_count("seq", seq, most=2**64 - 1)
        check_server(self._context.connection.server_version, (2, 14), "resetting a consumer")
        with suppress(PermissionDeniedError):
            # The server doesn't answer a reset of a deleted consumer, so find out with a request that it does answer.
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
        """Unpin the client that currently receives all messages of a priority group.

        The server then pins a client that is waiting for messages, which may be the same client. Use this to move the
        work to a different client. Requires nats-server 2.11 or later. See ADR-42 for priority groups.

        Args:
            group: Name of the priority group, which must have the policy "pinned_client".

        Raises:
            ConfigError: The name of the group is invalid, or the server is too old.
            ApiError: The server refused the request, for example because the consumer has no such group.
            RequestTimeoutError: No answer arrived in time. You may call `unpin` again.
            DisconnectedError: The connection was lost before the answer arrived. You may call `unpin` again.
        """
        body = {"group": check_group_name(group)}
        check_server(self._context.connection.server_version, (2, 11), "unpinning")
        await self._context.call(self._context.api.consumer_unpin(self.stream, self.name), body, what="unpin")

    async def delete(self) -> None:
        """Delete the consumer from the server, including its position and its record of unacknowledged messages.

        Messages stay in the stream, unless its retention policy is "interest" and no other consumer needs them. Pending
        pull requests fail with `ConsumerDeletedError`.

        Raises:
            ConsumerNotFoundError: The consumer doesn't exist.
            RequestTimeoutError: No answer arrived in time. The consumer may or may not have been deleted.
            DisconnectedError: The connection was lost. The consumer may or may not have been deleted.
        """
        await self._context.call(
            self._context.api.consumer_delete(self.stream, self.name), what="delete consumer"
        )

    async def close(self) -> None:
        """Stop reading through this handle, and return unread messages to the server.

        The consumer itself remains. To remove it from the server, call `delete`. Further reads through this handle
        raise `ClosedError`. The methods that manage the consumer still work.
        """
        await self._puller.close(give_back=True)
