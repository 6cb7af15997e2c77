"""Every kind of call once, side by side, each with a deadline."""

from __future__ import annotations

import asyncio
from typing import Any

from integration.campaign.calls import Calls
from jsclient import ConsumerConfig
from jsclient.errors import JetStreamError

TIMEOUT = 0.6  # of requests
LIMIT = 8.0  # of a whole call, which may be several requests, and a reader's second look
BEAT = ConsumerConfig(idle_heartbeat=0.3)


async def publisher(js: Any) -> None:
    async with js.publisher(timeout=TIMEOUT) as pub:
        for number in range(20):
            await pub.publish("a.b", b"x", msg_id=f"p{number}")


async def batch(js: Any) -> None:
    async with js.batch(timeout=TIMEOUT) as pub:
        for _ in range(3):
            await pub.publish("a.b", b"x")


async def ingest(js: Any) -> None:
    async with js.fast_ingest(timeout=TIMEOUT) as pub:
        for _ in range(20):
            await pub.publish("a.b", b"x")


async def chain(js: Any) -> None:
    async with js.topic("a.c", stream="S").publisher(chained=True, timeout=TIMEOUT) as pub:
        for _ in range(5):
            await pub.publish(b"x")


async def streams(js: Any) -> None:
    [_ async for _ in js.streams()]
    [_ async for _ in js.stream_names()]


async def gets(js: Any) -> None:
    stream = await js.stream("S")
    for call in (stream.info, lambda: stream.get_message(1), lambda: stream.get_last_message("a.b")):
        try:
            await call()
        except JetStreamError:  # the next call is tried as well
            continue
    [_ async for _ in stream.get_batch(10, timeout=TIMEOUT)]


async def read(opening: Any) -> None:
    reader = await opening
    try:
        for _ in range(20):
            await reader.next(timeout=0.3)
    finally:
        await (getattr(reader, "unsubscribe", None) or reader.close)()


async def push(js: Any, **options: Any) -> None:
    await read(js.subscribe("a.>", stream="S", config=BEAT, **options))


async def fetch(js: Any) -> None:
    psub = await js.pull_subscribe("a.>", stream="S")
    try:
        for message in await psub.fetch(5, expires=0.5):
            await message.ack()
        [await message.ack_sync(timeout=TIMEOUT) for message in await psub.fetch(2, expires=0.5)]
    finally:
        await psub.unsubscribe()


async def messages(js: Any) -> None:
    async with await js.pull_subscribe("a.>", stream="S") as psub:
        await read(opened(psub.messages(max_messages=10, expires=1.0, idle_heartbeat=0.3)))


async def opened(reader: Any) -> Any:
    return reader


async def work(js: Any) -> None:
    async def handle(message: Any) -> None: ...

    async with await js.pull_subscribe("a.>", stream="S") as psub, psub.run(handle):
        await asyncio.sleep(0.5)


async def ordered(js: Any) -> None:
    async with js.ordered_consumer("S") as consumer:
        await consumer.fetch(5, expires=0.5)


async def latest(js: Any) -> None:
    async with js.topic("a.b", stream="S").latest() as reader:
        await reader.next(timeout=0.5)


async def notifier(js: Any) -> None:
    kit = await js.notifier_kit("a.k", stream="S", timeout=TIMEOUT)
    await kit.updater.update_state(1)


async def subscriber(js: Any) -> None:
    async with asyncio.timeout(2):
        try:
            async with await js.epochs("T").subscribe(timeout=1.0) as sub:
                await anext(aiter(sub))
        except TimeoutError:  # of this block: an epoch may never come
            return


BATTERY: dict[str, Any] = {
    "publish": lambda js: js.publish("a.b", b"x"),
    "publish with an id": lambda js: js.publish("a.b", b"x", msg_id="m1"),
    "publisher": publisher,
    "batch": batch,
    "fast ingest": ingest,
    "chain": chain,
    "account": lambda js: js.account_info(),
    "streams": streams,
    "gets": gets,
    "create a stream": lambda js: js.ensure_stream("S", subjects=["a.>"]),
    "push": push,
    "queue": lambda js: read(js.subscribe("a.>", stream="S", queue="q")),
    "ordered push": lambda js: push(js, ordered=True),
    "fetch": fetch,
    "messages": messages,
    "worker": work,
    "ordered pull": ordered,
    "each": lambda js: read(js.topic("a.>", stream="S").each(quiet=0.3)),
    "latest": latest,
    "notifier kit": notifier,
    "epochs": subscriber,
    "ping": lambda js: js.ping(),
}


async def run_all(js: Any, calls: Calls, limit: float = LIMIT) -> None:
    """All calls side by side."""
    async with asyncio.TaskGroup() as group:
        for what, call in BATTERY.items():
            group.create_task(calls.within(limit, what, call(js)))
