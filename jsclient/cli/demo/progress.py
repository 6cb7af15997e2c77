"""The progress of a run: the numbers shown while it runs. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from ...protocol.events import Event
from .pipeline.view import PipelineView

__all__ = ["Progress", "Rate", "WorkerView", "in_words", "line"]


class Rate:
    """The growth of a count per second, over the last seconds."""

    def __init__(self, window: float = 3.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()
        self.value: float = 0.0  # per second

    def at(self, now: float, count: int) -> None:
        """Record the count at a time in monotonic seconds."""
        seen = self._seen
        seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - self._window:
            seen.popleft()
        elapsed = now - seen[0][0]
        self.value = (count - seen[0][1]) / elapsed if elapsed > 0 else 0.0


@dataclass(slots=True)
class WorkerView:
    """The state of a worker, as shown."""

    number: int
    pid: int
    state: str = "starting"  # starting, working, killed, ended
    counted: int = 0
    redelivered: int = 0
    rate: Rate = field(default_factory=Rate)


@dataclass(slots=True)
class Progress:
    """The state of the run, as shown.

    ``phase`` is the current step. ``pending`` is the number of messages that the consumer has not delivered yet,
    ``ack_pending`` the number of delivered messages without an ack. ``pipeline`` is set in the Spark part.
    """

    phase: str = "starting"
    where: str = ""
    elapsed: float = 0.0  # seconds
    total: int = 0  # 0: unknown
    read: int = 0
    published: int = 0
    counted: int = 0
    pending: int = 0
    ack_pending: int = 0
    redelivered: int = 0
    repeated: int = 0
    publishing: Rate = field(default_factory=Rate)
    counting: Rate = field(default_factory=Rate)
    workers: list[WorkerView] = field(default_factory=list)
    pipeline: PipelineView | None = None

    def tick(self, now: float) -> None:
        """Update the rates at ``now``, in monotonic seconds."""
        self.publishing.at(now, self.published)
        self.counting.at(now, self.counted)
        for worker in self.workers:
            worker.rate.at(now, worker.counted)

    @property
    def stored(self) -> int:
        """Flights known to be in the stream. A flight can be processed before its publish ack arrives."""
        return max(self.published, self.counted)

    @property
    def working(self) -> int:
        """The number of workers in state ``working``."""
        return sum(worker.state == "working" for worker in self.workers)


def line(progress: Progress) -> str:
    """The progress in one line, for plain output."""
    p = progress
    head = f"{p.elapsed:6.1f} s  "
    if p.pipeline is not None:
        return f"{head}{p.pipeline.line()}"
    if not p.published:
        return f"{head}{p.phase}" + (f": {p.read:,} flights" if p.read else "")
    return (
        f"{head}published {p.stored:,}  processed {p.counted:,} of {p.total:,} ({p.counting.value:,.0f}/s)  "
        f"pending {p.pending:,}  ack pending {p.ack_pending:,}  redelivered {p.redelivered:,}  workers {p.working}"
    )


def in_words(event: Event) -> str:
    """An event in one line: its name and its fields."""
    fields = msgspec.structs.asdict(event).items()
    text = ", ".join(f"{name} {value}" for name, value in fields if value not in ("", None))
    return " ".join(f"{type(event).__name__}: {text}".split())
