"""Closing a connection: what is in flight ends, and a silent server delays it once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

import jsclient
from integration.kit.clients.foreign import client
from integration.kit.judge.leaks import describe_task, running_tasks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.wire import TO_CLIENT
from jsclient._runtime.connection.tcp_transport import TcpTransport


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap, reconnect_time_wait=0.1, timeout=10.0)


async def test_close_ends_requests_in_flight(tap: Any, near: Any, stream: OwnStream) -> None:
    await near.publish(stream.subject("a"), b"x")
    tap.stall(TO_CLIENT)
    waiting = [
        asyncio.create_task(near.ping(timeout=30)),
        asyncio.create_task(near.publish(stream.subject("a"), b"x", timeout=30)),
    ]
    await eventually(lambda: len(tap.sent(stream.subject("a"))) == 2, what="the requests")
    await near.close()
    results = await within(10, asyncio.gather(*waiting, return_exceptions=True), "publish and ping")
    assert [type(result) for result in results] == [jsclient.ClosedError] * 2
    tap.unstall()


async def test_close_with_a_silent_server(tap: Any, near: Any, stream: OwnStream) -> None:
    for _ in range(30):
        await near.subscribe(stream.all)
    tap.stall()
    started = time.monotonic()
    await near.close()
    assert time.monotonic() - started < 25, "not a second and more for each subscription"
    tap.unstall()


async def test_reset_after_cancelled_wait(background: Any) -> None:
    """The error of a reset, which the cancelled call does not raise, is not reported as unseen."""
    peers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: peers.put_nowait(writer), "127.0.0.1", 0)
    async with server:
        transport = TcpTransport()
        port = server.sockets[0].getsockname()[1]
        await transport.connect(urlsplit(f"nats://127.0.0.1:{port}"))
        peer = await within(30, peers.get(), "the connection")
        transport.write(b"x" * 20_000_000)  # more than fits, so that it does not close at once
        transport.close()
        waiting = asyncio.create_task(transport.wait_closed())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        peer.transport.abort()
        await eventually(lambda: transport.failure() or transport._lost, 60, "the reset")
        await asyncio.sleep(0)
        del waiting
    gc.collect()
    await asyncio.sleep(0)
    assert background.unexpected == []


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "user's"])
@pytest.mark.parametrize("turns", [1, 3, 10, 100])
async def test_cancelled_close_closes_at_once(
    turns: int, foreign: bool, server: Any, connect: Any, stream: OwnStream
) -> None:
    """`async with` does not call it again: the connection stayed open, with its tasks."""
    async with contextlib.AsyncExitStack() as stack:
        if foreign:
            nc = await stack.enter_async_context(client(server))
            js = jsclient.JetStream(nc)
        else:
            js = await connect(server)
        before = running_tasks()
        sub = await js.subscribe(stream.all)
        worker = (
            await (await js.subscribe(stream.all, durable="w", delete_on_close=True)).run(_sleep).__aenter__()
        )
        asking = asyncio.create_task(sub.next())
        closing = asyncio.create_task(js.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert js.is_closed
        assert worker is not None
        ended = await within(30, asyncio.gather(asking, return_exceptions=True), "the reader")
        assert isinstance(ended[0], jsclient.ClosedError)
        await eventually(lambda: not left(before), 30, "the end of all tasks")
        await within(30, js.close(), "a second close")
        if foreign:
            await nc.flush()  # the user's connection is not closed
        else:
            assert js._connection.transport.is_closing()


def left(before: set[Any]) -> list[str]:
    return [describe_task(task) for task in running_tasks() - before]


async def test_cancelled_close_delivers_events(server: Any, connect: Any) -> None:
    events: list[Any] = []
    closed = asyncio.Event()

    async def slow(event: Any) -> None:
        await closed.wait()
        events.append(event)

    js = await connect(server, on_event=slow)
    js._context.emit(jsclient.events.Reconnected(url="x"))
    closing = asyncio.create_task(js.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert events == []
    closed.set()
    await eventually(lambda: len(events) == 1, what="the event")


@pytest.mark.nats_py
@pytest.mark.parametrize("way", ["timeout", "cancelled", "close", "drain"])
async def test_nats_py_reads_on_after_a_late_pong(way: str, own_server: Any) -> None:
    """nats-py fails on the PONG of a waiter that was cancelled: the user's connection stayed up and read nothing."""
    own = await own_server()
    async with client(own) as nc:
        js = jsclient.JetStream(nc)
        await js.ensure_stream("S", subjects=["s.>"], storage="memory")
        sub = await js.subscribe("s.>", durable="d", delete_on_close=True)
        await js.ping()
        own.pause()
        try:
            if way == "timeout":
                with pytest.raises(jsclient.RequestTimeoutError):
                    await js.ping(0.2)
            elif way == "drain":
                await js._connection.drain(sub._inbox, 0.2)
            else:
                cut = asyncio.create_task(js.ping() if way == "cancelled" else js.close())
                await asyncio.sleep(0.2 if way == "cancelled" else 1.2)
                cut.cancel()
                await asyncio.wait([cut])
        finally:
            own.resume()
        await within(30, nc.flush(20), "a PONG")
        await within(30, nc.request("$JS.API.INFO", b"", timeout=20), "an answer")
        await js.close()


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("kind", ["publisher", "subscriptions", "worker", "nothing"])
async def test_close_with_a_frozen_server_and_a_full_socket(kind: str, own_server: Any, connect: Any) -> None:
    """It was 50 s and more, and the second close raised `CancelledError`."""
    own = await own_server()
    js = await connect(own, timeout=30.0)
    await js.ensure_stream("S", subjects=["s.>"], storage="memory")
    running: Any = None
    if kind == "subscriptions":
        for _ in range(5):
            await js.subscribe("s.>")
    if kind == "worker":
        psub = await js.pull_subscribe("s.>", durable="w", delete_on_close=True)
        running = asyncio.ensure_future(psub.run(_sleep))

    async def flood() -> None:
        pub = js.publisher(timeout=60.0)
        while True:
            await pub.publish("s.a", b"x" * 100_000)

    flooding = asyncio.create_task(flood()) if kind != "nothing" else None
    await asyncio.sleep(0.2)
    own.pause()
    try:
        await asyncio.sleep(0.5)  # the flood fills the socket and the buffer
        started = time.monotonic()
        with contextlib.suppress(TimeoutError):  # a close that is cut short can be repeated
            await asyncio.wait_for(js.close(), 0.5)
        await js.close()
        assert time.monotonic() - started < 20
        assert js.is_closed
        ends = [task for task in (flooding, running) if task is not None]
        results = await within(30, asyncio.gather(*ends, return_exceptions=True), "the users of it")
        assert not any(isinstance(result, asyncio.CancelledError) for result in results)
    finally:
        own.resume()


