"""Log mode with few of the sequences to read: filters, deleted messages, and a query that waits."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from integration.kit.calls.source import BatchRead, Query, options_of
from integration.kit.clients.foreign import flushed
from integration.kit.judge.waiting import eventually
from jsclient.errors import HistoryTruncatedError
from jsclient.tables import tasks
from jsclient.tables.lookup import Lookup

BOTH = pytest.mark.parametrize("config", [{"allow_direct": True}, {}], ids=["by direct get", "by consumer"])


@contextlib.asynccontextmanager
async def requests(oracle):
    """The subjects of the requests to the API meanwhile."""
    subjects = []

    async def count(message):
        subjects.append(message.subject)

    subscription = await oracle.nc.subscribe("$JS.API.>", cb=count)
    await flushed(oracle.nc)
    yield subjects
    await flushed(oracle.nc)
    await subscription.unsubscribe()


async def sparse(stream, *, every=10_000, foreign=60_000):
    """Messages. Every `every`-th has the subject "rare". The sequences of these."""
    expected = []
    for begin in range(0, foreign, every):
        await stream.publish(every - 1, "common", first=begin)
        expected.append(await stream.publish(1, "rare", first=begin))
    return expected


# --- filters -------------------------------------------------------------------------------------------------


@pytest.mark.core_cases(1)
@pytest.mark.covers("L6", "L7")
@BOTH
async def test_filter_matches_one_in_10_000(server, oracle, make_stream, config):
    """Row-exact, in parts that have about as many rows each, and in batches of the size that is allowed."""
    stream = await make_stream(**config)
    expected = await sparse(stream)
    rare = stream.subject("rare")
    whole = BatchRead(server, stream, subjects=rare, minPartitions=3)
    assert whole.sequences == expected
    assert [len(part) for part in whole.parts] == [2, 2, 2]
    query = Query(server, stream, subjects=rare, startingOffsets="earliest", maxMessagesPerTrigger=2)
    batches = query.drain()
    assert query.sequences == expected
    assert all(1 <= len(batch) <= 2 for batch in batches)
    assert await oracle.consumer_names(stream.name) == []  # those it was counted with are gone


@pytest.mark.covers("L7", "L36")
@BOTH
@pytest.mark.full
async def test_many_tasks_of_few_matches(server, oracle, make_stream, config):
    """They are looked at once, not counted again for each task, and no task has more of them than it may."""
    stream = await make_stream(**config)
    await stream.publish(600, "rare")
    for number in range(12):
        await stream.publish(1000, "common")
        await stream.publish(10 * number, "rare")
    rare = stream.subject("rare")
    for options, tasks_planned in (({"minPartitions": 100}, 100), ({"maxMessagesPerPartition": 7}, 180)):
        query = Query(server, stream, subjects=rare, startingOffsets="earliest", **options)
        reader = query.reader()
        start = await asyncio.to_thread(query.start, reader)
        async with requests(oracle) as questions:
            end = await asyncio.to_thread(query.ask, reader, start)
        assert len(questions) < 20
        await asyncio.to_thread(query.batch, reader, start, end)
        assert len(query.rows) == 1260
        sizes = [len(part) for part in query.parts[0]]
        assert len(sizes) == tasks_planned
        assert max(sizes) == -(-1260 // tasks_planned)
    assert await oracle.consumer_names(stream.name) == []


@pytest.mark.core_cases(1)
@pytest.mark.covers("L7")
@BOTH
async def test_no_task_beyond_its_maximum(server, make_stream, monkeypatch, config):
    """If too many messages would have to be looked at, they are counted."""
    monkeypatch.setattr(tasks, "_MOST_FOUND", 10)
    stream = await make_stream(**config)
    for number in range(20):
        await stream.publish(700, "common")
        await stream.publish(10 * number, "rare")
    query = Query(
        server,
        stream,
        subjects=stream.subject("rare"),
        startingOffsets="earliest",
        maxMessagesPerPartition=100,
        minPartitions=1,
    )
    query.drain()
    assert len(query.rows) == 1900
    counts = [len(part) for part in query.parts[0]]
    assert max(counts) <= 100
    assert len(counts) <= 24


@pytest.mark.covers("L6")
@BOTH
async def test_two_filters(server, oracle, make_stream, config):
    stream = await make_stream(**config)
    for number in range(1, 301):
        await stream.publish(1, "abc"[number % 3], first=number)
    filters = f"{stream.subject('a')},{stream.subject('b')}"
    query = Query(server, stream, subjects=filters, startingOffsets="earliest", maxMessagesPerTrigger=70)
    assert all(len(batch) <= 70 for batch in query.drain())
    assert query.sequences == [seq for seq in range(1, 301) if seq % 3 in (0, 1)]


async def test_messages_of_others_start_no_batch(server, stream):
    await stream.publish(5, "mine")
    query = Query(
        server, stream, subjects=stream.subject("mine"), startingOffsets="earliest", pollIntervalMs=1
    )
    query.drain()
    reader, start = query.reader(), query.offsets[-1][1]
    assert start["seq"] == 5
    for _ in range(3):
        await stream.publish(10, "yours")
        assert query.ask(reader, start) == start
    await stream.publish(1, "mine")
    end = query.ask(reader, start)
    assert [row["sequence"] for row in query.batch(reader, start, end)] == [36]
    assert end["free"] == 35  # a range that is known to have no match is not read again


async def test_messages_of_others_expire_no_loss(server, stream):
    """The offset of a filtered query lags. Messages after it that are removed were already seen not to match."""
    await stream.publish(5, "mine")
    query = Query(
        server, stream, subjects=stream.subject("mine"), startingOffsets="earliest", pollIntervalMs=1
    )
    query.drain()
    reader, start = query.reader(), query.offsets[-1][1]
    await stream.publish(50, "yours")
    assert query.ask(reader, start) == start
    await stream.oracle.purge(stream.name, seq=31)
    moved = query.ask(reader, start)
    assert query.batch(reader, start, moved) == []  # one batch without rows says so in the checkpoint
    assert moved["seq"] == 55
    assert query.ask(reader, moved) == moved
    await stream.publish(3, "mine")
    query.drain()
    assert query.sequences == [1, 2, 3, 4, 5, 56, 57, 58]


async def test_messages_expire_unseen_loss(server, stream):
    """No one looked, so what went may have matched."""
    await stream.publish(5, "mine")
    query = Query(
        server, stream, subjects=stream.subject("mine"), startingOffsets="earliest", pollIntervalMs=1
    )
    query.drain()
    await stream.publish(50, "yours")
    await stream.oracle.purge(stream.name, seq=31)
    await stream.publish(1, "mine")
    with pytest.raises(Exception, match=r"messages 6 to 30 .* were removed"):
        query.drain()


async def test_expiry_between_looks(server, stream):
    """A range that was known to have no match differs from messages that were stored and removed since."""
    query = Query(server, stream, subjects=stream.subject("mine"), pollIntervalMs=1)
    reader = query.reader()
    await stream.publish(5, "yours")
    start = query.start(reader)
    await stream.publish(50, "yours")
    assert query.ask(reader, start) == start  # up to 55
    await stream.publish(50, "yours")
    await stream.oracle.purge(stream.name, seq=81)
    assert query.ask(reader, start) == start
    await stream.publish(1, "mine")
    with pytest.raises(HistoryTruncatedError, match="messages 56 to 80"):
        query.batch(reader, start, query.ask(reader, start))


async def test_lagging_leader_hides_none(server, stream, monkeypatch):
    """A new leader, asked in between, said that no message matches. A message that it lacked is read anyway."""
    query = Query(
        server, stream, subjects=stream.subject("mine"), startingOffsets="earliest", pollIntervalMs=1
    )
    reader = query.reader()
    await stream.publish(5, "yours")
    start = query.start(reader)
    await stream.publish(3, "mine")
    await stream.publish(5, "yours")
    with monkeypatch.context() as patch:
        patch.setattr(Lookup, "last_matching", lambda _: 0)
        reader = query.reader()
        assert query.ask(reader, start) == start
    await stream.publish(1, "mine")
    query.batch(reader, start, query.ask(reader, start))
    assert query.sequences == [6, 7, 8, 14]


async def test_seen_is_per_stream(server, stream):
    query = Query(
        server,
        stream,
        subjects=stream.subject("mine"),
        startingOffsets="earliest",
        failOnDataLoss=False,
        pollIntervalMs=1,
    )
    reader = query.reader()
    await stream.publish(50, "yours")
    start = query.start(reader)
    assert query.ask(reader, start) == start
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all], storage="memory")
    await stream.publish(10, "mine")
    query.batch(reader, start, query.ask(reader, start))
    assert query.sequences == list(range(1, 11))


# --- deleted messages ----------------------------------------------------------------------------------------


@BOTH
async def test_range_of_nearly_all_deleted(server, oracle, make_stream, config):
    """Only the last message of each subject is kept: 30,000 sequences, 30 messages, most of them at the end."""
    stream = await make_stream(max_msgs_per_subject=1, **config)
    await stream.publish(1, "first")
    saved = [1, *[await stream.publish(7_500, "busy", number) for number in range(4)]]
    saved += [await stream.publish(1, "end", number) for number in range(25)]
    read = BatchRead(server, stream, minPartitions=3)
    assert read.sequences == saved
    assert [len(part) for part in read.parts] == [10, 10, 10]
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=10)
    sizes = [len(batch) for batch in query.drain()]
    assert query.sequences == saved
    assert max(sizes) <= 10
    assert len(sizes) <= 8


@pytest.mark.covers("L4")
@BOTH
async def test_gaps_everywhere(server, oracle, make_stream, config):
    stream = await make_stream(**config)
    await stream.publish(600)
    missing = {*range(1, 21), *range(100, 340, 3), *range(590, 601), 50, 51}
    for seq in sorted(missing):
        await stream.oracle.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": seq, "no_erase": True})
    remaining = [seq for seq in range(1, 601) if seq not in missing]
    assert BatchRead(server, stream, minPartitions=5).sequences == remaining
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=97, minPartitions=3)
    assert all(len(batch) <= 97 for batch in query.drain())
    assert query.sequences == remaining


@BOTH
async def test_one_message_more_than_allowed(server, oracle, make_stream, config):
    stream = await make_stream(**config)
    await stream.publish(12)
    await stream.oracle.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": 3})
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=10)
    assert max(len(batch) for batch in query.drain()) <= 10
    assert len(query.rows) == 11


async def test_deleted_tail_no_rows(server, stream):
    await stream.publish(10)
    for seq in (8, 9, 10):
        await stream.oracle.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": seq})
    query = Query(server, stream, startingSequence=8)
    assert query.drain() in ([], [[]])
    await stream.publish(2)
    query.drain()
    assert query.sequences == [11, 12]


# --- waiting -------------------------------------------------------------------------------------------------


@pytest.mark.core_cases(2)
@pytest.mark.covers("L36")
@pytest.mark.parametrize(
    ("filters", "foreign"), [(0, False), (1, False), (2, False), (1, True), (2, True)], ids=str
)
async def test_idle_query_asks_seldom(server, oracle, stream, filters, foreign):
    """Whether or not others publish to the stream."""
    await stream.publish(5, "mine", 0)
    mine = ",".join(stream.subject("mine", number) for number in range(filters))
    subjects = {"subjects": mine} if filters else {}
    query = Query(server, stream, **subjects)
    reader = query.reader()
    start = query.start(reader)
    async with requests(oracle) as questions:
        begin = time.monotonic()
        while time.monotonic() < begin + 3.0:
            if foreign:
                await stream.publish(1, "yours")
            assert reader.latestOffset(start, ReadAllAvailable()) == start
            assert reader.reportLatestOffset() is not None
        seconds = time.monotonic() - begin
    ours = [
        subject
        for subject in questions
        if "STREAM.INFO" in subject or "MSG.GET" in subject or "CONSUMER" in subject
    ]
    assert 3 <= len(ours) <= 10 * seconds + 4  # the first look, and whether it may be read
    assert not any("DIRECT" in subject for subject in ours)


# --- with Spark ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L36")
async def test_idle_spark_asks_seldom(spark, checkpoint, server, oracle, stream):
    """Spark itself asks a source as often as it can."""
    await stream.publish(5)
    rows = []
    frame = spark.readStream.format("jetstream").options(
        **options_of(server, stream, startingOffsets="earliest")
    )
    query = (
        frame.load()
        .writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        await eventually(lambda: len(rows) == 5, timeout=120, what="the rows")
        async with requests(oracle) as questions:
            begin = time.monotonic()
            await asyncio.sleep(2)
            seconds = time.monotonic() - begin
        await stream.publish(1)
        await eventually(lambda: len(rows) == 6, timeout=120, what="one more row")
    finally:
        await asyncio.to_thread(query.stop)
    assert 3 <= len(questions) <= 10 * seconds + 4
