"""Plan a read of all messages between two positions. Needs no pyspark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ..errors import ConfigError
from .lookup import Lookup, NoSuchStreamError, check_filters, matching_names
from .offsets import StreamFacts, check_not_future, lost_head
from .pushdown import Narrowed
from .ranges import SequenceRange
from .source_options import SourceOptions
from .tasks import LogPartition, cut, plan

__all__ = ["plan_bounded"]

_AT_ONCE = 16  # maximum number of streams to look up at the same time


@dataclass(frozen=True, slots=True)
class _StreamRead:
    """The range of a stream to read, and how to read it."""

    lookup: Lookup
    facts: StreamFacts
    read_mode: str
    whole: SequenceRange


def plan_bounded(options: SourceOptions, narrowed: Narrowed | None = None) -> list[LogPartition]:
    """Resolve the start and the end of a read, and return the tasks that read all messages between them.

    Args:
        options: Options of a batch read.
        narrowed: The bounds after filter pushdown. By default the options alone decide.
    """
    narrowed = narrowed or Narrowed(subjects=options.subjects)
    if not options.has_several:
        lookup = Lookup(options)
        facts = lookup.facts()
        read = _plan_stream(options, narrowed, lookup, facts)
        if read is None or not _keeps_filters(lookup, facts, narrowed):
            return []
        return _tasks(options, read)
    reads = _plan_several(options, narrowed)
    # Divide the tasks among the streams in proportion to their sequences, because counting messages costs requests.
    total = sum(read.whole.width for read in reads)
    tasks = []
    for read in reads:
        least = max(1, -(-options.min_partitions * read.whole.width // total))
        tasks += _tasks(replace(options, min_partitions=least), read)
    return tasks


def _plan_several(options: SourceOptions, narrowed: Narrowed) -> list[_StreamRead]:
    """Return the range to read of each stream, in the order of the names. Streams with nothing to read are omitted."""
    reads: list[_StreamRead] = []
    fitting: dict[str, tuple[str, ...]] = {}
    names = _names(options)
    with ThreadPoolExecutor(min(_AT_ONCE, len(names)), "jsclient-spark-look") as pool:
        lookups = [pool.submit(_plan_member, options.for_stream(name), narrowed) for name in names]
    for name, pending in zip(names, lookups, strict=True):
        try:
            read, fitting[name] = pending.result()
        except NoSuchStreamError:
            if options.stream_pattern is None:
                raise
            continue  # the stream was deleted after it was listed
        if read is not None:
            reads.append(read)
    check_filters(options, fitting)
    return reads


def _plan_member(options: SourceOptions, narrowed: Narrowed) -> tuple[_StreamRead | None, tuple[str, ...]]:
    """Return the range to read of one of several streams, or None, and the filters that can match its messages."""
    lookup = Lookup(options)
    facts = lookup.facts()
    lookup.subjects = fitting = lookup.fitting(facts)
    if bool(fitting) != bool(options.subjects):
        return None, fitting  # no filter matches any message of the stream
    read = _plan_stream(options, narrowed, lookup, facts)
    if read is not None and not _keeps_filters(lookup, facts, narrowed):
        read = None
    return read, fitting


def _keeps_filters(lookup: Lookup, facts: StreamFacts, narrowed: Narrowed) -> bool:
    """Drop the pushed-down filters that no message can match. Returns False if there were filters and none remains."""
    lookup.subjects = lookup.fitting(facts)
    return bool(lookup.subjects) == bool(narrowed.subjects)


def _names(options: SourceOptions) -> tuple[str, ...]:
    pattern = options.stream_pattern
    names = options.streams if pattern is None else matching_names(options)
    if not names:
        raise ConfigError(f"option 'streamPattern' is {pattern!r}, which matches no stream: correct it")
    return names


def _plan_stream(
    options: SourceOptions, narrowed: Narrowed, lookup: Lookup, facts: StreamFacts
) -> _StreamRead | None:
    """Return the range to read of a stream, or None if there is nothing to read."""
    read_mode = lookup.read_mode(facts)
    first, last = _first(options, lookup, facts), _last(options, lookup, facts)
    if options.start.kind == "sequence":
        lost = lost_head(first, last, facts, 'start="first"' if options.start.argument else None)
        if lost is not None and (not lookup.is_lost(facts, None) or not lookup.accept(lost)):
            # Removed messages don't count as lost, or the options accept their loss. Begin with the oldest message
            # left.
            first = max(first, facts.first_seq)
    first, last = max(first, narrowed.first), min(last, narrowed.last)
    if narrowed.since is not None:
        first = max(first, lookup.sequence_at(narrowed.since, facts))
    if narrowed.nothing or last < first:
        return None
    lookup.subjects = narrowed.subjects
    return _StreamRead(lookup, facts, read_mode, SequenceRange(first, last))


def _tasks(options: SourceOptions, read: _StreamRead) -> list[LogPartition]:
    parts = cut(read.lookup, options, read.whole, read.facts, read.read_mode)
    return plan(parts, read.lookup, read.facts, read.read_mode)


def _first(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    start = options.start
    if start.kind == "sequence":
        _not_beyond(
            start.argument or "option 'startingSequence'", start.sequence, facts.last_seq + 1, options, facts
        )
        return start.sequence
    if start.kind == "time":
        check_not_future(start, facts)
        return max(lookup.sequence_at(start.time, facts), facts.first_seq)
    return facts.last_seq + 1 if start.kind == "latest" else facts.first_seq


def _last(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    end = options.end
    if end.kind == "sequence":
        _not_beyond(end.argument or "option 'endingSequence'", end.sequence, facts.last_seq, options, facts)
        return min(end.sequence, facts.last_seq)
    if end.kind == "time":
        return lookup.sequence_at(end.time, facts) - 1
    return facts.last_seq


def _not_beyond(name: str, sequence: int, most: int, options: SourceOptions, facts: StreamFacts) -> None:
    """Raise `ConfigError` for a sequence after the end of the stream, unless ``failOnDataLoss`` is false.

    Otherwise the read would silently return fewer messages than requested.
    """
    if sequence > most and options.fail_on_data_loss:
        raise ConfigError(
            f"{name} is {sequence}, but stream {facts.name!r} ends at sequence {facts.last_seq}: give a smaller "
            "one, or 'failOnDataLoss' = 'false' to read the messages that exist"
        )
