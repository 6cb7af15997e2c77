"""Positions in a stream, the extent of a stream, and the check of a position against an extent.

A position means "after this record". Its sequence alone decides where a reader continues. The time of a position is
only informative. A time can only serve to find a position, because the server's start time is inclusive, a ``datetime``
is only precise to microseconds, and time stamps may step back when another server becomes the leader.

A position is checked before it is used. If it were after the end of the stream, the server would keep the reader
waiting forever. If records after it were removed, the server would start at a later record without an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any, Final, Literal

import msgspec

from ...errors import ConfigError, HistoryTruncatedError, PositionInvalidError
from ..models.back_doubt import CERTAIN, STEPPED_DOWN, StreamEnd
from ..wire.checks import check_count

__all__ = ["CoveredEnd", "EndCheck", "Extent", "Position"]

_MISSING: Any = object()
_VERSION: Final = 1
_MAX_SEQUENCE: Final = 2**64 - 1
_MAX_TIME: Final = 2**63 - 1


class _PositionToken(msgspec.Struct, forbid_unknown_fields=True):
    """A position as JSON. ``v`` is the version of this format."""

    v: Literal[1]
    stream: str
    incarnation: str
    seq: int
    time_ns: int


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stream, right after one of its records. Save it to resume reading with the next record.

    A reader has a position, and so has each record::

        saved = reader.position.to_json()  # store it after the record has been handled
        async with topic.since(saved) as reader: ...

    Positions are compared by sequence. Positions in different streams are unequal and have no order, so comparing them
    with ``<`` raises `PositionInvalidError`. A stream that was deleted and created again counts as a different stream.

    Attributes:
        stream: Name of the stream.
        incarnation: Creation time of the stream, as the server reported it. It reveals that a stream was deleted and
            created again under the same name.
        seq: Stream sequence of the record, or 0 for the position before the first record.
        time_ns: The time at which the record was stored, as Unix time in nanoseconds, or 0 if unknown. It is only
            informative, and is ignored when positions are compared.
    """

    stream: str
    incarnation: str = _MISSING
    seq: int = _MISSING
    time_ns: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.incarnation is _MISSING or self.seq is _MISSING:
            raise TypeError(
                "a Position has a stream, its incarnation and a seq: take that of a record (record.position), or read "
                "a saved one with Position.from_json(token)"
            )
        if not isinstance(self.stream, str) or not self.stream or not isinstance(self.incarnation, str):
            raise ConfigError(
                f"stream and incarnation of a position are {self.stream!r:.40} and {self.incarnation!r:.40}: "
                "a stream name and a str are needed"
            )
        for name, limit in (("seq", _MAX_SEQUENCE), ("time_ns", _MAX_TIME)):
            check_count(f"{name} of a position", getattr(self, name), 0, limit)

    def to_json(self) -> str:
        """Return the position as a JSON string, ready to be stored in a file or a database.

        A reader needs nothing else to resume. `Topic.since` accepts the string as it is.
        """
        token = _PositionToken(_VERSION, self.stream, self.incarnation, self.seq, self.time_ns)
        return msgspec.json.encode(token).decode()

    @classmethod
    def from_json(cls, token: str | bytes) -> Position:
        """Parse a token returned by `to_json`.

        Args:
            token: The JSON text.

        Raises:
            PositionInvalidError: The token is malformed, or uses a newer format than this version of the library
                supports.
        """
        try:
            fields = msgspec.json.decode(token, type=_PositionToken)
            return cls(fields.stream, fields.incarnation, fields.seq, fields.time_ns)
        except (msgspec.DecodeError, ConfigError, UnicodeError, TypeError, RecursionError) as error:
            raise PositionInvalidError(f"{token!r:.200} is not a position token: {error}") from None

    def __lt__(self, other: Position) -> bool:
        if not isinstance(other, Position):
            raise TypeError(f"a position cannot be compared with {type(other).__name__}")
        self._same_stream(other.stream, other.incarnation)
        return self.seq < other.seq

    def _same_stream(self, stream: str, incarnation: str) -> None:
        if self.stream != stream:
            raise PositionInvalidError(
                f"the position is in stream {self.stream!r}, not in {stream!r}: save one position for each stream, "
                "and start at 'first' where there is none"
            )
        if self.incarnation != incarnation:
            raise PositionInvalidError(
                f"stream {stream!r} was recreated since the position was saved (created {incarnation!r}, the position "
                f"has {self.incarnation!r}): start at 'first'"
            )

    def at(self, seq: int, time_ns: int = 0) -> Position:
        """Return the position right after another record of the same stream.

        Args:
            seq: Stream sequence of the record.
            time_ns: The time at which the record was stored, as Unix time in nanoseconds. Defaults to 0, which means
                unknown.
        """
        return replace(self, seq=seq, time_ns=time_ns)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a stream begins and ends, as reported by its leader. Returned by `Log.extent`.

    Attributes:
        stream: Name of the stream.
        incarnation: Creation time of the stream, as a string. See `Position`.
        first_seq: Sequence of the first stored record. ``last_seq`` + 1 if all records have been removed. May be 0 if
            no record was ever stored.
        last_seq: Sequence of the last record that was ever stored, or 0 if there was none.
        first_time_ns: The time at which the first record was stored, as Unix time in nanoseconds, or 0 if the stream is
            empty.
        last_time_ns: The time at which the last record was stored, as Unix time in nanoseconds, or 0 if there was none.
        replicas: Number of replicas of the stream. If it is more than 1, the answer may come from a server that is no
            longer the leader, so the extent may be out of date.
        connects: How often the client had reconnected before it received this extent. Used to recognize an extent from
            before a reconnect.
    """

    stream: str
    incarnation: str
    first_seq: int
    last_seq: int
    first_time_ns: int = 0
    last_time_ns: int = 0
    replicas: int = 1
    connects: int = 0

    @property
    def start(self) -> Position:
        """The position before the first stored record."""
        return Position(self.stream, self.incarnation, max(self.first_seq, 1) - 1)

    @property
    def end(self) -> Position:
        """The position after the last record. A reader that starts there returns only new records."""
        return Position(self.stream, self.incarnation, self.last_seq, self.last_time_ns)

    def check(self, position: Position) -> None:
        """Check that a reader can continue from a position.

        If the stream is replicated, this check alone isn't reliable, because the extent may be out of date. Readers
        then ask again for some seconds before they give up.

        Raises:
            PositionInvalidError: The position belongs to a different stream, or the stream was created again, or ends
                before the position.
        """
        position._same_stream(self.stream, self.incarnation)  # noqa: SLF001  same module
        if position.seq > self.last_seq:
            raise PositionInvalidError(
                f"position {position.seq} is after the end of stream {self.stream!r}, {self.last_seq}: records were "
                "lost, or the stream was restored; start at an earlier position"
            )

    def truncated(self, position: Position) -> HistoryTruncatedError | None:
        """Return the error to raise if records after the position were removed, or None if none were removed.

        The server doesn't say which subjects the removed records had. If you read only some of the subjects, you may
        therefore have missed nothing.
        """
        if self.first_seq <= position.seq + 1:
            return None
        return HistoryTruncatedError(self.first_seq, position.seq + 1, self.stream)

    def after_time(
        self, time_ns: int, found: Iterable[tuple[int, int]], *, allow_truncated: bool = False
    ) -> Position | None:
        """Return the position directly before the first record stored after a time.

        A reader that starts there returns all records with a later sequence. If a different server has become the
        leader, some of them may have earlier time stamps.

        Args:
            time_ns: Unix time in nanoseconds.
            found: The ``(seq, time_ns)`` pairs of the records stored from this time on, in order. Request these records
                after the extent. Otherwise, a record stored between the two requests would be missed.
            allow_truncated: Whether to accept a stream whose first record is later than the time. Earlier records may
                then be missing.

        Returns:
            The position. If ``found`` is empty, this is the end of the stream. None if ``found`` has records, but none
            of them is later than the time. In this case, request the records that follow, and call the method again.

        Raises:
            HistoryTruncatedError: Records stored after the time may have been removed.
        """
        # Compare ``time_ns`` with the time of the first record or, if the stream is empty, of the last record removed.
        if (
            not allow_truncated
            and self.first_seq > 1
            and (
                time_ns < self.first_time_ns
                if self.first_seq <= self.last_seq
                else time_ns < self.last_time_ns
            )
        ):
            raise HistoryTruncatedError(self.first_seq, None, self.stream)
        found_any = False
        for seq, stamp in found:
            if stamp > time_ns:
                return Position(self.stream, self.incarnation, seq - 1, time_ns)
            found_any = True
        return None if found_any else Position(self.stream, self.incarnation, self.last_seq, time_ns)


@dataclass(slots=True)
class EndCheck:
    """Decides whether a stream has lost its last messages, because it ends before a sequence that it had contained.

    All times are monotonic seconds. A former leader of a replicated stream may be cut off from its cluster and still
    answer. It then reports an end that precedes positions which readers have saved since. It steps down after some
    seconds without a quorum. So for a replicated stream, the answer is final only after it has been the same for 10
    s, without a failed request or a lost connection. A single server is always up to date.
    """

    since: float | None = None
    _connects: int = 0

    def check_position(self, extent: Extent, position: Position, now: float) -> bool:
        """Return whether a reader can certainly continue from the position. If not, request the extent again.

        Raises:
            PositionInvalidError: The position is in another stream or incarnation, or certainly after the end.
        """
        # One answer is enough for this check, because even a former leader reports the right stream and incarnation.
        position._same_stream(extent.stream, extent.incarnation)  # noqa: SLF001  same module
        is_reached = self.check_end(extent, position.seq, now)
        if is_reached is False:
            extent.check(position)
        return bool(is_reached)

    def check_end(self, end: StreamEnd, seq: int, now: float) -> bool | None:
        """Return whether the stream ends at ``seq`` or later. None means uncertain, so request the end again."""
        if end.last_seq >= seq:
            self.since = None
            return True
        if end.replicas <= 1:
            return False
        if self.since is None or self._connects != end.connects:
            self.since, self._connects = now, end.connects
        return False if now - self.since >= CERTAIN else None

    def interrupted(self) -> None:
        """Record that a request failed or the connection was lost."""
        self.since = None


@dataclass(slots=True)
class CoveredEnd:
    """Decides up to which end the answer "no record follows" is reliable. Times are monotonic seconds.

    The leader of a stream may report its end, while the request for the records after a position is answered by a
    former leader that lacks the newest records. So for a replicated stream the answer "no record" is reliable up to
    an end only if it arrives 3 s or more after that end was reported, while the stream's end did not go back and the
    connection was not lost. Otherwise a reader would skip records permanently.

    Attributes:
        seq: The end up to which the answer "no record" is reliable now, or 0 if no such end is known.
    """

    seq: int = 0
    _newest: Extent | None = None
    _next: int = 0  # the next value of `seq`. A server reported this end at `_since`
    _since: float = 0.0

    def reported(self, extent: Extent, now: float) -> int:
        """Record an extent that was requested just before the records after a position. Return `seq`."""
        last = self._newest
        self._newest = extent
        if extent.replicas <= 1:
            self.seq = extent.last_seq
            return self.seq
        if (
            last is None
            or (last.incarnation, last.connects) != (extent.incarnation, extent.connects)
            or extent.last_seq < last.last_seq
        ):
            self.seq, self._next, self._since = 0, extent.last_seq, now
        elif now - self._since >= STEPPED_DOWN:
            self.seq, self._next, self._since = self._next, extent.last_seq, now
        return self.seq
