"""The offsets and reports of real readers, in a progress as Spark makes it of them."""

from __future__ import annotations

import json

from integration.kit.calls.several import PatternQuery
from integration.kit.calls.source import Query
from integration.kit.judge.waiting import eventually
from jsclient.spark.monitoring.progress import read_progress


def read(end, latest):
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest), "numInputRows": 20}
    (one,) = read_progress({"id": "i", "runId": "r", "batchId": 0, "sources": [source]}).sources
    return one


async def test_one_stream(server, stream):
    await stream.publish(50, "a")
    await stream.publish(5, "b")
    query = Query(
        server, stream, startingOffsets="earliest", maxMessagesPerTrigger=20, subjects=stream.subject("a")
    )
    reader = query.reader()
    end = query.ask(reader, query.start(reader))
    one = read(end, reader.reportLatestOffset())
    assert (one.mode, one.stream, one.streams[0].last) == ("log", stream.name, 50)
    query_position = one.streams[0].query_position
    assert (query_position.stream, query_position.seq, query_position.subjects) == (
        stream.name,
        20,
        (stream.subject("a"),),
    )


async def test_several_streams(server, make_stream):
    large, small = await make_stream(), await make_stream()
    await large.publish(60)
    await small.publish(20)
    names = f"{large.name},{small.name}"
    query = Query(server, names, startingOffsets="earliest", maxMessagesPerTrigger=20)
    reader = query.reader()
    end = query.ask(reader, query.start(reader))
    one = read(end, reader.reportLatestOffset())
    assert (one.mode, one.stream) == ("log", "")
    assert {stream.name: (stream.query_position.seq, stream.last) for stream in one.streams} == {
        large.name: (15, 60),
        small.name: (5, 20),
    }
    query.drain()
    reader = query.reader()
    last = query.offsets[-1][1]
    query.ask(reader, last)
    assert [
        stream.last - stream.query_position.seq for stream in read(last, reader.reportLatestOffset()).streams
    ] == [
        0,
        0,
    ]


async def test_filters_of_several_streams(server, make_stream):
    """For each stream, the filters that can match its messages. A stream that no filter fits is not reported."""
    one, two, unread = await make_stream(), await make_stream(), await make_stream()
    for each in (one, two, unread):
        await each.publish(5, "a")
    filters = f"{one.subject('a')},{two.subject('a')},{two.subject('b')}"
    names = f"{one.name},{two.name},{unread.name}"
    query = Query(server, names, startingOffsets="earliest", subjects=filters)
    reader = query.reader()
    end = query.ask(reader, query.start(reader))
    assert {
        stream.name: stream.query_position.subjects
        for stream in read(end, reader.reportLatestOffset()).streams
    } == {
        one.name: (one.subject("a"),),
        two.name: (two.subject("a"), two.subject("b")),
    }


async def test_stream_that_is_deleted_is_not_reported(server, make_stream):
    """One that matched a pattern."""
    saved, missing = await make_stream(), await make_stream()
    await saved.publish(5)
    await missing.publish(5)
    pattern = f"{saved.name.rsplit('_', 1)[0]}_*"
    query = PatternQuery(server, pattern, startingOffsets="earliest", failOnDataLoss=False)
    reader = query.reader()
    end = query.ask(reader, query.start(reader))
    assert {saved.name, missing.name} <= {
        stream.name for stream in read(end, reader.reportLatestOffset()).streams
    }
    await missing.delete()
    await saved.publish(1)

    def names():
        nonlocal end
        end = query.ask(reader, end)
        return {stream.name for stream in read(end, reader.reportLatestOffset()).streams}

    await eventually(lambda: missing.name not in names())
    assert saved.name in names()
