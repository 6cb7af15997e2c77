"""Tasks of log mode. The driver plans them, and the executors read them with `reading`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from .lookup import Lookup
from .offsets import StreamFacts
from .range_reader import sequences_between
from .ranges import (
    SPARSE,
    SequenceRange,
    pieces_for,
    plan_bounded_parts,
    plan_by_messages,
    plan_ranges,
    plan_sparse,
)
from .server_options import ServerOptions
from .source_options import SourceOptions

__all__ = ["LogPartition", "ReadSpec", "cut", "pieces_of", "plan", "read_spec"]

# Up to these limits, a range is split exactly, by reading the sequence of every message. Above them, it is cheaper to
# ask the server how many messages each part contains.
_MOST_FOUND = 500_000  # maximum number of messages
_FOUND_A_PIECE = 500  # maximum number of messages for each part
# Maximum number of bytes for each part. The server loads payloads even if it does not send them.
_LOADED_A_PIECE = 1024 * 1024
# If counting needs a consumer, ranges with fewer sequences than this are split without counting.
_WORTH_COUNTING = 10_000


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The read settings that all tasks of a query share. They are pickled and sent to the executors."""

    connect: ServerOptions
    stream: str  # name of the stream. With several streams, each task names its own stream
    subjects: tuple[str, ...]  # subject filters, empty for all messages
    columns: tuple[str, ...]  # column names, in the order of the schema
    created: str | None  # ``StreamInfo.created.isoformat()`` of the stream, or None for any stream
    read_mode: str  # "consumer", "direct", or "auto"
    batch_rows: int  # maximum rows per batch
    fetch_max_bytes: int  # bytes to request at a time
    check_loss: bool  # true if messages that were removed before they were read raise an error
    may_supersede: bool = True  # true if superseded and expired messages don't count as lost
    since: datetime | None = None  # the time after which the task's messages were stored, or None if unknown


@dataclass(frozen=True, slots=True)
class LogPartition:
    """The part of a stream that one task reads."""

    range: SequenceRange | None  # None if no message of the part remains
    created: str  # when the stream was created, see `ReadSpec`
    subjects: tuple[str, ...] = ()
    read_mode: str = "auto"  # see `ReadSpec`
    stream: str = ""  # name of the stream, or "" for the stream of the `ReadSpec`
    since: datetime | None = None  # see `ReadSpec`

    def spec(self, spec: ReadSpec) -> ReadSpec:
        """Return the `ReadSpec` that all tasks share, completed with the values of this task."""
        return replace(
            spec,
            stream=self.stream or spec.stream,
            created=self.created,
            subjects=self.subjects,
            read_mode=self.read_mode,
            since=self.since,
        )


def read_spec(options: SourceOptions, columns: tuple[str, ...]) -> ReadSpec:
    return ReadSpec(
        connect=options.connect,
        stream=options.stream,
        subjects=options.subjects,
        columns=columns,
        created=None,
        read_mode=options.read_mode,
        batch_rows=options.batch_rows,
        fetch_max_bytes=options.fetch_max_bytes,
        check_loss=options.fail_on_data_loss,
    )


def pieces_of(options: SourceOptions, rows: int) -> int:
    """Return the number of tasks for a number of rows."""
    return pieces_for(
        rows, options.min_partitions, options.max_messages_per_partition, options.min_partition_rows
    )


def cut(
    lookup: Lookup, options: SourceOptions, whole: SequenceRange, facts: StreamFacts, read_mode: str
) -> list[SequenceRange]:
    """Split a range into parts for tasks. The parts cover the whole range even if counts are wrong."""
    if pieces_of(options, whole.width) == 1:
        return [whole]
    dense = not lookup.subjects and not facts.gaps
    if dense or (whole.width < _WORTH_COUNTING and not lookup.counts_cheaply(facts)):
        return plan_ranges(whole, pieces_of(options, whole.width))
    # Count the later messages first, so that a message stored in the meantime cannot make the result too low.
    after = lookup.rest(whole.last + 1, facts)
    rest = lookup.rest(whole.first, facts)
    rows = max(0, rest - after)
    pieces = pieces_of(options, rows)
    if pieces == 1:
        return [whole]
    most = options.max_messages_per_partition
    if most is None and whole.width <= SPARSE * rows:
        return plan_ranges(whole, pieces)
    # If there are few messages, read their sequences instead of counting messages. Each count makes the server scan a
    # part of the stream, and finding each boundary between two tasks takes several counts.
    if read_mode != "direct" and _are_few(rows, pieces, facts):
        created, subjects = datetime.fromisoformat(facts.created), lookup.subjects
        messages = lookup.run(lambda stream: sequences_between(stream, whole, subjects, created))
        return plan_by_messages(whole, messages, pieces_of(options, len(messages)))
    if most is None:
        return lookup.drive(plan_sparse(whole, rest, after, pieces), facts)
    return lookup.drive(plan_bounded_parts(whole, rest, after, min(most, -(-rows // pieces))), facts)


def _are_few(rows: int, pieces: int, facts: StreamFacts) -> bool:
    """Return whether reading the sequences of all messages costs less than counting messages for each part."""
    a_piece = -(-rows // pieces)
    return rows <= _MOST_FOUND and a_piece <= _FOUND_A_PIECE and a_piece * facts.mean_bytes <= _LOADED_A_PIECE


def plan(
    parts: Iterable[SequenceRange | None],
    lookup: Lookup,
    facts: StreamFacts,
    read_mode: str,
    since: datetime | None = None,
) -> list[LogPartition]:
    """Return the tasks that read these ranges."""
    return [
        LogPartition(part, facts.created, lookup.subjects, read_mode, facts.name, since) for part in parts
    ]
