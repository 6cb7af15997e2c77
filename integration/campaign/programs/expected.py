"""What a program has to store, computed from its input in plain Python, without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from integration.campaign.programs.program import BEGIN, FLUSH, KEYS, Program, Sink, Step, Write


@dataclass(frozen=True)
class Message:
    """A message of a stream that a program reads: ``n,k,t`` on a subject of ``k``."""

    n: int
    k: int
    t: int

    @property
    def payload(self) -> bytes:
        return f"{self.n},{self.k},{self.t}".encode()


@dataclass(frozen=True)
class Row:
    """A row on its way through the steps. `origin` is the message that it was made from."""

    stream: str
    n: int
    k: int
    t: int
    tag: str
    id: str
    origin: tuple[str, int]


@dataclass(frozen=True)
class Out:
    """A row as it is stored, with the message that it was made from."""

    subject: str
    data: str
    n: int
    origin: tuple[str, int]


def messages_of(program: Program, number: int) -> list[Message]:
    """The messages of one of its streams, in order."""
    dice = Random(f"messages {program.seed} {number}")
    results = list[Message]()
    for n in range(program.count):
        results.append(Message(n, dice.randrange(KEYS), BEGIN + n))
        if dice.random() * 100 < program.again:
            results.append(results[-1])
    if program.has("window"):
        results.append(Message(-1, 1, FLUSH))
    return results


def rows_of(program: Program) -> list[Row]:
    """The rows after all steps."""
    rows = [
        Row(name, one.n, one.k, one.t, "", f"{name}:{seq}", (name, seq))
        for number, name in enumerate(program.names)
        for seq, one in enumerate(messages_of(program, number), 1)
    ]
    for number, step in enumerate(program.steps):
        rows = list(_after(step, number, rows))
    return rows


def stored_by(program: Program) -> dict[int, list[Out]]:
    """The rows that each sink stores, by its number."""
    rows = rows_of(program)
    return {number: list(_outs(program, sink, number, rows)) for number, sink in enumerate(program.sinks)}


def counted(outs: Iterable[Out]) -> Counter[tuple[str, str]]:
    """Rows by subject and data."""
    return Counter((one.subject, one.data) for one in outs)


def shares_a_message(program: Program) -> bool:
    """Whether two rows of a write with ``dedup=source`` have one id, which ends the query with an error."""
    outs = stored_by(program)
    for number, sink in enumerate(program.sinks):
        if sink.options.get("dedup") == "source" and len(sink.writes) == 1:
            ids = Counter((one.subject, one.origin) for one in outs[number])
            if max(ids.values(), default=0) > 1:
                return True
        elif sink.options.get("dedup") == "source":
            rows = rows_of(program)
            for write in sink.writes:
                ids = Counter((one.subject, one.origin) for one in _written(program, write, number, rows))
                if max(ids.values(), default=0) > 1:
                    return True
    return False


def _after(step: Step, number: int, rows: Sequence[Row]) -> Iterator[Row]:
    if step.kind == "filter":
        yield from (row for row in rows if row.n < 0 or row.n % step.number != 0)
    elif step.kind == "union":
        yield from rows
        yield from (_marked(row, step, f"u{number}") for row in rows if row.n % step.number == 0)
    elif step.kind == "explode":
        for row in rows:
            yield from (_marked(row, step, f"e{one}") for one in range(row.n % step.number + 1))
    elif step.kind == "join":
        for row in rows:
            labels = [f"l{one}" for one in range(row.k % 3)] or ([""] if step.how == "left" else [])
            yield from (_marked(row, step, label or "-") for label in labels)
    elif step.kind == "distinct":
        saved = {(row.stream, row.n, row.tag): row for row in rows}
        yield from (replace(row, id=f"{row.stream}:{row.n}:{row.tag}") for row in saved.values())
    elif step.kind == "window":
        yield from _windows(step, rows)
    else:  # repartition and coalesce
        yield from rows


def _marked(row: Row, step: Step, mark: str) -> Row:
    return replace(row, id=f"{row.id}{mark}", tag=f"{row.tag}{mark}" if step.marked else row.tag)


def _windows(step: Step, rows: Sequence[Row]) -> Iterator[Row]:
    """The windows that end before the last message."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    for row in rows:
        if row.n >= 0:
            groups[row.t // step.number * step.number, row.k].append(row.n)
    for (start, k), numbers in groups.items():
        tag = f"w{len(numbers)}s{sum(numbers)}"
        yield Row("w", start // step.number, k, start, tag, f"{start}:{k}", ("", 0))


def _outs(program: Program, sink: Sink, number: int, rows: Sequence[Row]) -> Iterator[Out]:
    for write in sink.writes:
        yield from _written(program, write, number, rows)


def _written(program: Program, write: Write, number: int, rows: Sequence[Row]) -> Iterator[Out]:
    for row in rows:
        if write.rest is None or row.n % 2 == write.rest:
            subject = subject_of(program, write, number, None if write.fixed else row.k % 4)
            yield Out(subject, data_of(program, row), row.n, row.origin)


def subject_of(program: Program, write: Write, number: int, part: int | None) -> str:
    """The subject of a row. Part is None for the option. Sinks and writes share subjects if they share labels."""
    return f"p{program.seed}.{write.label}.{part or 0}"


def data_of(program: Program, row: Row) -> str:
    if program.data == "own":
        return row.id
    return f"{row.stream}|{row.n}|{row.k}|{row.tag}" if program.data == "tagged" else f"k{row.k}"
