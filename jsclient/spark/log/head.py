"""What is new in a stream: asked for no more often than is wanted, and remembered.

The offset of a filtered query stays at the last message that matches, while others come and go. So that their going is
not taken for a loss, it is remembered how far nothing was found.
"""

from __future__ import annotations

import time

from .data_loss import StreamFacts
from .lookup import Lookup

__all__ = ["Head"]


class Head:
    """The end of a stream, for one query.

    Args:
        interval: Seconds from one request to the next, on average, at least.
    """

    def __init__(self, lookup: Lookup, interval: float) -> None:
        self._lookup = lookup
        self._interval = interval
        self._next = 0.0  # monotonic seconds: when it may be asked again
        self.facts: StreamFacts | None = None
        self.last: int = 0  # of the last message that matches
        self._seen_free = (0, 0)  # behind the first, up to the second, nothing matched

    def look(self) -> StreamFacts:
        """Ask anew. May sleep first, so that an idle query asks no more than is wanted."""
        if (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        before, facts, asked = self.facts, self._lookup.facts(), 1
        if not self._lookup.subjects:
            self.last = facts.last_seq
        elif before is None or (before.last_seq, before.created) != (facts.last_seq, facts.created):
            self.last = self._lookup.last_matching()
            asked += len(self._lookup.subjects)
        if before is not None and before.created != facts.created:
            self._seen_free = (0, 0)  # of another stream
        self.facts = facts
        self._next = time.monotonic() + asked * self._interval
        return facts

    @property
    def is_due(self) -> bool:
        """Whether asking needs no sleep."""
        return time.monotonic() >= self._next

    def nothing_behind(self, seq: int) -> None:
        """Remember that, when last looked at, nothing behind ``seq`` matched."""
        assert self.facts is not None
        floor = self.free_behind(seq)
        if self._lookup.subjects and self.facts.first_seq <= floor + 1:
            self._seen_free = (seq, max(floor, self.facts.last_seq))

    def free_behind(self, seq: int) -> int:
        """Up to where it is known that nothing behind ``seq`` matches; at least ``seq``."""
        start, end = self._seen_free
        return max(seq, end) if start == seq else seq
