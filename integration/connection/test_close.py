"""Closing a connection: what is in flight ends, and a silent server delays it once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap, reconnect_time_wait=0.1, timeout=2.0)


async def test_close_ends_requests_in_flight(tap: Any, near: Any, stream: OwnStream) -> None:
    await near.publish(stream.subject("a"), b"x")
    tap.stall()
    waiting = [
        asyncio.create_task(near.publish(stream.subject("a"), b"x", timeout=30)),
        asyncio.create_task(near.ping(timeout=30)),
    ]
    await asyncio.sleep(0.1)
    await near.close()
    results = await within(5, asyncio.gather(*waiting, return_exceptions=True), "publish and ping")
    assert [type(result) for result in results] == [jsclient.ClosedError] * 2
    tap.unstall()


async def test_close_with_a_silent_server(tap: Any, near: Any, stream: OwnStream) -> None:
    for _ in range(5):
        await near.subscribe(stream.all)
    tap.stall()
    started = time.monotonic()
    await near.close()
    assert time.monotonic() - started < 4.5
    tap.unstall()
