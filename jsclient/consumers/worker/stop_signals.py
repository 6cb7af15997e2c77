"""Stops a worker on an event or a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

__all__ = ["Stops"]


class Stops:
    """Watches an event and signals. The first one stops with the configured grace, a second signal at once."""

    def __init__(
        self, event: asyncio.Event | None, signals: Collection[int], stop: Callable[[float | None], None]
    ) -> None:
        self._event = event
        self._wanted = tuple(signals)
        self._stop = stop
        self._signals: list[int] = []  # those that have our handler
        self._signalled = False
        self._waiting: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start watching. Raises the errors of ``add_signal_handler``."""
        loop = asyncio.get_running_loop()
        if self._event is not None:
            self._waiting = loop.create_task(self._wait(self._event), name="jsclient:stop a worker")
        for number in self._wanted:
            loop.add_signal_handler(number, self._on_signal)
            self._signals.append(number)

    async def _wait(self, event: asyncio.Event) -> None:
        await event.wait()
        self._stop(None)

    def _on_signal(self) -> None:
        self._stop(0.0 if self._signalled else None)
        self._signalled = True

    async def close(self) -> None:
        """Stop watching."""
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signals.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
