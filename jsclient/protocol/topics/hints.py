"""Decides when readers check the history if they have plain subscriptions instead of a consumer.

A reader without a consumer can still subscribe to the subject and receive messages as they are published. Such a
message is a *hint*, because it only shows that a record may have been stored. It can arrive before the record is
stored, and even if the server refuses the record. Records that the server stores without a publish cause no hint.
After a hint, the readers therefore check the history at growing intervals, until they have found as many records as
there were hints, or until no further records can be expected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..models.stream_config import StreamConfig
from ..wire.names import subject_matches, subjects_overlap

__all__ = ["CreateAgain", "Hints", "are_all_heard", "heard_subjects"]

# Delay between a hint and the first check of the history, in seconds. The hint may arrive before its record is stored.
_SOON: Final = 0.02
# Initial pause between two checks, in seconds. The pause doubles with each check that finds no record.
_PAUSE: Final = 0.2
# Maximum pause between two checks, in seconds. Readers that don't get a hint for every record also pause this long
# while there is no hint.
_LONGEST: Final = 0.8
# How long to wait for the record of a hint, in seconds. If the record isn't found by then, it must have been refused.
_PATIENCE: Final = 2.0
_MAX_SUBJECTS: Final = 16  # maximum number of subjects to subscribe to


def heard_subjects(stored: Sequence[str], subject: str) -> list[str]:
    """Return the subjects to subscribe to for the records of ``subject`` in a stream with the subjects ``stored``.

    The list is empty if there are too many subjects, or if a subject would match answers of the server as well.
    """
    subjects = {
        candidate if _is_narrower(candidate, subject) else subject: None
        for candidate in stored
        if subjects_overlap(candidate, subject)
    }
    if len(subjects) > _MAX_SUBJECTS or any(candidate[:1] in "*>" for candidate in subjects):
        return []
    return [*subjects]


def _is_narrower(candidate: str, subject: str) -> bool:
    """Return whether to subscribe to ``candidate`` instead of ``subject``.

    This is the case if ``subject`` matches ``candidate``. It is also the case if neither matches the other and
    ``subject`` begins with a wildcard.
    """
    if subject_matches(candidate, subject):
        return False
    return subject_matches(subject, candidate) or subject[:1] in "*>"


def are_all_heard(config: StreamConfig) -> bool:
    """Return whether each record of the stream was published on its own subject, so that there is a hint for it."""
    copied = config.mirror or config.sources or config.subject_transform
    return not (copied or config.allow_msg_schedules or config.subject_delete_marker_ttl)


@dataclass(slots=True)
class Hints:
    """Decides when readers check the history. Times are monotonic seconds.

    Attributes:
        all_heard: Whether there is a hint for each record. Otherwise the readers also check every 0.8 s.
        deadline: The time to call `due`. Infinite if no call is needed before the next hint.
    """

    all_heard: bool = True
    deadline: float = math.inf
    # For each reader, the number of hints whose records it hasn't found yet.
    _behind: dict[str, int] = field(default_factory=dict)
    _hint_at: float = -math.inf
    _checked_at: float = -math.inf
    _pause: float = _PAUSE

    def add_reader(self, reader: str, now: float) -> None:
        """Add a reader, which has just started to read the history."""
        self._behind[reader] = 0
        if not self.all_heard:
            self._check_at(max(now, self._checked_at + _LONGEST))

    def remove(self, reader: str) -> None:
        """Remove a reader that has ended."""
        self._behind.pop(reader, None)

    def heard(self, count: int, now: float) -> None:
        """Record that ``count`` hints arrived together."""
        for reader in self._behind:
            self._behind[reader] += count
        self._hint_at = now
        self._check_at(max(now + _SOON, self._checked_at + self._pause))

    def found(self, reader: str, count: int) -> None:
        """Record that a reader found ``count`` records in the history."""
        if count and reader in self._behind:
            self._behind[reader] = max(0, self._behind[reader] - count)
            self._pause = _PAUSE

    def missed(self, now: float) -> None:
        """Record that a record was found without a hint. From now on the readers do not rely on hints."""
        self.all_heard = False
        self._check_at(max(now, self._checked_at + _LONGEST))

    def due(self, now: float) -> list[str]:
        """Return the readers that check the history now."""
        if now < self.deadline:
            return []
        readers = [reader for reader, behind in self._behind.items() if behind or not self.all_heard]
        self.deadline = math.inf
        if not readers:
            return []
        # This long after the last hint, every record that wasn't found must have been refused. Stop looking after this
        # check.
        if now - self._hint_at > _PATIENCE:
            self._behind = dict.fromkeys(self._behind, 0)
            self._pause = _PAUSE
            if not self.all_heard:
                self.deadline = now + _LONGEST
        else:
            self.deadline = now + self._pause
            self._pause = min(self._pause * 2, _LONGEST)
        self._checked_at = now
        return readers

    def _check_at(self, moment: float) -> None:
        self.deadline = min(self.deadline, moment)


@dataclass(slots=True)
class CreateAgain:
    """The pauses between attempts to create a consumer: 2 s, doubled each time, up to 30 s."""

    pause: float = 2.0

    def next(self) -> float:
        """Return the pause before the next attempt in seconds, and double it."""
        pause, self.pause = self.pause, min(self.pause * 2, 30.0)
        return pause
