"""Plans a read of all messages between two positions. Needs no pyspark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import ConfigError
from ..options.source import SourceOptions
from .lookup import Lookup, NoSuchStreamError, check_filters, matching_names
from .offsets import StreamFacts, check_not_future, lost_head
from .pushdown import Narrowed
from .ranges import SequenceRange
from .tasks import LogPartition, cut, plan

__all__ = ["plan_bounded"]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is read of a stream."""

    lookup: Lookup
    facts: StreamFacts
    read_mode: str
    whole: SequenceRange


def plan_bounded(options: SourceOptions, narrowed: Narrowed | None = None) -> list[LogPartition]:
    """The tasks that read all messages between two positions, which are resolved now.

    Args:
        options: Options of a batch read.
        narrowed: The bounds after filter pushdown.
    """
    narrowed = narrowed or Narrowed(subjects=options.subjects)
    if not options.has_several:
        lookup = Lookup(options)
        facts = lookup.facts()
        one = _found(options, narrowed, lookup, facts)
        if one is None or not _keeps_filters(lookup, facts, narrowed):
            return []
        return _tasks(options, one)
    found = _found_in_several(options, narrowed)
    total = sum(one.whole.width for one in found)
    tasks = []
    for one in found:
        least = max(1, -(-options.min_partitions * one.whole.width // total))
        tasks += _tasks(replace(options, min_partitions=least), one)
    return tasks


def _found_in_several(options: SourceOptions, narrowed: Narrowed) -> list[_Found]:
    """What is read of each stream, in the order of their names."""
    found: list[_Found] = []
    fitting: dict[str, tuple[str, ...]] = {}
    for name in _names(options):
        try:
            one, fitting[name] = _found_in(options.of(name), narrowed)
        except NoSuchStreamError:
            if options.stream_pattern is None:
                raise
            continue  # deleted after it was listed
        if one is not None:
            found.append(one)
    check_filters(options, fitting)
    return found


def _found_in(options: SourceOptions, narrowed: Narrowed) -> tuple[_Found | None, tuple[str, ...]]:
    """What is read of one of several streams, and the filters that can match a message of it."""
    lookup = Lookup(options)
    facts = lookup.facts()
    lookup.subjects = fitting = lookup.fitting(facts)
    if bool(fitting) != bool(options.subjects):
        return None, fitting  # no filter can match a message of it
    one = _found(options, narrowed, lookup, facts)
    if one is not None and not _keeps_filters(lookup, facts, narrowed):
        one = None
    return one, fitting


def _keeps_filters(lookup: Lookup, facts: StreamFacts, narrowed: Narrowed) -> bool:
    """Drop filters that Spark pushed down and no message can match; False if none of them is left."""
    lookup.subjects = lookup.fitting(facts)
    return bool(lookup.subjects) == bool(narrowed.subjects)


def _names(options: SourceOptions) -> tuple[str, ...]:
    pattern = options.stream_pattern
    names = options.streams if pattern is None else matching_names(options)
    if not names:
        raise ConfigError(f"option 'streamPattern' is {pattern!r}, which matches no stream: correct it")
    return names


def _found(options: SourceOptions, narrowed: Narrowed, lookup: Lookup, facts: StreamFacts) -> _Found | None:
    """What is read of a stream; None: nothing."""
    read_mode = lookup.read_mode(facts)
    first, last = _first(options, lookup, facts), _last(options, lookup, facts)
    if options.start.kind == "sequence":
        lost = lost_head(first, last, facts, 'start="first"' if options.start.argument else None)
        if lost is not None and (not lookup.is_lost(facts, None) or not lookup.accept(lost)):
            first = max(first, facts.first_seq)
    first, last = max(first, narrowed.first), min(last, narrowed.last)
    if narrowed.since is not None:
        first = max(first, lookup.sequence_at(narrowed.since, facts))
    if narrowed.nothing or last < first:
        return None
    lookup.subjects = narrowed.subjects
    return _Found(lookup, facts, read_mode, SequenceRange(first, last))


def _tasks(options: SourceOptions, found: _Found) -> list[LogPartition]:
    parts = cut(found.lookup, options, found.whole, found.facts)
    return plan(parts, found.lookup, found.facts, found.read_mode)


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


def _not_beyond(name: str, given: int, most: int, options: SourceOptions, facts: StreamFacts) -> None:
    """Raise `ConfigError` for a sequence after the end of the stream, instead of silently reading less."""
    if given > most and options.fail_on_data_loss:
        raise ConfigError(
            f"{name} is {given}, but stream {facts.name!r} ends at sequence {facts.last_seq}: give a smaller "
            "one, or 'failOnDataLoss' = 'false' to read the messages that exist"
        )
