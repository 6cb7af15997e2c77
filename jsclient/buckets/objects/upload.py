"""Storing the chunks of an object, with a window of publishes in flight. Nothing remains of an upload that fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from ..._runtime.context import Context
from ...errors import ApiError, BucketFullError, BucketSealedError, JetStreamError
from ...protocol.buckets.object_content import ChunkSplitter
from ...protocol.events import ErrorRaised, HandlerFailed
from ...protocol.models.publish import PubAck
from ...publishing.publisher import Publisher
from .source import pieces_of

__all__ = ["ChunkUpload", "Progress", "named_refusal", "report_progress"]

Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with the bytes that were transferred so far, and with the size of the object or None."""

_WINDOW: Final = 8 * 1024 * 1024  # bytes in flight
_MOST: Final = 4096  # chunks in flight
_SETTLE: Final = 30.0  # seconds that an upload that fails waits for its chunks, and then tries to remove them
_PAUSE: Final = 0.25  # seconds between two attempts

_FULL: Final = 10077
_SEALED: Final = 10109


def named_refusal(error: ApiError) -> ApiError:
    """Return the error of the bucket for the refusal of a message: it is full, or sealed."""
    kind: type[ApiError] | None = None
    if error.err_code == _FULL and "maximum bytes" in error.description:
        kind = BucketFullError
    elif error.err_code == _SEALED:
        kind = BucketSealedError
    if kind is None:
        return error
    return kind(error.code, error.err_code, error.description, error.stream, error.consumer, error.advice)


def report_progress(context: Context, progress: Progress | None, done: int, total: int | None) -> None:
    """Call the user's function. What it raises is reported as an event, and does not end the transfer."""
    if progress is None:
        return
    try:
        progress(done, total)
    except Exception as error:  # noqa: BLE001  a function of the user
        context.emit(HandlerFailed(error=error))


class ChunkUpload:
    """Stores the content of one object under its own subject.

    Attributes:
        splitter: The size, the number of chunks, and the digest of what was sent.
    """

    def __init__(
        self,
        context: Context,
        subject: str,
        splitter: ChunkSplitter,
        *,
        timeout: float,
        progress: Progress | None,
        total: int | None,
        remove: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare to store. ``remove`` removes all chunks. ``timeout``: seconds until a chunk must be acked."""
        self._context, self._subject, self._remove = context, subject, remove
        self._progress, self._total = progress, total
        self._in_flight: deque[tuple[asyncio.Future[PubAck], int]] = deque()
        self._acked = 0  # bytes
        in_flight = max(2, min(_WINDOW // splitter.chunk_size, _MOST))
        self._publisher = Publisher(context, max_in_flight=in_flight, max_bytes=2 * _WINDOW, timeout=timeout)
        # The ids are unique, since the subject is: a chunk whose ack is lost is sent again, and stored once.
        self._id = subject.rpartition(".")[2]
        self.splitter: ChunkSplitter = splitter

    async def run(self, source: Any) -> None:
        """Store the content. Call `undo` after any failure."""
        async with aclosing(pieces_of(source)) as pieces:
            async for piece in pieces:
                for chunk in self.splitter.add(piece):
                    await self._send(chunk)
        for chunk in self.splitter.finish():
            await self._send(chunk)
        while self._in_flight:
            await self._take()
        await self._publisher.close()

    async def _send(self, chunk: bytes) -> None:
        future = await self._publisher.publish(
            self._subject, chunk, msg_id=f"{self._id}-{self.splitter.chunks}"
        )
        self._in_flight.append((future, len(chunk)))
        while self._in_flight and self._in_flight[0][0].done():
            await self._take()

    async def _take(self) -> None:
        """Wait for the ack of the oldest chunk. Raises why it was not stored."""
        future, size = self._in_flight[0]
        try:
            await asyncio.shield(future)
        except ApiError as error:
            raise named_refusal(error) from None
        self._in_flight.popleft()
        self._acked += size
        report_progress(self._context, self._progress, self._acked, self._total)

    async def undo(self) -> None:
        """Wait for what is in flight, and remove what was stored.

        A cancellation does not end that, but nobody waits for it any more. Trouble with it is reported as an event.
        """
        await asyncio.wait({self._context.tasks.start(self._undo(), "remove the chunks of an upload")})

    async def _undo(self) -> None:
        publisher = self._publisher
        try:
            async with asyncio.timeout(_SETTLE):
                await publisher.acks.idle()
        except TimeoutError:
            pass
        for future, _ in self._in_flight:
            if future.done() and not future.cancelled():
                future.exception()  # the first failure is raised, and the others say the same
        sent = publisher.published - publisher.failed  # a failure may be stored if its outcome is unknown
        unknown = any(not _is_refused(future) for future, _ in self._in_flight)
        await publisher.close()
        if sent or unknown:
            await self._remove_patiently()

    async def _remove_patiently(self) -> None:
        connection = self._context.connection
        deadline = connection.now() + _SETTLE
        while True:
            try:
                await connection.wait_connected(deadline)
                await self._remove()
            except ApiError as error:
                return self._report(error)
            except JetStreamError as error:
                if connection.is_closed or connection.now() + _PAUSE >= deadline:
                    return self._report(error)
                await asyncio.sleep(_PAUSE)
            else:
                return None

    def _report(self, error: JetStreamError) -> None:
        self._context.emit(ErrorRaised(error=error))


def _is_refused(future: asyncio.Future[PubAck]) -> bool:
    """Whether the message is known not to be stored."""
    return future.done() and not future.cancelled() and isinstance(future.exception(), ApiError)
