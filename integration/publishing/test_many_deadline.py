"""`publish_many` ends when no message was stored during its timeout, whatever it waits for."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST, PATIENT
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import LostTime, eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import DisconnectedError, NoRespondersError, RequestTimeoutError

TIMEOUT = 2.0
LONG = 4.0  # where the server must be reached within half of it
GRACE = 0.7
"""Seconds for the last attempt. What the event loop lost of its time is added."""

UNKNOWN = (DisconnectedError, RequestTimeoutError)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **{**FAST, "connect_timeout": 20.0, "reconnect_max_wait": 0.2})


async def outcome(calling: Any) -> jsclient.PublishManyError | None:
    """The error of a call. None if everything was stored."""
    try:
        await within(60, calling, "publish_many")
    except jsclient.PublishManyError as error:
        return error
    return None


async def test_connection_late_and_acks_never(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """The wait for a connection and the wait for acks have one timeout together."""
    tap.refuse()
    tap.cut()
    await eventually(lambda: not js.is_connected, 60, "the connection is lost")
    dropped = tap.drop_frames(match.is_publish_ack)
    ids = [f"id-{number}" for number in range(10)]
    began = time.monotonic()
    async with LostTime() as lost:
        calling = asyncio.create_task(
            outcome(js.publish_many(stream.subject("x"), [b"x"] * 10, msg_ids=ids, timeout=LONG))
        )
        await asyncio.sleep(0.5 * LONG)
        await tap.accept()
        error = await calling
    took = time.monotonic() - began
    assert error is not None
    assert dropped.count, "the server was not reached before the end"
    assert LONG - 0.1 < took < LONG + GRACE + lost.seconds
    assert (error.sent, error.stored, len(error.failures)) == (10, 0, 10)
    assert all(isinstance(why, UNKNOWN) for _, why in error.failures)
    assert len(await stream.messages()) == 10  # unknown is the truth: they are stored


async def test_connection_late_and_no_stream(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """A message that no stream took is not stored, also when the time ends while it waits for another attempt."""
    await js.publish(stream.subject("x"), b"")
    await stream.oracle.delete_stream(stream.name)
    tap.refuse()
    tap.cut()
    await eventually(lambda: not js.is_connected, 60, "the connection is lost")
    began = time.monotonic()
    async with LostTime() as lost:
        calling = asyncio.create_task(
            outcome(js.publish_many(stream.subject("x"), [b"x"] * 3, msg_ids=["a", "b", "c"], timeout=LONG))
        )
        await asyncio.sleep(0.5 * LONG)
        await tap.accept()
        error = await calling
    assert error is not None
    assert time.monotonic() - began < LONG + GRACE + lost.seconds
    assert [type(why) for _, why in error.failures] == [NoRespondersError] * 3


async def test_progress_prolongs_call(connect: Any, tap: Proxy, stream: OwnStream) -> None:
    """A call that continues storing messages may take longer than its timeout."""
    js = await connect(tap, **PATIENT)  # its PONGs wait behind the messages
    tap.rate(40_000)  # half a second for the messages in flight
    began = time.monotonic()
    result = await js.publish_many(stream.subject("x"), [bytes(10_000)] * 20, max_in_flight=2, timeout=3.0)
    assert result.stored == 20
    assert time.monotonic() - began > 3.75


class Weather:
    """Cuts, freezes and lost frames in front of a server, from a seed, until it is stopped."""

    def __init__(self, tap: Proxy, rng: random.Random) -> None:
        self._tap, self._rng = tap, rng
        self.moved = time.monotonic()
        """When bytes that had been held back were let go last."""

    async def run(self) -> None:
        rng = self._rng
        while True:
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            await rng.choice([self._cut, self._refuse, self._freeze, self._silence])(rng.uniform(0.3, 1.8))

    async def _cut(self, _: float) -> None:
        self._tap.cut()

    async def _refuse(self, seconds: float) -> None:
        self._tap.refuse()
        self._tap.cut()
        await asyncio.sleep(seconds)
        await self._tap.accept()

    async def _freeze(self, seconds: float) -> None:
        self._tap.stall()
        await asyncio.sleep(seconds)
        self._tap.unstall()
        self.moved = time.monotonic()

    async def _silence(self, seconds: float) -> None:
        rule = self._tap.drop_frames(match.is_publish_ack)
        await asyncio.sleep(seconds)
        rule.remove()

    def clear(self) -> None:
        self._tap.heal()
        for rule in self._tap._rules:
            rule.remove()


async def one_call(js: Any, tap: Proxy, stream: OwnStream, seed: int, *, with_ids: bool) -> bool:
    """Publish in bad weather and judge the time and the outcomes. Returns whether everything was stored."""
    rng = random.Random(seed)
    weather = Weather(tap, rng)
    storm = asyncio.create_task(weather.run())
    count = 1500
    payloads = [b"%d %d " % (seed, number) + bytes(500) for number in range(count)]
    ids = [f"{seed}-{number}" for number in range(count)] if with_ids else None
    before, began = len(tap.frames), time.monotonic()
    try:
        async with LostTime() as lost:
            error = await outcome(
                js.publish_many(
                    stream.subject("x"), iter(payloads), msg_ids=ids, max_in_flight=50, timeout=TIMEOUT
                )
            )
    finally:
        ended = time.monotonic()
        storm.cancel()
        await asyncio.gather(storm, return_exceptions=True)
        weather.clear()
        await tap.accept()
    # Only the acks that reached the client count as progress.
    acks = [
        frame.time
        for frame in tap.find(match.is_publish_ack, before)
        if frame.fate == "passed" and frame.time <= ended
    ]
    last = max([began, weather.moved, *acks])
    assert ended - last < TIMEOUT + GRACE + lost.seconds, (
        f"seed {seed}: {ended - last:.2f} s after the last progress"
    )
    stored = set(await stream.oracle.payloads(stream.name))
    await stream.oracle.purge(stream.name)
    mine = [payload in stored for payload in payloads]
    if error is None:
        assert all(mine)
        return True
    failed = dict(error.failures)
    for index, is_stored in enumerate(mine):
        why = failed.get(index)
        if index >= error.sent:
            assert not is_stored, f"seed {seed}: {index} counts as not sent"
        elif why is None:
            assert is_stored, f"seed {seed}: {index} counts as stored"
        elif not isinstance(why, UNKNOWN):
            assert not is_stored, f"seed {seed}: {index} counts as refused: {why!r}"
    return False


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("with_ids", [pytest.param(True, id="ids"), pytest.param(False, id="no-ids")])
async def test_cuts_and_freezes(js: Any, tap: Proxy, stream: OwnStream, with_ids: bool) -> None:
    await one_call(js, tap, stream, 3, with_ids=with_ids)


@pytest.mark.full
@pytest.mark.limit(600)
async def test_many_cuts_and_freezes(js: Any, tap: Proxy, stream: OwnStream) -> None:
    for seed in range(100, 120):
        await one_call(js, tap, stream, seed, with_ids=seed % 4 != 0)
