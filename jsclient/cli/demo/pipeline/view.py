"""How far the pipeline is: the numbers that are shown while it runs, and kept for a picture. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .words import BatchDone

__all__ = ["PipelineView", "StageView"]


@dataclass(slots=True)
class StageView:
    """A query. ``total`` is how many rows it will read; 0: not known yet."""

    name: str
    does: str
    total: int = 0
    state: str = "waiting"  # waiting, running, killed, done
    out: int = 0  # rows that it has written, where that is counted apart
    rate: float = 0.0  # rows a second, of its last batch
    rows_by_batch: dict[int, int] = field(default_factory=dict)  # a batch that is done again counts once

    def end(self) -> None:
        """It has read all there is. What it committed just before a kill it could not tell: that is the rest."""
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
    """What is shown of the whole. ``driver`` is the process id of Spark's driver, 0 while there is none."""

    stages: dict[str, StageView]
    driver: int = 0
    state: str = "starting"  # starting, running, killed, restarting, comparing, ended
    late: int = 0  # rows that a closed window refused
    log: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, done: BatchDone, at: float) -> None:
        """A batch was done, ``at`` seconds after the pipeline was begun."""
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
        """Keep it among the batches."""
        self.log.append({"at": round(at, 3), "event": what, **more})

    def line(self) -> str:
        """It in a line, for an output that is no terminal."""
        told = []
        for stage in self.stages.values():
            if stage.state == "waiting" and not stage.batches:
                continue
            of = f" of {stage.total:,}" if stage.total else ""
            rate = f", {stage.rate:,.0f}/s" if stage.state == "running" and stage.rate else ""
            out = f", {stage.out:,} out" if stage.out else ""
            plural = "" if stage.batches == 1 else "es"
            told.append(f"{stage.name} {stage.rows:,}{of} ({stage.batches} batch{plural}{rate}{out})")
        return f"Spark {self.state}" + (f": {'  '.join(told)}" if told else "")