async def _sleep(_: Any) -> None:
    await asyncio.sleep(0.1)


PROGRAM = """
import asyncio, sys, time
import jsclient

async def main():
    js = await jsclient.connect(sys.argv[1], connect_timeout=20, timeout=20)
    kind, stream, kept = sys.argv[2], sys.argv[3], []
    async def handle(message):
        await asyncio.sleep(0.2)
    async def read(readable):
        async for _ in readable:
            pass
    if kind == "worker":
        sub = await js.subscribe(f"{stream}.>", durable="d", delete_on_close=False)
        kept.append(await sub.run(handle).__aenter__())
    if kind == "pull worker":
        sub = await js.pull_subscribe(f"{stream}.>", durable="d", delete_on_close=False)
        kept.append(await sub.run(handle).__aenter__())
    if kind == "callback":
        await js.subscribe(f"{stream}.>", callback=handle)
    if kind == "ordered":
        kept.append(asyncio.create_task(read(await js.subscribe(f"{stream}.>", ordered=True))))
    if kind == "messages":
        sub = await js.pull_subscribe(f"{stream}.>", durable="d", delete_on_close=False)
        kept.append(asyncio.create_task(read(sub.messages())))
    if kind == "each":
        kept.append(asyncio.create_task(read(js.topic(stream).each())))
    if kind == "publisher":
        pub = js.publisher()
        kept += [await pub.publish(f"{stream}.a", b"x") for _ in range(1000)]
    await asyncio.sleep(0.3)
    global ended
    ended = time.monotonic()

asyncio.run(main())
print("took", round(time.monotonic() - ended, 2))
"""


@pytest.mark.core_cases(2)
@pytest.mark.parametrize(
    "kind", ["nothing", "worker", "pull worker", "callback", "ordered", "messages", "each", "publisher"]
)
async def test_program_that_forgets_close_ends_quickly_and_quietly(
    kind: str, server: Any, oracle: Any
) -> None:
    """`asyncio.run` cancels all tasks: "Task was destroyed" with a worker, 5 s with `each`. Durable consumers stay."""
    stream = f"FORGETS_{kind.replace(' ', '_')}"
    await oracle.create_stream(stream, [f"{stream}", f"{stream}.>"])
    for _ in range(20):
        await oracle.publish(f"{stream}.a", b"x")
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, server.url, kind, stream,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await within(90, program.communicate(), "the program")
    if kind in ("worker", "pull worker", "messages"):
        assert await oracle.consumer_names(stream) == ["d"]
    await oracle.delete_stream(stream)
    assert err.decode() == ""
    assert float(out.decode().split()[-1]) < 4.5


