"""Live topics of epochs: no stream, no storage, a queue for each connected subscriber."""

from __future__ import annotations

import asyncio
import json
from time import sleep
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import eventually, within
from jsclient.epochs import Data, EpochState, FrontierUpdate, Int, Product
from jsclient.errors import (
    ClosedError,
    ConfigError,
    EpochCompletedError,
    EpochsLostError,
    RequestTimeoutError,
    TopicMismatchError,
    TopicNotFoundError,
)
from tests.topics.epochs.kit import Picky, all_of, events, frontier_is, items

BEAT = 1.0


@pytest.fixture
async def topic(js: Any, request: Any) -> Any:
    return js.epochs("live." + "".join(c for c in request.node.name if c.isalnum()), partitions=2)


@pytest.fixture
async def pubs(topic: Any) -> Any:
    created = [await topic.live_publisher(number, beat=BEAT) for number in range(2)]
    yield created
    for pub in created:
        await pub.release()


@pytest.mark.covers("S1", "S23", "S34", "S35", "S37", "S38", "S39", "S40")
async def test_queue_begins_with_snapshot(topic: Any, pubs: Any) -> None:
    one, two = pubs
    assert (one.frontier.elements, one.upper.elements) == ((0,), ())
    for number in range(5000):
        await one.send(number % 7, ["nobody hears it"])
    assert (one.subscribers, one._broadcast.longest) == (0, 0)
    assert one.upper.elements == (6,)
    async with await topic.live_subscribe(beat=BEAT) as sub:
        assert one.subscribers == two.subscribers == 1
        assert sub.filter.elements == (6,)
        await one.send(6, ["filtered"])
        await one.send(7, ["a"])
        await two.send(7, ["b"])
        await two.advance(8)
        await one.advance(8)
        got = await events(sub, frontier_is(8))
        assert sorted(items(got)) == [(7, ["a"]), (7, ["b"])]
        assert one.state(7) is EpochState.COMPLETED
        with pytest.raises(EpochCompletedError):
            await one.send(7, ["x"])
    await eventually(lambda: one.subscribers == two.subscribers == 0)


@pytest.mark.covers("S13", "S14", "S18", "S41")
async def test_example_in_the_order_of_the_text(topic: Any, pubs: Any) -> None:
    """Completed 0, 1, 2, active 3 and 5: no data is stored, so it receives 6, 7, 8, and neither 3, 5 nor 4."""
    one, _ = pubs
    for time in (0, 1, 2):
        await one.send(time, [f"{time} before"])
    await one.advance(3)
    for time in (3, 5):
        await one.send(time, [f"{time} before"])
    async with await topic.live_subscribe([0], beat=BEAT) as sub:
        assert (sub.frontier.elements, sub.filter.elements) == ((3,), (5,))
        for time in (6, 3, 4, 7, 5, 8):
            await one.send(time, [f"{time} after"])
        await one.advance(6)
        got = await events(sub, frontier_is(6))
        assert items(got) == [(6, ["6 after"]), (7, ["7 after"]), (8, ["8 after"])]


@pytest.mark.covers("S17", "S28", "S29", "S30", "S31", "S32", "S42", "S43", "S44")
async def test_messages_on_the_wire(js: Any, proxy: Any, connect: Any, request: Any) -> None:
    """One snapshot with both frontiers, then only updates and data. The subscriber's frontier is the publisher's."""
    tap = await proxy()
    order, name = Product(Int(), Int()), "live.onthewire"
    theirs = (await connect(tap)).epochs(name, order)
    async with await js.epochs(name, order).live_publisher(beat=BEAT) as pub:
        for time in ((1, 1), (0, 3), (2, 0), (1, 0)):
            await pub.send(time, ["before"])
        async with await theirs.live_subscribe(beat=BEAT) as sub:
            assert set(sub.filter) == {(1, 1), (0, 3), (2, 0)}
            await pub.send((2, 2), ["a", "b"])
            await pub.update({(0, 0): -1, (0, 2): +1, (2, 0): +1})
            await events(sub, lambda event: isinstance(event, FrontierUpdate) and event.changes[0][1] < 0)
            assert set(sub.frontier) == set(pub.frontier) == {(0, 2), (2, 0)}
            assert set(sub.filter) == {(0, 3), (2, 0)}, "(1, 1) is completed, so it leaves the filter"
            await pub.update({(0, 2): -1})
            await events(sub, lambda event: isinstance(event, FrontierUpdate))
            assert (set(sub.frontier), set(sub.filter)) == ({(2, 0)}, {(2, 0)})
            closing = asyncio.ensure_future(pub.close())
            assert [event async for event in sub][-1].frontier == ()
            await closing
    said = [frame for frame in tap.received() if frame.header("Jsc-Number") not in (None, "0")]
    said = [frame for frame in said if frame.header("Jsc-Live") != "there"]
    kinds = [frame.header("Jsc-Live") for frame in said]
    assert kinds == ["snapshot", "data", "update", "update", "update"]
    assert [frame.header("Jsc-Number") for frame in said] == ["1", "2", "3", "4", "5"]
    bodies = [json.loads(frame.payload) for frame in said]
    assert bodies[0]["lower"] == [[0, 0]]
    assert sorted(bodies[0]["upper"]) == [[0, 3], [1, 1], [2, 0]], "the maximal elements, without (1, 0)"
    assert (json.loads(said[1].header("Jsc-Epoch")), bodies[1]) == ([2, 2], ["a", "b"])
    assert [sorted(body["updates"]) for body in bodies[2:]] == [
        [[[0, 0], -1], [[0, 2], 1], [[2, 0], 1]],
        [[[0, 2], -1]],
        [[[2, 0], -1]],
    ]


