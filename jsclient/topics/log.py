"""An ordered log as the readers of a topic see it: records are appended, read from a place on, and pushed as they come.

`Log` is all that readers and patterns know. `MemoryLog` is one in this process; `StreamLog` is a
stream on a server, or some of its subjects.
"""

from __future__ import annotations

import abc
import bisect
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from .._runtime.context import Closable
from .._runtime.event_hub import EventHub, OnEvent
from .._runtime.tasks import Tasks
from ..errors import ClosedError, ConfigError, JetStreamError, WrongLastSequenceError
from ..protocol.events import ErrorRaised, Event
from ..protocol.topics.missing import MissingRule
from ..protocol.topics.position import Extent, Position
from ..protocol.topics.record import Kind, Record
from ..protocol.topics.record_codec import kind_headers
from ..protocol.wire.header_names import MSG_ID
from ..protocol.wire.headers import Headers
from ..protocol.wire.names import check_filter_subject, check_publish_subject, subject_matches

__all__ = ["Feed", "FeedKind", "Log", "MemoryLog", "Page", "Receive"]

FeedKind: TypeAlias = Literal["consumer", "republish"]
"""How records are pushed: by a consumer of the reader's own, or by a subject to which the stream republishes."""

Receive: TypeAlias = Callable[[list[Record]], None]
"""Takes records that were pushed, as many as came together. It must not block."""


class Page(NamedTuple):
    """What a history gives at a time.

    ``more``: there are more after these. ``up_to``: if there are not, all was read up to this sequence, as the very
    server says that read it; 0: it does not say.
    """

    records: list[Record]
    more: bool = False
    up_to: int = 0