OPENING = """
import asyncio, os, sys
import jsclient

async def main(number):
    js = await jsclient.connect(sys.argv[1], connect_timeout=20)
    stream = sys.argv[2]
    async def handle(message):
        pass
    async def pull(name):
        return await js.pull_subscribe(f"{stream}.>", durable=f"{name}_{number}_{os.getpid()}", delete_on_close=True)
    async def ordered_reader():
        async with js.ordered_consumer(stream) as reader:
            await reader.next()
    async def fetch():
        await (await pull("fetch")).fetch(5)
    async def worker():
        await (await pull("worker")).run(handle)
    openings = [
        js.subscribe(f"{stream}.>", ordered=True), ordered_reader(), js.topic(f"{stream}.*").table(), fetch(),
        pull("pull"), worker(),
        js.subscribe(f"{stream}.>", durable=f"push_{number}_{os.getpid()}", delete_on_close=True),
        js.subscribe(f"{stream}.>", callback=handle),
    ]
    turn = number % len(openings)
    for opening in openings[turn:] + openings[:turn]:
        asyncio.ensure_future(opening)
    await asyncio.sleep(0.001 + 0.001 * (number % 20))

for number in range(20):
    asyncio.run(main(number))
print("ended")
"""


@pytest.mark.limit(270)
async def test_program_that_ends_while_a_subscription_opens_is_quiet(server: Any, oracle: Any) -> None:
    """The undo of a request is started while `asyncio.run` cancels: "Task was destroyed but it is pending!"."""
    stream = "FORGETS_opening"
    await oracle.create_stream(stream, [f"{stream}", f"{stream}.>"])
    for _ in range(20):
        await oracle.publish(f"{stream}.a", b"x")
    programs = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENING, server.url, stream,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    ends = await within(240, asyncio.gather(*(program.communicate() for program in programs)), "the programs")
    await oracle.delete_stream(stream)
    assert [(out.decode(), err.decode()) for out, err in ends] == [("ended\n", "")] * 2


AWAY = """
import asyncio, sys
import jsclient

async def main():
    lost = asyncio.Event()
    def heard(event):
        if isinstance(event, jsclient.Disconnected):
            lost.set()
    js = await jsclient.connect(sys.argv[1], timeout=60, connect_timeout=20, on_event=heard)
    async def handle(message):
        pass
    async def push():
        async with await js.subscribe("s", ordered=True) as sub:
            await sub.next()
    async def work():
        options = {"durable": "d", "delete_on_close": True}
        async with await js.pull_subscribe("s", **options) as sub, sub.run(handle):
            await asyncio.Event().wait()
    async def read():
        while True:
            try:
                await {"push": push, "work": work}[sys.argv[2]]()
            except jsclient.JetStreamError:
                await asyncio.sleep(0.01)
    reading = asyncio.create_task(read())
    await asyncio.sleep(0.5)
    print("reading", flush=True)
    await lost.wait()

asyncio.run(main())
print("ended")
"""


@pytest.mark.parametrize("kind", ["push", "work"])
async def test_program_that_tries_again_ends_while_the_server_is_away(kind: str, own_server: Any) -> None:
    """The failed deletion of the consumer replaced the cancellation: the program tried again, and never ended."""
    own = await own_server()
    async with Oracle(own.url) as oracle:
        await oracle.create_stream("S", ["s"])
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        AWAY,
        own.url,
        kind,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert await within(60, program.stdout.readline(), "the program") == b"reading\n"
        await own.kill()
        out, err = await within(60, program.communicate(), "the end of the program")
    finally:
        if program.returncode is None:
            program.kill()
    assert out == b"ended\n"
    assert b"destroyed" not in err
    assert b"Traceback" not in err


async def test_use_after_close_says_what_to_do(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    await stream.publish(2)
    ended = await js.subscribe(stream.all)
    sub = await js.pull_subscribe(stream.all)
    message = await sub.next()
    handle = await js.stream(stream.name)
    consumer = await handle.create_consumer(name="c")
    await ended.unsubscribe()
    with pytest.raises(jsclient.ClosedError, match="the subscription is closed: subscribe again"):
        await ended.next()
    await js.close()
    for call in (
        lambda: js.publish(stream.subject("x"), b""),
        js.__aenter__,
        handle.info,
        lambda: sub.fetch(1),
        consumer.next,
        message.ack,
        message.ack_sync,
        lambda: js.subscribe(stream.all),
        lambda: js.topic(stream.all).each(),
    ):
        with pytest.raises(
            jsclient.ClosedError, match=r"the connection is closed: connect again, with jsclient.conn"
        ):
            await call()
