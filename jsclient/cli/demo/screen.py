"""The display of a run: a live table in a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Protocol, TextIO

from .pipeline.view import PipelineView
from .progress import Progress, WorkerView, line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["LiveScreen", "PlainScreen", "Screen"]

_LINE_EVERY = 3.0  # seconds
_NOTES = 3
_ROWS = 6  # workers in the table; the oldest ended ones are left out


class Screen(Protocol):
    """The display of a run."""

    def start(self) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show new numbers. Frequent calls are cheap."""

    def note(self, text: str) -> None:
        """Show an event."""

    def stop(self) -> None:
        """Restore the terminal."""


class PlainScreen:
    """Prints lines."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._last: float | None = None
        self._phase = ""

    def start(self) -> None:
        """Nothing to prepare."""

    def show(self, progress: Progress) -> None:
        """Print a line if the last one is a few seconds old, or a new phase has begun."""
        if (
            self._last is None
            or progress.elapsed - self._last >= _LINE_EVERY
            or progress.phase != self._phase
        ):
            if self._last is None:
                self.note(progress.where)
            self._last, self._phase = progress.elapsed, progress.phase
            print(line(progress), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line."""
        print(f"          {text}", file=self._out, flush=True)

    def stop(self) -> None:
        """Nothing to restore."""


class LiveScreen:
    """A table that is updated in place, by rich. `stop` removes it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console if console is not None else Console(highlight=False)
        # No automatic refresh: rich's thread would draw a state while it changes.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._notes: deque[str] = deque(maxlen=_NOTES)

    def start(self) -> None:
        """Begin to draw."""
        self._live.start()

    def show(self, progress: Progress) -> None:
        """Draw the table."""
        self._live.update(self._draw(progress), refresh=True)

    def note(self, text: str) -> None:
        """Show a line below the table until newer ones replace it."""
        self._notes.append(text)

    def stop(self) -> None:
        """Erase it; the cursor is back."""
        self._live.stop()

    def _draw(self, p: Progress) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = Text.assemble(("jsclient demo", "bold"), f"  {p.where}", no_wrap=True, overflow="ellipsis")
        notes = [Text(note, style="yellow", no_wrap=True, overflow="ellipsis") for note in self._notes]
        shown = [_numbers(p), _crew(p.workers)] if p.pipeline is None else [_stages(p.pipeline)]
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


def _bars(p: Progress) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bars = Table.grid(padding=(0, 2), expand=True)
    bars.add_column()
    bars.add_column(ratio=1)
    bars.add_column(justify="right")
    bars.add_column(justify="right")
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


def _numbers(p: Progress) -> Table:
    from rich.table import Table

    numbers = Table.grid(padding=(0, 2), expand=True)
    shown = {
        "pending": p.pending,
        "ack pending": p.ack_pending,
        "redelivered": p.redelivered,
        "processed twice": p.repeated,
    }
    for _ in shown:
        numbers.add_column(ratio=1)
    numbers.add_row(*(f"{name} [bold]{value:,}[/]" for name, value in shown.items()))
    return numbers


def _crew(workers: list[WorkerView]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("worker")
    table.add_column("pid")
    table.add_column("state")
    for name in ("processed", "per second", "redelivered"):
        table.add_column(name, justify="right")
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
        rest = len(workers) - _ROWS
        table.caption = f"and {rest} more"
    return table


def _stages(pipeline: PipelineView) -> Table:
    """The table of the Spark queries."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("query")
    table.add_column("state")
    for name in ("batches", "rows in", "", "per second", "rows out"):
        table.add_column(name, justify="right")
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
    """The killed workers and the newest one first, then the others in order of start."""
    if len(workers) <= _ROWS:
        return workers
    first = [w for w in workers if w.state == "killed"] + [workers[-1]]
    rest = [w for w in workers if w not in first]
    return sorted([*first, *rest][:_ROWS], key=lambda w: w.number)
