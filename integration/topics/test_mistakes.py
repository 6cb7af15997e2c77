"""Mistakes of a first-time user of topics: each is reported with the remedy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient.epochs import memory_epochs


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    source: OwnStream = await make_stream(allow_direct=True)
    return source


async def test_not_opened_says_how_to_open(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    with pytest.raises(AttributeError, match=r"no 'publish': 'async with \.\.\. as name'"):
        await topic.publisher().publish(b"1")
    with pytest.raises(AttributeError, match="loop over it with 'async for'"):
        await topic.each().next()
    assert "async with" in repr(topic.each())


async def test_wildcard_refused_with_reason_fits(js: Any, oracle: Any, stream: OwnStream) -> None:
    for call in ("publisher", "epochs"):
        with pytest.raises(jsclient.InvalidNameError, match="without wildcards is needed here"):
            getattr(js.topic(stream.subject("*")), call)()


async def test_starts_and_reasons_of_another_type(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    with pytest.raises(jsclient.ConfigError, match=r"start with each\(\)"):
        topic.since(None)
    async with topic.publisher() as pub:
        await pub.publish(b"1")
        for reason in (b"why", ValueError("why")):
            with pytest.raises(jsclient.ConfigError, match=r"str\(error\)"):
                await pub.fail(reason)
        token = (await pub.finish()).to_json()
    async with topic.each(token) as reader:  # a token is as good as the position in it
        assert reader.position.to_json() == token
    with pytest.raises(jsclient.ConfigError, match="JSON token"):
        await topic.each("yesterday")


async def test_loops_have_own_readers(js: Any, oracle: Any, stream: OwnStream) -> None:
    every = js.topic(stream.subject("a")).each(push="consumer")

    async def loop() -> int:
        return sum([1 async for _ in every])

    loops = [asyncio.ensure_future(loop()) for _ in range(2)]

    await eventually(stream.consumer_names, what="their consumer")
    async with js.topic(stream.subject("a")).publisher() as pub:
        await pub.publish(b"1")
        await pub.finish()
    assert await within(10, asyncio.gather(*loops), "both loops") == [1, 1]

    async def no_consumers() -> bool:
        return not await stream.consumer_names()

    await eventually(no_consumers, what="no consumer is left")


async def test_many_subjects(js: Any, oracle: Any, stream: OwnStream) -> None:
    name = f"{stream.name}_SETTINGS"
    every = js.topic(f"{name}.*.v1", stream=name)
    await every.create(storage="memory")
    try:
        async with every.each(push="republish") as reader:
            async with js.topic(f"{name}.billing.v1").publisher() as pub:
                await pub.publish(b"on")
            assert (await reader.next(5)).data == b"on"
    finally:
        await js.delete_stream(name)


async def test_peeked_refusal_keeps_chain(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with js.topic(stream.subject("a")).publisher(chained=True) as pub:
        await (await pub.publish(b"1"))
        await js.publish(stream.subject("a"), b"rival")
        with pytest.raises(jsclient.ApiError):
            await (await pub.publish(b"2"))
        with pytest.raises(jsclient.ProducerFencedError):
            await pub.finish()
    assert [m.payload for m in await stream.messages()] == [b"1", b"rival"]
    async with js.topic(stream.subject("a")).publisher(chained=True) as pub:
        await pub.finish()
    async with js.topic(stream.subject("b")).publisher(chained=True) as pub:
        await pub.publish(b"1")
        await pub.finish()


async def test_publisher_timeout_kept(own_server: Any, connect: Any) -> None:
    own = await own_server()
    js = await connect(own, timeout=3.0)
    await js.create_stream("LONG", subjects=["long"])
    with pytest.raises(jsclient.ConfigError):
        await js.topic("long").publisher(timeout=0)
    async with js.topic("long").publisher(chained=True, timeout=30) as pub:
        await (await pub.publish(b"0"))
        await own.stop()
        sending = asyncio.ensure_future(pub.publish(b"1"))
        await eventually(lambda: not js.is_connected, what="the connection is lost")
        with pytest.raises(jsclient.JetStreamError):  # as long as others wait
            await js.publish("long", b"2")
        await own.start()
        await within(20, pub.flush())
        assert (await (await sending)).seq == 2


async def test_current_not_next_one_too(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await (await pub.publish(b"1"))
        reader = topic.latest()
        assert (await reader.current()).data == b"1"
        assert (await reader.current()).data == b"1"
        with pytest.raises(jsclient.RequestTimeoutError):
            await reader.next(0.1)
        await pub.publish(b"2")
        assert (await reader.next(5)).data == b"2"


async def test_batch_no_list_no_items() -> None:
    topic = memory_epochs("trades")
    async with await topic.publisher() as pub, await topic.subscribe(start="first") as sub:
        await pub.send(0, {"price": 1})
        await pub.advance(1)
        epoch = await sub.completed().next(5)
        with pytest.raises(jsclient.ConfigError, match="dict as batch"):
            _ = epoch.items
        assert [batch async for batch in epoch] == [{"price": 1}]


async def test_error_of_server_says_asked(js: Any) -> None:
    """The server's words are "stream not found", whichever it was."""
    with pytest.raises(jsclient.StreamNotFoundError, match="stream 'NOWHERE' not found") as caught:
        await js.topic("a.b", stream="NOWHERE").publisher()
    assert caught.value.stream == "NOWHERE"


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_work_queue_is_for_workers(js: Any, oracle: Any, make_stream: Any, retention: str) -> None:
    topic = js.topic((await make_stream(retention=retention)).subject("a"))
    with pytest.raises(
        jsclient.ConfigError, match=f"retention of stream .* is {retention}: 'limits' is needed"
    ):
        await topic.each()
    with pytest.raises(
        jsclient.ConfigError, match=f"retention of stream .* is {retention}: 'limits' is needed"
    ):
        await topic.latest().next(1.0)
    with pytest.raises(
        jsclient.ConfigError, match=f"retention of stream .* is {retention}: 'limits' is needed"
    ):
        await js.events(topic.subject).subscribe()
    async with topic.work("w") as work, topic.publisher() as pub:
        await pub.publish(b"1")
        await pub.flush()
        message = await work.next(5.0)
        assert message.data == b"1"
        await message.ack()


@pytest.mark.parametrize(
    "options",
    [
        {"quiet": float("nan")},
        {"quiet": "5"},
        {"quiet": True},
        {"quiet": -1},
        {"max_pending": "10"},
        {"max_pending": float("nan")},
        {"max_pending": 1.5},
        {"max_pending": 0},
        {"push": []},
        {"push": ""},
    ],
    ids=repr,
)
async def test_invalid_reader_options(
    js: Any, oracle: Any, stream: OwnStream, options: dict[str, Any]
) -> None:
    with pytest.raises(jsclient.ConfigError):
        await js.topic(stream.subject("a")).each(**options)


@pytest.mark.parametrize("timeout", [float("nan"), "5", True], ids=repr)
async def test_invalid_timeouts(js: Any, oracle: Any, stream: OwnStream, timeout: Any) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each() as reader:
        with pytest.raises(jsclient.ConfigError):
            await within(10, reader.next(timeout), "the read")
        with pytest.raises(jsclient.ConfigError):
            await within(10, anext(reader.batches(0)), "the batch")
    with pytest.raises(jsclient.ConfigError):
        await within(10, topic.latest().next(timeout), "the read")
