"""The history of a topic of epochs: where a subscriber starts, and the state that a publisher takes over."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import jsclient
from jsclient.epochs import FrontierUpdate, Int, memory_epochs
from jsclient.errors import (
    ConfigError,
)
from jsclient.protocol.topics.record import Kind
from jsclient.topics.epochs.history import EpochHistory, Wait
from jsclient.topics.epochs.home import MemoryHome
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import virtual
from tests.topics.epochs.kit import MemoryTopics, all_of, events, frontier_is, items
from tests.topics.notifiers.test_iteration import in_virtual_time


class HistorySuite:
    """What is read from every history."""

    async def test_record_between_read_and_takeover_counts(self, make):
        """The first record of a new publisher says how far it has read. As a snapshot it is valid as of that point."""
        topic = make()
        one = await topic.publisher()
        await one.send(1, ["a"])
        await one.flush()
        out = topic._home.outlet(0, max_in_flight=10, timeout=None)
        write, sent = type(out).record, []

        async def record(self, *arguments):
            if not sent:
                sent.append(1)
                await one.send(2, ["b"])
                await one.flush()
            return await write(self, *arguments)

        type(out).record = record
        try:
            two = await topic.publisher(takeover=True)
        finally:
            type(out).record = write
        assert two.upper.elements == (2,), "it knows of that, too"
        sub = await topic.subscribe()
        assert sub.filter.elements == (1,)
        third = await topic.publisher(takeover=True)
        late = await topic.subscribe()
        assert third.upper.elements == late.filter.elements == (2,)
        await third.send(3, ["c"])
        await third.close()
        assert await all_of(sub.completed()) == {2: ["b"], 3: ["c"]}
        assert await all_of(late.completed()) == {3: ["c"]}
        for pub in (one, two):
            await pub.release()
        await out.close()

    async def test_latecomer_from_oldest(self, make):
        topic = make(partitions=2)
        for number in range(2):
            pub = await topic.publisher(number)
            for epoch in (1, 2, 3):
                await pub.send(epoch, [f"{number}:{epoch}"])
                await pub.advance(epoch + 1)
            await pub.release()
        pubs = [await topic.publisher(number) for number in range(2)]
        sub = await topic.subscribe(start="first")
        for pub in pubs:
            await pub.send(4, [f"{pub.partition}:4"])
            await pub.close()
        got = await all_of(sub.completed())
        assert {time: sorted(of) for time, of in got.items()} == {
            n: [f"0:{n}", f"1:{n}"] for n in (1, 2, 3, 4)
        }
        with pytest.raises(ConfigError):
            await topic.subscribe(start="last")


@pytest.fixture
def make():
    return MemoryTopics()


TestHistorysInMemory = in_virtual_time(HistorySuite)


@virtual
async def test_passed_window_reported():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        async with await topic.subscribe() as before:
            await pub.send(1, ["part"])
            await pub.flush()
            assert items([await before.next(5), await before.next(5)]) == [(1, ["part"])]
            old = before.position
        for number in range(10):
            await pub.send(1, [number])
        await pub.advance(2)
        for number in range(10):
            await pub.send(2, [number])
        sub = await topic.subscribe(start=old)
        whole = sub.completed()
        with pytest.raises(jsclient.EpochsLostError):
            await whole.next(5)
        assert sub.filter.elements == ()
        await pub.advance(3)
        epoch = await whole.next(5)
        assert (epoch.time, len(epoch.items)) == (2, 10)
        await sub.close()


@virtual
async def test_stalled_reader_is_reported():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        sub = await topic.subscribe(push=None, quiet=1)
        await pub.send(1, ["part"])
        await pub.send(2, ["part"])
        assert items([await sub.next(5) for _ in range(3)]) == [(1, ["part"]), (2, ["part"])]
        for number in range(10):
            await pub.send(1, [number])
        await pub.advance(3)
        for number in range(17):
            await pub.send(3, [number])
        lost_at = sub.position
        with pytest.raises(jsclient.EpochsLostError) as caught:
            await sub.next(5)
        assert caught.value.epochs == (1, 2)
        assert sub.position == lost_at, "until it has new snapshots"
        assert await sub.next(5) == FrontierUpdate(((3, 1),), (3,))
        assert sub.position != lost_at
        await pub.advance(4)
        assert len(items(await events(sub, frontier_is(4)))) == 17
        await sub.close()


@virtual
async def test_publisher_does_not_guess():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        for number in range(30):
            await log.append(b"", subject="t.other", msg_id=str(number))
        for _ in range(2):
            with pytest.raises(jsclient.HistoryTruncatedError):
                await pub.advance(3)
    with pytest.raises(jsclient.HistoryTruncatedError):
        await topic.publisher()
    async with await topic.publisher(start=9) as pub:
        assert pub.frontier.elements == (9,)


async def history_of(*frontiers: int) -> EpochHistory:
    """A partition whose publisher has completed these times."""
    log = MemoryLog("t.>")
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        for time in frontiers:
            await pub.send(time, ["x"])
            await pub.advance(time + 1)
        await pub.release()
    return EpochHistory(log, Int(), "t")


@virtual
async def test_last_valid_frontier_counts():
    """Invalid records after it are skipped and reported."""
    history = await history_of(1, 2)
    before = await history.last_frontier(0)
    assert before.entry.record.lower == (3,)
    await history.log.append(b"?", subject="t.0.frontier", kind=Kind.FRONTIER, expected=before.last_seq)
    after = await history.last_frontier(0)
    assert (after.entry.record, after.record.seq) == (before.entry.record, before.record.seq)
    assert after.last_seq == before.last_seq + 1, "the next record has to follow the invalid one"
    assert (await history.last_frontier(1)).entry is None


@virtual
async def test_records_up_to_an_end_in_pages():
    history = await history_of(*range(1, 8))
    end = (await history.log.extent()).last_seq
    seqs = [record.seq async for record in history.records(2, end, limit=3)]
    assert seqs == [*range(3, end + 1)]
    assert [record async for record in history.records(end, end)] == []


@virtual
async def test_takeover_fences_the_former_producer():
    history = await history_of(1)
    out = MemoryHome("t", history.log).outlet(0, max_in_flight=1, timeout=None)
    first = await history.take_partition(0, out.record, start=None)
    second = await history.take_partition(0, out.record, start=None)
    assert first.producer != second.producer
    assert second.publisher.lower.elements == (2,)
    last = await history.last_frontier(0)
    assert (last.entry.producer, last.entry.seq) == (second.producer, second.seq)


@virtual
async def test_long_wait_is_reported_at_doubling():
    events: list = []
    wait = Wait(events.append, "t")
    for _ in range(1000):
        wait.report_wait("no publisher", [0, 1])
        await asyncio.sleep(1)
    waited = [event.waited for event in events]
    assert 2 < len(waited) < 12
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(waited))
    assert events[0].partitions == (0, 1)
