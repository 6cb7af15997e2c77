"""A subscription to events: each one after a position, in order, once. See `jsclient.topics.event_history`.

Source: P3Sub (seed 003).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Self, TypeAlias

from ..errors import ConfigError, JetStreamError
from ..protocol.events import HandlerFailed
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from .log import Log
from .log_reader import LogReader, Push

__all__ = ["EventCallback", "EventSubscription"]

EventCallback: TypeAlias = Callable[[Record], Awaitable[None] | None]

_TURN: Final = 64  # events that a callback is given before the event loop gets its turn


class EventSubscription:
    """Each event after a position, in order, once: ask with `next`, iterate, take `batches`, or give a callback.

    Pushes may be lost, repeated and reordered, servers and connections may go and come back: what is missing is read
    from the history. Made by `EventSource.subscribe`.
    """

    def __init__(self, log: Log, reader: LogReader, callback: EventCallback | None) -> None:
        self._log = log
        self._reader = reader
        self._callback = callback
        self._runner: asyncio.Task[None] | None = None
        if callback is not None:
            self._runner = log.tasks.start(self._run(callback), f"callback of {log.stream}")

    @property
    def position(self) -> Position:
        """After the last event that was handed out: the only state that a subscriber needs to keep."""
        return self._reader.position

    @property
    def id(self) -> str | None:
        """The id under which events are pushed now; each subscription has another. None: nothing is pushed."""
        return self._reader.id

    @property
    def pending(self) -> int:
        """Events that wait here."""
        return self._reader.pending

    @property
    def rejected(self) -> int:
        """Pushes so far that came under an old id."""
        return self._reader.tracker.rejected

    def __repr__(self) -> str:
        return f"<EventSubscription {self.id or '(polls)'} of {self._log.stream} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """The next event. A cancelled call loses none.

        Raises:
            RequestTimeoutError: None came in ``timeout`` seconds. ClosedError: It was cancelled, or the topic ended.
            HistoryTruncatedError: Events were removed before they were read. PositionInvalidError: The stream was made
                anew. And what the server refuses for good.
        """
        return await self._readable().next(timeout)

    def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Events as they come, up to so many at once. Raises as `next`."""
        return self._readable().batches(max_events)

    def __aiter__(self) -> Self:
        self._readable()
        return self

    async def __anext__(self) -> Record:
        return await self._reader.__anext__()

    def _readable(self) -> LogReader:
        if self._callback is not None:
            raise ConfigError("the subscription has a callback: its events go there")
        return self._reader

    async def set_push(self, push: Push) -> None:
        """From now on be pushed so, or only ask. Nothing is lost or repeated.

        Raises:
            ConfigError: As `EventSource.subscribe`.
        """
        self._reader.set_push(push)

    async def cancel(self) -> None:
        """Nothing more is pushed. A callback that runs is not interrupted, and is not called again.

        ``position`` stays; calling it again does nothing.
        """
        await self._reader.close()

    async def wait(self) -> None:
        """With a callback: return when it will not be called again.

        Raises:
            HistoryTruncatedError, PositionInvalidError: As `next`. And what the server refuses for good.
            ConfigError: There is no callback.
        """
        if self._runner is None:
            raise ConfigError("the subscription has no callback: read it to its end")
        if self._runner is not asyncio.current_task():
            await asyncio.wait({self._runner})
        if (error := self._reader.tracker.error) is not None:
            raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    async def _run(self, callback: EventCallback) -> None:
        """The callback's task: one event after the other."""
        reader, count = self._reader, 0
        try:
            async for event in reader:
                if reader.is_closed:
                    return
                await self._call(callback, event)
                count += 1
                if not count % _TURN:
                    await asyncio.sleep(0)
        except JetStreamError as error:
            self._log.report(error)

    async def _call(self, callback: EventCallback, event: Record) -> None:
        try:
            result = callback(event)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._failed(event, asyncio.CancelledError("the callback was cancelled"))
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            self._failed(event, error)

    def _failed(self, event: Record, error: BaseException) -> None:
        self._log.emit(
            HandlerFailed(
                stream=self._log.stream,
                consumer=self.id or "",
                error=error,
                subject=event.subject,
                stream_seq=event.seq,
            )
        )
