"""Queries of a hundred thousand subjects, ten thousand batches, a thousand partitions, a thousand streams.

Nothing here measures time: requests, the sizes of offsets and tasks, and the memory of the driver must stay bounded.
`python -m benchmarks.spark.scale` measures the time of the same.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import tracemalloc
from collections.abc import Callable

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.several import PatternQuery, query_of
from integration.kit.calls.source import Query
from integration.kit.judge.requests import Requests

pytestmark = [pytest.mark.full, pytest.mark.covers("L36"), pytest.mark.limit(900.0)]

WARM, COUNTED = 500, 100  # batches
KEPT = 100_000  # bytes


def grown_by(work: Callable[[int], None], batches: int) -> int:
    """How many bytes more Python has allocated after these batches than after the first ones."""
    tracemalloc.start()
    try:
        work(WARM)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(batches - WARM)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


class Planned:
    """Plans the batches of a query as Spark does, without their tasks being read."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._reader = query.reader()
        self._offset = query.start(self._reader)
        self.largest = 0
        """The size of the largest offset."""

    def go(self, batches: int) -> None:
        for _ in range(batches):
            end = self._query.ask(self._reader, self._offset)
            assert end != self._offset
            assert self._reader.partitions(self._offset, end)
            self._reader.reportLatestOffset()
            self.largest = max(self.largest, len(json.dumps(end)))
            self._offset = end


@pytest.mark.parametrize("kind", ["one", "filter"])
async def test_ten_thousand_batches(server, oracle, make_stream, kind):
    batches = 10_000
    stream = await make_stream(allow_direct=True)
    await stream.publish(batches + COUNTED)
    options = {"subjects": stream.all} if kind == "filter" else {}
    query = Query(
        server, stream, startingOffsets="earliest", maxMessagesPerTrigger=1, pollIntervalMs=1, **options
    )
    planned = await asyncio.to_thread(Planned, query)
    assert await asyncio.to_thread(grown_by, planned.go, batches) < KEPT
    _, sent = await Requests(oracle).of(planned.go, COUNTED)
    assert sent.total() < 5 * COUNTED
    assert planned.largest < 250


async def test_batches_of_several_streams(server, oracle, make_stream):
    batches = 2000
    streams = [await make_stream(allow_direct=True) for _ in range(6)]
    for one in streams:
        await one.publish(batches + COUNTED)
    query = query_of(server, *streams, maxMessagesPerTrigger=6, pollIntervalMs=1)
    planned = await asyncio.to_thread(Planned, query)
    assert await asyncio.to_thread(grown_by, planned.go, batches) < KEPT
    _, sent = await Requests(oracle).of(planned.go, COUNTED)
    assert sent.total() < 4 * COUNTED
    assert planned.largest < 250 * len(streams)


async def test_batches_of_queue_mode(server, make_stream):
    batches = 2000
    stream = await make_stream(allow_direct=True)
    await stream.publish(batches)
    await stream.create_consumer("q", ack_policy="explicit", durable_name="q")
    query = QueueQuery(server, stream, "q", {"maxMessagesPerTrigger": 1, "pollIntervalMs": 1})
    loop = asyncio.get_running_loop()

    async def batch():
        assert await query.plan()
        query.commit([])

    def go(count):
        for _ in range(count):
            asyncio.run_coroutine_threadsafe(batch(), loop).result()

    assert await asyncio.to_thread(grown_by, go, batches) < KEPT
    assert len(json.dumps(query.committed)) < 250
    await query.stop()


async def test_hundred_thousand_subjects(server, oracle, make_stream):
    """The requests and the number of bytes are the same as for a stream with ten subjects."""
    results = []
    for count in (10, 100_000):
        stream = await make_stream(allow_direct=True, storage="file")
        for subject in range(count):
            await oracle.nc.publish(stream.subject(subject), b"1")
            if subject % 1000 == 999:
                await oracle.nc.flush()
        await stream.publish(1, "last")
        query = Query(
            server, stream, startingOffsets="earliest", subjects=f"{stream.prefix}.*", pollIntervalMs=1
        )
        requests, reader = Requests(oracle), query.reader()
        start, first = await requests.of(query.start, reader)
        end, second = await requests.of(query.ask, reader, start)
        tasks, third = await requests.of(reader.partitions, start, end)
        assert end["seq"] == count + 1
        idle, fourth = await requests.of(query.ask, reader, end)
        assert idle == end
        assert fourth.total() <= 2
        results.append((first, second["STREAM.MSG"], third, len(tasks) <= 2, len(json.dumps(end)) < 250))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
async def test_thousand_partitions(server, oracle, make_stream, kind):
    tasks, rows = 1000, 20_000 if kind == "dense" else 2000
    stream = await make_stream(allow_direct=True)
    await stream.publish(rows, "a")
    if kind == "sparse":
        await stream.publish(50 * rows, "b")
        await stream.publish(rows, "a")
    options = {"subjects": stream.subject("a")} if kind == "sparse" else {}
    query = Query(server, stream, startingOffsets="earliest", minPartitions=tasks, **options)
    requests, reader = Requests(oracle), query.reader()
    start = await asyncio.to_thread(query.start, reader)
    end, sent = await requests.of(query.ask, reader, start)
    assert sent.total() < 20
    assert len(json.dumps(end)) < 250 + 9 * tasks
    parts, sent = await requests.of(reader.partitions, start, end)
    assert len(parts) == tasks
    assert sent.total() <= 2
    assert sum(len(pickle.dumps(one)) for one in parts) < 500 * tasks


async def test_thousand_streams(own_server, oracle_for):
    count = 1000
    own = await own_server()
    oracle = await oracle_for(own.url)
    for number in range(count):
        await oracle.create_stream(f"S_{number:04}", [f"s.{number}.>"], storage="memory", allow_direct=True)
        await oracle.publish_many(f"s.{number}.x", 3)
    query = PatternQuery(own, "S_*", startingOffsets="earliest", pollIntervalMs=100)
    requests, reader = Requests(oracle), query.reader()
    start, sent = await requests.of(query.start, reader)
    assert sent.pop("STREAM.NAMES") == 1
    assert sent == dict.fromkeys(("STREAM.INFO", "CONSUMER.CREATE", "CONSUMER.DELETE"), count)
    end, sent = await requests.of(query.ask, reader, start)
    assert sent["STREAM.LIST"] == 4
    assert sent.total() <= 5
    assert len(json.dumps(end)) < 200 * count
    parts, sent = await requests.of(reader.partitions, start, end)
    assert sent == {"STREAM.LIST": 4}
    assert len(parts) == 32
    await asyncio.to_thread(query.batch, reader, start, end)
    assert len(query.rows) == 3 * count

    def idle():
        for _ in range(3):
            assert query.ask(reader, end) == end

    _, sent = await requests.of(idle)
    assert sent["STREAM.INFO"] == 0
    # However slow the machine: after a look, at most one page is asked for in each interval of 100 ms.
    assert 4 <= sent["STREAM.LIST"] <= 4 + requests.seconds / 0.1
