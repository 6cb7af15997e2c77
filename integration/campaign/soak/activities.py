"""What a user does for a moment with a connection: opens something, uses it, and leaves it, or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import jsclient
from jsclient import ConsumerConfig

STREAM, SUBJECTS, SUBJECT = "S", "s.>", "s.a"
BUCKET = "soak"  # of keys, and of objects
BEAT = ConsumerConfig(idle_heartbeat=0.3)

_LONGEST = 20.0  # seconds of an activity whose calls have no time limit

Activity = Callable[[Any, Random, float], Awaitable[None]]


async def taken(reader: Any, seconds: float) -> None:
    """Read for some seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        try:
            await reader.next(timeout=max(end - loop.time(), 0.01))
        except jsclient.RequestTimeoutError:
            return


async def push(js: Any, chance: Random, seconds: float) -> None:
    async with await js.subscribe(SUBJECTS, stream=STREAM, config=BEAT) as sub:
        await taken(sub, seconds)
        if chance.random() < 0.5:
            await sub.drain()
            async for _ in sub:  # what has arrived; without its reader, the handle would wait for it
                pass


async def callback(js: Any, chance: Random, seconds: float) -> None:
    async def handle(message: Any) -> None:
        await asyncio.sleep(0)

    async with await js.subscribe(SUBJECTS, stream=STREAM, callback=handle):
        await asyncio.sleep(seconds)


async def ordered(js: Any, chance: Random, seconds: float) -> None:
    async with await js.subscribe(SUBJECTS, stream=STREAM, ordered=True, config=BEAT) as sub:
        await taken(sub, seconds)


async def fetch(js: Any, chance: Random, seconds: float) -> None:
    async with await js.pull_subscribe(SUBJECTS, stream=STREAM) as psub:
        for message in await psub.fetch(20, expires=max(seconds, 0.1)):
            await message.ack()


async def messages(js: Any, chance: Random, seconds: float) -> None:
    async with (
        await js.pull_subscribe(SUBJECTS, stream=STREAM) as psub,
        psub.messages(max_messages=20, expires=2.0, idle_heartbeat=0.5) as reader,
    ):
        await taken(reader, seconds)


async def work(js: Any, chance: Random, seconds: float) -> None:
    async def handle(message: Any) -> None:
        await asyncio.sleep(chance.choice((0, 0.01)))

    async with await js.pull_subscribe(SUBJECTS, stream=STREAM) as psub, psub.run(handle, concurrency=4):
        await asyncio.sleep(seconds)


async def ordered_pull(js: Any, chance: Random, seconds: float) -> None:
    async with (
        js.ordered_consumer(STREAM) as consumer,
        consumer.messages(max_messages=20, expires=2.0) as reader,
    ):
        await taken(reader, seconds)


async def each(js: Any, chance: Random, seconds: float) -> None:
    push_by = chance.choice(("consumer", "republish", None))
    async with await js.topic(SUBJECT, stream=STREAM).each("now", push=push_by, quiet=0.5) as reader:
        await taken(reader, seconds)


async def latest(js: Any, chance: Random, seconds: float) -> None:
    async with js.topic(SUBJECT, stream=STREAM).latest(quiet=0.5) as reader:
        await taken(reader, seconds)


async def publish(js: Any, chance: Random, seconds: float) -> None:
    await js.publish("s.p", b"x", **({"msg_id": str(chance.random())} if chance.random() < 0.5 else {}))


async def publisher(js: Any, chance: Random, seconds: float) -> None:
    async with js.publisher() as pub:
        for _ in range(200):
            await pub.publish("s.p", b"x", msg_id=str(chance.random()))


async def batch(js: Any, chance: Random, seconds: float) -> None:
    async with js.batch() as pub:
        for _ in range(20):
            await pub.publish("s.p", b"x")


async def ingest(js: Any, chance: Random, seconds: float) -> None:
    async with js.fast_ingest() as pub:
        for _ in range(200):
            await pub.publish("s.p", b"x")


async def requests(js: Any, chance: Random, seconds: float) -> None:
    stream = await js.stream(STREAM)
    await stream.info()
    [_ async for _ in stream.get_batch(10)]


