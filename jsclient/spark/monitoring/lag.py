"""Asks a server how old the messages are that queries have not read."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

from ...client import JetStream, connect
from ...errors import JetStreamError, MessageNotFoundError, PositionInvalidError
from ..log.offsets import StreamFacts
from ..options.connect import ConnectOptions
from .figures import Unread
from .progress import LogPlace

__all__ = ["LagWatch", "unread_after"]

K = TypeVar("K")

log: logging.Logger = logging.getLogger("jsclient.spark.progress")

_PATIENCE = 4  # timeouts of a request within which the answers about one place must come


class LagWatch(Generic[K]):
    """Asks a server at an interval, in a thread with an event loop and a connection of its own.

    The thread ends when there is no place to ask about.

    Args:
        options: The server.
        every: Seconds between two rounds of requests.
        places: Returns the places to ask about.
        answer: Takes the answer about a place; None if the server did not answer.
    """

    def __init__(
        self,
        options: ConnectOptions,
        every: float,
        places: Callable[[], Mapping[K, LogPlace]],
        answer: Callable[[K, LogPlace, Unread | None], None],
    ) -> None:
        self._options = options
        self._every = every
        self._places = places
        self._answer = answer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._closed = False
        self._complaints: dict[str, str] = {}  # the last error of each stream, which is logged once

    def start(self) -> None:
        """Start the thread unless it runs. Does not wait."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="jsclient-spark-lag", daemon=True)
                self._thread.start()
                atexit.unregister(self.close)
                atexit.register(self.close)

    def close(self) -> None:
        """End the thread and its connection, within 2 seconds."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            thread, running = self._thread, self._running
            if running is not None:
                with contextlib.suppress(RuntimeError):  # its loop has just ended
                    running[0].call_soon_threadsafe(running[1].cancel)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    def _run(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._watch())
        except Exception:
            log.exception("the lag in seconds cannot be measured")
        with self._lock:
            self._ended()

    def _ended(self) -> None:
        if self._thread is threading.current_thread():
            self._thread = self._running = None

    async def _watch(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._running = asyncio.get_running_loop(), task
        connection = _Connection(self._options)
        try:
            while places := self._next():
                for key, place in places.items():
                    self._answer(key, place, await self._ask(connection, place))
                await asyncio.sleep(self._every)
        finally:
            await connection.close()

    def _next(self) -> Mapping[K, LogPlace]:
        """The places to ask about. Without any, `start` starts another thread from now on."""
        with self._lock:
            places = {} if self._closed else self._places()
            if not places:
                self._ended()
            return places

    async def _ask(self, connection: _Connection, place: LogPlace) -> Unread | None:
        limit = self._options.timeout * _PATIENCE
        try:
            async with asyncio.timeout(limit):
                unread = await unread_after(await connection.get(), place)
        except (JetStreamError, OSError) as error:  # TimeoutError is an OSError
            text = str(error) or f"the server did not answer within {limit:g} s"
            if self._complaints.get(place.stream) != text:
                self._complaints[place.stream] = text
                log.warning("the lag of stream %r in seconds is unknown: %s", place.stream, text)
            return None
        self._complaints.pop(place.stream, None)
        return unread


class _Connection:
    """A connection that is opened on first use."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._js: JetStream | None = None

    async def get(self) -> JetStream:
        if self._js is None or self._js.is_closed:
            self._js = await connect(**self._options.arguments())
        return self._js

    async def close(self) -> None:
        if self._js is not None:
            await self._js.close()


async def unread_after(js: JetStream, place: LogPlace) -> Unread:
    """Look up the messages after a place. Ages are those of the server's clock, plus the time of a request.

    Raises:
        PositionInvalidError: The stream was recreated.
        JetStreamError: As any request.
    """
    now = time.monotonic()
    stream = await js.stream(place.stream)
    facts = StreamFacts.of(stream.cached_info)
    if facts.created != place.created:
        raise PositionInvalidError(f"it was recreated at {facts.created}")
    last, oldest = 0, None
    for subject in place.subjects or (">",):
        with contextlib.suppress(MessageNotFoundError):
            message = await stream.get_next_message(subject, place.seq + 1)
            oldest = message.time if oldest is None else min(oldest, message.time)
            end = (await stream.get_last_message(subject)).seq if place.subjects else facts.last_seq
            last = max(last, message.seq, end)
    if oldest is None:
        return Unread(0, now)
    age = (facts.seen_at or datetime.now(UTC)) - oldest
    return Unread(last, now - max(0.0, age.total_seconds()))
