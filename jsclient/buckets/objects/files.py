"""Writes objects to files. A file appears under its name only once it is complete."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from ...protocol.buckets.object_info import ObjectInfo
from .reader import ObjectReader

__all__ = ["write_file"]

_PIECE: Final = 1024 * 1024  # bytes in one write


async def write_file(reader: ObjectReader, path: Path) -> ObjectInfo:
    """Write an object to a temporary file beside ``path``, verify its digest, and rename the file to ``path``."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with unfinished.open("xb") as file:
            await _copy(reader, file)
        await _in_thread(partial(os.replace, unfinished, path))
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return reader.info


async def _copy(reader: ObjectReader, file: BinaryIO) -> None:
    pieces, size = list[bytes](), 0
    async for piece in reader:
        pieces.append(piece)
        size += len(piece)
        if size >= _PIECE:
            await _in_thread(partial(file.writelines, pieces))
            pieces, size = [], 0
    await _in_thread(partial(_finish, file, pieces))


def _finish(file: BinaryIO, pieces: list[bytes]) -> None:
    file.writelines(pieces)
    file.flush()
    os.fsync(file.fileno())


async def _in_thread(call: Callable[[], object]) -> None:
    """Call a function in a thread. If the task is cancelled, wait for the function before the file is closed."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
