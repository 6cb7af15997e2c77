from __future__ import annotations
import asyncio, random
from typing import Any
import pytest
import jsclient
from integration.kit.streams import OwnStream
from integration.kit.leaks import no_leaks
from integration.kit.waiting import eventually, within
from integration.test_topic_review import live, numbers, stream  # noqa
from datetime import datetime, UTC, timedelta

async def steps(make, n):
    task = asyncio.ensure_future(make())
    for _ in range(n):
        await asyncio.sleep(0)
        if task.done(): break
    done = task.done()
    task.cancel()
    try:
        r = await task
    except asyncio.CancelledError:
        return None, False
    except jsclient.JetStreamError as e:
        return e, True
    return r, True

@pytest.mark.parametrize("push", ["consumer", "republish", None])
@pytest.mark.parametrize("start", ["first", "now", "time"])
async def test_cancel_open(js: Any, oracle: Any, stream: OwnStream, push: Any, start: Any, server: Any) -> None:
    await stream.publish(5, "a")
    topic = js.topic(stream.subject("a"))
    if start == "time":
        start = datetime.now(UTC) - timedelta(hours=1)
    async with await topic.each(): pass
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=getattr(server, "monitor", None), settle=6):
        n_open = len(js._context.open)
        for n in [*range(0, 60), *range(60, 600, 30)]:
            r, done = await steps(lambda: _open(topic, start, push), n)
            if r is not None:
                await r.close()
        async def loop():
            async for rec in topic.each(push=push):
                pass
        for n in range(0, 400, 7):
            await steps(loop, n)
            await asyncio.sleep(random.choice([0, 0.002]))
        await eventually(lambda: len(js._context.open) == n_open)

async def _open(topic, start, push):
    return await topic.each(start, push=push)

