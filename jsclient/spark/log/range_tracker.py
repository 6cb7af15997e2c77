"""Reading a range of a stream to its end: which messages belong to it, when it is over, and whether any were lost.

A range ends where a message behind it comes, or where the server says that nothing more waits and the stream's leader
agrees: a replica may lag. Messages that were removed before they were read leave no trace but a hole between two
sequences, and so do those that were deleted, or that no filter lets pass. So the head of the stream is looked at now
and then: what was missing *below* it may have been lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["RangeTracker", "pending_behind"]

T = TypeVar("T")


def pending_behind(reply: bytes) -> int:
    """How many messages the consumer had to deliver behind this one, by its JSAck."""
    tokens = reply.split(b".")
    return int(tokens[8] if len(tokens) == 9 else tokens[10])


@dataclass(slots=True)
class RangeTracker:
    """One range, both ends included.

    Attributes:
        position: Everything of the range up to it was delivered, or is not there.
        is_over: Nothing more is to come.
    """

    first: int
    last: int
    position: int = field(init=False)
    is_over: bool = field(init=False)
    _hole: int = 0  # the first sequence that may be missing since the head was looked at; 0: none is

    def __post_init__(self) -> None:
        self.position = self.first - 1
        self.is_over = self.last < self.first

    @property
    def left(self) -> int:
        """How many messages there can be still."""
        return 0 if self.is_over else self.last - self.position

    def take(self, messages: list[T], sequence: Callable[[T], int]) -> list[T]:
        """Those of the messages that belong to the range. They must come in order, each once."""
        if not self._hole:
            whole = bisect_left(
                range(len(messages)), 1, key=lambda i: int(sequence(messages[i]) - i > self.position + 1)
            )
            if whole < len(messages):
                self._hole = self.position + 1 + whole
        last = sequence(messages[-1])
        if last >= self.last:
            messages = messages[: bisect_right(messages, self.last, key=sequence)]
            self.is_over = True  # behind what came there is nothing of the range
        self.position = min(last, self.last)
        return messages

    def next_found(self, seq: int | None) -> bool:
        """The stream's leader has this as the next message; None: none. Returns whether it is of the range.

        If it is not, the range is over.
        """
        if seq is not None and seq <= self.last:
            return True
        self._hole = self._hole or self.position + 1
        self.position, self.is_over = self.last, True
        return False

    def lost(self, first_seq: int) -> int | None:
        """The head of the stream is now ``first_seq``: the first sequence that may have been removed unread, or None.

        What was missing at the head or behind it was deleted, or not let pass, long before the head comes there.
        """
        hole, self._hole = self._hole, 0
        return hole if hole and first_seq > hole else None
