"""One message in a worker's hands: where it stands, and what becomes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["DeliveriesExhaustedError", "Fate", "Lane", "Phase", "Reject", "Verdict", "Work", "WorkCounts"]

T = TypeVar("T")


class Reject(Exception):
    """Raised by a handler: this message can never be handled. It is dead-lettered at once, not tried again.

    ``Reject("no such customer")``: the text goes into the dead letter's headers and the server's advisory.
    """


class DeliveriesExhaustedError(Exception):
    """Why a message was dead-lettered without being handled: all its deliveries were used up, none came to an end.

    The workers that had it died, or were stopped, or ran past its ``ack_wait``.
    """


class Phase(Enum):
    """Where a work stands."""

    WAITING = "waiting"  # for a free handler, or for its turn in its lane
    RUNNING = "running"  # a handler has it, or its ack or dead letter is under way
    REPEATING = "repeating"  # it failed and waits to be tried again here
    SETTLED = "settled"


class Fate(Enum):
    """What is to be done with a work."""

    ACK = "ack"
    RETRY = "retry"  # the server delivers it again, to whoever
    REPEAT = "repeat"  # it is tried again here
    DEAD = "dead"  # it is never to be tried again


@dataclass(slots=True, frozen=True)
class Verdict:
    """What becomes of a work whose handler has ended.

    ``delay``: seconds until it is tried again. ``wire_delay``: what to say in the nak so that it is so; None: say
    "in progress" and leave the rest to the consumer's own backoff. ``trouble``: ``retry_delay`` could not be used.
    """

    fate: Fate
    delay: float = 0.0
    wire_delay: float | None = None
    trouble: Exception | None = None


@dataclass(slots=True)
class WorkCounts:
    """What a worker has done so far.

    Attributes:
        handled: The handler returned (or had settled the message itself), and the message is acked.
        failed: Attempts in which the handler raised, was cancelled, or ran too long.
        retried: Of these, how many were followed by another try, here or by way of the server.
        dead_lettered: Stored under the dead-letter subject, and terminated.
        terminated: Terminated without a dead letter, because no subject was given.
        returned: Given back to the server when the worker stopped: they waited, or were interrupted.
        unsettled: What became of them could not be said before the end: the server delivers them again.
        duplicates: Redeliveries of a message that was still in hand; not handled twice.
        kept_alive: Times that ``ack_wait`` was begun again for a message.
        running: Handlers that run now.
        waiting: Messages that wait now.
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
    """One message in hand.

    ``message`` is what the handler gets, ``latest`` the newest delivery of it: acks go there.
    """

    message: T
    latest: T
    ident: tuple[int, int]  # stream sequence and time: a stream made anew counts from 1 again
    deliveries: int
    phase: Phase = Phase.WAITING
    repeats: int = 0  # times it was tried here beyond its first
    burials: int = 0  # times its dead letter could not be stored
    doomed: BaseException | None = None  # not to be handled: dead-lettered, for this reason
    broken: Exception | None = None  # it has no key: counts as handled and failed
    abandoned: bool = False  # its handler goes on, but what it comes to is of no interest any more
    interval: float = 0.0  # seconds between signs of life
    lane: Lane[T] | None = None

    @property
    def attempt(self) -> int:
        """Which try this is, from 1: deliveries by the server and repeats here."""
        return self.deliveries + self.repeats


@dataclass(slots=True, eq=False)
class Lane(Generic[T]):
    """The works of one key, in the order of the stream. One of them is handled at a time."""

    key: Hashable
    works: deque[Work[T]] = field(default_factory=deque)

    def insert(self, work: Work[T]) -> None:
        """At its place. A redelivered message may be older than those that wait."""
        at = len(self.works)
        while at and self.works[at - 1].ident[0] > work.ident[0]:
            at -= 1
        self.works.insert(at, work)
