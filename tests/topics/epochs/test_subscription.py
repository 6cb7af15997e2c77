"""Subscriptions to a topic of epochs: one suite for topics in a stream and topics in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from jsclient.epochs import Data, FrontierUpdate
from jsclient.errors import (
    ClosedError,
    ConfigError,
    PositionInvalidError,
    ProtocolError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from tests.topics.epochs.kit import MemoryTopics, Picky, all_of, events, frontier_is, items
from tests.topics.notifiers.test_iteration import in_virtual_time


def chance_of(token):
    """Some small number."""
    return token.since % 4


class SubscriptionSuite:
    """The behaviour of every subscription."""

    @pytest.mark.covers("S2", "S3", "S4", "S13", "S14", "S18", "S22", "S23", "S24", "S25", "S41")
    async def test_joiner_sees_latent(self, make):
        """The example of the text: completed 0, 1, 2, active 3 and 5. It sees 6, 7, 8, and neither 3, 5 nor 4."""
        topic = make()
        async with await topic.publisher() as pub:
            for time in (0, 1, 2, 3, 5):
                await pub.send(time, [f"{time} before"])
            await pub.advance(3)
            async with await topic.subscribe() as sub:
                assert (sub.frontier.elements, sub.filter.elements) == ((3,), (5,))
                for time in (6, 3, 4, 7, 5, 8):
                    await pub.send(time, [f"{time} after"])
                await pub.advance(6)
                got = await events(sub, frontier_is(6))
                assert items(got) == [(6, ["6 after"]), (7, ["7 after"]), (8, ["8 after"])]
                assert [event for event in got if isinstance(event, FrontierUpdate)] == [
                    FrontierUpdate(((3, 1),), (3,)),
                    FrontierUpdate(((3, -1), (6, 1)), (6,)),
                ]
                assert not sub.filter

    @pytest.mark.covers("S4", "S14")
    async def test_joiner_sees_whole_epochs_of_the_history(self, make):
        """The example in the order of the text: 3 and 5 begin after the last frontier record, and are stored whole."""
        topic = make()
        async with topic.publisher() as pub:
            for time in (0, 1, 2):
                await pub.send(time, [f"{time} before"])
            await pub.advance(3)
            for time in (3, 5):
                await pub.send(time, [f"{time} before"])
            await pub.flush()
            async with topic.subscribe() as sub:
                assert (sub.frontier.elements, sub.filter.elements) == ((3,), ())
                for time in (6, 3, 4, 7, 5, 8):
                    await pub.send(time, [f"{time} after"])
                await pub.close()
                assert await all_of(sub.completed()) == {
                    3: ["3 before", "3 after"],
                    4: ["4 after"],
                    5: ["5 before", "5 after"],
                    **{time: [f"{time} after"] for time in (6, 7, 8)},
                }

    @pytest.mark.covers("S42", "S43", "S44", "S49")
    async def test_frontier_of_subscriber_follows(self, make):
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as sub:
            await pub.advance(2)
            await pub.send(4, ["x"])
            await pub.advance(5)
            got = await events(sub, frontier_is(5))
            assert [type(event) for event in got] == [FrontierUpdate, FrontierUpdate, Data, FrontierUpdate]
            match got[2]:
                case Data(time, batch):
                    assert (time, batch) == (4, ["x"])
            assert sub.frontier.elements == (5,)
            assert (sub.is_completed(4), sub.is_completed(5)) == (True, False)
            assert 0 <= sub.frontier_age < 60

    @pytest.mark.covers("S26", "S27")
    async def test_a_coarser_filter_and_none(self, make):
        topic = make()
        async with await topic.publisher() as pub:
            await pub.send(5, ["missed"])
            await pub.advance(1)
            async with (
                await topic.subscribe(filter=[7]) as coarse,
                await topic.subscribe(filter=None) as all_that_comes,
            ):
                for time in (5, 6, 7, 8):
                    await pub.send(time, [str(time)])
                await pub.advance(9)
                assert items(await events(coarse, frontier_is(9))) == [(8, ["8"])]
                got = await events(all_that_comes, frontier_is(9))
                assert items(got) == [(5, ["5"]), (6, ["6"]), (7, ["7"]), (8, ["8"])]
                assert [event.whole for event in got if isinstance(event, Data)] == [False, True, True, True]

    @pytest.mark.covers("S33")
    async def test_dropped_never_decoded(self, make):
        topic = make(codec=Picky())
        async with await topic.publisher() as pub:
            await pub.send(1, "x")
            await pub.advance(1)
            async with await topic.subscribe() as sub:
                await pub.send(1, "bad")
                await pub.send(2, "good")
                await pub.send(3, "bad")
                await pub.flush()
                assert items([await sub.next(5), await sub.next(5)]) == [(2, "good")]
                for _ in range(2):
                    with pytest.raises(ProtocolError, match=r"epoch 3 .* cannot be decoded: it is bad"):
                        await sub.next(5)
            await pub.advance(4)

    async def test_cancelled_read_loses_nothing(self, make):
        topic = make()
        sub = None
        async with await topic.publisher() as pub:
            sub = await topic.subscribe()
            got = []
            for time in range(1, 30):
                with contextlib.suppress(RequestTimeoutError):
                    while True:
                        got.append(await sub.next(0.001))
                reading = asyncio.ensure_future(sub.next())
                for _ in range(time % 5):
                    await asyncio.sleep(0)
                await pub.send(time, [time])
                await pub.flush()
                reading.cancel()
                got += [
                    one
                    for one in await asyncio.gather(reading, return_exceptions=True)
                    if isinstance(one, Data)
                ]
            await pub.close()
        got += [event async for event in sub]
        assert [time for time, _ in items(got)] == [*range(1, 30)]

    async def test_events_go_on_where_token_says(self, make):
        """Of what is not completed all comes again."""
        topic = make()
        async with await topic.publisher() as pub:
            sub = await topic.subscribe()
            for time in (1, 3, 2, 3, 4):
                await pub.send(time, [time])
            await pub.advance(3)
            await pub.send(5, [5])
            await pub.close()
            counts = Counter()
            token = sub.position
            for _ in range(12):
                await sub.close()
                sub = await topic.subscribe(start=token)
                # Stop after a few events, and continue from the token as another process would.
                for _ in range(chance_of(token)):
                    try:
                        event = await sub.next(5)
                    except ClosedError:
                        break
                    if isinstance(event, Data):
                        counts[event.time] += 1
                token = sub.position
            remainder = [event.time async for event in sub if isinstance(event, Data)]
            assert set(remainder) | set(counts) == {1, 2, 3, 4, 5}
            await sub.close()

    async def test_unsuitable_position_is_refused(self, make):
        topic, other = make(partitions=2), make(partitions=2)
        for each in (topic, other):
            for number in range(2):
                await (await each.publisher(number)).release()
        sub, one, else_where = [
            await of.subscribe(which) for of, which in ((topic, None), (topic, [1]), (other, None))
        ]
        with pytest.raises(ConfigError, match="partitions"):
            await topic.subscribe(start=one.position)
        with pytest.raises(PositionInvalidError):
            await topic.subscribe(start=else_where.position)
        with pytest.raises(ConfigError, match="EpochPosition"):
            await topic.subscribe(start="{}")
        for each in (sub, one, else_where):
            await each.close()

    @pytest.mark.covers("S51")
    async def test_subscriber_waits_for_topic(self, make):
        topic = make(partitions=2)
        with pytest.raises(TopicNotFoundError) as caught:
            await topic.subscribe(wait=False)
        assert caught.value.partitions == ()
        with pytest.raises(RequestTimeoutError):
            await topic.subscribe(timeout=0.1)
        waiting = asyncio.ensure_future(topic.subscribe(timeout=20))
        one = await topic.publisher(0)
        with pytest.raises(TopicNotFoundError) as caught:
            await topic.subscribe(wait=False)
        assert caught.value.partitions == (1,)
        two = await topic.publisher(1)
        sub = await waiting
        assert sub.frontier.elements == (0,)
        await sub.close()
        for pub in (one, two):
            await pub.release()

    @pytest.mark.covers("S53")
    async def test_subscribers_error_stops_nobody_else(self, make):
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as good:
            bad = await topic.subscribe()

            async def fail():
                async for event in bad:
                    if isinstance(event, Data):
                        raise ZeroDivisionError

            failing = asyncio.ensure_future(fail())
            await pub.send(1, ["a"])
            await pub.flush()
            with pytest.raises(ZeroDivisionError):
                await failing
            await pub.send(2, ["b"])
            await pub.advance(3)
            assert items(await events(good, frontier_is(3))) == [(1, ["a"]), (2, ["b"])]
            await bad.close()

    async def test_no_publisher_sent_passed_over(self, make):
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as sub:
            log = topic._home.log()
            for headers in ({}, {"Jsc-Epoch": "7"}, {"Jsc-Epoch": "x", "Jsc-Producer": "me"}):
                await log.append(b"[]", subject=f"{topic.name}.0.data", headers=headers)
            await pub.send(1, ["a"])
            await pub.advance(2)
            assert items(await events(sub, frontier_is(2))) == [(1, ["a"])]
            assert sub.refused == 3

    @pytest.mark.covers("S54")
    async def test_invalid_records_are_skipped(self, make):
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as sub:
            await sub.next(5)
            await pub.advance(1)
            mine, log = {"Jsc-Producer": pub._producer}, topic._home.log()
            for suffix, data, headers in (
                ("data", b"[]", {"Jsc-Epoch": "x", **mine}),
                ("data", b"[]", {"Jsc-Epoch": "0", **mine}),
                ("frontier", b"?", {}),
                ("frontier", b"?", {"Jsc-Kind": "frontier", **mine}),
                (
                    "frontier",
                    (await log.history(0, 1, 10_000)).records[0].data,
                    {"Jsc-Kind": "frontier", **mine},
                ),
            ):
                await log.append(data, subject=f"{topic.name}.0.{suffix}", headers=headers)
            await pub.send(1, ["a"])
            await pub.advance(2)
            assert items(await events(sub, frontier_is(2))) == [(1, ["a"])]
            assert (sub.skipped, sub.refused) == (5, 0)
            async with await topic.publisher(takeover=True) as other:
                assert other.frontier.elements == (2,)

    async def test_frontiers_never_go_back(self, make):
        """A record that the server checked, by a producer that knows an older frontier."""
        topic = make()
        async with await topic.publisher() as pub, await topic.subscribe() as sub:
            await pub.advance(5)
            log, subject = topic._home.log(), f"{topic.name}.0.frontier"
            first, last = (await log.history(0, 1, 10_000)).records[0], await log.last(subject)
            await log.append(
                first.data,
                subject=subject,
                kind=first.kind,
                headers={"Jsc-Producer": "other"},
                expected=last.seq,
            )
            assert [event.frontier for event in await events(sub, frontier_is(5))] == [(0,), (5,)]
            with pytest.raises(RequestTimeoutError):
                await sub.next(0.1)
            assert (sub.skipped, sub.frontier.elements) == (1, (5,))


@pytest.fixture
def make():
    return MemoryTopics()


TestSubscriptionsInMemory = in_virtual_time(SubscriptionSuite)
