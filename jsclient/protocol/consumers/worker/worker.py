"""The messages held by a worker, with their order, keep-alives, timeouts and settlement.

The runner (`jsclient.Worker`) takes messages, calls handlers and sends acks, and `Workload` decides. A `Work` is one
held message, from its arrival until it is *settled*: acked, returned to the server, or terminated. A redelivery of a
held message is the same work.

With an order by key, each key (other than None) has a queue. One work of a queue is handled at a time, in the order
of the stream. A failed work is retried in this worker before the next work of its queue starts. If it were returned
to the server, it could be delivered to another worker, and the queue would wait forever.

Time is monotonic seconds.

Source: ADR-15 §Ack Handling; nats-server server/consumer.go (ack_wait, max_deliver).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from ...models.consumer import ConsumerConfig
from .prefetch import Prefetch
from .reasons import DeliveriesExhaustedError, Reject
from .work_rules import WorkRules

__all__ = [
    "CANCEL_TIMEOUT",
    "Due",
    "KeyQueue",
    "Phase",
    "Work",
    "WorkCounts",
    "WorkOutcome",
    "WorkVerdict",
    "Workload",
]

T = TypeVar("T")


class Phase(Enum):
    """The phase of a work."""

    WAITING = "waiting"  # it waits for a free handler, or for its turn in the queue of its key
    RUNNING = "running"  # its handler runs, or its ack or dead letter is in flight
    REPEATING = "repeating"  # it failed and waits for its next attempt in this worker
    SETTLED = "settled"


class WorkOutcome(Enum):
    """How a work is settled."""

    ACK = "ack"
    RETRY = "retry"  # the server redelivers it to any worker
    REPEAT = "repeat"  # this worker retries it
    DEAD = "dead"  # it is never retried


@dataclass(slots=True, frozen=True)
class WorkVerdict:
    """The decision about a work whose handler has ended.

    ``delay`` is the number of seconds until the next attempt. ``wire_delay`` is the delay in the nak that causes the
    attempt. If it is None, send "in progress" instead, and the consumer's backoff decides. ``delay_error`` says why
    ``retry_delay`` failed.
    """

    outcome: WorkOutcome
    delay: float = 0.0
    wire_delay: float | None = None
    delay_error: Exception | None = None


@dataclass(slots=True)
class WorkCounts:
    """Statistics of a worker since it started. Returned by ``await worker``, and at any time by `Worker.counts`.

    Attributes:
        handled: Number of messages that were handled and acked. Includes messages settled by the handler itself.
        failed: Number of attempts that failed, because the handler raised an error, was cancelled, or ran too long.
        retried: Number of failed attempts that were followed by another attempt, in this worker or after a redelivery.
        dead_lettered: Number of messages that were given up and stored on the dead-letter subject.
        terminated: Number of messages that were given up without a dead letter, because there is no dead-letter
            subject.
        returned: Number of messages returned to the server when the worker stopped, because they weren't handled or
            their handlers were interrupted.
        unsettled: Number of messages whose acks couldn't be sent before the worker stopped, or were refused by the
            server because the user lacks permission. The server redelivers these messages.
        duplicates: Number of redeliveries that were ignored, because the worker still had the message.
        kept_alive: Number of progress reports sent for long-running handlers. Each report restarts ``ack_wait``.
        running: Number of handlers that are running now.
        waiting: Number of messages that are waiting for a handler now.
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


