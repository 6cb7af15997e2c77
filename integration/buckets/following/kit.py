"""What the tests of watches that share a consumer have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from integration.kit.judge.waiting import eventually, within


def value_of(entry: Any) -> bytes | None:
    """The value of a key, or None if the key was deleted."""
    return None if entry.is_deleted else entry.value


class Follower:
    """Reads a watch in the background, and keeps what it has read.

    Attributes:
        seen: What ``kept`` returns for the newest entry of each key. A key for which it returns None is removed.
        revisions: The revisions of all entries, in the order of reading.
        opened: Set once the watch is open.
    """

    def __init__(self, watch: Any, kept: Callable[[Any], Any] = value_of, *, pause: float = 0.0) -> None:
        self._watch, self._kept, self._pause = watch, kept, pause
        self.seen: dict[str, Any] = {}
        self.revisions: list[int] = []
        self.opened = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, watch: Any, kept: Callable[[Any], Any] = value_of) -> Follower:
        """Begin to read a watch, and wait until it is open."""
        follower = cls(watch, kept)
        await within(60, follower.opened.wait(), "the watch is open")
        return follower

    async def _read(self) -> None:
        async with self._watch:
            self.opened.set()
            async for entry in self._watch:
                self.revisions.append(entry.revision)
                if (kept := self._kept(entry)) is None:
                    self.seen.pop(entry.key, None)
                else:
                    self.seen[entry.key] = kept
                if self._pause:
                    await asyncio.sleep(self._pause)

    async def has_read(self, last: int) -> None:
        """Wait until it has read the entry with this revision, which is the newest."""
        await eventually(lambda: self.revisions[-1:] == [last], what="the watch has read everything")

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def fill(kv: Any, count: int) -> None:
    """Put a value for each of so many keys, one after the other."""
    for number in range(count):
        await kv.put(f"k{number}", b"%d" % number)


async def publish(js: Any, kv: Any, count: int, keys: int, start: int = 0) -> None:
    """Publish values of the keys in turn."""
    async with js.publisher() as publisher:
        for number in range(start, start + count):
            await publisher.publish(f"$KV.{kv.bucket}.k{number % keys}", b"%d" % number)


async def fallen_behind(kv: Any, writer: Any, count: int = 12_000) -> tuple[Any, Follower]:
    """Return an open watch that has read none of so many messages, and a follower that has read all of them."""
    slow = kv.watch()
    await slow.__aenter__()
    fast = await Follower.open(kv.watch())
    await publish(writer, kv, count, 400)
    await eventually(lambda: len(fast.revisions) == count, what="the fast watch has read everything")
    return slow, fast


async def until_current(watch: Any) -> dict[str, bytes]:
    """Read the initial entries of a watch, and return the value of each key."""
    entries = {}
    while not watch.is_current:
        entry = await within(60, watch.next(), "an entry")
        assert entry.is_initial
        entries[entry.key] = entry.value
    return entries


async def until_consumers(oracle: Any, kv: Any, count: int) -> None:
    """Wait until the stream of the bucket has so many consumers."""

    async def has() -> bool:
        return len(await oracle.consumer_names(kv.stream)) == count

    await eventually(has, what=f"{count} consumers")


async def share_a_change(kv: Any, oracle: Any, *watches: Any) -> None:
    """Wait until these watches share one consumer, and check that each reads the next change."""
    reading = [asyncio.create_task(watch.next()) for watch in watches]
    await until_consumers(oracle, kv, 1)
    revision = await kv.put("a", b"1")
    entries = await within(60, asyncio.gather(*reading), "the change")
    assert {(entry.revision, entry.is_initial) for entry in entries} == {(revision, False)}
