"""A leader that has died: the answer to a request for a consumer is not awaited for long at first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsclient.errors import RequestTimeoutError
from jsclient.protocol.models.consumer import ConsumerConfig
from jsclient.topics.consumers import Consumers
from jsclient.topics.feeds import FeedSubscription
from jsclient.topics.stream_log import StreamLog
from tests.support.fake import SILENCE, connected
from tests.support.virtual import virtual


async def log_on(js: Any) -> StreamLog:
    return StreamLog(js._context, await js.stream("ORDERS"), "orders.>")


def creates(connection: Any) -> list[Any]:
    return connection.to("$JS.API.CONSUMER.CREATE.")


@virtual
async def test_feed_abandoned_soon_at_first():
    """The answer to a request for its consumer was lost with a leader. It asks again after 1.25 s of the 5 s."""
    async with connected(timeout=5.0) as (js, connection):
        log = await log_on(js)
        opened = asyncio.Event()
        feed = FeedSubscription(
            log, log.feed("consumer"), "id", print, opened.set, lambda: None, refused=lambda error: None
        )
        connection.api.on("CONSUMER.CREATE", SILENCE, SILENCE)
        feed.begin_feed()
        await asyncio.sleep(1.2)
        assert len(creates(connection)) == 1
        await asyncio.sleep(0.2)
        assert connection.deleted() == ["id"]  # it may exist
        await asyncio.wait_for(opened.wait(), 3.0)
        assert len(creates(connection)) == 3
        await feed.end_feed()


@virtual
async def test_page_abandoned_soon_at_first():
    async with connected(timeout=5.0) as (js, connection):
        log = await log_on(js)
        connection.api.on("CONSUMER.CREATE", SILENCE, SILENCE, SILENCE)
        loop, waits = asyncio.get_running_loop(), []
        for _ in range(3):
            began = loop.time()
            with pytest.raises(RequestTimeoutError):
                await log._after(0, 10, 1000)
            waits.append(round(loop.time() - began, 1))
        assert waits == [1.2, 2.5, 5.0]


@virtual
async def test_each_failure_gives_the_next_leader_more_time():
    async with connected(timeout=20.0) as (js, connection):
        connection.api.on("CONSUMER.CREATE", *[SILENCE] * 20)
        consumers, loop, waits = (
            Consumers(js._context, await js.stream("ORDERS")),
            asyncio.get_running_loop(),
            [],
        )
        for _ in range(4):
            start = loop.time()
            with pytest.raises(RequestTimeoutError):
                await consumers.create(ConsumerConfig(name="c"))
            waits.append(loop.time() - start)
        assert waits == sorted(waits)
        assert waits[0] < waits[-1] <= 20.0
        connection.api.script.clear()
        consumer = await consumers.create(ConsumerConfig(name="c"))
        assert consumer.name == "c"
        await consumers.delete("c")
        assert connection.deleted() == ["c"]
