"""Ordered pull consumers: `JetStream.ordered_consumer`. Source: ADR-37 §Ordered Consumers, ADR-17."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..._runtime.calls import consumer_info
from ..._runtime.context import Context
from ..._runtime.handle import Handle, Opening, ReadHandle, State
from ...errors import ClosedError, ConcurrentReadError, ConfigError, JetStreamError, RequestTimeoutError
from ...protocol.consumers.consume import reader_window
from ...protocol.consumers.fetch import MARGIN, Pull, default_heartbeat, not_answered, whole_pull
from ...protocol.consumers.ordered import ordered_pull_config
from ...protocol.consumers.status import Ending
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.wire.checks import check_count
from ...protocol.wire.frames import Frame
from ...protocol.wire.names import check_consumer_name, check_stream_name
from ..message import DeliveredMessage, Message
from ..pull.batch import Batch, Collection
from ..pull.fetch import Fetch
from .puller import OrderedPuller

__all__ = ["OrderedConsumer", "OrderedFetch", "OrderedMessages", "ReaderLock", "ordered_consumer"]

_ANSWERED = frozenset({Ending.NO_MESSAGES, Ending.EXPIRED, Ending.MAX_BYTES})


class OrderedFetch(Fetch[OrderedPuller]):
    """A fetch from an ordered consumer. It takes messages from the puller's buffer, with at most one request in flight.

    When the consumer is silent or deleted, or when the connection is lost, the puller replaces the consumer. The fetch
    continues, and requests the missing messages from the new consumer.
    """

    def __init__(self, puller: OrderedPuller, collection: Collection) -> None:
        super().__init__(puller, collection, [puller.front])
        self._tracker = puller.tracker
        self._tracker.rest()

    def _outcome(self, now: float) -> tuple[Ending, JetStreamError | None] | None:
        puller, tracker, request = self._puller, self._tracker, self._tracker.request
        if puller.error is not None:
            return Ending.DELETED, puller.error
        if puller.nothing_comes:
            return Ending.CLOSED, ClosedError("the ordered consumer was closed while a fetch was in flight")
        if request is not None and request.ending is not None:
            if request.ending in _ANSWERED and request.settled:
                return request.ending, None
            if request.ending is Ending.REFUSED:
                return request.ending, request.error
            tracker.request = request = None  # so that the missing messages are requested again
        awaits_status = request is not None and tracker.cursor.wants is None
        if now < self._collection.deadline + (MARGIN if awaits_status else 0.0):
            return None
        if request is not None and awaits_status:
            # The status that ends the request is overdue. The tracker replaces the consumer if the status was lost.
            puller.carry_out(tracker.tick_request(max(now, request.over_at)))
        if not puller.context.connection.is_connected:
            return Ending.DISCONNECTED, puller.context.connection.away()
        # If the consumer couldn't be replaced so far, attempts continue in the background, but this fetch ends on time.
        if puller.recreator.error is not None:
            return Ending.DELETED, puller.recreator.error
        if self._collection.pull.no_wait:
            return Ending.SILENT, not_answered(self._collection.expires)
        return Ending.EXPIRED, None

    def _to_request(self, missing: int, now: float) -> int:
        tracker, no_wait = self._tracker, self._collection.pull.no_wait
        tracker.buffer.end_pause(now)
        if tracker.request is not None or tracker.cursor.wants is not None:
            return 0
        if not tracker.buffer.online or tracker.buffer.paused_until is not None:
            return 0
        if no_wait:
            return missing
        # Messages requested by a cancelled call may still arrive and are returned by this call, so request fewer.
        return missing - tracker.buffer.owed if now < self._collection.deadline else 0

    async def _send_request(self, pull: Pull, now: float) -> None:
        self._puller.carry_out([self._tracker.fetch(pull, now)])

    def _wake_at(self, now: float) -> float:
        tracker = self._tracker
        moments = [self._collection.deadline]
        if tracker.request is not None and tracker.cursor.wants is None:
            deadline = tracker.request.deadline
            moments = [self._collection.deadline + MARGIN, *([] if deadline is None else [deadline])]
        if tracker.buffer.paused_until is not None:
            moments.append(tracker.buffer.paused_until)
        return min(moments)

    def _tick_requests(self, now: float) -> None:
        self._puller.carry_out(self._tracker.tick_request(now))

    def _release_requests(self) -> None:
        # The server still delivers messages for this request. They stay in the buffer, and the next call returns them.
        self._tracker.request = None


_ITERATED = (
    "the ordered consumer is being iterated: end that loop first, or leave the reader that messages() gave"
)
_NEXT = "a next() of this ordered consumer waits for a message: wait for its end, or cancel it"


class ReaderLock:
    """Makes sure that an ordered consumer has only one reader at a time.

    The reference to the reader is weak, so that an iteration that was left with ``break`` doesn't block other readers.
    """

    def __init__(self, puller: OrderedPuller) -> None:
        self._puller = puller
        self._reader: weakref.ref[OrderedMessages] | None = None
        self._fetches = False

    @property
    def reader(self) -> OrderedMessages | None:
        return None if self._reader is None else self._reader()

    def acquire(self, reader: OrderedMessages) -> None:
        self._check_free()
        self._reader = weakref.ref(reader, self._forgotten)

    def release(self, reader: OrderedMessages) -> None:
        if self.reader is reader:
            self._reader = None
            self._stop_requests()

    @contextmanager
    def fetch(self) -> Iterator[None]:
        """Exclude readers for the duration of a fetch. Raises `ConcurrentReadError` if a reader is in use."""
        self._check_free()
        self._reader, self._fetches = None, True
        try:
            yield
        finally:
            self._fetches = False

    def _check_free(self) -> None:
        if self._fetches:
            raise ConcurrentReadError("a fetch from this ordered consumer is in flight: wait for its end")
        if self.reader is not None and self.reader.is_in_use:
            raise ConcurrentReadError(self.reader.in_use)

    def _forgotten(self, reader: weakref.ref[OrderedMessages]) -> None:
        if self._reader is reader:
            self._reader = None
            self._stop_requests()

    def _stop_requests(self) -> None:
        self._puller.tracker.rest()
        self._puller.carry_out([])


class OrderedMessages(ReadHandle[Message]):
    """An asynchronous iterator over the messages of an ordered consumer. Returned by `OrderedConsumer.messages`.

    The first pull request is sent when you read the first message. If messages are still in the buffer when the
    iteration ends, the next reader of the ordered consumer continues with them.
    """

    def __init__(
        self, puller: OrderedPuller, lock: ReaderLock, pull: Pull, threshold: int, *, stays: bool = True
    ) -> None:
        self._puller = puller
        self._lock = lock
        self._pull = pull
        self._threshold = threshold
        # Whether other readers are excluded until this one is closed, as in an iteration. `OrderedConsumer.next`
        # excludes them only during a call.
        self._stays = stays
        self._channel = puller.channel
        self._tracker = puller.tracker
        self._front: deque[Frame] = deque()  # buffered messages, only while this is the current reader
        self._waiting = 0

    @property
    def pending(self) -> int:
        """Number of messages that have been received and are waiting to be read."""
        return len(self._puller.front)

    @property
    def in_use(self) -> str:
        """Error message for other readers that are used while this one has exclusive access. For internal use."""
        return _ITERATED if self._stays else _NEXT

    @property
    def is_in_use(self) -> bool:
        """Whether this reader currently has exclusive access, so no other reader may start. For internal use."""
        return not self.is_closed and (self._stays or self._waiting > 0)

    async def next(self, timeout: float | None = None) -> Message:
        """Wait up to ``timeout`` seconds for the next message, and return it. See `OrderedConsumer.next` for errors."""
        puller = self._puller
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            self._acquire()
            message = puller.take_message()
            if message is not None:
                return message
            self._see_end()
            self._waiting += 1
            puller.watch.asked()
            try:
                in_time = await puller.changed.wait_until(deadline)
            finally:
                self._waiting -= 1
            if not in_time:
                # Look once more. A message may have arrived in the event loop iteration in which the timeout expired.
                message = puller.take_message()
                if message is not None:
                    return message
                raise RequestTimeoutError("no message", timeout, puller.context.connection.problem)

    async def __anext__(self) -> Message:
        # This isn't an async generator, because cancelling a generator would end it and lose the buffered messages.
        front = self._front
        if len(front) > self._tracker.low:
            return DeliveredMessage(front.popleft(), self._channel)
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _acquire(self) -> None:
        if self.is_closed:
            raise ClosedError("the reader is closed")
        if self._lock.reader is not self:
            puller = self._puller
            self._lock.acquire(self)
            self._front = puller.front
            if not puller.nothing_comes:
                now = puller.context.connection.now()
                puller.carry_out(self._tracker.read_continuously(self._pull, self._threshold, now))

    def _see_end(self) -> None:
        """Raise an error if no more messages will arrive."""
        puller, refused = self._puller, self._tracker.error
        if puller.error is not None:
            self._lock.release(self)  # the next reader gets the same error
            raise puller.error
        if refused is not None:
            self._leave()
            raise refused
        if puller.nothing_comes or self._state is State.DRAINING:
            self._leave()
            raise ClosedError(
                "the ordered consumer is closed" if puller.nothing_comes else "the reader is closed"
            )

    def _leave(self) -> None:
        self._state = State.CLOSED
        self._front = deque()
        self._lock.release(self)
        self._puller.changed.set()

    async def close(self) -> None:
        """End the iteration. The next reader of the ordered consumer continues with the messages in the buffer."""
        if not self.is_closed:
            self._leave()

    stop = close

    async def drain(self) -> None:
        """Stop requesting messages. The iteration ends once the messages already received have been read."""
        if self._lock.reader is not self:
            await self.close()  # the iteration has not started, so it has no messages to read
        elif self._state is State.OPEN:
            self._state = State.DRAINING
            self._tracker.rest()
            self._puller.changed.set()


_LONGEST_PREFIX = 230  # maximum length of a name prefix, which leaves space for the serial number


class OrderedConsumer(Handle):
    """Reads every message of a stream exactly once and in order. Returned by `JetStream.ordered_consumer`.

    You don't have to acknowledge messages. If a message is lost, the server falls silent, the consumer is deleted, or
    the client reconnects, the reader creates a new consumer that starts after the last message received. The event
    `ConsumerReset` reports this.

    Only one reader may be active at a time. For example, `fetch` raises `ConcurrentReadError` during an iteration. You
    may call `next` from several tasks. Each call returns a different message.
    """

    def __init__(self, puller: OrderedPuller) -> None:
        self._puller = puller
        self._lock = ReaderLock(puller)
        self._single = self._reader(stays=False)

    @property
    def stream(self) -> str:
        """Name of the stream that is read."""
        return self._puller.stream

    @property
    def consumer(self) -> str:
        """Name of the current consumer. A number at its end increases each time the consumer is recreated."""
        return self._puller.consumer

    @property
    def pending(self) -> int:
        """Number of messages that have been received and are waiting to be read."""
        return len(self._puller.front)

    @property
    def position(self) -> int:
        """Stream sequence of the last message returned, or 0 before the first. All matching messages up to it are read.

        Save the position to continue later or in another process: start an ordered consumer at ``position + 1``.
        """
        return self._puller.tracker.position

    @property
    def is_closed(self) -> bool:
        """Whether no more messages will arrive. After `drain`, messages already received can still be read."""
        return self._puller.state is State.CLOSED

    def permissions(self, *, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user with this ``inbox_prefix`` needs to create an ordered consumer.

        The permissions let the user read the whole stream, and have it delivered to any subject of the account. For the
        format, the errors and the security considerations, see `OrderedSubscription.permissions`.
        """
        from ...protocol.consumers.rights import ordered_pull_rights

        return ordered_pull_rights(self._puller.context.api, self.stream, inbox_prefix=inbox_prefix)

    def __repr__(self) -> str:
        return f"<OrderedConsumer {self.stream}/{self.consumer} {self._puller.state.value}>"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the state and configuration of the current consumer from the server.

        Args:
            timeout: How long to wait for the answer, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConsumerNotFoundError: The consumer was deleted. The reader recreates it when it notices.
            RequestTimeoutError: The server didn't answer within the timeout.
            PermissionDeniedError: The user isn't allowed to request the state of the consumer.
        """
        return await consumer_info(self._puller.context, self.stream, self.consumer, timeout=timeout)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the recent events of this reader, then over new events until the reader is closed."""
        return self._puller.log.read_events()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message and return it. More messages are requested ahead for the next calls.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds. You may call `next` again.
            StreamNotFoundError: The stream was deleted. Like other errors that end the reader, it is raised only after
                all messages in the buffer have been returned, and then by every further call.
            StatusError: The server refused the request.
            ConcurrentReadError: Another task is calling `fetch`.
            ClosedError: The reader was closed, or it was drained and all messages have been read.

        If the call is cancelled, no message is lost, because the next call returns it.
        """
        reader = self._lock.reader
        return await (self._single if reader is None or reader.is_closed else reader).next(timeout)

    def __aiter__(self) -> OrderedMessages:
        """Iterate over messages, like `messages` without arguments. The loop ends when the reader is closed."""
        return self._reader(stays=True)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
    ) -> OrderedMessages:
        """Return an iterator that reads messages continuously, and requests them ahead of time.

        For the arguments, see `Consumer.messages`. If two heartbeats are missing, the consumer is recreated. Requests
        shorter than 2 s have heartbeats too, by default at an interval of half of ``expires``.

        Raises:
            ConfigError: An argument is invalid.
        """
        if idle_heartbeat is None and isinstance(expires, int | float):
            # Always request heartbeats. Without them, a lost consumer could go unnoticed.
            idle_heartbeat = default_heartbeat(expires) or expires / 2
        pull, threshold = reader_window(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
        )
        return OrderedMessages(self._puller, self._lock, pull, threshold)

    def _reader(self, *, stays: bool) -> OrderedMessages:
        return OrderedMessages(self._puller, self._lock, _WINDOW, _THRESHOLD, stays=stays)

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
    ) -> Batch:
        """Request up to ``batch`` messages and wait for them.

        For the arguments and the result, see `Consumer.fetch`. Unlike a fetch from a `Consumer`, this fetch survives
        the loss of the connection or the consumer: it recreates the consumer and requests the missing messages again,
        until ``expires`` seconds have passed.

        Raises:
            StreamNotFoundError: The stream was deleted. Other errors that ended the reader are raised too.
            StatusError: The server refused the request.
            DisconnectedError: There was no connection after ``expires`` seconds.
            RequestTimeoutError: With ``no_wait``, the server didn't reply, so messages may or may not be available.
            ConcurrentReadError: Another task is calling `fetch`, or is iterating over messages.
            ConfigError: An argument is invalid. No request was sent.
            ClosedError: The reader is closed.

        If the call is cancelled, no message is lost. The next call returns all messages that arrive for the request.
        """
        pull = whole_pull(
            batch, expires=expires, max_bytes=max_bytes, no_wait=no_wait, idle_heartbeat=idle_heartbeat
        )
        collection = Collection(pull, self._puller.context.connection.now(), expires)
        with self._lock.fetch():
            self._puller.watch.asked()
            return await OrderedFetch(self._puller, collection).run()

    async def close(self) -> None:
        """Close the reader, drop the messages in its buffer, and delete the consumer. Calling it again does nothing.

        If the consumer can't be deleted, the event `DeleteFailed` is emitted. The server then removes the consumer
        after its ``inactive_threshold``.
        """
        await self._puller.stop_reading()

    stop = close

    async def drain(self) -> None:
        """Stop requesting messages, and delete the consumer. Messages already received can still be read."""
        await self._puller.drain()


_WINDOW, _THRESHOLD = reader_window(
    max_messages=None, max_bytes=None, threshold_messages=None, expires=30.0, idle_heartbeat=None
)


def ordered_consumer(
    context: Context,
    stream: str,
    config: ConsumerConfig,
    *,
    name_prefix: str | None,
    max_reset_attempts: int | None,
) -> Opening[OrderedConsumer]:
    """See `JetStream.ordered_consumer`."""
    check_stream_name(stream)
    if name_prefix is not None:
        check_consumer_name(name_prefix, "name prefix")
        if len(name_prefix) > _LONGEST_PREFIX:
            raise ConfigError(f"name_prefix has {len(name_prefix)} characters: at most {_LONGEST_PREFIX} fit")
    if max_reset_attempts is not None:
        check_count("max_reset_attempts", max_reset_attempts)
    options = {"name_prefix": name_prefix, "max_reset_attempts": max_reset_attempts}
    opened = partial(_open, context, stream, ordered_pull_config(config), options)
    return Opening(opened, "ordered_consumer()")


async def _open(
    context: Context, stream: str, config: ConsumerConfig, options: dict[str, Any]
) -> OrderedConsumer:
    puller = OrderedPuller(context, stream, config, **options)
    await puller.create_first_consumer()
    return OrderedConsumer(puller)
