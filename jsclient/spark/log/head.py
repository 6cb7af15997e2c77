"""The cached end of a stream, refreshed at a limited rate.

The offset of a filtered query stays at the last matching message while other messages are stored and expire. To keep
their expiry from being reported as data loss, `Head` remembers up to which sequence no message matched.
"""

from __future__ import annotations

import time

from .data_loss import StreamFacts
from .lookup import Lookup

__all__ = ["Head"]


class Head:
    """The end of a stream, for one query.

    Args:
        interval: Minimum mean time between requests, in seconds.
    """

    def __init__(self, lookup: Lookup, interval: float) -> None:
        self._lookup = lookup
        self._interval = interval
        self._next = 0.0  # monotonic seconds: time of the next request at the earliest
        self.facts: StreamFacts | None = None
        self.last: int = 0  # sequence of the last matching message
        self._seen_free = (0, 0)  # no message matched after the first, up to the second

    def look(self) -> StreamFacts:
        """Refresh and return the facts. Sleeps first if the last request was less than the interval ago."""
        if (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        before, facts, asked = self.facts, self._lookup.facts(), 1
        if not self._lookup.subjects:
            self.last = facts.last_seq
        elif before is None or (before.last_seq, before.created) != (facts.last_seq, facts.created):
            self.last = self._lookup.last_matching()
            asked += len(self._lookup.subjects)
        if before is not None and before.created != facts.created:
            self._seen_free = (0, 0)  # belongs to the previous stream
        self.facts = facts
        self._next = time.monotonic() + asked * self._interval
        return facts

    @property
    def is_due(self) -> bool:
        """Whether `look` would not sleep."""
        return time.monotonic() >= self._next

    def nothing_behind(self, seq: int) -> None:
        """Remember that no message after ``seq`` matched at the last refresh."""
        assert self.facts is not None
        floor = self.free_behind(seq)
        if self._lookup.subjects and self.facts.first_seq <= floor + 1:
            self._seen_free = (seq, max(floor, self.facts.last_seq))

    def free_behind(self, seq: int) -> int:
        """The sequence up to which no message after ``seq`` is known to match; at least ``seq``."""
        start, end = self._seen_free
        return max(seq, end) if start == seq else seq
