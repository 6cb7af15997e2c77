"""Reading by pull requests: the common part of `PullSubscription` and `Consumer`, and the fetch of one call.

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
from ...protocol.consumers.fetch import (
    MARGIN,
    Pull,
    default_expires,
    not_answered,
    whole_pull,
)
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

_GRACE = 0.8  # seconds that a fetch waits for a lost connection to return
_MOVES = 3  # number of requests that a fetch sends again because the consumer's leader changes
_MOVE_PAUSE = 0.1  # seconds before each of these requests
# Seconds after which a fetch that does not wait checks its consumer: server 2.10 sends no "no responders".
_UNANSWERED = 1.0
_ASK_AGAIN = frozenset({Ending.FULL, Ending.DISCONNECTED})

Outcome: TypeAlias = tuple[Ending, JetStreamError | None]
PullerT = TypeVar("PullerT", "Puller", "OrderedPuller")


class Fetch(abc.ABC, Generic[PullerT]):
    """One call of `fetch`: it collects messages, and sends requests until it has all of them or its time ends.

    A subclass determines which requests are in flight, and when the end of a request or consumer ends the fetch.
    """

    def __init__(self, puller: PullerT, collection: Collection, sources: list[deque[Frame]]) -> None:
        self._puller: PullerT = puller
        self._collection = collection
        # arrived messages, oldest first. Unreturned messages go back to the first source
        self._sources = sources

    async def run(self) -> Batch:
        """Run to the end and return the batch. If it is cancelled, the messages collected go to the next call."""
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
                continue  # messages may have arrived while the request was being sent
            if not await puller.changed.wait_until(self._wake_at(at)):
                self._tick_requests(now())

    def _order_arrivals(self) -> None:
        """Put the messages that have arrived in the order of delivery, if several requests have delivered them."""

    @abc.abstractmethod
    def _outcome(self, now: float) -> Outcome | None:
        """Return how the fetch ends, or None if it does not end now."""

    @abc.abstractmethod
    def _to_request(self, missing: int, now: float) -> int:
        """Return how many messages to request now, because no request in flight will deliver them. 0 or less: none."""

    @abc.abstractmethod
    async def _send_request(self, pull: Pull, now: float) -> None: ...

    @abc.abstractmethod
    def _wake_at(self, now: float) -> float: ...

    @abc.abstractmethod
    def _tick_requests(self, now: float) -> None:
        """Called at the time that `_wake_at` returned."""

    @abc.abstractmethod
    def _release_requests(self) -> None:
        """Called at the end. Requests that the server still serves continue without a caller."""


class _SlotFetch(Fetch[Puller]):
    """The fetch of a plain consumer.

    It usually sends one request. It sends another request when a request ends early for a reason that concerns only
    that request: the connection or the pin was lost, the consumer moved, or the request was adopted from a cancelled
    call and was smaller or shorter.
    """

    def __init__(self, puller: Puller, collection: Collection, own: PullInbox | None) -> None:
        """``own`` is the request that was sent already, if it was."""
        super().__init__(puller, collection, [puller.leftover])
        self._slots: list[PullInbox] = []
        self._own = own  # the request that this fetch sent last
        self._older = len(puller.leftover)  # messages that an earlier call has collected, in their order
        self._offline_since: float | None = None
        self._check_after = _UNANSWERED if collection.pull.no_wait else math.inf  # seconds without an answer
        self._ask_after = 0.0  # monotonic seconds before which the next request is not sent
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
        older, self._older = self._older, 0  # the first call of this method is followed by collecting them
        # The server serves several requests in turns. Those without a caller deliver to ``leftover``.
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
                    continue  # the consumer exists, or that is unknown: the answer may still arrive
            if not self._puller.was_there or self._moves >= _MOVES:
                return ending, error
            # The consumer exists. Its leader is being elected, or the consumer is so new that this server does not know
            # it yet.
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
                # Another leader, or a server that shuts down: the same request is accepted a moment later.
                self._moves += 1
                self._ask_after = now + _MOVE_PAUSE
            if moved or ending in _ASK_AGAIN or request.is_unpinned or (adopted and ending in ORDINARY):
                # The request ended for a reason that concerns only this request: request the missing messages again.
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
            # Neither the messages nor the status that ends the request arrived, even after a margin.
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
            return  # `_outcome` sees the lost connection
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
    """`fetch`, `next`, `messages`, ``async for`` and `run` on one pull consumer."""

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
        """Request up to ``batch`` messages from the server.

        The fetch ends at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds, a status that ends
        it. A short or empty result is not an error. Its ``ending`` is the reason.

        Args:
            batch: The maximum number of messages, 1 or more.
            expires: How long the server may keep the request open, in seconds, over 0.
            max_bytes: The maximum number of bytes, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Return at once with the messages that are available.
            idle_heartbeat: Seconds between the server's heartbeats while the request is open, at most half of
                ``expires``. Two missed heartbeats end the fetch with `HeartbeatError`. The default is a quarter of
                ``expires``, 2 s at most, and no heartbeat for requests under 2 s.
            group: The priority group. Required if the consumer has priority groups (ADR-42).
            min_pending, min_ack_pending: Deliver only while at least that many messages are undelivered, or delivered
                and not acked. If both are given, either is enough. For the policy ``overflow``.
            priority: 0 to 9. Requests with a lower number are served first. For the policy ``prioritized``.

        Returns:
            The messages in the order of delivery, ``0 <= len(...) <= batch``. If messages arrived before an error, they
            are returned and ``error`` is that error.

        Raises:
            ConsumerDeletedError, PullLimitError, PushBasedError, BadRequestError, NoRespondersError: The server ended
                the request with an error status.
            ConsumerNotFoundError, StreamNotFoundError: No server answered, and the consumer, which could not be looked
                up before, does not exist.
            HeartbeatError: Neither messages nor heartbeats arrived.
            RequestTimeoutError: With ``no_wait``, no answer arrived. It is unknown whether messages are available.
            DisconnectedError: The connection was lost and did not return within 0.8 s.
            ConfigError: The server would refuse a value.
            ClosedError: The handle or the connection is closed.

        Cancelled: no message is lost. Messages that have arrived, or still arrive for this request, go to the next
        call.

        Reconnect: the missing messages are requested again at once, for the remaining time. The same happens, up to
        three times, when the consumer moves to another server (409 Leadership Change, 409 Server Shutdown, or 503 while
        the consumer exists).

        Wire: ``CONSUMER.MSG.NEXT.<stream>.<consumer>``
        Source: ADR-37 §Fetch; ADR-13; ADR-15 §Pull Mode Statuses
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
        slot, at = None, puller.now()
        if max_bytes is None and not no_wait and puller.is_idle:
            # The ordinary case: one request, whose messages all arrive.
            try:
                slot = await puller.request_all(pull)
            except DisconnectedError:
                pass  # the code below waits for the connection
            else:
                frames = slot.frames
                assert slot.request is not None
                assert frames is not None
                if len(frames) == batch and slot.request.ending is Ending.FULL:
                    slot.frames = None
                    puller.abandon_request(slot)
                    channel = puller.channel
                    messages = Handed([DeliveredMessage(frame, channel) for frame in frames])
                    if batch == 1:
                        puller.in_hand.add_batch(messages)
                    else:  # the same without a call
                        lists = puller.in_hand.lists
                        lists.add(ref(messages, lists.discard))
                    return Batch(messages, Ending.FULL)
                at = slot.request.sent_at
        result = await _SlotFetch(puller, Collection(pull, at, expires), slot).run()
        puller.in_hand.add_batch(result._messages)  # noqa: SLF001  one room
        return result

    async def next(self, timeout: float = 5.0, **group: Unpack[GroupOptions]) -> Message:
        """Fetch one message.

        Raises `RequestTimeoutError` if no message arrives within ``timeout`` seconds, and the errors of `fetch`.
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
        """Read continuously: an iterator for ``async for`` that keeps a bounded buffer filled.

        Args:
            max_messages: The maximum number of messages requested or buffered. The default is 500, or no limit with
                ``max_bytes``.
            max_bytes: The maximum number of bytes requested or buffered.
            threshold_messages: Send the next request when at most this many messages are requested or buffered. The
                default is half of the maximum.
            expires: How long the server keeps a request open, in seconds. The default is 30, and at most half of
                ``priority_timeout`` if the consumer pins clients.
            idle_heartbeat: Seconds. See `fetch`.
            group, min_pending, min_ack_pending, priority: See `fetch`.
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
        """Return the `messages` reader that all loops share: the next loop gets what an abandoned loop has buffered."""
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
