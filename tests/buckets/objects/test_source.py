"""The types that an object's content may have, and the pieces that are read from it."""

from __future__ import annotations

import asyncio
import io
import threading
from array import array
from pathlib import Path

import pytest

from jsclient.buckets.objects.source import PIECE, check_source, pieces_of, size_of
from jsclient.errors import ConfigError
from tests.support.virtual import settle, virtual


class File:
    """A file whose ``read`` returns these one after the other."""

    def __init__(self, *pieces) -> None:
        self.pieces = list(pieces)
        self.sizes: list[int] = []
        self.threads: set[int] = set()

    def read(self, size):
        self.sizes.append(size)
        self.threads.add(threading.get_ident())
        return self.pieces.pop(0)


class AsyncFile(File):
    async def read(self, size):
        await asyncio.sleep(0)
        return super().read(size)


class HalfAsyncFile(File):
    """Its ``read`` is a plain function that returns an awaitable."""

    def read(self, size):
        piece = super().read(size)
        return asyncio.sleep(0, piece)


class Iterator:
    """An asynchronous iterator that is not a generator."""

    def __init__(self, *pieces) -> None:
        self.pieces = list(pieces)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.pieces:
            raise StopAsyncIteration
        return self.pieces.pop(0)


async def pieces(source):
    return [piece async for piece in pieces_of(source)]


def real_time(coroutine):
    """Virtual time does not wait for a thread."""
    return asyncio.run(coroutine)


@pytest.mark.parametrize(
    "source",
    [b"", b"ab", bytearray(b"ab"), memoryview(b"ab")],
    ids=["empty", "bytes", "bytearray", "memoryview"],
)
@virtual
async def test_bytes_are_one_piece(source):
    check_source(source)
    (piece,) = await pieces(source)
    assert piece is source


@virtual
async def test_iterables():
    some = [b"a", bytearray(b"b"), memoryview(b"c"), b""]
    for source in (some, tuple(some), iter(some), (one for one in some), Iterator(*some)):
        check_source(source)
        assert await pieces(source) == some


@virtual
async def test_asynchronous_generator():
    async def generated():
        yield b"a"
        await asyncio.sleep(3600)
        yield b"b"

    source = generated()
    check_source(source)
    assert await pieces(source) == [b"a", b"b"]


def test_file_is_read_in_a_thread():
    file = File(b"abc", b"d", b"")
    check_source(file)
    assert real_time(pieces(file)) == [b"abc", b"d"]
    assert file.sizes == [PIECE] * 3
    assert PIECE == 1024 * 1024
    assert threading.get_ident() not in file.threads


def test_real_files(tmp_path):
    content = b"x" * (PIECE + 5)
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as file:
        check_source(file)
        assert [len(piece) for piece in real_time(pieces(file))] == [PIECE, 5]
    assert real_time(pieces(io.BytesIO(content))) == [content[:PIECE], content[PIECE:]]
    assert real_time(pieces(io.BytesIO())) == []


@virtual
async def test_asynchronous_file_is_read_in_the_loop():
    file = AsyncFile(b"abc", bytearray(b"d"), b"")
    check_source(file)
    assert await pieces(file) == [b"abc", b"d"]
    assert file.sizes == [PIECE] * 3
    assert file.threads == {threading.get_ident()}


def test_file_that_returns_awaitables():
    assert real_time(pieces(HalfAsyncFile(b"abc", b""))) == [b"abc"]


@virtual
async def test_file_before_iterable():
    """A file of bytes is iterable, by lines that may be long."""

    class Both(AsyncFile):
        def __iter__(self):
            raise AssertionError("read by lines")

    assert await pieces(Both(b"a\nb\n", b"")) == [b"a\nb\n"]


@virtual
async def test_non_blocking_file():
    with pytest.raises(ConfigError, match="non-blocking"):
        await pieces(AsyncFile(b"a", None))


@pytest.mark.parametrize(
    ("piece", "why"),
    [("text", "encode it"), (5, "piece of int"), (array("B", b"a"), "piece of array")],
    ids=str,
)
@virtual
async def test_bad_pieces(piece, why):
    for source in ([b"good", piece], Iterator(b"good", piece)):
        reading = pieces_of(source)
        assert await anext(reading) == b"good"
        with pytest.raises(ConfigError, match=why):
            await anext(reading)


@virtual
async def test_text_of_a_file():
    with pytest.raises(ConfigError, match="mode 'rb'"):
        await pieces(AsyncFile("text", ""))
    await settle()  # the loop closes the generator that reads the file


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("text", r"text\.encode\(\)"),
        (io.StringIO("text"), "mode 'rb'"),
        (Path("file"), r"put_file\(\)"),
        (5, "is int"),
        (None, "is NoneType"),
        ({b"a": 1}, "is dict"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_content(source, why):
    with pytest.raises(ConfigError, match=why):
        check_source(source)


def test_check_reads_nothing():
    file, rows = File(b"a"), iter([b"a"])
    check_source(file)
    check_source(rows)
    assert file.sizes == []
    assert list(rows) == [b"a"]


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (b"", 0),
        (b"abc", 3),
        (bytearray(5), 5),
        (memoryview(array("I", [1, 2])), 8),
        ([b"abc"], None),
        (io.BytesIO(b"abc"), None),
    ],
    ids=["empty", "bytes", "bytearray", "memoryview", "iterable", "file"],
)
def test_size(source, size):
    assert size_of(source) == size
