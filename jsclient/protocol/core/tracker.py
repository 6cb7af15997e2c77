"""A subscription to plain messages as a state machine, with its queued and dropped messages.

A plain message is never redelivered. A message that does not fit into the queue is dropped, counted and reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ..consumers.push import DeliveryQueue
from ..events import SlowConsumer
from ..wire.frames import Frame, total_size

__all__ = ["MAX_PENDING", "MAX_PENDING_BYTES", "CoreTracker"]

MAX_PENDING = 524_288
"""The maximum number of messages that wait in a subscription, by default."""

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""The maximum size of the messages that wait in a subscription, in bytes, by default."""

TotalSize: TypeAlias = Callable[[list[Frame]], int]


class CoreTracker:
    """The bounded queue of a subscription, and the number of messages after which the subscription ends.

    Attributes:
        front: The messages that wait. The reader takes them from the left.
        received: The number of messages that have arrived, including dropped messages.
        dropped: The number of messages that were dropped.
        after: The number of messages after which no more are accepted, or None.
    """

    __slots__ = ("_overflow", "_queue", "_subject", "after", "dropped", "front", "received")

    def __init__(
        self, subject: str, max_pending: int, max_pending_bytes: int, size_of: TotalSize = total_size
    ) -> None:
        self._subject = subject
        self._queue: DeliveryQueue[None] = DeliveryQueue(max_pending, max_pending_bytes, size_of)
        self._overflow: SlowConsumer | None = None  # the event that reported the current overflow, or None
        self.front: deque[Frame] = self._queue.front
        self.received: int = 0
        self.dropped: int = 0
        self.after: int | None = None

    @property
    def pending(self) -> int:
        """The number of messages in the queue."""
        return self._queue.messages

    @property
    def pending_bytes(self) -> int:
        """The number of bytes in the queue, as the server counts them."""
        return self._queue.bytes

    @property
    def is_complete(self) -> bool:
        """Whether all messages up to `after` have arrived."""
        return self.after is not None and self.received >= self.after

    def receive(self, frames: list[Frame]) -> list[SlowConsumer]:
        """Queue frames that arrived together, and return the events to report."""
        if self.after is not None:  # the server may have sent more messages before it learned of the limit
            frames = frames[: max(0, self.after - self.received)]
        if not frames:
            return []
        self.received += len(frames)
        if self._overflow is None and self._queue.add_frames(frames):
            return []
        events: list[SlowConsumer] = []
        for frame in frames:
            if self._queue.add_frames([frame]):
                events += self._overflow_ended()
            else:
                events += self._drop()
        return events

    def _drop(self) -> list[SlowConsumer]:
        """Count a dropped message.

        An event reports the first dropped message, then each time the number has doubled.
        """
        self.dropped += 1
        count = 1 if self._overflow is None else self._overflow.dropped + 1
        self._overflow = SlowConsumer(subject=self._subject, dropped=count)
        return [] if count & (count - 1) else [self._overflow]

    def _overflow_ended(self) -> list[SlowConsumer]:
        overflow, self._overflow = self._overflow, None
        if overflow is None or overflow.dropped == 1:
            return []
        return [msgspec.structs.replace(overflow, ended=True)]

    def end_queue(self) -> list[SlowConsumer]:
        """Return the event for drops that were not reported yet."""
        overflow = self._overflow
        if overflow is None or not overflow.dropped & (overflow.dropped - 1):
            return []
        return self._overflow_ended()

    def drop_messages(self) -> None:
        """Drop all messages in the queue."""
        self._queue.clear()
