"""The state of one message held by a worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["DeliveriesExhaustedError", "Fate", "Lane", "Phase", "Reject", "Verdict", "Work", "WorkCounts"]

T = TypeVar("T")


class Reject(Exception):
    """Raised by a handler: this message can never be handled. It is dead-lettered at once, not retried.

    ``Reject("no such customer")``: the text goes into the dead letter's headers and the server's advisory.
    """


class DeliveriesExhaustedError(Exception):
    """Why a message was dead-lettered without being handled: none of its deliveries was settled.

    Their workers died, were stopped, or exceeded ``ack_wait``.
    """


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
        unsettled: Their acks could not be sent before the end: the server redelivers them.
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
    interval: float = 0.0  # seconds between progress reports
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
