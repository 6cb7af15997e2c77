"""A watch that is behind when its bucket is restored from an older copy, which has grown past its place again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from integration.buckets.following.kit import Follower
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually, within
from jsclient.events import StreamReset

pytestmark = pytest.mark.server(">=2.11")


async def publish(js: Any, name: str, count: int, value: bytes) -> None:
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish(f"$KV.{name}.k{number % 200}", value)


@pytest.mark.covers("K54", "K56")
@pytest.mark.limit(180)
async def test_restored_while_it_is_behind(own_server: Any, connect: Any, proxy: Any, tmp_path: Path) -> None:
    """The creation time is the same, and the end is after the place of the watch. It reads the copy from its start."""
    files = tmp_path / "files"
    own = await own_server(store_dir=files)
    writer = await connect(own, **FAST)
    kv = await writer.create_key_value("cfg", history=64)
    await publish(writer, "cfg", 1000, b"before")
    await own.stop()
    shutil.copytree(files, tmp_path / "copy")
    await own.start()
    tap = await proxy(own, frames=False)
    followed = await (await connect(tap, **FAST)).key_value("cfg")
    async with followed.watch(updates_only=True) as slow:
        fast = await Follower.open(followed.watch(updates_only=True))
        await publish(writer, "cfg", 6000, b"lost")
        await eventually(lambda: len(fast.revisions) == 6000, 60, "the fast watch has read everything")
        for revision in range(1001, 1101):
            assert (await within(30, slow.next(), "an entry")).revision == revision
        tap.refuse()
        await own.stop()
        shutil.rmtree(files)
        shutil.copytree(tmp_path / "copy", files)
        await own.start()
        await publish(writer, "cfg", 8000, b"new")
        last = await kv.put("last", b"new")
        tap.cut()
        await tap.accept()
        await eventually(lambda: fast.revisions[-1] == last, 60, "the fast watch has read the copy")
        # The slow watch may first read on at its position, even up to the end. Then it begins again at the start.
        new: list[int] = []
        whole = [*range(1001, last + 1)]
        while new[-1:] != [last] or new[-len(whole) :] != whole:
            entry = await within(30, slow.next(), "an entry")
            new += [entry.revision] if entry.value == b"new" else []
        told = slow.events()
        while not isinstance(await within(10, anext(told), "the event"), StreamReset):
            pass
        revision = await kv.put("a", b"1")
        assert (await within(10, slow.next(), "the change")).revision == revision
        await fast.end()
