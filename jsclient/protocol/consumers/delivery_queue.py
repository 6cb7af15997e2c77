"""The queue of a push subscription: messages, with marks at their positions among them.

Messages that arrive together are counted together, so that a single one costs nothing here: sizes are kept by run, and
taken messages are accounted for at the next arrival or query.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from ..wire.frames import Frame

__all__ = ["DeliveryQueue", "total_size"]

Mark = TypeVar("Mark")


def total_size(frames: list[Frame]) -> int:
    """Bytes of all frames, as the server counts them."""
    return sum(
        [len(subject) + len(reply) + len(header) + len(data) for subject, reply, header, data in frames]
    )


@dataclass(slots=True)
class DeliveryQueue(Generic[Mark]):
    """A bounded queue. An empty one accepts a message of any size, which could never be read otherwise.

    Attributes:
        front: The messages before the first mark; the reader takes them from its left.
        max_messages, max_bytes: The capacity.
    """

    max_messages: int
    max_bytes: int
    front: deque[Frame] = field(default_factory=deque)
    _after: deque[list[Frame] | Mark] = field(
        default_factory=deque
    )  # what follows `front`; starts with a mark
    _messages: int = 0  # in `_after`
    marks: int = 0  # in `_after`
    _runs: deque[tuple[int, int]] = field(default_factory=deque)  # messages and bytes that arrived together
    _counted: int = 0  # messages in the runs
    _bytes: int = 0  # bytes in the runs

    @property
    def messages(self) -> int:
        """Messages in the queue."""
        return len(self.front) + self._messages

    @property
    def bytes(self) -> int:
        """Their bytes."""
        self._settle_exactly()
        return self._bytes

    def _settle_exactly(self) -> None:
        """As `_settle`, including the taken part of the first run."""
        taken = self._settle()
        if taken:  # a part of the first run: the rest of it is at the start of `front`
            count, size = self._runs[0]
            rest = total_size(list(islice(self.front, count - taken)))
            self._runs[0] = (count - taken, rest)
            self._counted -= taken
            self._bytes += rest - size

    @property
    def has_room_for_mark(self) -> bool:
        """Whether messages and marks together are within the capacity in messages."""
        return self.messages + self.marks <= self.max_messages

    @property
    def is_half_empty(self) -> bool:
        """Whether half of the capacity is free; a run counts as taken when all of it was taken."""
        self._settle()
        return self.messages <= self.max_messages // 2 and self._bytes <= self.max_bytes // 2

    def __bool__(self) -> bool:
        return bool(self.front or self._after)

    def _settle(self) -> int:
        """Drop the runs that were taken; returns how many messages of the first remaining run were taken."""
        taken, runs = self._counted - self.messages, self._runs
        while runs and runs[0][0] <= taken:
            count, size = runs.popleft()
            taken -= count
            self._counted -= count
            self._bytes -= size
        return taken

    def add(self, frames: list[Frame]) -> bool:
        """Add messages that arrived together: all of them, or none if they do not all fit."""
        count, size = len(frames), total_size(frames)
        waiting = len(self.front) + self._messages
        if self._counted != waiting:
            self._settle()
        if waiting or count > 1:
            if waiting + count > self.max_messages:
                return False
            if self._bytes + size > self.max_bytes and self.bytes + size > self.max_bytes:
                return False
        if self._after:
            self._after.append(frames)
            self._messages += count
        else:
            self.front.extend(frames)
        self._runs.append((count, size))
        self._counted += count
        self._bytes += size
        return True

    def mark(self, mark: Mark) -> None:
        """Append a mark."""
        self._after.append(mark)
        self.marks += 1

    def mark_first(self, mark: Mark) -> None:
        """Put a mark before all queued messages."""
        if self.front:
            self._settle_exactly()  # the run that is being taken moves out of `front`
            self._after.appendleft(list(self.front))
            self._messages += len(self.front)
            self.front.clear()
        self._after.appendleft(mark)
        self.marks += 1

    def advance(self) -> Mark | None:
        """Remove and return the next mark; None if the queue is empty. To be called only when `front` is empty."""
        after = self._after
        if not after:
            return None
        mark = after.popleft()
        assert not isinstance(mark, list)
        self.marks -= 1
        while after and isinstance(run := after[0], list):
            self.front.extend(run)
            self._messages -= len(run)
            after.popleft()
        return mark

    def clear(self) -> list[Frame]:
        """Empty the queue; returns its messages."""
        frames = [*self.front]
        for run in self._after:
            if isinstance(run, list):
                frames += run
        self.front.clear()
        self._after.clear()
        self._runs.clear()
        self.marks = self._messages = self._counted = self._bytes = 0
        return frames
