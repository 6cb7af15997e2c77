"""Each watch that shares a consumer reads what exists, and then each change, without a hole or a repetition."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from integration.buckets.following.kit import Follower, fallen_behind, publish, share_a_change
from integration.buckets.kit import keys_of
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, within
from jsclient import BucketNotFoundError, ClosedError, DisconnectedError, RequestTimeoutError
from jsclient.buckets.following.reader import SharedReader
from jsclient.buckets.log_entries import LogEntries
from jsclient.events import StreamReset

pytestmark = pytest.mark.server(">=2.11")


async def stored_in(kv: Any) -> dict[str, bytes]:
    return {key: (await kv.get(key)).value for key in await keys_of(kv)}


@pytest.mark.core_cases(1)
@pytest.mark.covers("K48", "K50", "K53")
@pytest.mark.parametrize("history", [1, 64])
async def test_late_watches_while_others_write(js: Any, make: Any, history: int) -> None:
    """What a watch reads first and what it reads then are all that the bucket keeps, once."""
    kv = await make(history=history)
    await publish(js, kv, 300, 50)
    writing = asyncio.create_task(publish(js, kv, 3000, 50, 300))
    options: list[dict[str, Any]] = [
        {}, {"include_history": True}, {"updates_only": True}, {"after": 250}, {"ignore_deletes": True},
    ]  # fmt: skip
    followers = []
    for number in range(25):
        followers.append(Follower(kv.watch(**options[number % 5])))
        await asyncio.sleep(0.01)
    await within(60, writing, "the writer")
    last = await kv.put("last", b"")
    for follower in followers:
        await follower.has_read(last)
    stored = await stored_in(kv)
    for number, follower in enumerate(followers):
        assert follower.revisions == sorted(set(follower.revisions))
        if number % 5 != 2:
            assert follower.seen == stored
        if history == 64 and number % 5 in (1, 3):  # all entries were asked for, and the bucket keeps so many
            assert follower.revisions[-2000:] == [*range(last - 1999, last + 1)]
        await follower.end()


@pytest.mark.covers("K57")
@pytest.mark.limit(180)
async def test_slow_watch_holds_up_no_other(js: Any, make: Any, oracle: Any) -> None:
    """It is left behind, reads by direct gets, and joins the others again. It has missed nothing."""
    kv = await make(history=64)
    async with kv.watch() as slow:
        fast = [Follower(kv.watch()) for _ in range(3)]
        await publish(js, kv, 12_000, 400)
        last = await kv.put("last", b"")
        for follower in fast:
            await follower.has_read(last)
        assert isinstance(slow._reader, SharedReader)
        window = slow._reader._source.window
        assert len(window._messages) <= window.max_count
        revisions = [(await within(30, slow.next(), "an entry")).revision for _ in range(last)]
        assert revisions == [*range(1, last + 1)]
        waiting = asyncio.create_task(slow.next())
        await eventually(lambda: slow._reader._member.follows, 30, "it has joined the others again")
        assert len(await oracle.consumer_names(kv.stream)) == 1
        revision = await kv.put("a", b"")
        assert (await within(10, waiting, "the change")).revision == revision
        for follower in fast:
            await follower.end()


async def test_large_bucket(js: Any, make: Any, oracle: Any) -> None:
    """More keys than a batch of direct gets returns. Each watch has a consumer until it has read them."""
    kv = await make(history=2)
    await publish(js, kv, 6000, 3000)
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(kv.watch()) for _ in range(4)]
        for watch in watches:
            count = 0
            while not watch.is_current:
                entry = await within(20, watch.next(), "an entry")
                count += entry.is_initial
            assert count == 3000
        await share_a_change(kv, oracle, *watches)


async def write_until(ended: asyncio.Event, kv: Any) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        key = f"k{random.randrange(30)}"
        with suppress(DisconnectedError, RequestTimeoutError):  # the recount reads the bucket itself
            await (kv.delete(key) if random.random() < 0.2 else kv.put(key, b"%d" % number))
        await asyncio.sleep(0.002)


@pytest.mark.covers("K54", "K55", "K58")
@pytest.mark.limit(300)
async def test_restarts_and_cut_connections(
    own_server: Any, connect: Any, proxy: Any, events: list[Any]
) -> None:
    """At rest every watch has what the bucket has, and revisions only grow."""
    own = await own_server()
    between = await proxy(own, frames=False)
    js, writer = await connect(between, **FAST), await connect(own, **FAST)
    kv = await writer.create_key_value("cfg", history=3)
    followed = await js.key_value("cfg")
    random.seed(7)
    ended = asyncio.Event()
    writing = asyncio.create_task(write_until(ended, kv))
    followers = [Follower(followed.watch()) for _ in range(6)]
    for round_ in range(6):
        await asyncio.sleep(0.3)
        if round_ % 2:
            await own.kill()
            await own.start()
        else:
            between.cut()
        with suppress(DisconnectedError, RequestTimeoutError):
            followers.append(Follower(followed.watch(), pause=random.choice([0.0, 0.005])))
    await asyncio.sleep(0.5)
    ended.set()
    await writing
    stored = await stored_in(kv)
    alive = [follower for follower in followers if not follower.task.done()]
    assert len(alive) >= 6
    for follower in followers:
        if follower not in alive:  # it was opened during an outage
            with suppress(DisconnectedError, RequestTimeoutError):
                await follower.task

    def equal() -> bool:
        return all(follower.seen == stored for follower in alive)

    await eventually(equal, 90, "every watch has what the bucket has")
    for follower in alive:
        assert follower.revisions == sorted(set(follower.revisions))
        await follower.end()
    assert of(BucketNotFoundError, events) == []
    assert of(StreamReset, events) == []


@pytest.mark.covers("K56")
async def test_recreated_while_it_is_behind(js: Any, make: Any, name: str) -> None:
    """A watch that has fallen behind reads the new bucket from its start."""
    kv = await make(history=64)
    slow, fast = await fallen_behind(kv, js, 6000)
    async with slow:
        await js.delete_key_value(name)
        await make(history=64)
        last = await kv.put("new", b"1")
        revisions = []
        while revisions[-1:] != [last]:
            revisions.append((await within(60, slow.next(), "an entry")).revision)
        await fast.has_read(last)
        await kv.put("new", b"2")
        assert (await within(30, slow.next(), "the change")).value == b"2"
        await fast.end()


@pytest.mark.limit(180)
async def test_without_the_right_to_direct_gets(own_server: Any, connect: Any) -> None:
    """A watch that has fallen behind reads on with a consumer of its own. What it reads are changes."""
    denied = {"publish": {"deny": ["$JS.API.DIRECT.GET.>"]}}
    users = [{"user": "top", "password": "x"}, {"user": "user", "password": "x", "permissions": denied}]
    own = await own_server(config={"authorization": {"users": users}})
    top = await connect(own, user="top", password="x")
    js = await connect(own, user="user", password="x", timeout=2.0)
    await top.create_key_value("cfg", history=64, storage="memory")
    slow, fast = await fallen_behind(await js.key_value("cfg"), top)
    async with slow:
        entries = [await within(20, slow.next(), "an entry") for _ in range(12_000)]
    assert [entry.revision for entry in entries] == [*range(1, 12_001)]
    assert not any(entry.is_initial for entry in entries)
    await fast.end()


async def test_closed_while_it_looks_the_stream_up(
    js: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = await fallen_behind(await make(history=64), js)
    look_up, entered, goes_on = LogEntries._look_up, asyncio.Event(), asyncio.Event()

    async def held(self: Any) -> Any:
        found = await look_up(self)
        entered.set()
        await goes_on.wait()
        return found

    async def read() -> None:
        while True:
            await slow.next()

    monkeypatch.setattr(LogEntries, "_look_up", held)
    reading = asyncio.create_task(read())
    await within(20, entered.wait(), "the stream is looked up")
    await slow.close()
    goes_on.set()
    with pytest.raises(ClosedError):
        await within(10, reading, "the end")
    await fast.end()
