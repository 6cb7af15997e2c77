"""A worker's load: what waits, what is handled, in which order, kept alive until when, and what becomes of it.

The runner (`jsclient.Worker`) takes messages, calls handlers and sends acks; `Workload` decides. A `Work` is one
message in hand, from its arrival until it is *settled*: acked, given back to the server, or terminated. A redelivery of
a message that is in hand is the same work.

With an order by key, each key (other than None) has a *lane*: one work of it is handled at a time, in the order of the
stream, and a failed one is tried again here before the next of its lane begins. Handed to the server it could come
back to another worker, and the lane would wait for ever.

Time is monotonic seconds. Source: ADR-15 §Ack Handling; nats-server server/consumer.go (ack_wait, max_deliver).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .work import DeliveriesExhaustedError, Fate, Lane, Phase, Reject, Verdict, Work, WorkCounts
from .work_rules import WorkRules

__all__ = ["CANCEL_TIMEOUT", "Due", "Workload"]

T = TypeVar("T")

CANCEL_TIMEOUT = 1.0  # seconds a handler gets to end when it is cancelled
_TOGETHER = 0.1  # of an interval: what is due so soon is done together with what is due now


@dataclass(slots=True)
class Due(Generic[T]):
    """What is to be done at this moment."""

    keep_alive: list[Work[T]] = field(default_factory=list)
    overdue: list[Work[T]] = field(default_factory=list)  # cancel their handlers
    stuck: list[Work[T]] = field(default_factory=list)  # their handlers did not let themselves be cancelled


class Workload(Generic[T]):
    """The messages in hand. At most ``rules.concurrency`` of them run."""

    def __init__(self, rules: WorkRules, counts: WorkCounts | None = None) -> None:
        self.rules = rules
        self.counts = WorkCounts() if counts is None else counts
        self.stopping = False
        self._held: dict[tuple[int, int], Work[T]] = {}
        self._ready: deque[Work[T] | Lane[T]] = deque()
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._repeats: list[tuple[float, int, Work[T]]] = []  # a heap
        self._order = itertools.count()
        # By interval, each in the order in which they are due: it is that of insertion.
        self._alive: dict[float, dict[Work[T], float]] = {}
        self._limits: dict[Work[T], float] = {}
        self._cancelled: dict[Work[T], float] = {}

    @property
    def room(self) -> int:
        """How many more messages may be taken."""
        return self.rules.capacity - len(self._held)

    @property
    def ready(self) -> bool:
        """Whether `start` would give something."""
        return bool(self._ready) and self.counts.running < self.rules.concurrency

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand and no handler runs."""
        return not self._held and not self.counts.running

    @property
    def held(self) -> list[Work[T]]:
        """All that is in hand."""
        return list(self._held.values())

    def holds(self, stream_seq: int) -> bool:
        """Whether this message is in hand."""
        return any(ident[0] == stream_seq for ident in self._held)

    # --- taking ----------------------------------------------------------------------------------------------

    def add(
        self, message: T, ident: tuple[int, int], deliveries: int, key: Hashable | None, now: float
    ) -> Work[T] | None:
        """A message arrived. None: it is one that is in hand already, and nothing else is to be done about it."""
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
        if key is None or not self.rules.ordered:
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
        """The next work to be handled; None: nothing waits, or as many run as may. Call `released` when it is over."""
        if not self.ready:
            return None
        entry = self._ready.popleft()
        work = entry.works[0] if isinstance(entry, Lane) else entry
        work.phase = Phase.RUNNING
        self.counts.running += 1
        self.counts.waiting -= 1
        if self.rules.handler_timeout is not None and work.doomed is None:
            self._limits[work] = now + self.rules.handler_timeout
        return work

    # --- deciding --------------------------------------------------------------------------------------------

    def ended(self, work: Work[T]) -> None:
        """Its handler has ended: its time is not counted any more."""
        self._limits.pop(work, None)
        self._cancelled.pop(work, None)

    def judge(self, work: Work[T], error: BaseException | None, *, stuck: bool = False) -> Verdict:
        """What becomes of a work whose handler returned (``error`` None) or raised.

        ``stuck``: the handler still runs, so the work cannot be tried again here.
        """
        if error is None:
            return Verdict(Fate.ACK)
        self.counts.failed += 1
        if isinstance(error, Reject) or self.rules.is_final(work.attempt):
            return Verdict(Fate.DEAD)
        self.counts.retried += 1
        delay, trouble = self.rules.retry_delay(work.attempt)
        if self.rules.ordered and not stuck and not self.stopping:
            return Verdict(Fate.REPEAT, delay, trouble=trouble)
        return Verdict(Fate.RETRY, delay, self.rules.wire_delay(work.deliveries, delay), trouble)

    def repeat(self, work: Work[T], delay: float, now: float) -> None:
        """It is to be tried again here, in ``delay`` seconds. Call `released` after it."""
        work.phase = Phase.REPEATING
        if work.doomed is None:
            work.repeats += 1
        heapq.heappush(self._repeats, (now + delay, next(self._order), work))

    def settled(self, work: Work[T]) -> None:
        """The server has been told. Its handler may still run: `released` says when it does not."""
        work.phase = Phase.SETTLED
        self._held.pop(work.ident, None)
        self._forget(work)

    def released(self, work: Work[T]) -> None:
        """Whoever handled it is free for the next one; so is its lane."""
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

    # --- time ------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When to call `tick`; None: nothing is awaited."""
        moments = [next(iter(works.values())) for works in self._alive.values() if works]
        moments += [next(iter(works.values())) for works in (self._limits, self._cancelled) if works]
        if self._repeats:
            moments.append(self._repeats[0][0])
        return min(moments, default=None)

    def tick(self, now: float) -> Due[T]:
        """The deadline was reached. What waited to be tried again may be ready: see `ready`."""
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
        """Signs of life may have been lost: all are due."""
        for works in self._alive.values():
            for work in works:
                works[work] = now

    def _keep_alive(self, work: Work[T], now: float) -> None:
        if self.rules.keep_alive:
            work.interval = self.rules.interval(work.deliveries)
            self._alive.setdefault(work.interval, {})[work] = now + work.interval

    def _forget(self, work: Work[T]) -> None:
        works = self._alive.get(work.interval)
        if works is not None:
            works.pop(work, None)

    def _try_again(self, work: Work[T]) -> None:
        work.phase = Phase.WAITING
        self._ready.append(work.lane or work)

    # --- the end ---------------------------------------------------------------------------------------------

    def stop(self) -> list[Work[T]]:
        """Begin nothing new. What can be given back to the server, in the order of the stream; it is in hand no more.

        In its last delivery a message cannot be given back, for it would not come again: it stays, to be handled.
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
        """There is no time to wait: what is to be tried again is tried now."""
        for _, _, work in sorted(self._repeats):
            self._try_again(work)
        self._repeats.clear()


def _until(works: dict[Work[T], float], moment: float) -> list[Work[T]]:
    """The first ones, those due at ``moment``."""
    due = []
    for work, at in works.items():
        if at > moment:
            break
        due.append(work)
    return due
