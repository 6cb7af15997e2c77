"""What many beginnings and ends leave behind: nothing (R12)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.leaks import no_leaks, running_tasks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import numbers, of, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from jsclient import ConsumerConfig, Reconnected
from jsclient._runtime.connection.tcp_transport import TcpTransport

ROUNDS = 300
MEGABYTE = 1 << 20


async def _growth(once: Callable[[], Awaitable[None]], rounds: int) -> float:
    """Bytes that each of `rounds` calls leaves allocated, once warm."""
    for _ in range(20):
        await once()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(rounds):
        await once()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / rounds


KINDS = ["push", "callback", "ordered", "queue", "fetch", "messages"]


async def _subscribe_and_use(kind: str, js: Any, stream: OwnStream) -> Any:
    if kind == "fetch":
        sub = await js.pull_subscribe(stream.all)
        await sub.fetch(1)
        return sub
    if kind == "messages":
        sub = await js.pull_subscribe(stream.all)
        async with sub.messages() as reader:
            await reader.next(timeout=5)
        return sub
    options: dict[str, Any] = {
        "push": {},
        "callback": {"callback": lambda _: None},
        "ordered": {"ordered": True},
        "queue": {"queue": "q"},
    }[kind]
    sub = await js.subscribe(stream.all, **options)
    if kind != "callback":
        await sub.next(timeout=5)
    return sub


@pytest.mark.full
@pytest.mark.row(81)
@pytest.mark.covers("J108", "J110", "J113")
@pytest.mark.parametrize("end", ["unsubscribe", pytest.param("drain", marks=pytest.mark.full)])
async def test_subscriptions_leave_nothing(
    end: str, js: Any, oracle: Oracle, server: Any, stream: OwnStream
) -> None:
    """R12: 300 of six kinds: 0 tasks, 0 consumers, 0 subscriptions. 100 tasks and 201 consumers in nats-py."""
    await stream.publish(1)
    await js.account_info()

    async def once() -> None:
        for kind in KINDS:
            sub = await _subscribe_and_use(kind, js, stream)
            await getattr(sub, end)()
            if end == "drain" and kind in {"push", "queue", "ordered"}:
                # What had arrived is still to be taken, then the end takes effect.
                async for _ in sub:
                    pass

    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        grown = await _growth(once, ROUNDS // len(KINDS))
    print(f"{end}: {grown:.0f} bytes a round of {len(KINDS)} subscriptions")
    assert grown * ROUNDS / len(KINDS) < MEGABYTE
    assert js._context.open == set()


async def test_connections_leave_nothing(server: Any, oracle: Oracle, stream: OwnStream) -> None:
    """R12: 100 connects, each with a subscription, a publish and a close."""
    await stream.publish(1)

    async def once() -> None:
        async with jsclient.connect(server.url) as js:
            sub = await js.subscribe(stream.all)
            await sub.next(timeout=5)
            await js.publish(stream.subject("x"), b"x")

    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        grown = await _growth(once, 100)
    print(f"{grown:.0f} bytes a connection")
    assert grown * 100 < MEGABYTE


async def test_failed_connects_leave_nothing(server: Any) -> None:
    """R12: refused credentials and absent servers too."""

    async def once() -> None:
        with pytest.raises(jsclient.ConnectError):
            await jsclient.connect("nats://127.0.0.1:1")

    async with no_leaks(monitor=server.monitor):
        assert await _growth(once, 100) * 100 < MEGABYTE


async def test_reconnects_leave_nothing(
    proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R12: 20 reconnects of 10 subscriptions: 10 consumers, 10 subscriptions, 0 tasks, nothing twice."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    config = ConsumerConfig(idle_heartbeat=2.0, ack_wait=600)  # nothing is acked here
    subs = [await js.subscribe(stream.all, ordered=True, config=config) for _ in range(6)]
    subs += [await js.subscribe(stream.all, durable=f"d{n}", config=config) for n in range(4)]
    await stream.publish(1)
    for sub in subs:
        assert numbers(await take(sub, 1)) == [1]
    gc.collect()
    tasks = len(running_tasks())
    for number in range(2, 22):
        tap.cut()
        await eventually(lambda: len(of(Reconnected, events)) == number - 1, what="the reconnect")  # noqa: B023
        await stream.publish(1, first=number)
        for sub in subs:
            actual = numbers(await take(sub, 1))
            assert actual == [number], (sub, actual)
    for sub in subs[6:]:
        assert sub.pending == 0
    await eventually(lambda: len(running_tasks()) <= tasks, what="the tasks of before")
    await eventually(lambda: _as_many(stream, 10), what="ten consumers")
    assert len(tap.link.subs) == 11  # with the inbox for answers
    # Recordings and links of the proxy are the kit's. The library's own tables are these.
    assert len(js._connection.subscriptions) == len(js._connection.reader.sinks) == 11


async def _as_many(stream: OwnStream, count: int) -> bool:
    return len(await stream.consumer_names()) == count


@pytest.mark.row(74)
async def test_closing_ends_everything_at_once(server: Any, oracle: Oracle, stream: OwnStream) -> None:
    """R12, R19: open subscriptions, running fetches and loops when the connection is closed."""
    await stream.publish(5)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        js = await jsclient.connect(server.url)
        push = await js.subscribe(stream.all)
        await js.subscribe(stream.all, ordered=True)
        await js.subscribe(stream.all, callback=lambda _: asyncio.sleep(0.01))
        psub = await js.pull_subscribe(stream.all)
        await psub.fetch(5)
        waiting = [
            asyncio.create_task(psub.fetch(1, expires=20)),
            asyncio.create_task(psub.messages().next()),
            asyncio.create_task(_exhaust(push)),
        ]
        await stream.until_asked(psub.consumer, 2)
        await asyncio.wait_for(js.close(), 30)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    assert [type(result) for result in results[:2]] == [jsclient.ClosedError, jsclient.ClosedError]
    assert results[2] == 5


async def _exhaust(sub: Any) -> int:
    count = 0
    async for _ in sub:
        count += 1
    return count


async def test_reconnect_during_close(connect: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` ends it, even if something loses the cancellation, as `asyncio.wait_for` may."""
    near = await proxy()
    js = await connect(near, reconnect_time_wait=0.5)
    connecting, real = asyncio.Event(), TcpTransport.connect

    async def succeed(self: Any, *args: Any, **options: Any) -> None:
        await real(self, *args, **options)
        connecting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)

    monkeypatch.setattr(TcpTransport, "connect", succeed)
    near.cut()
    await within(10, connecting.wait(), "the reconnect")
    await within(10, js.close(), "close")


