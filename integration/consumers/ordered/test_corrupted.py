"""A push ordered reader whose bytes are changed on the way, or end in the middle: it continues, and misses nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.match import is_data, stream_seq
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT, TO_SERVER, Frame
from jsclient import ErrorRaised, NotJetStreamMessageError

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.25)
BAD = 4.0  # seconds of bad weather
USABLE = 60.0  # seconds within which the reader has read everything afterwards


async def harm(tap: Proxy, chance: random.Random) -> None:
    """Change bytes, and end connections inside a piece, for a time."""
    end = asyncio.get_running_loop().time() + BAD
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(chance.uniform(0.02, 0.5))
        direction = TO_CLIENT if chance.random() < 0.8 else TO_SERVER
        if chance.random() < 0.6:
            tap.corrupt(chance.randint(1, 3), direction)
        else:
            tap.break_off(1, direction)
    for conditions in tap._conditions.values():
        conditions.flips = conditions.breaks = 0


async def publish(stream: OwnStream, until: asyncio.Event) -> None:
    number = 0
    while not until.is_set():
        number += 1
        await stream.oracle.nc.publish(stream.subject("x"), b"%d" % number)
        await asyncio.sleep(0.002)


async def one_run(connect: Any, proxy: Any, stream: OwnStream, seed: int) -> None:
    chance = random.Random(seed)
    tap = await proxy(frames=False)
    js = await connect(tap, **FAST)
    reader = await js.subscribe(stream.all, stream=stream.name, ordered=True, config=QUICK)
    seqs: list[int] = []

    async def read() -> None:
        while True:
            try:
                message = await reader.next()
            except NotJetStreamMessageError:
                continue  # A damaged message is reported and delivered again.
            seqs.append(message.metadata.stream_seq)

    over = asyncio.Event()
    reading, publishing = asyncio.create_task(read()), asyncio.create_task(publish(stream, over))
    await harm(tap, chance)
    over.set()
    await publishing
    await stream.publish(5)
    last = (await stream.state())["last_seq"]
    try:
        await eventually(
            lambda: (seqs and seqs[-1] >= last) or reading.done(), USABLE, f"seed {seed}: all is read"
        )
        assert not reading.done(), f"seed {seed}: the reader ended: {reading.exception()!r}"
        assert seqs == [*range(1, last + 1)], f"seed {seed}: {len(seqs)} of {last}"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await within(20, reader.unsubscribe(), "unsubscribe")


@pytest.mark.parametrize("index", [-2, -1], ids=["time", "pending"])
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_odd_number_reaches_no_reader(
    kind: str, index: int, connect: Any, proxy: Any, stream: OwnStream, events: list[Any]
) -> None:
    """The loss is reported, and the message comes again. Each message that is read shows its position."""
    tap = await proxy()
    js = await connect(tap)
    await stream.publish(300)

    def damaged(frame: Frame) -> bytes:
        parts = (frame.reply or "").split(".")
        parts[index] = "7x"
        return frame.but(reply=".".join(parts)).raw

    tap.modify_frames(lambda frame: is_data(frame) and stream_seq(frame) == 150, damaged, count=1)
    reader = (
        await js.subscribe(stream.all, ordered=True)
        if kind == "push"
        else await js.ordered_consumer(stream.name)
    )
    seqs: list[int] = []
    reports = 0
    # after the damaged message a new consumer delivers it again
    while len(seqs) < 300:
        try:
            seqs.append((await within(20, reader.next(timeout=10), "a message")).metadata.stream_seq)
        except NotJetStreamMessageError:
            reports += 1
    assert seqs == [*range(1, 301)]
    assert (
        reports
        + len([one for one in of(ErrorRaised, events) if isinstance(one.error, NotJetStreamMessageError)])
        == 1
    )
    await reader.close()


async def test_corrupted(connect: Any, proxy: Any, stream: OwnStream) -> None:
    await one_run(connect, proxy, stream, 1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 21))
async def test_corrupted_seeds(connect: Any, proxy: Any, stream: OwnStream, seed: int) -> None:
    await one_run(connect, proxy, stream, seed)
