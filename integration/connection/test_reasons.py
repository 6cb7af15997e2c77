"""What a call that timed out says while there is no connection: why, and what the last attempt to connect said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from integration.kit.clients.readers import PATIENT
from integration.kit.judge.waiting import eventually
from integration.kit.network.wire import TO_SERVER
from jsclient import JetStreamError, RequestTimeoutError

SHORT = 0.2

Call = Callable[[], Awaitable[Any]]


async def consumers(js: Any, stack: AsyncExitStack) -> dict[str, Call]:
    """Readers of a stream, each of which has nothing to read."""
    puller = await js.pull_subscribe("s.>")
    messages = await stack.enter_async_context((await js.pull_subscribe("s.>")).messages())
    push = await stack.enter_async_context(await js.subscribe("s.>"))
    ordered = await stack.enter_async_context(js.ordered_consumer("S"))
    ordered_push = await stack.enter_async_context(await js.subscribe("s.>", ordered=True))
    return {
        "pull: next": lambda: puller.next(SHORT),
        "pull: messages": lambda: messages.next(SHORT),
        "push: next": lambda: push.next(SHORT),
        "ordered pull: next": lambda: ordered.next(SHORT),
        "ordered push: next": lambda: ordered_push.next(SHORT),
    }


async def to_the_end(read: Callable[[float], Awaitable[Any]]) -> None:
    while True:
        await read(SHORT)


async def topics(js: Any, stack: AsyncExitStack) -> dict[str, Call]:
    """Readers of topics and of epochs, each of which has nothing to read, and a producer of values."""
    topic, epochs = js.topic("s.x", stream="S"), js.epochs("E")
    await epochs.create(storage="memory")
    publisher = await stack.enter_async_context(await epochs.publisher())
    await publisher.advance(1)
    kit = await js.notifier_kit("k.x", initial=0, timeout=SHORT)
    each = await stack.enter_async_context(topic.each("now"))
    latest = await stack.enter_async_context(topic.latest())
    table = await stack.enter_async_context(js.topic("s.>", stream="S").table())
    subscriber = await stack.enter_async_context(await epochs.subscribe(start="now"))
    for read in (latest.next, subscriber.next):
        with pytest.raises(RequestTimeoutError) as caught:
            await to_the_end(read)
        assert caught.value.why == ""
    return {
        "topic: each": lambda: each.next(SHORT),
        "topic: latest": lambda: latest.next(SHORT),
        "topic: table": lambda: table.wait_for(lambda _: False, SHORT),
        "topic: changes of a table": lambda: table.changes("now").next(SHORT),
        "epochs: subscribe": lambda: js.epochs("E").subscribe(timeout=SHORT),
        "epochs: events": lambda: subscriber.next(SHORT),
        "epochs: completed": lambda: subscriber.completed().next(SHORT),
        "a value of an iteration": lambda: kit.updater.update_state(1),
    }


async def others(js: Any, stack: AsyncExitStack) -> dict[str, Call]:
    stream = await js.stream("S")
    batch = stream.get_batch(5, timeout=SHORT)
    return {
        "batch of direct gets": lambda: anext(aiter(batch)),
        "publish_many": lambda: js.publish_many("s.x", [b""] * 3, timeout=SHORT),
        "ping": lambda: js.ping(SHORT),
        "lookup": lambda: js.stream("S"),
    }


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("of", [consumers, topics, others], ids=lambda of: of.__name__)
async def test_timeouts_with_a_server_away_say_why(
    of: Any, connect: Any, proxy: Any, own_server: Any
) -> None:
    tap = await proxy(await own_server())
    js = await connect(tap, timeout=20.0, **PATIENT)
    await js.create_stream("S", subjects=["s.>"], storage="memory", allow_direct=True)
    async with AsyncExitStack() as stack:
        calls = await of(js, stack)
        js._context.timeout = SHORT * 5
        tap.refuse()
        tap.cut()
        await eventually(lambda: "then" in js._connection.problem, what="an attempt that fails")
        silent = {}
        for name, call in calls.items():
            with pytest.raises(JetStreamError) as caught:
                await call()
            if "the connection was lost (" not in str(caught.value) or "), then " not in str(caught.value):
                silent[name] = repr(caught.value)
        await tap.accept()
        await eventually(lambda: js.is_connected, what="the reconnect")
    assert silent == {}


async def test_request_on_its_way_says_why(connect: Any, proxy: Any) -> None:
    """It was sent, and its answer was lost with the connection."""
    tap = await proxy()
    js = await connect(tap, timeout=2.0, **PATIENT)
    tap.stall(TO_SERVER)
    asking = asyncio.create_task(js.account_info())
    await asyncio.sleep(0)
    tap.refuse()
    tap.cut()
    with pytest.raises(JetStreamError, match=r"the connection was lost \(.*\), then "):
        await asking
