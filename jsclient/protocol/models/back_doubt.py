"""Decides whether an answer with an earlier record is true, or comes from a former leader of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

__all__ = ["CERTAIN", "STEPPED_DOWN", "BackwardCheck", "Direction", "ReportedEnd", "StreamEnd"]

CERTAIN: Final = 10.0
"""How long the answers must agree before they are trusted, in seconds."""

STEPPED_DOWN: Final = 3.0
"""How long it takes a former leader that is reachable again to learn of its successor, in seconds."""


class StreamEnd(Protocol):
    """The end of a stream, as its leader reports it. For the fields see `jsclient.kits.Extent`."""

    @property
    def incarnation(self) -> str: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def connects(self) -> int: ...


class ReportedEnd(NamedTuple):
    """A `StreamEnd` without the other fields of a `jsclient.kits.Extent`."""

    incarnation: str
    last_seq: int
    replicas: int
    connects: int


Direction: TypeAlias = Literal["ask again", "removed", "restored"]
"""The verdict on an answer with an earlier record.

"ask again" means that it is still uncertain, "removed" that newer records were removed, and "restored" that the
stream has lost them.
"""


@dataclass(slots=True)
class BackwardCheck:
    """Decides whether the newest record is really older than a record read before. Times are monotonic seconds.

    A former leader of a replicated stream that was cut off and reconnects still answers from its old state until it
    learns of its successor. A reader that has read a record may therefore return an earlier record only if the
    records in between were removed, or the stream was replaced. The answer of a stream with one replica is final.
    With several replicas, the answer must stay the same for 3 s if the stream doesn't end before that record, or for
    10 s if it ends before the record or its end can't be requested.

    Attributes:
        since: The time of the first answer that went back, or None if the last answer did not.
    """

    since: float | None = None
    _covered_since: float | None = None  # since when the end of the stream has included the record
    _connects: int = 0

    def check_end(self, seen: int, end: StreamEnd | None, now: float, *, incarnation: str = "") -> Direction:
        """Check an answer that is before ``seen``, the sequence of a record that was read.

        Args:
            seen: The sequence of the record.
            end: The end of the stream, requested after the answer, or None if the user may not request it.
            now: Monotonic seconds.
            incarnation: The incarnation of the stream from which the record was read, "" if unknown.
        """
        if end is not None:
            if end.replicas <= 1 or (incarnation and end.incarnation != incarnation):
                self.start_again()
                return "removed"
            # Start again after a reconnect. Another server may answer now, and it needs time to catch up as well.
            if end.connects != self._connects:
                self.start_again()
                self._connects = end.connects
        if self.since is None:
            self.since = now
        if end is None or end.last_seq < seen:
            self._covered_since = None
        elif self._covered_since is None:
            self._covered_since = now
        if self._covered_since is not None and now - self._covered_since >= STEPPED_DOWN:
            self.start_again()
            return "removed"
        if now - self.since >= CERTAIN:
            self.start_again()
            return "removed" if end is None else "restored"
        return "ask again"

    def start_again(self) -> None:
        """Start again, because an answer was not earlier, a request failed, or the connection was lost."""
        self.since = self._covered_since = None
