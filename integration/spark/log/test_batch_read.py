"""Batch reads: the start and end, the number of tasks, the filters. The same rows each time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as f

from integration.kit.calls.source import BatchRead, options_of
from jsclient.errors import ConfigError
from jsclient.protocol.wire.units import parse_time


def numbers(first, last):
    return list(range(first, last + 1))


async def stored_at(oracle, stream, seq):
    """When a message was stored, to the nanosecond."""
    answer = await oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": seq})
    return answer["message"]["time"]


# --- from and to ---------------------------------------------------------------------------------------------


@pytest.mark.covers("L4", "L8")
async def test_all_messages_as_they_are(server, oracle, stream):
    await stream.publish(50)
    read = BatchRead(server, stream)
    assert [(row["sequence"], row["subject"], row["data"]) for row in read.rows] == [
        (message.seq, message.subject, message.payload) for message in await stream.messages()
    ]


@pytest.mark.covers("L3")
async def test_from_one_sequence_to_another(server, stream):
    """Both are part of it."""
    await stream.publish(50)
    assert BatchRead(server, stream, startingSequence=11, endingSequence=40).sequences == numbers(11, 40)
    assert BatchRead(server, stream, startingSequence=50, endingSequence=50).sequences == [50]
    assert BatchRead(server, stream, startingSequence=51).sequences == []
    assert BatchRead(server, stream, startingOffsets="latest").sequences == []


@pytest.mark.covers("L3")
@pytest.mark.parametrize("config", [{"allow_direct": True}, {}], ids=["by direct get", "by consumer"])
async def test_from_one_time_to_another(server, oracle, make_stream, config):
    """The first is part of it, the second is not, as with Kafka's source."""
    stream = await make_stream(**config)
    await stream.publish(50)
    times = {
        "startingTimestamp": await stored_at(oracle, stream, 11),
        "endingTimestamp": await stored_at(oracle, stream, 41),
    }
    assert BatchRead(server, stream, **times).sequences == numbers(11, 40)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert BatchRead(server, stream, endingTimestamp=later).sequences == numbers(1, 50)
    assert BatchRead(server, stream, endingTimestamp="2020-01-01T00:00:00Z").sequences == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingSequence": 51}, "'endingSequence' is 51, .* ends at sequence 50"),
        ({"startingSequence": 60}, "'startingSequence' is 60, .* ends at sequence 50"),
    ],
    ids=str,
)
async def test_not_there_yet_error(server, stream, options, message):
    await stream.publish(50)
    with pytest.raises(ConfigError, match=message):
        BatchRead(server, stream, **options)
    tolerant = BatchRead(server, stream, **options, failOnDataLoss=False)
    assert tolerant.sequences == (numbers(1, 50) if "endingSequence" in options else [])


@pytest.mark.covers("L5")
async def test_an_empty_stream(server, stream):
    assert BatchRead(server, stream).partitions == []
    await stream.publish(5)
    await stream.purge()
    assert BatchRead(server, stream).partitions == []


# --- tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("L7")
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"minPartitions": 4}, [25, 25, 25, 25]),
        ({"maxMessagesPerPartition": 30}, [25, 25, 25, 25]),
        ({"minPartitions": 2, "maxMessagesPerPartition": 40}, [33, 33, 34]),
        ({"minPartitions": 200}, [1] * 100),
        ({}, [100]),
    ],
    ids=str,
)
async def test_how_many_tasks(server, stream, options, sizes):
    await stream.publish(100)
    read = BatchRead(server, stream, **options)
    assert sorted(len(part) for part in read.parts) == sizes
    assert read.sequences == numbers(1, 100)


async def test_many_messages_shared_by_two_tasks(server, stream):
    await stream.publish(2000)
    read = BatchRead(server, stream)
    assert [len(part) for part in read.parts] == [1000, 1000]


@pytest.mark.covers("L8")
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("mode", ["consumer", "direct"])
async def test_both_ways_to_read_give_same_rows(server, oracle, make_stream, mode):
    stream = await make_stream(allow_direct=True)
    await stream.publish(1500, "a")
    await stream.publish(1500, "b")
    read = BatchRead(
        server, stream, readMode=mode, subjects=stream.subject("b"), minPartitions=3, batchRows=100
    )
    assert read.sequences == numbers(1501, 3000)
    assert {one.read_mode for part in read.partitions for one in part.value} == {mode}


