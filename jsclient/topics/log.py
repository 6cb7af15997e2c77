"""An ordered log as the readers of a topic see it: records are appended, read from a place on, and pushed as they come.

`Log` is all that readers and patterns know. `MemoryLog` is one in this process; `StreamLog`
is a stream on a server, or some of its subjects.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from .._runtime.context import Closable
from .._runtime.tasks import Tasks
from ..errors import ConfigError
from ..protocol.events import Event
from ..protocol.topics.links import MissingRule
from ..protocol.topics.position import Extent, Position
from ..protocol.topics.record import Kind, Record
from ..protocol.wire.names import check_publish_subject, subject_matches

__all__ = ["Feed", "FeedKind", "Log", "Page", "Receive"]

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
