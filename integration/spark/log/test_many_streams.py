"""A source of many streams: its requests, its offsets and its tasks stay bounded."""

from __future__ import annotations

import asyncio

import pytest

from integration.kit.calls.several import COLUMNS, numbers, query_of, sequences
from integration.kit.calls.source import BatchRead
from integration.kit.judge.requests import Requests
from integration.kit.judge.waiting import eventually

COUNT = 40
TRIP = 0.12  # seconds to the server and back: longer than a list of streams was used before


@pytest.fixture
async def many(oracle, make_stream):
    stream = [await make_stream(allow_direct=True) for _ in range(COUNT)]
    for one in stream:
        await one.publish(3)
    return stream


@pytest.mark.full
@pytest.mark.covers("L36")
async def test_requests_over_a_slow_network(server, oracle, proxy, many):
    far = await proxy()
    far.delay(TRIP / 2)
    query = query_of(server, *many, servers=far.url, pollIntervalMs=1)
    requests, reader = Requests(oracle), query.reader()
    start, sent = await requests.of(query.start, reader)
    # One after the other they would take 3 trips a stream.
    assert requests.seconds < TRIP * 3 * COUNT / 2
    assert sent == {"STREAM.INFO": COUNT, "CONSUMER.CREATE": COUNT, "CONSUMER.DELETE": COUNT}
    end, sent = await requests.of(query.ask, reader, start)
    assert sent == {"STREAM.LIST": 1}
    _, sent = await requests.of(reader.partitions, start, end)
    assert sent == {"STREAM.LIST": 1}
    await asyncio.to_thread(query.batch, reader, start, end)
    assert all(sequences(query.rows, one) == numbers(1, 3) for one in many)
    again, sent = await requests.of(query.ask, reader, end)
    assert again == end
    assert sent.keys() == {"STREAM.LIST"}
    assert sent.total() <= 2


@pytest.mark.covers("L36")
async def test_one_task_reads_many_streams(server, oracle, many):
    """As many tasks as the rows are worth, the same in a replay, whatever its options and the streams are then."""
    query = query_of(server, *many, maxMessagesPerPartition=30)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    assert end["together"] == 30
    names = [one.name for one in sorted(many, key=lambda one: one.name)]
    assert [[row["stream"] for row in part] for part in query.parts[0]] == [
        [name for name in names[first : first + 10] for _ in range(3)] for first in range(0, COUNT, 10)
    ]
    other = query_of(server, *many, minPartitions=50, failOnDataLoss=False)
    other.offsets = query.offsets
    assert other.replay(other.reader(), start, end) == query.parts[0]
    for one in many[7:9]:
        await one.publish(2, first=4)
    after = await eventually(lambda: (got := query.ask(reader, end)) != end and got)
    assert "together" not in after
    _, sent = await Requests(oracle).of(reader.partitions, end, after)
    assert sent.keys() == {"STREAM.INFO"}  # of the streams with new messages: no list of all
    assert sent.total() <= 2
    missing = many[5]
    await missing.delete()
    remaining = [[row for row in part if row["stream"] != missing.name] for part in query.parts[0]]
    assert other.replay(other.reader(), start, end) == remaining


@pytest.mark.covers("L36")
async def test_a_filter_for_each_stream(server, oracle, many):
    """Not one request for each filter of each stream."""
    query = query_of(server, *many, subjects=",".join(one.all for one in many))
    requests, reader = Requests(oracle), query.reader()
    start, sent = await requests.of(query.start, reader)
    assert sent["STREAM.MSG"] <= COUNT  # the last message that the filter matches
    assert sent["DIRECT.GET"] == COUNT
    end = await asyncio.to_thread(query.ask, reader, start)
    await asyncio.to_thread(query.batch, reader, start, end)
    assert all(sequences(query.rows, one) == numbers(1, 3) for one in many)


@pytest.mark.full
@pytest.mark.covers("L36")
async def test_batch_read_of_many_streams(server, oracle, proxy, many):
    far = await proxy()
    far.delay(TRIP / 2)
    names = ",".join(one.name for one in many)
    requests = Requests(oracle)
    read, _ = await requests.of(lambda: BatchRead(far, names, columns=COLUMNS, startingOffsets="earliest"))
    # Each stream takes 5 trips: its state, a consumer that is made and deleted, and what its task asks.
    assert requests.seconds < TRIP * 5 * COUNT
    assert len(read.parts) == 2
    assert all(sequences(read.rows, one) == numbers(1, 3) for one in many)
