"""Uploads by a process of its own, which is killed while it stores an object."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsclient

ROOT = Path(__file__).resolve().parents[2]


async def upload_killed(
    server: Any, bucket: str, path: Path, *, chunks: int, chunk_size: int, token: str = ""
) -> None:
    """Store a file as the object "a", in a process that is killed when the bucket has this many chunks of it.

    With more chunks than the file has, it is killed when the object is stored, and no program knows of it.
    """
    arguments = [server.url, bucket, str(path), str(chunks), str(chunk_size), token]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "integration.buckets.uploads", *arguments, cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL


async def _upload(url: str, bucket: str, path: str, most: str, size: str, token: str) -> None:
    async with await jsclient.connect(url) as js:
        store = await js.object_store(bucket)
        stream, subjects = await js.stream(store.stream), f"$O.{bucket}.C.>"

        async def count() -> int:
            counts = (await stream.info(subjects_filter=subjects)).state.subjects or {}
            return sum(counts.values())

        content = await asyncio.to_thread(Path(path).read_bytes)
        others = 0 if token else await count()

        def kill() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        async def pieces() -> AsyncIterator[bytes]:
            for number, start in enumerate(range(0, len(content), int(size))):
                if number == int(most):
                    while await count() < others + number:
                        await asyncio.sleep(0.005)
                    kill()
                yield content[start : start + int(size)]

        def progress(done: int, total: int | None) -> None:
            if done == len(content) and int(most) * int(size) < len(content) + int(size):
                kill()  # all chunks are stored, and the description is not

        options: dict[str, Any] = {"resume": token} if token else {"chunk_size": int(size)}
        await store.put("a", pieces(), progress=progress, **options)
        kill()


if __name__ == "__main__":
    asyncio.run(_upload(*sys.argv[1:]))
