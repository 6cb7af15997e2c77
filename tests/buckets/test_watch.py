"""A watch on a reader that the test feeds: its entries, when it is current, and the tasks that wait for that."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.buckets.watch import BucketWatch
from jsclient.errors import ClosedError, ConfigError, DisconnectedError
from jsclient.protocol.buckets.entry import KeyValueEntry
from tests.support.virtual import settle, virtual


def put(revision: int) -> KeyValueEntry:
    return KeyValueEntry(bucket="b", key="k", raw=b"v", revision=revision, created_ns=0)


def deletion(revision: int) -> KeyValueEntry:
    return KeyValueEntry(bucket="b", key="k", raw=b"", revision=revision, created_ns=0, operation="DEL")


class Reader:
    """Returns what the test feeds. It is current after as many entries as existed."""

    def __init__(self, existing: int = 0, *fed) -> None:
        self.remaining = existing
        self.fed = asyncio.Queue()
        self.opened = self.closed = 0
        self.is_current = False
        self.feed(*fed)

    def feed(self, *entries) -> None:
        for entry in entries:
            self.fed.put_nowait(entry)

    async def open(self):
        self.opened += 1
        self.is_current = not self.remaining

    def entry_events(self):
        return ["an event"]

    async def next_run(self):
        entry = await self.fed.get()
        if isinstance(entry, Exception):
            raise entry
        self.remaining -= 1
        self.is_current = self.is_current or not self.remaining
        return [] if entry is None else [entry]

    async def close(self) -> None:
        self.closed += 1


def watch_of(reader, *, ignore_deletes=False) -> BucketWatch:
    return BucketWatch(reader, ignore_deletes=ignore_deletes)


async def taken(watch, count: int):
    """The revisions of the next entries, and whether the watch is current after each."""
    return [((await watch.next()).revision, watch.is_current) for _ in range(count)]


@virtual
async def test_entries_and_changes():
    reader = Reader(3, put(1), put(4), put(6))
    async with watch_of(reader) as watch:
        assert not watch.is_current
        assert await taken(watch, 3) == [(1, False), (4, False), (6, True)]
        reader.feed(put(7), deletion(8))
        assert await taken(watch, 2) == [(7, True), (8, True)]
    assert (reader.opened, reader.closed) == (1, 1)


@virtual
async def test_no_entries():
    reader = Reader(0)
    async with watch_of(reader) as watch:
        assert watch.is_current
        await watch.current()
        waiting = asyncio.ensure_future(watch.next())
        await settle()
        assert not waiting.done()
        reader.feed(put(1))
        assert (await waiting).revision == 1


@pytest.mark.parametrize("last", [[deletion(5), deletion(6)], [None], [deletion(5), None]], ids=len)
@virtual
async def test_nothing_to_return_at_the_end(last):
    """The last returned entry is known as the last, although other entries followed it."""
    reader = Reader(2 + len(last), put(1), put(2), *last)
    async with watch_of(reader, ignore_deletes=True) as watch:
        assert await taken(watch, 2) == [(1, False), (2, True)]


@virtual
async def test_only_deletions():
    reader = Reader(2, deletion(1), deletion(2))
    async with watch_of(reader, ignore_deletes=True) as watch:
        assert watch.is_current
        reader.feed(deletion(3), None, put(4))
        assert await taken(watch, 1) == [(4, True)]


@virtual
async def test_deletions_are_returned():
    async with watch_of(Reader(2, deletion(1), deletion(2))) as watch:
        assert await taken(watch, 2) == [(1, False), (2, True)]


@virtual
async def test_one_entry_is_held():
    """The watch reads ahead only until it knows whether an entry is the last."""
    reader = Reader(4, put(1), put(2), put(3), put(4))
    async with watch_of(reader) as watch:
        assert reader.fed.qsize() == 3
        await watch.next()
        assert reader.fed.qsize() == 2


@virtual
async def test_revision():
    reader = Reader(1, put(5))
    async with watch_of(reader) as watch:
        assert watch.revision == 0, "held, and not returned"
        await watch.next()
        assert watch.revision == 5
        reader.feed(put(3), put(9))
        await watch.next()
        assert watch.revision == 5
        await watch.next()
        assert watch.revision == 9


@virtual
async def test_state_is_shown():
    watch = watch_of(Reader(1, put(1)))
    assert repr(watch) == "<BucketWatch new>"
    async with watch:
        assert repr(watch) == "<BucketWatch open>"
        await watch.next()
        assert repr(watch) == "<BucketWatch open, current>"
    assert repr(watch) == "<BucketWatch closed, current>"


@virtual
async def test_opens_once():
    reader = Reader(2, put(1), put(2))
    async with watch_of(reader) as watch:
        assert await watch.__aenter__() is watch
        assert reader.opened == 1
        assert await taken(watch, 2) == [(1, False), (2, True)]


@virtual
async def test_not_open():
    watch = watch_of(Reader())
    with pytest.raises(ConfigError, match="async with"):
        await watch.next()
    with pytest.raises(ClosedError, match="async with"):
        watch.events()


@virtual
async def test_events():
    async with watch_of(Reader()) as watch:
        assert watch.events() == ["an event"]


@virtual
async def test_failure_at_the_start():
    reader = Reader(2, DisconnectedError("lost"))
    watch = watch_of(reader)
    with pytest.raises(DisconnectedError):
        await watch.__aenter__()
    assert (watch.is_closed, reader.closed) == (True, 1)


@virtual
async def test_cancelled_start():
    reader = Reader(2)
    watch = watch_of(reader)
    opening = asyncio.ensure_future(watch.__aenter__())
    await settle()
    opening.cancel()
    await asyncio.wait({opening})
    assert (opening.cancelled(), watch.is_closed, reader.closed) == (True, True, 1)


@virtual
async def test_closed():
    reader = Reader(3, put(1), put(2), put(3))
    async with watch_of(reader) as watch:
        await watch.next()
    with pytest.raises(ClosedError):
        await watch.next()
    with pytest.raises(ClosedError):
        await watch.current()
    assert [entry async for entry in watch] == []


@virtual
async def test_loop_ends_with_the_watch():
    reader = Reader(1, put(1))
    async with watch_of(reader) as watch:
        reader.feed(put(2), ClosedError("the consumer is closed"))
        assert [entry.revision async for entry in watch] == [1, 2]


@virtual
async def test_waits_until_current():
    reader = Reader(2, put(1), put(2))
    async with watch_of(reader) as watch:
        waiting = asyncio.ensure_future(watch.current())
        await watch.next()
        await settle()
        assert not waiting.done()
        await watch.next()
        await settle()
        assert waiting.done()
        await watch.current()


@virtual
async def test_close_ends_the_wait():
    watch = watch_of(Reader(2, put(1)))
    await watch.__aenter__()
    waiting = asyncio.ensure_future(watch.current())
    await settle()
    await watch.close()
    with pytest.raises(ClosedError):
        await waiting


@virtual
async def test_cancelled_reader_loses_nothing():
    reader = Reader(2, put(1))
    async with watch_of(reader) as watch:
        reading = asyncio.ensure_future(watch.next())
        await settle()
        reading.cancel()
        await asyncio.wait({reading})
        assert watch.revision == 0
        reader.feed(put(2))
        assert await taken(watch, 2) == [(1, False), (2, True)]


@virtual
async def test_two_tasks():
    """Another task may take the entry that was held back while this task looks ahead."""
    reader = Reader(2, put(1))
    async with watch_of(reader) as watch:
        first, second = (asyncio.ensure_future(watch.next()) for _ in range(2))
        await settle()
        reader.feed(put(2))
        assert (await first).revision == 1
        assert (await watch.next()).revision == 2
        reader.feed(None)
        await settle()
        assert not second.done()
        reader.feed(put(3))
        assert (await second).revision == 3
