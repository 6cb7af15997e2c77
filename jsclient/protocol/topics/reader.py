"""The push-pull reader, which returns every record after a position once and in order, even if pushes are lost.

A push is only a hint. A pushed record is accepted if it directly follows the last record. If it doesn't, it is a
duplicate, or a record before it is missing. Missing records are read from the history, at once or when the quiet timer
expires. Pushes may therefore be lost, repeated and reordered, and a reader works even without any.

`Reader` has one bounded queue. Records enter the queue through `Reader.offer` (pushes) and `Reader.page` (history),
which return commands for the runtime. Records leave it through `Reader.take_records`. When the queue is full, pushes
are discarded and read from the history later, so that a slow reader never makes a server wait.

Source: P3Sub, "Subscriber implementation notes" and "About temporary unavailability of the subscriber".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from ...errors import HistoryTruncatedError, JetStreamError, PositionInvalidError
from .links import Link, LinkTracker, MissingRule, Skipped, Verdict
from .position import EndCheck, Extent, Position
from .quiet_timer import QuietTimer
from .record import Aside, Record, RecordQueue

__all__ = ["AskHistory", "Cancel", "Command", "Reader", "Subscribe"]


class AskHistory(msgspec.Struct, frozen=True):
    """Read stored records after a sequence, in order, up to these limits."""

    since: int
    limit: int  # maximum number of records
    max_bytes: int


class Subscribe(msgspec.Struct, frozen=True):
    """Open a feed with this id for the records after a sequence."""

    id: str
    since: int


class Cancel(msgspec.Struct, frozen=True):
    """Close the feed with this id. If that fails, records that still arrive under the id are rejected."""

    id: str


_RECHECK: Final = 1.0  # seconds until the extent is requested again if the position may be invalid
_OUT_OF_ORDER_SHARE: Final = 8  # records out of order may use an eighth of the queue's capacity


Command: TypeAlias = AskHistory | Subscribe | Cancel | Skipped
"""A command for the runtime.

