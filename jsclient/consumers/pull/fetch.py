"""Reading with pull requests: the methods that `PullSubscription` and `Consumer` share, and the logic of a fetch.

Source: ADR-37 §Fetch, ADR-13, ADR-15 §Pull Mode Statuses, ADR-42.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Unpack
from weakref import ref

from ...errors import (
    ClosedError,
    ConsumerDeletedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
)
from ...protocol.consumers.consume import reader_window
from ...protocol.consumers.fetch import MARGIN, Pull, default_expires, not_answered, whole_pull
from ...protocol.consumers.priority import GroupOptions
from ...protocol.consumers.status import ORDINARY, Ending
from ...protocol.wire.checks import check_arguments, check_seconds
from ...protocol.wire.frames import Frame
from ..message import DeliveredMessage, Message
from ..worker.run import Running
from .batch import Batch, Collection, in_delivery_order
from .in_hand import Handed
from .puller import Puller, PullInbox

if TYPE_CHECKING:
    from ..ordered.puller import OrderedPuller
    from ..worker.sources import Source
    from .messages import Messages

__all__ = ["Fetch", "PullReading"]

_GRACE = 0.8  # how long a fetch waits for a reconnect, in seconds
_MOVES = 3  # how many times a fetch repeats its request because the leader of the consumer has changed
_MOVE_PAUSE = 0.1  # seconds before the request is repeated
# A fetch with no_wait that gets no response for this many seconds looks up the consumer, because server 2.10 doesn't
# report missing responders.
_UNANSWERED = 1.0
_ASK_AGAIN = frozenset({Ending.FULL, Ending.DISCONNECTED})

Outcome: TypeAlias = tuple[Ending, JetStreamError | None]
PullerT = TypeVar("PullerT", "Puller", "OrderedPuller")


class Fetch(abc.ABC, Generic[PullerT]):
    """One call of ``fetch``. It sends requests and collects messages until the batch is complete or time is up.

    Subclasses keep track of the requests in flight. They decide whether a request that has ended also ends the fetch.
    """

    def __init__(self, puller: PullerT, collection: Collection, sources: list[deque[Frame]]) -> None:
        self._puller: PullerT = puller
        self._collection = collection
        # Queues of received messages. If the fetch is cancelled, its messages go back to the first queue.
        self._sources = sources

    async def run(self) -> Batch:
        """Run the fetch and return the batch.

        If the call is cancelled, the messages collected so far are returned by the next call.
        """
        try:
            ending, error = await self._run_requests()
        except BaseException:
            self._order_arrivals()
            self._sources[0].extendleft(reversed(self._collection.frames))
            self._puller.changed.set()
            raise
        finally:
            self._release_requests()
        return self._collection.batch(self._puller.channel, ending, error)

    async def _run_requests(self) -> Outcome:
        puller, collection = self._puller, self._collection
        now = puller.context.connection.running_loop().time
        while True:
            self._order_arrivals()
            for source in self._sources:
                if source and not collection.collect(source):
                    return Ending.MAX_BYTES, None
            if (missing := collection.pull.batch - len(collection.frames)) <= 0:
                return Ending.FULL, None
            at = now()
            if (outcome := self._outcome(at)) is not None:
                return outcome
            if (count := self._to_request(missing, at)) > 0:
                await self._send_request(collection.request(count, at), at)
                continue  # check for messages that arrived while the request was being sent
            if not await puller.changed.wait_until(self._wake_at(at)):
                self._tick_requests(now())

    def _order_arrivals(self) -> None:
        """Sort the received messages if several requests have delivered them. Does nothing by default."""

    @abc.abstractmethod
    def _outcome(self, now: float) -> Outcome | None:
        """Return the ending of the fetch and its error, or None if the fetch must continue."""

    @abc.abstractmethod
    def _to_request(self, missing: int, now: float) -> int:
        """Return how many of the missing messages to request now. If the result isn't positive, don't request any."""

    @abc.abstractmethod
    async def _send_request(self, pull: Pull, now: float) -> None: ...

    @abc.abstractmethod
    def _wake_at(self, now: float) -> float: ...

    @abc.abstractmethod
    def _tick_requests(self, now: float) -> None:
        """Handle the deadlines of requests in flight. Called when the time returned by `_wake_at` has come."""

    @abc.abstractmethod
    def _release_requests(self) -> None:
        """Release the requests at the end of the fetch. A request in flight continues without a caller."""


class _SlotFetch(Fetch[Puller]):
    """A fetch from a pull consumer.

    One request is usually enough. The fetch sends another one when a request ends early for a reason that doesn't
    concern the fetch itself: the connection was lost, the client was unpinned, the consumer has a new leader, or the
    request was adopted from a cancelled call that wanted fewer messages or had less time.
    """

    def __init__(self, puller: Puller, collection: Collection, own: PullInbox | None) -> None:
        """Create a fetch. ``own`` is the inbox of its first request, if that request was already sent."""
        super().__init__(puller, collection, [puller.leftover])
        self._slots: list[PullInbox] = []
        self._own = own  # the last request that this fetch sent itself instead of adopting it
        self._older = len(puller.leftover)  # number of messages that an earlier call has sorted
        self._offline_since: float | None = None
        self._check_after = _UNANSWERED if collection.pull.no_wait else math.inf  # seconds without an answer
        self._ask_after = 0.0  # time of the earliest next request, in monotonic seconds
        self._moves = 0
        pull = collection.pull
        if own is not None:
            self._add(own)
        elif not pull.no_wait and pull.max_bytes is None:
            for slot in puller.adopt(pull.batch, pull.group):
                self._add(slot)

    def _add(self, slot: PullInbox) -> None:
        self._slots.append(slot)
        assert slot.frames is not None
        self._sources.append(slot.frames)

    def _remove(self, slot: PullInbox) -> None:
        index = self._slots.index(slot)
        del self._slots[index], self._sources[index + 1]
        self._puller.abandon_request(slot)

    def _order_arrivals(self) -> None:
        leftover, *own = self._sources
        # An earlier call has sorted the first ``older`` leftover messages, so leave them at the front.
        older, self._older = self._older, 0
        # The server alternates between concurrent requests, so consecutive messages may arrive in different queues.
        # Messages for a request that no longer has a caller arrive in the leftover queue.
        if sum(map(bool, own)) + (len(leftover) > older) > 1:
            earlier = [leftover.popleft() for _ in range(older)]
            arrived = in_delivery_order([*leftover, *chain.from_iterable(own)])
            for source in self._sources:
                source.clear()
            leftover.extend(earlier + arrived)

    async def _run_requests(self) -> Outcome:
        while True:
            ending, error = await super()._run_requests()
            if ending is not Ending.NO_RESPONDERS:
                return ending, error
            refused = [slot for slot in self._slots if slot.request and slot.request.ending is ending]
            error = await self._puller.not_answered(ends=True)
            if not refused:
                self._check_after = math.inf
                if isinstance(error, NoRespondersError):
                    continue  # as far as we know the consumer exists, so the answer may still arrive
            if not self._puller.was_there or self._moves >= _MOVES:
                return ending, error
            # Try again, because the consumer exists. Its leader is being elected, or the server doesn't know it yet.
            self._moves += 1
            self._ask_after = self._puller.now() + _MOVE_PAUSE
            for slot in refused:
                self._remove(slot)

    def _named(self, error: JetStreamError | None) -> JetStreamError | None:
        if not isinstance(error, ConsumerDeletedError):
            return error
        code, description, retryable, *_ = error.args
        return ConsumerDeletedError(code, description, retryable, self._puller.stream, self._puller.consumer)

    def _outcome(self, now: float) -> Outcome | None:
        puller, collection, connection = self._puller, self._collection, self._puller.context.connection
        if puller.closed or connection.is_closed:
            return Ending.CLOSED, ClosedError("the subscription was closed while a fetch was in flight")
        if puller.in_hand.has_ended:
            return Ending.CLOSED, ClosedError("the connection was drained while a fetch was in flight")
        for slot in list(self._slots):
            request = slot.request
            if request is None or request.ending is None:
                continue
            ending = request.ending
            adopted = slot is not self._own
            moved = ending is Ending.MOVED and self._moves < _MOVES
            if moved:
                # The consumer's leader has moved or its server is shutting down. Pause, then retry with the new leader.
                self._moves += 1
                self._ask_after = now + _MOVE_PAUSE
            if moved or ending in _ASK_AGAIN or request.is_unpinned or (adopted and ending in ORDINARY):
                # Only this request has ended, not the fetch, so the missing messages are requested again.
                self._remove(slot)
                continue
            return ending, self._named(request.error)
        if connection.is_connected:
            self._offline_since = None
        else:
            self._offline_since = self._offline_since or now
            if now >= min(self._offline_since + _GRACE, collection.deadline):
                return Ending.DISCONNECTED, connection.away()
        if now >= self._check_at and not collection.frames:
            return Ending.NO_RESPONDERS, None
        if now >= collection.deadline + MARGIN:
            # The status that ends the request is overdue and was probably lost. Without this, the fetch would hang.
            if collection.pull.no_wait:
                return Ending.SILENT, not_answered(collection.expires)
            return Ending.EXPIRED, None
        return None

    @property
    def _check_at(self) -> float:
        request = None if self._own is None else self._own.request
        return math.inf if request is None or request.ended else request.sent_at + self._check_after

    def _to_request(self, missing: int, now: float) -> int:
        if self._offline_since is not None or not self._ask_after <= now < self._collection.deadline:
            return 0
        for slot in self._slots:
            if slot.request is not None and slot.request.ending is None:
                missing -= slot.request.owed
        return missing

    async def _send_request(self, pull: Pull, now: float) -> None:
        try:
            self._own = await self._puller.request(pull)
        except DisconnectedError:
            return  # `_outcome` decides how long to wait for the reconnect
        self._add(self._own)

    def _wake_at(self, now: float) -> float:
        at = self._collection.deadline + MARGIN
        for slot in self._slots:
            if slot.request is not None and (deadline := slot.request.deadline) is not None and deadline < at:
                at = deadline
        if self._ask_after > now:
            at = min(at, self._ask_after)
        if not self._collection.frames:
            at = min(at, self._check_at)
        if self._offline_since is not None:
            at = min(at, self._offline_since + _GRACE, self._collection.deadline)
        return at

    def _tick_requests(self, now: float) -> None:
        for slot in self._slots:
            request = slot.request
            if request is not None and (deadline := request.deadline) is not None and now >= deadline:
                request.check_deadline(now)

    def _release_requests(self) -> None:
        for slot in self._slots:
            self._puller.abandon_request(slot)


_NO_BOUNDS = dict.fromkeys(("max_messages", "max_bytes", "threshold_messages", "idle_heartbeat"))


class PullReading(Running):
    """Base class of `PullSubscription` and `Consumer` that provides the methods for reading with pull requests."""

    _puller: Puller
    _reader: Messages | None = None

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Batch:
        """Request up to ``batch`` messages from the server and wait for them.

        The fetch ends once ``batch`` messages or ``max_bytes`` bytes have arrived, after ``expires`` seconds, or when
        the server ends the request. It isn't an error if fewer messages than requested are returned, or none at all.
        The attribute ``ending`` of the result tells why the fetch ended.

        Args:
            batch: Maximum number of messages, at least 1.
            expires: Maximum duration of the fetch in seconds, greater than 0.
            max_bytes: Maximum total size of subjects, reply subjects, headers and payloads in bytes, at least 1.
            no_wait: Return only the messages that are available immediately.
            idle_heartbeat: Interval in seconds between heartbeats, which the server sends while there are no messages.
                At most half of ``expires``. If two are missing, the fetch ends with `HeartbeatError`. Defaults to a
                quarter of ``expires``, but at most 2 s. Requests shorter than 2 s have no heartbeats by default.
            group: Name of the priority group. Required if the consumer has priority groups (ADR-42).
            min_pending: Wait until at least this many messages are undelivered. For the priority policy "overflow".
            min_ack_pending: The same for unacknowledged messages. If both are given, one condition is enough.
            priority: 0 to 9. Requests with lower numbers are served first. Only for the policy "prioritized".

        Returns:
            The messages in the order of delivery. If an error ended the fetch after some messages had arrived, these
            messages are returned, and the attribute ``error`` of the batch contains the error.

        Raises:
            ConsumerDeletedError: The consumer was deleted during the fetch.
            PullLimitError: The request exceeds a limit of the consumer, such as ``max_batch``.
            PushBasedError: The consumer is a push consumer.
            BadRequestError: The server rejected the request as malformed, or its pin is no longer valid.
            NoRespondersError: No server currently answers for the consumer.
            ConsumerNotFoundError, StreamNotFoundError: No server answered, because the consumer or the stream doesn't
                exist. Raised only if the consumer couldn't be looked up when this handle was opened.
            HeartbeatError: Neither messages nor heartbeats arrived.
            RequestTimeoutError: With ``no_wait``, the server didn't reply, so messages may or may not be available.
            DisconnectedError: The connection was lost and not restored within 0.8 s.
            ConfigError: An argument is invalid. No request was sent.
            ClosedError: The handle or the connection is closed.

        If the call is cancelled, the next call returns all messages that arrive for this request, so none is lost.

        After a reconnect, the missing messages are requested again for the remaining time. The request is also repeated
        up to three times if the consumer moves to another server (409 Leadership Change, 409 Server Shutdown, or 503
        while the consumer exists).

        See ADR-37 and ADR-13 for the protocol.
        """
        if group:
            check_arguments(PullReading.fetch, group, GroupOptions)
        puller = self._puller
        if self._all_workers:
            self._check_alone("fetch()")
        pull = whole_pull(
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=puller.group(group),
        )
        puller.check_open()
        puller.watch.asked()
        slot, at, connection = None, puller.now(), puller.context.connection
        if not (max_bytes or no_wait or puller.leftover or puller.orphans) and connection.is_connected:
            # In the usual case one request delivers all messages. This path skips the bookkeeping of `_SlotFetch`.
            try:
                slot = await puller.request_all(pull)
            except DisconnectedError:
                pass  # `_SlotFetch` waits for the reconnect
            else:
                frames = slot.frames
                assert slot.request is not None
                assert frames is not None
                if len(frames) == batch and slot.request.ending is Ending.FULL:
                    slot.frames = None
                    puller.abandon_request(slot)
                    channel = puller.channel
                    delivered: list[Message] = [DeliveredMessage(frame, channel) for frame in frames]
                    if channel.silent:  # a drain doesn't wait for these messages, because they need no ack
                        return Batch(delivered, Ending.FULL)
                    messages = Handed(delivered)
                    if batch == 1:
                        puller.in_hand.add_batch(messages)
                    else:  # `add_batch`, inlined to save a function call
                        messages.hand = hand = puller.in_hand
                        hand.lists.add(ref(messages, hand.lists.discard))
                    return Batch(messages, Ending.FULL)
                at = slot.request.sent_at
        result = await _SlotFetch(puller, Collection(pull, at, expires), slot).run()
        if isinstance(returned := result._messages, Handed):  # noqa: SLF001  same package
            puller.in_hand.add_batch(returned)
        return result

    async def next(self, timeout: float = 5.0, **group: Unpack[GroupOptions]) -> Message:
        """Fetch one message.

        Each call sends a request and waits for the reply. If you read many messages, `messages` is much faster.

        Args:
            timeout: How long to wait for the message, in seconds.
            group, min_pending, min_ack_pending, priority: See `fetch`.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds.

        Also raises the same errors as `fetch`. If the call is cancelled, no message is lost.
        """
        if group:
            check_arguments(PullReading.next, group, GroupOptions)
        check_seconds("timeout", timeout)
        batch = await self.fetch(1, expires=timeout, **group)
        if not batch:
            raise RequestTimeoutError("no message", timeout, self._puller.context.connection.problem)
        return batch[0]

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Messages:
        """Return an iterator that reads messages continuously.

        ::

            async with consumer.messages() as messages:
                async for message in messages:
                    ...
                    await message.ack()

        The iterator requests messages ahead, so the next message is usually in its buffer already.

        Args:
            max_messages: Maximum number of messages requested or buffered. Defaults to 500, or to no limit if
                ``max_bytes`` is given. Choose a small number if handling a message takes long, because buffered
                messages aren't delivered to other readers.
            max_bytes: Maximum number of bytes requested or buffered. Unlimited by default.
            threshold_messages: Send the next request when at most this many messages are requested or buffered.
                Defaults to half of the maximum.
            expires: Duration of each request in seconds. Defaults to 30. If the consumer pins clients, the duration is
                at most half of ``priority_timeout``.
            idle_heartbeat: Interval of heartbeats in seconds. See `fetch`.
            group, min_pending, min_ack_pending, priority: See `fetch`.

        Raises:
            ConfigError: An argument is invalid.

        No request is sent until the first message is read. The iterator raises the errors of `Messages.next`.
        """
        check_arguments(PullReading.messages, group, GroupOptions)
        if self._all_workers:
            self._check_alone("messages()")
        window = {
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "threshold_messages": threshold_messages,
            "expires": expires,
            "idle_heartbeat": idle_heartbeat,
        }
        return self._messages(group, **window)

    def _messages(self, group: GroupOptions, *, expires: float | None = None, **window: Any) -> Messages:
        from .messages import Messages

        puller = self._puller
        request = puller.group(group)
        pin = puller.pin_of(request)
        if expires is None:
            expires = default_expires(None if pin is None else puller.config)
        pull, threshold = reader_window(**{**_NO_BOUNDS, **window}, expires=expires, group=request)
        return Messages(puller, pull, threshold, pin)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages, like `messages` without arguments.

        All loops share one iterator. If you leave a loop with ``break``, the next loop continues with the messages in
        the buffer.
        """
        if self._reader is None or self._reader.is_closed:
            self._reader = self.messages()
        return self._reader

    def _source(self, group: GroupOptions) -> Source:
        from ..worker.sources import PullSource

        puller = self._puller
        puller.check_open()
        puller.group(group)
        return PullSource(
            puller.context,
            puller.stream,
            puller.consumer,
            messages=partial(self._messages, group),
            emit=puller.emit,
            known=puller.config,
            watch=puller.watch,
        )