class Work(msgspec.Struct, Generic[T], eq=False):
    """One held message.

    ``message`` is passed to the handler. ``latest`` is its newest delivery, which is acked.
    """

    message: T
    latest: T
    ident: tuple[int, int]  # stream sequence and time, because a recreated stream counts from 1 again
    deliveries: int
    phase: Phase = Phase.WAITING
    repeats: int = 0  # attempts in this worker beyond the first
    burials: int = 0  # failed attempts to store its dead letter
    final_error: BaseException | None = None  # if set, store a dead letter with this error, without a handler
    # The error that the key function raised for this message, or None. After an error, the message counts as handled
    # and failed.
    broken: Exception | None = None
    abandoned: bool = False  # true if its handler still runs, but the result of the handler is ignored
    denied: bool = False  # the server refused a progress report, so it refuses the ack as well
    interval: float = 0.0  # seconds between progress reports
    report_at: float = math.inf  # when the next progress report is due, in monotonic seconds
    began: float = 0.0  # when the handler was last started, in monotonic seconds
    # When the handler is to be cancelled, or later abandoned, in monotonic seconds.
    limit_at: float = math.inf
    cancelled: bool = False  # true if the handler was cancelled because it ran too long
    key_queue: KeyQueue[T] | None = None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. It counts deliveries by the server and repeats in this worker."""
        return self.deliveries + self.repeats


@dataclass(slots=True, eq=False)
class KeyQueue(Generic[T]):
    """The works of one key, in the order of the stream. Only one of them is handled at a time."""

    key: Hashable
    works: deque[Work[T]] = field(default_factory=deque)

    def insert(self, work: Work[T]) -> None:
        """Insert a work by its stream sequence, because a redelivered message may be older than waiting messages."""
        index = len(self.works)
        while index and self.works[index - 1].ident[0] > work.ident[0]:
            index -= 1
        self.works.insert(index, work)


CANCEL_TIMEOUT = 1.0  # how long a cancelled handler may take to end, in seconds
_TOGETHER = 0.1  # reports that are due within this share of an interval are sent together


@dataclass(slots=True)
class Due(Generic[T]):
    """The works that are due now."""

    keep_alive: list[Work[T]] = field(default_factory=list)
    overdue: list[Work[T]] = field(default_factory=list)  # works whose handlers must be cancelled
    stuck: list[Work[T]] = field(default_factory=list)  # works whose handlers ignored the cancellation


class Workload(Generic[T]):
    """The held messages, of which at most ``rules.options.concurrency`` are handled at a time."""

    def __init__(
        self, rules: WorkRules, counts: WorkCounts | None = None, config: ConsumerConfig | None = None
    ) -> None:
        self.rules = rules
        self.counts: WorkCounts = WorkCounts() if counts is None else counts
        self.prefetch: Prefetch = Prefetch(rules, config or ConsumerConfig())
        self.stopping: bool = False
        self._concurrency = rules.options.concurrency
        self._handler_timeout = rules.options.handler_timeout
        self._first_interval = rules.interval(1) if rules.options.keep_alive else None
        self._held: dict[tuple[int, int], Work[T]] = {}
        self._ready: deque[Work[T] | KeyQueue[T]] = deque()
        self._key_queues: dict[Hashable, KeyQueue[T]] = {}
        self._repeats: list[tuple[float, int, Work[T]]] = []  # heap of works that wait for a retry
        self._order = itertools.count()
        # A lower bound of the time when any work is due. `take_due` determines the exact time.
        self._due = math.inf

    @property
    def room(self) -> int:
        """The number of further messages that may be taken."""
        return self.prefetch.capacity - len(self._held)

    @property
    def ready(self) -> bool:
        """Whether `start_work` would return a work."""
        return bool(self._ready) and self.counts.running < self._concurrency

    @property
    def startable(self) -> int:
        """The maximum number of further tasks that could handle a message now."""
        return min(len(self._ready), self._concurrency - self.counts.running)

    @property
    def idle(self) -> bool:
        """Whether all messages have been handled, and no handler is running."""
        return not self._held and not self.counts.running

    @property
    def held(self) -> list[Work[T]]:
        """All works that the worker has."""
        return list(self._held.values())

    @property
    def running(self) -> list[tuple[tuple[int, int, float], float]]:
        """The running attempts, each with an identity and its start time."""
        works = [work for work in self._held.values() if work.phase is Phase.RUNNING]
        return [((*work.ident, work.began), work.began) for work in works]

    def holds(self, stream_seq: int) -> bool:
        """Return whether this message is held."""
        return any(ident[0] == stream_seq for ident in self._held)

    def deny(self, ident: tuple[int, int]) -> bool:
        """Record that the server refused an ack or progress report of a message. Return whether the message is held."""
        work = self._held.get(ident)
        if work is None:
            return False
        work.denied = True
        return True

    def add_message(
        self, message: T, ident: tuple[int, int], deliveries: int, key: Hashable | None, now: float
    ) -> Work[T] | None:
        """Add a message that arrived. Return None if the message was already held and needs no further action."""
        work = self._held.get(ident)
        if work is not None:
            self.counts.duplicates += 1
            # The server has redelivered a message that is still held. Keep the new delivery, because the server now
            # expects an ack of this delivery, not of an earlier one.
            work.latest, work.deliveries = message, max(work.deliveries, deliveries)
            if work.phase is Phase.WAITING:
                work.message = message
            self._keep_alive(work, now)
            return None
        work = self._held[ident] = Work(message, message, ident, deliveries)
        if deliveries > 1:
            self._added_again(work)
            self._keep_alive(work, now)
        elif (interval := self._first_interval) is not None:  # this repeats `_keep_alive` to save the calls
            work.interval = interval
            work.report_at = report_at = now + interval
            if report_at < self._due:  # noqa: PLR1730  min() would cost a call per message
                self._due = report_at
        self.counts.waiting += 1
        if key is None or not self.rules.options.ordered:
            self._ready.append(work)
            return work
        key_queue = self._key_queues.get(key)
        if key_queue is None:
            key_queue = self._key_queues[key] = KeyQueue(key)
            self._ready.append(key_queue)
        work.key_queue = key_queue
        key_queue.insert(work)
        return work

    def _added_again(self, work: Work[T]) -> None:
        self.prefetch.redelivered()
        if self.rules.is_exhausted(work.deliveries):
            times = self.rules.limit
            work.final_error = DeliveriesExhaustedError(
                f"delivered {work.deliveries} times, {times} allowed, and never settled"
            )

    def start_work(self, now: float) -> Work[T] | None:
        """Return the next work to be handled, or None if none waits or the concurrency is reached.

        Call `released` when its handler has ended.
        """
        counts = self.counts
        if not self._ready or counts.running >= self._concurrency:
            return None
        entry = self._ready.popleft()
        # Leave the work in the queue of its key, so that no other work with this key starts before this one is
        # released.
        work = entry.works[0] if isinstance(entry, KeyQueue) else entry
        work.phase = Phase.RUNNING
        work.began = now
        counts.running += 1
        counts.waiting -= 1
        prefetch = self.prefetch
        prefetch.count += 1
        if prefetch.count >= prefetch.enough or now >= prefetch.until:
            prefetch.check(now)
        if self._handler_timeout is not None and work.final_error is None:
            work.limit_at = limit_at = now + self._handler_timeout
            work.cancelled = False
            if limit_at < self._due:  # noqa: PLR1730  min() would cost a call per message
                self._due = limit_at
        return work

    def ended(self, work: Work[T]) -> None:
        """Stop the timeout of a work whose handler has ended."""
        work.limit_at = math.inf

    def handled(self, work: Work[T]) -> None:
        """Process a work whose handler returned and whose ack is written, like `settled` and `released` together."""
        work.limit_at = math.inf
        work.phase = Phase.SETTLED
        counts = self.counts
        counts.handled += 1
        counts.running -= 1
        del self._held[work.ident]
        if work.key_queue is not None:
            self._leave_queue(work, work.key_queue)

    def judge(self, work: Work[T], error: BaseException | None, *, stuck: bool = False) -> WorkVerdict:
        """Decide about a work whose handler returned (``error`` is None) or raised ``error``.

        If ``stuck`` is true, the handler is still running, so the work cannot be retried in this worker.
        """
        if error is None:
            return WorkVerdict(WorkOutcome.ACK)
        self.counts.failed += 1
        if isinstance(error, Reject) or self.rules.is_final(work.attempt):
            return WorkVerdict(WorkOutcome.DEAD)
        self.counts.retried += 1
        delay, delay_error = self.rules.retry_delay(work.attempt)
        if self.rules.options.ordered and not stuck and not self.stopping:
            return WorkVerdict(WorkOutcome.REPEAT, delay, delay_error=delay_error)
        return WorkVerdict(
            WorkOutcome.RETRY, delay, self.rules.wire_delay(work.deliveries, delay), delay_error
        )

    def repeat(self, work: Work[T], delay: float, now: float) -> None:
        """Retry a work in this worker after ``delay`` seconds. Call `released` after this."""
        work.phase = Phase.REPEATING
        if work.final_error is None:
            work.repeats += 1
        heapq.heappush(self._repeats, (now + delay, next(self._order), work))
        self._due = min(self._due, now + delay)

    def settled(self, work: Work[T]) -> None:
        """Record that the server was informed of a work's outcome. Its handler may still run until `released`."""
        work.phase = Phase.SETTLED
        self._held.pop(work.ident, None)

    def released(self, work: Work[T]) -> None:
        """Free the task and the queue of a work for the next work."""
        work.limit_at = math.inf
        self.counts.running -= 1
        if work.phase is Phase.REPEATING:
            self.counts.waiting += 1
            return  # the other messages with the same key wait too
        if work.key_queue is not None:
            self._leave_queue(work, work.key_queue)

    def _leave_queue(self, work: Work[T], key_queue: KeyQueue[T]) -> None:
        key_queue.works.remove(work)
        if key_queue.works:
            self._ready.append(key_queue)
        else:
            del self._key_queues[key_queue.key]

    @property
    def deadline(self) -> float | None:
        """The time to call `take_due`, possibly slightly before a work is due, or None if no call is needed."""
        return self._due if self._held and self._due < math.inf else None

    def take_due(self, now: float) -> Due[T]:
        """Return the works that are due. Works that waited for a retry may be ready now, see `ready`."""
        due: Due[T] = Due()
        moments = [math.inf]
        for work in self._held.values():
            # Send reports that are due soon as well, so that all of them are written together.
            if work.report_at <= now + work.interval * _TOGETHER:
                work.report_at = now + work.interval
                due.keep_alive.append(work)
            if work.limit_at <= now:
                self._exceeded(work, now, due)
            moments += (work.report_at, work.limit_at)
        self.counts.kept_alive += len(due.keep_alive)
        while self._repeats and self._repeats[0][0] <= now:
            self._try_again(heapq.heappop(self._repeats)[2])
        if self._repeats:
            moments.append(self._repeats[0][0])
        self._due = min(moments)
        return due

    def _exceeded(self, work: Work[T], now: float, due: Due[T]) -> None:
        """Cancel a handler that runs too long, and abandon it if it ignores the cancellation."""
        if not work.cancelled:
            work.cancelled = True
            work.limit_at = now + CANCEL_TIMEOUT
            due.overdue.append(work)
        else:
            work.abandoned = True
            work.limit_at = math.inf
            due.stuck.append(work)

    def reconnected(self, now: float) -> None:
        """Make all progress reports due, because they may have been lost with the connection."""
        if self.rules.options.keep_alive:
            for work in self._held.values():
                work.report_at = now
            self._due = now

    def _keep_alive(self, work: Work[T], now: float) -> None:
        if self.rules.options.keep_alive:
            work.interval = self.rules.interval(work.deliveries)
            work.report_at = report_at = now + work.interval
            self._due = min(self._due, report_at)

    def _try_again(self, work: Work[T]) -> None:
        work.phase = Phase.WAITING
        self._ready.append(work.key_queue or work)

    def stop_starting(self) -> list[Work[T]]:
        """Accept no new work. Return the works to be redelivered by the server, in the order of the stream.

        The returned works are no longer held. A message in its last delivery is handled instead, because the server
        would not deliver it again.
        """
        self.stopping = True
        self._hurry()
        returned = [
            work
            for work in self._held.values()
            if work.phase is Phase.WAITING and not self.rules.is_last(work.deliveries)
        ]
        removed = set(returned)
        for work in returned:
            self.settled(work)
            self.counts.waiting -= 1
        self._ready = deque(
            entry for entry in self._ready if isinstance(entry, KeyQueue) or entry not in removed
        )
        for key_queue in list(self._key_queues.values()):
            key_queue.works = deque(work for work in key_queue.works if work not in removed)
            if not key_queue.works:
                del self._key_queues[key_queue.key]
        # Remove empty queues from the ready entries, because `start_work` expects a work in each of them.
        self._ready = deque(entry for entry in self._ready if not isinstance(entry, KeyQueue) or entry.works)
        returned.sort(key=lambda work: work.ident)
        return returned

    def _hurry(self) -> None:
        """Make works that wait for a retry ready now."""
        for _, _, work in sorted(self._repeats):
            self._try_again(work)
        self._repeats.clear()
