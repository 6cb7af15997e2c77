"""Reading by pull requests: the common part of `PullSubscription` and `Consumer`, and the fetch of one call.

Source: ADR-37 §Fetch, ADR-13, ADR-15 §Pull Mode Statuses, ADR-42.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Unpack, overload

from ...errors import (
    ClosedError,
    ConsumerDeletedError,
    DisconnectedError,
    JetStreamError,
    RequestTimeoutError,
)
from ...protocol.consumers.consume import reader_window
from ...protocol.consumers.fetch import (
    MARGIN,
    Pull,
    check_pull,
    default_expires,
    default_heartbeat,
    not_answered,
)
from ...protocol.consumers.priority import GroupOptions, GroupRequest
from ...protocol.consumers.status import ORDINARY, Ending
from ...protocol.wire.checks import check_arguments, check_seconds
from ...protocol.wire.frames import Frame, frame_size
from ..message import AckChannel, DeliveredMessage, Message
from ..worker.run import Running
from .puller import Puller, Slot

if TYPE_CHECKING:
    from ..ordered.puller import OrderedPuller
    from ..worker.sources import Source
    from .messages import Messages

__all__ = ["Batch", "Collection", "Fetch", "PullReading"]

_GRACE = 0.8  # seconds that a fetch waits for a lost connection to return
_MOVES = 3  # requests that a fetch repeats because the consumer moves
_MOVE_PAUSE = 0.1  # seconds before each
_SAME_TIME = 0.01  # seconds after its start in which a fetch still requests its whole time
_ASK_AGAIN = frozenset({Ending.FULL, Ending.DISCONNECTED})

Outcome: TypeAlias = tuple[Ending, JetStreamError | None]
PullerT = TypeVar("PullerT", "Puller", "OrderedPuller")


class Batch(Sequence[Message]):
    """The messages of a fetch, in the order of delivery.

    Attributes:
        ending: Why it ended.
        error: The error of an ending that is not ordinary, else None. If no message came at all,
            `PullSubscription.fetch` raises it instead.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: list[Message], ending: Ending, error: JetStreamError | None = None) -> None:
        self._messages = messages
        self.ending: Ending = ending
        self.error: JetStreamError | None = error

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)  # that of `Sequence` calls `__getitem__` for each

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error!r}"
        return f"<Batch of {len(self)}, {self.ending.value}{error}>"


class Collection:
    """What one fetch has collected, and its requests for the rest. Common to plain and ordered consumers.

    Attributes:
        pull: The request for everything.
        frames: The messages collected.
        expires, deadline: Seconds for the whole fetch; monotonic seconds of its end.
    """

    def __init__(
        self,
        now: float,
        batch: int,
        *,
        expires: float,
        max_bytes: int | None,
        no_wait: bool,
        idle_heartbeat: float | None,
        group: GroupRequest | None = None,
    ) -> None:
        """Raises `ConfigError` for a value that the server would refuse."""
        check_pull(batch, expires, max_bytes, None if no_wait else idle_heartbeat)
        if no_wait:
            self.pull: Pull = Pull(batch, None, max_bytes, no_wait=True, group=group)
        else:
            if idle_heartbeat is None:
                idle_heartbeat = default_heartbeat(expires)
            self.pull = Pull(batch, expires, max_bytes, idle_heartbeat=idle_heartbeat, group=group)
        self.frames: list[Frame] = []
        self.expires: float = expires
        self.deadline: float = now + expires
        self._size = 0  # bytes of the frames, if they are bounded

    def collect(self, source: deque[Frame]) -> bool:
        """Move messages from ``source``. False: the next one would exceed ``max_bytes``."""
        frames, pull = self.frames, self.pull
        if pull.max_bytes is None and len(frames) + len(source) <= pull.batch:
            frames.extend(source)
            source.clear()
            return True
        while source and len(frames) < pull.batch:
            size = frame_size(source[0])
            if pull.max_bytes is not None and self._size + size > pull.max_bytes:
                return False
            self._size += size
            frames.append(source.popleft())
        return True

    def request(self, missing: int, now: float) -> Pull:
        """A request for ``missing`` messages in the time that is left."""
        pull, left = self.pull, self.deadline - now
        if missing == pull.batch and (pull.no_wait or left > self.expires - _SAME_TIME):
            # Equal requests are encoded once. The fetch ends with this one, not a moment before its status is due.
            self.deadline = now + self.expires
            return pull
        room = None if pull.max_bytes is None else pull.max_bytes - self._size
        if pull.no_wait:
            return Pull(missing, None, room, no_wait=True, group=pull.group)
        heartbeat = pull.idle_heartbeat
        if heartbeat is not None and heartbeat > left / 2:
            heartbeat = None  # the server would refuse it
        return Pull(missing, max(left, 0.001), room, idle_heartbeat=heartbeat, group=pull.group)

    def batch(self, channel: AckChannel, ending: Ending, error: JetStreamError | None) -> Batch:
        """The result. Raises ``error`` if it has no messages to return with it."""
        if error is not None and not self.frames:
            raise error
        return Batch([DeliveredMessage(frame, channel) for frame in self.frames], ending, error)