`AskHistory` is answered with `Reader.page`, `Subscribe` with `Reader.subscribed` or `Reader.feed_lost`.
"""


@dataclass(slots=True)
class Reader:
    """One reader of one topic. Times are monotonic seconds.

    Attributes:
        start: The position after which it reads. The caller has checked it, see `jsclient.kits.Extent.check`.
        name: Prefix of its subscription ids, unique among readers.
        push: Whether it uses pushes. If not, it reads the history whenever the quiet timer expires.
        replays: Whether a new subscription first sends the stored records after its start (a consumer does, a
            republished subject does not). If not, the history is read once the subscription exists.
        missing: The rule that decides whether a gap in the history is a loss. If links are per subject, only records of
            a subject are in order, and ``position`` advances only with the history, so that records may be repeated
            after a restart.
        catch_up: Whether a gap is read from the history at once, or at the next timer as in P3Sub.
        ends: Whether the record that ends a topic ends this reader. It never does for several subjects.
        max_pending, max_pending_bytes: Capacity of the queue. An empty queue accepts a record of any size.
        rejected: Number of pushes received so far under an old id.
        repeated: Number of duplicates so far.
        discarded: Number of pushes discarded so far because of a gap or a full queue.
        error: The error to raise when the queue is empty.
        ended: True if the queue contains the last records, because the topic has ended or the reader was closed.
        id: The id of the current subscription, ``<name>-1``, ``<name>-2`` …, or None if it is not subscribed.
        is_subscribed: Whether the current subscription is known to exist.
    """

    start: Position
    name: str
    quiet: QuietTimer = field(default_factory=QuietTimer)
    push: bool = True
    replays: bool = True
    missing: MissingRule = field(default_factory=MissingRule)
    catch_up: Literal["at once", "timer"] = "at once"
    ends: bool = True
    max_pending: InitVar[int] = 10_000
    max_pending_bytes: InitVar[int] = 64 * 1024 * 1024
    rejected: int = 0
    repeated: int = 0
    discarded: int = 0
    error: JetStreamError | None = None
    ended: bool = False
    id: str | None = None
    is_subscribed: bool = False
    _count: int = 0  # number of subscriptions so far
    _links: LinkTracker = field(init=False)
    _queue: RecordQueue = field(init=False)
    _out_of_order: Aside = field(init=False)
    _renew: bool = False  # true if the reader must subscribe again once the history has been read
    _added_at: float = 0.0
    _hint: int = 0  # a later sequence that is known to exist, although records before it are missing
    _newest_ns: int = 0  # the latest time stamp of a record, 0 if unknown
    _recheck: bool = False  # true if the stream may have been recreated, so its extent must be requested
    _end_check: EndCheck = field(default_factory=EndCheck)
    # The arguments and the result of the last call of `MissingRule.run_length`: a page, the floor, and the length of
    # the run.
    _checked_run: tuple[Sequence[Record], int, int] = ((), 0, 0)
    # True if a record didn't fit in the queue. The record must be requested again once there is capacity.
    _full: bool = False
    # A round of requests reads the history to its end, one request at a time.
    request_needed: bool = False  # true if the history must be requested again
    _in_flight: AskHistory | None = None  # the request in flight
    _by_timer: bool = False  # true if the timer started the round
    _new_records: int = 0  # number of new records in this round
    _advanced: bool = False  # true if this round has moved the floor
    # True if a gap was noticed after the request was sent. The answer may then be older than the gap.
    _late: bool = False

    def __post_init__(self, max_pending: int, max_pending_bytes: int) -> None:
        self._links = LinkTracker(self.start.seq, self.missing.by_subject)
        self._queue = RecordQueue(max_pending, max_pending_bytes, self.start.seq, self.start.time_ns)
        self._out_of_order = Aside(
            max_pending // _OUT_OF_ORDER_SHARE, max_pending_bytes // _OUT_OF_ORDER_SHARE
        )
        self._newest_ns = self.start.time_ns
        # With several subjects, the last record of one subject doesn't end the reader.
        self.ends = self.ends and not self.missing.by_subject

    @property
    def position(self) -> Position:
        """The position after the last record taken. A reader needs only this state to resume."""
        queue = self._queue
        return self.start.at(queue.kept if queue else self._links.floor, queue.kept_time_ns)

    @property
    def progress(self) -> int:
        """A number that grows with each new record, and when a part of the history without records was read."""
        return self._links.floor + self._newest_ns

    @property
    def pending(self) -> int:
        """The number of records in the queue."""
        return len(self._queue)

    @property
    def deadline(self) -> float:
        """The time to call ``tick``, in monotonic seconds. It is infinite if no call is needed now."""
        if self._stopped or self._full or self._in_flight is not None:
            return math.inf
        period = self.quiet.period
        return self._added_at + (min(period, _RECHECK) if self._end_check.since is not None else period)

    @property
    def _stopped(self) -> bool:
        return self.ended or self.error is not None

    def begin_reading(self, now: float) -> list[Command]:
        """Start to read: subscribe, or request the history."""
        self._added_at = now
        return self._subscribe() if self.push else self._request_history()

    def set_push(self, now: float, *, push: bool) -> list[Command]:
        """Switch pushes on or off without losing or repeating a record."""
        if push == self.push or self._stopped:
            return []
        self.push, self._renew, self._added_at = push, False, now
        return self._subscribe() if push else self._cancel()

    def close(self) -> list[Command]:
        """End the reader. Records in the queue can still be taken."""
        self.ended = True
        return self._cancel()

    def fail_reading(self, error: JetStreamError) -> list[Command]:
        """End the reader with an error, after the records in the queue."""
        if not self._stopped:
            self.error = error
        return self._cancel()

    def _subscribe(self) -> list[Command]:
        commands = self._cancel()
        self._renew = False
        self._count += 1
        self.id = f"{self.name}-{self._count}"
        return [*commands, Subscribe(self.id, self._links.floor)]

    def _cancel(self) -> list[Command]:
        if self._stopped:
            self._in_flight = None
            self._out_of_order.take_all()
        commands: list[Command] = [] if self.id is None else [Cancel(self.id)]
        self.id, self.is_subscribed = None, False
        return commands

    def subscribed(self, id: str, now: float) -> list[Command]:
        """Record that the subscription exists. Records stored from now on are pushed under the id."""
        if id != self.id:
            return [Cancel(id)]
        self.is_subscribed, self._added_at = True, now
        return [] if self.replays else self._request_history()

    def feed_lost(self, id: str, now: float) -> list[Command]:
        """Record that the subscription ended or may have missed a record, for example after a disconnect.

        The reader reads the history and then replaces the subscription. If the subscription never existed, it does so
        when the timer next expires.
        """
        if id != self.id:
            return []
        was_subscribed = self.is_subscribed
        commands = self._cancel()
        self._renew, self._added_at, self._recheck = True, now, True
        return commands + self._request_history() if was_subscribed else commands

    def offer(self, id: str, records: Sequence[Record], now: float) -> list[Command]:
        """Add records that were pushed under a subscription's id. Without records, request the history."""
        if id != self.id or self._stopped:
            self.rejected += len(records)
            return []
        if not records:
            return self._request_history()
        was_rechecking = self._recheck
        for record in self._push_all(records, now):
            # A record before this one is missing. If the gap is filled from the history at once, keep this record.
            if self.catch_up != "at once" or not self._out_of_order.add_record(record):
                self.discarded += 1
            self._hint = max(self._hint, record.seq)
            self._late = True
        if self.ended:
            return self._cancel()
        if self._recheck and not was_rechecking and self.is_subscribed:
            # The stream may have been recreated, and the consumer of the subscription may be gone. So subscribe again.
            return self.feed_lost(id, now)
        late = self._hint > self._links.floor and self._in_flight is None
        return self._request_history() if late and self.catch_up == "at once" else []

    def _add_run(self, records: Sequence[Record], extent: Extent | None, now: float) -> Sequence[Record]:
        """Add the records that directly follow each other.

        Return the remaining records, or none if the topic has ended.
        """
        links = self._links
        if links.beyond:
            # Some records beyond the floor have already been accepted, so check each record separately.
            count = 0
        elif extent is None and self._checked_run[0] is records and self._checked_run[1] == links.floor:
            count, self._checked_run = self._checked_run[2], ((), 0, 0)  # computed by `needs_extent`
        else:
            count = self.missing.run_length(records, links.floor, extent)
        if not count or not self._queue.extend(records[:count]):
            return records
        last = records[count - 1]
        links.caught_up(last.seq)
        self._added_at = now
        self._newest_ns = max(self._newest_ns, last.time_ns)
        self.ended = last.is_last and self.ends
        return [] if self.ended else records[count:]

    def _push_all(self, records: Sequence[Record], now: float) -> list[Record]:
        """Add the records that directly follow, until the topic ends. Return the records that do not follow."""
        others: list[Record] = []
        # Adding a run only saves time for several records. After a gap, each record must be checked separately.
        is_run = len(records) > 1 and self._hint <= self._links.floor
        remainder = self._add_run(records, None, now) if is_run else records
        for record in remainder:
            if not self._push(record, now):
                others.append(record)
            elif self.ended:
                break
        return others

    def _push(self, record: Record, now: float) -> bool:
        """Add a record if it directly follows. Return False if a record before it is missing."""
        links, queue = self._links, self._queue
        if not queue.has_room(record):
            if links.had(record.seq, record.subject):
                self.repeated += 1
            else:
                self.discarded += 1  # the record is read from the history once the queue has capacity
                self._full = self.request_needed = True
                self._hint = max(self._hint, record.seq)
            return True
        # A record is known to be missing. If a limit has removed the missing record from the stream since, no link
        # refers to it, and this record would wrongly seem to be the next one.
        if (
            self._hint > links.floor
            and record.seq > links.floor + 1
            and not links.had(record.seq, record.subject)
        ):
            return False
        offer = links.offer(record.seq, record.previous, record.subject)
        if offer is Link.ACCEPT:
            self._add(record, links.floor, now)
        elif offer is Link.DUPLICATE:
            self.repeated += 1
            if 0 < self._newest_ns < record.time_ns:
                # The newest record has an old sequence, so the stream may have been recreated.
                self._recheck = True
        else:
            return False
        return True

    def _add(self, record: Record, floor: int, now: float) -> None:
        self._queue.add_record(record, floor)
        self._newest_ns = max(self._newest_ns, record.time_ns)
        self.ended = record.is_last and self.ends
        if floor == record.seq:  # with a lower floor, a record of another subject may be missing
            self._added_at = now

    def _request_history(self) -> list[Command]:
        """Request the history, now or when the queue has capacity."""
        self.request_needed = True
        return self.next_request()

    def next_request(self) -> list[Command]:
        """Return the next request for the history, if one is needed and possible now."""
        if not self.request_needed or self._in_flight is not None or self._stopped or self._full:
            return []
        if not self._queue.is_half_empty:
            self._full = True
            return []
        self.request_needed = self._late = False
        self._in_flight = AskHistory(self._links.floor, *self._queue.room)
        return [self._in_flight]

    def needs_extent(self, records: Sequence[Record]) -> bool:
        """Return whether `page` needs the extent, because the page is empty or a record may be missing."""
        if not records or self._recheck:
            return True
        floor = self._links.floor
        count = self.missing.run_length(records, floor, None)
        self._checked_run = (records, floor, count)
        return count < len(records) and self.missing.needs_extent(records, floor, count)

    def page(
        self,
        asked: AskHistory,
        records: Sequence[Record],
        now: float,
        *,
        more: bool = False,
        extent: Extent | None = None,
        up_to: int = 0,
    ) -> list[Command]:
        """Process the answer to a request. It is ignored unless the request is in flight.

        Args:
            asked: The request that is answered.
            records: The records, in order. Records up to the sequence requested are skipped.
            now: Monotonic seconds.
            more: Whether more records follow.
            extent: The extent of the stream, requested *after* the records were read. See `needs_extent`. None if it
                is unavailable. Records that may be missing then count as missing.
            up_to: If no more records follow, the sequence up to which the history is complete, 0 if unknown. The
                server that sent the records must report it before it sends them, since a replica may lag.
        """
        if asked is not self._in_flight:
            return []
        self._in_flight = None
        if extent is not None:
            try:
                # Check the sequence that was requested, not the current one. Pushes that arrived after the server sent
                # this answer may have moved the reader past the end that the answer reports.
                certain = self._end_check.check_position(extent, self.start.at(asked.since), now)
            except PositionInvalidError as error:
                return self.fail_reading(error)
            if not certain:
                # Check again after a while (see `deadline`), because a lagging replica may have sent this answer.
                self._added_at = now
                return []
            self._recheck = False
        commands: list[Command] = []
        complete = self._add_page(records, extent, now, commands)
        if self._stopped:
            return commands
        if not complete or (more and records):
            return commands + self._request_history()
        floor = self._links.floor
        if self._passes(self.missing.at_end(up_to, floor, extent), up_to + 1, commands):
            self._links.caught_up(up_to)
            self._end_round(now, commands)
        return commands

    def _add_page(
        self, records: Sequence[Record], extent: Extent | None, now: float, commands: list[Command]
    ) -> bool:
        """Add the new records of a page. Return False if some did not fit, or the reader has stopped."""
        links = self._links
        remainder = self._add_run(records, extent, now)
        self._new_records += len(records) - len(remainder)
        self._advanced |= len(records) > len(remainder)
        for record in remainder:
            if record.seq <= links.floor:
                continue
            # A push may have added the record while the request was in flight.
            is_new = not links.had(record.seq, record.subject)
            if is_new and not self._queue.has_room(record):
                self._full = True
                return False
            if not self._passes(self.missing.before(record, links.floor, extent), record.seq, commands):
                return False
            if is_new:
                self._add(record, record.seq, now)
            links.caught_up(record.seq)
            self._new_records += is_new
            self._advanced = True
            if self.ended:
                break
        if self.ended:
            commands += self._cancel()
        return not self.ended

    def _passes(self, verdict: Verdict, before: int, commands: list[Command]) -> bool:
        """Return whether the reader may continue despite missing records. If not, the reader fails."""
        floor = self._links.floor
        if verdict == "lost":
            commands += self.fail_reading(HistoryTruncatedError(before, floor + 1, self.start.stream))
            return False
        if verdict == "skipped":
            commands.append(Skipped(floor, before))
        return True

    def _end_round(self, now: float, commands: list[Command]) -> None:
        new_records, advanced, by_timer = self._new_records, self._advanced, self._by_timer
        self._new_records, self._advanced, self._by_timer = 0, False, False
        self._added_at = now
        hint, self._hint = self._hint, 0
        self.discarded += len(self._push_all(self._out_of_order.take_all(), now))
        if self.ended:
            commands += self._cancel()
            return
        if new_records:
            self.quiet.page_had_records()
        elif by_timer:
            self.quiet.page_was_empty()
        if self.push and (self._renew or (by_timer and new_records)):
            # The timer found records that were never pushed, so the subscription must be broken.
            commands += self._subscribe()
        if hint > self._links.floor and self.catch_up == "at once":
            # If this round made no progress, the replica is lagging. Leave the gap to the timer, because requests in a
            # loop would only load the replica.
            self.request_needed |= advanced or self._late
        commands += self.next_request()

    def interrupted(self) -> None:
        """Record that a request for the history failed and is repeated, or the connection was lost."""
        self._end_check.interrupted()

    def tick(self, now: float) -> list[Command]:
        """Request the history if the quiet timer has expired, which means that no record was added for a while."""
        if now < self.deadline:
            return []
        self._by_timer = self._recheck = True
        return self._request_history()

    def take_records(self, limit: int = 1) -> tuple[list[Record], list[Command]]:
        """Take up to ``limit`` records, in order. If there are none, ``error`` and ``ended`` give the reason."""
        taken = self._queue.take_records(limit)
        return taken, self.taken() if self.request_needed else []

    @property
    def take_one(self) -> Callable[[], Record | None]:
        """The function that takes the next record, for an ``async for``. It returns None if there is none.

        Call `taken` afterwards if ``request_needed`` is set, as it always is after the queue was full.
        """
        return self._queue.take_one

    def taken(self) -> list[Command]:
        """Return the request for the history that waited for capacity, if the queue has capacity now."""
        if self._full and self._queue.is_half_empty:
            self._full = False
        return self.next_request()
