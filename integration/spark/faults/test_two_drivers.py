"""Two drivers with the same checkpoint at the same moment, which Spark does not prevent: one of them ends."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.spark.copies import (
    IN_SMALL_PARTS,
    assert_running,
    by_claims,
    filled,
    query,
    with_consumer,
)
from integration.kit.spark.driver_process import SparkJob

pytestmark = [pytest.mark.full, pytest.mark.limit(600), pytest.mark.server(">=2.11")]

COUNT, BATCH = 20_000, 5_000
# How a driver can end whose batch the other has begun later, unless all its tasks have begun.
SUPERSEDED = "is being written by another run.*does another driver use the checkpoint"
# How the second driver can end before it records the end of a batch, which Spark refuses.
ENDS = {
    "window": "CONCURRENT_STREAM_LOG_UPDATE",
    "ledger": "CheckpointBehindError: .* or does another driver use it",
    "queue": "PositionInvalidError: .* claimed messages .* no longer exist",
}


@pytest.mark.covers("L31")
@pytest.mark.fault("two drivers with one checkpoint")
@pytest.mark.parametrize("kind", ENDS)
async def test_two_drivers(
    own_server: Any, oracle_for: Any, jobs: Any, recount: Any, tmp_path: Path, kind: str
) -> None:
    """The second repeats the batch that the first is in. Who records its end first continues, and the other ends."""
    server = await own_server()
    oracle = await oracle_for(server)
    retention = "workqueue" if kind == "queue" else "limits"
    await filled(oracle, COUNT, {"OUT": 600}, retention=retention)
    sink = {"exactlyOnce": "ledger"} if kind == "ledger" else {}
    copy = query(server.url, "out", batch=BATCH, every=5, expectedStream="OUT", **sink)
    if kind == "queue":
        await with_consumer(oracle, BATCH)
        copy = by_claims(copy)
    gates = [tmp_path / name for name in ("gate-1", "gate-2")]
    drivers = [jobs([copy], gate=gate, **IN_SMALL_PARTS) for gate in gates]
    for job in drivers:
        await eventually(partial(is_ready, job), 240, what="a driver")
    gates[0].touch()
    await eventually(partial(in_batch, oracle, drivers[0]), 240, what="the first batch")
    gates[1].touch()
    codes = [await asyncio.to_thread(job.process.wait, 300) for job in drivers]
    logs = "\n".join(job.log[-6000:] for job in drivers)
    assert sorted(codes) == [0, 1], logs
    assert re.search(
        f"CONCURRENT_STREAM_LOG_UPDATE|{SUPERSEDED}|{ENDS[kind]}", drivers[codes.index(1)].log
    ), logs
    await recount(server, "OUT", COUNT)


async def in_batch(oracle: Oracle, job: SparkJob) -> bool:
    assert_running(job)
    return int((await oracle.state("OUT"))["messages"]) > BATCH // 20


def is_ready(job: SparkJob) -> bool:
    assert_running(job)
    return '{"ready": true}' in job.log
