"""Calls back at the end of the event loop, which is the last moment at which tasks can be ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from .tasks import step_at_once

__all__ = ["LoopEnd"]


class LoopEnd:
    """Awaits a callback when the event loop closes its asynchronous generators, just before the loop itself is closed.

    `asyncio.run` cancels all tasks once, and continues until they have ended. A task that is started in that time would
    be destroyed while pending.
    """

    def __init__(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._callback = callback
        self._generator: AsyncGenerator[None, None] | None = None

    def watch(self) -> None:
        """Start watching the running event loop. Calling it again does nothing."""
        if self._generator is None:
            self._generator = self._wait()
            step_at_once(self._generator.asend(None))

    def stop_watching(self) -> None:
        """Stop watching, because the callback is no longer needed."""
        generator, self._generator = self._generator, None
        if generator is not None:
            step_at_once(generator.aclose())

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._generator is not None:  # the event loop has closed the generator, not `stop_watching`
                self._generator = None
                await self._callback()
