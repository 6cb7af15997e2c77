"""Hashes that distinguish the rows of a batch, in a task and on the driver."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

import pyarrow as pa

__all__ = ["RowKeys", "digest", "hash_column", "id_hash"]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Keys that distinguish rows. A key has only 16 bytes of hashes, because the driver collects all keys."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    subjects: array[int] = field(default_factory=lambda: array("I"))
    contents: array[int] = field(default_factory=lambda: array("I"))  # hashes of headers and payload

    def columns(self) -> list[pa.Array]:
        """Return the hashes as Arrow columns, without a copy."""
        kinds = (pa.uint64(), self.ids), (pa.uint32(), self.subjects), (pa.uint32(), self.contents)
        return [hash_column(kind, one) for kind, one in kinds]


def id_hash(msg_id: bytes) -> int:
    """Return the hash of an id for `RowKeys`."""
    return array("Q", digest(msg_id, 8))[0]


def digest(data: bytes, size: int) -> bytes:
    """Hash ``data`` to ``size`` bytes."""
    return blake2b(data, digest_size=size).digest()


def hash_column(kind: pa.DataType, values: array[int]) -> pa.Array:
    """Return hashes as an Arrow column, without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
