"""The messages held by a worker: their order, keep-alives, timeouts and settlement.

The runner (`jsclient.Worker`) takes messages, calls handlers and sends acks; `Workload` decides. A `Work` is one held
message, from its arrival until it is *settled*: acked, returned to the server, or terminated. A redelivery of a held
message is the same work.

With an order by key, each key (other than None) has a *lane*: one work of it is handled at a time, in the order of the
stream, and a failed one is retried here before the next of its lane starts. If it were returned to the server, it could
be delivered to another worker, and the lane would wait forever.

Time is monotonic seconds. Source: ADR-15 §Ack Handling; nats-server server/consumer.go (ack_wait, max_deliver).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from .reasons import DeliveriesExhaustedError, Reject
from .work_rules import WorkRules

__all__ = [
    "CANCEL_TIMEOUT",
    "Due",
    "Fate",
    "Lane",
    "Phase",
    "Verdict",
    "Work",
    "WorkCounts",
    "Workload",
]

T = TypeVar("T")


class Phase(Enum):
    """The phase of a work."""

    WAITING = "waiting"  # for a free handler, or for its turn in its lane
    RUNNING = "running"  # its handler runs, or its ack or dead letter is in flight
    REPEATING = "repeating"  # it failed and waits for its next attempt here
    SETTLED = "settled"


class Fate(Enum):
    """How a work is settled."""

    ACK = "ack"
    RETRY = "retry"  # the server redelivers it to any worker
    REPEAT = "repeat"  # it is retried here
    DEAD = "dead"  # it is never retried


@dataclass(slots=True, frozen=True)
class Verdict:
    """The decision about a work whose handler has ended.

    ``delay``: seconds until its next attempt. ``wire_delay``: the delay in the nak that causes it; None: send "in
    progress" and leave the delay to the consumer's backoff. ``trouble``: why ``retry_delay`` could not be used.
    """

    fate: Fate
    delay: float = 0.0
    wire_delay: float | None = None
    trouble: Exception | None = None


@dataclass(slots=True)
class WorkCounts:
    """The counts of a worker.

    Attributes:
        handled: The handler returned (or had settled the message itself), and the message is acked.
        failed: Attempts in which the handler raised, was cancelled, or ran too long.
        retried: Those of them followed by another attempt, here or after a redelivery.
        dead_lettered: Stored under the dead-letter subject, and terminated.
        terminated: Terminated without a dead letter, because no subject was given.
        returned: Returned to the server when the worker stopped: they waited, or were interrupted.
        unsettled: Their acks could not be sent before the end, or the server refused them, since this user may not ack:
            the server redelivers them.
        duplicates: Redeliveries of a message still held; not handled twice.
        kept_alive: Progress reports, each of which restarted ``ack_wait`` of a message.
        running: Handlers running now.
        waiting: Messages waiting now.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    terminated: int = 0
    returned: int = 0
    unsettled: int = 0
    duplicates: int = 0
    kept_alive: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(slots=True, eq=False)
