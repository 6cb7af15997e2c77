"""Reads the chunks of an object without a consumer, for example because the server refuses to create another one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from ..._runtime.context import Context
from ...errors import DisconnectedError, MessageNotFoundError, NoRespondersError, RequestTimeoutError
from ...protocol.models.message import StoredMessage
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.checks import is_at_least
from ...streams.stream import Stream

__all__ = ["DirectChunks"]

_PATIENCE: Final = 60.0  # seconds for which a request is repeated while no server answers
_PAUSE: Final = 0.25  # seconds between two attempts

T = TypeVar("T")


class DirectChunks:
    """Reads the messages of a subject in order.

    If the server supports it, the messages are requested in pages from any replica. Otherwise they are requested one by
    one from the leader.

    Attributes:
        seq: Sequence of the chunk that was returned last.
    """

    def __init__(
        self,
        context: Context,
        stream: Stream,
        subject: str,
        *,
        page: int,
        most: int,
        max_bytes: int,
        after: int = 0,
    ) -> None:
        """Prepare to read.

        Args:
            context, stream, subject: The stream and the subject of the chunks.
            page: Number of chunks to request first. The number doubles with each request.
            most: Maximum number of chunks in one request.
            max_bytes: Maximum number of bytes that one request may return.
            after: Return only chunks after this sequence.
        """
        self._context, self._stream, self._subject = context, stream, subject
        self._page_size, self._most, self._max_bytes = page, most, max_bytes
        self._page: deque[StoredMessage] = deque()
        self.seq: int = 0
        self._read_seq = after  # sequence of the last message that was requested
        self._last_seq: int | None = None  # sequence of the leader's last message
        version = context.connection.server_version
        self._in_pages = bool(stream.cached_info.config.allow_direct) and is_at_least(
            version, BATCH_GET_SERVER
        )

    async def next_chunk(self) -> tuple[bytes, int] | None:
        """Return the next chunk, together with 1 if more chunks follow or 0 if not. Return None after the last chunk.

        Requests are repeated while the server is unavailable. May raise any error of an API request.

        If the call is cancelled, no chunk is lost. The next call returns it.
        """
        if self._last_seq is None:
            self._last_seq = await self._patiently(self._newest_seq)
        while not self._page and self._read_seq < self._last_seq:
            await self._patiently(self._load_page)
        if not self._page:
            return None
        message = self._page.popleft()
        self.seq = message.seq
        return message.data, int(message.seq < self._last_seq)

    async def search_chunk(self, end: int, *, start: int = 0) -> tuple[bytes, int] | None:
        """Return the next chunk like `next_chunk`, but search every sequence from ``start`` up to ``end - 1``.

        This is needed because nats-server 2.10 doesn't return the last message of a subject if messages before it were
        removed.
        """
        for seq in range(max(self._read_seq + 1, start), end):
            self._read_seq = seq
            try:
                message = await self._patiently(partial(self._stream.get_message, seq))
            except MessageNotFoundError:
                continue
            if message.subject == self._subject:
                self.seq = seq
                return message.data, int(seq < end - 1)
        return None

    async def _newest_seq(self) -> int:
        try:
            return (await self._stream.get_last_message(self._subject)).seq
        except MessageNotFoundError:
            return 0

    async def _load_page(self) -> None:
        """Request the next messages. If the request fails, the messages that it has returned are discarded."""
        page = await self._requested_page() if self._in_pages else []
        # A lagging replica may have none of the messages yet, so ask the leader for the next one.
        if not page:
            try:
                page = [await self._stream.get_next_message(self._subject, self._read_seq + 1)]
            except MessageNotFoundError:  # the remaining messages have been removed
                self._last_seq = self._read_seq
                return
        self._page_size = min(2 * self._page_size, self._most)
        self._read_seq = page[-1].seq
        self._page.extend(page)

    async def _requested_page(self) -> list[StoredMessage]:
        batch = self._stream.get_batch(
            self._page_size, seq=self._read_seq + 1, subject=self._subject, max_bytes=self._max_bytes
        )
        try:
            return [message async for message in batch]
        except NoRespondersError:  # the stream no longer answers direct gets
            self._in_pages = False
            return []

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        connection = self._context.connection
        deadline = connection.now() + _PATIENCE
        while True:
            try:
                await connection.wait_connected(deadline)
                return await call()
            except (DisconnectedError, RequestTimeoutError):
                if connection.is_closed or connection.now() + _PAUSE >= deadline:
                    raise
                await asyncio.sleep(_PAUSE)
