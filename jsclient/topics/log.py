"""The interface of an ordered log, whose records are appended, read from a position, and pushed as they are stored.

Readers and kits only use `Log`. `MemoryLog` is a log in this process. `StreamLog` is a stream on a server, or a part of
a stream.
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
"""How records are pushed to a reader. "auto" selects the cheapest way. With None, records aren't pushed."""

Receive: TypeAlias = Callable[[list[Record]], None]
"""Receives records that were pushed together, or an empty list if the history may have new ones. Must not block."""


HEARTBEAT: Final = 5.0  # seconds


class Page(NamedTuple):
    """A page of the history of a log. Returned by `Log.history`.

    ``records`` are the records in order, and ``more`` tells whether further records follow. If none follow, the history
    is complete up to the sequence ``up_to``, according to the server that read it. ``up_to`` is 0 if this is unknown.
    """

    records: list[Record]
    more: bool = False
    up_to: int = 0


class Feed(abc.ABC):
    """Pushes records of a log as they are appended. A push is only a hint: it may be lost, repeated or late."""

    origin: Position | None = None
    """A position in the stream of the records, or None. See `Record`."""

    by_subject: bool = False
    """Whether records name their predecessors per subject, and there are several subjects."""

    heartbeat: float = HEARTBEAT
    """Seconds between signs of life. If three in a row are missing, the event `HeartbeatMissed` is reported."""

    shares: bool = True
    """Whether readers with equal filters may share a consumer. If so, the server doesn't know it by their ids."""

    may_listen: bool = False
    """Whether the reader can use plain subscriptions, if the server allows no further consumer."""

    def has_read(self, id: str, count: int) -> None:  # noqa: B027  for feeds that ask for looks at the history
        """Called when the reader with subscription ``id`` has read ``count`` records from the history."""

    @abc.abstractmethod
    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Push the records that are appended from now on.

        Args:
            id: Identifies the subscription.
            receive: Called with each list of records. An empty list means that the history may contain new records.
            lost: Called when a push may have been missed.

        May raise any request error. In this case, the feed isn't open.
        """

    @abc.abstractmethod
    async def close(self, id: str) -> None:
        """Stop pushing. An unknown ``id`` is ignored, and an unavailable server isn't an error."""


class Log(abc.ABC):
    """An ordered log, or the part of a log that matches a subject. Subclass it to read topics from a log of your own.

    Attributes:
        stream: The name of the log.
        subject: The subject of the records, which may contain wildcards.
        is_one_subject: Whether the subject contains no wildcards. If it does, some subjects may end while others
            continue.
        tasks: Runs the background tasks of readers.
        open: The readers that are open.
    """

    stream: str
    subject: str
    is_one_subject: bool
    tasks: Tasks
    open: set[Closable]

    @property
    def problem(self) -> str:
        """Human-readable reason why there is no connection, or an empty string if there is one or none is needed."""
        return ""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the application."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Report an error that can't be raised to a caller."""

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Wait until a server is connected, so that requests can be sent.

        Raises:
            ClosedError: The connection was closed.
        """

    @abc.abstractmethod
    async def extent(self) -> Extent:
        """Return the extent of the whole log, as its leader reports it. May raise any request error."""

    @abc.abstractmethod
    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        """Return the records after the sequence ``since``, in order.

        Args:
            since: The stream sequence before the first record.
            limit: Maximum number of records.
            max_bytes: Maximum size of the records in bytes. The first record is returned even if it is larger.

        May raise any request error.
        """

    @abc.abstractmethod
    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        """Return the position after all records up to a time.

        Args:
            time_ns: The time in nanoseconds since 1970.
            allow_truncated: Whether to accept a log whose first records were removed.

        Raises:
            HistoryTruncatedError: Records after the time may have been removed.

        May also raise any request error.
        """

    @abc.abstractmethod
    async def last(self, subject: str | None = None) -> Record | None:
        """Return the newest record of the log or of ``subject``, or None if there is none.

        The request is answered by the leader. May raise any request error.
        """

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
        """Append a record, wait until it has been stored, and return its position.

        Args:
            data: The payload.
            subject: The subject of the record. Defaults to the subject of the log, if it contains no wildcards.
            kind: Whether the record is a value, or ends the topic. See `jsclient.Record`.
            headers: The headers of the record.
            expected: Store the record only if the last record of its subject has this sequence. Pass 0 if there must be
                none. The sequence becomes the link of the record to its predecessor.
            msg_id: An id for deduplication. A record with this id is stored once within the duplicate window.

        Raises:
            WrongLastSequenceError: The last record has a sequence other than ``expected``.

        May also raise any error that publishing can raise.
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
        """Send a value on the subject of the log if this is possible without waiting.

        Return False if the record wasn't sent, so that it must be passed to `append`. If it was sent, ``stored`` is
        later called with its sequence or an error. After an error, the record may still be stored.
        """
        return False

    @abc.abstractmethod
    def feed(self, push: Push) -> Feed:
        """Return a feed of this kind. ``"auto"`` and None return the feed that costs the server the least.

        Raises:
            ConfigError: The log has no such feed.
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
        """Return a watch that checks the log while a reader gets no records, or None if the log needs no watch."""
        return None

    def own_subject(self, subject: str | None) -> str:
        """Return the subject for a new record.

        Raises:
            ConfigError: The log doesn't store the subject.
            InvalidNameError: The subject contains wildcards.
        """
        if subject is None:
            if not self.is_one_subject:  # the subject was checked together with the log
                check_publish_subject(self.subject)
            return self.subject
        if not subject_matches(self.subject, check_publish_subject(subject)):
            raise ConfigError(f"subject {subject!r} does not match {self.subject!r}")
        return subject


class ReadOptions(TypedDict, total=False):
    """The arguments that `Topic.each` and `Topic.since` have in common."""

    push: Push
    quiet: float
    allow_truncated: bool
    max_pending: int
    heartbeat: float


class SequenceStart(NamedTuple):
    """A start directly after a stream sequence. It can be passed as ``start`` to readers."""

    seq: int


Start: TypeAlias = Position | SequenceStart | datetime | str

_NEAR: Final = 64  # the number of records that are searched first


async def search_back(
    records: Callable[[int, int], AsyncIterator[Record]],
    first: int,
    end: int,
    matches: Callable[[Record], bool],
) -> Record | None:
    """Return the newest record between ``first`` and ``end`` that ``matches`` accepts, or None.

    Args:
        records: Yields the records after its first argument, page by page, up to the page that contains its second.
        first, end: The first and the last stream sequence to search.
        matches: Returns whether a record is the one to find.

    May raise any error of ``records``.
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
