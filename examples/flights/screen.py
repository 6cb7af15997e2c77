"""The display of a run, a live table in a terminal or a line every few seconds, and the numbers that it shows."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import msgspec

from jsclient.events import Event

from .pipeline.words import BatchDone

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = [
    "LiveScreen",
    "PipelineView",
    "PlainScreen",
    "RunState",
    "Screen",
    "StageView",
    "WorkerView",
    "in_words",
]

_LINE_EVERY = 3.0  # seconds
_NOTES = 3
_ROWS = 6  # workers in the table, which omits the workers that ended first


# --- the numbers -----------------------------------------------------------------------------------------


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
class RunState:
    """The state of the run, as shown.

    ``phase`` is the current step. ``pending`` is the number of messages that the consumer has not delivered yet,
    ``ack_pending`` the number of delivered messages without an ack. ``pipeline`` is set in the Spark part.
    """

    phase: str = "starting"
    where: str = ""
    elapsed: float = 0.0  # seconds
    total: int = 0  # 0 if unknown
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


def line(progress: RunState) -> str:
    """Describe the progress in one line, for plain output."""
    p = progress
    head = f"{p.elapsed:6.1f} s  "
    if p.pipeline is not None:
        return f"{head}{p.pipeline.line()}"
    if not p.published:
        return f"{head}{p.phase}" + (f": {p.read:,} flights" if p.read else "")
    working = sum(worker.state == "working" for worker in p.workers)
    return (
        f"{head}published {p.stored:,}  processed {p.counted:,} of {p.total:,} ({p.counting.value:,.0f}/s)  "
        f"pending {p.pending:,}  ack pending {p.ack_pending:,}  redelivered {p.redelivered:,}  workers {working}"
    )


def in_words(event: Event) -> str:
    """Describe an event in one line, with its name and its fields."""
    fields = msgspec.structs.asdict(event).items()
    text = ", ".join(f"{name} {value}" for name, value in fields if value not in ("", None))
    return " ".join(f"{type(event).__name__}: {text}".split())


@dataclass(slots=True)
class StageView:
    """The state of a query, as shown. ``total`` is the number of rows that it will read, 0 if unknown."""

    name: str
    does: str
    total: int = 0
    state: str = "waiting"  # waiting, running, killed, done
    out: int = 0  # rows that it has written
    rate: float = 0.0  # rows per second in its last batch
    rows_by_batch: dict[int, int] = field(default_factory=dict)  # a repeated batch counts once

    def end(self) -> None:
        """Note that the query has read every row. Adds rows that it committed but could not report before a kill."""
        self.state = "done"
        if self.total > self.rows:
            self.rows_by_batch[-1] = self.total - self.rows

    @property
    def rows(self) -> int:
        return sum(self.rows_by_batch.values())

    @property
    def batches(self) -> int:
        return len(self.rows_by_batch)


@dataclass(slots=True)
class PipelineView:
    """The state of the pipeline, as shown. ``driver`` is the process id of the Spark driver, 0 if not running."""

    stages: dict[str, StageView]
    driver: int = 0
    state: str = "starting"  # starting, running, killed, restarting, comparing, ended
    late: int = 0  # rows that arrived after their window was closed
    log: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, done: BatchDone, at: float) -> None:
        """Record a finished batch, ``at`` seconds after the start of the pipeline."""
        stage = self.stages[done.query]
        stage.rows_by_batch[done.batch] = done.rows
        if done.rows:
            stage.rate = done.rate
        self.late += done.late
        self.log.append(
            {
                "at": round(at, 3),
                "query": done.query,
                "batch": done.batch,
                "rows": done.rows,
                "rows_per_second": round(done.rate, 1),
                "milliseconds": done.took,
                "state_rows": done.state,
                "rows_in_all": stage.rows,
            }
        )

    def happened(self, what: str, at: float, **more: Any) -> None:
        """Record an event between the batches."""
        self.log.append({"at": round(at, 3), "event": what, **more})

    def line(self) -> str:
        """Describe the state in one line, for plain output."""
        parts = []
        for stage in self.stages.values():
            if stage.state == "waiting" and not stage.batches:
                continue
            of = f" of {stage.total:,}" if stage.total else ""
            rate = f", {stage.rate:,.0f}/s" if stage.state == "running" and stage.rate else ""
            out = f", {stage.out:,} out" if stage.out else ""
            plural = "" if stage.batches == 1 else "es"
            parts.append(f"{stage.name} {stage.rows:,}{of} ({stage.batches} batch{plural}{rate}{out})")
        return f"Spark {self.state}" + (f": {'  '.join(parts)}" if parts else "")


# --- the display -----------------------------------------------------------------------------------------


class PlainScreen:
    """Prints lines."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._last: float | None = None
        self._phase = ""

    def start(self) -> None:
        """Do nothing, because no preparation is needed."""

    stop = start

    def show(self, progress: RunState) -> None:
        """Print a line if the last line is a few seconds old, or a new phase has begun."""
        last, self._phase, changed = self._last, progress.phase, progress.phase != self._phase
        if last is None:
            self.note(progress.where)
        if last is None or changed or progress.elapsed - last >= _LINE_EVERY:
            self._last = progress.elapsed
            print(line(progress), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line."""
        print(f"          {text}", file=self._out, flush=True)


class LiveScreen:
    """A table that is updated in place, by rich. `stop` removes it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        # There is no automatic refresh, since rich's thread would draw a state while it changes.
        self._live = Live(console=console or Console(highlight=False), auto_refresh=False, transient=True)
        self._notes: deque[str] = deque(maxlen=_NOTES)

    def start(self) -> None:
        self._live.start()

    def show(self, progress: RunState) -> None:
        """Draw the table."""
        self._live.update(self._draw(progress), refresh=True)

    def note(self, text: str) -> None:
        """Show a line below the table until newer lines replace it."""
        self._notes.append(text)

    def stop(self) -> None:
        """Erase the table, and show the cursor again."""
        self._live.stop()

    def _draw(self, p: RunState) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = Text.assemble(("flights", "bold"), f"  {p.where}", no_wrap=True, overflow="ellipsis")
        notes = [Text(note, style="yellow", no_wrap=True, overflow="ellipsis") for note in self._notes]
        shown = [_numbers(p), _workers_table(p.workers)] if p.pipeline is None else [_stages(p.pipeline)]
        return Group(
            head,
            Text(f"{p.elapsed:.0f} s  {p.phase}", style="dim"),
            Text(),
            _bars(p),
            Text(),
            *shown,
            *([*notes, Text()] if notes else []),
            # Short, so that an echoed ^C stays in this line and is erased with it.
            Text("Ctrl-C stops it", style="dim"),
        )


Screen: TypeAlias = PlainScreen | LiveScreen


def _bars(p: RunState) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table

    right = Column(justify="right")
    bars = Table.grid(Column(), Column(ratio=1), right, right.copy(), padding=(0, 2), expand=True)
    steps = [("published", p.stored, p.publishing.value), ("processed", p.counted, p.counting.value)]
    if not p.published:
        steps = [("read     ", min(p.read, p.total), 0.0)]
    for name, count, rate in steps:
        share = min(count / p.total, 1.0) if p.total else 0.0
        bars.add_row(
            name,
            ProgressBar(total=1.0, completed=share),
            f"{count:>7,} {share:>4.0%}",
            f"{rate:>7,.0f}/s" if p.published else "",
        )
    return bars


def _numbers(p: RunState) -> Table:
    from rich.table import Column, Table

    names = ("pending", "ack pending", "redelivered", "processed twice")
    values = (p.pending, p.ack_pending, p.redelivered, p.repeated)
    numbers = Table.grid(*(Column(ratio=1) for _ in names), padding=(0, 2), expand=True)
    numbers.add_row(*(f"{name} [bold]{value:,}[/]" for name, value in zip(names, values, strict=True)))
    return numbers


def _table(left_columns: tuple[str, ...], right_columns: tuple[str, ...]) -> Table:
    """Return a table with columns aligned to the left and to the right."""
    from rich import box
    from rich.table import Table

    table = Table(*left_columns, box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for name in right_columns:
        table.add_column(name, justify="right")
    return table


def _workers_table(workers: list[WorkerView]) -> Table:
    table = _table(("worker", "pid", "state"), ("processed", "per second", "redelivered"))
    for worker in _shown(workers):
        style = {"killed": "red", "starting": "dim", "ended": "dim"}.get(worker.state, "green")
        rate = f"{worker.rate.value:,.0f}" if worker.state == "working" else ""
        table.add_row(
            f"{worker.number}",
            f"{worker.pid}",
            f"[{style}]{worker.state}[/]",
            f"{worker.counted:,}",
            rate,
            f"{worker.redelivered:,}",
        )
    if len(workers) > _ROWS:
        table.caption = f"and {len(workers) - _ROWS} more"
    return table


def _stages(pipeline: PipelineView) -> Table:
    """Return the table of the Spark queries."""
    table = _table(("query", "state"), ("batches", "rows in", "", "per second", "rows out"))
    styles = {"waiting": "dim", "running": "green", "killed": "red", "done": "bold"}
    for stage in pipeline.stages.values():
        table.add_row(
            stage.name,
            f"[{styles[stage.state]}]{stage.state}[/]",
            f"{stage.batches:,}",
            f"{stage.rows:,}",
            f"{min(stage.rows / stage.total, 1.0):.0%}" if stage.total else "",
            f"{stage.rate:,.0f}" if stage.state == "running" and stage.rate else "",
            f"{stage.out:,}",
        )
    driver = f", driver {pipeline.driver}" if pipeline.driver else ""
    table.caption = f"Spark {pipeline.state}{driver}"
    return table


def _shown(workers: list[WorkerView]) -> list[WorkerView]:
    """Select the killed workers, the newest worker and then others, in order of start."""
    if len(workers) <= _ROWS:
        return workers
    first = [w for w in workers if w.state == "killed"] + [workers[-1]]
    others = [w for w in workers if w not in first]
    return sorted([*first, *others][:_ROWS], key=lambda w: w.number)
