"""Plan a query's batches for one stream: the messages ahead, the end of a batch, and its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ...tables.lookup import Lookup
from ...tables.offsets import (
    LogOffset,
    StreamFacts,
    another_stream,
    check_not_future,
    cut_short,
    lost_head,
    nothing_fits,
    other_messages,
)
from ...tables.ranges import SequenceRange, admit
from ...tables.source_options import SourceOptions
from ...tables.tasks import LogPartition, cut, plan
from .pace import Pace
from .sizes import Sizes

__all__ = ["Ahead", "StreamPlanner"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_STEPS_BY_CONSUMER = 6  # maximum number of counts, each of which needs a consumer


@dataclass(frozen=True, slots=True)
class Ahead:
    """The messages after an offset, which the next batches read."""

    after: int  # no message up to this sequence remains to be read
    last: int  # the last sequence to read
    facts: StreamFacts
    free: int = 0  # no message of the batch up to here matches, see `LogOffset.free`

    @property
    def width(self) -> int:
        """Number of sequences, which is the maximum number of messages."""
        return self.last - self.after


class StreamPlanner:
    """Planner for the part of a query's batches that reads one stream. Used on the driver.

    Args:
        options: Options with the name of one stream.
        lookup: Answers requests about the stream. By default it is created from the options.
        ensure: A function that is called once with the facts, before the first batch is planned.
        pace: Limits the rate of requests for the end of the stream.

    Attributes:
        lookup: Answers requests about the stream.
    """

    def __init__(
        self,
        options: SourceOptions,
        lookup: Lookup | None = None,
        ensure: Callable[[StreamFacts], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.lookup: Lookup = lookup or Lookup(options)
        self._options = options
        self._ensure = ensure
        self._head = Head(self.lookup, pace or Pace(options.poll_interval))
        self._target: int | None = None  # last sequence of an AvailableNow query
        self._read_mode: str | None = None  # the read mode that was chosen by the last check of the stream
        self._checked_for: tuple[str, ...] = ()  # the filters at the last check of the stream
        # The last marks of an offset and of the stream that passed the comparison, which needn't be repeated.
        self._compared: object = None
        self._losses = Losses()
        self._sizes = Sizes()

    @property
    def facts(self) -> StreamFacts:
        """The facts of the last lookup. The first access looks up the stream."""
        return self._head.facts or self._head.refresh_facts()

    def check_facts(self, facts: StreamFacts) -> None:
        """Check whether the options fit the stream, once and whenever the filters change.

        Raises:
            ConfigError: The stream cannot be read with these options.
        """
        lookup = self.lookup
        if lookup.fits and (self._read_mode is None or self._checked_for != lookup.subjects):
            if self._ensure is not None and self._read_mode is None:
                self._ensure(facts)
            self._read_mode, self._checked_for = lookup.read_mode(facts), lookup.subjects

    def start_offset(self) -> LogOffset:
        """Return the offset at which a new query starts."""
        facts = self.facts
        self.check_facts(facts)
        if not self.lookup.fits:
            return _idle(facts, init=True)
        start = _start(self._options, self.lookup, facts)
        return LogOffset(start, facts.created, init=True, mark=facts.mark)

    def beginning(self) -> LogOffset:
        """Return the offset before the first message of the stream."""
        facts = self.facts
        self.check_facts(facts)
        if not self.lookup.fits:
            return _idle(facts, init=True)
        return LogOffset(facts.first_seq - 1, facts.created, init=True, mark=facts.mark)

    def hold_end(self) -> None:
        """Limit the read to the current end of the stream."""
        self.check_facts(self.facts)
        self._target = self._head.last

    @property
    def is_held(self) -> bool:
        """Whether `hold_end` was called."""
        return self._target is not None

    def is_read(self, checkpoint: LogOffset) -> bool:
        """Return True if the last lookup found no matching message after the offset."""
        return self._head.last <= checkpoint.seq

    def ahead(self, checkpoint: LogOffset, *, look: bool) -> Ahead | LogOffset:
        """Return the messages after an offset, or the offset at which an empty batch ends.

        The query has processed all messages up to ``checkpoint``, which is returned if nothing has changed. With
        ``look``, the end of the stream is refreshed, after a sleep if the last refresh was less than the poll interval
        ago. Otherwise the end is refreshed only if that takes no sleep. It is never refreshed after `hold_end`.
        """
        head = self._head
        facts = self.facts
        if self._target is None and (look or head.is_due):
            facts = head.refresh_facts()
            self._done(checkpoint.seq, facts)
        self.check_facts(facts)
        self._sizes.note(facts)
        if checkpoint.idle and not self.lookup.fits:
            head.nothing_after(checkpoint.seq)
            stays = (
                checkpoint.created == facts.created
                and facts.first_seq - 1 <= checkpoint.seq <= facts.last_seq
            )
            return checkpoint if stays else _idle(facts)
        begin = self._valid(checkpoint, facts)
        if begin is not checkpoint and begin.created == checkpoint.created:
            return begin
        last = head.last if self._target is None else self._target
        if last <= begin.seq:
            head.nothing_after(begin.seq)
        free = head.free_after(begin.seq)
        if last <= begin.seq:
            if begin.seq + 1 < facts.first_seq <= free + 1 and not begin.init and self._target is None:
                # Messages after the offset have expired, but none of them matched a filter. Advance with an empty
                # batch, so that the query doesn't report them as lost later.
                return LogOffset(free, facts.created, free=free, mark=facts.mark)
            return checkpoint
        if free > begin.seq:
            # A new leader may have lagged when it reported no match, so check again.
            free = max(begin.seq, min(free, self.lookup.next_matching(begin.seq + 1) - 1))
        return Ahead(free, last, facts, free if free > begin.seq else 0)

    def rows(self, ahead: Ahead) -> int:
        """Return the number of matching messages ahead.

        The number is too high if messages are stored between the two requests.
        """
        facts, lookup = ahead.facts, self.lookup
        if not lookup.subjects and not facts.gaps:
            return ahead.last - max(ahead.after, facts.first_seq - 1)
        beyond = lookup.rest(ahead.last + 1, facts)
        return max(0, lookup.rest(ahead.after + 1, facts) - beyond)

    def batch_end(
        self, ahead: Ahead, most: int | None, pieces: int | None = None, *, size: int | None = None
    ) -> LogOffset:
        """Return the end of a batch, which records the division into tasks.

        Args:
            ahead: The messages ahead, as returned by `ahead`.
            most: Maximum number of rows, or None for no limit.
            pieces: Minimum number of tasks. The default is the number in the options.
            size: Maximum number of bytes, or None for no limit. A single message may exceed it.
        """
        facts = ahead.facts
        end = self._admitted(SequenceRange(ahead.after + 1, ahead.last), most, facts)
        if size is not None:
            end = self._within(SequenceRange(ahead.after + 1, end), size, facts)
        whole = SequenceRange(ahead.after + 1, end)
        options = self._options if pieces is None else replace(self._options, min_partitions=pieces)
        remaining = whole.clipped(facts.first_seq, end) or whole
        parts = cut(self.lookup, options, remaining, facts, self._read_mode or "auto")
        cuts = tuple(part.first for part in parts)
        return LogOffset(end, facts.created, free=ahead.free, cuts=cuts, mark=facts.mark)

    def report_progress(self) -> dict[str, Any] | None:
        """Return the last known end of the stream and the losses so far, or None before the first lookup.

        Sends no request.
        """
        facts = self._head.facts
        if facts is None:
            return None
        return LogOffset(self._head.last, facts.created).to_json() | self._losses.to_json()

    def partitions(self, begin: LogOffset, stop: LogOffset) -> list[LogPartition]:
        """Return the tasks of the batch between two offsets, divided as recorded in ``stop``."""
        at_start = begin.init and bool(stop.cuts)
        if stop.is_start or ((begin.seq, begin.created) == (stop.seq, stop.created) and not at_start):
            return []
        lookup = self.lookup
        facts = lookup.polled_facts()
        self.check_facts(facts)
        self._done(begin.seq, facts)
        parts = stop.parts
        if not lookup.accept(another_stream(stop, facts)):
            return self._planned(parts, facts, None)
        lookup.accept(None if begin.idle else another_stream(begin, facts))
        before = begin.seq if begin.created == stop.created else (*stop.cuts, facts.first_seq)[0] - 1
        if at_start:
            # After a failed first batch, Spark requests the start again, and the start may have moved since. Use the
            # recorded beginning of the batch.
            before = min(before, stop.cuts[0] - 1)
        first = max(before, stop.free) + 1
        if first > stop.seq:
            return []
        last, since = stop.seq, begin.since if begin.created == stop.created else None
        facts = lookup.confirm_end(facts, stop)
        if not self._continues(stop, facts):
            last = self._common(stop, facts)
            if last < first:
                return self._planned(parts, facts, None)
        self._removed(first, last, facts, since)
        remaining = SequenceRange(first, last).clipped(facts.first_seq, facts.last_seq)
        if remaining is not None and not lookup.fits:
            lookup.accept(nothing_fits(remaining, facts))
            parts, remaining = parts or [remaining], None
        if not parts and remaining is not None:  # the offset is from a release that did not record the cuts
            parts = cut(lookup, self._options, remaining, facts, self._read_mode or "auto")
        return self._planned(parts, facts, remaining, since)

    def _done(self, seq: int, facts: StreamFacts) -> None:
        """Count the messages that were lost while the batch up to ``seq`` ran."""
        gone = self._losses.done(seq, facts)
        if gone is not None and self.lookup.is_lost(facts, self._losses.since):
            self._losses.expired(gone, facts.name)

    def _removed(self, first: int, last: int, facts: StreamFacts, since: datetime | None) -> None:
        """Handle messages that were removed from a range before its batch was planned.

        For lost messages, the error is raised, or logged and counted. Superseded messages are only counted.
        """
        lost, gone = lost_head(first, last, facts), min(last, facts.first_seq - 1)
        if lost is None:
            return
        if not self.lookup.is_lost(facts, since):
            self._losses.superseded(first, gone)
        elif not self.lookup.accept(lost):
            self._losses.before(first, gone)

    def _planned(
        self,
        parts: Sequence[SequenceRange],
        facts: StreamFacts,
        remaining: SequenceRange | None,
        since: datetime | None = None,
    ) -> list[LogPartition]:
        """Return the tasks of a batch, of which the stream still has the range ``remaining``.

        A task without remaining messages is kept as an empty task, so that the other tasks keep their numbers.
        """
        self._losses.planned, self._losses.since = remaining, since
        clipped = [remaining and part.clipped(remaining.first, remaining.last) for part in parts]
        return plan(clipped, self.lookup, facts, self._read_mode or "auto", since)

    def _admitted(self, whole: SequenceRange, most: int | None, facts: StreamFacts) -> int:
        """Return the last sequence of a batch with at most ``most`` messages."""
        lookup = self.lookup
        if most is None or whole.width <= most:
            return whole.last
        if not lookup.subjects and not facts.gaps:
            # Don't count messages that were removed at the head of the stream. Otherwise, a compacted stream would get
            # empty batches.
            return min(whole.last, max(whole.first, facts.first_seq) + most - 1)
        # Count the later messages first, so that a message stored in the meantime cannot make the result too low.
        after = lookup.rest(whole.last + 1, facts)
        rest = lookup.rest(whole.first, facts)
        steps = {} if lookup.counts_cheaply(facts) else {"steps": _STEPS_BY_CONSUMER}
        return lookup.drive(admit(whole, rest, after, most, **steps), facts)

    def _within(self, whole: SequenceRange, most: int, facts: StreamFacts) -> int:
        """Return the last sequence of a batch with at most ``most`` bytes, or with a single message that has more.

        Sizes that cannot be measured are estimated from the mean size of a message.
        """
        sizes, subjects = self._sizes, self.lookup.subjects
        if sizes.fit(whole, most, facts):
            return whole.last
        if self._read_mode == "direct":  # only a consumer can report sizes
            return self._admitted(whole, max(1, most // facts.mean_bytes), facts)
        found = self.lookup.run(lambda stream: sizes.measure(stream, whole, most, facts, subjects))
        if found.is_end or found.last >= whole.last:
            return found.last
        more = (most - found.bytes) // max(found.mean_bytes, facts.mean_bytes)
        rest = SequenceRange(found.last + 1, whole.last)
        return self._admitted(rest, more, facts) if more > 0 else found.last

    def _valid(self, begin: LogOffset, facts: StreamFacts) -> LogOffset:
        """Return the offset from which to continue.

        This is ``begin``, unless it is idle, or the stream was recreated or restored from a backup. The errors for
        these changes are raised or logged, as `LossPolicy` decides.
        """
        lookup = self.lookup
        if begin.created != facts.created and (begin.idle or not lookup.accept(another_stream(begin, facts))):
            return LogOffset(facts.first_seq - 1, facts.created)
        if begin.idle:
            begin = LogOffset(begin.seq, begin.created, mark=begin.mark)
        facts = lookup.confirm_end(facts, begin)
        if not lookup.accept(another_stream(begin, facts)):
            return LogOffset(facts.last_seq, facts.created)
        if self._continues(begin, facts):
            return begin
        self._sizes.forget()
        return LogOffset(self._common(begin, facts), facts.created, mark=facts.mark)

    def _continues(self, offset: LogOffset, facts: StreamFacts) -> bool:
        """Return whether the stream still has the messages that the query has seen, apart from removed messages.

        After a restore from a backup, the stream may end before them, or have other messages in their place. Then the
        error is raised, or it is logged and the result is False, see `LossPolicy`. Takes a request if messages were
        added since the last call.
        """
        if not self.lookup.accept(cut_short(offset, facts)):
            return False
        mark = offset.mark
        if mark is None or mark == facts.mark or (mark, facts.mark) == self._compared:
            return True
        stored = self.lookup.stored_at(mark.seq)
        self._head.asked()
        if stored is not None and not self.lookup.accept(other_messages(mark, stored, facts.name)):
            return False
        self._compared = (mark, facts.mark)
        return True

    def _common(self, offset: LogOffset, facts: StreamFacts) -> int:
        """Return the last sequence, at most the offset's, that a restored stream has from its backup.

        The messages that the stream stored after it was restored are younger than the mark of the offset.
        """
        common = min(offset.seq, facts.last_seq)
        if offset.mark is None:
            return common
        return min(common, self.lookup.sequence_at(offset.mark.following, facts) - 1)


def _idle(facts: StreamFacts, *, init: bool = False) -> LogOffset:
    """Return the offset at the end of a stream that has no message a filter can match."""
    last = facts.last_seq
    return LogOffset(last, facts.created, init=init, free=last, idle=True, mark=facts.mark)


def _start(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    """Return the sequence before the first message that a new query reads."""
    start = options.start
    if start.kind == "sequence":
        return start.sequence - 1
    if start.kind == "time":
        check_not_future(start, facts)
        return max(lookup.sequence_at(start.time, facts), facts.first_seq) - 1
    return facts.last_seq if start.kind == "latest" else facts.first_seq - 1


class Losses:
    """Counts of the messages that a query without ``failOnDataLoss`` may have missed.

    Each sequence counts as a message.

    Attributes:
        planned: The range that the stream still had of the current batch when the batch was planned, or None.
        since: The time after which the messages of the batch were stored, or None if unknown.
    """

    def __init__(self) -> None:
        self.planned: SequenceRange | None = None
        self.since: datetime | None = None
        self._counted = 0  # sequence up to which losses were counted
        self._lost = 0  # messages removed before their batch was planned
        self._superseded = 0  # messages superseded, or expired by themselves, before their batch was planned
        self._expired = 0  # messages removed while their batch ran. Tasks may have read some of them

    def before(self, first: int, last: int) -> None:
        """Count the messages of a range that were removed before their batch was planned, each once."""
        self._lost += self._new(first, last)

    def superseded(self, first: int, last: int) -> None:
        """Count the messages of a range that were superseded before their batch was planned, each once."""
        self._superseded += self._new(first, last)

    def _new(self, first: int, last: int) -> int:
        new = max(0, last - max(first, self._counted + 1) + 1)
        self._counted = max(self._counted, last)
        return new

    def done(self, seq: int, facts: StreamFacts) -> SequenceRange | None:
        """Return the range that was removed while the batch up to ``seq`` ran, or None.

        Only the first call for a batch returns a range.
        """
        planned = self.planned
        if planned is None or planned.last > seq:
            return None
        self.planned = None
        return planned.clipped(1, facts.first_seq - 1)

    def expired(self, gone: SequenceRange, name: str) -> None:
        """Count the messages that were lost while a batch ran, and log a warning."""
        self._expired += gone.width
        log.warning(
            "%d messages of stream %r were removed while the batch that reads them ran; tasks have logged how many "
            "they missed. Keep messages longer",
            gone.width,
            name,
        )

    def to_json(self) -> dict[str, int]:
        """Return the counts that are above 0."""
        counts = {"lost": self._lost, "expired": self._expired, "superseded": self._superseded}
        return {name: count for name, count in counts.items() if count}


class Head:
    """The cached end of a stream, refreshed at a limited rate.

    The offset of a query with filters stays at the last matching message while other messages are stored and expire.
    This class remembers up to which sequence no message matched, so that their expiry is not reported as data loss.

    Args:
        lookup: Answers requests about the stream.
        pace: Limits the rate of the requests.
    """

    def __init__(self, lookup: Lookup, pace: Pace) -> None:
        self._lookup = lookup
        self._pace = pace
        self.facts: StreamFacts | None = None
        self.last: int = 0  # sequence of the last matching message
        # The state of the stream and the filters for which `last` was looked up. If they change, look it up again.
        self._facts_key: object = None
        self._seen_free = (0, 0)  # no message after the first of these sequences and up to the second matches

    def refresh_facts(self) -> StreamFacts:
        """Refresh and return the facts. Sleeps until the pace allows a request."""
        self._pace.wait_until_due()
        lookup = self._lookup
        before, facts = self.facts, lookup.facts() if self.facts is None else lookup.polled_facts()
        asked = 0 if lookup.was_listed else 1
        facts_key = (facts.last_seq, facts.created, lookup.subjects, lookup.fits)
        if not lookup.subjects:
            self.last = facts.last_seq
        elif self._facts_key != facts_key:
            self.last = lookup.last_matching() if lookup.fits else 0
            asked += len(lookup.subjects) if lookup.fits else 0
            # If a message was stored between the two requests, request facts that include it.
            if self.last > facts.last_seq:
                facts = lookup.facts()
                asked += 1
        self._facts_key = facts_key
        if before is not None and before.created != facts.created:
            self._seen_free = (0, 0)  # the sequences belong to the previous stream
        self.facts = facts
        self._pace.asked(asked)
        return facts

    def asked(self) -> None:
        """Count a request that another object sent."""
        self._pace.asked(1)

    @property
    def is_due(self) -> bool:
        """Whether `refresh_facts` would request the facts without sleeping."""
        return self._pace.is_due

    def nothing_after(self, seq: int) -> None:
        """Remember that no message after ``seq`` matched at the last refresh."""
        assert self.facts is not None
        floor = self.free_after(seq)
        if self._lookup.subjects and self.facts.first_seq <= floor + 1:
            self._seen_free = (seq, max(floor, self.facts.last_seq))

    def free_after(self, seq: int) -> int:
        """Return the last sequence up to which no message after ``seq`` has matched, or ``seq`` if unknown."""
        start, end = self._seen_free
        return max(seq, end) if start == seq else seq
