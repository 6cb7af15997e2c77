"""Hashes that tell the rows of a batch apart, on the driver and in a task."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

import pyarrow as pa

__all__ = ["RowKeys", "digest", "hash_column", "id_hash"]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """What tells rows apart, by row. Hashes, because the driver collects those of all rows: 16 bytes each."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    subjects: array[int] = field(default_factory=lambda: array("I"))
    contents: array[int] = field(default_factory=lambda: array("I"))  # of headers and payload

    def columns(self) -> list[pa.Array]:
        """The hashes as columns of Arrow, without a copy."""
        kinds = (pa.uint64(), self.ids), (pa.uint32(), self.subjects), (pa.uint32(), self.contents)
        return [hash_column(kind, one) for kind, one in kinds]


def id_hash(msg_id: bytes) -> int:
    """The hash of an id in `RowKeys`."""
    return array("Q", digest(msg_id, 8))[0]


def digest(data: bytes, size: int) -> bytes:
    """Hash ``data`` to ``size`` bytes."""
    return blake2b(data, digest_size=size).digest()


def hash_column(kind: pa.DataType, values: array[int]) -> pa.Array:
    """Hashes as a column of Arrow, without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
