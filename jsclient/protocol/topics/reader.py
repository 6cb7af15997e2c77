"""The push-pull reader: every record after a position, in order, once, even if pushes are lost.

A push is only a hint. It is accepted if it directly follows the last record. Otherwise it is a duplicate, or a record
before it is missing; missing records are read from the history, at once or when the quiet timer expires. So pushes may
be lost, repeated and reordered, and a reader works without any.

`Reader` has one bounded queue. Records enter it with `Reader.offer` (pushes) and `Reader.page` (history); both return
commands for the runtime. Records leave it with `Reader.take`. When the queue is full, pushes are discarded and read
from the history later: a slow reader never makes a server wait.

Source: P3Sub, "Subscriber implementation notes" and "About temporary unavailability of the subscriber".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from ...errors import ConfigError, HistoryTruncatedError, JetStreamError, PositionInvalidError
from .links import Link, LinkTracker, MissingRule, Skipped, Verdict
from .position import EndDoubt, Extent, Position
from .record import Aside, Record, RecordQueue

__all__ = ["AskHistory", "Cancel", "Command", "QuietTimer", "Reader", "Subscribe"]


class AskHistory(msgspec.Struct, frozen=True):
    """Read stored records after a sequence, in order, up to these limits."""

    since: int
    limit: int  # records
    max_bytes: int


@dataclass(slots=True)
class QuietTimer:
    """The period without a record after which a reader reads the history. It adapts within its bounds.

    Without ``longest`` it is constant.

    Attributes:
        shortest, longest: Its bounds, seconds.
        period: The current period, seconds.
        factor: By which the period grows or shrinks.
    """

    shortest: float = 30.0
    longest: float = 0.0
    factor: float = 2.0
    period: float = 0.0

    def __post_init__(self) -> None:
        for seconds in (self.shortest, self.longest, self.period):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise ConfigError(f"quiet timer: {seconds!r:.40} is not a number of seconds")
        self.longest = self.longest or self.shortest
        self.period = self.period or self.shortest
        if not 0 < self.shortest <= self.period <= self.longest or self.factor < 1:
            raise ConfigError(
                f"quiet timer from {self.shortest} to {self.longest} s, now {self.period} s, factor {self.factor}: "
                "0 < shortest <= period <= longest and factor >= 1 are needed"
            )

    def found_nothing(self) -> None:
        """The history had no new record: lengthen the period."""
        self.period = min(self.period * self.factor, self.longest)

    def found_something(self) -> None:
        """The history had a record that was not pushed: shorten the period."""
        self.period = max(self.period / self.factor, self.shortest)


class Subscribe(msgspec.Struct, frozen=True):
    """Open a feed with this id, for the records after a sequence."""

    id: str
    since: int


class Cancel(msgspec.Struct, frozen=True):
    """Close the feed with this id. It may fail: records that still arrive under the id are rejected."""

    id: str


_RECHECK: Final = 1.0  # seconds until the extent is requested again if the position may be invalid
_ASIDE: Final = 8  # an eighth of the queue's bounds may lie aside


Command: TypeAlias = AskHistory | Subscribe | Cancel | Skipped
"""A command for the runtime.

