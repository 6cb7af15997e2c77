"""The checkpoint of a query with one stream that continues with several, after that stream was recreated."""

from __future__ import annotations

import asyncio

import pytest

from integration.kit.calls.source import Query
from jsclient.errors import PositionInvalidError

COLUMNS = ("stream", "sequence")


def sequences(rows, stream):
    return [row["sequence"] for row in rows if row["stream"] == stream.name]


def query_of(server, *streams, **options):
    arguments = {"startingOffsets": "earliest", "columns": COLUMNS, "pollIntervalMs": 1, **options}
    return Query(server, ",".join(one.name for one in streams), **arguments)


async def recreate(stream, messages):
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all], storage="memory")
    if messages:
        await stream.publish(messages)
    await asyncio.sleep(0.02)  # the reader checks its streams every few milliseconds


@pytest.fixture
async def old(make_stream):
    """A stream that existed before."""
    stream = await make_stream()
    await stream.publish(4)
    return stream


@pytest.fixture
async def offset(server, old, stream):
    """The checkpoint of a query that has read 10 messages of a stream."""
    await stream.publish(10)
    alone = query_of(server, stream)
    alone.drain()
    return alone.offsets[-1][1]


async def test_recreated_before(server, old, stream, offset):
    await recreate(stream, 3)
    with pytest.raises(PositionInvalidError, match="not one of the streams of the options"):
        query_of(server, stream, old).ask(query_of(server, stream, old).reader(), offset)
    tolerant = query_of(server, stream, old, failOnDataLoss=False, startingOffsets="latest")
    tolerant.offsets = [({}, offset)]
    tolerant.drain()
    assert (sequences(tolerant.rows, stream), sequences(tolerant.rows, old)) == ([1, 2, 3], [])
    for offsets, parts in zip(tolerant.offsets[1:], tolerant.parts, strict=True):
        assert tolerant.replay(tolerant.reader(), *offsets) == parts
    await old.publish(2, first=5)
    await stream.publish(1, first=4)
    tolerant.drain()
    assert (sequences(tolerant.rows, stream), sequences(tolerant.rows, old)) == ([1, 2, 3, 4], [5, 6])


async def test_recreated_before_without_messages(server, old, stream, offset):
    await recreate(stream, 0)
    tolerant = query_of(server, stream, old, failOnDataLoss=False, startingOffsets="latest")
    tolerant.offsets = [({}, offset)]
    tolerant.drain()
    await stream.publish(3)
    tolerant.drain()
    assert sequences(tolerant.rows, stream) == [1, 2, 3]


@pytest.mark.covers("L9")
async def test_recreated_under_running_query(server, old, stream, offset):
    """The first batch of several streams is planned when the stream was recreated."""
    for fails in (True, False):
        query = query_of(server, stream, old, failOnDataLoss=fails)
        reader = query.reader()
        query.ask(reader, offset)
        await recreate(stream, 3)
        if fails:
            with pytest.raises(PositionInvalidError, match="was recreated"):
                query.ask(reader, offset)
            offset = {**offset, "seq": 3, "created": reader._members().planner(stream.name).facts.created}
            continue
        end = query.ask(reader, offset)
        query.batch(reader, offset, end)
        assert query.replay(query.reader(), offset, end) == query.parts[0]
        end2 = query.ask(reader, end)
        query.batch(reader, end, end2)
    assert (sequences(query.rows, stream), sequences(query.rows, old)) == ([1, 2, 3], [1, 2, 3, 4])


async def test_stream_left_out(server, old, stream, offset, make_stream):
    """Another stream that was created later is read from its first message, as with one stream."""
    later = await make_stream()
    await later.publish(2)
    with pytest.raises(PositionInvalidError, match="not one of the streams of the options"):
        query_of(server, old, later).ask(query_of(server, old, later).reader(), offset)
    tolerant = query_of(server, old, later, failOnDataLoss=False, startingOffsets="latest")
    tolerant.offsets = [({}, offset)]
    tolerant.drain()
    assert (sequences(tolerant.rows, later), sequences(tolerant.rows, old)) == ([1, 2], [])
