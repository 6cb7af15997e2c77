"""The queue of a push subscription: messages that wait, with marks at their places among them.

What arrives together is counted together, so that a message costs nothing here but its place: sizes are kept by run,
and taken messages are settled when something arrives or somebody asks.
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
    """Bytes of all of them, as the server counts them."""
    return sum(
        [len(subject) + len(reply) + len(header) + len(data) for subject, reply, header, data in frames]
    )


@dataclass(slots=True)
class DeliveryQueue(Generic[Mark]):
    """A bounded queue. An empty one takes a message of any size: it could never be read otherwise.

    Attributes:
        front: The messages before the first mark; whoever reads takes them from its left.
        max_messages, max_bytes: What may wait.
    """

    max_messages: int
    max_bytes: int
    front: deque[Frame] = field(default_factory=deque)
    _behind: deque[list[Frame] | Mark] = field(
        default_factory=deque
    )  # begins with a mark, if there is anything
    _messages: int = 0  # in it
    marks: int = 0  # in it
    _runs: deque[tuple[int, int]] = field(
        default_factory=deque
    )  # messages and bytes of what arrived together
    _counted: int = 0  # messages in the runs
    _bytes: int = 0  # bytes in the runs

    @property
    def messages(self) -> int:
        """Messages that wait."""
        return len(self.front) + self._messages

    @property
    def bytes(self) -> int:
        """Their bytes."""
        self._settle_exactly()
        return self._bytes

    def _settle_exactly(self) -> None:
        """Count the part of the first run that was taken, too."""
        taken = self._settle()
        if taken:  # a part of the first run: the rest of it lies in front
            count, size = self._runs[0]
            rest = total_size(list(islice(self.front, count - taken)))
            self._runs[0] = (count - taken, rest)
            self._counted -= taken
            self._bytes += rest - size

    @property
    def has_room_for_mark(self) -> bool:
        """Whether no more than messages may wait in all."""
        return self.messages + self.marks <= self.max_messages

    @property
    def is_half_empty(self) -> bool:
        """Whether half of the room is free; what was taken of a run counts when all of it was."""
        self._settle()
        return self.messages <= self.max_messages // 2 and self._bytes <= self.max_bytes // 2

    def __bool__(self) -> bool:
        return bool(self.front or self._behind)

    def _settle(self) -> int:
        """Forget the runs that were taken; how many messages of the first one that is left were taken too."""
        taken, runs = self._counted - self.messages, self._runs
        while runs and runs[0][0] <= taken:
            count, size = runs.popleft()
            taken -= count
            self._counted -= count
            self._bytes -= size
        return taken

    def add(self, frames: list[Frame]) -> bool:
        """Messages that arrived together: all of them, or none if there is no room for all."""
        count, size = len(frames), total_size(frames)
        self._settle()
        waiting = self.messages
        if waiting or count > 1:
            if waiting + count > self.max_messages:
                return False
            if self._bytes + size > self.max_bytes and self.bytes + size > self.max_bytes:
                return False
        if self._behind:
            self._behind.append(frames)
            self._messages += count
        else:
            self.front.extend(frames)
        self._runs.append((count, size))
        self._counted += count
        self._bytes += size
        return True

    def mark(self, mark: Mark) -> None:
        """Behind all that waits."""
        self._behind.append(mark)
        self.marks += 1

    def mark_first(self, mark: Mark) -> None:
        """Before all that waits."""
        if self.front:
            self._settle_exactly()  # the run that is being taken will not lie in front any more
            self._behind.appendleft(list(self.front))
            self._messages += len(self.front)
            self.front.clear()
        self._behind.appendleft(mark)
        self.marks += 1

    def advance(self) -> Mark | None:
        """The mark that comes next, which is taken away; None if there is none. Only when `front` is empty."""
        behind = self._behind
        if not behind:
            return None
        mark = behind.popleft()
        assert not isinstance(mark, list)
        self.marks -= 1
        while behind and isinstance(run := behind[0], list):
            self.front.extend(run)
            self._messages -= len(run)
            behind.popleft()
        return mark

    def clear(self) -> list[Frame]:
        """Forget everything; the messages that waited."""
        frames = [*self.front]
        for run in self._behind:
            if isinstance(run, list):
                frames += run
        self.front.clear()
        self._behind.clear()
        self._runs.clear()
        self.marks = self._messages = self._counted = self._bytes = 0
        return frames
