"""Finds the chunk that contains a certain position of an object, and the message that contains the chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .object_info import ObjectInfo

__all__ = ["ChunkIndex"]


class ChunkIndex:
    """The stream sequences of an object's chunks, and the positions of their first and last bytes.

    Attributes:
        size: Total size of all chunks in bytes.
    """

    def __init__(self, seqs: Sequence[int], starts: Sequence[int], size: int) -> None:
        self._seqs, self._starts = seqs, starts
        self.size: int = size

    @classmethod
    def regular(cls, info: ObjectInfo, first: int, last: int) -> ChunkIndex | None:
        """Return the index of an object with regular chunks, or None if the chunks aren't regular.

        Chunks are regular if they are adjacent in the stream and have the size given in the description. ``first`` and
        ``last`` are the sequences of the first and the last chunk. If the chunks aren't regular, the size of each one
        must be read.
        """
        size, length = info.size, info.max_chunk_size
        if not info.is_counted or not length or last - first + 1 != info.chunks:
            return None
        if not (info.chunks - 1) * length < size <= info.chunks * length:
            return None
        return cls(range(first, last + 1), range(0, size, length), size)

    @classmethod
    def of_chunks(cls, chunks: Iterable[tuple[int, int]]) -> ChunkIndex:
        """Create an index from the ``(sequence, size)`` pairs of all chunks in order."""
        seqs, starts, size = list[int](), list[int](), 0
        for seq, length in chunks:
            seqs.append(seq)
            starts.append(size)
            size += length
        return cls(seqs, starts, size)

    @property
    def last(self) -> int:
        """Number of the last chunk, starting at 0, or -1 if there are no chunks."""
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
        """Return the positions of a chunk's first byte, and of the byte after its last one."""
        ends = number + 1
        return self._starts[number], self._starts[ends] if ends < len(self._starts) else self.size
