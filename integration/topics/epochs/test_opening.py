"""Opening topics of epochs: empty streams, cancellations, elections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import eventually, never, within
from jsclient.epochs import Int, Product
from jsclient.errors import EpochsLostError
from jsclient.events import PartitionsMissing
from tests.topics.epochs.kit import all_of


async def cancelled_twice_after(turns: int, call: Callable[[], Awaitable[Any]]) -> Any:
    """Its result if it was done by then. Otherwise it is cancelled, and cancelled again in the next turn."""
    task = asyncio.ensure_future(call())
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    for _ in range(turns % 3):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("state", ["new", "purged", "other records"])
async def test_first_on_an_empty_topic_waits(js: Any, oracle: Any, make_stream: Any, state: str) -> None:
    stream = await make_stream()
    if state != "new":
        await stream.publish(5)
    if state == "purged":
        await (await js.stream(stream.name)).purge()
    topic = js.epochs(f"{stream.name}.t", stream=stream.name, partitions=2)
    await topic.create()
    opening = asyncio.ensure_future(topic.subscribe(start="first"))
    await never(opening.done, 0.3, "a subscription to nothing")
    for number in range(2):
        async with topic.publisher(number, start=0) as pub:
            await pub.send(3, [number])
            await pub.close()
    async with await within(10, opening, "the subscription") as sub:
        assert await within(10, all_of(sub.completed()), "the end") == {3: [0, 1]}


@pytest.mark.parametrize("kind", ["stored", "stored, by age", "live"])
async def test_opening_cancelled_twice_leaves_nothing(own_server: Any, connect: Any, kind: str) -> None:
    server = await own_server()
    js = await connect(server.url)
    topic = js.epochs("cancelled")
    await topic.create(max_age=60.0 if kind == "stored, by age" else 0.0)

    async def opened() -> Any:
        if kind == "live":
            return await topic.live_publisher(takeover=True)
        return await topic.publisher(takeover=True)

    async def used() -> None:
        async with await opened() as pub:
            await pub.send(1, ["x"])

    await used()
    before = set(js._context.open)
    async with no_leaks(monitor=server.monitor, settle=8):
        for turns in [*range(40), *range(40, 400, 30)]:
            publisher = await cancelled_twice_after(turns, opened)
            if publisher is not None:
                await publisher.release()
            await cancelled_twice_after(turns, used)
        await eventually(lambda: js._context.open == before, 8, "what was opened is closed")


async def test_leaving_cancelled_twice_leaves_nothing(own_server: Any, connect: Any) -> None:
    """The block of a publisher is cancelled while the server does not answer, and cancelled again while it is left."""
    server = await own_server()
    js = await connect(server.url, timeout=60.0)
    topic = js.epochs("cancelled")
    await (await topic.publisher()).release()
    before = set(js._context.open)

    async def used() -> None:
        async with topic.publisher() as pub:
            await pub.send(1, ["x"])
            await pub.flush()
            server.pause()
            await pub.send(1, ["y"])
            await pub.advance(2)

    async with no_leaks(monitor=server.monitor, settle=8):
        using = asyncio.ensure_future(used())
        for _ in range(2):
            await asyncio.sleep(0.5)  # first it waits for an answer, then for the end of the block
            using.cancel()
        await asyncio.wait([using], timeout=20)  # not the 60 s of a request
        assert using.cancelled()
        server.resume()
        await eventually(lambda: js._context.open == before, 8, "the publisher is closed")


async def reported(events: list[Any], *partitions: int) -> Any:
    """The newest `PartitionsMissing` that names these partitions."""

    def reported_events() -> list[Any]:
        missing = [one for one in events if isinstance(one, PartitionsMissing)]
        return [one for one in missing if one.waited > 0.1 and one.partitions == partitions]

    return (await eventually(reported_events, what=f"the event about {partitions}"))[-1]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is reported after 0.1 s."""
    monkeypatch.setattr("jsclient.topics.epochs.history._FIRST_REPORT", 0.1)


