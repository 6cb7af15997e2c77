"""Faults of the consumer of a query in queue mode, and of the messages that it has not read yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.recount import Recount, payloads
from integration.kit.spark.copies import by_claims, filled, query, with_consumer
from integration.kit.spark.sessions import run_writer
from jsclient.spark import ack_batch, publish_batch

pytestmark = [pytest.mark.full, pytest.mark.limit(900), pytest.mark.server(">=2.11")]

COUNT, BATCH = 4_000, 1_000
COLUMNS = ("'out.x' as subject", "*")
SCHEMA = "data binary, stream string, stream_created timestamp, sequence bigint, reply string"


async def of(server: Any, expected: Iterable[int]) -> Recount:
    """The numbers in OUT, over a plain socket."""
    actual = await asyncio.to_thread(payloads, server.url, "OUT")
    return Recount.of("OUT", expected, map(number_of, actual))


async def settled(oracle: Oracle) -> bool:
    """Whether the consumer has nothing left."""
    work = await oracle.consumer_info("IN", "work")
    return (work["num_pending"], work["num_ack_pending"]) == (0, 0)


def tolerant(copy: dict[str, Any]) -> dict[str, Any]:
    return {**copy, "source": {**copy["source"], "failOnDataLoss": "false"}}


@pytest.fixture
def work_off(spark: Any, in_thread: Any, drain: Any) -> Callable[..., Any]:
    """Publish each batch to OUT and ack it, in `foreachBatch` with `ackOn=manual`: `await work_off(url)`.

    ``before`` and ``between`` are called with the number of a batch, before it is read and before it is acked.
    """

    async def start(
        url: str,
        before: Callable[[int], None] | None = None,
        between: Callable[[int], None] | None = None,
        **options: str,
    ) -> None:
        arguments = {
            "servers": url,
            "stream": "IN",
            "mode": "queue",
            "consumer": "work",
            "ackOn": "manual",
            "maxMessagesPerTrigger": str(BATCH),
            **options,
        }

        def load() -> Any:
            reader = spark.readStream.schema(SCHEMA).format("jetstream").options(**arguments)
            return reader.load().selectExpr(*COLUMNS)

        def work(rows: Any, number: int) -> None:
            if before is not None:
                before(number)
            publish_batch(rows, {"servers": url, "dedup": "source"}, batch_id=number)
            if between is not None:
                between(number)
            ack_batch(rows, url)

        await in_thread(lambda: run_each(load(), work, drain))

    return start


def run_each(frame: Any, work: Callable[[Any, int], None], drain: Any) -> None:
    """Run a query to its end. It uses the checkpoint of `drain`."""
    checkpoint = drain.keywords["checkpoint"]
    writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
    run_writer(writer.trigger(availableNow=True))


@pytest.mark.covers("L21", "L22")
@pytest.mark.fault("ackOn=manual: a batch fails between its write and its ack")
async def test_manual(copies: Any, work_off: Any, recount: Any) -> None:
    """It is read again, and the ids of the source keep its rows from being stored twice."""
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, BATCH)

    def die(number: int) -> None:
        if number == 2:
            raise RuntimeError("the driver dies")

    with pytest.raises(Exception, match="the driver dies"):
        await work_off(server.url, between=die)
    recount.exact(await of(server, range(1, 3 * BATCH + 1)))
    assert (await oracle.state("IN"))["messages"] == COUNT - 2 * BATCH
    await work_off(server.url)
    await recount(server, "OUT", COUNT)
    assert await settled(oracle)


@pytest.mark.covers("L18")
@pytest.mark.fault("ackOn=manual: claimed messages purged before they are read")
async def test_purged_before_read(copies: Any, work_off: Any, recount: Any) -> None:
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600})
    await with_consumer(oracle, BATCH, ack_wait=5)
    loop = asyncio.get_running_loop()

    def purge(number: int) -> None:
        if number == 1:  # it has the messages from BATCH + 1 on
            purged = asyncio.run_coroutine_threadsafe(oracle.purge("IN", seq=BATCH + 401), loop)
            assert purged.result(20) == BATCH + 400

    with recount.refused("OUT", "PositionInvalidError", "claimed messages .* no longer exist"):
        await work_off(server.url, before=purge)
    await work_off(server.url, failOnDataLoss="false")
    recount.exact(await of(server, [*range(1, BATCH + 1), *range(BATCH + 401, COUNT + 1)]))


@pytest.mark.covers("L18")
@pytest.mark.fault("queue mode: messages removed by a limit before they are claimed")
async def test_removed_before_claim(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, 1_000, {"OUT": 600}, max_msgs=1_500)
    await with_consumer(oracle, BATCH)
    await oracle.publish_many("in.0", COUNT - 1_000, first=1_001, size=64)
    copy = by_claims(query(server.url, "out", batch=BATCH))
    with recount.refused("OUT", "UnclaimedRemovedError", f"messages 1 to {COUNT - 1_500} "):
        await copy_all(copy)
    recount.exact(await of(server, ()))
    await copy_all(tolerant(copy))
    recount.exact(await of(server, range(COUNT - 1_499, COUNT + 1)))


@pytest.mark.covers("L19")
@pytest.mark.fault("queue mode: availableNow while a killed run still holds claims")
async def test_claims_of_a_killed_run(copies: Any, recount: Any) -> None:
    """A run that is killed before Spark writes an offset leaves messages that no one acks: as a client that goes."""
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, BATCH, ack_wait=15)
    inbox = oracle.nc.new_inbox()
    claims = await oracle.nc.subscribe(inbox)
    pull = json.dumps({"batch": 500, "no_wait": True}).encode()
    await oracle.nc.publish("$JS.API.CONSUMER.MSG.NEXT.IN.work", pull, reply=inbox)
    for _ in range(500):
        await claims.next_msg(10)
    await claims.unsubscribe()
    await copy_all(by_claims(query(server.url, "out", batch=BATCH)))
    await recount(server, "OUT", COUNT)
    assert await settled(oracle)


@pytest.mark.covers("L16")
@pytest.mark.fault("queue mode: consumer deleted in mid-batch, and made again")
async def test_consumer_deleted(copies: Any, work_off: Any, recount: Any, checkpoint: Path) -> None:
    """The acks of the batch fail. The new consumer delivers all that is left, and each row is stored once."""
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, BATCH)
    loop = asyncio.get_running_loop()

    def delete(number: int) -> None:
        if number == 1:
            asyncio.run_coroutine_threadsafe(oracle.delete_consumer("IN", "work"), loop).result(20)

    with recount.refused("OUT", "NoRespondersError", "work"):
        await work_off(server.url, between=delete)
    recount.exact(await of(server, range(1, 2 * BATCH + 1)))
    with recount.refused("OUT", "ConfigError", "no consumer 'work'"):
        await work_off(server.url)
    await with_consumer(oracle, BATCH)
    with recount.refused("OUT", "PositionInvalidError", "was recreated"):
        await work_off(server.url)
    await work_off(server.url, failOnDataLoss="false")
    await recount(server, "OUT", COUNT)
    assert await settled(oracle)