@pytest.mark.covers("S24", "S25", "S46", "S52")
async def test_whole_epochs_and_end_when_all_had(topic: Any, pubs: Any) -> None:
    sub = await topic.live_subscribe(beat=BEAT)

    async def publish(number: int) -> None:
        for epoch in range(1, 200):
            for part in range(3):
                await pubs[number].send(epoch, [f"{number}:{part}"])
            await pubs[number].advance(epoch + 1)
        await pubs[number].close()

    async with asyncio.TaskGroup() as group:
        collected = group.create_task(all_of(sub.completed()))
        for number in range(2):
            group.create_task(publish(number))
    got = collected.result()
    assert [*got] == [*range(1, 200)]
    assert all(sorted(of) == ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2"] for of in got.values())
    with pytest.raises(ClosedError):
        await pubs[0].send(500, ["x"])
    with pytest.raises(TopicNotFoundError) as caught:
        await topic.live_subscribe(wait=False, beat=BEAT)
    assert caught.value.partitions == (0, 1)


@pytest.mark.covers("S2", "S40", "S51")
async def test_early_subscriber_waits(topic: Any) -> None:
    with pytest.raises(TopicNotFoundError):
        await topic.live_subscribe(wait=False, beat=BEAT)
    with pytest.raises(RequestTimeoutError):
        await topic.live_subscribe(timeout=0.2, beat=BEAT)
    waiting = asyncio.ensure_future(topic.live_subscribe(beat=BEAT))
    async with await topic.live_publisher(0, beat=BEAT) as one:
        await eventually(lambda: one.subscribers)
        async with await topic.live_publisher(1, beat=BEAT), await within(30, waiting) as sub:
            assert sub.frontier.elements == (0,)


@pytest.mark.covers("S50")
async def test_types_are_compared(js: Any, topic: Any, pubs: Any) -> None:
    for other in (
        js.epochs(topic.name, Product(Int(), Int()), partitions=2),
        js.epochs(topic.name, partitions=2, codec=Picky()),
    ):
        with pytest.raises(TopicMismatchError):
            await other.live_subscribe(beat=BEAT)


async def test_lost_message_new_snapshot(topic: Any, pubs: Any) -> None:
    """One that is lost between others, and one that is the last for now."""
    one = pubs[0]
    sub = await topic.live_subscribe(beat=BEAT)
    whole = sub.completed()
    take = type(one._broadcast).take_messages
    for last in (False, True):
        await one.send(1, ["part"])
        with pytest.raises(RequestTimeoutError):
            await whole.next(0.1)
        lost: list[int] = []

        def losing(self: Any, who: Any, limit: int, lost: list[int] = lost) -> Any:
            got = take(self, who, limit)
            # drop one message on its way, and let the publisher count it as sent
            if got and not lost:
                lost.append(got.pop()[0])
                one._sent[who] = lost[0]
            return got

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(one._broadcast), "take_messages", losing)
            await one.send(1, ["lost"])
            await eventually(lambda lost=lost: lost)
        if not last:
            await one.send(1, ["after it"])
        with pytest.raises(EpochsLostError, match=r"did not come|came after"):
            await whole.next(30)
        await eventually(lambda: all(channel.number for channel in sub._channels.values()))
    with pytest.raises(RequestTimeoutError):
        await whole.next(0.1)
    await one.send(1, ["still not whole"])
    await one.send(2, ["whole"])
    for pub in pubs:
        await pub.advance(5)
    epoch = await whole.next(30)
    assert (epoch.time, epoch.items) == (2, ["whole"])
    await sub.close()


