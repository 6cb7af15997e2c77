"""The result of a fetch, and the state of a fetch that is collecting messages."""

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

# If a request is sent within this many seconds of the start of the fetch, it still gets the whole duration.
_SAME_TIME = 0.01


class Batch(Sequence[Message]):
    """The messages returned by `PullSubscription.fetch`, in the order of delivery.

    A batch is a sequence, which may be empty. You can iterate over it, index it, and call ``len`` on it::

        batch = await subscription.fetch(100)
        for message in batch:
            ...
            await message.ack()

    Attributes:
        ending: The reason why the fetch ended, for example ``Ending.FULL`` or ``Ending.EXPIRED``.
        error: The error that ended the fetch after some messages had arrived, or None. The messages can be handled in
            either case. If no message had arrived, `PullSubscription.fetch` raises the error instead of returning a
            batch.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: list[Message], ending: Ending, error: JetStreamError | None = None) -> None:
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
        # This is faster than the method of `Sequence`, which calls __getitem__ for each message.
        return iter(self._messages)

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error!r}"
        return f"<Batch of {len(self)}, {self.ending.value}{error}>"


class Collection:
    """The progress of one fetch. It keeps the messages collected so far and knows the remaining limits.

    Attributes:
        pull: The caller's request for the whole batch.
        frames: The messages collected so far.
        expires: Duration of the whole fetch, in seconds.
        deadline: Time at which the fetch ends, in monotonic seconds.
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
        self._size = 0  # bytes of the frames, counted only if needed for max_bytes

    def collect(self, source: deque[Frame]) -> bool:
        """Move messages from ``source`` to the batch until it is complete.

        Returns False if the next message of ``source`` would exceed ``max_bytes``, which ends the fetch.
        """
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
        """Return a pull request for ``missing`` messages that expires when the fetch ends."""
        pull, remaining = self.pull, self.deadline - now
        if missing == pull.batch and (pull.no_wait or remaining > self.expires - _SAME_TIME):
            # Return the same object each time, because its encoding is cached. The server starts counting only now, so
            # move the deadline too. Otherwise, the fetch would end just before the status of the request arrives.
            self.deadline = now + self.expires
            return pull
        free = None if pull.max_bytes is None else pull.max_bytes - self._size
        if pull.no_wait:
            return Pull(missing, None, free, no_wait=True, group=pull.group)
        heartbeat = pull.idle_heartbeat
        if heartbeat is not None and heartbeat > remaining / 2:
            # Leave out the heartbeat, because the server refuses one that is longer than half of the request's
            # duration.
            heartbeat = None
        return Pull(missing, max(remaining, 0.001), free, idle_heartbeat=heartbeat, group=pull.group)

    def batch(self, channel: AckChannel, ending: Ending, error: JetStreamError | None) -> Batch:
        """Return the messages collected so far as a batch, or raise ``error`` if there are none."""
        if error is not None and not self.frames:
            raise error
        return Batch(Handed([DeliveredMessage(frame, channel) for frame in self.frames]), ending, error)


def in_delivery_order(frames: list[Frame]) -> list[Frame]:
    """Sort messages by consumer sequence, the order in which the server delivered them.

    If one of them has a malformed ack subject, the messages are returned unchanged.
    """
    try:
        return sorted(frames, key=lambda frame: sequences(frame[1])[1])
    except NotJetStreamMessageError:
        return frames
