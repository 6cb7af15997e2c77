"""A query with the trigger AvailableNow waits for what a run that was killed had claimed, or says what it leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.judge.waiting import eventually
from integration.spark.queue.test_claims import ACK_WAIT, info, numbers, queue, seen
from jsclient.spark.queue.claimer import Claimer

pytest.importorskip("pyspark.sql.streaming.datasource")

pytestmark = pytest.mark.covers("L19")
__all__ = ["queue"]  # the fixture


def restarted(query: QueueQuery) -> QueueQuery:
    """The same query after its driver was killed before Spark wrote an offset."""
    return QueueQuery(query.server, query.stream, query.consumer, query.options, available_now=True)


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("acks", ["batch", "manual", "purge"])
async def test_claims_of_a_dead_run_are_awaited(queue: Any, acks: str) -> None:
    query = await queue(count=60, maxMessagesPerTrigger=20, ackOn=acks)
    await query.plan()
    await query.stop()
    again = restarted(query)
    try:
        await again.drain()
        assert numbers(again.rows) == seen(1, 60)
    finally:
        await again.stop()


async def test_all_claimed_by_a_dead_run(queue: Any) -> None:
    """The dead run has as many messages as the consumer allows, so no message arrives until ``ack_wait`` has passed."""
    query = await queue(count=60, consumer={"max_ack_pending": 20})
    await query.plan()
    await query.stop()
    again = restarted(query)
    try:
        await again.drain()
        assert numbers(again.rows) == seen(1, 60)
    finally:
        await again.stop()


async def test_messages_of_a_living_worker_are_left(
    queue: Any, js: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker keeps its messages: the query ends, and says how many it leaves."""
    query = await queue(count=30)
    worker = await (await js.stream(query.stream.name)).consumer("q")
    others = await worker.fetch(10, no_wait=True)

    async def keep() -> None:
        while True:
            for message in others:
                await message.in_progress()
            await asyncio.sleep(ACK_WAIT / 4)

    keeping = asyncio.create_task(keep())
    try:
        query.available_now = True
        with caplog.at_level(logging.WARNING, "jsclient.spark"):
            await query.drain()
    finally:
        keeping.cancel()
    assert len(query.rows) == 20
    assert "10 messages were delivered to other clients" in caplog.text


async def test_messages_that_a_worker_acks_are_not_awaited(queue: Any, js: Any) -> None:
    query = await queue(count=30, consumer={"ack_wait": 60_000_000_000})
    worker = await (await js.stream(query.stream.name)).consumer("q")
    others = await worker.fetch(10, no_wait=True)
    draining = asyncio.create_task(query.drain())
    await eventually(lambda: len(query.rows) == 20, 30, "the rest is read")
    for message in others:
        await message.ack_sync()
    await asyncio.wait_for(draining, 30)
    assert (await info(query))["num_ack_pending"] == 0


@pytest.mark.parametrize("count", [0, 1])
async def test_server_counts_late(queue: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A busy server has stored messages that the consumer does not count as pending yet: the query reads them too."""
    query = await queue(count=60)

    async def outstanding(claimer: Claimer) -> int:
        return count

    monkeypatch.setattr(Claimer, "outstanding", outstanding)
    await query.drain()
    assert numbers(query.rows) == seen(1, 60)


async def test_messages_stored_later_are_left(queue: Any) -> None:
    query = await queue(count=20, maxMessagesPerTrigger=10)
    query.available_now = True
    await query.start()
    assert len(await query.batch()) == 10
    await query.stream.publish(50, first=21)
    assert len(await query.batch()) == 10
    assert await query.batch() is None
    await query.stop()
    assert numbers(query.rows) == seen(1, 20)
