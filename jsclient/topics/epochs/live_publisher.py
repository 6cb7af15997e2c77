"""The publisher of a partition of a live topic. Each subscriber has a queue of messages, and no message is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from ..._runtime.connection.connection import Inbox, Lifecycle
from ..._runtime.context import Context
from ..._runtime.handle import Handle, State, body_error_first
from ..._runtime.tasks import Signal
from ...errors import ClosedError, JetStreamError, ProducerFencedError, ProtocolError, PublisherExistsError
from ...protocol.consumers.monitors import HeartbeatMonitor
from ...protocol.epochs.frontier import Antichain, Changes, Order
from ...protocol.epochs.live import (
    EpochBroadcast,
    LiveMessage,
    beat_monitor,
    live_subject,
    read_live_request,
    write_live,
)
from ...protocol.epochs.presence import presence_subject
from ...protocol.epochs.records import order_name
from ...protocol.epochs.trackers import EpochPublisher, EpochState
from ...protocol.topics.value_codec import Codec, codec_name
from ...protocol.wire.frames import Frame
from ...protocol.wire.replies import INBOX, may_answer
from .presence import Presence, is_present

__all__ = ["LivePublisher"]

T = TypeVar("T", bound=Hashable)

_AT_ONCE: Final = 100  # messages sent to one subscriber before it is the next one's turn
_FULL: Final = 1000  # `send` waits while the longest queue has at least this many messages
_FAREWELL: Final = 5.0  # seconds that closing waits for the queues to drain


class LivePublisher(Handle, Generic[T]):
    """Sends data in epochs to connected subscribers, without storing it. Opened by `EpochTopic.live_publisher`.

    Data that is sent while no subscriber is connected is lost. A new subscriber first learns which epochs are completed
    and which are in progress, and then receives every message sent afterwards. A subscriber is disconnected if it sends
    no heartbeat for three times the interval ``beat`` (see `EpochTopic.live_publisher`), or if it reads too slowly.

    Leaving ``async with`` calls `release`, which doesn't complete the open epochs. Call `close` to complete them.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        partition: int,
        order: Order[T],
        codec: Codec,
        *,
        beat: float,
        max_subscribers: int,
        reply_prefix: str | None,
    ) -> None:
        self._context, self._connection = context, context.connection
        self._topic, self._partition, self._order, self._codec = topic, partition, order, codec
        self._beat, self._max_subscribers = beat, max_subscribers
        own = f"{self._connection.inbox_prefix}."
        self._reply_prefixes = (INBOX, own) if reply_prefix is None else (reply_prefix,)
        self._refused = 0
        self._types = f"order {order_name(order)}, codec {codec_name(codec)}"
        self._broadcast: EpochBroadcast[T] = EpochBroadcast(EpochPublisher(order))
        self._sent: dict[str, int] = {}  # number of the last message sent to each subscriber
        self._silence: dict[str, HeartbeatMonitor] = {}  # detects subscribers that send no heartbeats
        self._wake, self._changed = Signal(), Signal()
        self._inbox: Inbox | None = None
        self._presence = Presence(
            context, presence_subject(topic, partition, live=True), lambda: not self.is_closed, self._taken
        )
        self._is_taken = False
        self._watching: asyncio.Task[None] | None = None

    async def begin_publishing(self, *, takeover: bool) -> None:
        """Listen for subscribers. For internal use. `EpochTopic.live_publisher` calls this method.

        Raises:
            PublisherExistsError: Another live publisher is active, and ``takeover`` is false.
            DisconnectedError: There is no connection.
            ClosedError: The connection is closed.

        May also raise any other request error.
        """
        present = await is_present(self._context, self._presence.subject, "take" if takeover else "ask")
        if present and not takeover:
            raise PublisherExistsError(self._topic, self._partition)
        self._context.attach(self, self._drop_subscribers)
        try:
            self._inbox = await self._connection.subscribe(
                live_subject(self._topic, self._partition), self._receive_requests
            )
            await self._presence.begin_answering()
            await self._connection.ping(self._context.timeout)  # the server has the subscriptions from now on
        except BaseException:
            await self.release()
            raise
        self._context.tasks.start(self._pump(), "live publisher")
        self._watching = self._context.tasks.start(self._watch_subscribers(), "live publisher: heartbeats")

    @property
    def frontier(self) -> Antichain[T]:
        """The earliest times for which data may still be sent. All earlier epochs are complete."""
        return self._broadcast.publisher.lower

    @property
    def upper(self) -> Antichain[T]:
        """The latest times for which data was ever sent. Empty if no data was sent."""
        return self._broadcast.publisher.upper

    @property
    def subscribers(self) -> int:
        """The number of connected subscribers."""
        return len(self._broadcast.subscribers)

    @property
    def refused(self) -> int:
        """The number of requests refused since the publisher was opened.

        A request is refused if it is malformed, if its reply subject isn't an inbox, or if ``max_subscribers``
        subscribers are already connected. The event `ErrorRaised` reports the 1st, 2nd, 4th, 8th refusal and so on.
        """
        return self._refused

    @property
    def put_out(self) -> int:
        """How many subscribers were disconnected since the opening because they read too slowly and filled their queue.

        Such a subscriber connects again by itself, and its next read raises `EpochsLostError`.
        """
        return self._broadcast.put_out

    def state(self, time: T) -> EpochState:
        """Return whether the epoch ``time`` has no data yet, is in progress, or is completed."""
        return self._broadcast.publisher.state(time)

    async def send(self, time: T, items: Any) -> None:
        """Send a batch of items of one epoch to all connected subscribers.

        The call returns once the batch is in the queue of each subscriber, without waiting until it has been received.
        If the queue of a subscriber is long, the call waits until it becomes shorter.

        Args:
            time: The time of the epoch. Sending its first batch makes the epoch active.
            items: The items, usually a list. The codec of the topic must be able to encode them.

        Raises:
            EpochCompletedError: The epoch is already completed.
            ConfigError: The time is invalid, or the items can't be encoded.
            MaxPayloadError: The batch is larger than the server accepts.
            ClosedError: The publisher was closed.
            ProducerFencedError: Another publisher has taken over.
        """
        self._check_open()
        data = self._codec.encode(items)
        self._connection.check_size(len(data) + 256)
        await self._wait_for_queues()
        self._broadcast.send(time, data)
        self._wake.set()

    async def advance(self, to: T) -> None:
        """Complete all epochs before the time ``to``. Subscribers that are connected receive these epochs.

        Args:
            to: The earliest time for which data may still be sent.

        Raises:
            EpochCompletedError: ``to`` itself is already completed.
            ConfigError: ``to`` isn't a valid time.
            ClosedError: The publisher was closed.
            ProducerFencedError: Another publisher has taken over.
        """
        await self._change(lambda: self._broadcast.advance(to))

    async def update(self, changes: Mapping[T, int] | Changes[T]) -> None:
        """Add and drop capabilities in a single step, to control for which times this publisher may still send data.

        `PartitionPublisher.update` explains capabilities. Use `advance` unless you need several of them at once.

        Args:
            changes: The times, each with +1 to add a capability or -1 to drop one.

        Raises the same errors as `advance`.
        """
        pairs = [*changes.items()] if isinstance(changes, Mapping) else [*changes]
        await self._change(lambda: self._broadcast.update(pairs))

    async def close(self) -> None:
        """Complete all epochs, and close the publisher.

        Before closing, the call waits up to 5 seconds for the subscribers to receive the last messages.
        """
        await self._change(self._broadcast.close)
        try:
            async with asyncio.timeout(_FAREWELL):
                while self._broadcast.subscribers:
                    await self._changed.wait()
        except TimeoutError:
            pass
        await self.release()

    async def _change(self, change: Callable[[], None]) -> None:
        self._check_open()
        await self._wait_for_queues()
        change()
        self._wake.set()

    async def _wait_for_queues(self) -> None:
        """Wait while the longest queue is full."""
        while self._broadcast.longest >= _FULL:
            await self._changed.wait()
            self._check_open()

    def _check_open(self) -> None:
        if self._is_taken:
            raise ProducerFencedError(live_subject(self._topic, self._partition))
        if self.is_closed:
            raise ClosedError("the publisher was closed")

    async def _pump(self) -> None:
        """Send the queued messages, to one subscriber after the other, until the publisher is closed."""
        while not self.is_closed:
            has_sent = False
            for subscriber in [*self._silence]:
                for number, message in self._broadcast.take_messages(subscriber, _AT_ONCE):
                    if subscriber not in self._silence:  # the subscriber was forgotten while a publish waited
                        break
                    has_sent = True
                    self._sent[subscriber] = number
                    header, payload = write_live(LiveMessage("message", number, message), self._order)
                    try:
                        await self._connection.publish(subscriber, payload, header=header)
                    except JetStreamError:
                        self._forget_subscriber(subscriber)  # the subscriber will notice, and connect again
                        break
            self._changed.set()
            if not has_sent:
                await self._wake.wait()
            connected = set(self._broadcast.subscribers)
            for subscriber in self._silence.keys() - connected:  # subscribers whose queue was full
                self._forget_subscriber(subscriber)

    async def _watch_subscribers(self) -> None:
        """Drop subscribers that were silent for three beats."""
        while not self.is_closed:
            await asyncio.sleep(self._beat / 4)
            now = asyncio.get_running_loop().time()
            for subscriber, silence in [*self._silence.items()]:
                if silence.check_silence(now) is not None:
                    self._forget_subscriber(subscriber)

    def _receive_requests(self, frames: list[Frame]) -> None:
        for subject, reply, _, data in frames:
            who = reply.decode(errors="replace")
            try:
                request = read_live_request(data)
                if not may_answer(who, self._reply_prefixes):
                    raise ProtocolError(
                        f"{who!r:.200} is not an inbox, the reply of a subscriber on {subject!r} needs one"
                    )
            except ProtocolError as error:
                self._refuse_request(error)
                continue
            # A request other than "leave" and "connect" is a heartbeat. If this publisher has dropped the subscriber,
            # the answer tells the subscriber to connect again.
            if request.verb == "leave":
                self._forget_subscriber(who)
            elif request.verb == "connect":
                self._connect(who, f"order {request.order}, codec {request.codec}")
            elif (silence := self._silence.get(who)) is not None:
                silence.heard(asyncio.get_running_loop().time())
                self._wake.set()
                self._answer(who, LiveMessage("there", self._sent.get(who, 0)))
            else:
                self._answer(who, LiveMessage("unknown"))

    def _connect(self, who: str, types: str) -> None:
        if types != self._types:
            self._answer(who, LiveMessage("mismatch", 0, None, self._types))
            return
        if who not in self._silence and len(self._silence) >= self._max_subscribers:
            self._refuse_request(
                ProtocolError(f"partition {self._partition} already has {len(self._silence)} subscribers")
            )
            return
        self._broadcast.connect(who)
        self._sent[who] = 0
        self._silence[who] = beat_monitor(self._beat, asyncio.get_running_loop().time())
        self._wake.set()

    def _refuse_request(self, error: ProtocolError) -> None:
        """Report the first refusal, then each time the count has doubled, because strangers may send many requests."""
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            self._context.report(error)

    def _answer(self, who: str, live: LiveMessage[T]) -> None:
        header, payload = write_live(live, self._order)
        try:
            self._connection.send(who, payload, header=header)
        except JetStreamError:
            pass  # the subscriber repeats its request

    def _forget_subscriber(self, who: str) -> None:
        self._broadcast.disconnect(who)
        self._silence.pop(who, None)
        self._sent.pop(who, None)
        self._changed.set()

    def _drop_subscribers(self, what: Lifecycle) -> None:
        """Drop all subscribers if the connection was lost, since messages in flight may be lost with it."""
        if what is not Lifecycle.CONNECTED:
            for who in [*self._silence]:
                self._forget_subscriber(who)

    def _taken(self) -> None:
        """Release this publisher because another one takes over. The subscribers then connect to the new publisher."""
        self._is_taken = True
        self._context.tasks.start(self.release(), "live publisher: taken")

    async def release(self) -> None:
        """Stop publishing without completing the open epochs.

        The subscribers wait until another live publisher of the partition is opened. The new publisher begins again at
        the minimum time of the topic's `Order`. If the call is cancelled, the release continues in the background.
        """
        if not self.is_closed:
            self._state = State.CLOSED
            self._context.detach(self, self._drop_subscribers)
            self._wake.set()
            self._changed.set()
            if self._watching is not None:
                self._watching.cancel()
            await asyncio.wait([self._context.tasks.start(self._release(), "live publisher: release")])

    async def _release(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._connection.unsubscribe(inbox)
        await self._presence.end_answering()

    async def abandon(self) -> None:
        """Release the publisher because its connection is being closed. For internal use."""
        await self.release()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with body_error_first(error, self):
            await self.release()
