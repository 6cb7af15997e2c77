"""Whole epochs, collected from the events of a subscription: one suite for topics in a stream and in this process."""

from __future__ import annotations

import random

import pytest

import jsclient
from jsclient.epochs import Data, EpochPosition, EpochState, Int, Product, memory_epochs
from jsclient.errors import (
    ConfigError,
    RequestTimeoutError,
)
from tests.support.virtual import virtual
from tests.topics.epochs.kit import MemoryTopics, all_of, events
from tests.topics.notifiers.test_iteration import in_virtual_time


class CompletedEpochSuite:
    """The behaviour of every reader of whole epochs."""

    async def test_epochs_once_over_restarts(self, make):
        """Its token is all that the next process has."""
        topic = make(partitions=2)
        chance = random.Random(3)
        pubs = [await topic.publisher(number) for number in range(2)]
        sub = await topic.subscribe()
        token, sent, got = sub.position.to_json(), {}, {}
        await sub.close()
        floor = [1, 1]
        for _ in range(150):
            number = chance.randrange(2)
            time = floor[number] + chance.randint(0, 4)
            if chance.random() < 0.6:
                sent.setdefault(time, []).append(f"{number}:{len(sent.get(time, ()))}")
                await pubs[number].send(time, [sent[time][-1]])
            else:
                floor[number] = time
                await pubs[number].advance(time)
            if chance.random() < 0.05:
                pubs[number] = await topic.publisher(number, takeover=True)
        for pub in pubs:
            await pub.close()
        over = lives = 0
        while not over:
            lives += 1
            position = EpochPosition.from_json(token, topic.order)
            async with await topic.subscribe(start=position) as sub:
                whole, over = sub.completed(max_bytes=chance.choice([1, 20, 10**6])), 1
                async for epoch in whole:
                    assert epoch.time not in got
                    got[epoch.time] = [item async for batch in epoch for item in batch]
                    token = sub.position.to_json()
                    # The process ends here, after it has saved its token.
                    if chance.random() < 0.3:
                        over = 0
                        break
        assert lives > 5
        assert {time: sorted(of) for time, of in got.items()} == {
            time: sorted(of) for time, of in sent.items()
        }
        order = [*got]
        assert order == sorted(order)

    async def test_whole_from_the_start(self, make):
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as sub:
            await pub.send(1, ["a"])
            await pub.flush()
            await events(sub, lambda event: isinstance(event, Data))
            with pytest.raises(ConfigError, match="before that"):
                sub.completed()

    async def test_large_epochs_read_again(self, make):
        topic = make()
        one = await topic.publisher()
        sub = await topic.subscribe()
        await one.send(1, ["a" * 100])
        await one.flush()
        two = await topic.publisher(takeover=True)
        await one.send(1, ["no"])
        await one.flush()
        await two.send(1, ["b" * 100])
        await two.send(2, ["c"])
        await two.advance(3)
        whole = sub.completed(max_bytes=150)
        big = await whole.next(5)
        assert not big.is_kept
        with pytest.raises(ConfigError, match="too large"):
            _ = big.items
        assert [batch async for batch in big] == [["a" * 100], ["b" * 100]]
        small = await whole.next(5)
        assert (small.time, small.items, whole.retained_bytes, whole.open) == (2, ["c"], 0, 0)
        await sub.close()
        for pub in (one, two):
            await pub.release()

    @pytest.mark.covers("S5", "S15", "S16", "S17", "S41")
    async def test_times_in_a_partial_order(self, make):
        """(hour, revision): neither of (3, 1) and (2, 5) is before the other."""
        topic = make(order=Product(Int(), Int()))
        async with await topic.publisher() as pub:
            await pub.send((1, 3), ["missed"])
            await pub.send((2, 1), ["missed"])
            await pub.update({(0, 0): -1, (1, 0): +1})
            sub = await topic.subscribe()
            assert set(sub.filter) == {(1, 3), (2, 1)}
            for time in ((1, 1), (2, 2), (3, 0)):
                await pub.send(time, [list(time)])
            assert pub.state((2, 2)) is EpochState.ACTIVE
            await pub.update([((1, 0), -1), ((2, 2), +1), ((3, 0), +1)])
            await pub.send((3, 2), ["both"])
            await pub.update({(2, 2): -1})
            await pub.close()
            got = [epoch async for epoch in sub.completed()]
            assert [epoch.time for epoch in got] == [(2, 2), (3, 0), (3, 2)]


@pytest.fixture
def make():
    return MemoryTopics()


TestCompletedEpochsInMemory = in_virtual_time(CompletedEpochSuite)


@virtual
async def test_parts_of_epochs_never_called_whole():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        sub = await topic.subscribe(push=None, quiet=1)
        whole = sub.completed()
        await pub.send(4, ["part"])
        with pytest.raises(RequestTimeoutError):
            await whole.next(2)
        assert (whole.open, whole.retained_bytes) == (1, 8)
        for number in range(10):
            await pub.send(4, [number])
        await pub.advance(1)
        for _ in range(17):
            await pub.send(4, ["more"])
        with pytest.raises(jsclient.EpochsLostError):
            await whole.next(5)
        assert (whole.open, whole.retained_bytes) == (0, 0)
        with pytest.raises(RequestTimeoutError):
            await whole.next(2)
        await pub.send(5, ["whole"])
        await pub.close()
        assert await all_of(whole) == {5: ["whole"]}
