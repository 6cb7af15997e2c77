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


HEARTBEAT: Final = 5.0  # interval between heartbeats, in seconds


class Page(NamedTuple):
    """Some consecutive records of a log. Returned by `Log.history`.

    ``records`` are the records, in order. If ``more`` is true, further records follow. To get them, call `Log.history`
    again with the sequence of the last record. If ``more`` is false, ``up_to`` is the stream sequence up to which the
    server that was read has no further record, or 0 if this is unknown.
    """

    records: list[Record]
    more: bool = False
    up_to: int = 0


class Feed(abc.ABC):
    """Pushes a log's new records to its readers. Returned by `Log.feed`.

    Pushes are best effort, so they may be lost, repeated or late. They only reduce latency: readers fetch anything that
    they missed from the history of the log.
    """

    origin: Position | None = None
    """A position in the stream of the records, which becomes their `Record.origin`. None if there is none."""

    by_subject: bool = False
    """Whether `Record.previous` refers to the previous record with the same subject, in a log with several subjects."""

    heartbeat: float = HEARTBEAT
    """Interval between heartbeats, in seconds. If three in a row are missing, the event `HeartbeatMissed` is
    reported.
    """

    shares: bool = True
    """Whether readers with the same filter may share a consumer. If so, its name on the server isn't the id of a
    reader.
    """

    may_listen: bool = False
    """Whether plain NATS subscriptions may be used instead if the server allows no further consumer."""

    def has_read(self, id: str, count: int) -> None:  # noqa: B027  used only by feeds that check the history
        """Note how many records the reader with subscription ``id`` has just read from the history.

        Override this method in a feed that asks readers to check the history, to learn what they found. By default, it
        does nothing.
        """

    @abc.abstractmethod
    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Start pushing new records to a reader.

        Args:
            id: Identifies the subscription of the reader.
            receive: The feed calls this function with each list of new records, in order. An empty list means that the
                history may contain new records, so the reader reads the history.
            lost: The feed calls this function when a push may have been missed. The reader then reads the history.

        May raise any request error. In this case, no records are pushed to the reader.
        """

    @abc.abstractmethod
    async def close(self, id: str) -> None:
        """Stop pushing to a subscription. Does nothing if ``id`` is unknown or the server can't be reached."""


