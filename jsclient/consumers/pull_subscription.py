"""Pull subscriptions: `JetStream.pull_subscribe`. Source: ADR-15."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from .._runtime.calls import consumer_info, delete_consumer
from .._runtime.context import Context
from .._runtime.event_hub import EventLog
from ..errors import JetStreamError
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import DeleteFailed, Event
from ..protocol.models.consumer import AckPolicy, ConsumerInfo
from .message import Message
from .pull.fetch import Batch, Puller
from .pull.messages import Messages
from .worker.run import Running
from .worker.sources import PullSource, Source

__all__ = ["PullSubscription"]


class PullSubscription(Running):
    """A subscription that asks for its messages: `fetch`, `next`, `messages`, or `run` with a handler.

    Made by `JetStream.pull_subscribe`. Any number of subscriptions, in any number of processes, may share a durable
    consumer: each message goes to one of them.
    """

    def __init__(self, context: Context, binding: Binding, *, delete_on_close: bool) -> None:
        self._context = context
        self._binding = binding
        self._deletes = delete_on_close and binding.created
        config = None if binding.info is None else binding.info.config
        silent = config is not None and config.ack_policy == AckPolicy.NONE
        self._log = EventLog()
        self._puller = Puller(
            context,
            binding.stream,
            binding.consumer,
            silent=silent,
            config=config,
            listener=self._log.add,
        )
        self._reader: Messages | None = None
        context.open.add(self)

    @property
    def stream(self) -> str:
        """The stream it reads from."""
        return self._binding.stream

    @property
    def consumer(self) -> str:
        """The consumer it reads through."""
        return self._binding.consumer

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer (and so deletes it at its end, unless told not to)."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """Messages that arrived for calls that were cancelled; the next call gets them."""
        return self._puller.pending

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._puller.is_closed

    def __repr__(self) -> str:
        return f"<PullSubscription {self.stream}/{self.consumer}>"

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's present state. Raises `ConsumerNotFoundError` and those of any request."""
        info = await consumer_info(self._context, self.stream, self.consumer)
        self._puller.config = info.config
        return info

    def events(self) -> AsyncIterator[Event]:
        """The events of this subscription, until it ends."""
        return self._log.read()

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Batch:
        """Ask the server for up to ``batch`` messages.

        It ends at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds, a status that ends it. A
        short or empty result is not an error; its ``ending`` says why.

        Args:
            batch: Messages wanted, 1 or more.
            expires: How long the server may hold the request, seconds, over 0.
            max_bytes: Bytes wanted at most, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Take what is there and return at once.
            idle_heartbeat: Seconds between the server's signs of life while it holds the request, at most half of
                ``expires``; two missed end the fetch with `HeartbeatError`. By default a quarter of ``expires``, 5 s at
                most, and none for requests under 2 s.
            group: The priority group; needed where the consumer has priority groups (ADR-42).
            min_pending, min_ack_pending: Only while at least so many messages are not delivered yet, or delivered and
                not acked; of two either will do. With the policy ``overflow``.
            priority: 0 to 9; requests of a lower number are served first. With the policy ``prioritized``.

        Returns:
            The messages in the order of delivery, ``0 <= len(...) <= batch``. Where some came before an error, they are
            returned and ``error`` tells it.

        Raises:
            ConsumerDeletedError, PullLimitError, PushBasedError, BadRequestError, NoRespondersError: A status.
            HeartbeatError: Silence. RequestTimeoutError: Silence, with ``no_wait``: what is there is unknown.
            DisconnectedError: The connection was lost and is not back within 0.8 s.
            ConfigError: A value the server would refuse. ClosedError: The subscription or connection is closed.

        Cancelled: nothing is lost. What had arrived, and what the server still sends for this request, goes to the next
        call.
        Reconnect: the rest is asked for again at once, for the time that is left; so it is, three times at most,
        when the consumer moves to another server (409 Leadership Change, Server Shutdown).

        Wire: ``CONSUMER.MSG.NEXT.<stream>.<consumer>``
        Source: ADR-37 §Fetch; ADR-13; ADR-15 §Pull Mode Statuses
        """
        return await self._puller.fetch(
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=self._puller.group(
                group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
            ),
        )

    async def next(
        self,
        timeout: float = 5.0,
        *,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Message:
        """One message. Raises `RequestTimeoutError` when none comes in ``timeout`` seconds; else as `fetch`."""
        asks = self._puller.group(
            group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
        )
        return await self._puller.next(timeout, asks)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Messages:
        """Read on and on: a reader for ``async for`` that keeps a bounded buffer filled.

        Args:
            max_messages: Messages asked for or waiting at most; 500 by default, not bounded with ``max_bytes``.
            max_bytes: Bytes asked for or waiting at most.
            threshold_messages: Ask again when this many or fewer are asked for or waiting; half by default.
            expires: How long the server holds a request, seconds; 30 by default, and half of ``priority_timeout`` at
                most where the consumer pins clients.
            idle_heartbeat: Seconds; as for `fetch`.
            group, min_pending, min_ack_pending, priority: As for `fetch`.
        """
        return Messages(
            self._puller,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=self._puller.group(
                group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
            ),
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """One `messages` reader for all loops over this: what a loop that was left had waiting, the next one gets."""
        if self._reader is None or self._reader.is_closed:
            self._reader = self.messages()
        return self._reader

    def _source(self, group: Mapping[str, Any]) -> Source:
        self._puller.check_open()
        self._puller.group(**{"group": None, **group})
        return PullSource(
            self._context,
            self.stream,
            self.consumer,
            owner=self,
            messages=partial(self.messages, **group),
            emit=self._puller.emit,
            known=None if self._binding.info is None else self._binding.info.config,
        )

    async def unsubscribe(self) -> None:
        """Stop, and delete the consumer if this subscription created it. Calling it again does nothing.

        Messages that arrived for cancelled calls are given back to the server (nak) where the consumer stays.

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted; the subscription is
                closed all the same.
        """
        deletes, self._deletes = self._deletes, False
        await self._close(give_back=not deletes)
        self._log.close()
        if deletes:
            await delete_consumer(self._context, self.stream, self.consumer)

    async def drain(self) -> None:
        """As `unsubscribe`, but trouble with the deletion is told as the event `DeleteFailed`.

        A worker (`run`) is stopped first, and waited for.
        """
        await self._end_workers()
        deletes, self._deletes = self._deletes, False
        await self._close(give_back=not deletes)
        if deletes:
            await self._delete_and_tell()
        self._log.close()

    async def _close(self, *, give_back: bool) -> None:
        await self._puller.close(give_back=give_back)
        self._context.open.discard(self)

    async def _delete_and_tell(self) -> None:
        try:
            await delete_consumer(self._context, self.stream, self.consumer)
        except JetStreamError as error:
            self._puller.emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))

    async def abandon(self) -> None:
        """The connection is being closed: end, and delete an ephemeral consumer that we made."""
        self._deletes = (
            self._deletes and not self._binding.is_durable and self._context.connection.is_connected
        )
        await self.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()
