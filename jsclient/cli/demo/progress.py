"""How far it is: the numbers that are shown while it runs. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from ...protocol.events import Event
from .pipeline.view import PipelineView

__all__ = ["Progress", "Rate", "WorkerView", "in_words", "line"]


class Rate:
    """How fast a count grows, over the last seconds."""

    def __init__(self, window: float = 3.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()
        self.value = 0.0  # per second

    def at(self, now: float, count: int) -> None:
        """The count is this, now (monotonic seconds)."""
        seen = self._seen
        seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - self._window:
            seen.popleft()
        elapsed = now - seen[0][0]
        self.value = (count - seen[0][1]) / elapsed if elapsed > 0 else 0.0


@dataclass(slots=True)
class WorkerView:
    """What is shown of a worker."""

    number: int
    pid: int
    state: str = "starting"  # starting, working, killed, ended
    counted: int = 0
    redelivered: int = 0
    rate: Rate = field(default_factory=Rate)


@dataclass(slots=True)
class Progress:
    """What is shown of the whole. ``phase`` is what is being done; ``pending`` are messages that the consumer has still
    to deliver, ``ack_pending`` those it has delivered and that are not acked. ``pipeline`` is there in the Spark part.
    """

    phase: str = "starting"
    where: str = ""
    elapsed: float = 0.0  # seconds
    total: int = 0  # 0: not known yet
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
        """Bring the rates up to ``now``, monotonic seconds."""
        self.publishing.at(now, self.published)
        self.counting.at(now, self.counted)
        for worker in self.workers:
            worker.rate.at(now, worker.counted)

    @property
    def stored(self) -> int:
        """Flights known to be in the stream. An answer to the publisher may come after the flight was processed."""
        return max(self.published, self.counted)

    @property
    def working(self) -> int:
        """Workers at work."""
        return sum(worker.state == "working" for worker in self.workers)


def line(progress: Progress) -> str:
    """It in a line, for an output that is no terminal."""
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
    """An event in a line: its name, and what it says."""
    fields = msgspec.structs.asdict(event).items()
    told = ", ".join(f"{name} {value}" for name, value in fields if value not in ("", None))
    return " ".join(f"{type(event).__name__}: {told}".split())
