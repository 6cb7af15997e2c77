"""Cancelled at any moment, a call loses no message and leaves nothing behind (P21, N2, R12, R19)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.clients.traffic import Tally
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import AckPolicy, ConsumerConfig, JetStreamError

COUNT = 3000
SEEDS = [1, pytest.param(2, marks=pytest.mark.full)]


async def _impatiently(call: Callable[[], Awaitable[Any]], chance: random.Random) -> Any:
    """The result of a call that is given 0 to 1 ms, None if that was too little."""
    try:
        return await asyncio.wait_for(call(), chance.random() / 1000)
    except TimeoutError:
        return None


async def _collect(call: Callable[[], Awaitable[Any]], tally: Tally, seed: int, *, acks: bool) -> int:
    """Call and cancel until everything is there. How often it was cancelled."""
    chance = random.Random(seed)
    distinct: set[int] = set()
    cancelled = 0
    deadline = time.monotonic() + 240
    while len(distinct) < COUNT:
        assert time.monotonic() < deadline, f"{len(distinct)} of {COUNT} after {cancelled} cancellations"
        result = await _impatiently(call, chance)
        if result is None:
            cancelled += 1
            continue
        # the call returns a message, or a batch of them
        for message in result if not hasattr(result, "ack") else [result]:
            tally.take(message)
            distinct.add(tally.seqs[-1])
            if acks:
                await message.ack()
    return cancelled


async def _publish_slowly(stream: OwnStream, tally: Tally) -> None:
    """So that calls do wait, and are cancelled while they do: now and then until all was read that there is."""
    for first in range(1, COUNT + 1, 30):
        await stream.publish(30, first=first)
        await asyncio.sleep(0.003)
        if first % 300 == 1:
            await eventually(lambda last=first + 29: len(tally.seqs) >= last, 240, "all so far")
            await asyncio.sleep(0.003)


CALLS = ["push explicit", "push none", "ordered", "pull next", "fetch", "messages"]


@pytest.mark.limit(300)
@pytest.mark.core_cases(2)
@pytest.mark.row(59)
@pytest.mark.covers("J97")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CALLS)
async def test_cancelled_calls_lose_nothing(
    kind: str, seed: int, js: Any, oracle: Oracle, stream: OwnStream
) -> None:
    """P21, N2: 3,000 messages, calls cancelled at random moments: 0 lost, 0 twice."""
    call: Callable[[], Awaitable[Any]]
    acks = kind not in {"push none", "ordered"}
    if kind in {"push explicit", "push none", "ordered"}:
        policy = AckPolicy.NONE if kind == "push none" else None
        options: dict[str, Any] = {"ordered": True} if kind == "ordered" else {}
        sub = await js.subscribe(
            stream.all, config=ConsumerConfig(ack_policy=policy, ack_wait=60 if acks else None), **options
        )
        call = sub.next
    else:
        psub = await js.pull_subscribe(stream.all, durable="d", config=ConsumerConfig(ack_wait=60))
        if kind == "pull next":
            call = psub.next
        elif kind == "fetch":
            call = lambda: psub.fetch(10, expires=2.0)  # noqa: E731
        else:
            call = psub.messages(max_messages=50).next
    tally = Tally(kind)
    publishing = asyncio.create_task(_publish_slowly(stream, tally))
    cancelled = await _collect(call, tally, seed, acks=acks)
    await publishing
    print(f"{kind}: {cancelled} cancelled, {tally.counts(COUNT)}")
    assert cancelled > 3
    assert tally.counts(COUNT) == {"lost": 0, "repeated": 0, "disordered": 0, "untold": 0}
    # The server's consumer must agree: all messages are acked, and none was delivered twice.
    if kind in {"pull next", "fetch", "messages"}:
        info = await oracle.wait_consumer(stream.name, "d", lambda info: not info["num_ack_pending"])
        assert info["ack_floor"]["stream_seq"] == COUNT
        assert info["num_redelivered"] == 0


@pytest.mark.limit(300)
@pytest.mark.core_cases(1)
@pytest.mark.parametrize("kind", ["push", "messages", "batches"])
async def test_cancelled_loops_lose_nothing(kind: str, js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """P21: `async for`, cancelled between two messages, continues in the next task."""
    chance = random.Random(3)
    tally = Tally(kind)
    if kind == "messages":
        psub = await js.pull_subscribe(stream.all, durable="d", config=ConsumerConfig(ack_wait=60))
        source: Any = psub.messages(max_messages=100)
    else:
        source = await js.subscribe(stream.all, durable="d", config=ConsumerConfig(ack_wait=60))

    async def loop() -> None:
        if kind == "batches":
            async for batch in source.batches(max_messages=10):
                for message in batch:
                    tally.take(message)
                    await message.ack()
        else:
            async for message in source:
                tally.take(message)
                await message.ack()

    publishing = asyncio.create_task(_publish_slowly(stream, tally))
    tasks = 0
    deadline = time.monotonic() + 240
    while tally.lost(COUNT):
        assert time.monotonic() < deadline, f"{len(tally.lost(COUNT))} missing after {tasks} tasks"
        task = asyncio.create_task(loop())
        await asyncio.sleep(chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        tasks += 1
    await publishing
    print(f"{kind}: {tasks} tasks, {tally.counts(COUNT)}")
    assert tasks > 3
    assert tally.counts(COUNT) == {"lost": 0, "repeated": 0, "disordered": 0, "untold": 0}
    info = await oracle.wait_consumer(stream.name, "d", lambda info: not info["num_ack_pending"])
    assert (info["ack_floor"]["stream_seq"], info["num_redelivered"]) == (COUNT, 0)


class _Stepper:
    """Runs a coroutine and throws `CancelledError` into it at its k-th suspension."""

    def __init__(self, coroutine: Any, at: int) -> None:
        self._coroutine = coroutine
        self._left = at
        self.cancelled = False

    def __await__(self) -> Any:
        value: Any = None
        inner = self._coroutine.__await__()
        while True:
            try:
                if self._left == 0 and not self.cancelled:
                    self.cancelled = True
                    yielded = inner.throw(asyncio.CancelledError())
                else:
                    yielded = inner.send(value)
            except StopIteration as done:
                return done.value
            self._left -= 1
            value = yield yielded


async def _cancelled_everywhere(make: Callable[[], Awaitable[Any]], after: Callable[[Any], Any]) -> int:
    """Cancel a call at each of its suspensions in turn, until it ends before. How many there are."""
    for at in range(200):
        stepper = _Stepper(make(), at)

        async def run(stepper: _Stepper = stepper) -> Any:
            return await stepper

        result = None
        try:
            result = await asyncio.wait_for(run(), 60)
        except (asyncio.CancelledError, JetStreamError):
            pass
        await after(result)
        if not stepper.cancelled:
            return at
    raise AssertionError("it has no end")


SUBSCRIBES = ["push", "durable", "queue", "ordered", "pull", "pull durable", "callback"]


@pytest.mark.row(125)
@pytest.mark.covers("J3", "J60")
@pytest.mark.parametrize("kind", SUBSCRIBES)
async def test_cancelled_subscribe_is_clean(
    kind: str, js: Any, oracle: Oracle, server: Any, stream: OwnStream
) -> None:
    """R12, R19: no task, no consumer, no NATS subscription."""

    async def make() -> Any:
        match kind:
            case "push":
                return await js.subscribe(stream.all)
            case "durable":
                return await js.subscribe(stream.all, durable="d")
            case "queue":
                return await js.subscribe(stream.all, queue="q")
            case "ordered":
                return await js.subscribe(stream.all, ordered=True)
            case "callback":
                return await js.subscribe(stream.all, callback=print)
            case "pull":
                return await js.pull_subscribe(stream.all)
            case _:
                return await js.pull_subscribe(stream.all, durable="d")

    async def after(sub: Any) -> None:
        if sub is not None:
            await sub.unsubscribe()
        await eventually(lambda: _none_left(stream), 60, "no consumer of ours")

    await js.ping()
    await js.account_info()  # the inbox for answers stays
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        steps = await _cancelled_everywhere(make, after)
    print(f"{kind}: {steps} awaits")
    assert steps >= 2


async def _none_left(stream: OwnStream) -> bool:
    return not await stream.consumer_names()


async def _no_request_left(stream: OwnStream) -> bool:
    """Whether the server has seen the end of the inbox of each pull request."""
    return (await stream.consumer_info("kept"))["num_waiting"] == 0


@pytest.mark.covers("J108", "J110")
@pytest.mark.parametrize("kind", ["push", "ordered", "pull", "callback", "kept"])
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_cancelled_end_repeatable(
    kind: str, end: str, js: Any, oracle: Oracle, server: Any, stream: OwnStream
) -> None:
    """R12, R19: after a second attempt, or the close of the connection, no consumer remains."""
    await js.account_info()
    await stream.publish(3)

    async def subscribe() -> Any:
        if kind == "pull":
            psub = await js.pull_subscribe(stream.all)
            await psub.fetch(1)
            return psub
        if kind == "kept":
            psub = await js.pull_subscribe(stream=stream.name, consumer="kept")
            fetch = asyncio.create_task(psub.fetch(10, expires=20))
            await stream.until_asked("kept", 1)
            fetch.cancel()
            await asyncio.wait({fetch})
            return psub
        options: dict[str, Any] = {"ordered": True} if kind == "ordered" else {}
        if kind == "callback":
            options["callback"] = lambda _: None
        return await js.subscribe(stream.all, **options)

    if kind == "kept":
        nothing = stream.subject("nothing")
        await stream.create_consumer("kept", ack_policy="explicit", filter_subject=nothing)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for at in range(100):
            sub = await subscribe()
            stepper = _Stepper(getattr(sub, end)(), at)

            async def run(stepper: _Stepper = stepper) -> None:
                await stepper

            try:
                await asyncio.wait_for(run(), 60)
            except asyncio.CancelledError:
                pass
            # The caller tries again, as in a finally.
            await asyncio.wait_for(sub.unsubscribe(), 60)
            left = _none_left if kind != "kept" else _no_request_left
            await eventually(lambda: left(stream), 60, f"nothing after a cancel at await {at}")  # noqa: B023
            if not stepper.cancelled:
                break
    assert at >= 1


async def test_cancelled_publish_is_clean(js: Any, server: Any, oracle: Oracle, stream: OwnStream) -> None:
    """R12: stored or not, and nothing waits for the answer."""
    await js.publish(stream.subject("x"), b"first")

    async def after(_: Any) -> None:
        assert js._context.requests._waiting == {}

    async with no_leaks(monitor=server.monitor):
        steps = await _cancelled_everywhere(lambda: js.publish(stream.subject("x"), b"x", msg_id="1"), after)
    assert steps >= 1
    assert (await stream.state())["messages"] == 2


async def test_cancelled_connect_is_clean(server: Any) -> None:
    """R12."""
    import jsclient

    async def connect() -> Any:
        return await jsclient.connect(server.url)

    async def after(js: Any) -> None:
        if js is not None:
            await js.close()

    async with no_leaks(monitor=server.monitor):
        steps = await _cancelled_everywhere(connect, after)
    print(f"connect: {steps} awaits")
    assert steps >= 3