async def test_cancel_publisher(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with no_leaks(oracle=oracle, streams=[stream.name], settle=6):
        n_open = len(js._context.open)
        for n in range(0, 120, 3):
            topic = js.topic(stream.subject(f"a{n}"))
            async def go():
                async with topic.publisher(chained=bool(n % 2)) as pub:
                    await pub.publish(b"1")
                    await pub.publish(b"2")
                    await pub.finish(b"x")
            await steps(go, n)
            # whatever happened, it can be ended
            async with js.topic(stream.subject(f"a{n}")).each() as r:
                pass
        assert len(js._context.open) == n_open, js._context.open

@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("frames", [True])
async def test_chained_cuts(connect: Any, proxy: Any, js, oracle, stream, seed, frames):
    near = await proxy()
    far = await connect(near)
    rnd = random.Random(seed)
    topic = far.topic(stream.subject("a"))
    total = 1500
    async with topic.publisher(chained=True, max_in_flight=200) as pub:
        async def cutter():
            for _ in range(6):
                await asyncio.sleep(rnd.uniform(0.01, 0.1))
                near.cut()
        c = asyncio.ensure_future(cutter())
        for n in range(total):
            while True:
                try:
                    await pub.publish(b"%d" % n)
                    break
                except jsclient.RequestTimeoutError:
                    pass
            if n % 50 == 0: await asyncio.sleep(0.01)
        await c
        end = await within(30, pub.finish(b"e"))
    got = [m.payload for m in await stream.messages()]
    assert got == [*(b"%d" % n for n in range(total)), b"e"]

async def test_chained_cancel_publishes(js, oracle, stream):
    topic = js.topic(stream.subject("a"))
    acked = []
    async with topic.publisher(chained=True, max_in_flight=3) as pub:
        rnd = random.Random(3)
        futs = []
        for n in range(300):
            t = asyncio.ensure_future(pub.publish(b"%d" % n))
            for _ in range(rnd.choice([0, 0, 1, 2, 5])): await asyncio.sleep(0)
            if rnd.random() < .3: t.cancel()
            try: futs.append((n, await t))
            except asyncio.CancelledError: pass
        for n, f in futs:
            await f
            acked.append(b"%d" % n)
    assert [m.payload for m in await stream.messages()] == acked

async def test_foreign(foreign_js, oracle, stream):
    for push in ("consumer", "republish", None):
        topic = foreign_js.topic(stream.subject(push or "none"))
        async with topic.each(push=push, quiet=0.2) as r:
            async with topic.publisher(chained=False) as pub:
                for n in range(200):
                    await pub.publish(b"%d" % n)
                await pub.finish(b"z")
            assert await numbers(r, 200) == [*range(200)]
            with pytest.raises(jsclient.ClosedError):
                await within(5, r.next())
            assert r.completion == b"z"

async def test_foreign_chained_cancel(foreign_js, oracle, stream):
    topic = foreign_js.topic(stream.subject("a"))
    acked = []
    rnd = random.Random(5)
    try:
        async with topic.publisher(chained=True, max_in_flight=3) as pub:
            futs = []
            for n in range(300):
                t = asyncio.ensure_future(pub.publish(b"%d" % n + b" " * 100_000))
                for _ in range(rnd.choice([0, 1, 2, 3, 5, 9])): await asyncio.sleep(0)
                if rnd.random() < .3: t.cancel()
                try: futs.append((n, await t))
                except asyncio.CancelledError: pass
            for n, f in futs:
                try:
                    await f
                    acked.append(n)
                except jsclient.JetStreamError as e:
                    print(n, repr(e)); break
    except jsclient.JetStreamError as e:
        print(repr(e))
    stored = [int(m.payload) for m in await stream.messages()]
    print(len(acked), len(stored))
    assert set(acked) <= set(stored)

async def test_latest_remade(js, oracle, stream):
    topic = js.topic(stream.subject("a"))
    await stream.publish(10, "a")
    r = topic.latest(quiet=0.5)
    print(await r.next(5))
    await oracle.delete_stream(stream.name)
    await oracle.create_stream(stream.name, subjects=[stream.all], storage="memory", allow_direct=True, republish=live(stream))
    await stream.publish(1, "a")
    print(await within(10, r.next(8)))

async def test_work_changed(js, oracle, stream):
    topic = js.topic(stream.subject("a"))
    async with topic.work("g", ack_wait=5) as w: pass
    try:
        async with topic.work("g", ack_wait=7, max_deliver=3) as w:
            print("accepted", (await stream.consumer_info("g"))["config"])
    except jsclient.JetStreamError as e:
        print(repr(e))

async def test_future_start(js, oracle, stream):
    await stream.publish(3, "a")
    async with js.topic(stream.subject("a")).each(datetime.now(UTC) + timedelta(hours=1)) as r:
        await stream.publish(1, "a", first=7)
        try: print(await r.next(1))
        except jsclient.JetStreamError as e: print(repr(e))

async def test_domain(connect, own_server, oracle_for):
    own = await own_server(config="jetstream { domain: hub }\n") if False else None

@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_purge_while_reading(js, oracle, stream, push):
    topic = js.topic(stream.subject("a"))
    async with topic.each(push=push, quiet=0.1, max_pending=20) as r:
        stored = {}
        async def produce():
            async with topic.publisher() as pub:
                for n in range(3000):
                    await pub.publish(b"%d" % n)
                    if n % 100 == 0: await asyncio.sleep(0.001)
                    if n % 1000 == 999: await pub.flush(); await stream.purge()
        p = asyncio.ensure_future(produce())
        got = []
        try:
            while len(got) < 3000:
                got.append(int((await r.next(3)).data))
        except jsclient.JetStreamError as e:
            print(repr(e), len(got))
        await p
        assert got == [*range(len(got))]

@pytest.mark.parametrize("push", ["consumer", "republish", None])
@pytest.mark.parametrize("config", [dict(max_msgs=20), dict(max_msgs_per_subject=3), dict(max_age=100_000_000), dict(max_bytes=4000)])
@pytest.mark.parametrize("subs", ["a", "*"])
async def test_limits(js, oracle, make_stream, push, config, subs):
    stream = await make_stream(allow_direct=True, **config)
    await oracle.update_stream(stream.name, republish=live(stream))
    topic = js.topic(stream.subject(subs))
    seqs = {}
    rnd = random.Random(1)
    async with topic.each(push=push, quiet=0.1, max_pending=50) as r:
        async def produce():
            for n in range(600):
                tail = rnd.choice("ab")
                ack = await js.publish(stream.subject(tail), b"%d" % n)
                seqs[ack.seq] = tail
                if rnd.random() < .02: await asyncio.sleep(0.03)
        p = asyncio.ensure_future(produce())
        got, err = [], None
        try:
            while True:
                got.append((await r.next(1.0)).seq)
                if rnd.random() < .02: await asyncio.sleep(0.02)
        except jsclient.JetStreamError as e:
            err = e
        await p
    truth = [s for s in sorted(seqs) if subs == "*" or seqs[s] == subs]
    print(repr(err), len(got), len(truth))
    if subs == "*" and push == "republish":
        assert len(set(got)) == len(got)
        if isinstance(err, jsclient.RequestTimeoutError): assert sorted(got) == truth
    else:
        assert got == truth[:len(got)]
        if isinstance(err, jsclient.RequestTimeoutError): assert got == truth
