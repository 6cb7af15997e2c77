"""The same on uvloop: messages in bulk, plain and with TLS, and over the end of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.judge.waiting import eventually
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import OwnServer
from jsclient._runtime.connection.tcp_transport import TcpTransport

uvloop = pytest.importorskip("uvloop")  # not on Windows

COUNT = 30_000  # of 1 kB: many times what one read takes
CUTS = 20
MESSAGES = 300


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within(main))


async def within(main: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(300):
        await main()


async def fill(js: jsclient.JetStream) -> None:
    await js.create_stream("S", ["s"], storage="file")
    await js.publish_many("s", [b"%d " % number + bytes(1000) for number in range(1, COUNT + 1)])


async def read(js: jsclient.JetStream, taken: Callable[[int], Awaitable[None]] | None = None) -> list[int]:
    results: list[int] = []
    async with await js.subscribe("s", ordered=True) as sub:
        async for message in sub:
            results.append(int(message.data.split()[0]))
            if taken is not None:
                await taken(len(results))
            if len(results) == COUNT:
                return results
    return results


@pytest.mark.full
@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.full), True], ids=["plain", "tls"])
def test_bulk(tmp_path: Path, tls: bool) -> None:
    options: dict[str, Any] = {}
    config: dict[str, Any] = {}
    if tls:
        ca = trustme.CA()
        config = {"tls": certificate(ca, tmp_path, "127.0.0.1", "localhost")}
        options = {"tls": context(ca)}

    async def main() -> None:
        own = OwnServer(store_dir=tmp_path / "server", config=config)
        await own.start()
        try:
            async with await jsclient.connect(own.url, **options) as js:
                await fill(js)
                assert await read(js) == list(range(1, COUNT + 1))
                stream = await js.stream("S")
                consumer = await stream.create_consumer(durable_name="c", ack_policy="none")
                batch = await consumer.fetch(COUNT, expires=100)
                assert len(batch) == COUNT
        finally:
            await own.stop()

    run(main)


def test_connection_lost_in_bulk(tmp_path: Path) -> None:
    async def main() -> None:
        own = OwnServer(store_dir=tmp_path / "server")
        await own.start()
        try:
            async with (
                await jsclient.connect(own.url, reconnect_time_wait=0.05) as js,
                await jsclient.connect(own.url, reconnect_time_wait=0.05) as other,
            ):
                await fill(other)

                async def taken(count: int) -> None:
                    if count in {5_000, 15_000}:
                        await own.restart()

                assert await read(js, taken) == list(range(1, COUNT + 1))
        finally:
            await own.stop()

    run(main)


def test_calls_meet_lost_connections(tmp_path: Path) -> None:
    """Calls raise the library's errors only, and each loss is reported: uvloop's transport raises `RuntimeError`."""

    async def main() -> None:
        own = OwnServer(store_dir=tmp_path / "server")
        await own.start()
        events: list[jsclient.Event] = []
        untold: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
        others: list[BaseException] = []
        try:
            async with (
                Proxy(own.url) as tap,
                await jsclient.connect(tap.url, reconnect_time_wait=0.02, on_event=events.append) as js,
            ):
                await js.create_stream("S", ["s"], storage="memory")

                async def call() -> None:
                    while True:
                        try:
                            await js.publish("s", b"1", timeout=0.5)
                            await js.ping(0.5)
                        # This is the documented outcome of a lost connection. Any other error is collected.
                        except jsclient.JetStreamError:
                            await asyncio.sleep(0)
                        except Exception as error:  # noqa: BLE001
                            others.append(error)

                calls = [asyncio.ensure_future(call()) for _ in range(5)]
                for cut in range(1, CUTS + 1):
                    tap.cut()
                    await eventually(partial(count_of, events, jsclient.Reconnected, cut), what="a reconnect")
                for task in calls:
                    task.cancel()
                assert [task for task in calls if task.done()] == []
        finally:
            await own.stop()
        assert others == []
        assert untold == []
        assert sum(isinstance(event, jsclient.Disconnected) for event in events) == CUTS
        assert [str(event) for event in events if isinstance(event, jsclient.ErrorRaised)] == []

    run(main)


def count_of(reported: list[jsclient.Event], kind: type[jsclient.Event], count: int) -> bool:
    return sum(isinstance(event, kind) for event in reported) >= count


def test_worker_repeats_what_failed(tmp_path: Path) -> None:
    """Retries in order of a key set timers for moments that are very near, which uvloop's handles do not know."""

    async def main() -> None:
        own = OwnServer(store_dir=tmp_path / "server")
        await own.start()
        failed: set[bytes] = set()
        handled: list[bytes] = []

        async def handler(message: jsclient.Message) -> None:
            if int(message.data) % 5 == 0 and message.data not in failed:
                failed.add(message.data)
                raise ValueError("now and then")
            handled.append(message.data)

        try:
            async with await jsclient.connect(own.url, on_event=lambda _: None) as js:
                await js.create_stream("S", ["s.*"], storage="memory")
                for number in range(MESSAGES):
                    await js.publish(f"s.{number % 7}", b"%d" % number)
                sub = await js.pull_subscribe("s.*", durable="d", delete_on_close=True)
                async with sub:
                    work = asyncio.ensure_future(
                        sub.run(handler, key=lambda message: message.subject, retry_delay=lambda _: 0.0004)
                    )
                    await eventually(lambda: len(handled) == MESSAGES or work.done(), 200, "every message")
                    work.cancel()
                    await asyncio.wait({work})
        finally:
            await own.stop()
        assert sorted(map(int, handled)) == list(range(MESSAGES))

    run(main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_lost_connection_takes_writes(loop):
    """As asyncio drops them: uvloop's transport raises a bare `RuntimeError`, from write and from the backlog."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    async def main():
        ended = asyncio.Event()

        async def serve(reader, writer):
            writer.close()
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            transport = TcpTransport()
            port = server.sockets[0].getsockname()[1]
            await transport.connect(urlparse(f"nats://127.0.0.1:{port}"))
            await ended.wait()
            transport.abort()
            transport.write(b"PING\r\n")
            await asyncio.sleep(0.01)
            transport.write(b"PING\r\n")
            assert transport.backlog() == 0

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