def test_program_that_ends_without_close_warns_of_nothing(server: Any) -> None:
    """INFO arrives as the loop ends: its task is cancelled before it began."""

    async def main() -> None:
        js = await jsclient.connect(server.url)
        js._connection.on_line(b'INFO {"connect_urls":["127.0.0.1:1"]}')

    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(one.message) for one in reports if "never awaited" in str(one.message)] == []


async def _publish(js: Any, subject: str) -> None:
    await js.publish(subject, b"2", expected_last_seq=99, timeout=0.3)


async def _publish_in_a_window(js: Any, subject: str) -> None:
    async with js.publisher(timeout=0.3) as publisher:
        await (await publisher.publish(subject, b"2", expected_last_seq=99))


async def _request(js: Any, subject: str) -> None:
    await js.core.request(subject, b"2", timeout=0.3)


@pytest.mark.parametrize("lost", [True, False], ids=["connection lost", "no answer"])
@pytest.mark.parametrize("ask", [_publish, _publish_in_a_window, _request])
async def test_errors_of_requests_are_freed(
    ask: Any, lost: bool, connect: Any, proxy: Any, stream: OwnStream
) -> None:
    """The frames of a traceback refer to the whole connection, so an error that is never freed keeps it, too."""
    link = await proxy()
    js = await connect(link)
    await js.publish(stream.subject("a"), b"1")
    dropped = link.drop_frames(match.match(op="MSG", direction=match.TO_CLIENT))
    errors: list[weakref.ref[BaseException]] = []

    async def fail() -> None:
        try:
            await ask(js, stream.subject("a"))
        except jsclient.JetStreamError as error:
            errors.append(weakref.ref(error))

    tasks = [asyncio.create_task(fail()) for _ in range(5)]
    if lost:
        await dropped.wait()
        link.cut()
    await within(30, asyncio.gather(*tasks))
    dropped.remove()
    del tasks
    await eventually(lambda: js.is_connected)
    gc.collect()
    assert len(errors) == 5
    assert [error() for error in errors if error() is not None] == []


class _Application:
    last: Any = None

    def on_event(self, event: Any) -> None:
        pass


@pytest.mark.parametrize("kind", ["a delivery", "a plain message"])
async def test_stored_message_does_not_keep_the_application(
    kind: str, server: Any, connect: Any, stream: OwnStream
) -> None:
    """A message refers to its connection, and the connection must not refer to the application once it is closed."""
    application = _Application()
    js = await connect(server, on_event=application.on_event)
    await stream.publish(1)
    if kind == "a delivery":
        async with await js.pull_subscribe(stream.all) as psub:
            (application.last,) = await psub.fetch(1)
    else:
        async with await js.core.subscribe(f"plain.{stream.name}") as sub:
            await js.core.publish(f"plain.{stream.name}", b"x")
            application.last = await sub.next(timeout=5)
    freed = weakref.ref(application)
    await js.close()
    del application, js
    gc.collect()
    assert freed() is None
