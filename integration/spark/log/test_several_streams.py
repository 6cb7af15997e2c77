"""Several streams in one source: each message once, limits and tasks shared, and streams that come and go."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from integration.kit.calls.several import COLUMNS, numbers, query_of, sequences
from integration.kit.calls.sink import plan_of, stored, write
from integration.kit.calls.source import BatchRead, Query, options_of
from jsclient.errors import ConfigError, HistoryTruncatedError, PositionInvalidError


def again(query, server, *streams, **options):
    """The same query after a restart with other options."""
    restarted = query_of(server, *streams, **options)
    restarted.offsets = query.offsets
    return restarted


@pytest.fixture
async def two(oracle, make_stream):
    """Two streams with 300 and 100 messages."""
    first, second = await make_stream(), await make_stream()
    await first.publish(300)
    await second.publish(100)
    return sorted((first, second), key=lambda one: one.name), first, second


# --- what is read --------------------------------------------------------------------------------------------


@pytest.mark.covers("L9")
async def test_each_message_of_each_stream_once(server, two):
    both, large, small = two
    query = query_of(server, *both, maxMessagesPerTrigger=120)
    assert [len(batch) for batch in query.drain()] == [120, 120, 120, 40]
    assert Counter(row["stream"] for row in query.batches[0]) == {large.name: 90, small.name: 30}
    assert sequences(query.rows, large) == numbers(1, 300)
    assert sequences(query.rows, small) == numbers(1, 100)
    assert [*query.offsets[-1][1]["streams"]] == [one.name for one in both]
    end = query.offsets[-1][1]["streams"][small.name]
    assert end == {"seq": 100} | {name: end[name] for name in ("created", "cuts", "mark")}


@pytest.mark.covers("L7")
async def test_bytes_of_all_streams_limited(server, oracle, make_stream):
    heavy, light = await make_stream(), await make_stream()
    await heavy.publish(100, size=1000)
    await light.publish(100, size=100)
    query = query_of(server, heavy, light, maxBytesPerTrigger=50_000)
    query.drain()
    sizes = [sum(len(row["data"]) for row in batch) for batch in query.batches]
    assert 35_000 <= sizes[0] <= 50_000
    assert len(sizes) >= 3
    assert sequences(query.rows, heavy) == sequences(query.rows, light) == numbers(1, 100)


async def test_small_stream_is_not_starved(server, two):
    both, large, small = two
    query = query_of(server, *both, maxMessagesPerTrigger=2)
    reader = query.reader()
    start = query.start(reader)
    for _ in range(3):
        end = query.ask(reader, start)
        query.batch(reader, start, end)
        start = end
    assert (sequences(query.rows, large), sequences(query.rows, small)) == ([1, 2, 3], [1, 2, 3])


def stores_between_counts(lookup, stream):
    """Have 450 messages stored after the first count of a lookup. The counts so far."""
    loop, counts, remainder = asyncio.get_running_loop(), [], lookup.rest

    def counted(seq, facts):
        counts.append(remainder(seq, facts))
        if len(counts) == 1:
            asyncio.run_coroutine_threadsafe(stream.publish(450, "a"), loop).result()
        return counts[-1]

    lookup.rest = counted
    return counts


@pytest.mark.parametrize("limit", [{"maxMessagesPerTrigger": 100}, {"maxBytesPerTrigger": 5000}], ids=str)
async def test_limit_holds_while_messages_are_stored(server, make_stream, limit):
    """Messages are counted by two requests, and many are stored between them."""
    large, small = [await make_stream() for _ in range(2)]
    await large.publish(500, "a", size=80)
    await small.publish(10, "a", size=80)
    for one in (large, small):
        await one.publish(1, "b")
    filters = f"{large.subject('a')},{small.subject('a')}"
    query = query_of(server, large, small, subjects=filters, **limit)
    reader = query.reader()
    start = query.start(reader)
    stored = stores_between_counts(reader._members().planner(small.name).lookup, small)
    rows = await asyncio.to_thread(lambda: query.batch(reader, start, query.ask(reader, start)))
    assert stored
    assert 20 <= len(rows) <= 100
    assert sequences(rows, small)


async def test_limit_of_one_stream_holds_while_messages_are_stored(server, stream):
    await stream.publish(500, "a")
    await stream.publish(1, "b")
    options = {"startingOffsets": "earliest", "columns": COLUMNS, "maxMessagesPerTrigger": 100}
    query = Query(server, stream, subjects=stream.subject("a"), **options)
    reader = query.reader()
    start = query.start(reader)
    stored = stores_between_counts(reader._planner_and_mirror()[0].lookup, stream)
    rows = await asyncio.to_thread(lambda: query.batch(reader, start, query.ask(reader, start)))
    assert stored
    assert 20 <= len(rows) <= 100


@pytest.mark.covers("L6")
@pytest.mark.parametrize("allow_direct", [True, False], ids=["by direct get", "by consumer"])
async def test_filters_apply_to_each_stream(server, oracle, make_stream, allow_direct, caplog):
    first, second, other = [await make_stream(allow_direct=allow_direct) for _ in range(3)]
    for one in (first, second, other):
        await one.publish(20, "a")
        await one.publish(20, "b")
    filters = f"{first.subject('a')},{second.subject('b')}"
    query = query_of(server, first, second, other, subjects=filters, maxMessagesPerTrigger=15)
    query.drain()
    assert max(len(batch) for batch in query.batches) <= 15
    assert sequences(query.rows, first) == numbers(1, 20)
    assert sequences(query.rows, second) == numbers(21, 40)
    assert sequences(query.rows, other) == []
    assert f"no filter can match a message of stream {other.name!r}" in caplog.text
    names = ",".join(one.name for one in (first, second, other))
    read = BatchRead(server, names, columns=COLUMNS, subjects=filters)
    assert sequences(read.rows, first) == numbers(1, 20)
    assert sequences(read.rows, second) == numbers(21, 40)
    assert len(read.rows) == 40


@pytest.mark.covers("L6")
async def test_filter_of_no_stream_refused(server, two):
    both, large, _ = two
    wrong = {"subjects": f"{large.subject('x')},foo.bar"}
    with pytest.raises(ConfigError, match=r"'foo\.bar' can match no message of the streams"):
        query_of(server, *both, **wrong).drain()
    with pytest.raises(ConfigError, match=r"'foo\.bar' can match no message of the streams"):
        BatchRead(server, ",".join(one.name for one in both), columns=COLUMNS, **wrong)


async def test_stream_that_does_not_exist_refused(server, stream):
    with pytest.raises(ConfigError, match="stream 'NOWHERE' does not exist"):
        Query(server, f"{stream.name},NOWHERE").reader().initialOffset()
    with pytest.raises(ConfigError, match="stream 'NOWHERE' does not exist"):
        BatchRead(server, f"{stream.name},NOWHERE")


async def test_start_at_time_in_each_stream(server, oracle, two):
    both, large, small = two
    await large.publish(3, first=301)
    moment = (await oracle.api(f"STREAM.MSG.GET.{large.name}", {"seq": 301}))["message"]["time"]
    await small.publish(2, first=101)
    names = ",".join(one.name for one in both)
    query = Query(server, names, startingTimestamp=moment, columns=COLUMNS)
    query.drain()
    assert sequences(query.rows, large) == numbers(301, 303)
    assert sequences(query.rows, small) == [101, 102]
    read = BatchRead(server, names, columns=COLUMNS, endingTimestamp=moment)
    assert (sequences(read.rows, large), sequences(read.rows, small)) == (numbers(1, 300), numbers(1, 100))


async def test_same_offset_when_idle(server, two):
    both, *_ = two
    query = query_of(server, *both, pollIntervalMs=1)
    query.drain()
    reader, start = query.reader(), query.offsets[-1][1]
    for _ in range(3):
        assert json.dumps(reader.latestOffset(start, ReadAllAvailable())) == json.dumps(start)
    assert set(reader.reportLatestOffset()["streams"]) == {one.name for one in both}


async def test_busy_stream_does_not_wait_for_idle_one(server, two):
    """The ends of idle streams are looked at every `pollIntervalMs`: an hour would stop the busy one."""
    both, large, small = two
    await small.purge()
    query = query_of(server, *both, maxMessagesPerTrigger=100, pollIntervalMs=3_600_000)
    reader = query.reader()
    start = query.start(reader)
    for _ in range(3):
        end = query.ask(reader, start)
        query.batch(reader, start, end)
        start = end
    assert sequences(query.rows, large) == numbers(1, 300)


async def test_comes_later_for_next_run(server, two):
    both, large, small = two
    query = query_of(server, *both, maxMessagesPerTrigger=150)
    reader = query.reader()
    reader.prepareForTriggerAvailableNow()
    await small.publish(30, first=101)
    start = query.start(reader)
    while (end := query.ask(reader, start)) != start:
        query.batch(reader, start, end)
        start = end
    assert (len(sequences(query.rows, large)), sequences(query.rows, small)) == (300, numbers(1, 100))
    query.drain()
    assert sequences(query.rows, small) == numbers(1, 130)


async def test_batch_waits_for_enough_messages_of_all(server, two):
    both, large, small = two
    query = query_of(server, *both, minOffsetsPerTrigger=10, maxTriggerDelay="1h", pollIntervalMs=1)
    reader = query.reader()
    first = query.ask(reader, query.start(reader))
    await large.publish(5, first=301)
    await small.publish(4, first=101)
    for _ in range(3):
        assert query.ask(reader, first) == first
    await small.publish(1, first=105)
    ends = query.ask(reader, first)["streams"]
    assert (ends[large.name]["seq"], ends[small.name]["seq"]) == (305, 105)


async def test_tasks_shared(server, oracle, make_stream):
    large, small = await make_stream(), await make_stream()
    await large.publish(900)
    await small.publish(100)
    query = query_of(server, large, small, minPartitions=10)
    query.drain()
    assert Counter(len(part) for part in query.parts[0]) == {100: 10}
    read = BatchRead(server, f"{large.name},{small.name}", columns=COLUMNS, minPartitions=10)
    assert Counter(len(part) for part in read.parts) == {100: 10}


async def test_batch_read_of_several(server, two):
    both, large, small = two
    read = BatchRead(server, ",".join(one.name for one in both), columns=COLUMNS)
    assert sequences(read.rows, large) == numbers(1, 300)
    assert sequences(read.rows, small) == numbers(1, 100)
    await large.purge()
    await small.purge()
    assert BatchRead(server, ",".join(one.name for one in both), columns=COLUMNS).rows == []


# --- ids -----------------------------------------------------------------------------------------------------


async def test_ids_of_source_differ_by_stream(server, connect, two, make_stream):
    """Both streams have the same sequences and payloads. A second run with other limits stores nothing twice."""
    both, *_ = two
    js, target = await connect(server), await make_stream()
    kinds = {
        "data": pa.binary(),
        "stream": pa.string(),
        "stream_created": pa.timestamp("us", tz="UTC"),
        "sequence": pa.int64(),
    }
    for epoch, limit in enumerate((400, 150)):
        query = query_of(server, *both, columns=[*kinds], maxMessagesPerTrigger=limit)
        await asyncio.to_thread(query.drain)
        for rows in query.batches:
            plan = plan_of(ids="source", dedup="source", columns="", subject=target.subject("a"), epoch=epoch)
            columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
            await write(js, plan, pa.record_batch(columns))
    assert len(await stored(target)) == 400


# --- replays -------------------------------------------------------------------------------------------------


@pytest.mark.covers("L2")
async def test_replay_is_cut_as_recorded(server, oracle, make_stream, two):
    """Whatever the options are at the restart: tasks, limits, and streams that were added or left out."""
    both, large, _ = two
    query = query_of(server, *both, maxMessagesPerTrigger=200, minPartitions=4)
    query.drain()
    new = await make_stream()
    await new.publish(50)
    await large.publish(50, first=301)
    for streams in (both, [*both, new], [large, new]):
        restarted = again(query, server, *streams, minPartitions=7, maxMessagesPerTrigger=11)
        reader = restarted.reader()
        for offsets, parts in zip(query.offsets, query.parts, strict=True):
            assert restarted.replay(reader, *offsets) == parts


async def test_replay_after_stream_was_deleted(server, two):
    """Its tasks remain as empty tasks, so the tasks of the other stream keep their numbers."""
    both, *_ = two
    query = query_of(server, *both, minPartitions=4)
    query.drain()
    missing = both[0]
    mine = [part[0]["stream"] == missing.name for part in query.parts[0]]
    await missing.delete()
    with pytest.raises(PositionInvalidError, match=f"stream '{missing.name}' was deleted"):
        query.replay(query.reader(), *query.offsets[0])
    tolerant = again(query, server, *both, failOnDataLoss=False)
    replayed = tolerant.replay(tolerant.reader(), *query.offsets[0])
    assert replayed == [[] if one else part for one, part in zip(mine, query.parts[0], strict=True)]


# --- streams that come and go --------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "first"), [("earliest", 1), ("latest", 51)])
async def test_added_stream_read_from_starting_offsets(server, make_stream, two, start, first):
    both, large, small = two
    query = query_of(server, *both)
    query.drain()
    new = await make_stream()
    await new.publish(50)
    added = again(query, server, *both, new, startingOffsets=start)
    added.drain()  # records the position in the checkpoint, so that no message is missed from now on
    await new.publish(50, first=51)
    await large.publish(1, first=301)
    added.drain()
    assert sequences(added.rows, new) == numbers(first, 100)
    assert (sequences(added.rows, large), sequences(added.rows, small)) == ([301], [])


async def test_removed_stream_keeps_its_offset(server, make_stream, two, caplog):
    both, large, small = two
    third = await make_stream()
    query = query_of(server, *both, third)
    query.drain()
    await small.publish(10, first=101)
    await large.publish(10, first=301)
    fewer = again(query, server, large, third)
    fewer.drain()
    assert (sequences(fewer.rows, large), sequences(fewer.rows, small)) == (numbers(301, 310), [])
    assert f"stream '{small.name}' of the checkpoint is not in the options: it is not read" in caplog.text
    more = again(fewer, server, *both, third, startingOffsets="latest")
    more.drain()
    assert sequences(more.rows, small) == numbers(101, 110)


async def test_checkpoint_of_one_stream_goes_on_with_several(server, two):
    both, large, small = two
    alone = Query(server, large, startingOffsets="earliest", columns=COLUMNS, maxMessagesPerTrigger=200)
    reader = alone.reader()
    start = alone.start(reader)
    alone.batch(reader, start, alone.ask(reader, start))
    query = again(alone, server, *both)
    query.drain()
    assert sequences(query.rows, large) == numbers(201, 300)
    assert sequences(query.rows, small) == numbers(1, 100)
    assert query.replay(query.reader(), *query.offsets[1]) == query.parts[0]
    with pytest.raises(PositionInvalidError, match="several streams"):
        again(query, server, large).drain()
    foreign = again(alone, server, *both)
    foreign.offsets = [(start, {**start, "created": "2020-01-01T00:00:00+00:00"})]
    with pytest.raises(PositionInvalidError, match="of a source of one stream, created at 2020"):
        foreign.drain()


@pytest.mark.covers("L11")
async def test_deleted_stream_error_or_left_out(server, two, caplog):
    both, large, small = two
    query = query_of(server, *both)
    query.drain()
    await small.delete()
    await large.publish(5, first=301)
    with pytest.raises(PositionInvalidError, match=rf"'{small.name}' was deleted: .* up to sequence 100"):
        query.drain()
    tolerant = again(query, server, *both, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        tolerant.drain()
    assert sequences(tolerant.rows, large) == numbers(301, 305)
    assert f"stream '{small.name}' was deleted" in caplog.text
    await small.oracle.create_stream(small.name, [small.all], storage="memory")
    await small.publish(7)
    tolerant.drain()
    assert sequences(tolerant.rows, small) == numbers(1, 7)


async def test_stream_deleted_under_running_query(server, two):
    both, large, small = two
    query = query_of(server, *both, failOnDataLoss=False, pollIntervalMs=1)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    await small.delete()
    await large.publish(5, first=301)
    following = query.ask(reader, end)
    query.batch(reader, end, following)
    assert sequences(query.batches[-1], large) == numbers(301, 305)
    await small.oracle.create_stream(small.name, [small.all], storage="memory")
    await small.publish(7)
    query.batch(reader, following, query.ask(reader, following))
    assert sequences(query.batches[-1], small) == numbers(1, 7)


@pytest.mark.covers("L11")
async def test_losses_of_each_stream(server, two):
    both, large, small = two
    query = query_of(server, *both, maxMessagesPerTrigger=200)
    reader = query.reader()
    start = query.start(reader)
    query.batch(reader, start, query.ask(reader, start))
    await small.purge()
    with pytest.raises(HistoryTruncatedError, match=f"of stream '{small.name}'"):
        query.drain()
    tolerant = again(query, server, *both, failOnDataLoss=False)
    tolerant.drain()
    assert sequences(query.rows + tolerant.rows, large) == numbers(1, 300)


# --- with Spark ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L2", "L9")
@pytest.mark.full  # two starts of a query
async def test_query_of_two_streams_fails_and_goes_on(spark, drain, server, two):
    """A streaming query and a batch read."""
    both, large, small = two
    options = options_of(server, ",".join(one.name for one in both))
    frame = (
        spark.readStream.format("jetstream")
        .options(**options, startingOffsets="earliest", maxMessagesPerTrigger="200")
        .load()
    )
    seen = []

    def fail(rows, number):
        seen.append((number, sorted((row["stream"], row["sequence"]) for row in rows.collect())))
        if len(seen) == 2:
            raise RuntimeError("as the test wants it")

    with pytest.raises(Exception, match="as the test wants it"):
        drain(frame, also=fail)
    await small.publish(5, first=101)
    drain(frame, also=fail)
    assert seen[1] == seen[2]
    rows = [pair for at, (_, batch) in enumerate(seen) if at != 1 for pair in batch]
    assert sorted(rows) == sorted(
        [(large.name, seq) for seq in numbers(1, 300)] + [(small.name, seq) for seq in numbers(1, 105)]
    )
    read = spark.read.format("jetstream").options(**options).load()
    assert Counter(row["stream"] for row in read.collect()) == {large.name: 300, small.name: 105}
