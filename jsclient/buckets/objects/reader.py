"""The reader that `ObjectStore.open` returns.

If an object is read in order, its last piece is returned only if the digest is correct.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Self

from ..._runtime.context import Context
from ..._runtime.handle import ReadHandle, State
from ...consumers.ordered.consumer import OrderedConsumer, OrderedMessages
from ...errors import (
    ClosedError,
    ConfigError,
    ConsumerLimitError,
    DigestMismatchError,
    JetStreamError,
    ObjectChangedError,
    ObjectIncompleteError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...protocol.buckets.object_content import ContentCheck
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.consumers.ack import Metadata
from ...protocol.events import ConsumerRefused
from ...protocol.models.consumer import DeliverPolicy
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.checks import is_at_least
from ..bucket_handle import no_bucket
from ..reading import RECHECK, has_nothing_left, open_consumer, reader_config
from .direct_chunks import DirectChunks
from .ranges import ObjectRanges
from .site import ObjectSite
from .upload import Progress, report_progress

__all__ = ["ObjectReader"]

_WINDOW: Final = 8 * 1024 * 1024  # bytes that may be buffered
_MOST: Final = 1000  # chunks that may be buffered
_SMALL: Final = 256 * 1024  # bytes up to which an object is requested as one message


class ObjectReader(ReadHandle[bytes]):
    """Reads the content of an object like a file. Returned by `ObjectStore.open`.

    Use it in an ``async with`` block, and read pieces with ``async for`` or bytes with `read`::

        async with store.open("backup.tar") as file:
            async for piece in file:
                target.write(piece)

    The reader survives reconnects, server restarts and the loss of its consumer. Its buffer is bounded, so if you stop
    reading, the server stops sending.

    ``async for`` ends only at the end of the object. If the reader or its connection is closed earlier, the loop raises
    `ClosedError`, so you can't take an incomplete object for complete.
    """

    _state = State.NEW

    def __init__(
        self,
        context: Context,
        find: Callable[[], Awaitable[tuple[ObjectSite, ObjectInfo]]],
        *,
        progress: Progress | None,
    ) -> None:
        self._context, self._find, self._progress = context, find, progress
        self._object: tuple[ObjectSite, ObjectInfo, ContentCheck] | None = None
        self._consumer: OrderedConsumer | None = None
        self._messages: OrderedMessages | None = None
        self._direct: DirectChunks | None = None  # reads the chunks if no consumer is used
        self._last: Metadata | None = None
        self._error: JetStreamError | None = None
        self._unread = memoryview(b"")  # the part of the last chunk that `read` has not returned yet
        self._position = 0  # position in the object at the end of the last chunk, in bytes
        # After a `seek`, chunks are read through this attribute instead of the consumer or ``_direct``.
        self._ranges: ObjectRanges | None = None

    def __repr__(self) -> str:
        name = "" if self._object is None else f" {self._object[1].name!r}"
        return f"<ObjectReader{name} {self._state.value}>"

    async def __aenter__(self) -> Self:
        if self._state is State.NEW:
            site, info = await self._find()
            self._state = State.OPEN
            self._object = site, info, ContentCheck(info)
        return self

    @property
    def info(self) -> ObjectInfo:
        """Description of the object, such as its size. If you opened a link, it describes the target.

        Raises:
            ConfigError: The reader isn't open.
        """
        return self._opened()[1]

    def _opened(self) -> tuple[ObjectSite, ObjectInfo, ContentCheck]:
        if self._object is None:
            raise ConfigError("the object is not open: 'async with store.open(name) as file' opens it")
        return self._object

    async def next(self) -> bytes:
        """Return the next piece of the object. Only one task at a time may call it.

        The call is safe to cancel, because the next call returns the piece.

        Raises:
            ClosedError: All pieces have been returned, or the reader or the connection is closed.
            ObjectChangedError: The object was replaced or deleted while it was being read.
            DigestMismatchError: The content doesn't match the digest. The last piece isn't returned, so you don't take
                the content for complete.
            ObjectIncompleteError: Parts of the content are missing.
            ConfigError: The reader isn't open.

        After one of the errors about the content, further calls raise the same error. May also raise any error of
        `OrderedConsumer.next`.
        """
        site, info, check = self._opened()
        if self.is_closed:
            raise ClosedError("the reader is closed")
        if self._unread:
            piece, self._unread = bytes(self._unread), memoryview(b"")
            return piece
        if self._error is not None:
            raise self._error
        if self._has_ended():
            raise ClosedError("the object was read to its end")
        try:
            data = await self._piece(site, info, check)
        except StreamNotFoundError as error:
            raise no_bucket(error, "create_object_store") from None
        except (ObjectChangedError, ObjectIncompleteError, DigestMismatchError) as error:
            self._error = error
            raise
        # Don't await anything from here on, because the piece would be lost if the task were cancelled.
        self._position += len(data)
        report_progress(self._context, self._progress, self._position, info.size)
        return data

    def _has_ended(self) -> bool:
        _, info, check = self._opened()
        return check.is_complete if self._ranges is None else self._position >= info.size

    async def _piece(self, site: ObjectSite, info: ObjectInfo, check: ContentCheck) -> bytes:
        """Return the next chunk. After a `seek`, return only the part of it that starts at the position."""
        if self._ranges is None:
            data, remaining = await self._chunk(site, info)
            check.add(data, remaining)
            return data
        await self._end_consumer()  # after a `seek`, the consumer is not needed
        piece = await self._ranges.read_piece(self._position)
        if piece is None:
            await self._raise_missing(site, info)
        check.add_at(self._position, piece)
        return piece

    def tell(self) -> int:
        """Return the current position in the object, in bytes from the start."""
        return self._position - len(self._unread)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position, and return the new position. Nothing is requested until the next read.

        The digest covers the whole content, so it is verified only if the whole object is read in order. You may read
        other parts in between, for example after a seek to the end and back. If you read only parts of the object, or
        read them in a different order, only the sizes of the chunks are verified.

        Args:
            offset: Number of bytes, relative to ``whence``.
            whence: ``io.SEEK_SET`` (the default) for the start of the object, ``io.SEEK_CUR`` for the current position,
                or ``io.SEEK_END`` for the end of the object.

        Raises:
            ConfigError: The reader isn't open, an argument is invalid, the new position would be negative, or the size
                of the object is unknown.
        """
        site, info, _ = self._opened()
        if not info.is_counted:
            raise ConfigError(f"object {info.name!r} cannot be read from a position: its size is not known")
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: info.size}
        if whence not in starts:
            raise ConfigError(f"whence is {whence!r:.40}: it must be 0, 1 or 2")
        if isinstance(offset, bool) or not isinstance(offset, int) or (target := starts[whence] + offset) < 0:
            raise ConfigError(f"offset is {offset!r:.40}: an int is needed, and a position of 0 or more")
        # Stay within the current chunk if possible, because a new range costs a request.
        skipped = target - self.tell()
        if 0 <= skipped <= len(self._unread):
            self._unread = self._unread[skipped:]
        else:
            self._unread, self._position = memoryview(b""), target
            self._ranges = self._ranges or ObjectRanges(self._context, site, info)
        return target

    async def _chunk(self, site: ObjectSite, info: ObjectInfo) -> tuple[bytes, int]:
        """Return the next chunk, and the number of chunks after it."""
        if self._messages is None and self._direct is None:
            if info.chunks == 1 and info.size <= _SMALL:  # a single request is cheaper than a consumer
                stored = await site.last_chunk(info.nuid)
                if stored is not None:
                    return stored.data, 0
            await self._open_chunks(site, info)
        if self._direct is not None:
            return await self._direct_chunk(self._direct, site, info)
        assert self._messages is not None
        while True:
            try:
                message = await self._messages.next(RECHECK)
            except RequestTimeoutError:
                assert self._consumer is not None
                if await has_nothing_left(self._consumer, self._last):
                    return await self._chunk_passed_over(site, info)
            else:
                self._last = message.metadata
                return message.data, message.metadata.num_pending

    async def _open_chunks(self, site: ObjectSite, info: ObjectInfo) -> None:
        """Create a consumer for the chunks. If the stream has too many consumers, prepare to read without one."""
        subject = site.space.chunk_subject(info.nuid)
        config = reader_config([subject], policy=DeliverPolicy.ALL)
        try:
            self._consumer, _ = await open_consumer(self._context, site.stream, config, "create_object_store")
        except ConsumerLimitError as error:
            self._direct = await self._open_direct(site, info)
            meanwhile = f"object {info.name!r} is read without a consumer"
            self._context.emit(ConsumerRefused(stream=site.stream, error=error, meanwhile=meanwhile))
        else:
            self._messages = self._consumer.messages(max_messages=_window(info))

    async def _chunk_passed_over(self, site: ObjectSite, info: ObjectInfo) -> tuple[bytes, int]:
        """Return the next chunk although the consumer does not deliver it. Raise an error if the chunk is missing.

        A consumer of nats-server 2.10 doesn't deliver the last message of a subject if messages before it were removed.
        See `DirectChunks.search_chunk`.
        """
        last = 0 if self._last is None else self._last.stream_seq
        direct = await self._open_direct(site, info, after=last)
        chunk = await self._direct_chunk(direct, site, info)
        await self._end_consumer()
        self._direct = direct
        return chunk

    async def _direct_chunk(
        self, direct: DirectChunks, site: ObjectSite, info: ObjectInfo
    ) -> tuple[bytes, int]:
        chunk = await direct.next_chunk()
        if chunk is None and not is_at_least(self._context.connection.server_version, BATCH_GET_SERVER):
            chunk = await direct.search_chunk(info.revision)
        return await self._raise_missing(site, info) if chunk is None else chunk

    async def _open_direct(self, site: ObjectSite, info: ObjectInfo, *, after: int = 0) -> DirectChunks:
        stream, window = await site.stream_handle(), _window(info)
        subject = site.space.chunk_subject(info.nuid)
        return DirectChunks(
            self._context, stream, subject, page=window, most=window, max_bytes=_WINDOW, after=after
        )

    async def _raise_missing(self, site: ObjectSite, info: ObjectInfo) -> NoReturn:
        """Raise the error for missing chunks. Either the object was replaced or deleted, or it is damaged."""
        now = await site.current(info.name)
        if now is None or now.is_deleted or now.nuid != info.nuid:
            raise ObjectChangedError(
                info.bucket, info.name, info.revision, 0 if now is None else now.revision
            )
        raise ObjectIncompleteError(info.bucket, info.name, info.size, self._position)

    async def read(self, size: int = -1) -> bytes:
        """Read and return bytes. At the end of the object, return ``b""``.

        Args:
            size: Maximum number of bytes to return. Fewer bytes may be returned, but at least one. By default, all
                remaining bytes are returned.

        Raises the same errors as `next`. However, the end of the object doesn't raise `ClosedError`.

        If a call with ``size`` is cancelled, no bytes are lost. A call without ``size`` that fails or is cancelled
        loses the bytes that it has read so far. Use `seek` to go back to them.
        """
        if size == 0:
            return b""
        if size < 0:
            whole = io.BytesIO()  # needs only half of the memory that joining the pieces would need
            async for piece in self:
                whole.write(piece)
            return whole.getvalue()
        if not self._unread:
            try:
                self._unread = memoryview(await self.next())
            except ClosedError:
                if self._has_ended():
                    return b""
                raise
        part, self._unread = bytes(self._unread[:size]), self._unread[size:]
        return part

    async def __anext__(self) -> bytes:
        try:
            return await self.next()
        except ClosedError:
            if self._object is not None and not self._has_ended():
                raise  # if the loop just ended, an incomplete object would look complete
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Stop reading. If the reader has created a consumer on the server, delete it."""
        self._state = State.CLOSED
        await self._end_consumer()

    async def _end_consumer(self) -> None:
        consumer, self._consumer, self._messages = self._consumer, None, None
        if consumer is not None:
            await consumer.close()


def _window(info: ObjectInfo) -> int:
    """Return the number of chunks that may be buffered, based on the average size of the object's chunks."""
    chunk = max(info.size // info.chunks if info.chunks else info.max_chunk_size, 1)
    return max(2, min(_WINDOW // chunk, _MOST))