class Log(abc.ABC):
    """An ordered log of records. Subclass it to read topics from a different kind of storage.

    The library has two logs: `StreamLog` reads a stream on a server, and `MemoryLog` keeps records in this process. All
    readers and kits work on any log. A log may contain only some records of its storage, namely those that match
    ``subject``.

    Attributes:
        stream: Name of the log, which is part of positions.
        subject: The subject of the records, which may contain wildcards.
        is_one_subject: True if ``subject`` contains no wildcards. If it does, some subjects may end while others
            continue.
        tasks: Runs the background tasks of readers.
        open: The readers that are open. They are closed together with the log or its connection.
    """

    stream: str
    subject: str
    is_one_subject: bool
    tasks: Tasks
    open: set[Closable]

    @property
    def problem(self) -> str:
        """Human-readable reason why there is no connection. Empty if there is one, or if the log needs none."""
        return ""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the application, for example by calling its ``on_event`` function."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Report an error that occurred in the background, where no caller can receive it.

        The logs of this library emit the event `ErrorRaised`, which the application receives or which is logged.
        """

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Wait until requests can be sent. For a log on a server, this waits for a connection.

        Raises:
            ClosedError: The log or its connection was closed.
        """

    @abc.abstractmethod
    async def extent(self) -> Extent:
        """Return where the whole log begins and ends, as its leader reports it. May raise any request error."""

    @abc.abstractmethod
    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        """Return a `Page` with up to ``limit`` stored records that follow the stream sequence ``since``, oldest first.

        Args:
            since: A stream sequence, or 0 to start with the first record of the log.
            limit: Maximum number of records.
            max_bytes: Maximum total size of the records, in bytes. If the first record is larger, it is returned alone.

        May raise any request error.
        """

    @abc.abstractmethod
    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        """Return the position directly before the first record stored later than a time.

        A reader that starts at this position skips records stored at exactly ``time_ns``. If no record is later, the
        position is the end of the log.

        Args:
            time_ns: Unix time in nanoseconds.
            allow_truncated: If true, return a position even if some records later than ``time_ns`` may have been
                removed. By default, the call raises `HistoryTruncatedError` in this case.

        Raises:
            HistoryTruncatedError: Records later than ``time_ns`` may have been removed.

        May also raise any request error.
        """

    @abc.abstractmethod
    async def last(self, subject: str | None = None) -> Record | None:
        """Return the latest record of the log, or None if there is none.

        The leader answers the request, so the record is up to date.

        Args:
            subject: Return the latest record of this subject. Defaults to all subjects of the log.

        May raise any request error.
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
            subject: The subject of the record. Required if the log's subject contains wildcards, and otherwise defaults
                to that subject.
            kind: ``Kind.VALUE`` for an ordinary record, or ``Kind.FINISH`` or ``Kind.FAIL`` to end the topic.
            headers: The headers of the record. Defaults to none.
            expected: Store the record only if this is the sequence of the latest record with the same subject. Pass 0
                if the subject must have no record yet. By default, the record is stored unconditionally.
            msg_id: An id for deduplication. If a record with this id was stored within the duplicate window of the log,
                nothing is stored, and the position of that record is returned.

        Raises:
            WrongLastSequenceError: The latest record of the subject has a sequence other than ``expected``. Nothing was
                stored.
            ConfigError: The log doesn't store the subject.

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
        """Send a value on the log's subject if that is possible without waiting. Return whether the record was sent.

        If the record was sent, ``stored`` is called later, with the sequence of the record or with an error. Even after
        an error, the record may have been stored. If the record wasn't sent, use `append` instead.

        Args:
            data: The payload.
            expected: Store the record only if this is the sequence of the latest record of the subject.
            msg_id: An id for deduplication, as in `append`.
            timeout: How long to wait for the ack, in seconds.
            stored: Called once with the outcome.
        """
        return False

    @abc.abstractmethod
    def feed(self, push: Push) -> Feed:
        """Return a feed, which pushes new records to readers.

        Args:
            push: ``"consumer"`` or ``"republish"``. With ``"auto"`` or None, the log chooses the feed that costs the
                server the least.

        Raises:
            ConfigError: The log has no such feed.
        """

    @abc.abstractmethod
    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        """Return the rule that decides which gaps in the history are errors, and which are normal.

        Args:
            feed: The feed of the reader.
            allow_truncated: Whether the reader skips records that were removed before they were read.
        """

    def stall_watch(
        self,
        *,
        progress: Callable[[], int],
        waits: Callable[[], bool],
        failure: Callable[[], JetStreamError | None] = lambda: None,
    ) -> StreamStallWatch | None:
        """Return a watch that finds out why a waiting reader gets no records, or None if the log needs no watch.

        Args:
            progress: Returns a number that grows with each record the reader gets.
            waits: Returns whether the reader is waiting.
            failure: Returns the error with which reading the history fails, or None.
        """
        return None

    def own_subject(self, subject: str | None) -> str:
        """Return ``subject``, or the only subject of the log if ``subject`` is None, after checking that it is valid.

        Raises:
            ConfigError: The log doesn't store the subject.
            InvalidNameError: The subject contains wildcards.
        """
        if subject is None:
            if not self.is_one_subject:  # a single subject was already checked when the log was created
                check_publish_subject(self.subject)
            return self.subject
        if not subject_matches(self.subject, check_publish_subject(subject)):
            raise ConfigError(f"subject {subject!r} does not match {self.subject!r}")
        return subject


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `Topic.since`, for annotating wrappers. For their meaning, see `Topic.each`."""

    push: Push
    quiet: float
    allow_truncated: bool
    max_pending: int
    heartbeat: float


class SequenceStart(NamedTuple):
    """The starting point directly after a stream sequence. Pass it as ``start`` to a reader if you have no `Position`.

    The reader starts with the first message whose sequence is greater than ``seq``. With 0, it starts before the first
    message of the stream.
    """

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
        # Records can only be read forwards, so go back in growing steps until one of them contains a match.
        since = max(end - step, first - 1)
        async for record in records(since, end):
            if record.seq <= end and matches(record):
                newest = record
        end, step = since, step * 8
    return newest
