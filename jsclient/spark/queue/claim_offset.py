"""The offset of queue mode: which messages a batch claimed from a durable consumer.

A claim is one delivery: the stream sequence, the consumer sequence, how often it was delivered, and how many messages
the consumer had left. Claims that follow each other are one run, so that 50,000 of them are some 100 bytes of JSON::

    {"b": 7, "runs": [[first stream seq, first consumer seq, count, delivered, pending behind the first], ...],
     "ack": "$JS.ACK.ORDERS.spark", "made": "2026-01-31T12:00:00+00:00", "at": 1769860800000}

In a run both sequences count up, and what is pending counts down: exact while nobody publishes, and never part of what
an ack means. With the start of the ack subjects, which the server gave, a run holds all that is needed to ack it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import PositionInvalidError

__all__ = [
    "ClaimCollector",
    "QueueOffset",
    "Run",
    "ack_form",
    "ack_subjects",
    "claimed",
    "covers",
    "share_out",
]

_FIRST_FORM = 9  # tokens of a JSAck; the second form has 11 or more, and four more before the numbers
_NUMBERS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """Claims whose stream and consumer sequences both count up from the first one's."""

    stream_seq: int
    consumer_seq: int
    count: int
    delivered: int  # times, with this delivery
    pending: int  # messages that the consumer had left behind the first one

    @property
    def last(self) -> int:
        """The last stream sequence."""
        return self.stream_seq + self.count - 1

    def part(self, start: int, count: int) -> Run:
        """``count`` claims of it, from number ``start`` on."""
        return Run(
            self.stream_seq + start,
            self.consumer_seq + start,
            count,
            self.delivered,
            max(0, self.pending - start),
        )


def claimed(runs: Iterable[Run]) -> int:
    """How many claims these are."""
    return sum(run.count for run in runs)


def ack_form(reply: str) -> tuple[str, str]:
    """What stands before and behind the five numbers of a JSAck. The second is empty for all servers up to now."""
    tokens = reply.split(".")
    before = 4 if len(tokens) == _FIRST_FORM else 6
    return ".".join(tokens[:before]), "".join(f".{token}" for token in tokens[before + _NUMBERS :])


def ack_subjects(runs: Iterable[Run], form: tuple[str, str]) -> Iterator[bytes]:
    """The JSAck of each claim. The time in it, which the server does not read, is 0."""
    before, behind = (part.encode("utf-8", "surrogateescape").replace(b"%", b"%%") for part in form)
    for run in runs:
        shift = run.consumer_seq - run.stream_seq
        line = b"%b.%d.%%d.%%d.0.0%b" % (before, run.delivered, behind)
        for seq in range(run.stream_seq, run.last + 1):
            yield line % (seq, seq + shift)


def covers(runs: Sequence[Run], first: int) -> bool:
    """Whether all sequences from ``first`` to the last claimed one are claimed, so that a purge takes nothing else."""
    ordered = sorted(runs, key=lambda run: run.stream_seq)
    following = first
    for run in ordered:
        if run.stream_seq > following:
            return False
        following = max(following, run.last + 1)
    return bool(ordered)


def share_out(runs: Iterable[Run], parts: int) -> list[tuple[Run, ...]]:
    """The claims in order of their stream sequences, in parts of the same size, give or take one."""
    ordered = sorted(runs, key=lambda run: run.stream_seq)
    total = claimed(ordered)
    parts = min(parts, total)
    shares: list[tuple[Run, ...]] = []
    number, offset = 0, 0  # the run that is next, and how much of it is taken
    for part in range(parts):
        wanted = total * (part + 1) // parts - total * part // parts
        share: list[Run] = []
        while wanted:
            run = ordered[number]
            taken = min(wanted, run.count - offset)
            share.append(run.part(offset, taken))
            wanted, offset = wanted - taken, offset + taken
            if offset == run.count:
                number, offset = number + 1, 0
        shares.append(tuple(share))
    return shares