async def test_successor_is_found(topic: Any, pubs: Any) -> None:
    one, two = pubs
    sub = await topic.live_subscribe(beat=BEAT)
    await one.send(1, ["part"])
    await events(sub, lambda event: isinstance(event, Data))
    await one.release()
    with pytest.raises(EpochsLostError) as caught:
        await sub.next(30)
    assert caught.value.epochs == (1,)
    async with await topic.live_publisher(0, beat=BEAT) as again:
        assert isinstance(await sub.next(30), FrontierUpdate)
        await again.send(1, ["all"])
        assert items([await sub.next(30)]) == [(1, ["all"])]
        await sub.close()
        await eventually(lambda: two.subscribers == 0)


async def test_subscribers_gone_forgotten(topic: Any, pubs: Any, js: Any) -> None:
    sub = await topic.live_subscribe(beat=BEAT)
    sub._tending.cancel()  # it says nothing any more
    await eventually(lambda: pubs[0].subscribers == 0)
    await pubs[0].send(1, ["x"])
    assert pubs[0]._broadcast.longest == 0
    await sub.close()


async def test_blocked_loop_is_no_silence(topic: Any) -> None:
    """A program that blocks its event loop sends no heartbeats meanwhile: neither side was silent."""
    async with (
        await topic.live_publisher(0, beat=0.5) as pub,
        await topic.live_subscribe([0], beat=0.5) as sub,
    ):
        sleep(2.5)  # the mistake
        await asyncio.sleep(0.2)
        await pub.send(1, ["a"])
        await pub.advance(2)
        assert items(await events(sub, frontier_is(2))) == [(1, ["a"])]
        assert pub.subscribers == 1


async def test_a_lost_connection_is_a_loss(
    server: Any, proxy: Any, connect: Any, topic: Any, pubs: Any
) -> None:
    near = await proxy()
    js = await connect(near)
    sub = await js.epochs(topic.name, partitions=2).live_subscribe(beat=BEAT)
    await pubs[0].send(1, ["part"])
    await events(sub, lambda event: isinstance(event, Data))
    near.cut()
    with pytest.raises(EpochsLostError):
        await sub.next(10)
    await pubs[0].send(1, ["more"])
    assert isinstance(await sub.next(10), FrontierUpdate)
    assert sub.filter.elements == (1,)
    await pubs[0].send(2, ["whole"])
    assert items([await sub.next(10)]) == [(2, ["whole"])]
    await sub.close()


async def test_too_large_to_be_kept_lost(topic: Any, pubs: Any) -> None:
    sub = await topic.live_subscribe(beat=BEAT)
    whole = sub.completed(max_bytes=10)
    await pubs[0].send(1, ["x" * 100])
    for pub in pubs:
        await pub.advance(2)
    epoch = await whole.next(30)
    with pytest.raises(EpochsLostError, match="too large"):
        async for _ in epoch:
            pass
    await sub.close()


@pytest.mark.covers("S53", "S54")
async def test_makes_no_sense_disturbs_nobody_else(js: Any, topic: Any, pubs: Any, events: Any) -> None:
    sub, other = [await topic.live_subscribe(beat=BEAT) for _ in range(2)]
    for payload, reply in (
        (b"", None),
        (b"{}", None),
        (b'{"v":1,"verb":"connect","order":"int","codec":"json"}', None),
    ):
        await js._connection.publish(f"{topic.name}.0.live", payload, reply=reply or "")
    token = next(iter(sub._by_token))
    await js._connection.publish(f"{sub._prefix}{token}", b"?")
    await eventually(lambda: sub.skipped == 1)
    await pubs[0].send(1, ["a"])
    # data arrives at both in spite of the messages that were skipped
    for one in (sub, other):
        while not isinstance(event := await one.next(30), Data):
            pass
        assert event.items == ["a"]
    await eventually(lambda: pubs[0].refused == 3)
    assert sum(isinstance(one, jsclient.ErrorRaised) for one in events) == 3, (
        "the first of each, and each doubling"
    )
    for one in (sub, other):
        await one.close()


async def test_leaves_nothing_behind(js: Any, server: Any, oracle: Any, topic: Any) -> None:
    await asyncio.gather(js.account_info(), oracle.stream_names())
    async with no_leaks(monitor=server.monitor):
        async with (
            await topic.live_publisher(0, beat=BEAT) as one,
            await topic.live_publisher(1, beat=BEAT),
            await topic.live_subscribe(beat=BEAT),
        ):
            await one.send(1, ["x"])
        with pytest.raises(TopicNotFoundError):
            await topic.live_subscribe(wait=False, beat=BEAT)
    for wrong in (0, -1, "2", True):
        with pytest.raises(ConfigError):
            await topic.live_publisher(0, beat=wrong)
    with pytest.raises(ConfigError):
        await topic.live_publisher(2)
