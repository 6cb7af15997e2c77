"""Splits the content of an object into chunks when it is written, and checks it when it is read. Source: ADR-20."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ...errors import DigestMismatchError, ObjectIncompleteError
from .object_digest import digest_text, read_digest
from .object_info import ObjectInfo

__all__ = ["ChunkSplitter", "ContentCheck"]


class ChunkSplitter:
    """Splits content, which arrives in pieces of any size, into chunks of equal size.

    Attributes:
        chunk_size: Size of each chunk except for the last one, in bytes.
        size: Total size of all chunks so far, in bytes.
        chunks: Number of chunks so far.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.size: int = 0
        self.chunks: int = 0
        self._partial = bytearray()
        self._hash = hashlib.sha256()

    def add(self, piece: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Add a piece of content, and yield the chunks that it completes."""
        length = self.chunk_size
        # If the pieces already have the size of a chunk, they need not be copied.
        if type(piece) is bytes and len(piece) == length and not self._partial:
            yield self._count(piece)
            return
        view = memoryview(piece)
        view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
        position = 0
        if self._partial:
            position = length - len(self._partial)
            self._partial += view[:position]
            if len(self._partial) < length:
                return
            whole, self._partial = bytes(self._partial), bytearray()
            yield self._count(whole)
        while len(view) - position >= length:
            yield self._count(bytes(view[position : position + length]))
            position += length
        self._partial += view[position:]

    def finish(self) -> Iterator[bytes]:
        """Yield the last chunk, if any content remains."""
        if self._partial:
            last, self._partial = bytes(self._partial), bytearray()
            yield self._count(last)

    def _count(self, chunk: bytes) -> bytes:
        self._hash.update(chunk)
        self.size += len(chunk)
        self.chunks += 1
        return chunk

    @property
    def digest(self) -> str:
        """Digest of all chunks so far, in the text form that descriptions contain."""
        return digest_text(self.digest_so_far)

    @property
    def digest_so_far(self) -> bytes:
        """Digest of all chunks so far, as bytes."""
        return self._hash.digest()


class ContentCheck:
    """Checks the number and size of an object's chunks while they are read, and the digest at the end.

    Attributes:
        received: Total size of all chunks so far, in bytes.
        chunks: Number of chunks so far.
        is_complete: Whether the whole content has been read and the digest is correct.
    """

    def __init__(self, info: ObjectInfo) -> None:
        self._info = info
        self._hash = hashlib.sha256()
        self.received: int = 0
        self.chunks: int = 0
        self.is_complete: bool = False
        if info.is_counted and not info.size and not info.chunks:
            self._verify()  # an empty object has no chunks to wait for

    def add(self, data: bytes, remaining: int) -> None:
        """Check the next chunk.

        Args:
            data: The chunk.
            remaining: Number of chunks after this one, as reported by the server.

        Raises:
            ObjectIncompleteError: The object has more or fewer bytes than its description says.
            DigestMismatchError: This is the last chunk, and the digest doesn't match the content.
        """
        info = self._info
        self._hash.update(data)
        self.received += len(data)
        self.chunks += 1
        if not info.is_counted:
            if not remaining:
                self._verify()
        elif self.received > info.size or (self.chunks >= info.chunks and self.received < info.size):
            raise self.incomplete()
        elif self.received == info.size and self.chunks == info.chunks:
            self._verify()

    def add_at(self, position: int, data: bytes) -> None:
        """Check a piece of the content that begins at ``position``.

        The digest is checked once the whole content has been read in order. Reads at other positions in between don't
        matter.

        Raises:
            DigestMismatchError: The whole content has been read, and the digest doesn't match.
        """
        if position == 0 and data:
            self._hash, self.received = hashlib.sha256(), 0
        if position != self.received:
            return
        self._hash.update(data)
        self.received += len(data)
        if self.received == self._info.size:
            self._verify()

    def incomplete(self) -> ObjectIncompleteError:
        """Return the error for an object whose chunks are missing."""
        return ObjectIncompleteError(self._info.bucket, self._info.name, self._info.size, self.received)

    def _verify(self) -> None:
        info, digest = self._info, self._hash.digest()
        if info.digest and read_digest(info.digest) != digest:
            raise DigestMismatchError(info.bucket, info.name, info.digest, digest_text(digest))
        self.is_complete = True