class Fetch(abc.ABC, Generic[PullerT]):
    """One call of `fetch`: collects messages, and sends requests until it has all it wants, or its time ends.

    A subclass says which requests are in flight, and when the end of one, or of its consumer, ends the fetch.
    """

    def __init__(self, puller: PullerT, wanted: Collection, sources: list[deque[Frame]]) -> None:
        self._puller: PullerT = puller
        self._wanted = wanted
        self._sources = (
            sources  # arrived messages, the oldest first; the first one gets back what is not returned
        )

    async def run(self) -> Batch:
        """Run to the end. Cancelled: the collected messages go to the next call."""
        try:
            ending, error = await self._run()
        except BaseException:
            self._sources[0].extendleft(reversed(self._wanted.frames))
            self._puller.changed.set()
            raise
        finally:
            self._release()
        return self._wanted.batch(self._puller.channel, ending, error)

    async def _run(self) -> Outcome:
        puller, wanted = self._puller, self._wanted
        now = puller.context.connection.running_loop().time
        while True:
            for source in self._sources:
                if source and not wanted.collect(source):
                    return Ending.MAX_BYTES, None
            if (missing := wanted.pull.batch - len(wanted.frames)) <= 0:
                return Ending.FULL, None
            at = now()
            if (outcome := self._outcome(at)) is not None:
                return outcome
            if (asked := self._to_request(missing, at)) > 0:
                await self._ask(wanted.request(asked, at), at)
                continue  # messages may have arrived while the request was being sent
            if not await puller.changed.wait_until(self._wake_at(at)):
                self._tick(now())

    @abc.abstractmethod
    def _outcome(self, now: float) -> Outcome | None:
        """How it ends, if it does now."""

    @abc.abstractmethod
    def _to_request(self, missing: int, now: float) -> int:
        """The part of ``missing`` to request now: no request in flight will deliver it. 0 or less: none."""

    @abc.abstractmethod
    async def _ask(self, pull: Pull, now: float) -> None: ...

    @abc.abstractmethod
    def _wake_at(self, now: float) -> float: ...

    @abc.abstractmethod
    def _tick(self, now: float) -> None:
        """That time has come."""

    @abc.abstractmethod
    def _release(self) -> None:
        """It has ended. Requests that are still served continue without a caller."""


