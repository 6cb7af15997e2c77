"""Readers without Spark give the rows of Spark's batch read, column by column."""

from __future__ import annotations

import importlib

import pytest

from integration.kit.calls.source import options_of
from jsclient.arrow import read_jetstream, scan_jetstream

COLUMNS = ("sequence", "subject", "data", "stream", "timestamp")


@pytest.mark.covers("L39")
async def test_rows_of_spark(spark, server, oracle, stream, in_thread):
    duckdb = importlib.import_module("duckdb")
    await stream.publish(200, "a")
    await oracle.publish(stream.subject("é.b"), b"\x00\xff", headers={"Kind": "odd"})
    await stream.publish(100, "c")
    options = options_of(server, stream, startingSequence=51, endingSequence=250)
    table = spark.read.format("jetstream").options(**options).load()
    rows = sorted(await in_thread(table.collect), key=lambda row: row["sequence"])
    expected = [tuple(row[name] for name in COLUMNS[:-1]) for row in rows]
    assert [row[0] for row in expected] == list(range(51, 251))
    bounds = {"start": 51, "end": 250}

    arrow = read_jetstream(server.url, stream.name, **bounds).read_all()
    polars = scan_jetstream(server.url, stream.name, **bounds).collect().sort("sequence").to_arrow()
    orders = duckdb.from_arrow(read_jetstream(server.url, stream.name, **bounds))
    by_sql = orders.order("sequence").to_arrow_table()
    for actual in (arrow.sort_by("sequence"), polars, by_sql):
        named = actual.select(COLUMNS[:-1]).to_pylist()
        assert [tuple(one.values()) for one in named] == expected
        times = [one.replace(tzinfo=None) for one in actual["timestamp"].to_pylist()]
        assert times == [row["timestamp"] for row in rows]
    headers = [dict(one) if one else None for one in arrow.sort_by("sequence")["headers"].to_pylist()]
    assert headers == [row["headers"] for row in rows]
