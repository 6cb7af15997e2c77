"""Topics of epochs as a source, called as Spark calls it: whole epochs, each once, wherever the query was stopped."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.epoch_calls import EpochQuery
from jsclient.epochs import Int


@pytest.fixture
async def topics(request: Any, js: Any) -> Any:
    made: list[Any] = []

    def make(order: Any = Int(), **options: Any) -> Any:  # noqa: B008  it has no state
        name = "es" + "".join(c for c in request.node.name if c.isalnum())[:50] + str(len(made))
        made.append(js.epochs(name, order, **options))
        return made[-1]

    yield make
    for topic in made:
        with contextlib.suppress(jsclient.StreamNotFoundError):
            await js.delete_stream(topic.name)


async def test_epochs_that_are_completed_in_all_partitions_are_given_whole(server: Any, topics: Any) -> None:
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


@pytest.mark.parametrize("mode", ["consumer", "direct"])
async def test_what_fenced_publishers_send_is_no_row(server: Any, topics: Any, js: Any, mode: str) -> None:
    topic = topics()
    first = await topic.publisher()
    await first.send(1, ["first"])
    await first.flush()
    async with await topic.publisher() as second:
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