class ClaimCollector:
    """Makes runs of deliveries as they come.

    Attributes:
        count: Deliveries so far.
        last_pending: Messages that the consumer had left behind the last one.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.last_pending: int = 0
        self._runs: list[list[int]] = []  # as the fields of a `Run`
        self._next_stream_seq = self._next_consumer_seq = self._delivered = (
            0  # of a delivery that goes on with the run
        )
        self._again = False  # one of them was delivered before: perhaps to us

    @property
    def run_count(self) -> int:
        """How many runs it takes."""
        return len(self._runs)

    def runs(self) -> list[Run]:
        """All deliveries so far."""
        return [Run(*run) for run in self._runs]

    def add(self, stream_seq: int, consumer_seq: int, delivered: int, pending: int) -> None:
        """Take a delivery."""
        self.count += 1
        self.last_pending = pending
        if (
            stream_seq == self._next_stream_seq
            and consumer_seq == self._next_consumer_seq
            and delivered == self._delivered
        ):
            self._runs[-1][2] += 1
        else:
            self._runs.append([stream_seq, consumer_seq, 1, delivered, pending])
            self._delivered = delivered
            self._again = self._again or delivered > 1
        self._next_stream_seq, self._next_consumer_seq = stream_seq + 1, consumer_seq + 1

    def finish(self) -> tuple[Run, ...]:
        """All claims. A message that came twice, since its time ran out meanwhile, is claimed by its last delivery."""
        runs = tuple(self.runs())
        if not self._again:
            return runs
        newest: dict[int, Run] = {}
        for run in runs:
            for number in range(run.count):
                one = run.part(number, 1)
                newest.pop(one.stream_seq, None)
                newest[one.stream_seq] = one
        if len(newest) == self.count:
            return runs
        again = ClaimCollector()
        for one in newest.values():
            again.add(one.stream_seq, one.consumer_seq, one.delivered, one.pending)
        return tuple(again.runs())


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """The claims of one batch. The batch between two offsets is what the second one claimed.

    Attributes:
        batch: Counts up; 0: nothing was claimed yet.
        runs: The claims.
        form: What stands before and behind the numbers of their ack subjects.
        made: When the consumer was made, as ``ConsumerInfo.created.isoformat()``: the claims are void in another one.
        at: When they were claimed, milliseconds since 1970.
    """

    batch: int = 0
    runs: tuple[Run, ...] = ()
    form: tuple[str, str] = ("", "")
    made: str = ""
    at: int = 0

    @property
    def last_consumer_seq(self) -> int:
        """The highest consumer sequence."""
        return max((run.consumer_seq + run.count - 1 for run in self.runs), default=0)

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"b": self.batch, "runs": [_row(run) for run in self.runs]}
        if self.runs:
            made |= {"ack": self.form[0], "made": self.made, "at": self.at}
            if self.form[1]:
                made["behind"] = self.form[1]
        return made

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> QueueOffset:
        """
        Raises:
            PositionInvalidError: It is none of queue mode.
        """
        try:
            read = cls(
                batch=_whole(offset["b"]),
                runs=tuple(_run(row) for row in offset["runs"]),
                form=(_text(offset, "ack"), _text(offset, "behind")),
                made=_text(offset, "made"),
                at=_whole(offset.get("at", 0)),
            )
            # An ack is published to a JSAck and nowhere else.
            form = "".join(read.form)
            well = not read.runs or (form.startswith("$JS.ACK.") and not any(map(str.isspace, form)))
            if well and offset.keys() <= {"b", "runs", "ack", "behind", "made", "at"}:
                return read
        except (KeyError, TypeError, ValueError):
            pass
        raise PositionInvalidError(
            f"the checkpoint has an offset that is none of mode 'queue': {str(dict(offset))[:200]}; "
            "was it made in another mode, by another source, or by a newer version?"
        )


def _row(run: Run) -> list[int]:
    return [run.stream_seq, run.consumer_seq, run.count, run.delivered, run.pending]


def _run(row: Any) -> Run:
    stream_seq, consumer_seq, count, delivered, pending = (_whole(number) for number in row)
    if not (stream_seq and consumer_seq and count):
        raise ValueError
    return Run(stream_seq, consumer_seq, count, delivered, pending)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError
    return value


def _text(offset: Mapping[str, Any], name: str) -> str:
    value = offset.get(name, "")
    if not isinstance(value, str):
        raise TypeError
    return value
