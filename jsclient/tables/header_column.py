"""The headers of many messages as an Arrow column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

__all__ = ["HEADERS", "header_column"]

HEADERS: pa.DataType = pa.map_(pa.string(), pa.list_(pa.string()))
"""A map from the name of each header to its values. Null for a message without headers."""

_VERSION = b"NATS/1.0"


def header_column(blocks: Sequence[bytes]) -> pa.Array:
    """Return the headers in header blocks as a column. Each block is parsed like `parse_headers` parses it.

    All messages share four lists, because separate objects for each message would cost three times as much.
    """
    if not any(blocks):
        return pa.nulls(len(blocks), HEADERS)
    names: list[str] = []
    values: list[str] = []
    ends: list[int | None] = []  # for each message, the index of its first name, or None without headers
    firsts: list[int] = []  # for each name, the index of its first value
    for block in blocks:
        before = len(names)
        if block[:8] == _VERSION:
            _read(block, names, values, firsts)
        ends.append(before if len(names) > before else None)
    if not names:
        return pa.nulls(len(blocks), HEADERS)
    ends.append(len(names))
    firsts.append(len(values))
    lists = pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), pa.array(values, pa.string()))
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), pa.array(names, pa.string()), lists)


def _read(block: bytes, names: list[str], values: list[str], firsts: list[int]) -> None:
    """Append the headers of a block to the lists."""
    start, before = len(names), len(values)
    for line in block.decode(errors="replace").split("\r\n")[1:]:
        if not line:
            break
        name, colon, value = line.partition(":")
        if colon and name:
            names.append(name)
            values.append(value.strip(" \t"))
    added = len(names) - start
    if added > 1 and len(set(names[start:])) < added:
        _group(names, values, firsts, start, before)
    else:
        firsts.extend(range(before, before + added))


def _group(names: list[str], values: list[str], firsts: list[int], start: int, before: int) -> None:
    """Group the values of each name that occurs several times in a block, at its first occurrence."""
    groups: dict[str, list[str]] = {}
    for name, value in zip(names[start:], values[before:], strict=True):
        groups.setdefault(name, []).append(value)
    del names[start:], values[before:]
    for name, group in groups.items():
        firsts.append(len(values))
        names.append(name)
        values += group
