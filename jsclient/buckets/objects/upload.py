"""Storing the chunks of an object, with a window of publishes in flight. Nothing remains of an upload that fails."""

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

_WINDOW: Final = 8 * 1024 * 1024  # bytes in flight
_MOST: Final = 4096  # chunks in flight
# seconds that a failed upload waits for its chunks. It has the same time again to remove them
_SETTLE: Final = 30.0
_PAUSE: Final = 0.25  # seconds between two attempts
# seconds after which `ObjectStore.gc` may have taken the upload for one that has ended. It keeps chunks for a minute.
_LONG: Final = 30.0
_MOST_REPAIRS: Final = 20

_FULL: Final = 10077
_SEALED: Final = 10109


def named_refusal(error: ApiError) -> ApiError:
    """Return the bucket's error for a refused message: the bucket is full or sealed."""
    kind: type[ApiError] | None = None
    if error.err_code == _FULL and "maximum bytes" in error.description:
        kind = BucketFullError
    elif error.err_code == _SEALED:
        kind = BucketSealedError
    if kind is None:
        return error
    return kind(error.code, error.err_code, error.description, error.stream, error.consumer, error.advice)


def check_progress(progress: object) -> None:
    """Raise `ConfigError` if this is not a plain function of a number of bytes."""
    if progress is not None:
        check_function("progress", progress, "bytes")
        check_plain("progress", progress)


def report_progress(context: Context, progress: Progress | None, done: int, total: int | None) -> None:
    """Call the user's progress function. An exception is reported as an event, and does not end the transfer."""
    if progress is None:
        return
    try:
        progress(done, total)
    except Exception as error:  # noqa: BLE001  a function of the user
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
    """A chunk whose ack was not yet examined."""

    data: bytes
    mark: str
    stored: asyncio.Future[PubAck]


class ChunkUpload:
    """Stores the content of one object, with a window of publishes in flight.

    A publish that is sent again may be stored after its successors. The sequences in the acks show that, and then the
    chunks that are out of order are removed and stored again.

    Attributes:
        splitter: Counts the size, the chunks and the digest of the data that was sent.
    """

    _must_count = False  # whether the chunks in the bucket are counted at the end in any case

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
        """Prepare to store. ``timeout`` is the number of seconds until a chunk must be acked."""
        self._context, self._target = context, target
        self._progress, self._total = progress, total
        self._in_flight: deque[_Chunk] = deque()
        self._acked = 0  # number of bytes acked
        self._last_seq = 0  # sequence of the last chunk that is in order
        self._repairs = 0
        # An id lets a chunk whose ack was lost be stored once. The subject is unique, and so is the prefix of the ids.
        self._prefix = f"{target.subject.rpartition('.')[2]}-"
        self._number = 0  # number of the publish, which is part of its id
        self._newest: _Chunk | None = None  # the chunk published last
        self._published_at = 0.0  # the time of the connection at which it was published
        in_flight = max(2, min(_WINDOW // splitter.chunk_size, _MOST))
        self._publisher = Publisher(context, max_in_flight=in_flight, max_bytes=2 * _WINDOW, timeout=timeout)
        self.splitter: ChunkSplitter = splitter

    async def run(self, source: Any) -> None:
        """Store the content. After any failure, call `undo`."""
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
        # A bucket with a short TTL soon forgets message ids, and may then store a chunk twice.
        # After a long pause, `ObjectStore.gc` may have removed chunks.
        took = self._context.connection.now() - started
        if self._must_count or self._publisher.resent or took >= _LONG:
            await self._check_count()
        await self._publisher.close()

    async def _settle(self) -> None:
        """Wait for the acks of all chunks in flight."""
        while self._in_flight:
            await self._take()

    async def _store_newest_again(self, newest: _Chunk) -> None:
        """Replace the last chunk by an equal one, which is young.

        So no `ObjectStore.gc` takes this upload for one that has ended, between the count of the chunks and the
        description.
        """
        replaced = self._last_seq
        self._acked -= len(newest.data)
        await self._publish(newest.data, newest.mark)
        await self._settle()
        await self._target.remove(replaced)

    async def _check_count(self) -> None:
        """Raise `PublishError` if the bucket has another number of chunks than was sent."""
        count, chunks = await self._target.count(), self.splitter.chunks
        if count != chunks:
            sent = counted(chunks, "chunk was", "chunks were")
            raise PublishError(f"{sent} sent, and the bucket has {count}: store the object again")

    async def _send(self, chunk: bytes) -> None:
        await self._publish(chunk, self._mark())
        while self._in_flight and self._in_flight[0].stored.done():
            await self._take()

    def _mark(self) -> str:
        """Return the end of the id of the chunk that was added last."""
        return ""

    async def _publish(self, chunk: bytes, mark: str) -> None:
        self._number += 1
        msg_id = f"{self._prefix}{self._number}{mark}"
        stored = await self._publisher.publish(self._target.subject, chunk, msg_id=msg_id)
        self._newest = _Chunk(chunk, mark, stored)
        self._published_at = self._context.connection.now()
        self._in_flight.append(self._newest)

    async def _take(self) -> None:
        """Wait for the ack of the oldest chunk. Raises why it was not stored."""
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
        """Remove all chunks in flight, and store them again behind those that are in order."""
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
        """Wait for the chunks in flight, and remove the stored chunks.

        A cancellation ends the wait but not the removal. A failure is reported as an event.
        """
        await asyncio.wait({self._context.tasks.start(self._undo(), "remove the chunks of an upload")})

    async def _undo(self) -> None:
        if await self._end_publishes():
            await self._remove_patiently()

    async def _end_publishes(self) -> bool:
        """Wait for the chunks in flight. Return whether any chunk may be stored."""
        publisher = self._publisher
        try:
            async with asyncio.timeout(_SETTLE):
                await publisher.acks.idle()
        except TimeoutError:
            pass
        for _, _, future in self._in_flight:
            if future.done() and not future.cancelled():
                future.exception()  # the first failure is raised, and the others have the same cause
        sent = publisher.published - publisher.failed  # a failure may be stored if its outcome is unknown
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
    """Return whether the message is known not to be stored."""
    return future.done() and not future.cancelled() and isinstance(future.exception(), ApiError)
