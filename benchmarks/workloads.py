"""The work that is measured, once for each client. Every function moves ``count`` messages of the stream BENCH."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

SUBJECT = "bench.data"
PAYLOAD = b"x" * 128

Work = Callable[[str, int], Awaitable[None]]


# --- jsclient ------------------------------------------------------------------------------------------------


async def jsclient_ordered(url: str, count: int) -> None:
    import jsclient

    async with jsclient.connect(url) as js, await js.subscribe(SUBJECT, ordered=True) as sub:
        seen = 0
        async for _ in sub:
            seen += 1
            if seen == count:
                return


async def jsclient_callback(url: str, count: int) -> None:
    import jsclient

    done = asyncio.Event()
    seen = 0

    async def handle(_: jsclient.Message) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    config = jsclient.ConsumerConfig(ack_policy="none", flow_control=True, idle_heartbeat=5.0)
    async with jsclient.connect(url) as js, await js.subscribe(SUBJECT, config=config, callback=handle):
        await done.wait()


async def jsclient_fetch(url: str, count: int) -> None:
    import jsclient

    async with jsclient.connect(url) as js, await js.pull_subscribe(SUBJECT) as sub:
        seen = 0
        while seen < count:
            batch = await sub.fetch(min(500, count - seen))
            for msg in batch:
                await msg.ack()
            seen += len(batch)


async def jsclient_messages(url: str, count: int) -> None:
    import jsclient

    async with (
        jsclient.connect(url) as js,
        await js.pull_subscribe(SUBJECT) as sub,
        sub.messages(max_messages=1000) as messages,
    ):
        seen = 0
        async for msg in messages:
            await msg.ack()
            seen += 1
            if seen == count:
                return


async def jsclient_publish(url: str, count: int) -> None:
    import jsclient

    async with jsclient.connect(url) as js:
        for _ in range(count):
            await js.publish("bench.other", PAYLOAD)


# --- nats-py -------------------------------------------------------------------------------------------------


async def natspy_ordered(url: str, count: int) -> None:
    import nats

    nc = await nats.connect(url)
    sub = await nc.jetstream().subscribe(SUBJECT, ordered_consumer=True)
    seen = 0
    async for _ in sub.messages:
        seen += 1
        if seen == count:
            break
    await nc.close()


async def natspy_callback(url: str, count: int) -> None:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    nc = await nats.connect(url)
    done = asyncio.Event()
    seen = 0

    async def handle(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    await nc.jetstream().subscribe(SUBJECT, cb=handle, config=config, manual_ack=True)
    await done.wait()
    await nc.close()


async def natspy_fetch(url: str, count: int) -> None:
    import nats

    nc = await nats.connect(url)
    js = nc.jetstream()
    sub = await js.pull_subscribe(SUBJECT, durable="bench-natspy")
    seen = 0
    while seen < count:
        messages = await sub.fetch(min(500, count - seen))
        for msg in messages:
            await msg.ack()
        seen += len(messages)
    await js.delete_consumer("BENCH", "bench-natspy")
    await nc.close()


async def natspy_publish(url: str, count: int) -> None:
    import nats

    nc = await nats.connect(url)
    js = nc.jetstream()
    for _ in range(count):
        await js.publish("bench.other", PAYLOAD)
    await nc.close()


WORKS: dict[str, dict[str, tuple[Work, int]]] = {
    # work: client: (function, messages)
    "ordered, async for": {"jsclient": (jsclient_ordered, 200_000), "nats-py": (natspy_ordered, 50_000)},
    "push, callback": {"jsclient": (jsclient_callback, 200_000), "nats-py": (natspy_callback, 100_000)},
    "pull fetch(500), ack each": {"jsclient": (jsclient_fetch, 100_000), "nats-py": (natspy_fetch, 30_000)},
    "pull messages(), ack each": {
        "jsclient": (jsclient_messages, 100_000),
        "nats-py": (natspy_fetch, 30_000),
    },
    "publish, one by one": {"jsclient": (jsclient_publish, 4_000), "nats-py": (natspy_publish, 4_000)},
}
