"""Decides how many messages a worker prefetches.

A message that waits in a worker could be handled by another worker, so its waiting time must be short. A worker with
fast handlers prefetches as many messages as it handled in the last half second, so that no handler waits for the
server. A worker with slow handlers prefetches twice as many messages as it has handlers. So does a worker that
receives many redelivered messages. If such messages kill their workers, each message that waits beside them loses a
delivery too.
"""

from __future__ import annotations

import math
import sys

from ...models.consumer import ConsumerConfig
from .work_rules import WorkOptions, WorkRules

__all__ = ["Prefetch", "Waiting"]

_AHEAD = 0.5  # seconds of work to prefetch
_MOST = 500
_DEFAULT_ACKS_PENDING = 1000  # the server's default of ``max_ack_pending``
_SUSPICIOUS = 0.1  # share of redelivered messages above which the prefetch is reduced


class Prefetch:
    """The limits of a worker, adapted to the speed of its handlers unless the user set ``prefetch``.

    Attributes:
        capacity: Maximum number of messages held by the worker, including messages being handled.
        pull: Maximum number of messages that a pull reader has requested or buffered in addition.
        count: Number of messages whose handlers were started since the last check of the limits. The caller counts
            them, and calls `check` when ``count`` reaches ``enough`` or at the moment ``until``.
    """

    __slots__ = (
        "_again",
        "_concurrency",
        "_least",
        "_most",
        "_most_pull",
        "_since",
        "_size",
        "capacity",
        "count",
        "enough",
        "pull",
        "until",
    )

    def __init__(self, rules: WorkRules, config: ConsumerConfig) -> None:
        options: WorkOptions = rules.options
        self._concurrency = options.concurrency
        self._least = self._size = options.waiting
        self._most = self._least
        if options.prefetch is None:
            pending = config.max_ack_pending or _DEFAULT_ACKS_PENDING
            self._most = max(self._least, min(_MOST, pending if pending > 0 else _MOST))
        self._most_pull = config.max_batch if config.max_batch and config.max_batch > 0 else _MOST
        self.count: int = 0
        self._again = 0  # number of redelivered messages that arrived
        self._since: float | None = None
        adapts = self._most > self._least
        self.enough: int = self._size if adapts else sys.maxsize
        self.until: float = -math.inf if adapts else math.inf
        self.capacity: int = rules.capacity
        self.pull: int = rules.pull

    def check(self, now: float) -> None:
        """Adapt the limits to the messages counted so far, including the message that is being started."""
        if self._since is not None:
            self._adapt(now - self._since)
            self.count = self._again = 0
        self._since, self.until = now, now + _AHEAD

    def redelivered(self) -> None:
        """Count a message that is delivered again."""
        self._again += 1

    def rested(self) -> None:
        """Reset the limits after a long time without messages. Requests at the server keep their size."""
        if self._most > self._least:
            self.count, self._again, self._since, self.until = 0, 0, None, -math.inf
            self._resize(self._least)

    def _adapt(self, seconds: float) -> None:
        """Set the limits for half a second of work at the measured speed.

        They are at most doubled, because a single measurement may be too short.
        """
        ahead = int(self.count / seconds * _AHEAD) if seconds > 0 else self._most
        if self._again > self.count * _SUSPICIOUS:
            ahead = self._least
        self._resize(max(self._least, min(self._most, ahead, 2 * self._size)))

    def _resize(self, size: int) -> None:
        self._size = self.enough = size
        buffered = size // 2
        self.capacity = self._concurrency + buffered
        self.pull = min(self._size - buffered, self._most_pull)


class Waiting:
    """Tracks how long arrived messages have waited for the worker.

    The worker takes them in the order of their arrival. When it has taken all messages that had arrived at some moment,
    the remaining messages arrived after that moment.

    Attributes:
        since: A moment, in monotonic seconds, after which all waiting messages arrived.
    """

    __slots__ = ("_arrived", "_noted", "_taken", "since")

    def __init__(self, now: float) -> None:
        self.since: float = now
        self._noted = now
        self._arrived = 0  # number of messages that had arrived at ``_noted``
        self._taken = 0

    def taken(self, count: int, pending: int, now: float) -> None:
        """Record that the worker took ``count`` messages while ``pending`` others wait."""
        self._taken += count
        if not pending or self._taken >= self._arrived:
            self.since = self._noted if pending else now
            self._noted, self._arrived = now, self._taken + pending