class _SlotFetch(Fetch[Puller]):
    """The fetch of a plain consumer.

    It usually sends one request. It sends another when a request ends early for a reason that concerns only that
    request: the connection or the pin was lost, the consumer moved, or the request was adopted from a cancelled call
    and was smaller or shorter.
    """

    def __init__(self, puller: Puller, wanted: Collection) -> None:
        super().__init__(puller, wanted, [puller.leftover])
        self._slots: list[Slot] = []
        self._own: Slot | None = None  # the request that this fetch sent last
        self._offline_since: float | None = None
        self._ask_after = 0.0  # monotonic seconds
        self._moves = 0
        pull = wanted.pull
        if not pull.no_wait and pull.max_bytes is None:
            for slot in puller.adopt(pull.batch, pull.group):
                self._add(slot)

    def _add(self, slot: Slot) -> None:
        self._slots.append(slot)
        assert slot.frames is not None
        self._sources.append(slot.frames)

    def _remove(self, slot: Slot) -> None:
        place = self._slots.index(slot)
        del self._slots[place], self._sources[place + 1]
        self._puller.abandon(slot)

    async def _run(self) -> Outcome:
        while True:
            ending, error = await super()._run()
            if ending is not Ending.NO_RESPONDERS:
                return ending, error
            error = await self._puller.not_answered(ends=True)
            if not self._puller.was_there or self._moves >= _MOVES:
                return ending, error
            # It exists: its leader is being elected, or it is so new that this server does not know of it yet.
            self._moves += 1
            self._ask_after = self._puller.now() + _MOVE_PAUSE
            for slot in [one for one in self._slots if one.request and one.request.ending is ending]:
                self._remove(slot)

    def _named(self, error: JetStreamError | None) -> JetStreamError | None:
        if not isinstance(error, ConsumerDeletedError):
            return error
        code, description, retryable, *_ = error.args
        return ConsumerDeletedError(code, description, retryable, self._puller.stream, self._puller.consumer)

    def _outcome(self, now: float) -> Outcome | None:
        puller, wanted, connection = self._puller, self._wanted, self._puller.context.connection
        if puller.closed or connection.is_closed:
            return Ending.CLOSED, ClosedError("the subscription was closed while a fetch was in flight")
        for slot in list(self._slots):
            request = slot.request
            if request is None or request.ending is None:
                continue
            ending = request.ending
            adopted = slot is not self._own
            moved = ending is Ending.MOVED and self._moves < _MOVES
            if moved:
                # Another leader, or a server that shuts down: the same request will be accepted in a moment.
                self._moves += 1
                self._ask_after = now + _MOVE_PAUSE
            if moved or ending in _ASK_AGAIN or request.is_unpinned or (adopted and ending in ORDINARY):
                # The connection or the pin was lost, or only the time of another call has ended: request the rest.
                self._remove(slot)
                continue
            return ending, self._named(request.error)
        if connection.is_connected:
            self._offline_since = None
        else:
            self._offline_since = self._offline_since or now
            if now >= min(self._offline_since + _GRACE, wanted.deadline):
                return Ending.DISCONNECTED, connection.away()
        if now >= wanted.deadline + MARGIN:
            # Late by a margin: neither the messages nor the server's status that ends the request came.
            if wanted.pull.no_wait:
                return Ending.SILENT, not_answered(wanted.expires)
            return Ending.EXPIRED, None
        return None

    def _to_request(self, missing: int, now: float) -> int:
        if self._offline_since is not None or not self._ask_after <= now < self._wanted.deadline:
            return 0
        for slot in self._slots:
            if slot.request is not None and slot.request.ending is None:
                missing -= slot.request.owed
        return missing

    async def _ask(self, pull: Pull, now: float) -> None:
        try:
            self._own = await self._puller.request(pull)
        except DisconnectedError:
            return  # noticed by the loop
        self._add(self._own)

    def _wake_at(self, now: float) -> float:
        at = self._wanted.deadline + MARGIN
        for slot in self._slots:
            if slot.request is not None and (deadline := slot.request.deadline) is not None and deadline < at:
                at = deadline
        if self._ask_after > now:
            at = min(at, self._ask_after)
        if self._offline_since is not None:
            at = min(at, self._offline_since + _GRACE, self._wanted.deadline)
        return at

    def _tick(self, now: float) -> None:
        for slot in self._slots:
            request = slot.request
            if request is not None and (deadline := request.deadline) is not None and now >= deadline:
                request.tick(now)

    def _release(self) -> None:
        for slot in self._slots:
            self._puller.abandon(slot)


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

        It ends at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds, a status that ends it. A
        short or empty result is not an error; its ``ending`` gives the reason.

        Args:
            batch: Messages wanted, 1 or more.
            expires: How long the server may hold the request, seconds, over 0.
            max_bytes: Bytes wanted at most, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Take the messages that are available and return at once.
            idle_heartbeat: Seconds between the heartbeats of the server while it holds the request, at most half of
                ``expires``; two missed ones end the fetch with `HeartbeatError`. By default a quarter of ``expires``,
                2 s at most, and none for requests under 2 s.
            group: The priority group; required if the consumer has priority groups (ADR-42).
            min_pending, min_ack_pending: Only while at least that many messages are undelivered, or delivered and not
                acked; if both are given, either is enough. With the policy ``overflow``.
            priority: 0 to 9; requests of a lower number are served first. With the policy ``prioritized``.

        Returns:
            The messages in the order of delivery, ``0 <= len(...) <= batch``. If some came before an error, they are
            returned and ``error`` holds it.

        Raises:
            ConsumerDeletedError, PullLimitError, PushBasedError, BadRequestError, NoRespondersError: A status.
            ConsumerNotFoundError, StreamNotFoundError: No server answered, and the consumer, which could not be looked
                up before, does not exist.
            HeartbeatError: Silence. RequestTimeoutError: Silence, with ``no_wait``: whether messages are available is
                unknown.
            DisconnectedError: The connection was lost and did not return within 0.8 s.
            ConfigError: A value that the server would refuse. ClosedError: The handle or the connection is closed.

        Cancelled: nothing is lost. Messages that had arrived, or are still sent for this request, go to the next call.
        Reconnect: the rest is requested again at once, for the remaining time; the same applies, up to three times,
        when the consumer moves to another server (409 Leadership Change, Server Shutdown; 503, and it exists).

        Wire: ``CONSUMER.MSG.NEXT.<stream>.<consumer>``
        Source: ADR-37 §Fetch; ADR-13; ADR-15 §Pull Mode Statuses
        """
        if group:
            check_arguments(PullReading.fetch, group, GroupOptions)
        puller = self._puller
        if self._all_workers:
            self._check_alone("fetch()")
        wanted = Collection(
            puller.now(),
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=puller.group(group),
        )
        puller.check_open()
        puller.watch.asked()
        return await _SlotFetch(puller, wanted).run()

    async def next(self, timeout: float = 5.0, **group: Unpack[GroupOptions]) -> Message:
        """Fetch one message.

        Raises `RequestTimeoutError` if none comes in ``timeout`` seconds; otherwise as `fetch`.
        """
        if group:
            check_arguments(PullReading.next, group, GroupOptions)
        check_seconds("timeout", timeout)
        batch = await self.fetch(1, expires=timeout, **group)
        if not batch:
            raise RequestTimeoutError("no message", timeout, self._puller.context.connection.trouble)
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
            max_messages: Messages requested or buffered at most; 500 by default, unbounded with ``max_bytes``.
            max_bytes: Bytes requested or buffered at most.
            threshold_messages: Send the next request when this many or fewer are requested or buffered; half by
                default.
            expires: How long the server holds a request, seconds; 30 by default, and at most half of
                ``priority_timeout`` if the consumer pins clients.
            idle_heartbeat: Seconds; as for `fetch`.
            group, min_pending, min_ack_pending, priority: As for `fetch`.
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
        wanted = puller.group(group)
        pin = puller.pin_of(wanted)
        if expires is None:
            expires = default_expires(None if pin is None else puller.config)
        pull, threshold = reader_window(**{**_NO_BOUNDS, **window}, expires=expires, group=wanted)
        return Messages(puller, pull, threshold, pin)

    def __aiter__(self) -> AsyncIterator[Message]:
        """One `messages` reader for all loops over this: messages buffered by an abandoned loop go to the next one."""
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
