"""The publisher of a partition: one suite for topics in a stream and topics in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from jsclient.epochs import EpochState, Int, Product
from jsclient.errors import (
    ConfigError,
    EpochCompletedError,
    ProducerFencedError,
)
from tests.topics.epochs.kit import MemoryTopics, all_of, records
from tests.topics.notifiers.test_iteration import in_virtual_time


class PublisherSuite:
    """The behaviour of every publisher of a partition."""

    @pytest.mark.covers("S6", "S9", "S10", "S20", "S21", "S36")
    async def test_what_a_publisher_may_send(self, make):
        topic = make()
        async with await topic.publisher() as pub:
            await pub.advance(3)
            stored = len(await records(topic))
            await pub.update([(5, 1), (5, -1)])
            await pub.advance(3)
            assert len(await records(topic)) == stored, "nothing of it is to be seen"
            with pytest.raises(EpochCompletedError):
                await pub.send(2, ["x"])
            with pytest.raises(EpochCompletedError):
                await pub.advance(2)
            for wrong in ("4", -1, True, 4.0):
                with pytest.raises(ConfigError):
                    await pub.send(wrong, ["x"])
            with pytest.raises(ConfigError, match="cannot be encoded as JSON"):
                await pub.send(4, [object()])
            assert pub.state(4) is EpochState.LATENT
            await pub.send(4, ["x"])
            assert pub.state(4) is EpochState.ACTIVE
            assert pub.upper.elements == (4,)

    async def test_records_in_call_order(self, make):
        """Also when several tasks send at a time, and no task waits for the acks."""
        topic = make()
        chance = random.Random(7)
        async with await topic.publisher() as pub:

            async def producer(number):
                for count in range(60):
                    with contextlib.suppress(EpochCompletedError):  # the clock was faster
                        await pub.send(max(pub.frontier) + chance.randint(1, 3), [number, count])
                    if chance.random() < 0.2:
                        await asyncio.sleep(0)

            async def clock():
                for _ in range(40):
                    await pub.advance(max(pub.frontier) + 1)

            await asyncio.gather(*map(producer, range(8)), clock())
        lower, upper, sent = 0, -1, 0
        for record in await records(topic):
            if record.subject.endswith(".frontier"):
                said = json.loads(record.data)
                assert said["lower"] >= [lower]
                assert max(said["upper"], default=-1) == upper, "it has all that lies before it, and no more"
                [lower] = said["lower"]
            else:
                time = int(record.headers["Jsc-Epoch"])
                assert time >= lower, "no data lies behind the record that completes it"
                upper, sent = max(upper, time), sent + 1
        assert lower == 40
        assert sent > 100

    async def test_successor_knows_the_past(self, make):
        topic = make()
        first = await topic.publisher()
        await first.send(1, ["a"])
        await first.advance(2)
        sub = await topic.subscribe()
        await first.send(2, ["b"], msg_id="b")
        await first.send(3, ["c"])
        await first._out.flush()  # and now it is gone, without a word
        async with await topic.publisher(takeover=True) as second:
            assert second.frontier.elements == (2,)
            assert [second.state(time) for time in (1, 2, 3, 4)] == [
                EpochState.COMPLETED,
                EpochState.ACTIVE,
                EpochState.ACTIVE,
                EpochState.LATENT,
            ]
            late = await topic.subscribe()
            assert late.filter.elements == (3,)
            await second.send(2, ["b"], msg_id="b")
            await second.send(2, ["more"], msg_id="more")
            await second.send(4, ["d"], msg_id="b")
            await second.close()
        assert await all_of(sub.completed()) == {2: ["b", "more"], 3: ["c"], 4: ["d"]}
        assert await all_of(late.completed()) == {4: ["d"]}
        await first.release()

    async def test_rival_takes_partition(self, make):
        topic = make()
        one = await topic.publisher()
        sub = await topic.subscribe()
        await one.send(1, ["counts"])
        await one.flush()
        two = await topic.publisher(takeover=True)
        await one.send(1, ["too late"], msg_id="same")
        await one.send(2, ["too late"])
        await one.flush()
        with pytest.raises(ProducerFencedError):
            await one.advance(2)
        for call in (one.send(3, ["x"]), one.flush(), one.close(), one.commit_epoch(3, ["x"])):
            with pytest.raises(ProducerFencedError):
                await call
        late = await topic.subscribe()
        await two.send(1, ["mine"], msg_id="same")
        await two.advance(5)
        await two.close()
        assert await all_of(sub.completed()) == {1: ["counts", "mine"]}
        assert sub.refused == 2
        assert await all_of(late.completed()) == {}
        await one.release()

    async def test_epoch_committed_all_or_nothing(self, make):
        topic = make()
        async with await topic.publisher() as pub:
            sub = await topic.subscribe()
            await pub.commit_epoch(3, ["a"], ["b"])
            assert pub.frontier.elements == (4,)
            await pub.commit_epoch(4, ["c"], to=9)
            await pub.commit_epoch(9)
            for time, to in ((3, 12), (10, 10), (11, 10)):
                with pytest.raises((EpochCompletedError, ConfigError)):
                    await pub.commit_epoch(time, ["x"], to=to)
            rival = await topic.publisher(takeover=True)
            stored = len(await records(topic))
            with pytest.raises(ProducerFencedError):
                await pub.commit_epoch(10, ["lost"], ["lost"])
            if pub._out.is_atomic:
                assert len(await records(topic)) == stored
            await rival.commit_epoch(10, ["d"])
            await rival.close()
            assert await all_of(sub.completed()) == {3: ["a", "b"], 4: ["c"], 10: ["d"]}
        partial = make(order=Product(Int(), Int()))
        async with await partial.publisher() as pub:
            with pytest.raises(ConfigError, match="to="):
                await pub.commit_epoch((1, 1), ["x"])
            await pub.commit_epoch((1, 1), ["x"], to=(1, 2))

    async def test_cancelled_advance_goes_on(self, make):
        topic = make()
        async with await topic.publisher() as pub:
            for time in range(1, 20):
                await pub.send(time, [time])
                task = asyncio.ensure_future(pub.advance(time + 1))
                for _ in range(time % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await pub.advance(50)
        lower = [
            json.loads(record.data)["lower"]
            for record in await records(topic)
            if "frontier" in record.subject
        ]
        assert lower == sorted(lower)
        assert lower[-1] == [50]


@pytest.fixture
def make():
    return MemoryTopics()


TestPublishersInMemory = in_virtual_time(PublisherSuite)