async def epochs(js: Any, chance: Random, seconds: float) -> None:
    topic = js.epochs("E")
    async with (
        asyncio.timeout(_LONGEST),  # without it, opening waits as long as the server cannot be reached
        await topic.subscribe() as sub,
        await topic.publisher(chance.randrange(2), takeover=True) as pub,
    ):
        time = max((one for one in pub.frontier), default=0)
        await pub.send(time, ["x"])
        await pub.advance(time + 1)
        async with asyncio.timeout(max(seconds, 0.05)):
            await anext(aiter(sub))


async def kit(js: Any, chance: Random, seconds: float) -> None:
    created = await js.notifier_kit("k.a", stream="K", quiet=0.5)
    await created.updater.update_state(1)
    await created.notifier.get_update_since()


# --- plain messages and services -------------------------------------------------------------------------


async def plain(js: Any, chance: Random, seconds: float) -> None:
    async with await js.core.subscribe("plain.>", queue=chance.choice((None, "q"))) as sub:
        for _ in range(20):
            await js.core.publish("plain.a", b"x", headers={"N": "1"} if chance.random() < 0.5 else None)
        await js.core.flush()
        await taken(sub, seconds / 2)


async def service(js: Any, chance: Random, seconds: float) -> None:
    async def answer(request: Any) -> None:
        await request.respond(request.data)

    name = f"svc-{chance.randrange(3)}"
    async with await js.core.add_service(name, "1.0.0") as running:
        await running.add_endpoint("echo", answer, subject=f"{name}.echo")
        await js.core.flush()
        replies = [js.core.request(f"{name}.echo", b"%d" % number, timeout=1.0) for number in range(10)]
        await asyncio.gather(*replies)
        [_ async for _ in js.core.request_many("$SRV.PING", b"", stall=0.05, timeout=0.3)]


# --- buckets ---------------------------------------------------------------------------------------------


async def key_value(js: Any, chance: Random, seconds: float) -> None:
    kv, key = await js.key_value(BUCKET), f"k.{chance.randrange(50)}"
    await kv.put(key, b"%d" % chance.randrange(100))
    await kv.update_with("count", lambda value: b"%d" % (int(value or 0) + 1))
    await kv.get(key)
    await kv.put_many({f"m.{number}": b"x" for number in range(50)})
    await kv.get_many("m.*")
    [_ async for _ in kv.keys("k.*")]
    async with kv.transaction() as tx:
        tx.put("t.a", b"1")
        tx.put("t.b", b"1")
    if chance.random() < 0.3:
        await kv.delete(key)


async def watch(js: Any, chance: Random, seconds: float) -> None:
    kv = await js.key_value(BUCKET)
    async with (
        kv.watch("k.*", ignore_deletes=chance.random() < 0.5) as reader,
        asyncio.timeout(seconds + 0.05),
    ):
        async for _ in reader:
            pass


async def cache(js: Any, chance: Random, seconds: float) -> None:
    kv = await js.key_value(BUCKET)
    async with kv.cache("k.*") as entries:
        revision = await kv.put("k.0", b"x")
        await entries.wait_for(revision, timeout=2.0)
        assert entries["k.0"].revision >= revision


async def lock(js: Any, chance: Random, seconds: float) -> None:
    kv = await js.key_value(BUCKET)
    async with kv.lock(f"lock.{chance.randrange(3)}", ttl=2.0, timeout=1.0) as held:
        await held.put("locked", b"x")
        await asyncio.sleep(seconds)


async def objects(js: Any, chance: Random, seconds: float) -> None:
    store, name = await js.object_store(BUCKET), f"o.{chance.randrange(4)}"
    content = bytes(chance.randrange(400_000))
    await store.put(name, content)
    async with store.open(name) as file:
        [_ async for _ in file]


ACTIVITIES: list[Activity] = [
    push, callback, ordered, fetch, messages, work, ordered_pull, each, latest, publish, publisher, batch, ingest,
    requests, epochs, kit, plain, service, key_value, watch, cache, lock, objects,
]  # fmt: skip


async def connection(urls: str, options: dict[str, Any], chance: Random, seconds: float) -> None:
    """A separate connection, with open handles when it is closed."""
    async with jsclient.connect(urls, **options) as js:
        await asyncio.gather(
            *(chance.choice(ACTIVITIES)(js, chance, seconds) for _ in range(3)), return_exceptions=True
        )
