"""State of reading a range of a stream: which messages belong to it, when it ends, and whether any were lost.

A range ends when a message after it arrives, or when the server reports that nothing is pending and the stream's leader
confirms it, since a replica may lag. Messages that were removed before they were read leave only a gap in the
sequences. Deleted messages and messages that match no filter leave the same gap. The reader therefore checks the head
of the stream periodically: messages in a gap *before* the head may have been lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["RangeTracker", "pending_behind"]

T = TypeVar("T")


def pending_behind(reply: bytes) -> int:
    """The number of messages pending after this one, from its JSAck."""
    tokens = reply.split(b".")
    return int(tokens[8] if len(tokens) == 9 else tokens[10])


@dataclass(slots=True)
class RangeTracker:
    """The progress of reading one range, from ``first`` to ``last`` inclusive.

    Attributes:
        position: Every message of the range up to here was delivered or does not exist.
        is_over: The range has ended.
    """

    first: int
    last: int
    position: int = field(init=False)
    is_over: bool = field(init=False)
    _hole: int = 0  # start of the first gap since the last check of the head; 0: no gap

    def __post_init__(self) -> None:
        self.position = self.first - 1
        self.is_over = self.last < self.first

    @property
    def left(self) -> int:
        """Maximum number of messages left to read."""
        return 0 if self.is_over else self.last - self.position

    def take(self, messages: list[T], sequence: Callable[[T], int]) -> list[T]:
        """Return the messages that belong to the range. The input must be in order, without duplicates."""
        if not self._hole:
            whole = bisect_left(
                range(len(messages)), 1, key=lambda i: int(sequence(messages[i]) - i > self.position + 1)
            )
            if whole < len(messages):
                self._hole = self.position + 1 + whole
        last = sequence(messages[-1])
        if last >= self.last:
            messages = messages[: bisect_right(messages, self.last, key=sequence)]
            self.is_over = True  # messages after these are outside the range
        self.position = min(last, self.last)
        return messages

    def next_found(self, seq: int | None) -> bool:
        """Handle the leader's next message, None at the end of the stream. Returns whether it is in the range.

        If it isn't, the range ends.
        """
        if seq is not None and seq <= self.last:
            return True
        self._hole = self._hole or self.position + 1
        self.position, self.is_over = self.last, True
        return False

    def lost(self, first_seq: int) -> int | None:
        """Compare gaps with the head of the stream. Returns the first sequence that may have been lost, or None.

        A gap at or after ``first_seq`` can't be a loss: the head has not reached it, so its messages were deleted or
        did not match.
        """
        hole, self._hole = self._hole, 0
        return hole if hole and first_seq > hole else None
