"""The stored state of a peer: a few entries by key, each written by compare-and-set.

`StreamStore` keeps them in a stream, the newest message of each subject; `MemoryStore` in this process.
"""

from __future__ import annotations

import abc
import secrets
from typing import NamedTuple

from .._runtime.publish import publish
from ..client import JetStream
from ..errors import ApiError, MessageNotFoundError, WrongLastSequenceError
from ..protocol.consumers.status import Ending
from ..streams.stream import Stream

__all__ = ["ConflictError", "Entry", "MemoryStore", "Store", "StreamStore"]

_PAGE = 500


class Entry(NamedTuple):
    """The value of a key, None if it has none, and the revision that the next write has to name."""

    key: str
    data: bytes | None
    revision: int


class ConflictError(Exception):
    """Another process has written the key. ``found`` is its entry."""

    def __init__(self, found: Entry) -> None:
        super().__init__(found.key, found.revision)
        self.found = found


class Store(abc.ABC):
    """The entries of one peer."""

    @abc.abstractmethod
    async def load(self, after: int = 0) -> list[Entry]:
        """The entries written after a revision, by any process; 0: all. Raises those of any request."""

    @abc.abstractmethod
    async def read(self, key: str) -> Entry:
        """One of them. Raises those of any request."""

    @abc.abstractmethod
    async def write(self, key: str, data: bytes | None, revision: int) -> int:
        """Write it if its revision is ``revision``, 0 for none; None deletes it. Returns the new revision.

        Raises:
            ConflictError: It has another revision; nothing was written.
            MaxPayloadError: It is too large; nothing was written.
            JetStreamError: The outcome is unknown.
        """

    @abc.abstractmethod
    async def clear(self) -> None:
        """Delete all."""


class StreamStore(Store):
    """In a stream with one message for each subject, ``<prefix>.state.<peer>.<key>``.

    An empty message is a deletion. It is removed at once, so that nothing piles up; if the process ends in between, it
    counts as a missing entry, and the next write replaces it.
    """

    def __init__(self, js: JetStream, stream: str, prefix: str, peer: str) -> None:
        self._js = js
        self._stream = stream
        self._handle: Stream | None = None
        self._start = f"{prefix}.state.{peer}."

    async def _opened(self) -> Stream:
        if self._handle is None:
            self._handle = await self._js.stream(self._stream)
        return self._handle

    async def load(self, after: int = 0) -> list[Entry]:
        if after and not await self._has_news(after):
            return []
        found: dict[str, Entry] = {}
        reader = self._js.ordered_consumer(
            self._stream, filter_subject=f"{self._start}>", opt_start_seq=after + 1
        )
        async with reader as consumer:
            while True:
                batch = await consumer.fetch(_PAGE, no_wait=True)
                for message in batch:
                    key = message.subject.removeprefix(self._start)
                    # Of a key that is written meanwhile the newest comes last.
                    found[key] = Entry(key, message.data or None, message.metadata.stream_seq)
                if batch.error is not None:
                    raise batch.error
                if batch.ending is Ending.NO_MESSAGES or not batch:
                    return list(found.values())

    async def _has_news(self, after: int) -> bool:
        stream = await self._opened()
        try:
            return (await stream.get_last_message(f"{self._start}>")).seq > after
        except MessageNotFoundError:
            return False

    async def read(self, key: str) -> Entry:
        stream = await self._opened()
        try:
            message = await stream.get_last_message(self._start + key)
        except MessageNotFoundError:
            return Entry(key, None, 0)
        return Entry(key, message.data or None, message.seq)

    async def write(self, key: str, data: bytes | None, revision: int) -> int:
        try:
            seq = await self._publish(key, data, revision)
        except WrongLastSequenceError:
            found = await self.read(key)
            if revision or found.data is not None:
                raise ConflictError(found) from None
            try:
                seq = await self._publish(key, data, found.revision)
            except WrongLastSequenceError:
                raise ConflictError(await self.read(key)) from None
        if data is None:
            await self._remove(seq)
            return 0
        return seq

    async def _publish(self, key: str, data: bytes | None, revision: int) -> int:
        ack = await publish(
            self._js._context,  # noqa: SLF001  requests are below streams
            self._start + key,
            data or b"",
            msg_id=secrets.token_hex(11),  # a try whose answer is lost is repeated, and stored once
            expected_stream=self._stream,
            expected_last_subject_seq=revision,
        )
        return ack.seq

    async def _remove(self, seq: int) -> None:
        try:
            await (await self._opened()).delete_message(seq)
        except ApiError:
            pass  # it is gone, or may not be deleted: an empty message counts as a missing entry

    async def clear(self) -> None:
        await (await self._opened()).purge(subject=f"{self._start}>")


class MemoryStore(Store):
    """In this process."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._revision = 0

    async def load(self, after: int = 0) -> list[Entry]:
        return [
            Entry(key, data, revision) for key, (data, revision) in self._entries.items() if revision > after
        ]

    async def read(self, key: str) -> Entry:
        data, revision = self._entries.get(key, (None, 0))
        return Entry(key, data, revision)

    async def write(self, key: str, data: bytes | None, revision: int) -> int:
        found = await self.read(key)
        if found.revision != revision:
            raise ConflictError(found)
        if data is None:
            self._entries.pop(key, None)
            return 0
        self._revision += 1
        self._entries[key] = data, self._revision
        return self._revision

    async def clear(self) -> None:
        self._entries.clear()
