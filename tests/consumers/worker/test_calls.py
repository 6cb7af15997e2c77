"""The Python calls of a message in `run`. They are what a worker costs, so they must not grow unnoticed."""

from __future__ import annotations

import asyncio

import pytest

from tests.consumers.worker.kit import working
from tests.support.calls import Calls
from tests.support.fake import FakeConnection
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

WARM, MEASURED = 500, 1000


async def nothing(_: object) -> None:
    """A handler that does nothing."""


async def pause(_: object) -> None:
    """A handler that waits once."""
    await asyncio.sleep(0.001)


async def count(handler, *, pull: bool, **options) -> Calls:
    """Let a worker handle messages that arrive 50 at a time. The first ones are not counted."""
    async with working(handler, pull=pull, prefetch=500, **options) as work:
        where = work.sub.subject if not pull else work.connection.pulls()[-1].reply

        async def deliver(first: int, last: int) -> None:
            for start in range(first, last, 50):
                work.connection.deliver(where, [data(seq) for seq in range(start, start + 50)])
                await settle()
                await asyncio.sleep(0.2)

        await deliver(1, WARM + 1)
        with Calls() as calls:
            await deliver(WARM + 1, WARM + MEASURED + 1)
        assert work.worker.counts.handled == WARM + MEASURED
    return calls


@pytest.fixture(autouse=True)
def acked(monkeypatch) -> list[bytes]:
    """The acks that are written at once, as jsclient's own connection does."""
    acked: list[bytes] = []
    monkeypatch.setattr(FakeConnection, "ack_at_once", lambda _, reply: acked.append(reply) or True)
    return acked


@virtual
@pytest.mark.parametrize("concurrency", [1, 20])
@pytest.mark.parametrize("pull", [True, False])
async def test_handler_that_does_nothing(pull, concurrency, acked):
    """Its metadata, its place in the workload, its start, its ack, its end. Many messages share the remainder."""
    calls = await count(nothing, pull=pull, concurrency=concurrency)
    assert len(acked) == WARM + MEASURED
    assert calls.each(MEASURED) < 9, calls


@virtual
async def test_handlers_that_wait():
    """A task that waited continues in the handler itself, and not in coroutines of the worker around it."""
    calls = await count(pause, pull=True, concurrency=20)
    assert calls.each(MEASURED) < 18, calls
    assert calls.by_name["consumers/worker/handler_pool.py: HandlerPool._work"] < 1.6 * MEASURED


@virtual
async def test_order_by_key():
    """The queue of its key adds two calls."""
    calls = await count(
        nothing, pull=True, concurrency=20, key=lambda message: message.metadata.stream_seq % 7
    )
    assert calls.each(MEASURED) < 17, calls
