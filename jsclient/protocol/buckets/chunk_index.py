"""Finds the chunk that contains a position of an object's content, and the message of a chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .object_info import ObjectInfo

__all__ = ["ChunkIndex"]


class ChunkIndex:
    """The sequence and the extent of each chunk of an object.

    Attributes:
        size: The size of all chunks.
    """

    def __init__(self, seqs: Sequence[int], starts: Sequence[int], size: int) -> None:
        self._seqs, self._starts = seqs, starts
        self.size: int = size

    @classmethod
    def regular(cls, info: ObjectInfo, first: int, last: int) -> ChunkIndex | None:
        """Return the index of an object whose chunks follow each other in the stream and have the stored chunk size.

        ``first`` and ``last`` are the sequences of its first and last chunk. Returns None if the chunks are not
        regular, so that the size of each chunk must be read.
        """
        size, length = info.size, info.max_chunk_size
        if not info.is_counted or not length or last - first + 1 != info.chunks:
            return None
        if not (info.chunks - 1) * length < size <= info.chunks * length:
            return None
        return cls(range(first, last + 1), range(0, size, length), size)

    @classmethod
    def of_chunks(cls, chunks: Iterable[tuple[int, int]]) -> ChunkIndex:
        """Return the index of chunks, from the sequence and the size of each chunk in order."""
        seqs, starts, size = list[int](), list[int](), 0
        for seq, length in chunks:
            seqs.append(seq)
            starts.append(size)
            size += length
        return cls(seqs, starts, size)

    @property
    def last(self) -> int:
        """The number of the last chunk, counted from 0, or -1 if there are none."""
        return len(self._seqs) - 1

    def number_at(self, position: int) -> int:
        """Return the number of the chunk that contains the byte at ``position``. Numbers start at 0.

        ``position`` must be below the size.
        """
        return bisect_right(self._starts, position) - 1

    def seq_of(self, number: int) -> int:
        """Return the sequence of a chunk."""
        return self._seqs[number]

    def extent_of(self, number: int) -> tuple[int, int]:
        """Return the position of a chunk's first byte, and the position after its last byte."""
        ends = number + 1
        return self._starts[number], self._starts[ends] if ends < len(self._starts) else self.size
