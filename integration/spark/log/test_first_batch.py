"""The first batch after a failure: Spark asks for the start of the query again, and reads what was planned."""

from __future__ import annotations

import pytest

from integration.kit.calls.several import COLUMNS, numbers, query_of
from integration.kit.calls.source import Query, options_of
from jsclient.errors import HistoryTruncatedError


def planned(query):
    """Plan the first batch, as far as Spark writes it to the checkpoint: its end."""
    reader = query.reader()
    start = query.start(reader)
    return start, query.ask(reader, start)


def rows(parts):
    return [[(row["stream"], row["sequence"]) for row in part] for part in parts]


def replayed(query, end):
    """The batch after a restart: it starts like a new query."""
    reader = query.reader()
    return rows(query.replay(reader, query.start(reader), end))


async def latest_of(server, *streams):
    """A first batch of 5 messages of each stream, from `latest` on, and 5 more that are stored after it."""
    for one in streams:
        await one.publish(5)
    query = query_of(server, *streams, startingOffsets="latest")
    reader = query.reader()
    start = query.start(reader)
    for one in streams:
        await one.publish(5, first=6)
    end = query.ask(reader, start)
    for one in streams:
        await one.publish(5, first=11)
    return end


@pytest.mark.covers("L2")
@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_one_stream(server, stream, start):
    end = await latest_of(server, stream)
    expected = [[(stream.name, seq) for seq in numbers(6, 10)]]
    assert replayed(query_of(server, stream, startingOffsets=start), end) == expected


@pytest.mark.covers("L2")
@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_several_streams(server, make_stream, start):
    both = sorted([await make_stream(), await make_stream()], key=lambda one: one.name)
    end = await latest_of(server, *both)
    expected = [[(one.name, seq) for seq in numbers(6, 10)] for one in both]
    assert replayed(query_of(server, *both, startingOffsets=start), end) == expected


async def test_end_is_the_new_start(server, stream):
    query = query_of(server, stream, startingOffsets="latest")
    reader = query.reader()
    start = query.start(reader)
    await stream.publish(5)
    end = query.ask(reader, start)
    assert replayed(query, end) == [[(stream.name, seq) for seq in numbers(1, 5)]]


async def test_purged_head_is_a_loss(server, stream):
    await stream.publish(10)
    query = query_of(server, stream, startingOffsets="earliest")
    _, end = planned(query)
    await stream.oracle.purge(stream.name, seq=6)
    with pytest.raises(HistoryTruncatedError, match="messages 1 to 5"):
        replayed(query, end)
    tolerant = query_of(server, stream, startingOffsets="earliest", failOnDataLoss=False)
    assert replayed(tolerant, end) == [[(stream.name, seq) for seq in numbers(6, 10)]]


async def test_other_streams_in_the_options(server, make_stream):
    """A stream is removed from the options, and another stream is added. The batch stays as it was planned."""
    first, second, third = sorted([await make_stream() for _ in range(3)], key=lambda one: one.name)
    for one in (first, second, third):
        await one.publish(10)
    query = query_of(server, first, second, startingOffsets="earliest")
    start, end = planned(query)
    expected = rows(query.replay(query.reader(), start, end))
    assert replayed(query_of(server, second, third, startingOffsets="earliest"), end) == expected


async def test_stream_that_joins_is_not_read(server, make_stream):
    """Its start is in the end of the batch, and the next batch reads it, whatever the options are at the restart."""
    first, second = sorted([await make_stream(), await make_stream()], key=lambda one: one.name)
    for one in (first, second):
        await one.publish(10)
    alone = Query(server, first.name, columns=COLUMNS, startingOffsets="earliest")
    reader = alone.reader()
    start = alone.start(reader)
    both = query_of(server, first, second, startingOffsets="latest")
    end = both.ask(both.reader(), start)
    assert replayed(query_of(server, first, second, startingOffsets="earliest"), end) == [
        [(first.name, seq) for seq in numbers(1, 10)]
    ]


# --- with Spark ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L2")
@pytest.mark.full  # two starts of a query
async def test_spark_reads_first_batch_again(spark, drain, server, stream):
    await stream.publish(10)
    options = options_of(server, stream)
    seen = []

    def fail(batch, number):
        seen.append((number, sorted(row["sequence"] for row in batch.collect())))
        if len(seen) == 1:
            raise RuntimeError("as the test wants it")

    first = spark.readStream.format("jetstream").options(**options, startingOffsets="earliest").load()
    with pytest.raises(Exception, match="as the test wants it"):
        drain(first, also=fail)
    await stream.publish(5, first=11)
    drain(spark.readStream.format("jetstream").options(**options, startingOffsets="latest").load(), also=fail)
    assert seen == [(0, numbers(1, 10)), (0, numbers(1, 10)), (1, numbers(11, 15))]
