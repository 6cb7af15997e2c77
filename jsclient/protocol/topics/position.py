"""Where a reader stands in a stream: a position, what the stream holds now, and whether the two fit.

A position is "after this record". Its sequence decides everything; its time is there to be read, and a time alone is
only an entry: the server's "since" includes the time itself, a ``datetime`` is cut to microseconds, and time stamps may
step back when another server leads the stream. A position is checked before it is used, because the server starves a
reader that asks for what lies behind the end, and starts later without a word where something was removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from ...errors import ConfigError, HistoryTruncatedError, PositionInvalidError

__all__ = ["Extent", "Position"]

_VERSION: Final = 1
_MAX_SEQUENCE: Final = 2**64 - 1
_MAX_TIME: Final = 2**63 - 1


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    """A position as JSON; ``v`` says which form of it."""

    v: Literal[1]
    stream: str
    incarnation: str
    seq: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Position:
    """After this record of a stream, and before all that follow it.

    Equal and ordered by sequence. Positions of two streams, or of two incarnations of one, are unequal and have no
    order: comparing them raises `PositionInvalidError`.

    Attributes:
        stream: The stream's name.
        incarnation: Which of the streams that had this name: text made from the time of its creation.
        seq: Stream sequence of the record; 0: before the first.
        time_ns: When it was stored, nanoseconds since 1970; 0: not known. It takes no part in comparisons.
    """

    stream: str
    incarnation: str
    seq: int
    time_ns: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str) or not self.stream or not isinstance(self.incarnation, str):
            raise ConfigError("a position has the name of a stream, and its incarnation as text")
        for name, limit in (("seq", _MAX_SEQUENCE), ("time_ns", _MAX_TIME)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
                raise ConfigError(f"{name} of a position is {value!r:.40}: it is a whole number of 0 or more")

    # --- as text -----------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The position as a token, which is all that a reader needs to keep."""
        token = _Token(_VERSION, self.stream, self.incarnation, self.seq, self.time_ns)
        return msgspec.json.encode(token).decode()

    @classmethod
    def from_json(cls, token: str | bytes) -> Position:
        """The position in a token.

        Raises:
            PositionInvalidError: It is none that `to_json` makes: no JSON, a field too many or too few, a value out of
                range, or a form of a newer version.
        """
        try:
            read = msgspec.json.decode(token, type=_Token)
            return cls(read.stream, read.incarnation, read.seq, read.time_ns)
        except (msgspec.DecodeError, ConfigError, UnicodeError, TypeError, RecursionError) as error:
            raise PositionInvalidError(f"{token!r:.200} is no position: {error}") from None

    # --- order -------------------------------------------------------------------------------------------------

    def __lt__(self, other: Position) -> bool:
        return self.seq < self._comparable(other).seq

    def __le__(self, other: Position) -> bool:
        return self.seq <= self._comparable(other).seq

    def __gt__(self, other: Position) -> bool:
        return self.seq > self._comparable(other).seq

    def __ge__(self, other: Position) -> bool:
        return self.seq >= self._comparable(other).seq

    def _comparable(self, other: Position) -> Position:
        if not isinstance(other, Position):
            raise TypeError(f"a position cannot be compared with {type(other).__name__}")
        self._same_stream(other.stream, other.incarnation)
        return other

    def _same_stream(self, stream: str, incarnation: str) -> None:
        if self.stream != stream:
            raise PositionInvalidError(f"a position of stream {self.stream!r} is none of stream {stream!r}")
        if self.incarnation != incarnation:
            raise PositionInvalidError(
                f"stream {stream!r} is another one than the position is of: it was made anew "
                f"({self.incarnation!r}, now {incarnation!r})"
            )

    # --- others of the same stream -----------------------------------------------------------------------------

    def at(self, seq: int, time_ns: int = 0) -> Position:
        """Another place in the same stream."""
        return replace(self, seq=seq, time_ns=time_ns)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds now, as its leader says.

    Attributes:
        stream, incarnation: As in `Position`.
        first_seq: Of the first record that is there; one more than ``last_seq`` if none is.
        last_seq: Of the last record that was ever stored; 0: none was.
        first_time_ns: Time stamp of the first record; 0: none is there.
        last_time_ns: Time stamp of the last one.
    """

    stream: str
    incarnation: str
    first_seq: int
    last_seq: int
    first_time_ns: int = 0
    last_time_ns: int = 0

    @property
    def start(self) -> Position:
        """Before the first record that is there."""
        return Position(self.stream, self.incarnation, max(self.first_seq, 1) - 1)

    @property
    def end(self) -> Position:
        """After the last record."""
        return Position(self.stream, self.incarnation, self.last_seq, self.last_time_ns)

    def check(self, position: Position) -> None:
        """Whether one can go on from there.

        Raises:
            PositionInvalidError: It is of another stream or incarnation, or lies behind the end: the server would wait
                for what never comes.
        """
        position._same_stream(self.stream, self.incarnation)  # noqa: SLF001  its own module
        if position.seq > self.last_seq:
            raise PositionInvalidError(
                f"position {position.seq} lies behind the end of stream {self.stream!r}, which is {self.last_seq}"
            )

    def truncated(self, position: Position) -> HistoryTruncatedError | None:
        """The error, if records behind the position were removed.

        Of which subjects they were cannot be told: for a reader of some subjects this means *possibly*.
        """
        if self.first_seq <= position.seq + 1:
            return None
        return HistoryTruncatedError(self.first_seq, position.seq + 1, self.stream)

    def after_time(
        self, time_ns: int, found: Iterable[tuple[int, int]], *, allow_truncated: bool = False
    ) -> Position | None:
        """The position strictly after a time: what the reader gets from there on begins later than that.

        Records with that very stamp are not behind it. Behind the position everything is, whatever its stamp: the
        sequence decides.

        Args:
            time_ns: Nanoseconds since 1970.
            found: ``(seq, time_ns)`` of what the reader's history has from that time on, in order. It is to be asked
                for after this extent was, so that nothing is stored between the two unseen.
            allow_truncated: Take what is there, though the history may begin later than asked for.

        Returns: None if all that was found has that stamp, or an earlier one: ask for what follows it.

        Raises:
            HistoryTruncatedError: Records were removed, and they may have been later than that time.
        """
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
        some = False
        for seq, stamp in found:
            if stamp > time_ns:
                return Position(self.stream, self.incarnation, seq - 1, time_ns)
            some = True
        return None if some else Position(self.stream, self.incarnation, self.last_seq, time_ns)