# --- with Spark ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L1", "L4")
async def test_spark_reads_stream_as_table(spark, server, stream):
    for number in range(10):
        await stream.publish(300, number, first=300 * number)
    frame = spark.read.format("jetstream").options(**options_of(server, stream, minPartitions=3)).load()
    assert frame.rdd.getNumPartitions() == 3
    assert frame.count() == 3000
    by_subject = {row["subject"]: row["count"] for row in frame.groupBy("subject").count().collect()}
    assert by_subject == {stream.subject(number): 300 for number in range(10)}
    total = frame.agg(f.sum("sequence"), f.countDistinct("sequence"), f.min("timestamp")).collect()[0]
    assert (total[0], total[1]) == (sum(range(1, 3001)), 3000)
    assert abs(total[2].replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(hours=1)


@pytest.mark.covers("L3")
@pytest.mark.full
async def test_spark_reads_from_one_time_to_another(spark, server, oracle, stream, in_thread, drain):
    """Both kinds of query. Times to the nanosecond, the first inclusive and the second exclusive."""
    await stream.publish(50)
    start, end = await stored_at(oracle, stream, 11), await stored_at(oracle, stream, 41)
    options = options_of(server, stream, startingTimestamp=start)
    table = spark.read.format("jetstream").options(**options, endingTimestamp=end).load()
    assert sorted(row["sequence"] for row in await in_thread(table.collect)) == numbers(11, 40)
    streamed = spark.readStream.format("jetstream").options(**options).load()
    assert sorted((await in_thread(drain, streamed)).column("sequence")) == numbers(11, 50)


@pytest.mark.covers("L8")
async def test_headers_and_columns(spark, server, stream):
    await stream.oracle.nc.jetstream().publish(stream.subject("x"), b"1", headers={"A": "b"})
    await stream.publish(1)
    load = spark.read.format("jetstream").options(**options_of(server, stream))
    assert [row["headers"] for row in load.load().collect()] == [{"A": ["b"]}, None]
    chosen = load.schema("data binary, sequence bigint").load()
    assert tuple(chosen.collect()[0]) == (b"1", 1)
    without = (
        spark.read.format("jetstream").options(**options_of(server, stream, includeHeaders=False)).load()
    )
    assert "headers" not in without.columns
    assert without.count() == 2


@pytest.fixture
def pushing(spark):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.covers("L6")
@pytest.mark.full
async def test_spark_pushes_filters_down(pushing, server, oracle, stream):
    """What is read is what is wanted: the plan has no such filter left, and the scan gives these rows only."""
    for number in range(10):
        await stream.publish(100, number % 2)
    await stream.publish(7, "in.a")
    await stream.publish(3, "inside.a")
    await stream.publish(1, "*.a")  # which the server stores
    load = pushing.read.format("jetstream").options(**options_of(server, stream, pushdown=True)).load
    by_sequence = load().where("sequence >= 100 and sequence < 200")
    assert sorted(row["sequence"] for row in by_sequence.collect()) == numbers(100, 199)
    assert "Filter (" not in by_sequence._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" in load().where("length(data) > 100")._jdf.queryExecution().executedPlan().toString()
    by_subject = load().where(f.col("subject") == stream.subject(1)).where("sequence <= 250")
    assert sorted(row["sequence"] for row in by_subject.collect()) == numbers(101, 200)
    by_prefix = load().where(f.col("subject").startswith(stream.subject("in.")))
    assert by_prefix.count() == 7
    assert load().where(f.col("subject") == stream.subject("*.a")).count() == 1
    assert "Filter (" not in by_prefix._jdf.queryExecution().executedPlan().toString()
    nothing = load().where(f.col("subject") == "elsewhere")
    assert nothing.collect() == []
    moment = parse_time(await stored_at(oracle, stream, 900))
    by_time = load().where(f.col("timestamp") >= f.lit(moment))
    everything = pushing.read.format("jetstream").options(**options_of(server, stream)).load()
    expected = {
        row["sequence"] for row in everything.collect() if row["timestamp"].replace(tzinfo=UTC) >= moment
    }
    assert {row["sequence"] for row in by_time.collect()} == expected
    assert 900 in expected


async def test_filter_pushdown_or_not(pushing, server, stream):
    await stream.publish(20)
    frame = pushing.read.format("jetstream").options(**options_of(server, stream)).load()
    assert frame.where("sequence > 15").count() == 5


@pytest.mark.covers("L1", "L32")
@pytest.mark.full
async def test_connect_streams_and_batches(connect_spark, server, stream, tmp_path):
    """The same source in the server of Spark Connect, which gets options and classes from another process."""
    await stream.publish(500)
    code = """
        given = spark.read.format("jetstream").options(**options).load()
        table = given.selectExpr("count(*)", "sum(sequence)").collect()[0]
        frame = spark.readStream.format("jetstream").options(**options, startingOffsets="earliest").load()
        query = (
            frame.writeStream.format("parquet").option("path", files + "/rows")
            .option("checkpointLocation", files + "/checkpoint").trigger(availableNow=True).start()
        )
        query.awaitTermination(60)
        streamed = spark.read.parquet(files + "/rows").selectExpr("count(*)", "sum(sequence)").collect()[0]
        result = [list(table), list(streamed)]
    """
    actual = connect_spark(code, options=options_of(server, stream), files=str(tmp_path))
    assert actual == [[500, sum(range(1, 501))]] * 2