`AskHistory` is answered with `Reader.page`, `Subscribe` with `Reader.subscribed` or `Reader.lost`.
"""


@dataclass(slots=True)
class Reader:
    """One reader of one topic. Times are monotonic seconds.

    Attributes:
        start: The position after which it reads; checked by the caller, see `Extent.check`.
        name: Prefix of its subscription ids, unique among readers.
        push: Whether it uses pushes; otherwise it reads the history whenever the quiet timer expires.
        replays: Whether a new subscription first sends the stored records after its start (a consumer does, a
            republished subject does not). If not, the history is read once the subscription exists.
        missing: How gaps in the history are judged. If links are per subject, order is kept within each subject only,
            and ``position`` advances only with the history, so that records may be repeated after a restart.
        catch_up: Whether a gap is read from the history at once, or at the next timer as in P3Sub.
        ends: Whether the record that ends a topic ends this reader; never for several subjects.
        max_pending, max_pending_bytes: Capacity of the queue; an empty queue accepts a record of any size.
        rejected, repeated, discarded: Pushes so far under an old id; duplicates; pushes discarded because of a gap or
            a full queue.
        error: The error to raise when the queue is empty.
        ended: No record follows those in the queue: the topic has ended, or the reader was closed.
        id: The id of the current subscription, ``<name>-1``, ``<name>-2`` …; None: not subscribed.
        is_subscribed: The current subscription is known to exist.
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
    _count: int = 0  # subscriptions so far
    _links: LinkTracker = field(init=False)
    _queue: RecordQueue = field(init=False)
    _aside: Aside = field(init=False)
    _renew: bool = False  # a new subscription is needed once the history is read
    _added_at: float = 0.0
    _hint: int = 0  # a later sequence that is known to exist; records before it are missing
    _newest_ns: int = 0  # the latest time stamp of a record; 0: unknown
    _in_doubt: bool = False  # the stream may have been recreated: its extent is needed
    _end_doubt: EndDoubt = field(default_factory=EndDoubt)
    _judged: tuple[Sequence[Record], int, int] = (
        (),
        0,
        0,
    )  # a page, the floor, and what `MissingRule.run` said of it
    _full: bool = False  # a record found no room: no request until there is some
    # A round of requests reads the history to its end, one at a time.
    _wanted: bool = False  # another request is needed
    _asked: AskHistory | None = None  # the request in flight
    _by_timer: bool = False  # the timer started the round
    _found: int = 0  # new records in this round
    _moved: bool = False  # the round has advanced
    _late: bool = False  # a missing record was noticed after the request was sent: the answer may be older

    def __post_init__(self, max_pending: int, max_pending_bytes: int) -> None:
        self._links = LinkTracker(self.start.seq, self.missing.by_subject)
        self._queue = RecordQueue(max_pending, max_pending_bytes, self.start.seq, self.start.time_ns)
        self._aside = Aside(max_pending // _ASIDE, max_pending_bytes // _ASIDE)
        self._newest_ns = self.start.time_ns
        self.ends = self.ends and not self.missing.by_subject  # only one of the subjects ends

    @property
    def position(self) -> Position:
        """The position after the last record taken: the only state needed to resume."""
        queue = self._queue
        return self.start.at(queue.kept if queue else self._links.floor, queue.kept_time_ns)

    @property
    def progress(self) -> int:
        """A number that grows with each new record, and with each stretch of the history that has none."""
        return self._links.floor + self._newest_ns

    @property
    def pending(self) -> int:
        """Records in the queue."""
        return len(self._queue)

    @property
    def deadline(self) -> float:
        """When to call ``tick``, monotonic seconds; infinite: not needed now."""
        if self._stopped or self._full or self._asked is not None:
            return math.inf
        period = self.quiet.period
        return self._added_at + (min(period, _RECHECK) if self._end_doubt.since is not None else period)

    @property
    def _stopped(self) -> bool:
        return self.ended or self.error is not None

    def begin(self, now: float) -> list[Command]:
        """Start reading."""
        self._added_at = now
        return self._subscribe() if self.push else self._want()

    def set_push(self, now: float, *, push: bool) -> list[Command]:
        """Switch pushes on or off, without losing or repeating a record."""
        if push == self.push or self._stopped:
            return []
        self.push, self._renew, self._added_at = push, False, now
        return self._subscribe() if push else self._cancel()

    def close(self) -> list[Command]:
        """End the reader."""
        self.ended = True
        return self._cancel()

    def fail(self, error: JetStreamError) -> list[Command]:
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
            self._asked = None
            self._aside.take_all()
        commands: list[Command] = [] if self.id is None else [Cancel(self.id)]
        self.id, self.is_subscribed = None, False
        return commands

    def subscribed(self, id: str, now: float) -> list[Command]:
        """The subscription exists: records stored from now on are pushed under the id."""
        if id != self.id:
            return [Cancel(id)]
        self.is_subscribed, self._added_at = True, now
        return [] if self.replays else self._want()

    def lost(self, id: str, now: float) -> list[Command]:
        """The subscription ended, or may have missed a record: a disconnect, a deleted consumer.

        The history is read, and then the subscription is replaced; at the next timer if it never existed.
        """
        if id != self.id:
            return []
        had_begun = self.is_subscribed
        commands = self._cancel()
        self._renew, self._added_at, self._in_doubt = True, now, True
        return commands + self._want() if had_begun else commands

    def offer(self, id: str, records: Sequence[Record], now: float) -> list[Command]:
        """Take records that were pushed under a subscription's id. None: some may be in the history."""
        if id != self.id or self._stopped:
            self.rejected += len(records)
            return []
        if not records:
            return self._want()
        doubted = self._in_doubt
        for record in self._push_all(records, now):
            if self.catch_up != "at once" or not self._aside.add(record):
                self.discarded += 1
            self._hint = max(self._hint, record.seq)
            self._late = True
        if self.ended:
            return self._cancel()
        if self._in_doubt and not doubted and self.is_subscribed:
            return self.lost(id, now)
        late = self._hint > self._links.floor and self._asked is None
        return self._want() if late and self.catch_up == "at once" else []

    def _take_run(self, records: Sequence[Record], extent: Extent | None, now: float) -> Sequence[Record]:
        """Add the records that directly follow each other; return the rest, empty if the topic has ended."""
        links = self._links
        if links.beyond:
            count = 0
        elif extent is None and self._judged[0] is records and self._judged[1] == links.floor:
            count, self._judged = self._judged[2], ((), 0, 0)
        else:
            count = self.missing.run(records, links.floor, extent)
        if not count or not self._queue.extend(records[:count]):
            return records
        last = records[count - 1]
        links.caught_up(last.seq)
        self._added_at = now
        self._newest_ns = max(self._newest_ns, last.time_ns)
        self.ended = last.is_last and self.ends
        return [] if self.ended else records[count:]

    def _push_all(self, records: Sequence[Record], now: float) -> list[Record]:
        """Add the records that directly follow, until the topic ends; return the others."""
        left: list[Record] = []
        # A single record gains nothing by it; after a gap each record needs its own check.
        is_run = len(records) > 1 and self._hint <= self._links.floor
        rest = self._take_run(records, None, now) if is_run else records
        for record in rest:
            if not self._push(record, now):
                left.append(record)
            elif self.ended:
                break
        return left

    def _push(self, record: Record, now: float) -> bool:
        """Add a record if it directly follows. False: a record before it is missing."""
        links, queue = self._links, self._queue
        if not queue.has_room(record):
            if links.had(record.seq, record.subject):
                self.repeated += 1
            else:
                self.discarded += 1  # not lost: read from the history once there is room
                self._full = self._wanted = True
                self._hint = max(self._hint, record.seq)
            return True
        # A record is known to be missing. If a limit has removed it since, links no longer name it.
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
                self._in_doubt = True  # newer than every record, but its sequence is an old one
        else:
            return False
        return True

    def _add(self, record: Record, kept: int, now: float) -> None:
        self._queue.add(record, kept)
        self._newest_ns = max(self._newest_ns, record.time_ns)
        self.ended = record.is_last and self.ends
        if kept == record.seq:  # otherwise a record of another subject may be missing
            self._added_at = now

    def _want(self) -> list[Command]:
        """Request the history, now or when there is room."""
        self._wanted = True
        return self._ask()

    def _ask(self) -> list[Command]:
        if not self._wanted or self._asked is not None or self._stopped or self._full:
            return []
        if not self._queue.is_half_empty:
            self._full = True
            return []
        self._wanted = self._late = False
        self._asked = AskHistory(self._links.floor, *self._queue.room)
        return [self._asked]

    def needs_extent(self, records: Sequence[Record]) -> bool:
        """Whether `page` needs the extent: the page is empty, or a record may be missing."""
        if not records or self._in_doubt:
            return True
        floor = self._links.floor
        count = self.missing.run(records, floor, None)
        self._judged = (records, floor, count)
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
        """Take the answer to a request. An answer to another request than the one in flight is ignored.

        Args:
            records: In order. Records up to the sequence requested are skipped.
            more: Whether more records follow.
            extent: The extent of the stream, requested *after* these were read; see `needs_extent`. None: unavailable;
                records that may be missing then count as missing.
            up_to: If known, and no more records follow: the history is complete up to here. It must be reported by the
                server that sent the records, before it sent them: a replica may lag.
        """
        if asked is not self._asked:
            return []
        self._asked = None
        if extent is not None:
            try:
                # The sequence requested and not the floor: pushes may have arrived after this answer was sent.
                certain = self._end_doubt.check(extent, self.start.at(asked.since), now)
            except PositionInvalidError as error:
                return self.fail(error)
            if not certain:
                self._added_at = now
                return []
            self._in_doubt = False
        commands: list[Command] = []
        complete = self._take_in(records, extent, now, commands)
        if self._stopped:
            return commands
        if not complete or (more and records):
            return commands + self._want()
        floor = self._links.floor
        if self._passes(self.missing.at_end(up_to, floor, extent), up_to + 1, commands):
            self._links.caught_up(up_to)
            self._round_over(now, commands)
        return commands

    def _take_in(
        self, records: Sequence[Record], extent: Extent | None, now: float, commands: list[Command]
    ) -> bool:
        """Add new records. False: some found no room."""
        links = self._links
        rest = self._take_run(records, extent, now)
        self._found += len(records) - len(rest)
        self._moved |= len(records) > len(rest)
        for record in rest:
            if record.seq <= links.floor:
                continue
            is_new = not links.had(record.seq, record.subject)
            if is_new and not self._queue.has_room(record):
                self._full = True
                return False
            if not self._passes(self.missing.before(record, links.floor, extent), record.seq, commands):
                return False
            if is_new:
                self._add(record, record.seq, now)
            links.caught_up(record.seq)
            self._found += is_new
            self._moved = True
            if self.ended:
                break
        if self.ended:
            commands += self._cancel()
        return not self.ended

    def _passes(self, verdict: Verdict, before: int, commands: list[Command]) -> bool:
        """Whether the reader may continue after missing records; otherwise it has failed."""
        floor = self._links.floor
        if verdict == "lost":
            commands += self.fail(HistoryTruncatedError(before, floor + 1, self.start.stream))
            return False
        if verdict == "skipped":
            commands.append(Skipped(floor, before))
        return True

    def _round_over(self, now: float, commands: list[Command]) -> None:
        found, moved, by_timer = self._found, self._moved, self._by_timer
        self._found, self._moved, self._by_timer = 0, False, False
        self._added_at = now
        hint, self._hint = self._hint, 0
        self.discarded += len(self._push_all(self._aside.take_all(), now))
        if self.ended:
            commands += self._cancel()
            return
        if found:
            self.quiet.found_something()
        elif by_timer:
            self.quiet.found_nothing()
        if self.push and (self._renew or (by_timer and found)):
            commands += self._subscribe()
        if hint > self._links.floor and self.catch_up == "at once":
            # Otherwise the replica lags.
            self._wanted |= moved or self._late
        commands += self._ask()

    def interrupted(self) -> None:
        """A request for the history failed and is repeated, or the connection was lost."""
        self._end_doubt.interrupted()

    def tick(self, now: float) -> list[Command]:
        """The quiet timer expired: no record was added for a while."""
        if now < self.deadline:
            return []
        self._by_timer = self._in_doubt = True
        return self._want()

    def take(self, limit: int = 1) -> tuple[list[Record], list[Command]]:
        """Take up to ``limit`` records, in order. If the result is empty, see ``error`` and ``ended``."""
        taken = self._queue.take(limit)
        if self._full and self._queue.is_half_empty:
            self._full = False
        return taken, self._ask() if self._wanted else []
