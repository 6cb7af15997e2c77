"""The offsets and reports of real readers, in a progress as Spark makes it of them."""

from __future__ import annotations

import json

from integration.kit.calls.source import Query
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
    assert (one.mode, one.stream, one.last) == ("log", stream.name, 50)
    assert (one.place.stream, one.place.seq, one.place.subjects) == (stream.name, 20, (stream.subject("a"),))


async def test_several_streams(server, make_stream):
    large, small = await make_stream(), await make_stream()
    await large.publish(60)
    await small.publish(20)
    names = f"{large.name},{small.name}"
    query = Query(server, names, startingOffsets="earliest", maxMessagesPerTrigger=20)
    reader = query.reader()
    end = query.ask(reader, query.start(reader))
    one = read(end, reader.reportLatestOffset())
    assert (one.mode, one.stream, one.place, one.pending) == ("log", "", None, 60)
    query.drain()
    reader = query.reader()
    last = query.offsets[-1][1]
    query.ask(reader, last)
    assert read(last, reader.reportLatestOffset()).pending == 0
