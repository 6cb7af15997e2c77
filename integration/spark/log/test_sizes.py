"""``maxBytesPerTrigger`` with messages of uneven sizes: no batch has more, and none is made small for nothing."""

from __future__ import annotations

import asyncio

import pytest

from integration.kit.calls.several import PatternQuery
from integration.kit.calls.source import Query
from integration.kit.judge.requests import Requests
from integration.kit.judge.waiting import within
from jsclient.spark.log import sizes
from jsclient.tables.lookup import Lookup

MIB = 1 << 20
BIG = 900_000
MODES = pytest.mark.parametrize("direct", [True, False], ids=["direct gets", "none"])


def bytes_of(rows):
    return sum(len(row["data"]) for row in rows)


@pytest.mark.covers("L7")
@MODES
async def test_uneven_sizes(server, make_stream, direct):
    """14 large messages, then 500 small ones, then 3 large ones."""
    stream = await make_stream(allow_direct=direct)
    for count, size in ((14, BIG), (500, 0), (3, BIG)):
        await stream.publish(count, "big" if size else "small", size=size)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger="2m")
    query.drain()
    assert query.sequences == [*range(1, 518)]
    assert [len(batch) for batch in query.batches] == [2, 2, 2, 2, 2, 2, 502, 2, 1]
    assert max(map(bytes_of, query.batches)) <= 2 * MIB
    filtered = Query(
        server, stream, startingOffsets="earliest", maxBytesPerTrigger="3m", subjects=stream.subject("big")
    )
    filtered.drain()
    assert [len(batch) for batch in filtered.batches] == [3, 3, 3, 3, 3, 2]


@pytest.mark.covers("L7")
async def test_message_larger_than_limit(server, stream):
    """One message always moves on. A limit of rows applies together with a limit of bytes."""
    await stream.publish(3, size=BIG)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger="1k")
    query.drain()
    assert [len(batch) for batch in query.batches] == [1, 1, 1]
    await stream.publish(50)
    query = Query(server, stream, startingSequence=3, maxBytesPerTrigger="2m", maxMessagesPerTrigger=20)
    query.drain()
    assert [len(batch) for batch in query.batches] == [20, 20, 11]


@pytest.mark.covers("L7")
async def test_more_messages_than_are_measured(server, stream, monkeypatch):
    """The size of later messages is estimated from the mean of the measured messages, or the stream's greater mean."""
    monkeypatch.setattr(sizes, "MOST_MEASURED", 100)
    await stream.publish(1000, size=1000)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger="300k")
    query.drain()
    assert query.sequences == [*range(1, 1001)]
    assert all(250_000 < bytes_of(batch) <= 300 * 1024 for batch in query.batches[:-1])


@pytest.mark.covers("L7", "L9")
async def test_uneven_sizes_of_several_streams(server, make_stream):
    one, other = await make_stream(), await make_stream()
    for stream in (one, other):
        await stream.publish(6, size=BIG)
        await stream.publish(60)
    query = PatternQuery(
        server, f"{one.name.rsplit('_', 1)[0]}_*", startingOffsets="earliest", maxBytesPerTrigger="4m"
    )
    query.drain()
    assert len(query.rows) == 132
    assert max(map(bytes_of, query.batches)) <= 4 * MIB


# --- what it costs -------------------------------------------------------------------------------------------


async def looks(oracle, query, *, batches=100):
    """Plan the batches until no message remains. How many consumers that takes, each of them for one look."""

    def plan():
        reader, start = query.reader(), query.offsets[-1][1]
        reader.prepareForTriggerAvailableNow()
        for _ in range(batches):
            if (end := query.ask(reader, start)) == start:
                break
            query.batch(reader, start, end)
            start = end

    reader = query.reader()
    if not query.offsets:
        start = await asyncio.to_thread(query.start, reader)
        query.offsets.append((start, start))
    _, sent = await Requests(oracle).of(plan)
    return sent["CONSUMER.CREATE"] - 1  # one to see whether there may be consumers


@pytest.mark.covers("L7", "L36")
async def test_one_look_serves_several_batches(server, oracle, make_stream):
    """30 batches of 100 messages each. Tasks use direct gets, so that each consumer is a look at sizes."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(3000, size=1000)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger=103_000)
    assert await looks(oracle, query) <= 2
    assert query.sequences == [*range(1, 3001)]
    assert [len(batch) for batch in query.batches] == [100] * 30


@pytest.mark.covers("L7", "L36")
@pytest.mark.parametrize("last", [BIG, 0], ids=["large", "small"])
async def test_no_look_at_what_must_fit(server, oracle, make_stream, last):
    """A query that follows a large stream knows how many bytes were stored since its last batch."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(4, size=BIG)
    query = Query(server, stream, maxBytesPerTrigger="2m", pollIntervalMs=1)
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    await asyncio.to_thread(query.ask, reader, start)
    await stream.publish(60, size=100)
    await stream.publish(3, size=last)

    def plan():
        end = query.ask(reader, start)
        query.batch(reader, start, end)

    _, sent = await Requests(oracle).of(plan)
    assert sent["CONSUMER.CREATE"] == (1 if last else 0)
    assert query.sequences == [*range(5, 67 if last else 68)]


