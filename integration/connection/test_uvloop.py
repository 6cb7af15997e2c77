"""The same on uvloop: messages in bulk, plain and with TLS, and over the end of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.servers.nats_server import OwnServer

uvloop = pytest.importorskip("uvloop")  # not on Windows

COUNT = 30_000  # of 1 kB: many times what one read takes


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within(main))


async def within(main: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        await main()


async def fill(js: jsclient.JetStream) -> None:
    await js.create_stream("S", ["s"], storage="file")
    await js.publish_many("s", [b"%d " % number + bytes(1000) for number in range(1, COUNT + 1)])


async def read(js: jsclient.JetStream, taken: Callable[[int], Awaitable[None]] | None = None) -> list[int]:
    found: list[int] = []
    async with await js.subscribe("s", ordered=True) as sub:
        async for message in sub:
            found.append(int(message.data.split()[0]))
            if taken is not None:
                await taken(len(found))
            if len(found) == COUNT:
                return found
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
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
                batch = await consumer.fetch(COUNT, expires=20)
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
