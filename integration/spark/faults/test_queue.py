"""Queue mode: two queries on one consumer, and batches that take longer than ``ack_wait``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.oracle import number_of
from integration.kit.judge.recount import Recount, payloads
from integration.kit.spark.copies import IN_SMALL_PARTS, by_claims, filled, query, with_consumer

pytestmark = [pytest.mark.full, pytest.mark.limit(600), pytest.mark.server(">=2.11")]

COUNT, BATCH = 20_000, 2_500


@pytest.mark.covers("L17")
@pytest.mark.fault("two queries on one consumer of a work queue")
async def test_two_queries_share(own_server: Any, oracle_for: Any, jobs: Any, recount: Any) -> None:
    """Each has a part of the messages. Together they have all."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"ONE": 600, "TWO": 600}, retention="workqueue")
    await with_consumer(oracle, 2 * BATCH)
    copies = [by_claims(query(server.url, name, batch=BATCH, every=50)) for name in ("one", "two")]
    await asyncio.to_thread(jobs(copies, master="local[4,4]", together=True, **IN_SMALL_PARTS).finish)
    one, two = [
        [*map(number_of, await asyncio.to_thread(payloads, server.url, name))] for name in ("ONE", "TWO")
    ]
    assert one
    assert two
    recount.exact(Recount.of("ONE and TWO", range(1, COUNT + 1), one + two))
    work = await oracle.consumer_info("IN", "work")
    assert (work["num_pending"], work["num_ack_pending"], work["num_redelivered"]) == (0, 0, 0)
    assert (await oracle.state("IN"))["messages"] == 0


@pytest.mark.covers("L24")
@pytest.mark.fault("queue mode: batches of several times ack_wait")
async def test_batches_longer_than_ack_wait(
    own_server: Any, oracle_for: Any, jobs: Any, recount: Any
) -> None:
    """Each message is delivered once."""
    count, batch = 6_000, 2_000
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, count, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, batch, ack_wait=2)
    job = jobs([by_claims(query(server.url, "out", batch=batch, every=2))], **IN_SMALL_PARTS)
    await asyncio.to_thread(job.finish)
    await recount(server, "OUT", count)
    work = await oracle.consumer_info("IN", "work")
    assert (work["num_pending"], work["num_ack_pending"], work["num_redelivered"]) == (0, 0, 0)
    assert work["delivered"]["consumer_seq"] == count
