"""Reads that find nothing are zero rows, with Spark and with the Arrow readers. A start in the future is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as f

from integration.kit.calls.source import BatchRead, options_of
from jsclient.arrow import read_jetstream, scan_jetstream
from jsclient.errors import ConfigError

NOTHING = {
    "latest": {"startingOffsets": "latest"},
    "after the last": {"startingSequence": 11},
    "ends before the first": {"endingTimestamp": "2020-01-01T00:00:00Z"},
    "no such subject": {"subjects": ""},
}


def later() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")


@pytest.mark.covers("L5")
@pytest.mark.parametrize("which", NOTHING)
async def test_spark_finds_no_rows(spark, server, stream, in_thread, which):
    await stream.publish(10)
    options = dict(NOTHING[which])
    if "subjects" in options:
        options["subjects"] = stream.subject("none")
    load = spark.read.format("jetstream").options(**options_of(server, stream, **options)).load
    assert await in_thread(lambda: load().collect()) == []


@pytest.mark.covers("L5")
async def test_spark_finds_no_rows_in_empty_streams(spark, server, make_stream, in_thread):
    one, other = await make_stream(), await make_stream()
    read = spark.read.format("jetstream")
    assert await in_thread(lambda: read.options(**options_of(server, one)).load().count()) == 0
    both = options_of(server, f"{one.name},{other.name}")
    assert await in_thread(lambda: read.options(**both).load().collect()) == []


@pytest.mark.covers("L5", "L6")
async def test_spark_finds_no_rows_by_pushed_filters(spark, server, stream, in_thread):
    await stream.publish(10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("jetstream").options(**options_of(server, stream, pushdown=True)).load()
        assert await in_thread(lambda: frame.where("sequence > 10").collect()) == []
        assert await in_thread(lambda: frame.where(f.col("subject") == "elsewhere").collect()) == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.covers("L5", "L39")
async def test_arrow_finds_no_rows(server, stream):
    assert read_jetstream(server.url, stream.name).read_all().num_rows == 0
    assert scan_jetstream(server.url, stream.name).collect().height == 0
    await stream.publish(10)
    for arguments in ({"start": "now"}, {"start": 11}, {"end": "2020-01-01T00:00:00Z"}):
        assert read_jetstream(server.url, stream.name, **arguments).read_all().num_rows == 0
        frame = scan_jetstream(server.url, stream.name, **arguments).collect()
        assert (frame.height, "sequence" in frame.columns) == (0, True)


NOTHING_IN_ARROW = {
    "latest": {"start": "now"},
    "after the last": {"start": 11},
    "ends before the first": {"end": "2020-01-01T00:00:00Z"},
    "a filter without a message": {"subjects": "none"},
}


@pytest.mark.covers("L5", "L39")
@pytest.mark.parametrize("which", NOTHING_IN_ARROW)
async def test_engines_find_no_rows(server, stream, which):
    """DuckDB and Polars, with all columns and without payloads. Each engine knows the columns in both cases."""
    duckdb = pytest.importorskip("duckdb")
    await stream.publish(10)
    options = dict(NOTHING_IN_ARROW[which])
    if "subjects" in options:
        options["subjects"] = stream.subject("none")
    for columns in (None, ["sequence", "subject"]):
        rows = read_jetstream(server.url, stream.name, columns=columns, **options)
        connection = duckdb.connect()
        connection.register("rows", rows)
        assert connection.execute("select count(*), max(sequence) from rows").fetchall() == [(0, None)]
        connection.close()
        scan = scan_jetstream(server.url, stream.name, columns=columns, **options)
        frame = scan.select("subject").collect()
        assert (frame.height, frame.columns) == (0, ["subject"])


@pytest.mark.covers("L3")
@pytest.mark.parametrize("count", [0, 10])
async def test_start_beyond_the_end(server, stream, count):
    """The sequence after the last message is zero rows, a later one is refused, unless data loss is allowed."""
    await stream.publish(count)
    assert BatchRead(server, stream, startingSequence=count + 1).rows == []
    with pytest.raises(
        ConfigError, match=rf"option 'startingSequence' is {count + 2}, but .* ends at sequence {count}:"
    ):
        BatchRead(server, stream, startingSequence=count + 2)
    assert BatchRead(server, stream, startingSequence=count + 2, failOnDataLoss=False).rows == []
    with pytest.raises(ConfigError, match=rf"start is {count + 2}, but stream"):
        read_jetstream(server.url, stream.name, start=count + 2)
    options = {"servers": server.url, "failOnDataLoss": "false"}
    assert read_jetstream(options, stream.name, start=count + 2).read_all().num_rows == 0


@pytest.mark.covers("L3")
async def test_start_in_future_refused(server, stream):
    moment = later()
    for count in (0, 10):
        await stream.publish(count)
        with pytest.raises(ConfigError, match=r"option 'startingTimestamp' is .*, which is in the future"):
            BatchRead(server, stream, startingTimestamp=moment)
        with pytest.raises(ConfigError, match=r"start is .*, which is in the future"):
            read_jetstream(server.url, stream.name, start=moment)
    assert len(BatchRead(server, stream, endingTimestamp=moment).sequences) == 10
