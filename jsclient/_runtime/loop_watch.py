"""Detects handlers that block the event loop, and the messages that they handle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Generic, TypeVar

__all__ = ["LoopWatch", "longest"]

T = TypeVar("T")

BLOCKED = 1.0  # a blocked event loop is reported after this many seconds
_BEAT = 0.1  # interval in seconds between timestamps, which show that running handlers don't block the loop


class LoopWatch(Generic[T]):
    """Detects a handler that blocks the event loop, so that no ack, heartbeat or keep-alive is sent.

    While handlers run, a timer notes every 0.1 s that the loop is free. Code that calls a handler compares the time,
    which it reads anyway, with ``due``, and calls `check_loop` once ``due`` has passed. No other work is needed per
    message.

    Attributes:
        due: The time from which to call `check_loop`, in monotonic seconds of the loop.
    """

    __slots__ = ("_beat", "_handled", "_loop", "_report", "_timer", "_times", "due")

    def __init__(
        self,
        handled: Callable[[], Iterable[tuple[float, T]]],
        report: Callable[[float, int, T | None], None],
    ) -> None:
        """Watch the running loop.

        ``report`` is called with the seconds, the number of blocks, and the message, at the 1st, 2nd, 4th, 8th …
        block. ``handled`` returns the messages whose handlers run or have just ended, with the start of each handler.
        """
        self.due: float = -math.inf
        self._handled, self._report = handled, report
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._beat = 0.0  # time when the event loop was last known to be responsive
        self._times = 0

    def check_loop(self, now: float) -> None:
        """Report the time for which the loop was blocked. Called before a handler starts, and at each beat."""
        blocked = now - self._beat
        # If no handler has run since the last beat, another part of the program blocked the loop, so report nothing.
        if self._timer is not None and blocked >= BLOCKED and (handled := list(self._handled())):
            self._times += 1
            if not self._times & (self._times - 1):
                seconds, message = longest(self._beat, now, handled)
                self._report(seconds, self._times, message)
        self._beat = now
        self.due = now + BLOCKED
        if self._timer is None:
            self._timer = self._loop.call_at(now + _BEAT, self._next)

    def _next(self) -> None:
        self.check_loop(self._loop.time())
        self._timer, self.due = None, -math.inf
        if self._handled():
            self.check_loop(self._beat)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def longest(beat: float, now: float, handled: Iterable[tuple[float, T]]) -> tuple[float, T | None]:
    """Return the longest block since ``beat``, when the loop was last free, and the message of its handler.

    Handlers that started after ``beat`` ran one after another, so each blocked until the next started. If several
    handlers had started before, any of them may have blocked, and the message is None. It is also None if no single
    handler blocked for a second.
    """
    steps = sorted(handled, key=itemgetter(0))
    before = [message for began, message in steps if began < beat]
    since: list[tuple[float, T | None]] = [(beat, before[0] if len(before) == 1 else None)]
    since += [(began, message) for began, message in steps if began >= beat]
    ends = [*(began for began, _ in since[1:]), now]
    blocks = [(end - began, message) for (began, message), end in zip(since, ends, strict=True)]
    seconds, message = max(blocks, key=itemgetter(0))
    return (seconds, message) if seconds >= BLOCKED else (now - beat, None)
