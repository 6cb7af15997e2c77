"""Ask a server for the age of the messages that queries have not read."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

from ...client import JetStream, connect
from ...errors import JetStreamError, MessageNotFoundError, PositionInvalidError
from ...protocol.models.message import StoredMessage
from ...streams.stream import Stream
from ...tables.offsets import StreamFacts
from ...tables.server_options import ServerOptions
from .figures import Unread
from .harmless_log import HarmlessLog
from .progress import QueryPosition, QueuePosition

__all__ = ["LagWatch", "unread_after"]

K = TypeVar("K")

_TIMEOUTS = 4  # time for the server to answer about a position, in multiples of the request timeout
_AT_ONCE = 16  # maximum number of positions to ask about at the same time
_NAMED = 3  # maximum number of streams that a warning names


class LagWatch(Generic[K]):
    """Background thread that periodically asks a server about positions.

    The thread has its own event loop and connection. It ends when there is no position to ask about, and `start_thread`
    starts another.

    Args:
        options: How to connect to the server.
        every: Interval between two rounds of requests, in seconds.
        query_positions: A function that returns the positions to ask about.
        answer: A function that receives the answer about a position, or None if the server did not answer.
    """

    def __init__(
        self,
        options: ServerOptions,
        every: float,
        query_positions: Callable[[], Mapping[K, QueryPosition]],
        answer: Callable[[K, QueryPosition, Unread | None], None],
    ) -> None:
        self._options = options
        self._every = every
        self._query_positions = query_positions
        self._answer = answer
        self._log = HarmlessLog()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._closed = False
        self._timeout = options.timeout * _TIMEOUTS
        # Maps each error to the streams that had it in the last round. An error that persists is logged only once.
        self._problems: dict[str, set[str]] = {}

    def start_thread(self) -> None:
        """Start the thread, unless it is running or `close` was called. Does not wait for the thread."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run_thread, name="jsclient-spark-lag", daemon=True
                )
                self._thread.start()
                atexit.unregister(self.close)
                atexit.register(self.close)

    def close(self) -> None:
        """Stop the thread and close its connection. Waits up to 2 seconds for the thread to end."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            thread, running = self._thread, self._running
            if running is not None:
                with contextlib.suppress(RuntimeError):  # the event loop has just ended
                    running[0].call_soon_threadsafe(running[1].cancel)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    def _run_thread(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._watch())
        except Exception as error:  # noqa: BLE001  the error is logged
            self._log.warn_once("the lag in seconds cannot be measured", error)
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
            while query_positions := self._next():
                await self._round(connection, query_positions)
                await asyncio.sleep(self._every)
        finally:
            await connection.close()

    def _next(self) -> Mapping[K, QueryPosition]:
        """Return the positions to ask about.

        If there are none, the thread is marked as ended, so that `start_thread` starts another.
        """
        with self._lock:
            query_positions = {} if self._closed else self._query_positions()
            if not query_positions:
                self._ended()
            return query_positions

    async def _round(self, connection: _Connection, query_positions: Mapping[K, QueryPosition]) -> None:
        """Ask about each position, and log the errors that the last round did not have."""
        problems: dict[str, set[str]] = {}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ask(js: JetStream, key: K, query_position: QueryPosition) -> None:
            try:
                async with limit, asyncio.timeout(self._timeout):
                    self._answer(key, query_position, await unread_after(js, query_position))
            except Exception as error:  # noqa: BLE001  the error is logged, and the other positions are still requested
                failed(error, key, query_position)

        def failed(error: Exception, key: K, query_position: QueryPosition) -> None:
            text = str(error) if isinstance(error, JetStreamError | OSError) else repr(error)
            text = text or f"the server did not answer within {self._timeout:g} s"  # a TimeoutError
            problems.setdefault(text, set()).add(query_position.stream)
            self._answer(key, query_position, None)

        try:
            async with asyncio.timeout(self._timeout):
                js = await connection.get()
        except (JetStreamError, OSError) as error:
            for key, query_position in query_positions.items():
                failed(error, key, query_position)
        else:
            async with asyncio.TaskGroup() as group:
                for key, query_position in query_positions.items():
                    group.create_task(ask(js, key, query_position))
        for text, streams in problems.items():
            if more := sorted(streams - self._problems.get(text, set())):
                self._log.write(
                    logging.WARNING, "the lag of %s in seconds is unknown: %s", _named(more), text
                )
        self._problems = problems


def _named(streams: list[str]) -> str:
    names = ", ".join(map(repr, streams[:_NAMED]))
    others = f" and {len(streams) - _NAMED} others" if len(streams) > _NAMED else ""
    return f"{'stream' if len(streams) == 1 else 'streams'} {names}{others}"


class _Connection:
    """A connection that is opened on first use."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._js: JetStream | None = None

    async def get(self) -> JetStream:
        if self._js is None or self._js.is_closed:
            self._js = await connect(**self._options.arguments())
        return self._js

    async def close(self) -> None:
        if self._js is not None:
            await self._js.close()


async def unread_after(js: JetStream, query_position: QueryPosition) -> Unread:
    """Ask the server about the messages after a position.

    The age of a message is measured by the server's clock, plus the duration of the request.

    Raises:
        PositionInvalidError: The stream was recreated.
        JetStreamError: A request failed.
    """
    now = time.monotonic()
    stream = await js.stream(query_position.stream)
    facts = StreamFacts.from_info(stream.cached_info)

    def since(messages: Mapping[str, StoredMessage]) -> float:
        seen_at = facts.seen_at or datetime.now(UTC)
        return now - max(
            (max(0.0, (seen_at - message.time).total_seconds()) for message in messages.values()), default=0.0
        )

    if isinstance(query_position, QueuePosition):
        info = (await stream.consumer(query_position.consumer)).cached_info
        waiting = info.num_pending + info.num_ack_pending
        messages = await _next(stream, info.config.filters, info.ack_floor.stream_seq) if waiting else {}
        return Unread(waiting, since(messages))
    if facts.created != query_position.created:
        raise PositionInvalidError(f"it was recreated at {facts.created}")
    messages = (
        await _next(stream, query_position.subjects, query_position.seq)
        if facts.last_seq > query_position.seq
        else {}
    )
    # `messages` has only the first unread message of each filter, but the lag is measured up to the last one. So look
    # up the last message of each filter that has an unread message.
    last = max((message.seq for message in messages.values()), default=0)
    for subject in messages:
        with contextlib.suppress(MessageNotFoundError):
            end = (await stream.get_last_message(subject)).seq if query_position.subjects else facts.last_seq
            last = max(last, end)
    return Unread(last, since(messages))


async def _next(stream: Stream, filters: Iterable[str], seq: int) -> dict[str, StoredMessage]:
    """Return the first message after a sequence for each filter. Filters that match no message are omitted."""
    messages = {}
    for subject in tuple(filters) or (">",):
        with contextlib.suppress(MessageNotFoundError):
            messages[subject] = await stream.get_next_message(subject, seq + 1)
    return messages
