"""Reads without the column ``data``: the server sends no payloads, and all other columns are the same."""

from __future__ import annotations

import asyncio

import pytest

from integration.kit.calls.source import BatchRead, Query
from integration.kit.network.wire import TO_CLIENT
from integration.spark.log.test_odd_headers import BLOCKS, stored
from jsclient.arrow import read_jetstream, scan_jetstream

WITHOUT = ("subject", "headers", "stream", "sequence", "timestamp", "timestamp_ns", "stream_created")
SIZE, COUNT = 16 * 1024, 300
CONFIGS = pytest.mark.parametrize("direct", [True, False], ids=["direct gets", "none"])


async def sent(tap, read, *args, **kwargs):
    """The rows of a read, and how many bytes the server sent meanwhile."""
    start = len(tap.frames)
    actual = await asyncio.to_thread(read, *args, **kwargs)
    return actual, sum(len(frame.raw) for frame in tap.frames[start:] if frame.direction is TO_CLIENT)


@CONFIGS
async def test_columns_without_payload(server, make_stream, proxy, direct):
    """By Spark's source with a schema that has no ``data``, in a batch and in a stream, and by the Arrow readers."""
    stream, tap = await make_stream(allow_direct=direct), await proxy()
    await stream.publish(COUNT, size=SIZE)
    whole, both = await sent(tap, BatchRead, tap, stream, columns=(*WITHOUT, "data"))
    assert both > COUNT * SIZE
    rows = [{name: row[name] for name in WITHOUT} for row in whole.rows]

    def stream_read():
        query = Query(tap, stream, columns=WITHOUT, startingOffsets="earliest")
        query.drain()
        return query

    def polars():
        return scan_jetstream(tap.url, stream.name).select("sequence").collect()

    for read in (
        lambda: BatchRead(tap, stream, columns=WITHOUT),
        stream_read,
        lambda: BatchRead(tap, stream, columns=WITHOUT, minPartitions=20),
    ):
        actual, size = await sent(tap, read)
        assert actual.rows == rows
        assert size < COUNT * 1024
    table, size = await sent(tap, lambda: read_jetstream(tap.url, stream.name, columns=WITHOUT).read_all())
    assert (table.to_pylist(), size < COUNT * 1024) == (rows, True)
    frame, size = await sent(tap, polars)
    assert (frame["sequence"].to_list(), size < COUNT * 1024) == ([*range(1, COUNT + 1)], True)


@pytest.mark.covers("L8")
async def test_odd_headers_without_payload(server, make_stream):
    stream = await make_stream()
    await stored(server, stream)
    rows = BatchRead(server, stream, columns=("headers", "sequence")).rows
    assert {block: row["headers"] for block, row in zip(BLOCKS, rows, strict=True)} == BLOCKS
