"""The interface of an ordered log: records are appended, read from a position, and pushed as they are stored.

Readers and kits know only `Log`. `MemoryLog` is a log in this process; `StreamLog` is a stream on a server, or some of
its subjects.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

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
    "Receive",
    "SequenceStart",
    "Start",
    "search_back",
]

FeedKind: TypeAlias = Literal["consumer", "republish"]
"""How records are pushed: by a consumer for each reader, or by a subject to which the stream republishes."""

Push: TypeAlias = Literal["auto"] | FeedKind | None
"""How a reader is pushed: "auto" selects the cheapest way; None: no pushes, it reads the history when it is idle."""

Receive: TypeAlias = Callable[[list[Record]], None]
"""Takes the records that were pushed together; none: there may be some in the history. It must not block."""


HEARTBEAT: Final = 5.0  # seconds


class Page(NamedTuple):
    """A page of the history.

    ``more``: more records follow. ``up_to``: otherwise, the history is complete up to this sequence, as reported by the
    server that read it; 0: unknown.
    """

    records: list[Record]
    more: bool = False
    up_to: int = 0


class Feed(abc.ABC):
    """Pushes records of a log as they are appended. A push is only a hint: it may be lost, repeated or late."""

    origin: Position | None = None
    """A position in the stream, which the records get; see `Record`."""

    by_subject: bool = False
    """Whether records name their predecessors per subject, and there are several subjects."""

    heartbeat: float = HEARTBEAT
    """Seconds; after three of them without a sign of life from the server, the event `HeartbeatMissed` is reported."""

    shares: bool = True
    """Whether readers with equal filters may share what feeds them; then an id does not name it on the server."""

    may_listen: bool = False
    """Whether the reader can do with less than was requested, if there is no room for it on the server."""

    def has_read(self, id: str, count: int) -> None:  # noqa: B027  for feeds that ask for looks at the history
        """The reader with this subscription found so many records in the history."""

    @abc.abstractmethod
    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Push records appended from now on under this id; ``lost`` is called when a push may have been missed.

        Raises: those of any request; then the feed is not open.
        """

    @abc.abstractmethod
    async def close(self, id: str) -> None:
        """Stop pushing. A no-op for an unknown id; an unavailable server is not an error."""


class Log(abc.ABC):
    """An ordered log, or the part of one that matches a filter.

    Attributes:
        stream: Its name.
        subject: The subject of its records; may have wildcards.
        is_one_subject: Whether it has none. One of several subjects may end while the others continue.
        tasks: Runs background tasks of readers.
        open: The readers that are open.
    """

    stream: str
    subject: str
    is_one_subject: bool
    tasks: Tasks
    open: set[Closable]

    @property
    def trouble(self) -> str:
        """Why there is no connection to its server, as far as is known; "" while there is one, or none is needed."""
        return ""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the user."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Report an error that cannot be raised to a caller."""

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Wait until requests can be sent: a server is connected. Raises `ClosedError`."""

    @abc.abstractmethod
    async def extent(self) -> Extent:
        """The extent of the whole log, as its leader reports it. Raises those of any request."""

    @abc.abstractmethod
    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        """Records after a sequence, in order, up to these limits; at least one, if any, whatever its size.

        Raises: those of any request.
        """

    @abc.abstractmethod
    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        """The position strictly after a time, nanoseconds since 1970.

        Raises:
            HistoryTruncatedError: Records later than that may have been removed. And those of any request.
        """

    @abc.abstractmethod
    async def last(self, subject: str | None = None) -> Record | None:
        """The newest record of all subjects or of one, as the leader has it. Raises those of any request."""

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
            expected: Store only if this is the sequence of the last record of its subject, 0 for none. It becomes the
                record's link.
            msg_id: Stored once within the duplicate window.

        Raises:
            WrongLastSequenceError: ``expected`` does not hold. And those of any publish.
        """

    @abc.abstractmethod
    def feed(self, push: Push) -> Feed:
        """A feed of this kind; "auto" or None: the one that costs the server least.

        Raises `ConfigError` if the log has no such feed.
        """

    @abc.abstractmethod
    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        """The rule that judges gaps in its history."""

    def stall_watch(
        self,
        *,
        progress: Callable[[], int],
        waits: Callable[[], bool],
        failure: Callable[[], JetStreamError | None] = lambda: None,
    ) -> StreamStallWatch | None:
        """What looks at the log when a reader gets nothing, with the arguments of its class. None: nothing does."""
        return None

    def own_subject(self, subject: str | None) -> str:
        """The subject for a record to append.

        Raises:
            ConfigError: The subject is not one of the log's. InvalidNameError: It has wildcards.
        """
        if subject is None:
            return check_publish_subject(self.subject)
        if not subject_matches(self.subject, check_publish_subject(subject)):
            raise ConfigError(f"subject {subject!r} does not match {self.subject!r}")
        return subject


class SequenceStart(NamedTuple):
    """The start directly after a stream sequence."""

    seq: int


Start: TypeAlias = Position | SequenceStart | datetime | str

_NEAR: Final = 64  # records that are searched first


async def search_back(
    records: Callable[[int, int], AsyncIterator[Record]],
    first: int,
    end: int,
    wanted: Callable[[Record], bool],
) -> Record | None:
    """The newest wanted record with a sequence from ``first`` to ``end``. Raises those of ``records``.

    Args:
        records: Yields the records after a sequence, page by page, up to the page with the other one.
    """
    step, found = _NEAR, None
    while end >= first and found is None:
        # Backwards in growing steps, each read forwards.
        since = max(end - step, first - 1)
        async for record in records(since, end):
            if record.seq <= end and wanted(record):
                found = record
        end, step = since, step * 8
    return found
