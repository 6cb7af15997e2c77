"""What a random program is: streams, steps, sinks and a fault, as data that is printed and read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

BEGIN = 1_780_000_000  # seconds since 1970: the event time of the first message
FLUSH = BEGIN + 864_000  # the time of the last message of each stream, which ends all windows
KEYS = 12
"""Values of the column ``k``. A key has ``k % 3`` labels in the table that programs join."""


@dataclass(frozen=True)
class Step:
    """One operation on the rows.

    Attributes:
        kind: ``filter``, ``union``, ``explode``, ``join``, ``window``, ``distinct``, ``repartition`` or ``coalesce``.
        number: Its divisor, its number of copies, its seconds or its partitions.
        marked: Whether rows that it makes carry a mark. Without one, several rows can be equal.
        how: ``inner`` or ``left`` of a join. The column by which rows are distributed.
    """

    kind: str
    number: int = 0
    marked: bool = True
    how: str = ""


@dataclass(frozen=True)
class Write:
    """The rows that go to the subjects ``<sink>.<label>.…``.

    Attributes:
        label: The second token of the subjects. Two writes can have the same.
        rest: Only the rows whose number has this remainder by two. None: all of them.
        fixed: Whether the option ``subject`` gives the subject, and not a column.
    """

    label: str
    rest: int | None = None
    fixed: bool = False


@dataclass(frozen=True)
class Sink:
    """A streaming query.

    Attributes:
        kind: ``direct`` for ``writeStream``, ``batch`` for ``foreachBatch`` with ``publish_batch``.
        writes: One of the former, one to three of the latter.
        options: Of the sink of jsclient.
        inside: Whether the steps are within the function of ``foreachBatch``.
        persist: Whether that function persists the batch.
    """

    kind: str
    writes: list[Write]
    options: dict[str, str] = field(default_factory=dict)
    inside: bool = False
    persist: bool = False


@dataclass(frozen=True)
class Fault:
    """What happens to the program.

    Attributes:
        kind: ``kill``: SIGKILL of the driver, its JVM and all workers. ``fail``: a row, or the function after a
            write, raises. Started again, it does not. ``forget``: the end of the last batch is not recorded, as if the
            driver had died just before. ``server``: SIGKILL of nats-server, and a start.
        at: When: the share of the expected rows that are stored, or that are before the row that raises.
        delay: Seconds between that and the signal. For ``server`` those until it is started.
        settings: Spark's, changed when the program is started again.
        source: Options of the source, changed when the program is started again.
    """

    kind: str
    at: float
    delay: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
        streams: How many it reads.
        reads: ``one``, ``list`` (option ``stream`` with several), ``pattern``, ``union`` (a source for each) or
            ``queue``.
        count: Messages of each stream.
        again: How many of 100 messages are published a second time.
        data: What a row is written as: ``own`` (no two rows are equal), ``tagged``, or ``key`` (most are equal).
        source: Options of the source.
        settings: Spark's.
        retention: Of the streams that are read.
    """

    seed: int
    streams: int
    reads: str
    count: int
    again: int
    data: str
    steps: list[Step]
    sinks: list[Sink]
    fault: Fault
    source: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    retention: str = "limits"

    @property
    def names(self) -> list[str]:
        """The names of the streams that it reads."""
        return [f"P{self.seed}_IN{number}" for number in range(self.streams)]

    @property
    def target(self) -> str:
        """The stream that it writes to."""
        return f"P{self.seed}_OUT"

    def has(self, *kinds: str) -> bool:
        return any(step.kind in kinds for step in self.steps)

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Program:
        """What `json` gave."""
        data: dict[str, Any] = json.loads(text)
        data["steps"] = [Step(**one) for one in data["steps"]]
        data["sinks"] = [
            Sink(**{**one, "writes": [Write(**write) for write in one["writes"]]}) for one in data["sinks"]
        ]
        data["fault"] = Fault(**data["fault"])
        return cls(**data)

    def told(self) -> str:
        """The program in one line."""
        steps = " → ".join(told_step(step) for step in self.steps) or "as it is"
        sinks = "; ".join(told_sink(sink) for sink in self.sinks)
        source = {**self.source, **({"retention": self.retention} if self.retention != "limits" else {})}
        fault = f"{self.fault.kind} at {self.fault.at:.0%}"
        changed = {**self.fault.settings, **self.fault.source}
        return (
            f"{self.streams} x {self.count} read by {self.reads} {told_options(source)} → {steps} → {self.data} "
            f"→ {sinks} | {fault}{', then ' + told_options(changed) if changed else ''}"
        )


def told_step(step: Step) -> str:
    parts = [str(step.number or ""), step.how, "" if step.marked else "unmarked"]
    return f"{step.kind}({' '.join(part for part in parts if part)})"


def told_sink(sink: Sink) -> str:
    writes = "+".join(
        f"{one.label}{'' if one.rest is None else f'%{one.rest}'}{'!' if one.fixed else ''}"
        for one in sink.writes
    )
    inside = " inside" if sink.inside else ""
    return f"{sink.kind}{inside}[{writes}] {told_options(sink.options)}"


def told_options(options: dict[str, str]) -> str:
    return " ".join(f"{name.removeprefix('spark.sql.')}={value}" for name, value in options.items())
