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

_TURN: Final = 64  # events passed to a callback before other tasks run


class EventSubscription:
    """Reads each event after a position, in order, once: with `next`, ``async for``, `batches`, or a callback.

    Pushes may be lost, repeated and reordered, servers may restart, and connections may be lost: missing events are
    read from the history. Created by `EventSource.subscribe`.
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
        """The position after the last event returned: the only state that a subscriber needs to save."""
        return self._reader.position

    @property
    def id(self) -> str | None:
        """The id of the current subscription, which changes with each one. None: no pushes."""
        return self._reader.id

    @property
    def pending(self) -> int:
        """Events in the local queue."""
        return self._reader.pending

    @property
    def rejected(self) -> int:
        """Pushes so far under an old id."""
        return self._reader.tracker.rejected

    def __repr__(self) -> str:
        return f"<EventSubscription {self.id or '(polls)'} of {self._log.stream} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """The next event. A cancelled call loses none.

        Raises:
            RequestTimeoutError: No event arrived in ``timeout`` seconds. ClosedError: The subscription was closed, or
                the topic has ended. HistoryTruncatedError: Events were removed before they were read.
            PositionInvalidError: The stream was recreated. And permanent errors of the server.
        """
        return await self._readable().next(timeout)

    def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of events as they arrive. Raises as `next`."""
        return self._readable().batches(max_events)

    def __aiter__(self) -> Self:
        self._readable()
        return self

    async def __anext__(self) -> Record:
        return await self._reader.__anext__()

    def _readable(self) -> LogReader:
        if self._callback is not None:
            raise ConfigError(
                "the subscription has a callback, which receives its events: subscribe without one to read"
            )
        return self._reader

    async def set_push(self, push: Push) -> None:
        """Change the way events are pushed, without losing or repeating one. None: no pushes.

        Raises:
            ConfigError: As `EventSource.subscribe`.
        """
        self._reader.set_push(push)

    async def close(self) -> None:
        """Stop reading and release what is held on the server. Closing again is a no-op.

        A running callback is not interrupted, and is not called again. ``position`` is kept.
        """
        await self._reader.close()

    cancel = close

    async def wait(self) -> None:
        """Wait until the callback will not be called again.

        Raises:
            HistoryTruncatedError, PositionInvalidError: As `next`. And permanent errors of the server.
            ConfigError: The subscription has no callback.
        """
        if self._runner is None:
            raise ConfigError("the subscription has no callback to wait for: read it to its end")
        if self._runner is not asyncio.current_task():
            await asyncio.wait({self._runner})
        if (error := self._reader.tracker.error) is not None:
            raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, callback: EventCallback) -> None:
        """The task of the callback."""
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
