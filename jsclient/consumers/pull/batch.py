"""The messages of one fetch, while they are collected and when they are returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import overload

from ...errors import JetStreamError, NotJetStreamMessageError
from ...protocol.consumers.ack import sequences
from ...protocol.consumers.fetch import Pull
from ...protocol.consumers.status import Ending
from ...protocol.wire.frames import Frame, frame_size
from ..message import AckChannel, DeliveredMessage, Message
from .in_hand import Handed

__all__ = ["Batch", "Collection", "in_delivery_order"]

_SAME_TIME = 0.01  # seconds after its start during which a fetch still requests its whole duration


class Batch(Sequence[Message]):
    """The messages of a fetch, in the order of delivery.

    Attributes:
        ending: Why the fetch ended.
        error: The error, if the fetch did not end normally. If there is no message at all, `PullSubscription.fetch`
            raises it instead.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: Handed, ending: Ending, error: JetStreamError | None = None) -> None:
        self._messages = messages
        self.ending: Ending = ending
        self.error: JetStreamError | None = error

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)  # the method of `Sequence` calls `__getitem__` for each message

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error!r}"
        return f"<Batch of {len(self)}, {self.ending.value}{error}>"


class Collection:
    """What one fetch has collected, and its requests for what is missing. Plain and ordered consumers both use it.

    Attributes:
        pull: The request for the whole batch.
        frames: The messages collected.
        expires: Seconds for the whole fetch.
        deadline: The end of the fetch, in monotonic seconds.
    """

    def __init__(
        self,
        pull: Pull,
        now: float,
        expires: float,
    ) -> None:
        self.pull: Pull = pull
        self.frames: list[Frame] = []
        self.expires: float = expires
        self.deadline: float = now + expires
        self._size = 0  # bytes of the frames, if they are limited

    def collect(self, source: deque[Frame]) -> bool:
        """Move messages from ``source``. Returns False if the next message would exceed ``max_bytes``."""
        frames, pull = self.frames, self.pull
        if pull.max_bytes is None and len(frames) + len(source) <= pull.batch:
            frames.extend(source)
            source.clear()
            return True
        while source and len(frames) < pull.batch:
            size = frame_size(source[0])
            if pull.max_bytes is not None and self._size + size > pull.max_bytes:
                return False
            self._size += size
            frames.append(source.popleft())
        return True

    def request(self, missing: int, now: float) -> Pull:
        """Return a request for ``missing`` messages in the remaining time."""
        pull, remaining = self.pull, self.deadline - now
        if missing == pull.batch and (pull.no_wait or remaining > self.expires - _SAME_TIME):
            # Equal requests are encoded once. The fetch ends with its request, and not a moment before the status is
            # due.
            self.deadline = now + self.expires
            return pull
        free = None if pull.max_bytes is None else pull.max_bytes - self._size
        if pull.no_wait:
            return Pull(missing, None, free, no_wait=True, group=pull.group)
        heartbeat = pull.idle_heartbeat
        if heartbeat is not None and heartbeat > remaining / 2:
            heartbeat = None  # the server refuses a heartbeat for such a short request
        return Pull(missing, max(remaining, 0.001), free, idle_heartbeat=heartbeat, group=pull.group)

    def batch(self, channel: AckChannel, ending: Ending, error: JetStreamError | None) -> Batch:
        """Return the messages collected. Raises ``error`` if there are none."""
        if error is not None and not self.frames:
            raise error
        return Batch(Handed([DeliveredMessage(frame, channel) for frame in self.frames]), ending, error)


def in_delivery_order(frames: list[Frame]) -> list[Frame]:
    """Return the messages in the order of their consumer sequences, or unchanged if an ack subject is damaged."""
    try:
        return sorted(frames, key=lambda frame: sequences(frame[1])[1])
    except NotJetStreamMessageError:
        return frames
