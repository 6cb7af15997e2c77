"""Stores the chunks of an object, with many publishes in flight. If an upload fails, its chunks are removed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ..._runtime.context import Context
from ..._runtime.handlers import check_function, check_plain
from ...errors import ApiError, BucketFullError, BucketSealedError, JetStreamError, PublishError, counted
from ...protocol.buckets.object_content import ChunkSplitter
from ...protocol.events import ErrorRaised, HandlerFailed
from ...protocol.models.publish import PubAck
from ...publishing.publisher import Publisher
from .source import pieces_of

__all__ = ["ChunkUpload", "Progress", "check_progress", "named_refusal", "report_progress"]

Progress: TypeAlias = Callable[[int, int | None], object]
"""A function that is called with the number of bytes transferred so far, and the size of the object or None."""

_WINDOW: Final = 8 * 1024 * 1024  # maximum number of bytes in flight
_MOST: Final = 4096  # maximum number of chunks in flight
# How long a failed upload waits for the acks of its chunks, in seconds. The removal of the chunks has the same limit.
_SETTLE: Final = 30.0
_PAUSE: Final = 0.25  # seconds between two attempts
# If an upload takes longer than this many seconds, check at its end whether `ObjectStore.gc` has removed chunks, which
# it may do after a minute.
_LONG: Final = 30.0
_MOST_REPAIRS: Final = 20

_FULL: Final = 10077
_SEALED: Final = 10109


def named_refusal(error: ApiError) -> ApiError:
    """Convert the error for a refused message to `BucketFullError` or `BucketSealedError`, if one of them applies."""
    kind: type[ApiError] | None = None
    if error.err_code == _FULL and "maximum bytes" in error.description:
        kind = BucketFullError
    elif error.err_code == _SEALED:
        kind = BucketSealedError
    if kind is None:
        return error
    return kind(error.code, error.err_code, error.description, error.stream, error.consumer, error.advice)


def check_progress(progress: object) -> None:
    """Raise `ConfigError` if ``progress`` is neither None nor a plain function."""
    if progress is not None:
        check_function("progress", progress, "bytes")
        check_plain("progress", progress)


def report_progress(context: Context, progress: Progress | None, done: int, total: int | None) -> None:
    """Call the user's progress function. If it raises an exception, emit an event and continue the transfer."""
    if progress is None:
        return
    try:
        progress(done, total)
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        context.emit(HandlerFailed(error=error))


class ChunkSubject(Protocol):
    """The subject that stores the chunks of one object and no other messages."""

    @property
    def subject(self) -> str: ...
    async def remove(self, seq: int) -> None:
        """Remove one chunk."""

    async def remove_all(self) -> None:
        """Remove all chunks."""

    async def count(self) -> int:
        """Return the number of chunks."""


class _Chunk(NamedTuple):
    """A chunk whose ack has not been processed yet."""

    data: bytes
    mark: str
    stored: asyncio.Future[PubAck]