class Feed(abc.ABC):
    """Pushes records of a log as they are appended. A push may be lost, repeated or late: it is a hint and no more."""

    by_subject: bool = False
    """Records name the one of their own subject that they follow, and there are several subjects."""

    @abc.abstractmethod
    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Push under this id what is appended from now on; ``lost`` is called once something may have been missed.

        Raises: those of any request; then there is nothing to close.
        """

    @abc.abstractmethod
    async def close(self, id: str) -> None:
        """No more. Harmless if there is none of this id; never raises for a server that is away."""


class Log(abc.ABC):
    """An ordered log, or the part of one that matches a filter.

    Attributes:
        stream: Its name.
        subject: Which records it has; wildcards allowed.
        tasks, open, emit, report: Where readers run what goes on in the background, stand while they are open, and tell
            what cannot be raised to a caller.
    """

    stream: str
    subject: str
    tasks: Tasks
    open: set[Closable]

    @property
    def is_one_subject(self) -> bool:
        """Whether its subject has no wildcards. Of several subjects one may end, and the others go on."""
        return not any(token in ("*", ">") for token in self.subject.split("."))

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Tell the user."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Tell the user of an error that has no caller."""

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Return when it can be asked: a server is connected. Raises `ClosedError`."""

    @abc.abstractmethod
    async def extent(self) -> Extent:
        """What the whole log holds now, as its leader says. Raises those of any request."""

    @abc.abstractmethod
    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        """Records after a sequence, in order, at most so many; a record of any size if it is the first.

        Raises: those of any request.
        """

    @abc.abstractmethod
    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        """The position strictly after a time, nanoseconds since 1970.

        Raises:
            HistoryTruncatedError: Records that were removed may have been later than that. And those of any request.
        """

    @abc.abstractmethod
    async def last(self, subject: str | None = None) -> Record | None:
        """The newest record, of all or of one subject, as the leader has it. Raises those of any request."""

    @abc.abstractmethod
    async def append(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        kind: Kind = Kind.VALUE,
        headers: Mapping[str, str] | None = None,
        expected: int | None = None,
        msg_id: str | None = None,
    ) -> Position:
        """Append a record and wait until it is stored; where that is.

        Args:
            data: The payload.
            subject: By default that of the log, which must then have no wildcards.
            kind, headers: See `jsclient.Record`.
            expected: Refuse unless this is the sequence of the last record of its subject, 0 for none. It becomes the
                record's link.
            msg_id: Appended once, however often this is called inside the duplicate window.

        Raises:
            WrongLastSequenceError: ``expected`` does not hold. And those of any publish.
        """

    @abc.abstractmethod
    def feed(self, kind: FeedKind) -> Feed:
        """A feed of this log. Raises `ConfigError` if it has none of this kind."""

    @abc.abstractmethod
    def best_feed(self) -> FeedKind:
        """The feed that costs the server least."""

    @abc.abstractmethod
    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        """How holes in its history are judged."""

    def own_subject(self, subject: str | None) -> str:
        """The subject of a record that is to be appended.

        Raises:
            ConfigError: None is given and the log has several, or it is not one of them.
        """
        if subject is None:
            return check_publish_subject(self.subject)
        if not subject_matches(self.subject, check_publish_subject(subject)):
            raise ConfigError(f"{subject!r} is no subject of {self.subject!r}")
        return subject


class MemoryLog(Log):
    """A log in this process: no server, and nothing outlives it.

    Args:
        subject: Which subjects it takes.
        stream: Its name.
        max_records: A window: when there are more, the oldest go. None: all are kept.
        on_event: Is called with every event; by default they are logged as warnings.
    """

    def __init__(
        self,
        subject: str = ">",
        *,
        stream: str = "memory",
        max_records: int | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records is {max_records}: it must be 1 or more")
        self.subject = check_filter_subject(subject)
        self.stream = stream
        self._hub = EventHub(on_event)
        self.tasks = Tasks(self.report)
        self.open: set[Closable] = set()
        self._incarnation = secrets.token_hex(8)
        self._max_records = max_records
        self._records: deque[Record] = deque()
        self._last_seq = 0
        self._last_of: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._pushes: dict[str, Receive] = {}
        self._closed = False

    def emit(self, event: Event) -> None:
        self._hub.emit(event)

    def report(self, error: BaseException) -> None:
        if not isinstance(error, JetStreamError):
            raise error
        self.emit(ErrorRaised(error=error))

    async def wait_ready(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed")

    async def extent(self) -> Extent:
        first, last = (self._records[0], self._records[-1]) if self._records else (None, None)
        return Extent(
            self.stream,
            self._incarnation,
            self._last_seq + 1 if first is None else first.seq,
            self._last_seq,
            0 if first is None else first.time_ns,
            0 if last is None else last.time_ns,
        )

    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        await self.wait_ready()
        records: list[Record] = []
        start = bisect.bisect_right(self._records, since, key=_sequence)
        for index in range(start, len(self._records)):
            record = self._records[index]
            max_bytes -= record.size
            if records and (len(records) >= limit or max_bytes < 0):
                return Page(records, more=True)
            records.append(record)
        return Page(records, up_to=self._last_seq)

    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        await self.wait_ready()
        found = [(record.seq, record.time_ns) for record in self._records if record.time_ns >= time_ns]
        extent = await self.extent()
        return extent.after_time(time_ns, found, allow_truncated=allow_truncated) or extent.end

    async def last(self, subject: str | None = None) -> Record | None:
        await self.wait_ready()
        for record in reversed(self._records):
            if subject is None or subject_matches(subject, record.subject):
                return record
        return None

    async def append(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        kind: Kind = Kind.VALUE,
        headers: Mapping[str, str] | None = None,
        expected: int | None = None,
        msg_id: str | None = None,
    ) -> Position:
        await self.wait_ready()
        subject = self.own_subject(subject)
        if msg_id is not None and msg_id in self._ids:
            return Position(self.stream, self._incarnation, self._ids[msg_id])
        last = self._last_of.get(subject, 0)
        if not self._records or last < self._records[0].seq:
            last = 0  # the window has passed it: as a server sees it, the subject is empty
        if expected is not None and expected != last:
            raise WrongLastSequenceError(400, 10071, f"wrong last sequence: {last}")
        self._last_seq += 1
        sent = {} if msg_id is None else {MSG_ID: msg_id}
        record = Record(
            seq=self._last_seq,
            time_ns=time.time_ns(),
            subject=subject,
            data=bytes(data),
            headers=Headers({**(headers or {}), **kind_headers(kind), **sent}),
            previous=self._last_seq - 1,
            kind=kind,
        )
        self._last_of[subject] = record.seq
        if msg_id is not None:
            self._ids[msg_id] = record.seq
        self._records.append(record)
        while self._max_records is not None and len(self._records) > self._max_records:
            self._ids.pop(self._records.popleft().headers.get(MSG_ID, ""), None)
        for push in list(self._pushes.values()):
            push([record])
        return Position(self.stream, self._incarnation, record.seq, record.time_ns)

    def feed(self, kind: FeedKind) -> Feed:
        if kind not in ("consumer", "republish"):
            raise ConfigError(f"push is {kind!r:.40}: 'auto', 'consumer', 'republish' or None is needed")
        return _MemoryFeed(self._pushes)

    def best_feed(self) -> FeedKind:
        return "republish"

    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        return MissingRule(allow_truncated=allow_truncated)

    async def close(self) -> None:
        """End its readers."""
        self._closed = True
        for reader in list(self.open):
            await reader.abandon()
        await self.tasks.cancel()
        await self._hub.close()


class _MemoryFeed(Feed):
    def __init__(self, pushes: dict[str, Receive]) -> None:
        self._pushes = pushes

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        self._pushes[id] = receive

    async def close(self, id: str) -> None:
        self._pushes.pop(id, None)


def _sequence(record: Record) -> int:
    return record.seq