class Work(Generic[T]):
    """One held message.

    ``message`` is passed to the handler; ``latest`` is its newest delivery, which is acked.
    """

    message: T
    latest: T
    ident: tuple[int, int]  # stream sequence and time: a recreated stream counts from 1 again
    deliveries: int
    phase: Phase = Phase.WAITING
    repeats: int = 0  # attempts here beyond the first
    burials: int = 0  # failed attempts to store its dead letter
    doomed: BaseException | None = None  # dead-lettered without being handled, for this reason
    broken: Exception | None = None  # its key function failed: counts as handled and failed
    abandoned: bool = False  # its handler still runs, but its result is ignored
    denied: bool = False  # the server refused a progress report, so it refuses the ack as well
    interval: float = 0.0  # seconds between progress reports
    began: float = 0.0  # monotonic seconds: when its handler was started last
    lane: Lane[T] | None = None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: deliveries by the server plus repeats here."""
        return self.deliveries + self.repeats


@dataclass(slots=True, eq=False)
class Lane(Generic[T]):
    """The works of one key, in the order of the stream. One of them is handled at a time."""

    key: Hashable
    works: deque[Work[T]] = field(default_factory=deque)

    def insert(self, work: Work[T]) -> None:
        """Insert by stream sequence: a redelivered message may be older than waiting ones."""
        at = len(self.works)
        while at and self.works[at - 1].ident[0] > work.ident[0]:
            at -= 1
        self.works.insert(at, work)


CANCEL_TIMEOUT = 1.0  # seconds that a cancelled handler has to end
_TOGETHER = 0.1  # of an interval: works due within it are handled together


@dataclass(slots=True)
class Due(Generic[T]):
    """The works that are due now."""

    keep_alive: list[Work[T]] = field(default_factory=list)
    overdue: list[Work[T]] = field(default_factory=list)  # cancel their handlers
    stuck: list[Work[T]] = field(default_factory=list)  # their handlers ignored the cancellation


class Workload(Generic[T]):
    """The held messages, of which at most ``rules.options.concurrency`` are handled at a time."""

    def __init__(self, rules: WorkRules, counts: WorkCounts | None = None) -> None:
        self.rules = rules
        self.counts: WorkCounts = WorkCounts() if counts is None else counts
        self.stopping: bool = False
        self._held: dict[tuple[int, int], Work[T]] = {}
        self._ready: deque[Work[T] | Lane[T]] = deque()
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._repeats: list[tuple[float, int, Work[T]]] = []  # a heap
        self._order = itertools.count()
        # By interval; each in the order in which they are due, which is that of insertion.
        self._alive: dict[float, dict[Work[T], float]] = {}
        self._limits: dict[Work[T], float] = {}
        self._cancelled: dict[Work[T], float] = {}

    @property
    def room(self) -> int:
        """The number of further messages that may be taken."""
        return self.rules.capacity - len(self._held)

    @property
    def ready(self) -> bool:
        """Whether `start` would return a work."""
        return bool(self._ready) and self.counts.running < self.rules.options.concurrency

    @property
    def idle(self) -> bool:
        """Whether no message is held and no handler runs."""
        return not self._held and not self.counts.running

    @property
    def held(self) -> list[Work[T]]:
        """All held works."""
        return list(self._held.values())

    @property
    def running(self) -> list[tuple[tuple[int, int, float], float]]:
        """What is handled now: an identity of each attempt, and when it began."""
        works = [work for work in self._held.values() if work.phase is Phase.RUNNING]
        return [((*work.ident, work.began), work.began) for work in works]

    def holds(self, stream_seq: int) -> bool:
        """Whether this message is held."""
        return any(ident[0] == stream_seq for ident in self._held)

    def deny(self, ident: tuple[int, int]) -> bool:
        """The server refused an ack or progress report of this message. Whether the message is held."""
        work = self._held.get(ident)
        if work is None:
            return False
        work.denied = True
        return True

    def add(
        self, message: T, ident: tuple[int, int], deliveries: int, key: Hashable | None, now: float
    ) -> Work[T] | None:
        """A message arrived. None: it was held already, and needs no further action."""
        work = self._held.get(ident)
        if work is not None:
            self.counts.duplicates += 1
            work.latest, work.deliveries = message, max(work.deliveries, deliveries)
            if work.phase is Phase.WAITING:
                work.message = message
            self._forget(work)
            self._keep_alive(work, now)
            return None
        work = self._held[ident] = Work(message, message, ident, deliveries)
        if self.rules.is_exhausted(deliveries):
            times = self.rules.limit
            work.doomed = DeliveriesExhaustedError(
                f"delivered {deliveries} times, {times} allowed, and never settled"
            )
        self.counts.waiting += 1
        self._keep_alive(work, now)
        if key is None or not self.rules.options.ordered:
            self._ready.append(work)
            return work
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
            self._ready.append(lane)
        work.lane = lane
        lane.insert(work)
        return work

    def start(self, now: float) -> Work[T] | None:
        """The next work to be handled; None: none waits, or the concurrency is reached. Call `released` after it."""
        if not self.ready:
            return None
        entry = self._ready.popleft()
        work = entry.works[0] if isinstance(entry, Lane) else entry
        work.phase = Phase.RUNNING
        work.began = now
        self.counts.running += 1
        self.counts.waiting -= 1
        if self.rules.options.handler_timeout is not None and work.doomed is None:
            self._limits[work] = now + self.rules.options.handler_timeout
        return work

    def ended(self, work: Work[T]) -> None:
        """Its handler has ended: stop its timeout."""
        self._limits.pop(work, None)
        self._cancelled.pop(work, None)

    def judge(self, work: Work[T], error: BaseException | None, *, stuck: bool = False) -> Verdict:
        """Decide about a work whose handler returned (``error`` None) or raised.

        ``stuck``: the handler still runs, so the work cannot be retried here.
        """
        if error is None:
            return Verdict(Fate.ACK)
        self.counts.failed += 1
        if isinstance(error, Reject) or self.rules.is_final(work.attempt):
            return Verdict(Fate.DEAD)
        self.counts.retried += 1
        delay, trouble = self.rules.retry_delay(work.attempt)
        if self.rules.options.ordered and not stuck and not self.stopping:
            return Verdict(Fate.REPEAT, delay, trouble=trouble)
        return Verdict(Fate.RETRY, delay, self.rules.wire_delay(work.deliveries, delay), trouble)

    def repeat(self, work: Work[T], delay: float, now: float) -> None:
        """Retry it here, in ``delay`` seconds. Call `released` after it."""
        work.phase = Phase.REPEATING
        if work.doomed is None:
            work.repeats += 1
        heapq.heappush(self._repeats, (now + delay, next(self._order), work))

    def settled(self, work: Work[T]) -> None:
        """The server was informed. Its handler may still run, until `released`."""
        work.phase = Phase.SETTLED
        self._held.pop(work.ident, None)
        self._forget(work)

    def released(self, work: Work[T]) -> None:
        """Its task and its lane are free for the next work."""
        self.ended(work)
        self.counts.running -= 1
        if work.phase is Phase.REPEATING:
            self.counts.waiting += 1
            return  # its lane waits with it
        lane = work.lane
        if lane is None:
            return
        lane.works.remove(work)
        if lane.works:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]

    @property
    def deadline(self) -> float | None:
        """When to call `tick`; None: never."""
        moments = [next(iter(works.values())) for works in self._alive.values() if works]
        moments += [next(iter(works.values())) for works in (self._limits, self._cancelled) if works]
        if self._repeats:
            moments.append(self._repeats[0][0])
        return min(moments, default=None)

    def tick(self, now: float) -> Due[T]:
        """The deadline was reached. Works waiting for a retry may be ready now: see `ready`."""
        due: Due[T] = Due()
        for interval, works in self._alive.items():
            for work in _until(works, now + interval * _TOGETHER):
                del works[work]
                works[work] = now + interval
                due.keep_alive.append(work)
        self.counts.kept_alive += len(due.keep_alive)
        for work in _until(self._limits, now):
            del self._limits[work]
            self._cancelled[work] = now + CANCEL_TIMEOUT
            due.overdue.append(work)
        for work in _until(self._cancelled, now):
            del self._cancelled[work]
            work.abandoned = True
            due.stuck.append(work)
        while self._repeats and self._repeats[0][0] <= now:
            self._try_again(heapq.heappop(self._repeats)[2])
        return due

    def reconnected(self, now: float) -> None:
        """Progress reports may have been lost: all are due."""
        for works in self._alive.values():
            for work in works:
                works[work] = now

    def _keep_alive(self, work: Work[T], now: float) -> None:
        if self.rules.options.keep_alive:
            work.interval = self.rules.interval(work.deliveries)
            self._alive.setdefault(work.interval, {})[work] = now + work.interval

    def _forget(self, work: Work[T]) -> None:
        works = self._alive.get(work.interval)
        if works is not None:
            works.pop(work, None)

    def _try_again(self, work: Work[T]) -> None:
        work.phase = Phase.WAITING
        self._ready.append(work.lane or work)

    def stop(self) -> list[Work[T]]:
        """Start no new work. Returns the works for the server to redeliver, in the order of the stream; no longer held.

        A message in its last delivery is kept and handled: if returned, it would not be delivered again.
        """
        self.stopping = True
        self._hurry()
        back = [
            work
            for work in self._held.values()
            if work.phase is Phase.WAITING and not self.rules.is_last(work.deliveries)
        ]
        gone = set(back)
        for work in back:
            self.settled(work)
            self.counts.waiting -= 1
        self._ready = deque(entry for entry in self._ready if isinstance(entry, Lane) or entry not in gone)
        for lane in list(self._lanes.values()):
            lane.works = deque(work for work in lane.works if work not in gone)
            if not lane.works:
                del self._lanes[lane.key]
        self._ready = deque(entry for entry in self._ready if not isinstance(entry, Lane) or entry.works)
        back.sort(key=lambda work: work.ident)
        return back

    def _hurry(self) -> None:
        """Make works that wait for a retry ready now."""
        for _, _, work in sorted(self._repeats):
            self._try_again(work)
        self._repeats.clear()


def _until(works: dict[Work[T], float], moment: float) -> list[Work[T]]:
    """The first works, those due at ``moment``."""
    due = []
    for work, at in works.items():
        if at > moment:
            break
        due.append(work)
    return due
