"""Chained publishers: no gap and no repeat through refusals, cut connections and cancelled calls."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from integration.kit.clients.topics import republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient.errors import ApiError, ClosedError


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def test_a_chain_waits_for_a_retry(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with js.topic(stream.subject("a")).publisher(chained=True) as pub:
        await (await pub.publish(b"0"))
        await oracle.update_stream(stream.name, subjects=[stream.subject("other")], republish=None)
        one = await pub.publish(b"1")  # no one takes it, for now
        await eventually(lambda: pub._publisher.in_flight == 1)
        await oracle.update_stream(stream.name, subjects=[stream.all])
        two = await pub.publish(b"2")
        await within(30, asyncio.gather(one, two), "both are stored")
    assert [m.payload for m in await stream.messages()] == [b"0", b"1", b"2"]


async def test_lost_records_end_the_chain_at_once(js: Any, stream: OwnStream) -> None:
    """A stream with one replica has no leader that lags: a record that it does not store is lost."""
    topic = js.topic(stream.subject("a"))
    pub = await topic.publisher(chained=True, timeout=60)
    for number in range(3):
        await (await pub.publish(b"%d" % number))
    await js.delete_stream(stream.name)
    await js.create_stream(name=stream.name, subjects=[stream.all])
    began = asyncio.get_running_loop().time()
    with pytest.raises(ApiError, match="wrong last msg ID"):
        await (await pub.publish(b"3"))
    assert asyncio.get_running_loop().time() - began < 20  # long before the end of its timeout
    with pytest.raises(ClosedError, match="a record of this chain failed"):
        await pub.publish(b"4")
    await pub.close()


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("seed", range(3))
async def test_chain_through_cut_connections(
    connect: Any, proxy: Any, oracle: Any, stream: OwnStream, seed: int
) -> None:
    near = await proxy()
    topic = (await connect(near)).topic(stream.subject("a"))
    chance = random.Random(seed)
    async with topic.publisher(chained=True, max_in_flight=200) as pub:
        for number in range(1000):
            await pub.publish(b"%d" % number)
            if chance.random() < 0.005:
                near.cut()
            if chance.random() < 0.05:
                await asyncio.sleep(0.002)
        await within(20, pub.finish(b"end"), "the end")
    assert [m.payload for m in await stream.messages()] == [*(b"%d" % n for n in range(1000)), b"end"]


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("uses_natspy", [False, True])
async def test_chain_after_cancelled_publishes(
    js: Any, natspy_js: Any, oracle: Any, stream: OwnStream, uses_natspy: bool
) -> None:
    topic = (natspy_js if uses_natspy else js).topic(stream.subject("a"))
    chance, sent = random.Random(1), []
    async with topic.publisher(chained=True, max_in_flight=3) as pub:
        for number in range(200):
            call = asyncio.ensure_future(pub.publish(b"%d" % number))
            for _ in range(chance.choice([0, 0, 1, 2, 5])):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                call.cancel()
            try:
                sent.append((b"%d" % number, await call))
            except asyncio.CancelledError:
                pass
        for _, future in sent:
            await future
    assert [m.payload for m in await stream.messages()] == [data for data, _ in sent]
