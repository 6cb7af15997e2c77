"""State of a topic reader. See `jsclient.protocol.topics.reader`."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import Final, Literal

from ...errors import JetStreamError
from .idle_timer import QuietTimer
from .links import LinkTracker, MissingRule
from .position import Position
from .reader import HistoryRound, SubscriptionIds
from .record_queue import Aside, RecordQueue

__all__ = ["ReaderState"]

_ASIDE: Final = 8  # an eighth of the queue's bounds may lie aside


@dataclass(slots=True)
class ReaderState:
    """The fields of a `Reader`, and what is said of them."""

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
        0  # a later sequence that is known to exist: until it was had, something before it is missing
    )
    _newest_ns: int = 0  # the latest time stamp that was seen of a record; 0: not known
    _in_doubt: bool = False  # the stream may be another one by now: its extent is needed
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
        return self._added_at + self.quiet.period

    @property
    def _stopped(self) -> bool:
        return self.ended or self.error is not None
