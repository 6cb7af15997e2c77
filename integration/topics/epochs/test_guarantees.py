"""The promises of readers of epochs: their cells of docs/guarantee-table.md."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.kit.judge.waiting import eventually, within
from jsclient.epochs import EpochPosition

PARTITIONS = 2


@pytest.fixture
async def topic(request: Any, js: Any) -> Any:
    """A topic of epochs of two partitions, in a separate stream."""
    name = "guarantee." + "".join(c for c in request.node.name if c.isalnum())[:60]
    topic = js.topic(name).epochs(partitions=PARTITIONS)
    await topic.create(storage="memory", allow_direct=True)
    yield topic
    await js.delete_stream(name.replace(".", "_"))


def stream_of(topic: Any) -> str:
    return str(topic.name).replace(".", "_")


async def publish(topic: Any, epochs: range, *, open_end: bool = True) -> None:
    """Two batches of each partition for each epoch, the partitions one after the other."""
    pubs = [await topic.publisher(number) for number in range(PARTITIONS)]
    for epoch in epochs:
        for number, pub in enumerate(pubs):
            await pub.send(epoch, [f"{epoch}.{number}.a"])
            await pub.send(epoch, [f"{epoch}.{number}.b"])
    for pub in pubs:
        await pub.advance(epochs.stop)
        await (pub.release() if open_end else pub.close())


def whole(epoch: int) -> list[str]:
    return [f"{epoch}.{number}.{part}" for number in range(PARTITIONS) for part in "ab"]


async def read(completed: Any, count: int) -> dict[int, list[str]]:
    async def some() -> dict[int, list[str]]:
        epochs = [await completed.next() for _ in range(count)]
        return {epoch.time: sorted(epoch.items) for epoch in epochs}

    return await within(20, some(), f"{count} epochs")


@pytest.mark.guarantee("epochs.sees", "epochs.ends")
async def test_all_or_nothing_then_end(js: Any, topic: Any) -> None:
    one, other = [await topic.publisher(number) for number in range(PARTITIONS)]
    await one.send(1, ["begun before anybody looked"])
    await one.advance(1)  # messages sent since the last frontier record would be seen
    async with await topic.subscribe() as sub:
        for pub in (one, other):
            await pub.release()
        await publish(topic, range(1, 4), open_end=False)
        got = {epoch.time: sorted(epoch.items) async for epoch in sub.completed()}
    assert got == {2: whole(2), 3: whole(3)}
    assert not sub.frontier.elements


@pytest.mark.guarantee("epochs.slow")
async def test_slow_reader_gets_all(js: Any, topic: Any) -> None:
    await publish(topic, range(1))
    async with await topic.subscribe() as slow, await topic.subscribe() as quick:
        await publish(topic, range(1, 60))
        assert await read(quick.completed(), 59) == {n: whole(n) for n in range(1, 60)}
        assert await read(slow.completed(), 59) == {n: whole(n) for n in range(1, 60)}


@pytest.mark.guarantee("epochs.lost")
async def test_lost_connection_no_part(js: Any, topic: Any, connect: Any, proxy: Any) -> None:
    await publish(topic, range(1))
    near = await proxy()
    far = (await connect(near)).topic(topic.name).epochs()
    async with await far.subscribe(quiet=0.5) as sub:
        completed = sub.completed()
        for first in range(1, 9, 2):
            near.cut()
            await publish(topic, range(first, first + 2))
            assert await read(completed, 2) == {n: whole(n) for n in (first, first + 1)}


@pytest.mark.guarantee("epochs.resumes")
async def test_position_all_must_be_kept(js: Any, topic: Any, connect: Any, server: Any) -> None:
    await publish(topic, range(1))
    async with await topic.subscribe() as sub:
        token = sub.position.to_json()
    await publish(topic, range(1, 13))
    got: dict[int, list[str]] = {}
    for _ in range(4):
        mine = await connect(server)
        position = EpochPosition.from_json(token, topic.order)
        async with await mine.topic(topic.name).epochs().subscribe(start=position) as sub:
            completed = sub.completed()
            got |= await read(completed, 3)
            token = sub.position.to_json()
        await mine.close()
    assert got == {n: whole(n) for n in range(1, 13)}


@pytest.mark.guarantee("epochs.gone")
async def test_lost_parts_are_error(js: Any, topic: Any) -> None:
    await publish(topic, range(1))
    async with await topic.subscribe() as sub:
        position = sub.position
    one, other = [await topic.publisher(number) for number in range(PARTITIONS)]
    await one.send(2, ["a part"])
    await one.flush()
    stream = await js.stream(stream_of(topic))
    last = (await stream.info()).state.last_seq
    for pub in (one, other):
        await pub.advance(2)
    await one.send(2, ["another part"])
    await stream.purge(seq=last + 1)
    async with await topic.subscribe(start=position) as sub:
        completed = sub.completed()
        with pytest.raises(jsclient.EpochsLostError):
            await within(10, completed.next(), "the error")
        for pub in (one, other):
            await pub.send(3, [f"3.{pub.partition}.a", f"3.{pub.partition}.b"])
            await pub.advance(4)
        assert await read(completed, 1) == {3: whole(3)}, "not the part of epoch 2 that is there"
    for pub in (one, other):
        await pub.release()


@pytest.mark.guarantee("epochs.state")
async def test_server_keeps_of_reader_of_epochs(js: Any, topic: Any, oracle: Any) -> None:
    await publish(topic, range(1))
    republishes = (await js.stream(stream_of(topic))).config.republish is not None
    async with await topic.subscribe() as sub:
        await publish(topic, range(1, 2))
        await read(sub.completed(), 1)
        names = await oracle.consumer_names(stream_of(topic))
        assert len(names) <= (0 if republishes else 1)

    async def is_removed() -> bool:
        return not await oracle.consumer_names(stream_of(topic))

    await eventually(is_removed, what="its consumer is removed")
