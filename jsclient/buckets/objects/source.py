"""The sources from which the content of an object can be read: bytes, files and iterables."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Iterable
from typing import Any, Final, Protocol

from ...errors import ConfigError

__all__ = ["BinaryFile", "check_source", "pieces_of", "size_of"]


class BinaryFile(Protocol):
    """A binary file that can be passed to `ObjectStore.put`, such as the result of ``open(path, "rb")``.

    Any object with a ``read`` method that returns bytes is accepted. The method may be a regular or a coroutine
    function.
    """

    def read(self, size: int, /) -> bytes | Awaitable[bytes]: ...


PIECE: Final = 1024 * 1024
"""Number of bytes to read from a file at once."""

_KINDS: Final = "bytes, a binary file, or an iterable of bytes"


def check_source(source: object) -> None:
    """Raise `ConfigError` if ``source`` can't be a source of bytes. No data is read."""
    if isinstance(source, str):
        raise ConfigError("the content is a str: it must be bytes, as text.encode() gives")
    if isinstance(source, io.TextIOBase):
        raise ConfigError("the file is open for text: open it with mode 'rb'")
    if isinstance(source, os.PathLike):
        raise ConfigError("the content is a path: put_file() stores the file")
    if isinstance(source, bytes | bytearray | memoryview | AsyncIterable) or hasattr(source, "read"):
        return
    if not isinstance(source, Iterable) or isinstance(source, dict):
        raise ConfigError(f"the content is {type(source).__name__}: it must be {_KINDS}")


def size_of(source: object) -> int | None:
    """Return the size of the content, or None if it is unknown."""
    return memoryview(source).nbytes if isinstance(source, bytes | bytearray | memoryview) else None


async def pieces_of(source: Any) -> AsyncGenerator[bytes | bytearray | memoryview, None]:
    """Iterate over the content in pieces. Raises `ConfigError` if a piece is not bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield source
    elif hasattr(source, "read"):
        async for piece in _read(source.read):
            yield _checked(piece)
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield _checked(piece)
    else:
        for piece in source:
            yield _checked(piece)


async def _read(read: Any) -> AsyncGenerator[Any, None]:
    """Iterate over the content of a file. A plain ``read`` runs in a thread, to avoid blocking the event loop."""
    in_loop = inspect.iscoroutinefunction(read)
    while True:
        piece = await read(PIECE) if in_loop else await asyncio.to_thread(read, PIECE)
        if inspect.isawaitable(piece):
            piece = await piece
        if piece is None:
            raise ConfigError("the file has no data at the moment: it must not be in non-blocking mode")
        if not len(piece):
            return
        yield piece


def _checked(piece: Any) -> bytes | bytearray | memoryview:
    if isinstance(piece, bytes | bytearray | memoryview):
        return piece
    what = "text: encode it, or open the file with mode 'rb'" if isinstance(piece, str) else _KINDS
    raise ConfigError(f"the content has a piece of {type(piece).__name__}, and it must be {what}")
