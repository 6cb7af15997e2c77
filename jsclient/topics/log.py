"""The interface of an ordered log: records are appended, read from a position, and pushed as they are stored.

Readers and kits know only `Log`. `MemoryLog` is a log in this process. `StreamLog` is a stream on a server, or some of
its subjects.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypedDict

from .._runtime.context import Closable
from .._runtime.tasks import Tasks
from ..errors import ConfigError, JetStreamError
from ..protocol.events import Event
from ..protocol.topics.links import MissingRule
from ..protocol.topics.position import Extent, Position
from ..protocol.topics.record import Kind, Record
from ..protocol.wire.names import check_publish_subject, subject_matches

if TYPE_CHECKING:
    from .stall_watch import StreamStallWatch

__all__ = [
    "HEARTBEAT",
    "Feed",
    "FeedKind",
    "Log",
    "Page",
    "Push",
    "ReadOptions",
    "Receive",
    "SequenceStart",
    "Start",
    "search_back",
]

FeedKind: TypeAlias = Literal["consumer", "republish"]
"""How a log pushes records: by a consumer for each reader, or by a subject to which the stream republishes."""

Push: TypeAlias = Literal["auto"] | FeedKind | None
"""How records are pushed to a reader. "auto" selects the cheapest way. With None an idle reader reads the history."""

Receive: TypeAlias = Callable[[list[Record]], None]
"""Accepts records that were pushed together. An empty list tells that the history may have some. It must not block."""


HEARTBEAT: Final = 5.0  # seconds


class Page(NamedTuple):
    """A page of the history.

    ``more`` tells that more records follow. Otherwise the history is complete up to the sequence ``up_to``, as reported
    by the server that read it. ``up_to`` is 0 if this is unknown.
    """

    records: list[Record]
    more: bool = False
    up_to: int = 0


class Feed(abc.ABC):
    """Pushes records of a log as they are appended. A push is only a hint: it may be lost, repeated or late."""

    origin: Position | None = None
    """A position in the stream, which the records refer to. See `Record`."""

    by_subject: bool = False
    """Whether records name their predecessors per subject, and there are several subjects."""

    heartbeat: float = HEARTBEAT
    """Seconds between signs of life. After three of them without a sign, the event `HeartbeatMissed` is reported."""

    shares: bool = True
    """Whether readers with equal filters may share a consumer. Then an id does not name it on the server."""

    may_listen: bool = False
    """Whether the reader can use plain subscriptions, if the server allows no further consumer."""

    def has_read(self, id: str, count: int) -> None:  # noqa: B027  for feeds that ask for looks at the history
        """Record that the reader with this subscription has read ``count`` records from the history."""

    @abc.abstractmethod
    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Push records appended from now on under this id. ``lost`` is called when a push may have been missed.

        May raise any error of a request. After an error, the feed is not open.
        """

    @abc.abstractmethod
    async def close(self, id: str) -> None:
        """Stop pushing. Does nothing for an unknown id. An unavailable server is not an error."""


class Log(abc.ABC):
    """An ordered log, or the part of a log that matches a filter.

    Attributes:
        stream: The name of the log.
        subject: The subject of its records, which may have wildcards.
        is_one_subject: Whether the subject has no wildcards. With several subjects, some may end while others continue.
        tasks: Runs background tasks of readers.
        open: The readers that are open.
    """

    stream: str
    subject: str
    is_one_subject: bool
    tasks: Tasks
    open: set[Closable]

    @property
    def problem(self) -> str:
        """Why there is no connection to its server, as far as is known. "" if it is connected, or needs no server."""
        return ""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the user."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Report an error that cannot be raised to a caller."""

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Wait until a server is connected, so that requests can be sent. Raises `ClosedError`."""

    @abc.abstractmethod
    async def extent(self) -> Extent:
        """Return the extent of the whole log, as its leader reports it. May raise any error of a request."""

    @abc.abstractmethod
    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        """Return records after ``since``, in order, at most ``limit`` of them and ``max_bytes`` bytes.

        The first record is returned even if it is larger than that. May raise any error of a request.
        """

    @abc.abstractmethod
    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        """Return the position strictly after a time, in nanoseconds since 1970.

        Raises:
            HistoryTruncatedError: Records after that time may have been removed. Also any request error.
        """

    @abc.abstractmethod
    async def last(self, subject: str | None = None) -> Record | None:
        """Return the newest record of the log or of a subject, from the leader. May raise any error of a request."""

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
        """Append a record, wait until it is stored, and return its position.

        Args:
            data: The payload.
            subject: By default the subject of the log, which must have no wildcards then.
            kind, headers: See `jsclient.Record`.
            expected: Store the record only if this is the sequence of the last record of its subject, 0 for none. It
                becomes the record's link.
            msg_id: A record with this id is stored once within the duplicate window.

        Raises:
            WrongLastSequenceError: The last record has another sequence than ``expected``. Also any publish error.
        """

    def append_now(
        self,
        data: bytes,
        *,
        expected: int,
        msg_id: str,
        timeout: float,
        stored: Callable[[int | JetStreamError], None],
    ) -> bool:
        """Send a record if that is possible without waiting. Call ``stored`` with its sequence or an error later.

        The record is a value on the log's own subject. After an error it may still be stored. Return False if the
        record was not sent, and must be passed to `append`.
        """
        return False

    @abc.abstractmethod
    def feed(self, push: Push) -> Feed:
        """Return a feed of this kind. For "auto" and None, return the feed that costs the server least.

        Raises `ConfigError` if the log has no such feed.
        """

    @abc.abstractmethod
    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        """Return the rule that decides which gaps in the history are errors."""

    def stall_watch(
        self,
        *,
        progress: Callable[[], int],
        waits: Callable[[], bool],
        failure: Callable[[], JetStreamError | None] = lambda: None,
    ) -> StreamStallWatch | None:
        """Return a watch that checks the log when a reader gets no records, or None if the log needs none."""
        return None

    def own_subject(self, subject: str | None) -> str:
        """Return the subject for a record to append.

        Raises:
            ConfigError: The log does not have the subject. InvalidNameError: The subject has wildcards.
        """
        if subject is None:
            if not self.is_one_subject:  # the subject was checked together with the log
                check_publish_subject(self.subject)
            return self.subject
        if not subject_matches(self.subject, check_publish_subject(subject)):
            raise ConfigError(f"subject {subject!r} does not match {self.subject!r}")
        return subject


class ReadOptions(TypedDict, total=False):
    """Arguments that `Topic.each` and `Topic.since` have in common."""

    push: Push
    quiet: float
    allow_truncated: bool
    max_pending: int
    heartbeat: float


class SequenceStart(NamedTuple):
    """A start directly after a stream sequence."""

    seq: int


Start: TypeAlias = Position | SequenceStart | datetime | str

_NEAR: Final = 64  # the number of records that are searched first


async def search_back(
    records: Callable[[int, int], AsyncIterator[Record]],
    first: int,
    end: int,
    matches: Callable[[Record], bool],
) -> Record | None:
    """Return the newest record from ``first`` to ``end`` for which ``matches`` is true, or None.

    Raises the errors of ``records``.

    Args:
        records: Yields the records after its first argument, page by page, up to the page with its second.
    """
    step, newest = _NEAR, None
    while end >= first and newest is None:
        # Go back in growing steps, and read each step forwards.
        since = max(end - step, first - 1)
        async for record in records(since, end):
            if record.seq <= end and matches(record):
                newest = record
        end, step = since, step * 8
    return newest
