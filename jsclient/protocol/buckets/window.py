"""The messages that followers of a bucket share. Each follower reads them at its own pace, from a bounded window.

A message leaves the window when every follower has read it, or when the window is full. A follower that was too slow
has then fallen behind. It reads the bucket on its own, and joins again when it has reached the window. A slow
follower therefore takes no memory and doesn't delay the others.

The window begins after its *floor*, which means that it contains every message after that sequence. A follower can
join if its own position is not before the floor. It then skips the messages that it has already read. Joining
therefore causes neither a gap nor a repetition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..wire.frames import Frame, frame_size

__all__ = ["Follower", "Window", "WindowMessage"]

_KEPT: Final = 256  # messages that may remain although all followers have read them
_KEPT_BYTES: Final = 256 * 1024


class WindowMessage(NamedTuple):
    """A message in a window. ``era`` is the number of times that the stream had been recreated before."""

    frame: Frame
    revision: int
    time_ns: int
    pending: int
    era: int


@dataclass(slots=True, eq=False)
class Follower:
    """A reader of a window.

    Attributes:
        index: The number of the next message to read, counted from the first message that was ever in the window.
        position: The sequence up to which the follower has read the stream.
        era: The era of this position.
    """

    index: int = 0
    position: int = 0
    era: int = 0


@dataclass(slots=True)
class Window:
    """The messages of a stream after ``floor``, for any number of followers.

    Attributes:
        floor: The sequence after which the window contains every message of the current era.
        era: The number of times that the stream was recreated.
        max_count, max_bytes: The capacity of the window. A single message may be larger.
    """

    floor: int = 0
    era: int = 0
    max_count: int = 4096
    max_bytes: int = 4 * 1024 * 1024
    _followers: set[Follower] = field(default_factory=set)
    _messages: list[WindowMessage] = field(default_factory=list)
    _base: int = 0  # the index of the first message
    _bytes: int = 0

    @property
    def _end_index(self) -> int:
        return self._base + len(self._messages)

    def register(self, follower: Follower) -> None:
        """Keep messages from now on for a follower, which may join once it has read all earlier messages."""
        follower.index = self._end_index
        self._followers.add(follower)

    def remove_follower(self, follower: Follower) -> None:
        """Stop keeping messages for this follower."""
        self._followers.discard(follower)

    def covers(self, position: int, era: int) -> bool:
        """Return whether the window contains every message after a position."""
        return era == self.era and position >= self.floor

    def join_after(self, follower: Follower, position: int) -> bool:
        """Let a follower continue here, after a position in the current era. Return False if messages are missing."""
        if not self.covers(position, self.era):
            return False
        follower.index, follower.position, follower.era = self._base, position, self.era
        self._followers.add(follower)
        return True

    def begin_era(self) -> None:
        """Record that the stream was recreated, so that all later messages belong to the new stream."""
        self.era += 1
        self.floor = 0

    def add_frames(self, frames: list[Frame], numbers: Iterable[tuple[int, int, int]]) -> None:
        """Add messages, each with its stream sequence, its time stamp and the number of messages after it."""
        era = self.era
        self._messages += [
            WindowMessage(frame, *three, era) for frame, three in zip(frames, numbers, strict=True)
        ]
        self._bytes += sum(map(frame_size, frames))
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop messages that all followers have read, once there are enough of them, and messages that do not fit."""
        messages = self._messages
        if len(messages) <= min(_KEPT, self.max_count) and self._bytes <= min(_KEPT_BYTES, self.max_bytes):
            return
        count = min((follower.index for follower in self._followers), default=self._end_index) - self._base
        count = max(count, len(messages) - self.max_count, 0)
        size = self._bytes - sum(frame_size(message.frame) for message in messages[:count])
        while size > self.max_bytes and count < len(messages) - 1:
            size -= frame_size(messages[count].frame)
            count += 1
        if not count:
            return
        last = messages[count - 1]
        if last.era == self.era:
            self.floor = last.revision
        del messages[:count]
        self._base += count
        self._bytes = size

    def take(self, follower: Follower, limit: int) -> list[WindowMessage] | None:
        """Return the next messages for a follower, [] if it has read all of them, or None if it has fallen behind."""
        start = follower.index - self._base
        if start < 0:
            return None
        taken = self._messages[start : start + limit]
        if not taken:
            return taken
        follower.index += len(taken)
        if _is_read(taken[0], follower):
            taken = [message for message in taken if not _is_read(message, follower)]
            if not taken:
                return self.take(follower, limit)
        follower.position, follower.era = taken[-1].revision, taken[-1].era
        return taken

    def pass_by(self, follower: Follower, revisions: tuple[int, int], count: int) -> bool:
        """Record that messages go directly to a follower. ``revisions`` belong to the first and the last message.

        Return False if another follower needs the messages, or if this follower may have read some before it joined.
        """
        first, revision = revisions
        if len(self._followers) > 1 or follower.index != self._end_index:
            return False
        if follower.era == self.era and first <= follower.position:
            return False
        self._base = self._end_index + count
        self._messages, self._bytes = [], 0
        follower.index, follower.position, follower.era = self._base, revision, self.era
        self.floor = revision
        return True


def _is_read(message: WindowMessage, follower: Follower) -> bool:
    """Return whether a follower had read this message before it joined."""
    return (message.era, message.revision) <= (follower.era, follower.position)
