"""Answers of a replicated stream's former leader: whether what goes back is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

__all__ = ["CERTAIN", "STEPPED_DOWN", "BackDoubt", "Direction", "ReportedEnd", "StreamEnd"]

CERTAIN: Final = 10.0
"""Seconds for which an answer must have been repeated."""

STEPPED_DOWN: Final = 3.0
"""Seconds in which a former leader that is back hears of its successor."""


class StreamEnd(Protocol):
    """The end of a stream, as its leader reports it. The fields are explained at `Extent`."""

    @property
    def incarnation(self) -> str: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def connects(self) -> int: ...


class ReportedEnd(NamedTuple):
    """A `StreamEnd` without the rest of an `Extent`."""

    incarnation: str
    last_seq: int
    replicas: int
    connects: int


Direction: TypeAlias = Literal["ask again", "removed", "restored"]
"""What an answer means that goes back: nothing yet; newer records were removed; the stream has lost them."""


@dataclass(slots=True)
class BackDoubt:
    """Decides whether the newest record is older than one that was read before. Times are monotonic seconds.

    The former leader of a replicated stream that was cut off and reaches one of the others again still answers, with
    what it had, until it hears of its successor. So a reader that has had a record is given an earlier one only if
    the records in between were removed, or the stream is another one. A stream with one replica is believed at once.
    Otherwise the answer must have been repeated for 3 s while the stream's end was not before that record; or for
    10 s, if the end was before it or could not be requested.

    Attributes:
        since: When an answer went back first; None: none has, or a later one did not.
    """

    since: float | None = None
    _covered_since: float | None = None  # the stream's end was not before the record read since then
    _connects: int = 0

    def check(self, seen: int, end: StreamEnd | None, now: float, *, incarnation: str = "") -> Direction:
        """Judge an answer that is before ``seen``, the sequence of a record that was read.

        Args:
            end: The end of the stream, requested after the answer; None: the user may not request it.
            incarnation: That of the stream from which the record was read; "": unknown.
        """
        if end is not None:
            if end.replicas <= 1 or (incarnation and end.incarnation != incarnation):
                self.clear()
                return "removed"
            if end.connects != self._connects:
                self.clear()
                self._connects = end.connects
        if self.since is None:
            self.since = now
        if end is None or end.last_seq < seen:
            self._covered_since = None
        elif self._covered_since is None:
            self._covered_since = now
        if self._covered_since is not None and now - self._covered_since >= STEPPED_DOWN:
            self.clear()
            return "removed"
        if now - self.since >= CERTAIN:
            self.clear()
            return "removed" if end is None else "restored"
        return "ask again"

    def clear(self) -> None:
        """An answer did not go back, a request failed, or the connection was lost."""
        self.since = self._covered_since = None
