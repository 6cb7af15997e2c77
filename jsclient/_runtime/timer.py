"""A timer for a tracker, which takes time as an argument and returns its next deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """Calls back when a moving deadline is reached.

    The deadline of a monitor moves with every message, the event loop's timer does not: when it fires early it is set
    again. A message costs nothing here.
    """

    __slots__ = ("_callback", "_handle", "_loop")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline: float | None) -> None:
        """Call back at ``deadline`` (monotonic seconds of the loop) or slightly earlier; None cancels."""
        if deadline is None:
            self.cancel()
        elif self._handle is None or deadline < self._handle.when():
            self.cancel()
            self._handle = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._callback()

    def cancel(self) -> None:
        """Do not call back."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
