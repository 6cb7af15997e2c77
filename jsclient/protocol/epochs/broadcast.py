"""A publisher of epochs without a stream: a queue for each subscriber that is there, and nothing for those who are not.

Messages are numbered for each subscriber, so that a lost one is noticed (`LinkTracker`); it then connects anew. One
that does not take what waits for it is put out when its queue is full, and hinders nobody.

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
        publisher: What may be sent.
        max_pending: Messages that may wait for one subscriber.
        put_out: Subscribers so far that took too little.
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
        """The most messages that wait for one of them."""
        return max((len(queue.messages) for queue in self._queues.values()), default=0)

    @property
    def is_over(self) -> bool:
        """Everything is completed, and the subscribers have had all of it: the topic may be taken down."""
        return not self.publisher.lower and not any(queue.messages for queue in self._queues.values())

    def connect(self, subscriber: Hashable) -> None:
        """A subscriber came, or came again: its first message is the snapshot as of now."""
        self._queues.pop(subscriber, None)
        queue: _Queue[T] = _Queue()
        self._append(queue, self.publisher.snapshot)
        self._queues[subscriber] = queue

    def disconnect(self, subscriber: Hashable) -> None:
        """A subscriber left, or failed."""
        self._queues.pop(subscriber, None)

    def send(self, time: T, data: Any) -> None:
        """A batch of one time, to all.

        Raises:
            EpochCompletedError, ConfigError: As `EpochPublisher.send`; nothing was sent.
        """
        self.publisher.send(time)
        self._broadcast(DataMessage(time, data))

    def update(self, changes: Changes[T]) -> None:
        """Capabilities are given up and gained; what is to be seen of it goes to all. See `EpochPublisher.update`."""
        self._tell(self.publisher.update(changes))

    def advance(self, to: T) -> None:
        """What is before this time is completed. See `EpochPublisher.advance`."""
        self._tell(self.publisher.advance(to))

    def close(self) -> None:
        """Everything is completed."""
        self._tell(self.publisher.close())

    def take(self, subscriber: Hashable, limit: int = 1) -> list[tuple[int, Message[T]]]:
        """Up to so many messages for one subscriber, with their numbers 1, 2, 3 …; none if it is not connected."""
        queue = self._queues.get(subscriber)
        if queue is None:
            return []
        return [queue.messages.popleft() for _ in range(min(limit, len(queue.messages)))]

    def _tell(self, record: FrontierRecord[T] | None) -> None:
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
