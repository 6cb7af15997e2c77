"""The chunk of each position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.buckets.chunk_index import ChunkIndex
from jsclient.protocol.buckets.object_info import ObjectInfo


def info(size: int, chunks: int, max_chunk_size: int = 10, *, is_counted: bool = True) -> ObjectInfo:
    return ObjectInfo(
        bucket="b", name="n", size=size, chunks=chunks, max_chunk_size=max_chunk_size, is_counted=is_counted
    )


def test_regular():
    index = ChunkIndex.regular(info(25, 3), 7, 9)
    assert [index.number_at(position) for position in (0, 9, 10, 19, 20, 24)] == [0, 0, 1, 1, 2, 2]
    assert [index.seq_of(number) for number in range(3)] == [7, 8, 9]
    assert [index.extent_of(number) for number in range(3)] == [(0, 10), (10, 20), (20, 25)]


@pytest.mark.parametrize(
    ("described", "last"),
    [
        (info(25, 3), 10),  # another message is between them
        (info(25, 3), 8),
        (info(31, 3), 9),
        (info(20, 3), 9),
        (info(25, 3, 0), 9),
        (info(25, 3, is_counted=False), 9),
    ],
)
def test_not_regular(described, last):
    assert ChunkIndex.regular(described, 7, last) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_chunks_of_any_size(sizes):
    index = ChunkIndex.of_chunks((5 * number, size) for number, size in enumerate(sizes))
    expected = [number for number, size in enumerate(sizes) for _ in range(size)]
    assert index.size == len(expected)
    assert [index.number_at(position) for position in range(index.size)] == expected
    for position, number in enumerate(expected):
        start, end = index.extent_of(number)
        assert start <= position < end
        assert end - start == sizes[number]
        assert index.seq_of(number) == 5 * number