@pytest.mark.usefixtures("soon")
async def test_long_wait_reported(js: Any, events: list[Any], oracle: Any, make_stream: Any) -> None:
    stream = await make_stream()
    topic = js.epochs(f"{stream.name}.t", stream=stream.name, partitions=2)
    misspelled = js.epochs(f"{stream.name}.u", stream=stream.name)
    opening = asyncio.ensure_future(misspelled.subscribe())
    event = await reported(events)
    assert str(event).endswith(
        f" s for topic {misspelled.name!r}: no publisher has written there yet, or its records were removed; "
        "opening with wait=False or timeout= raises an error instead"
    )
    assert event.severity == "warning"
    opening.cancel()
    opening = asyncio.ensure_future(topic.subscribe())
    assert (await reported(events, 0, 1)).topic == topic.name
    async with topic.publisher(0):
        assert f"for partitions [1] of topic {topic.name!r}: no publisher" in str(await reported(events, 1))
        async with topic.publisher(1):
            await (await within(10, opening, "the subscription")).close()


@pytest.mark.usefixtures("soon")
async def test_long_wait_for_live_publishers_reported(js: Any, events: list[Any]) -> None:
    """While it opens, and after a publisher has gone. Not while all publishers are connected."""
    topic = js.epochs("live.waited", partitions=2)
    opening = asyncio.ensure_future(topic.live_subscribe(beat=0.2))
    assert str(await reported(events, 0, 1)).endswith(
        " s for partitions [0, 1] of topic 'live.waited': no live publisher answers; "
        "opening with wait=False or timeout= raises an error instead"
    )
    async with await topic.live_publisher(0, beat=0.2) as first:
        await reported(events, 1)
        second = await topic.live_publisher(1, beat=0.2)
        async with await within(10, opening, "the subscription") as sub:
            events.clear()
            await second.advance(1)
            await first.advance(1)
            while 1 not in sub.frontier.elements:
                await sub.next(timeout=10)
            assert events == []
            await second.release()
            with pytest.raises(EpochsLostError):
                await sub.next(timeout=10)
            await reported(events, 1)


@pytest.mark.usefixtures("soon")
async def test_long_wait_without_a_server_reported(own_server: Any, connect: Any, events: list[Any]) -> None:
    server = await own_server()
    js = await connect(server, reconnect_time_wait=0.05)
    await server.kill()
    await eventually(lambda: not js.is_connected, 10, "the end of the connection")
    opening = asyncio.ensure_future(js.epochs("live.away").live_subscribe(beat=0.2))
    assert "for partitions [0] of topic 'live.away': not connected" in str(await reported(events, 0))
    await server.start()
    await eventually(lambda: js.is_connected, 20, "the reconnect")
    async with await js.epochs("live.away").live_publisher(beat=0.2):
        await (await within(10, opening, "the subscription")).close()


@pytest.mark.usefixtures("soon")
async def test_reported_wait_begins_with_the_last_missing_partition(js: Any, events: list[Any]) -> None:
    topic = js.epochs("live.left", partitions=2)
    opening = asyncio.ensure_future(topic.live_subscribe(beat=0.2))
    second = await topic.live_publisher(1, beat=0.2)
    await eventually(
        lambda: any(one.waited > 0.7 for one in events if one.partitions == (0,)), 10, "a long wait"
    )
    remaining = asyncio.get_running_loop().time()
    events.clear()
    await second.release()
    event = await reported(events, 0, 1)
    opening.cancel()
    assert event.waited <= asyncio.get_running_loop().time() - remaining


@pytest.mark.usefixtures("soon")
async def test_reported_wait_of_an_open_subscription(js: Any, events: list[Any]) -> None:
    """No option of opening avoids it. A publisher with another order exists, though none of this topic."""
    topic = js.epochs("live.later")
    first = await topic.live_publisher(beat=0.2)
    async with await within(10, topic.live_subscribe(wait=False, beat=0.2), "the subscription"):
        await first.release()
        assert str(await reported(events, 0)).endswith(
            " s for partitions [0] of topic 'live.later': no live publisher answers"
        )
        async with await js.epochs("live.later", Product(Int(), Int())).live_publisher(beat=0.2):

            def reported_events() -> bool:
                return str(events[-1]).endswith(": a live publisher uses another order or codec")

            await eventually(reported_events, 10, "the reason")
