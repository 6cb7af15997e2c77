"""Measure how many of a stream's next messages fit into a number of bytes. The server sends no payloads."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from ...protocol.consumers.ack import sequences
from ...protocol.wire.frames import Frame
from ...protocol.wire.header_names import MSG_SIZE
from ...streams.stream import Stream
from ...tables.offsets import StreamFacts
from ...tables.range_reader import ConsumerRange
from ...tables.ranges import SequenceRange

__all__ = ["MOST_MEASURED", "Measured", "Sizes"]

MOST_MEASURED = 16_384
"""Maximum number of messages to measure for one batch. This takes a tenth of a second of CPU time."""

_AT_ONCE = 4096  # messages to request at a time
# Maximum number of bytes that the server loads for one request. It loads payloads even for header-only requests.
_LOADED = 16 * 1024 * 1024
_REMEMBERED = 100  # number of past states of the end of the stream to keep
_SIZE = f"{MSG_SIZE}: ".encode()


@dataclass(slots=True)
class Measured:
    """The messages at the start of a range that fit into a number of bytes.

    Attributes:
        last: The last sequence that fits, or the last measured sequence if `MOST_MEASURED` messages fit.
        is_end: True if no further message of the range fits. If False, more messages may fit.
        count: The number of messages, at least 1 unless the range has none.
        bytes: The size of the messages.
    """

    last: int
    is_end: bool = True
    count: int = 0
    bytes: int = 0

    @property
    def mean_bytes(self) -> int:
        """The mean size of the messages, at least 1."""
        return max(1, -(-self.bytes // max(1, self.count)))


class Sizes:
    """Measured sizes of a stream's messages. Used on the driver.

    A measurement reads ahead for the next batches, so most batches need no further measurement. Nothing has to be
    measured if fewer bytes were stored since an earlier batch than the limit allows.
    """

    def __init__(self) -> None:
        # Past states of the end of the stream: (last sequence, total bytes), oldest first.
        self._ends: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        # `_ends` is valid for this stream, first sequence and number of gaps. It is discarded when one of them changes.
        self._ends_of: object = None
        self._seen_of: object = None  # the stream and the filters for which the messages below were measured
        # First and last measured sequence. The two arrays contain the sequence and the size of every message between
        # them.
        self._seen = (1, 0)
        self._seqs = array("q")
        self._bytes = array("q")

    def note(self, facts: StreamFacts) -> None:
        """Remember how many bytes the stream has. Earlier numbers are dropped if messages were removed since."""
        key = (facts.created, facts.first_seq, facts.gaps)
        if key != self._ends_of:
            self._ends_of = key
            self._ends.clear()
        if not self._ends or self._ends[-1][0] < facts.last_seq:
            self._ends.append((facts.last_seq, facts.bytes))

    def fit(self, whole: SequenceRange, most: int, facts: StreamFacts) -> bool:
        """Return whether a range certainly fits into ``most`` bytes, given the bytes stored since its start.

        A single message always fits. If the result is False, the sizes have to be measured.
        """
        if whole.width == 1:  # a single message may exceed the limit
            return True
        if whole.last > facts.last_seq:
            return False
        if facts.bytes <= most:
            return True
        self.note(facts)
        at = bisect_left(self._ends, (whole.first, 0)) - 1
        return at >= 0 and facts.bytes - self._ends[at][1] <= most

    def forget(self) -> None:
        """Forget all sizes, because the stream now has other messages."""
        self._ends_of = self._seen_of = None

    async def measure(
        self, stream: Stream, whole: SequenceRange, most: int, facts: StreamFacts, subjects: Sequence[str]
    ) -> Measured:
        """Find the messages of a range that fit into ``most`` bytes. The first message always fits.

        Args:
            stream: The stream.
            whole: The range. A measurement may continue beyond it, up to the end of the stream.
            most: The limit in bytes.
            facts: The facts of the stream.
            subjects: Subject filters. Empty for all messages.

        Raises:
            PositionInvalidError: The stream was deleted and recreated.
            JetStreamError: See `ConsumerRange`.
        """
        self._keep(whole.first, (facts.created, *subjects))
        reader, end = None, max(whole.last, facts.last_seq)
        try:
            while (measured := self._measured(whole, most)) is None:
                if reader is None:
                    reader = self._reader(stream, facts, subjects, end)
                await self._look(reader, end)
        finally:
            if reader is not None:
                await reader.close()
        return measured

    def _keep(self, first: int, seen_of: object) -> None:
        """Drop the sizes of messages before the sequence ``first``.

        All sizes are dropped if they belong to another stream or to other filters, or if ``first`` does not continue
        the measured messages, which would leave a hole.
        """
        if seen_of != self._seen_of or not self._seen[0] <= first <= self._seen[1]:
            self._seqs, self._bytes, self._seen = array("q"), array("q"), (first, first - 1)
        self._seen_of, self._seen = seen_of, (first, self._seen[1])
        done = bisect_left(self._seqs, first)
        del self._seqs[:done], self._bytes[:done]

    def _measured(self, whole: SequenceRange, most: int) -> Measured | None:
        """Return the messages that fit, judged by the sizes measured so far, or None if more sizes are needed."""
        count = bisect_right(self._seqs, whole.last)
        totals = list(accumulate(self._bytes[:count]))
        fitting = max(min(count, 1), bisect_right(totals, most))
        if fitting < count:
            return Measured(self._seqs[fitting] - 1, True, fitting, totals[fitting - 1])
        total = totals[-1] if totals else 0
        if self._seen[1] >= whole.last:
            return Measured(whole.last, True, count, total)
        return Measured(self._seqs[-1], False, count, total) if count >= MOST_MEASURED else None

    def _reader(self, stream: Stream, facts: StreamFacts, subjects: Sequence[str], end: int) -> ConsumerRange:
        return ConsumerRange(
            stream,
            self._seen[1] + 1,
            end,
            subjects=subjects,
            created=datetime.fromisoformat(facts.created),
            check_loss=False,
            max_messages=max(1, min(_AT_ONCE, _LOADED // facts.mean_bytes)),
            headers_only=True,
        )

    async def _look(self, reader: ConsumerRange, last: int) -> None:
        frames = await reader.read_messages(_AT_ONCE)
        self._seqs.extend(_sequences(frames))
        self._bytes.extend(map(_size, frames))
        self._seen = (self._seen[0], self._seqs[-1] if frames else last)


def _sequences(frames: Sequence[Frame]) -> Sequence[int]:
    """Return the stream sequence of each frame.

    Parsing the replies would take most of the time. If the sequences have no gaps, only two replies are parsed.
    """
    if not frames:
        return ()
    first, last = sequences(frames[0][1])[0], sequences(frames[-1][1])[0]
    if last - first + 1 == len(frames):
        return range(first, last + 1)
    return [sequences(frame[1])[0] for frame in frames]


def _size(frame: Frame) -> int:
    """Return the size of a message, including the payload that the server has omitted.

    The server adds a header with the size of the payload after the headers of the message. A message may have a header
    with the same name, so the last one counts.
    """
    subject, _, block, data = frame
    at = block.rfind(_SIZE)
    digits = block[at + len(_SIZE) : block.find(b"\r\n", at)]
    omitted = int(digits) if digits.isdigit() and len(digits) < 12 else 0
    return len(subject) + max(0, at) + len(data) + omitted
