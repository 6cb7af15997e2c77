"""The push-pull reader: the history after a position, in order, each record once, whatever becomes of the pushes.

A push is only a hint. It is taken if it directly follows what was had, and discarded if not: it was had before, or
something before it is missing. What is missing is read from the history, at once or when the quiet timer ends. So
pushes may be lost, repeated and reordered, and there may be none at all.

`Reader` holds the one bounded queue. What arrives goes in with `Reader.offer` (pushes) and `Reader.page` (history);
both return commands for the runtime. Records come out with `Reader.take`. When the queue is full, pushes are left out
as if they had been lost, and are read from the history when there is room: no server waits for a slow reader.

Source: P3Sub, "Subscriber implementation notes" and "About temporary unavailability of the subscriber".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from ...errors import HistoryTruncatedError, JetStreamError, PositionInvalidError
from .idle_timer import QuietTimer
from .links import Link, LinkTracker, MissingRule, Skipped, Verdict
from .position import EndDoubt, Extent, Position
from .record import Record
from .record_queue import Aside, RecordQueue

__all__ = [
    "AskHistory",
    "Cancel",
    "Command",
    "HistoryRound",
    "Reader",
    "Result",
    "Subscribe",
    "SubscriptionCommand",
    "SubscriptionIds",
]


_RECHECK: Final = 1.0  # seconds until the extent is requested again if the position may be invalid
_ASIDE: Final = 8  # an eighth of the queue's bounds may lie aside


class Subscribe(msgspec.Struct, frozen=True):
    """Have pushes sent under this id, from after a sequence on."""

    id: str
    since: int


class Cancel(msgspec.Struct, frozen=True):
    """End the subscription with this id. It need not succeed: what still comes under the id is refused."""

    id: str


SubscriptionCommand: TypeAlias = Subscribe | Cancel


@dataclass(slots=True)
class SubscriptionIds:
    """One subscription at a time, called ``<name>-1``, ``<name>-2`` ….

    Attributes:
        present: The id of the present one; None: there is none.
        is_confirmed: The present one is known to be there.
        count: How many there have been.
    """

    name: str
    present: str | None = None
    is_confirmed: bool = False
    count: int = 0

    def subscribe(self, since: int) -> list[SubscriptionCommand]:
        """Another one in place of the present one."""
        commands = self.cancel()
        self.count += 1
        self.present = f"{self.name}-{self.count}"
        return [*commands, Subscribe(self.present, since)]

    def cancel(self) -> list[SubscriptionCommand]:
        """No more pushes."""
        commands: list[SubscriptionCommand] = [] if self.present is None else [Cancel(self.present)]
        self.present, self.is_confirmed = None, False
        return commands


class AskHistory(msgspec.Struct, frozen=True):
    """Read what is stored after a sequence, in order, at most so much."""

    since: int
    limit: int  # records
    max_bytes: int


class Result(msgspec.Struct, frozen=True):
    """What came of a round: how many records were new, whether it went on at all, and whether the timer asked."""

    found: int
    moved: bool
    by_timer: bool


@dataclass(slots=True)
class HistoryRound:
    """One question at a time, until there is no more.

    Attributes:
        wanted: There is something to be asked for.
        asked: The question that is under way.
        by_timer, found, moved: As in `Result`, so far.
        late: What is missing was told of after the present question was asked: its answer may be older.
    """

    wanted: bool = False
    asked: AskHistory | None = None
    by_timer: bool = False
    found: int = 0
    moved: bool = False
    late: bool = False

    def ask(self, since: int, room: tuple[int, int]) -> AskHistory:
        """The next question."""
        self.wanted = self.late = False
        self.asked = AskHistory(since, *room)
        return self.asked

    def answered(self, asked: AskHistory) -> bool:
        """Whether this answers the present question, which is none any more."""
        if asked is not self.asked:
            return False
        self.asked = None
        return True

    def went_on(self, count: int, *, found: bool = True) -> None:
        """So many records were read that lie behind where it stood; ``found``: they were not had."""
        self.found += count if found else 0
        self.moved |= count > 0

    def over(self) -> Result:
        """There is no more."""
        result = Result(self.found, self.moved, self.by_timer)
        self.found, self.moved, self.by_timer = 0, False, False
        return result


Command: TypeAlias = AskHistory | SubscriptionCommand | Skipped
"""Answered by: `AskHistory` `Reader.page` or `Reader.unread`; `Subscribe` `Reader.subscribed` or `Reader.lost`."""


@dataclass(slots=True)
class Reader:
    """One reader of one topic. Times are monotonic seconds.

    Attributes:
        start: It reads what follows; checked by the caller, see `Extent.check`.
        name: Its subscriptions' ids are made of it: it should be like no other's.
        push: Whether it wants pushes; else it asks whenever the quiet timer ends.
        replays: Whether a new subscription first sends what is stored after its start (a consumer does, a republished
            subject does not). If not, the history is asked for once the subscription is there.
        missing: How holes in the history are judged. If links go by subject, order is kept within each subject
            only, and ``position`` follows when the history was read, so that records may come again after a restart.
        catch_up: On a gap ask for the history at once, or leave it to the timer as P3Sub has it.
        ends: Whether the record that ends a topic ends this reader: not where there are several subjects.
        max_pending, max_pending_bytes: What may wait; an empty queue takes a record of any size.
        rejected, repeated, discarded: Pushes so far under an id that is not the present one; had before; left out
            because something before them was missing, or there was no room.
        error: Why nothing follows what waits; it is to be raised when the queue is empty.
        ended: Nothing follows what waits: the last record of the topic came, or the reader was closed.
        subscriptions: Which one is the present one.
    """

    start: Position
    name: InitVar[str]
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
    subscriptions: SubscriptionIds = field(init=False)
    _links: LinkTracker = field(init=False)
    _queue: RecordQueue = field(init=False)
    _aside: Aside = field(init=False)
    _renew: bool = False  # a new subscription is needed when the history was read
    _added_at: float = 0.0
    _hint: int = (
        0  # a later sequence that is known to exist: until it is received, something before it is missing
    )
    _newest_ns: int = 0  # the latest time stamp that was seen of a record; 0: not known
    _in_doubt: bool = False  # the stream may be another one by now: its extent is needed
    _end_doubt: EndDoubt = field(default_factory=EndDoubt)
    _full: bool = False  # something found no room: nothing is asked for until there is
    _round: HistoryRound = field(default_factory=HistoryRound)

    def __post_init__(self, name: str, max_pending: int, max_pending_bytes: int) -> None:
        self.subscriptions = SubscriptionIds(name)
        self._links = LinkTracker(self.start.seq, self.missing.by_subject)
        self._queue = RecordQueue(max_pending, max_pending_bytes, self.start.seq, self.start.time_ns)
        self._aside = Aside(max_pending // _ASIDE, max_pending_bytes // _ASIDE)
        self._newest_ns = self.start.time_ns
        self.ends = self.ends and not self.missing.by_subject  # there, one subject ends

    @property
    def position(self) -> Position:
        """After all that was taken, and before all that was not: all that must be kept to go on later."""
        queue = self._queue
        return self.start.at(queue.kept if queue else self._links.floor, queue.kept_time_ns)

    @property
    def pending(self) -> int:
        """Records that wait."""
        return len(self._queue)

    @property
    def deadline(self) -> float:
        """When to call ``tick``, monotonic seconds; infinite while there is nothing to be woken for."""
        if self._stopped or self._full or self._round.asked is not None:
            return math.inf
        period = self.quiet.period
        return self._added_at + (min(period, _RECHECK) if self._end_doubt.is_open else period)

    @property
    def _stopped(self) -> bool:
        return self.ended or self.error is not None

    def begin(self, now: float) -> list[Command]:
        """Start reading."""
        self._added_at = now
        return self._subscribe() if self.push else self._want()

    def set_push(self, now: float, *, push: bool) -> list[Command]:
        """From now on have pushes sent, or only ask. Nothing is lost or repeated by it."""
        if push == self.push or self._stopped:
            return []
        self.push, self._renew, self._added_at = push, False, now
        return self._subscribe() if push else self._cancel()

    def close(self) -> list[Command]:
        """Nobody reads any more."""
        self.ended = True
        return self._cancel()

    def fail(self, error: JetStreamError) -> list[Command]:
        """Nothing can follow what waits."""
        if not self._stopped:
            self.error = error
        return self._cancel()

    def _subscribe(self) -> list[Command]:
        self._renew = False
        return [*self.subscriptions.subscribe(self._links.floor)]

    def _cancel(self) -> list[Command]:
        if self._stopped:
            self._round.asked = None
            self._aside.take_all()
        return [*self.subscriptions.cancel()]

    def subscribed(self, id: str, now: float) -> list[Command]:
        """The subscription is there: what is stored from now on is pushed under the id."""
        if id != self.subscriptions.present:
            return [Cancel(id)]
        self.subscriptions.is_confirmed, self._added_at = True, now
        return [] if self.replays else self._want()

    def lost(self, id: str, now: float) -> list[Command]:
        """The subscription is no more, was not made, or may have missed something: a disconnect, a deleted consumer.

        The history is read, and then another subscription is made. If it had not even begun, not before the timer ends.
        """
        if id != self.subscriptions.present:
            return []
        had_begun = self.subscriptions.is_confirmed
        commands = self._cancel()
        self._renew, self._added_at, self._in_doubt = True, now, True
        return commands + self._want() if had_begun else commands

    def offer(self, id: str, records: Sequence[Record], now: float) -> list[Command]:
        """Records were pushed under a subscription's id."""
        if id != self.subscriptions.present or self._stopped:
            self.rejected += len(records)
            return []
        doubted = self._in_doubt
        for record in self._push_all(records, now):
            if self.catch_up != "at once" or not self._aside.add(record):
                self.discarded += 1
            self._hint = max(self._hint, record.seq)
            self._round.late = True
        if self.ended:
            return self._cancel()
        if self._in_doubt and not doubted and self.subscriptions.is_confirmed:
            return self.lost(id, now)
        late = self._hint > self._links.floor and self._round.asked is None
        return self._want() if late and self.catch_up == "at once" else []

    def _take_run(self, records: Sequence[Record], extent: Extent | None, now: float) -> Sequence[Record]:
        """Add at once all that need no look at each; the rest, which is none if the topic has ended."""
        links = self._links
        count = 0 if links.beyond else self.missing.run(records, links.floor, extent)
        if not count or not self._queue.extend(records[:count]):
            return records
        last = records[count - 1]
        links.caught_up(last.seq)
        self._added_at = now
        self._newest_ns = max(self._newest_ns, last.time_ns)
        self.ended = last.is_last and self.ends
        return [] if self.ended else records[count:]

    def _push_all(self, records: Sequence[Record], now: float) -> list[Record]:
        """Take in what directly follows, until the topic ends; what does not, is given back."""
        left: list[Record] = []
        # One by itself is as fast; and while something is missing, each is looked at.
        is_run = len(records) > 1 and self._hint <= self._links.floor
        rest = self._take_run(records, None, now) if is_run else records
        for record in rest:
            if not self._push(record, now):
                left.append(record)
            elif self.ended:
                break
        return left

    def _push(self, record: Record, now: float) -> bool:
        """Take a record in if it directly follows. False: something before it is missing."""
        links, queue = self._links, self._queue
        if not queue.has_room(record):
            if links.had(record.seq, record.subject):
                self.repeated += 1
            else:
                self.discarded += 1  # it is no loss on the way: asked for as soon as there is room
                self._full = self._round.wanted = True
                self._hint = max(self._hint, record.seq)
            return True
        # While something is known to be missing: what limits have removed since, links do not name any more.
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
                self._in_doubt = True  # stored after all that was had, under a number that was had
        else:
            return False
        return True

    def _add(self, record: Record, kept: int, now: float) -> None:
        self._queue.add(record, kept)
        self._newest_ns = max(self._newest_ns, record.time_ns)
        self.ended = record.is_last and self.ends
        if kept == record.seq:  # else, by subject, another one may be missing all the while
            self._added_at = now

    def _want(self) -> list[Command]:
        """Ask for the history, now or when there is room."""
        self._round.wanted = True
        return self._ask()

    def _ask(self) -> list[Command]:
        if not self._round.wanted or self._round.asked is not None or self._stopped or self._full:
            return []
        if not self._queue.is_half_empty:
            self._full = True
            return []
        return [self._round.ask(self._links.floor, self._queue.room)]

    def needs_extent(self, records: Sequence[Record]) -> bool:
        """Whether `page` should be told what the stream holds: there is nothing, or something may be missing."""
        return not records or self._in_doubt or self.missing.needs_extent(records, self._links.floor)

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
        """The history's answer. One to another question than the present one is not looked at.

        Args:
            records: In order. Those that are at or before the sequence asked from are passed over.
            more: Whether there are more after these.
            extent: What the stream holds, asked for *after* these were read; see `needs_extent`. None: it cannot be
                had, and then what may be missing is taken for missing.
            up_to: If known, and there are no more: the history was read whole up to here. It must come from the server
                that gave the records, from before it gave them: a replica may lag.
        """
        if not self._round.answered(asked):
            return []
        if extent is not None:
            try:
                # Not the present place: pushes may have gone on since the stream said where it ends.
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
        """Add what was not had. False: not all of it, there was no room."""
        links = self._links
        rest = self._take_run(records, extent, now)
        self._round.went_on(len(records) - len(rest))
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
            self._round.went_on(1, found=is_new)
            if self.ended:
                break
        if self.ended:
            commands += self._cancel()
        return not self.ended

    def _passes(self, verdict: Verdict, before: int, commands: list[Command]) -> bool:
        """Whether one may go on over what is missing; else the reader has failed."""
        floor = self._links.floor
        if verdict == "lost":
            commands += self.fail(HistoryTruncatedError(before, floor + 1, self.start.stream))
            return False
        if verdict == "skipped":
            commands.append(Skipped(floor, before))
        return True

    def _round_over(self, now: float, commands: list[Command]) -> None:
        """The history was read to its end."""
        result = self._round.over()
        self._added_at = now
        hint, self._hint = self._hint, 0
        self.discarded += len(self._push_all(self._aside.take_all(), now))
        if self.ended:
            commands += self._cancel()
            return
        if result.found:
            self.quiet.found_something()
        elif result.by_timer:
            self.quiet.found_nothing()
        if self.push and (self._renew or (result.by_timer and result.found)):
            commands += self._subscribe()
        if hint > self._links.floor and self.catch_up == "at once":
            # Else it is not there yet: a replica that lags.
            self._round.wanted |= result.moved or self._round.late
        commands += self._ask()

    def interrupted(self) -> None:
        """A request for the history failed and is repeated, or the connection was lost."""
        self._end_doubt.interrupted()

    def unread(self, asked: AskHistory, now: float) -> None:
        """The history could not be read now. It is asked for again when the timer ends."""
        if self._round.answered(asked):
            self._added_at = now

    def tick(self, now: float) -> list[Command]:
        """The deadline was reached: nothing was added for a while."""
        if now < self.deadline:
            return []
        self._round.by_timer = self._in_doubt = True
        return self._want()

    def take(self, limit: int = 1) -> tuple[list[Record], list[Command]]:
        """Up to so many records, in order; none: nothing waits, and then see ``error`` and ``ended``."""
        taken = self._queue.take(limit)
        if self._full and self._queue.is_half_empty:
            self._full = False
        return taken, self._ask() if self._round.wanted else []