@pytest.mark.covers("L7", "L36")
async def test_look_goes_beyond_a_limit_of_rows(server, oracle, make_stream):
    stream = await make_stream(allow_direct=True)
    await stream.publish(2000, size=1000)
    query = Query(
        server, stream, startingOffsets="earliest", maxBytesPerTrigger="1m", maxMessagesPerTrigger=100
    )
    assert await looks(oracle, query) == 1
    assert [len(batch) for batch in query.batches] == [100] * 20


@pytest.mark.covers("L7", "L36")
async def test_look_at_few_that_match(server, oracle, make_stream):
    """One message in 50 matches: all messages between two batches were looked at."""
    stream = await make_stream(allow_direct=True)
    for _ in range(40):
        await stream.publish(49, "common")
        await stream.publish(1, "rare", size=30_000)
    query = Query(
        server, stream, subjects=stream.subject("rare"), startingOffsets="earliest", maxBytesPerTrigger=70_000
    )
    assert await looks(oracle, query) == 1
    assert [len(batch) for batch in query.batches] == [2] * 20


@pytest.mark.covers("L7")
async def test_removed_meanwhile_is_no_room(server, make_stream):
    """Removed messages make the stream smaller. This does not show the size of new messages."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(6, size=BIG)
    query = Query(server, stream, maxBytesPerTrigger="2m", pollIntervalMs=1)
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    await asyncio.to_thread(query.ask, reader, start)
    await stream.publish(4, size=BIG)
    await stream.oracle.purge(stream.name, seq=6)
    end = await asyncio.to_thread(query.ask, reader, start)
    assert len(await asyncio.to_thread(query.batch, reader, start, end)) == 2


@pytest.mark.covers("L7")
async def test_last_look_is_of_another_stream(server, stream):
    """A recreated stream has other sizes at the same sequences."""
    await stream.publish(1000, size=1000)
    query = Query(
        server,
        stream,
        startingOffsets="earliest",
        maxBytesPerTrigger="102k",
        failOnDataLoss=False,
        pollIntervalMs=1,
    )
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    end = await asyncio.to_thread(query.ask, reader, start)
    await asyncio.to_thread(query.batch, reader, start, end)
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all], storage="memory")
    await stream.publish(1000, size=50_000)
    following = await asyncio.to_thread(query.ask, reader, end)
    assert bytes_of(await asyncio.to_thread(query.batch, reader, end, following)) <= 102 * 1024


@pytest.mark.covers("L7")
async def test_limit_holds_behind_what_was_measured(server, stream, monkeypatch):
    """A look goes further than one batch needs, and large messages follow what it has seen."""
    monkeypatch.setattr(sizes, "MOST_MEASURED", 100)
    for count, size in ((20, 1000), (200, 0), (30, 10_000)):
        await stream.publish(count, size=size)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger=21_000)
    query.drain()
    assert query.sequences == [*range(1, 251)]
    assert max(map(bytes_of, query.batches)) <= 21_000


@pytest.mark.covers("L6", "L7")
async def test_message_stored_between_two_requests(server, stream, monkeypatch):
    """A publisher stores a message after the planner has asked for the state of the stream, before it asks for the
    last match. The planner looked for sizes up to that message for ever, or counted nothing after the state."""
    await stream.publish(20, "other", size=1000)
    await stream.publish(50, "mine", size=1000)
    loop, late = asyncio.get_running_loop(), [60]
    last_matching = Lookup.last_matching

    def later(lookup):
        if late:
            storing = stream.publish(late.pop(), "mine", size=8000)
            asyncio.run_coroutine_threadsafe(storing, loop).result(30)
        return last_matching(lookup)

    monkeypatch.setattr(Lookup, "last_matching", later)
    query = Query(
        server,
        stream,
        startingOffsets="earliest",
        maxBytesPerTrigger=100_000,
        subjects=stream.subject("mine"),
    )
    await within(60, asyncio.to_thread(query.drain), "the query")
    assert query.sequences == [*range(21, 131)]
    assert max(map(bytes_of, query.batches)) <= 100_000
