"""Log mode: the start of a query, the size of its batches, and that it continues exactly at its last offset."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from integration.kit.calls.source import Query, options_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never


def numbers(first, last):
    return list(range(first, last + 1))


async def stored_at(oracle, stream, seq):
    """When a message was stored, to the nanosecond."""
    answer = await oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": seq})
    return answer["message"]["time"]


# --- start ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("L3")
async def test_query_starts_with_first_message(server, stream):
    await stream.publish(50)
    await stream.oracle.purge(stream.name, seq=11)
    query = Query(server, stream, startingOffsets="earliest")
    query.drain()
    assert query.sequences == numbers(11, 50)
    assert query.offsets[0][0]["init"] is True
    assert "init" not in query.offsets[0][1]


@pytest.mark.covers("L3")
async def test_query_starts_behind_last_message(server, stream):
    await stream.publish(50)
    query = Query(server, stream)
    reader = query.reader()
    start = query.start(reader)
    await stream.publish(5)
    assert [row["sequence"] for row in query.batch(reader, start, query.ask(reader, start))] == numbers(
        51, 55
    )


@pytest.mark.covers("L3")
async def test_query_starts_at_sequence(server, stream):
    await stream.publish(50)
    query = Query(server, stream, startingSequence=21)
    query.drain()
    assert query.sequences == numbers(21, 50)


async def test_query_waits_for_sequence_to_come(server, stream):
    await stream.publish(5)
    query = Query(server, stream, startingSequence=8)
    reader = query.reader()
    start = query.start(reader)
    assert query.ask(reader, start) == start
    await stream.publish(5)
    query.batch(reader, start, query.ask(reader, start))
    assert query.sequences == [8, 9, 10]


@pytest.mark.covers("L3")
@pytest.mark.parametrize("config", [{"allow_direct": True}, {}], ids=["by direct get", "by consumer"])
async def test_a_query_starts_at_a_time(server, oracle, make_stream, config):
    stream = await make_stream(**config)
    await stream.publish(40)
    query = Query(server, stream, startingTimestamp=await stored_at(oracle, stream, 17))
    query.drain()
    assert query.sequences == numbers(17, 40)


async def test_starts_before_and_after(server, stream):
    await stream.publish(10)
    before = Query(server, stream, startingTimestamp="2020-01-01T00:00:00Z")
    before.drain()
    assert before.sequences == numbers(1, 10)
    after = Query(server, stream, startingTimestamp=datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    reader = after.reader()
    assert after.start(reader)["seq"] == 10


@pytest.mark.covers("L3")
async def test_start_in_future_refused(server, stream):
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    with pytest.raises(ValueError, match=r"'startingTimestamp' .* in the future"):
        Query(server, stream, startingTimestamp=later).reader().initialOffset()


# --- how much ------------------------------------------------------------------------------------------------


@pytest.mark.covers("L7")
async def test_batch_as_many_messages_as_allowed(server, stream):
    await stream.publish(250)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=100)
    assert [len(batch) for batch in query.drain()] == [100, 100, 50]
    assert query.sequences == numbers(1, 250)


@pytest.mark.covers("L7")
async def test_batch_as_many_bytes_as_allowed(server, stream):
    await stream.publish(100, size=1000)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger=30_000)
    sizes = [len(batch) for batch in query.drain()]
    mean = (await stream.state())["bytes"] // 100
    assert sizes[0] == 30_000 // mean
    assert query.sequences == numbers(1, 100)


@pytest.mark.covers("L7")
@pytest.mark.parametrize(("messages", "size", "first"), [(10, 30_000, 10), (90, 30_000, 28)])
async def test_of_two_limits_smaller_one_holds(server, stream, messages, size, first):
    await stream.publish(100, size=1000)
    query = Query(
        server, stream, startingOffsets="earliest", maxMessagesPerTrigger=messages, maxBytesPerTrigger=size
    )
    assert len(query.drain()[0]) == pytest.approx(first, abs=1)
    assert query.sequences == numbers(1, 100)


async def test_oversized_message_alone(server, stream):
    await stream.publish(3, size=1000)
    query = Query(server, stream, startingOffsets="earliest", maxBytesPerTrigger=10)
    assert [len(batch) for batch in query.drain()] == [1, 1, 1]


async def test_limit_spark_gives_one_holds(server, stream):
    await stream.publish(100)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=10)
    reader = query.reader()
    start = query.start(reader)
    assert query.ask(reader, start, ReadAllAvailable())["seq"] == 100
    assert query.ask(reader, start, ReadMaxRows(5))["seq"] == 5
    assert query.ask(reader, start, ReadMaxBytes(1))["seq"] == 1


@pytest.mark.covers("L7")
async def test_comes_later_for_next_run(server, stream):
    await stream.publish(30)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=10)
    reader = query.reader()
    reader.prepareForTriggerAvailableNow()
    await stream.publish(30)
    start = query.start(reader)
    while (end := query.ask(reader, start)) != start:
        query.batch(reader, start, end)
        start = end
    assert query.sequences == numbers(1, 30)
    query.drain()
    assert query.sequences == numbers(1, 60)


def waiting(server, stream, least, *, delay="1h", **options):
    """A query whose batches wait for messages, its reader, and the end of its first batch, which does not wait."""
    limits = {"minOffsetsPerTrigger": least, "maxTriggerDelay": delay, "pollIntervalMs": 1}
    query = Query(server, stream, startingOffsets="earliest", **limits, **options)
    reader = query.reader()
    return query, reader, query.ask(reader, query.start(reader))


async def test_batch_waits_for_enough_messages(server, stream):
    await stream.publish(5)
    query, reader, first = waiting(server, stream, 10)
    assert first["seq"] == 5
    await stream.publish(9, first=6)
    for _ in range(3):
        assert json.dumps(reader.latestOffset(first, ReadAllAvailable())) == json.dumps(first)
    await stream.publish(1, first=15)
    assert query.ask(reader, first)["seq"] == 15


async def test_batch_waits_for_enough_matching_messages(server, stream):
    await stream.publish(1, "a")
    query, reader, first = waiting(server, stream, 4, subjects=stream.subject("a"))
    assert first["seq"] == 1
    await stream.publish(3, "b")
    await stream.publish(3, "a", first=2)
    assert query.ask(reader, first) == first
    await stream.publish(1, "a", first=5)
    assert query.ask(reader, first)["seq"] == 8


async def test_batch_waits_no_longer_than_delay(server, stream):
    await stream.publish(5)
    query, reader, first = waiting(server, stream, 10, delay="1s")
    await stream.publish(1, first=6)
    assert await eventually(lambda: query.ask(reader, first)["seq"] == 6)


async def test_available_now_and_replay_do_not_wait(server, stream):
    await stream.publish(25)
    query = Query(
        server, stream, startingOffsets="earliest", minOffsetsPerTrigger=10, maxMessagesPerTrigger=10
    )
    assert [len(batch) for batch in query.drain()] == [10, 10, 5]
    await stream.publish(3, first=26)
    reader = query.reader()
    assert query.replay(reader, *query.offsets[-1]) == query.parts[-1]
    assert [len(batch) for batch in query.drain()] == [3]
    assert query.sequences == numbers(1, 28)


@pytest.mark.full  # two starts of a query
async def test_running_query_waits_and_available_now_does_not(
    spark, server, stream, in_thread, drain, checkpoint
):
    options = options_of(
        server, stream, startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="1h"
    )
    frame = spark.readStream.format("jetstream").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    await stream.publish(3)
    query = await in_thread(writer.start)
    await in_thread(query.processAllAvailable)
    await stream.publish(3, first=4)
    await in_thread(query.processAllAvailable)
    await stream.publish(2, first=7)

    def rows():
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    await eventually(lambda: sum(rows()) == 8, 120)
    assert rows() == [3, 5]
    await in_thread(query.stop)
    await stream.publish(1, first=9)
    assert (await in_thread(drain, frame)).column("sequence") == [9]


# --- continuing ------------------------------------------------------------------------------------------------


@pytest.mark.covers("L2")
async def test_query_replays_batch(server, stream):
    await stream.publish(100)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=40)
    query.drain()
    await stream.publish(100, first=101)
    reader = query.reader()  # Spark replays the last batch first, without asking for offsets
    start, end = query.offsets[-1]
    assert query.replay(reader, start, end) == query.parts[-1]
    query.drain()
    assert query.sequences == numbers(1, 200)


async def test_same_offset_when_idle(server, stream):
    """Spark compares texts: any other one would start a batch."""
    await stream.publish(5)
    query = Query(server, stream, startingOffsets="earliest", pollIntervalMs=1)
    query.drain()
    reader, start = query.reader(), query.offsets[-1][1]
    for _ in range(3):
        assert json.dumps(reader.latestOffset(start, ReadAllAvailable())) == json.dumps(start)


async def test_empty_stream_starts_no_batch(server, stream):
    query = Query(server, stream, startingOffsets="earliest")
    assert query.drain() == []
    await stream.publish(3)
    query.drain()
    assert query.sequences == [1, 2, 3]


async def test_offset_of_another_mode_refused(server, stream):
    with pytest.raises(Exception, match="not valid in mode 'log'"):
        Query(server, stream).reader().latestOffset({"b": 1, "runs": []}, ReadAllAvailable())


async def test_server_restarted_waited_for(own_server, oracle_for):
    own = await own_server()
    stream = await OwnStream.create(await oracle_for(own), "restart", storage="file")
    await stream.publish(20)
    query = Query(own, stream, startingOffsets="earliest", maxMessagesPerTrigger=20)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    await stream.publish(20, first=21)  # which only the server knows
    await own.stop()
    call = asyncio.create_task(asyncio.to_thread(query.ask, reader, end))
    await never(call.done, 0.3, "an answer without a server")
    await own.start()
    query.batch(reader, end, await call)
    assert query.sequences == numbers(1, 40)


# --- with Spark ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L1", "L4")
@pytest.mark.full
async def test_query_resumes_after_restart(spark, drain, server, stream):
    await stream.publish(2500)
    options = options_of(
        server, stream, startingOffsets="earliest", maxMessagesPerTrigger=1000, minPartitions=2
    )
    frame = spark.readStream.format("jetstream").options(**options).load()
    assert frame.columns == ["subject", "data", "headers", "stream", "sequence", "timestamp"]
    first = drain(frame)
    assert [len(rows) for rows in first.batches.values()] == [1000, 1000, 500]
    assert sorted(first.column("sequence")) == numbers(1, 2500)
    assert first.progress[-1]["sources"][0]["latestOffset"]["seq"] == 2500
    await stream.publish(700, first=2501)
    again = drain(frame)
    assert again.runs == [3]
    assert sorted(again.column("sequence")) == numbers(2501, 3200)


@pytest.mark.covers("L2", "L4")
async def test_failed_batch_same_rows(spark, drain, server, stream):
    await stream.publish(300)
    frame = (
        spark.readStream.format("jetstream")
        .options(**options_of(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=100))
        .load()
    )
    seen = []

    def fail(rows, number):
        seen.append((number, sorted(row["sequence"] for row in rows.collect())))
        if len(seen) == 2:
            raise RuntimeError("as the test wants it")

    with pytest.raises(Exception, match="as the test wants it"):
        drain(frame, also=fail)
    await stream.publish(50, first=301)
    drain(frame, also=fail)
    assert seen[1] == seen[2] == (1, numbers(101, 200))
    assert [number for number, _ in seen] == [0, 1, 1, 2, 3]
    assert seen[-1][1] == numbers(301, 350)


@pytest.mark.full
async def test_schema_chooses_columns(spark, drain, server, stream):
    await stream.publish(10)
    reader = spark.readStream.format("jetstream").options(
        **options_of(server, stream, startingOffsets="earliest")
    )
    frame = reader.schema("timestamp_ns long, sequence long, subject string").load()
    assert frame.columns == ["timestamp_ns", "sequence", "subject"]
    rows = drain(frame).rows
    assert [row["sequence"] for row in rows] == numbers(1, 10)
    assert all(row["timestamp_ns"] > 1_700_000_000 * 10**9 for row in rows)


async def test_non_null_schema_refused(spark, drain, server, stream):
    """Batches have columns that may be, and Spark compares."""
    schema = StructType([StructField("sequence", LongType(), nullable=False)])
    frame = spark.readStream.format("jetstream").options(**options_of(server, stream)).schema(schema).load()
    with pytest.raises(Exception, match="column 'sequence' as not nullable"):
        drain(frame)
