"""Notices a handler that blocks the event loop: while it does, no ack, heartbeat or keep-alive goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LoopWatch"]

_EVERY = 1.0  # seconds between looks, while handlers run
_BLOCKED = 1.0  # seconds that a look may be late


class LoopWatch:
    """Measures how late a timer is while ``busy`` returns True. It costs nothing per message."""

    def __init__(self, busy: Callable[[], bool], report: Callable[[float, int], None]) -> None:
        """Calls ``report`` with the seconds and the number of times, at the 1st, 2nd, 4th, 8th … time."""
        self._busy, self._report = busy, report
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._times = 0

    def begin(self) -> None:
        """Handlers run now."""
        if self._timer is None:
            self._timer = self._loop.call_later(_EVERY, self._look)

    def _look(self) -> None:
        timer, self._timer = self._timer, None
        assert timer is not None
        late = self._loop.time() - timer.when()
        if late >= _BLOCKED:
            self._times += 1
            if not self._times & (self._times - 1):
                self._report(late, self._times)
        if self._busy():
            self.begin()

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
