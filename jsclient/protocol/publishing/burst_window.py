"""A window of bursts, which needs one record for thousands of publishes if their acks arrive in the order of sending.

On an error, an answer out of order, a deadline or a change of the connection, `BurstWindow` creates a record of each
publish, and `PublishWindow` takes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

import msgspec

from ...errors import JetStreamError
from ..models.publish import MAX_SEQUENCE, AckRun, PubAck, quick_pub_acks, read_ack_run
from ..wire.frames import Frame
from .in_flight import InFlight, TicketT
from .progress import Progress
from .publish_window import NEVER, Failures, PublishWindow, Sends

__all__ = ["Burst", "BurstWindow", "JoinAcks"]

# After answers have arrived out of order (for example, from several streams), this many of the following bursts keep
# one record per publish, because their answers will probably arrive out of order as well.
_SCATTERED = 64
_RUN = 8  # if at least this many acks arrive, searching for a run costs less than reading each ack


class JoinAcks(Protocol):
    """A compiled function that joins the acks in ``frames[start:stop]`` into a JSON array.

    It returns b"" unless all of them are acks exactly as servers write them. If ``replies`` is given, they must also
    answer to these reply subjects, in order, from the index ``first`` on.
    """

    def __call__(
        self, frames: list[Frame], start: int, stop: int, replies: list[bytes] | None = None, first: int = 0
    ) -> bytes: ...


@dataclass(slots=True, eq=False)
class Burst(Generic[TicketT]):
    """Publishes that were sent together, as columns. For the fields see `InFlight`."""

    ticket: TicketT
    replies: list[bytes]
    subjects: Sequence[bytes]
    headers: Sequence[bytes]
    payloads: Sequence[bytes]
    sizes: list[int]
    number: int  # number of the first publish
    deadline: float
    due: float
    repeatable: bool
    acked: int = 0


@dataclass(slots=True)
class BurstWindow(PublishWindow[TicketT]):
    """Publishes in flight, most of them in bursts.

    The acks of bursts are not sent to their tickets. They are added to ``runs`` if many of them form a run, otherwise
    to ``acks``.

    All publishes in flight fail when ``progress`` gives up.
    """

    acks: list[PubAck] = field(default_factory=list)
    runs: list[AckRun] = field(default_factory=list)
    progress: Progress = field(default_factory=lambda: Progress(NEVER))
    join_acks: JoinAcks | None = None
    _bursts: deque[Burst[TicketT]] = field(default_factory=deque)  # newer than all publishes in `in_flight`
    _in_bursts: int = 0
    _scattered: int = 0  # how many of the following bursts get a record per publish when they are sent

    @property
    def count(self) -> int:
        return len(self.in_flight) + self._in_bursts

    def add_burst(self, burst: Burst[TicketT], size: int) -> None:
        """Add publishes of ``size`` bytes that are being sent."""
        self._count_sent(size)
        if self._scattered:
            self._scattered -= 1
            self._record(burst)
        else:
            self._bursts.append(burst)
            self._in_bursts += len(burst.replies)

    def expand(self) -> None:
        for burst in self._bursts:
            self._record(burst)
        self._bursts.clear()
        self._in_bursts = 0

    def _record(self, burst: Burst[TicketT]) -> None:
        unacked = slice(burst.acked, None)
        columns = zip(
            burst.replies[unacked],
            burst.subjects[unacked],
            burst.headers[unacked],
            burst.payloads[unacked],
            burst.sizes[unacked],
            strict=True,
        )
        in_flight, number = self.in_flight, burst.number + burst.acked
        ticket, deadline, due, repeatable = burst.ticket, burst.deadline, burst.due, burst.repeatable
        for reply, to, header, data, size in columns:
            in_flight[reply] = InFlight(ticket, to, header, data, size, number, deadline, due, repeatable)
            number += 1

    def answers(self, frames: list[Frame], now: float) -> Failures[TicketT]:
        stored = self.stored
        failures = self._answers(frames, now)
        if self.stored > stored:
            self.progress.moved(now)
        return failures

    def _answers(self, frames: list[Frame], now: float) -> Failures[TicketT]:
        if not self._bursts:
            return PublishWindow.answers(self, frames, now)
        failures: Failures[TicketT] = []
        start, count = 0, len(frames)
        while start < count:
            if acked := self._acked(frames, start):
                start += acked
                continue
            end = start
            while end < count and frames[end][0] in self.in_flight:
                end += 1
            if end == start:  # an answer out of order, an error, or an answer to a repeated attempt
                self.expand()
                self._scattered = _SCATTERED
                end = count
            failures += PublishWindow.answers(self, frames[start:end], now)
            start = end
        return failures

    def _acked(self, frames: list[Frame], start: int) -> int:
        """Process the next acks of the oldest burst, from frame ``start`` on. Return their number."""
        if not self._bursts:
            return 0
        burst = self._bursts[0]
        first = burst.acked
        end = min(first + len(frames) - start, len(burst.replies))
        if not self._read_acks(frames, start, burst.replies, first, end):
            return 0
        self.answered.subjects.update(dict.fromkeys(burst.subjects[first:end]))
        self._count_stored(sum(burst.sizes[first:end]), end - first)
        self._in_bursts -= end - first
        burst.acked = end
        if end == len(burst.replies):
            self._bursts.popleft()
        return end - first

    def _read_acks(self, frames: list[Frame], start: int, replies: list[bytes], first: int, end: int) -> bool:
        """Add the acks from frame ``start`` on. Return False unless they answer exactly to ``replies[first:end]``."""
        stop, count = start + end - first, end - first
        joined = b"" if self.join_acks is None else self.join_acks(frames, start, stop, replies, first)
        joined = joined or _joined(frames[start:stop], replies[first:end])
        if count >= _RUN and (run := read_ack_run(joined, count)) is not None:
            self.runs.append(run)
            return True
        acks = _pub_acks(joined, count)
        self.acks += acks
        return bool(acks)

    def has_older(self, number: int) -> bool:
        self.expand()
        return PublishWindow.has_older(self, number)

    def connected(self, now: float) -> Sends[TicketT]:
        self.expand()
        return PublishWindow.connected(self, now)

    def check_publishes(self, now: float) -> tuple[Failures[TicketT], Sends[TicketT]]:
        self.expand()
        gives_up_at = self.progress.gives_up_at
        expired = self.fail_publishes(self._over) if now >= gives_up_at else []
        failures, sends = PublishWindow.check_publishes(self, now)
        if self.in_flight:
            self.next_check: float = min(self.next_check, gives_up_at)
        return expired + failures, sends

    def fail_publishes(self, why: Callable[[InFlight[TicketT]], JetStreamError | None]) -> Failures[TicketT]:
        self.expand()
        return PublishWindow.fail_publishes(self, why)


def _joined(answers: list[Frame], replies: list[bytes]) -> bytes:
    """Join answers to these reply subjects into a JSON array.

    Return b"" if their subjects differ, or if they can't be joined.
    """
    if [frame[0] for frame in answers] != replies:
        return b""
    texts = [frame[3] for frame in answers]
    joined = b",".join(texts)
    # The only brace of each text must be its first byte. Otherwise, malformed answers could form valid acks when
    # joined.
    if joined.count(b"{") != len(texts) or {text[:1] for text in texts} != {b"{"}:
        return b""
    return b"[%b]" % joined


def _pub_acks(joined: bytes, count: int) -> list[PubAck]:
    """Return the acks in a JSON array, or an empty list unless all of ``count`` texts are acks."""
    try:
        acks = quick_pub_acks(joined)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    sequences = [ack.seq for ack in acks]
    if not count or len(acks) != count or not 0 < min(sequences) <= max(sequences) <= MAX_SEQUENCE:
        return []
    return [] if "" in {ack.stream for ack in acks} else acks
