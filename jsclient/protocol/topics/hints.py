"""When readers look for records of which they only hear: they have a plain subscription, and no consumer.

Who may create no consumer can still hear the messages on the subject as they are published. Such a message says that a
record may have been stored, and no more: it arrives before the record is stored, or although it is refused; and nothing
is heard of a record that the server stores by itself. So a hint starts looks at the history, which follow each other
ever more slowly until as many records were found as were heard of, or until that no longer makes sense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..models.stream_config import StreamConfig
from ..wire.names import subject_matches, subjects_overlap

__all__ = ["CreateAgain", "Hints", "are_all_heard", "heard_subjects"]

_SOON: Final = 0.02  # seconds after a hint: the record is being stored
_PAUSE: Final = 0.2  # seconds between two looks; doubled while they find nothing
_LONGEST: Final = (
    0.8  # seconds between two looks, and between those of readers that do not hear of every record
)
_PATIENCE: Final = 2.0  # seconds after the last hint in which its record must have been stored
_MOST: Final = 16  # subjects to listen on


def heard_subjects(stored: Sequence[str], subject: str) -> list[str]:
    """The subjects to listen on for the records of ``subject`` in a stream that holds the subjects ``stored``.

    None: there are too many, or one of them would stand for answers of the server as well.
    """
    heard = {
        one if _is_narrower(one, subject) else subject: None
        for one in stored
        if subjects_overlap(one, subject)
    }
    return [] if len(heard) > _MOST or any(one[:1] in "*>" for one in heard) else [*heard]


def _is_narrower(one: str, subject: str) -> bool:
    """Whether to listen on ``one``: it is a part of ``subject``, or neither is, and only ``one`` begins with a name."""
    if subject_matches(one, subject):
        return False
    return subject_matches(subject, one) or subject[:1] in "*>"


def are_all_heard(config: StreamConfig) -> bool:
    """Whether each record of the stream was published on its subject, where it can be heard."""
    copied = config.mirror or config.sources or config.subject_transform
    return not (copied or config.allow_msg_schedules or config.subject_delete_marker_ttl)


@dataclass(slots=True)
class Hints:
    """Decides when readers look at the history. Times are monotonic seconds.

    Attributes:
        all_heard: Each record is heard of. Otherwise the readers look every 0.8 s as well.
        deadline: When to call `due`; infinite: not before something is heard.
    """

    all_heard: bool = True
    deadline: float = math.inf
    _behind: dict[str, int] = field(
        default_factory=dict
    )  # by reader: records that it heard of, and has not found
    _heard_at: float = -math.inf
    _looked_at: float = -math.inf
    _pause: float = _PAUSE

    def add(self, reader: str, now: float) -> None:
        """A reader begins, and reads the history."""
        self._behind[reader] = 0
        if not self.all_heard:
            self._look_at(max(now, self._looked_at + _LONGEST))

    def remove(self, reader: str) -> None:
        """A reader has ended."""
        self._behind.pop(reader, None)

    def heard(self, count: int, now: float) -> None:
        """So many messages were heard together."""
        for reader in self._behind:
            self._behind[reader] += count
        self._heard_at = now
        self._look_at(max(now + _SOON, self._looked_at + self._pause))

    def found(self, reader: str, count: int) -> None:
        """A reader found so many records in the history."""
        if count and reader in self._behind:
            self._behind[reader] = max(0, self._behind[reader] - count)
            self._pause = _PAUSE

    def missed(self, now: float) -> None:
        """A record was found of which nothing was heard: that is so for others, too."""
        self.all_heard = False
        self._look_at(max(now, self._looked_at + _LONGEST))

    def due(self, now: float) -> list[str]:
        """The readers that look now."""
        if now < self.deadline:
            return []
        readers = [one for one, behind in self._behind.items() if behind or not self.all_heard]
        self.deadline = math.inf
        if not readers:
            return []
        if now - self._heard_at > _PATIENCE:  # the last look for what was heard
            self._behind = dict.fromkeys(self._behind, 0)
            self._pause = _PAUSE
            if not self.all_heard:
                self.deadline = now + _LONGEST
        else:
            self.deadline = now + self._pause
            self._pause = min(self._pause * 2, _LONGEST)
        self._looked_at = now
        return readers

    def _look_at(self, moment: float) -> None:
        self.deadline = min(self.deadline, moment)


@dataclass(slots=True)
class CreateAgain:
    """When to try again to create a consumer, in seconds: after 2 s, and ever later, up to 30 s."""

    pause: float = 2.0

    def next(self) -> float:
        """The pause before the next attempt."""
        pause, self.pause = self.pause, min(self.pause * 2, 30.0)
        return pause
