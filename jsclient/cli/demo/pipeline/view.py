"""The progress of the pipeline: the numbers shown while it runs, and kept for a chart. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .words import BatchDone

__all__ = ["PipelineView", "StageView"]


@dataclass(slots=True)
class StageView:
    """The state of a query, as shown. ``total`` is the number of rows it will read; 0: unknown."""

    name: str
    does: str
    total: int = 0
    state: str = "waiting"  # waiting, running, killed, done
    out: int = 0  # rows that it has written
    rate: float = 0.0  # rows a second, of its last batch
    rows_by_batch: dict[int, int] = field(default_factory=dict)  # a repeated batch counts once

    def end(self) -> None:
        """The query has read every row. Rows that it committed but could not report before a kill are added."""
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
    """The state of the pipeline, as shown. ``driver`` is the process id of the Spark driver; 0: not running."""

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
        """The state in one line, for plain output."""
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
