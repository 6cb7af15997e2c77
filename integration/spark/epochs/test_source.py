"""Topics of epochs as a source, called as Spark calls it: whole epochs, each once, wherever the query was stopped."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.calls.epochs import EpochQuery, read_epochs
from integration.kit.calls.source import read_all
from jsclient.epochs import Int, Product
from jsclient.errors import ConfigError, EpochsLostError, PositionInvalidError


@pytest.fixture
async def topics(request: Any, js: Any) -> Any:
    results: list[Any] = []

    def make(order: Any = Int(), **options: Any) -> Any:  # noqa: B008  it has no state
        name = "es" + "".join(c for c in request.node.name if c.isalnum())[:50] + str(len(results))
        results.append(js.epochs(name, order, **options))
        return results[-1]

    yield make
    for topic in results:
        with contextlib.suppress(jsclient.StreamNotFoundError):
            await js.delete_stream(topic.name)


@pytest.mark.covers("L37")
async def test_complete_epochs_whole(server: Any, topics: Any) -> None:
    topic = topics(partitions=2)
    one, two = [await topic.publisher(partition) for partition in (0, 1)]
    await one.send(1, ["a"])
    await two.send(2, ["later"])
    await one.send(2, ["b"])
    await two.send(1, ["c"])
    await one.advance(3)
    await two.advance(2)
    query = EpochQuery(server, topic, startingOffsets="earliest")
    await asyncio.to_thread(query.drain)
    assert query.epochs == [{1: ["a", "c"]}]
    await one.send(3, ["d"])
    await two.send(2, ["e"])
    await asyncio.to_thread(query.drain)
    assert len(query.batches) == 1, "nothing is completed since"
    await two.advance(3)
    await asyncio.to_thread(query.drain)
    assert query.epochs[1:] == [{2: ["later", "b", "e"]}]
    await one.close()
    await two.close()
    await asyncio.to_thread(query.drain)
    await asyncio.to_thread(query.drain)
    assert query.epochs[2:] == [{3: ["d"]}]
    assert {row["partition"] for row in query.batches[1]} == {0, 1}
    again = query.replay(query.reader(), *query.offsets[1])
    assert again == query.parts[1], "a batch that is run again has the same rows"


async def test_replay_with_other_partitions(server: Any, topics: Any, js: Any) -> None:
    """The rows of each task are the same, since message ids of a sink contain the task."""
    topic = topics(partitions=2)
    for partition in (0, 1):
        async with await topic.publisher(partition) as publisher:
            for number in range(50):
                await publisher.send(1, [f"{partition}.{number}"])
            await publisher.advance(2)
    query = EpochQuery(server, topic, startingOffsets="earliest", minPartitions=2)
    await asyncio.to_thread(query.drain)
    restarted = EpochQuery(server, topic, startingOffsets="earliest", minPartitions=5, failOnDataLoss=False)
    parts = await asyncio.to_thread(lambda: restarted.replay(restarted.reader(), *query.offsets[0]))
    assert (len(parts), parts) == (2, query.parts[0])
    await (await js.stream(topic.name)).purge(seq=30)
    assert await asyncio.to_thread(lambda: restarted.replay(restarted.reader(), *query.offsets[0])) == [
        [],
        [],
    ]


@pytest.mark.parametrize("mode", ["consumer", pytest.param("direct", marks=pytest.mark.server(">=2.11"))])
async def test_fenced_publishers_send_no_row(server: Any, topics: Any, js: Any, mode: str) -> None:
    topic = topics()
    first = await topic.publisher()
    await first.send(1, ["first"])
    await first.flush()
    async with await topic.publisher(takeover=True) as second:
        await first.send(1, ["fenced"])
        with contextlib.suppress(jsclient.JetStreamError):
            await first.flush()
        await second.send(1, ["second"])
        await second.advance(2)
        query = EpochQuery(server, topic, startingOffsets="earliest", readMode=mode, minPartitions=3)
        await asyncio.to_thread(query.drain)
        assert query.epochs == [{1: ["first", "second"]}]
        assert len(query.parts[0]) == 3
    await first.release()


async def test_latecomer_new_epochs(server: Any, topics: Any) -> None:
    topic = topics(partitions=2)
    one, two = [await topic.publisher(partition) for partition in (0, 1)]
    await one.send(1, ["past"])
    await one.send(2, ["begun"])
    await one.advance(2)
    await two.advance(1)
    query = EpochQuery(server, topic)
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    await two.send(2, ["begun"])
    await one.send(3, ["new"])
    await asyncio.gather(one.advance(4), two.advance(4))
    await asyncio.to_thread(lambda: query.batch(reader, start, query.ask(reader, start)))
    assert query.epochs == [{3: ["new"]}]
    await asyncio.gather(one.release(), two.release())


async def test_query_takes_so_many_epochs_at_time(server: Any, topics: Any) -> None:
    topic = topics()
    async with await topic.publisher() as pub:
        for epoch in range(5):
            await pub.send(epoch, [epoch])
            await pub.send(epoch + 1, [f"early {epoch + 1}"])
            await pub.advance(epoch + 1)
    query = EpochQuery(server, topic, startingOffsets="earliest", maxEpochsPerTrigger=2)
    await asyncio.to_thread(query.drain)
    assert query.epochs == [
        {0: [0], 1: ["early 1", 1]},
        {2: ["early 2", 2], 3: ["early 3", 3]},
        {4: ["early 4", 4]},
    ]
    later = EpochQuery(server, topic, startingEpoch=3, columns=("data", "epoch"))
    await asyncio.to_thread(later.drain)
    assert [{row["epoch"] for row in rows} for rows in later.batches] == [{3, 4}]


async def test_query_waits_for_epoch_to_come(server: Any, topics: Any) -> None:
    topic = topics()
    async with await topic.publisher() as pub:
        query = EpochQuery(server, topic, startingEpoch=2)
        for epoch in range(4):
            await pub.send(epoch, [epoch])
            await pub.advance(epoch + 1)
            await asyncio.to_thread(query.drain)
    assert query.epochs == [{2: [2]}, {3: [3]}]


async def test_topic_of_partition_not_there_yet(server: Any, topics: Any) -> None:
    topic = topics(partitions=2)
    one = await topic.publisher(0)
    await one.send(0, ["a"])
    await one.advance(1)
    query = EpochQuery(server, topic, startingOffsets="earliest")
    await asyncio.to_thread(query.drain)
    assert query.batches == []
    assert await asyncio.to_thread(read_epochs, server, topic) == []
    reader = query.reader()
    query.offsets.append(({}, await asyncio.to_thread(lambda: query.start(reader))))
    query.parts.append([])
    async with await topic.publisher(1) as two:
        await two.advance(1)
    await asyncio.to_thread(query.drain)
    assert query.epochs[1:] == [{0: ["a"]}]
    await one.release()


async def test_times_tuples_json(server: Any, topics: Any) -> None:
    topic = topics(Product(Int(), Int()))
    async with await topic.publisher() as pub:
        for time in ((0, 0), (0, 1), (1, 0), (2, 2)):
            await pub.send(time, [list(time)])
        await pub.update({(0, 0): -1, (0, 1): 1, (2, 0): 1})
        query = EpochQuery(server, topic, startingOffsets="earliest")
        await asyncio.to_thread(query.drain)
        await pub.update({(0, 1): -1, (3, 0): 1, (2, 0): -1})
        await asyncio.to_thread(query.drain)
    assert query.epochs == [
        {"[0,0]": [[0, 0]], "[1,0]": [[1, 0]]},
        {"[0,1]": [[0, 1]], "[2,2]": [[2, 2]]},
    ]


@pytest.mark.covers("L37")
async def test_batch_read_all_whole(server: Any, topics: Any, js: Any) -> None:
    topic = topics()
    async with await topic.publisher() as pub:
        for epoch in range(4):
            await pub.send(epoch, [epoch] * 3)
            await pub.send(epoch, [epoch])
            await pub.advance(epoch + 1)
        await pub.send(4, ["open"])
    rows = await asyncio.to_thread(read_epochs, server, topic)
    assert [row["epoch"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    rows = await asyncio.to_thread(lambda: read_epochs(server, topic, ("epoch",), startingEpoch=2))
    assert [row["epoch"] for row in rows] == [2, 2, 3, 3]
    stream = await js.stream(topic.name)
    every = await asyncio.to_thread(read_epochs, server, topic)
    await stream.purge(seq=end_of(every, 1))
    rows = await asyncio.to_thread(read_epochs, server, topic)
    assert [row["epoch"] for row in rows] == [2, 2, 3, 3], "of epoch 1 a part was removed"
    with pytest.raises(EpochsLostError):
        await asyncio.to_thread(lambda: read_epochs(server, topic, startingEpoch=1))
    rows = await asyncio.to_thread(lambda: read_epochs(server, topic, startingEpoch=1, failOnDataLoss=False))
    assert [row["epoch"] for row in rows] == [2, 2, 3, 3]


def end_of(rows: Any, epoch: int) -> int:
    """The sequence of the last message of an epoch."""
    return max(row["sequence"] for row in rows if row["epoch"] == epoch)


@pytest.mark.covers("L11")
async def test_epochs_removed_before_they_read(server: Any, topics: Any, js: Any) -> None:
    topic = topics()
    async with await topic.publisher() as pub:
        strict = EpochQuery(server, topic, startingOffsets="earliest")
        lax = EpochQuery(server, topic, startingOffsets="earliest", failOnDataLoss=False)
        for epoch in range(4):
            await pub.send(epoch, [epoch])
            await pub.send(epoch, [epoch])
            await pub.advance(epoch + 1)
            if epoch == 0:
                for query in (strict, lax):
                    await asyncio.to_thread(query.drain)
        reader = lax.reader()
        start = lax.start(reader)
        end = await asyncio.to_thread(lax.ask, reader, start)
        tasks = await asyncio.to_thread(reader.partitions, start, end)
        rows = await asyncio.to_thread(read_epochs, server, topic)
        await (await js.stream(topic.name)).purge(seq=end_of(rows, 1))
        with pytest.raises(EpochsLostError):
            await asyncio.to_thread(read_all, lax.reader(), tasks)
        with pytest.raises(EpochsLostError):
            await asyncio.to_thread(strict.drain)
        await asyncio.to_thread(lambda: lax.batch(lax.reader(), start, end))
        await pub.send(4, [4])
        await pub.advance(5)
        await asyncio.to_thread(lax.drain)
    assert lax.epochs == [{0: [0, 0]}, {2: [2, 2], 3: [3, 3]}, {4: [4]}]


async def test_a_topic_that_was_recreated(server: Any, topics: Any, js: Any) -> None:
    topic = topics()
    strict = EpochQuery(server, topic, startingOffsets="earliest")
    lax = EpochQuery(server, topic, startingOffsets="earliest", failOnDataLoss=False)
    async with await topic.publisher() as pub:
        await pub.send(5, ["old"])
        await pub.advance(6)
        for query in (strict, lax):
            await asyncio.to_thread(query.drain)
    await js.delete_stream(topic.name)
    async with await js.epochs(topic.name).publisher() as pub:
        await pub.send(1, ["new"])
        await pub.advance(2)
    with pytest.raises(PositionInvalidError, match="but this is"):
        await asyncio.to_thread(strict.drain)
    await asyncio.to_thread(lax.drain)
    assert [epochs for epochs in lax.epochs if epochs] == [{5: ["old"]}, {1: ["new"]}]


async def test_a_topic_that_is_not_there(server: Any, topics: Any, stream: Any, js: Any) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await asyncio.to_thread(lambda: read_epochs(server, js.epochs("nowhere"), stream=stream.name))
