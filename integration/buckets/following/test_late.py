"""A late watch reads what exists by direct gets. If these are lost, it reads on with a consumer of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from integration.buckets.following.kit import (
    fallen_behind,
    fill,
    publish,
    share_a_change,
    until_consumers,
    until_current,
)
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.asking import answers_to, creates
from integration.kit.network.match import published
from jsclient._runtime.event_hub import EventLog
from jsclient.buckets.following.reader import SharedReader
from jsclient.buckets.log_entries import LogEntries
from jsclient.buckets.reading import reader_config

pytestmark = pytest.mark.server(">=2.11")


def batches(kv: Any) -> Any:
    """Requests for several messages: requests for one message name its subject, or ask for the last."""
    direct = published(f"$JS.API.DIRECT.GET.{kv.stream}")
    return lambda frame: direct(frame) and b'"batch"' in frame.payload


@pytest.mark.covers("K54")
@pytest.mark.parametrize("options", [{}, {"include_history": True}, {"after": 0}], ids=str)
async def test_direct_gets_are_lost_from_the_start(
    make: Any, connect: Any, proxy: Any, oracle: Any, options: dict[str, Any]
) -> None:
    kv = await make()
    await fill(kv, 30)
    between = await proxy()
    followed = await (await connect(between, timeout=2.5)).key_value(kv.bucket)
    lost = between.drop_frames(batches(kv))
    async with followed.watch() as first:
        assert len(await until_current(first)) == 30
        late = followed.watch(**options)
        await within(30, late.__aenter__(), "the late watch is open")
        async with late:
            assert lost.count
            assert [(await within(10, late.next(), "an entry")).revision for _ in range(30)] == [
                *range(1, 31)
            ]
            assert late.is_current
            await share_a_change(kv, oracle, first, late)


@pytest.mark.covers("K54")
async def test_direct_gets_are_lost_in_between(
    js: Any, make: Any, connect: Any, proxy: Any, oracle: Any
) -> None:
    """Each entry is returned once, by whichever means it was read."""
    kv = await make()
    await publish(js, kv, 5000, 5000)
    between = await proxy()
    followed = await (await connect(between, timeout=2.5)).key_value(kv.bucket)
    async with followed.watch() as first, followed.watch() as late:
        await until_current(first)
        revisions = [(await late.next()).revision for _ in range(100)]
        lost = between.drop_frames(batches(kv))
        while not late.is_current:
            entry = await within(30, late.next(), "an entry")
            assert entry.is_initial
            revisions.append(entry.revision)
        assert lost.count
        assert revisions == [*range(1, 5001)]
        revision = await kv.put("a", b"1")
        assert (await within(10, late.next(), "the change")).revision == revision
        assert (await within(10, first.next(), "the change")).revision == revision


@pytest.mark.covers("K57")
@pytest.mark.limit(120)
async def test_direct_gets_are_lost_while_it_is_behind(
    js: Any, make: Any, connect: Any, proxy: Any, oracle: Any
) -> None:
    kv = await make(history=64)
    between = await proxy(record=False)
    followed = await (await connect(between, timeout=2.5)).key_value(kv.bucket)
    slow, fast = await fallen_behind(followed, js)
    async with slow:
        lost = between.drop_frames(batches(kv))
        entries = [await within(30, slow.next(), "an entry") for _ in range(12_000)]
        assert lost.count
        assert [entry.revision for entry in entries] == [*range(1, 12_001)]
        assert not any(entry.is_initial for entry in entries)
        waiting = asyncio.create_task(slow.next())
        assert isinstance(slow._reader, SharedReader)
        await eventually(lambda: slow._reader._member.follows, 30, "it has joined the others again")
        revision = await kv.put("a", b"1")
        assert (await within(10, waiting, "the change")).revision == revision
        await fast.end()


@pytest.mark.covers("K54")
@pytest.mark.parametrize("asked", ["STREAM.INFO.>", "DIRECT.GET.>"])
async def test_connection_is_lost_while_it_opens(
    make: Any, connect: Any, proxy: Any, oracle: Any, asked: str
) -> None:
    """The late watch is opened with a consumer, whose creation waits for the connection."""
    kv = await make(history=2)
    await fill(kv, 30)
    between = await proxy()
    followed = await (await connect(between, **FAST)).key_value(kv.bucket)
    async with followed.watch() as first:
        assert len(await until_current(first)) == 30
        await until_consumers(oracle, kv, 1)
        count = len(creates(between))
        held = between.hold_frames(answers_to(between, asked))
        late = followed.watch()
        opening = asyncio.create_task(late.__aenter__())
        await held.wait()
        between.cut()
        held.remove()
        await within(30, opening, "the late watch is open")
        async with late:
            # The shared consumer was replaced. A request for the stream is repeated after a reconnect.
            assert len(creates(between)) >= count + (1 if asked == "STREAM.INFO.>" else 2)
            assert len(await until_current(late)) == 30
            await share_a_change(kv, oracle, first, late)


@pytest.mark.covers("K54")
@pytest.mark.parametrize("whose", ["first", "late"])
async def test_answer_about_the_stream_is_lost(
    make: Any, connect: Any, proxy: Any, oracle: Any, whose: str
) -> None:
    """Whether both read the same stream is then unknown. It is asked again, and they share a consumer from then on."""
    kv = await make()
    await fill(kv, 3)
    between = await proxy()
    followed = await (await connect(between, timeout=2.5)).key_value(kv.bucket)
    watches, reading, lost = [], [], []
    async with AsyncExitStack() as stack:
        for which in ("first", "late"):
            if which == whose:
                lost.append(between.drop_frames(answers_to(between, "STREAM.INFO.>"), count=1))
            # A watch without values reads the existing entries with a consumer of its own.
            watch = await stack.enter_async_context(followed.watch(meta_only=True))
            watches.append(watch)
            while not watch.is_current:
                await within(60, watch.next(), "an entry")
            reading.append(asyncio.create_task(watch.next()))
            await eventually(lambda: watches[0]._reader._member.follows, what="a consumer to share")
        await eventually(lambda: lost[0].count == 1, what="the lost answer")
        is_shared = False
        while not is_shared:
            revision = await kv.put("b", b"1")
            entries = await within(60, asyncio.gather(*reading), "the change")
            assert [entry.revision for entry in entries] == [revision, revision]
            reading = [asyncio.create_task(watch.next()) for watch in watches]
            await asyncio.sleep(0.1)
            is_shared = len(await oracle.consumer_names(kv.stream)) == 1
        revision = await kv.put("b", b"2")
        entries = await within(60, asyncio.gather(*reading), "the change")
        assert [entry.revision for entry in entries] == [revision, revision]


@pytest.mark.covers("K58")
async def test_nobody_to_join(make: Any, connect: Any, proxy: Any) -> None:
    """The reader creates one consumer for pushes, however often it is told that there are no others."""
    kv = await make()
    between = await proxy()
    js = await connect(between)
    subject = f"$KV.{kv.bucket}.>"
    entries = LogEntries(js._context, kv.stream, reader_config([subject]), EventLog(), push=None)
    assert await entries.begin_entries()
    assert entries.is_current
    for number in range(5):
        entries.follow_pushes()
        revision = await kv.put("a", b"%d" % number)
        frames = await within(20, entries.next_frames(), "the change")
        assert (len(frames), entries.position) == (1, revision)
    await entries.end_entries()
    assert len(creates(between)) == 1
