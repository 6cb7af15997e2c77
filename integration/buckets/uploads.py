"""Uploads by a process of its own, which is killed while it stores an object."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jsclient

ROOT = Path(__file__).resolve().parents[2]


async def upload_killed(
    server: Any, bucket: str, path: Path, *, chunks: int, chunk_size: int, token: str = ""
) -> None:
    """Store a file as the object "a", in a process that is killed when this number of chunks was acked."""
    arguments = [server.url, bucket, str(path), str(chunks * chunk_size), str(chunk_size), token]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "integration.buckets.uploads", *arguments, cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL


async def _upload(url: str, bucket: str, path: str, size: str, chunk_size: str, token: str) -> None:
    def kill(done: int, total: int | None) -> None:
        if done >= int(size):
            os.kill(os.getpid(), signal.SIGKILL)

    async with await jsclient.connect(url) as js:
        store = await js.object_store(bucket)
        options: dict[str, Any] = {"resume": token} if token else {"chunk_size": int(chunk_size)}
        if size == "0":
            kill(0, None)
        await store.put_file("a", path, progress=kill, **options)
        os.kill(os.getpid(), signal.SIGKILL)  # when the description is stored, and the program does not know


if __name__ == "__main__":
    asyncio.run(_upload(*sys.argv[1:]))
