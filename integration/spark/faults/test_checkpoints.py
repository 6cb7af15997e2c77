"""A batch is run again with other options, and checkpoints are put back: with Spark, and a recount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.kit.spark.copies import by_claims, filled, put_back, query, with_consumer

pytestmark = [pytest.mark.full, pytest.mark.server(">=2.11")]

COUNT, BATCH = 20_000, 4_000


@pytest.mark.covers("L2", "L25")
@pytest.mark.fault("a batch run again with other partitions")
@pytest.mark.parametrize(
    "changed",
    [{"minPartitions": "3"}, {"minPartitions": "3", "maxMessagesPerPartition": "900"}],
    ids=["minPartitions", "maxMessagesPerPartition"],
)
async def test_replanned(copies: Any, checkpoint: Path, recount: Any, changed: dict[str, str]) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH)
    await copy_all(copy)
    put_back(checkpoint, 4, planned=True)
    await copy_all({**copy, "source": {**copy["source"], **changed}})
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L2")
@pytest.mark.fault("a batch run again after the head of the stream had expired, failOnDataLoss=false")
async def test_head_expired(copies: Any, checkpoint: Path, recount: Any) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH)
    await copy_all(copy)
    put_back(checkpoint, 4, planned=True)
    await oracle.purge("IN", seq=4 * BATCH + 501)
    await copy_all({**copy, "source": {**copy["source"], "failOnDataLoss": "false"}})
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L14", "L25")
@pytest.mark.fault("log checkpoint put back by three batches")
@pytest.mark.parametrize(
    ("sink", "limit", "error"),
    [
        ({}, BATCH, None),
        ({"exactlyOnce": "ledger"}, BATCH, "CheckpointBehindError"),
        ({"exactlyOnce": "ledger"}, BATCH + 500, "CheckpointBehindError"),
        ({"dedup": "source"}, BATCH + 500, None),
    ],
    ids=["window, same limit", "ledger, same limit", "ledger, other limit", "source, other limit"],
)
async def test_put_back(
    copies: Any, checkpoint: Path, recount: Any, sink: dict[str, str], limit: int, error: str | None
) -> None:
    """With an error no row is stored, and the later checkpoint would continue."""
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH, expectedStream="OUT", **sink)
    if "dedup" in sink:
        copy["columns"] += ["stream", "stream_created", "sequence"]
        copy["schema"] = "subject string, data binary, stream string, stream_created timestamp, sequence long"
    await copy_all(copy)
    put_back(checkpoint, 1)
    again = {**copy, "source": {**copy["source"], "maxMessagesPerTrigger": str(limit)}}
    if error is None:
        await copy_all(again)
    else:
        with pytest.raises(Exception, match=error):
            await copy_all(again)
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L14")
@pytest.mark.fault("queue checkpoint put back by two batches")
async def test_claims_put_back(copies: Any, checkpoint: Path, recount: Any) -> None:
    """Its claims are gone, which is an error. Without `failOnDataLoss` it continues."""
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, BATCH)
    copy = by_claims(query(server.url, "out", batch=BATCH))
    await copy_all(copy)
    put_back(checkpoint, 2, planned=True)
    with pytest.raises(Exception, match="PositionInvalidError"):
        await copy_all(copy)
    await oracle.publish_many("in.0", 500, first=COUNT + 1, size=64)
    await copy_all({**copy, "source": {**copy["source"], "failOnDataLoss": "false"}})
    await recount(server, "OUT", COUNT + 500)
    assert (await oracle.state("IN"))["messages"] == 0


@pytest.mark.covers("L30")
@pytest.mark.fault("target full in mid-batch, then with more room")
async def test_target_full(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    await oracle.update_stream("OUT", discard="new", max_msgs=BATCH + 1000)
    copy = query(server.url, "out", batch=BATCH, retries="0")
    with pytest.raises(Exception, match="maximum messages exceeded"):
        await copy_all(copy)
    assert (await oracle.state("OUT"))["messages"] == BATCH + 1000
    await oracle.update_stream("OUT", max_msgs=-1)
    await copy_all(copy)
    await recount(server, "OUT", COUNT)
