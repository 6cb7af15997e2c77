"""A publisher of epochs without a stream: a queue for each connected subscriber.

The messages to a subscriber are numbered, so that it notices a lost one and connects again. A subscriber that does not
read is disconnected when its queue is full, and does not affect others.

Source: Strymon's publish-subscribe protocol, "Publisher Logic".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .frontier import Changes
from .messages import DataMessage, FrontierRecord, Message
from .trackers import EpochPublisher

__all__ = ["EpochBroadcast"]

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _Queue(Generic[T]):
    messages: deque[tuple[int, Message[T]]] = field(default_factory=deque)
    count: int = 0  # messages so far


@dataclass(slots=True)
class EpochBroadcast(Generic[T]):
    """One partition and its subscribers.

    Attributes:
        publisher: The state of the partition.
        max_pending: The longest queue of a subscriber, messages.
        put_out: Subscribers disconnected so far because their queue was full.
    """

    publisher: EpochPublisher[T]
    max_pending: int = 10_000
    put_out: int = 0
    _queues: dict[Hashable, _Queue[T]] = field(default_factory=dict)

    @property
    def subscribers(self) -> list[Hashable]:
        """Those that are connected."""
        return [*self._queues]

    @property
    def longest(self) -> int:
        """The length of the longest queue."""
        return max((len(queue.messages) for queue in self._queues.values()), default=0)

    @property
    def is_over(self) -> bool:
        """Whether everything is completed and all queues are empty."""
        return not self.publisher.lower and not any(queue.messages for queue in self._queues.values())

    def connect(self, subscriber: Hashable) -> None:
        """Connect a subscriber, or connect it again: its first message is the current snapshot."""
        self._queues.pop(subscriber, None)
        queue: _Queue[T] = _Queue()
        self._append(queue, self.publisher.snapshot)
        self._queues[subscriber] = queue

    def disconnect(self, subscriber: Hashable) -> None:
        """Disconnect a subscriber."""
        self._queues.pop(subscriber, None)

    def send(self, time: T, data: Any) -> None:
        """Send a batch of one time to all.

        Raises:
            EpochCompletedError, ConfigError: As `EpochPublisher.send`; nothing was sent.
        """
        self.publisher.send(time)
        self._broadcast(DataMessage(time, data))

    def update(self, changes: Changes[T]) -> None:
        """Drop and add capabilities, and send the change to all. See `EpochPublisher.update`."""
        self._publish(self.publisher.update(changes))

    def advance(self, to: T) -> None:
        """Complete the times before this one. See `EpochPublisher.advance`."""
        self._publish(self.publisher.advance(to))

    def close(self) -> None:
        """Complete everything."""
        self._publish(self.publisher.close())

    def take(self, subscriber: Hashable, limit: int = 1) -> list[tuple[int, Message[T]]]:
        """Take up to ``limit`` messages of one subscriber, with their numbers 1, 2, 3 …; none if not connected."""
        queue = self._queues.get(subscriber)
        if queue is None:
            return []
        return [queue.messages.popleft() for _ in range(min(limit, len(queue.messages)))]

    def _publish(self, record: FrontierRecord[T] | None) -> None:
        if record is not None:
            self._broadcast(record.update)

    def _broadcast(self, message: Message[T]) -> None:
        for subscriber, queue in [*self._queues.items()]:
            if len(queue.messages) >= self.max_pending:
                del self._queues[subscriber]
                self.put_out += 1
            else:
                self._append(queue, message)

    @staticmethod
    def _append(queue: _Queue[T], message: Message[T]) -> None:
        queue.count += 1
        queue.messages.append((queue.count, message))
