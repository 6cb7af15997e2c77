"""Topics of epochs: one suite for topics in a stream and topics in this process."""

from __future__ import annotations

import pytest

from jsclient.epochs import FrontierUpdate, memory_epochs
from jsclient.errors import (
    ClosedError,
    ConfigError,
    EpochCompletedError,
    InvalidNameError,
)
from tests.support.virtual import virtual
from tests.topics.epochs.kit import MemoryTopics, all_of, items, records
from tests.topics.notifiers.test_iteration import in_virtual_time


class TopicSuite:
    """The behaviour of every topic of epochs."""

    @pytest.mark.covers("S40", "S45", "S46", "S47", "S48")
    async def test_several_partitions_are_one(self, make):
        topic = make(partitions=3)
        pubs = [await topic.publisher(number) for number in range(3)]
        for number, pub in enumerate(pubs):
            await pub.send(number, [f"missed {number}"])
            await pub.advance(number)
        sub = await topic.subscribe()
        assert sub.frontier.elements == (0,)
        assert sub.filter.elements == (2,)
        whole = sub.completed()
        for time in (1, 2, 3):
            for number, pub in enumerate(pubs):
                # the publisher has completed the times before its number
                if time >= number:
                    await pub.send(time, [f"{number}:{time}"])
        for pub in pubs:
            await pub.close()
        got = await all_of(whole)
        assert {time: sorted(of) for time, of in got.items()} == {
            3: ["0:3", "1:3", "2:3"],
        }
        assert [record.subject.split(".")[-2] for record in await records(topic)][:3] == ["0", "1", "2"]
        some = await topic.subscribe([2, 1])
        assert some.partitions == (2, 1)
        await some.close()

    @pytest.mark.covers("S52")
    async def test_empty_frontier_end_after_all_read(self, make):
        topic = make(partitions=2)
        one, two = await topic.publisher(0), await topic.publisher(1)
        sub = await topic.subscribe()
        await one.send(1, ["a"])
        await one.close()
        await two.send(7, ["b"])
        await two.close()
        got = [event async for event in sub]
        assert items(got) == [(1, ["a"]), (7, ["b"])]
        assert not sub.frontier
        with pytest.raises(ClosedError):
            await sub.next(5)
        late = await topic.subscribe()
        assert [type(event) async for event in late] == [FrontierUpdate], (
            "for who comes later there is nothing"
        )
        with pytest.raises(ClosedError):
            await one.send(9, ["c"])
        async with await topic.publisher(0) as again:
            with pytest.raises(EpochCompletedError):
                await again.send(9, ["c"])


@pytest.fixture
def make():
    return MemoryTopics()


TestTopicsInMemory = in_virtual_time(TopicSuite)


@virtual
async def test_names_and_numbers_cannot_be():
    for wrong in ("", "a b", "a.*", "a.>", "x" * 300):
        with pytest.raises(InvalidNameError):
            memory_epochs(wrong)
    for wrong in (0, -1, True, "3", 5000):
        with pytest.raises(ConfigError):
            memory_epochs("t", partitions=wrong)
    topic = memory_epochs("t", partitions=2)
    for wrong in (2, -1, True, "0"):
        with pytest.raises(ConfigError):
            await topic.publisher(wrong)
    pubs = [await topic.publisher(number) for number in range(2)]
    with pytest.raises(ConfigError):
        await topic.subscribe([])
    with pytest.raises(ConfigError):
        await topic.subscribe(["0"])
    with pytest.raises(ConfigError):
        await topic.subscribe(filter=["x"])
    with pytest.raises(ConfigError):
        await pubs[0].send(1, [], msg_id="")
    with pytest.raises(ConfigError):
        await topic.create(max_age=5)