class ChunkUpload:
    """Stores the content of one object, with many publishes in flight.

    If a chunk is sent again because its ack was lost, it may be stored after the chunks that follow it. The sequences
    in the acks reveal this. The misplaced chunks are then removed and stored again.

    Attributes:
        splitter: Splits the content into chunks, and computes its size and digest.
    """

    _must_count = False  # whether the stored chunks are always counted at the end

    def __init__(
        self,
        context: Context,
        target: ChunkSubject,
        splitter: ChunkSplitter,
        *,
        timeout: float,
        progress: Progress | None,
        total: int | None,
    ) -> None:
        """Prepare to store. ``timeout`` is the number of seconds to wait for the ack of each chunk."""
        self._context, self._target = context, target
        self._progress, self._total = progress, total
        self._in_flight: deque[_Chunk] = deque()
        self._acked = 0  # number of bytes acked
        self._last_seq = 0  # sequence of the last chunk that is in order
        self._repairs = 0
        # Message ids prevent a chunk from being stored twice if it is sent again because its ack was lost. They begin
        # with the nuid of this upload, so they differ from the ids of all other uploads.
        self._prefix = f"{target.subject.rpartition('.')[2]}-"
        self._number = 0  # number of publishes so far, which is part of the message id
        self._newest: _Chunk | None = None  # the chunk that was published last
        self._published_at = 0.0  # time at which `_newest` was published, in monotonic seconds
        in_flight = max(2, min(_WINDOW // splitter.chunk_size, _MOST))
        self._publisher = Publisher(context, max_in_flight=in_flight, max_bytes=2 * _WINDOW, timeout=timeout)
        self.splitter: ChunkSplitter = splitter

    async def run(self, source: Any) -> None:
        """Store the content. If this raises an exception, call `undo`."""
        started = self._context.connection.now()
        async with aclosing(pieces_of(source)) as pieces:
            async for piece in pieces:
                for chunk in self.splitter.add(piece):
                    await self._send(chunk)
        for chunk in self.splitter.finish():
            await self._send(chunk)
        await self._settle()
        if self._newest is not None and self._context.connection.now() - self._published_at >= _LONG:
            await self._store_newest_again(self._newest)
        # Count the chunks if one was sent again, because a bucket with a short TTL soon forgets message ids and may
        # store it twice. Also count them after a long upload, because `ObjectStore.gc` may have removed some.
        took = self._context.connection.now() - started
        if self._must_count or self._publisher.resent or took >= _LONG:
            await self._check_count()
        await self._publisher.close()

    async def _settle(self) -> None:
        """Wait for the acks of all chunks in flight."""
        while self._in_flight:
            await self._take()

    async def _store_newest_again(self, newest: _Chunk) -> None:
        """Replace the last chunk with a new copy.

        Otherwise `ObjectStore.gc` could mistake this upload for an abandoned one, and remove its chunks after they have
        been counted and before the description is stored.
        """
        replaced = self._last_seq
        self._acked -= len(newest.data)
        await self._publish(newest.data, newest.mark)
        await self._settle()
        await self._target.remove(replaced)

    async def _check_count(self) -> None:
        """Raise `PublishError` if the number of chunks in the bucket differs from the number of chunks sent."""
        count, chunks = await self._target.count(), self.splitter.chunks
        if count != chunks:
            sent = counted(chunks, "chunk was", "chunks were")
            raise PublishError(f"{sent} sent, and the bucket has {count}: store the object again")

    async def _send(self, chunk: bytes) -> None:
        await self._publish(chunk, self._mark())
        while self._in_flight and self._in_flight[0].stored.done():
            await self._take()

    def _mark(self) -> str:
        """Return the suffix for the message id of the current chunk."""
        return ""

    async def _publish(self, chunk: bytes, mark: str) -> None:
        self._number += 1
        msg_id = f"{self._prefix}{self._number}{mark}"
        stored = await self._publisher.publish(self._target.subject, chunk, msg_id=msg_id)
        self._newest = _Chunk(chunk, mark, stored)
        self._published_at = self._context.connection.now()
        self._in_flight.append(self._newest)

    async def _take(self) -> None:
        """Wait for the ack of the oldest chunk in flight. Raise the error if the chunk was not stored."""
        chunk = self._in_flight[0]
        seq = await self._seq(chunk)
        if seq < self._last_seq:
            await self._store_again()
            return
        self._in_flight.popleft()
        self._last_seq = seq
        self._acked += len(chunk.data)
        report_progress(self._context, self._progress, self._acked, self._total)

    @staticmethod
    async def _seq(chunk: _Chunk) -> int:
        try:
            return (await asyncio.shield(chunk.stored)).seq
        except ApiError as error:
            raise named_refusal(error) from None

    async def _store_again(self) -> None:
        """Wait for all chunks in flight, remove them, and store them again in order."""
        self._repairs += 1
        if self._repairs > _MOST_REPAIRS:
            raise PublishError(f"the chunks were stored in another order {_MOST_REPAIRS} times")
        misplaced = list(self._in_flight)
        for seq in [await self._seq(chunk) for chunk in misplaced]:
            await self._target.remove(seq)
        self._in_flight.clear()
        for chunk in misplaced:
            await self._publish(chunk.data, chunk.mark)

    async def undo(self) -> None:
        """Wait for the acks of the chunks in flight, then remove the stored chunks.

        If the call is cancelled, the chunks are removed in the background. If the removal fails, an event reports it.
        """
        await asyncio.wait({self._context.tasks.start(self._undo(), "remove the chunks of an upload")})

    async def _undo(self) -> None:
        if await self._end_publishes():
            await self._remove_patiently()

    async def _end_publishes(self) -> bool:
        """Wait for the acks of the chunks in flight. Return whether any chunk may be stored."""
        publisher = self._publisher
        try:
            async with asyncio.timeout(_SETTLE):
                await publisher.acks.idle()
        except TimeoutError:
            pass
        for _, _, future in self._in_flight:
            if future.done() and not future.cancelled():
                future.exception()  # mark the error as retrieved, because only the first failure is raised
        # `failed` includes chunks with an unknown outcome, which may be stored and must be removed too.
        sent = publisher.published - publisher.failed
        unknown = any(not _is_refused(future) for _, _, future in self._in_flight)
        await publisher.close()
        return bool(sent or unknown)

    async def _remove_patiently(self) -> None:
        connection = self._context.connection
        deadline = connection.now() + _SETTLE
        while True:
            try:
                await connection.wait_connected(deadline)
                await self._target.remove_all()
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
    """Return whether the server has certainly refused the message."""
    return future.done() and not future.cancelled() and isinstance(future.exception(), ApiError)
