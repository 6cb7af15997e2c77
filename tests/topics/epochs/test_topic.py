"""Topics of epochs: one suite for those in a stream and those in this process.

`EpochSuite` says what each must do. It gets ``make``, which makes topics, and is run here on topics in memory, in
virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter

import pytest

import jsclient
from jsclient.epochs import Data, EpochPosition, EpochState, FrontierUpdate, Int, Product, memory_epochs
from jsclient.errors import (
    ClosedError,
    ConfigError,
    EpochCompletedError,
    InvalidNameError,
    PositionInvalidError,
    ProducerFencedError,
    ProtocolError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from tests.support.virtual import virtual
from tests.topics.notifiers.test_iteration import in_virtual_time


async def records(topic):
    """All that lies in a topic, as it lies there."""
    results, since = [], 0
    while page := (await topic._home.log().history(since, 1000, 10**8)).records:
        results += page
        since = page[-1].seq
    return results


async def events(sub, until):
    """Events up to the first for which that is so, included."""
    got = []
    while not got or not until(got[-1]):
        got.append(await sub.next(5))
    return got


def frontier_is(*times):
    return lambda event: isinstance(event, FrontierUpdate) and set(event.frontier) == set(times)


def items(events):
    return [(event.time, event.items) for event in events if isinstance(event, Data)]


async def all_of(epochs):
    return {epoch.time: [item async for batch in epoch for item in batch] async for epoch in epochs}


class Picky:
    """A codec of text that cannot decode "bad"."""

    name = "picky"

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        if data == b"bad":
            raise ValueError("it is bad")
        return data.decode()


class EpochSuite:
    """What every topic of epochs does."""

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
        """Also when several tasks send at a time, and nobody waits for what was sent."""
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

    async def test_came_between_look_and_take_counts(self, make):
        """The first record of who takes over says up to where it has looked: as a snapshot it is as of there."""
        topic = make()
        one = await topic.publisher()
        await one.send(1, ["a"])
        await one.flush()
        out = topic._home.outlet(0, max_in_flight=10, timeout=None)
        write, sent = type(out).record, []

        async def record(self, *arguments):
            if not sent:
                sent.append(1)
                await one.send(2, ["b"])
                await one.flush()
            return await write(self, *arguments)

        type(out).record = record
        try:
            two = await topic.publisher(takeover=True)
        finally:
            type(out).record = write
        assert two.upper.elements == (2,), "it knows of that, too"
        sub = await topic.subscribe()
        assert sub.filter.elements == (1,)
        third = await topic.publisher(takeover=True)
        late = await topic.subscribe()
        assert third.upper.elements == late.filter.elements == (2,)
        await third.send(3, ["c"])
        await third.close()
        assert await all_of(sub.completed()) == {2: ["b"], 3: ["c"]}
        assert await all_of(late.completed()) == {3: ["c"]}
        for pub in (one, two):
            await pub.release()
        await out.close()

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
                    if chance.random() < 0.3:
                        over = 0
                        break
        assert lives > 5
        assert {time: sorted(of) for time, of in got.items()} == {
            time: sorted(of) for time, of in sent.items()
        }
        order = [*got]
        assert order == sorted(order)

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

    async def test_no_place_for_refused(self, make):
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

    async def test_latecomer_from_oldest(self, make):
        topic = make(partitions=2)
        for number in range(2):
            pub = await topic.publisher(number)
            for epoch in (1, 2, 3):
                await pub.send(epoch, [f"{number}:{epoch}"])
                await pub.advance(epoch + 1)
            await pub.release()
        pubs = [await topic.publisher(number) for number in range(2)]
        sub = await topic.subscribe(start="first")
        for pub in pubs:
            await pub.send(4, [f"{pub.partition}:4"])
            await pub.close()
        got = await all_of(sub.completed())
        assert {time: sorted(of) for time, of in got.items()} == {
            n: [f"0:{n}", f"1:{n}"] for n in (1, 2, 3, 4)
        }
        with pytest.raises(ConfigError):
            await topic.subscribe(start="last")

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


def chance_of(token):
    """Some small number."""
    return token.since % 4


class _Memory:
    def __init__(self):
        self.count = 0

    def __call__(self, order=None, **options):
        self.count += 1
        return memory_epochs(f"topic.{self.count}", order, **options)


@pytest.fixture
def make():
    return _Memory()


TestMemory = in_virtual_time(EpochSuite)


@virtual
async def test_passed_window_reported():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        async with await topic.subscribe() as before:
            await pub.send(1, ["part"])
            await pub.flush()
            assert items([await before.next(5), await before.next(5)]) == [(1, ["part"])]
            old = before.position
        for number in range(10):
            await pub.send(1, [number])
        await pub.advance(2)
        for number in range(10):
            await pub.send(2, [number])
        sub = await topic.subscribe(start=old)
        whole = sub.completed()
        with pytest.raises(jsclient.EpochsLostError):
            await whole.next(5)
        assert sub.filter.elements == ()
        await pub.advance(3)
        epoch = await whole.next(5)
        assert (epoch.time, len(epoch.items)) == (2, 10)
        await sub.close()


@virtual
async def test_stalled_reader_is_reported():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        sub = await topic.subscribe(push=None, quiet=1)
        await pub.send(1, ["part"])
        await pub.send(2, ["part"])
        assert items([await sub.next(5) for _ in range(3)]) == [(1, ["part"]), (2, ["part"])]
        for number in range(10):
            await pub.send(1, [number])
        await pub.advance(3)
        for number in range(17):
            await pub.send(3, [number])
        lost_at = sub.position
        with pytest.raises(jsclient.EpochsLostError) as caught:
            await sub.next(5)
        assert caught.value.epochs == (1, 2)
        assert sub.position == lost_at, "until it has new snapshots"
        assert await sub.next(5) == FrontierUpdate(((3, 1),), (3,))
        assert sub.position != lost_at
        await pub.advance(4)
        assert len(items(await events(sub, frontier_is(4)))) == 17
        await sub.close()


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


@virtual
async def test_publisher_does_not_guess():
    log = jsclient.topics.memory_log.MemoryLog("t.>", max_records=20)
    topic = memory_epochs("t", log=log)
    async with await topic.publisher() as pub:
        for number in range(30):
            await log.append(b"", subject="t.other", msg_id=str(number))
        for _ in range(2):
            with pytest.raises(jsclient.HistoryTruncatedError):
                await pub.advance(3)
    with pytest.raises(jsclient.HistoryTruncatedError):
        await topic.publisher()
    async with await topic.publisher(start=9) as pub:
        assert pub.frontier.elements == (9,)


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
