"""Queries that copy the stream IN to others, for faults to meet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.spark.driver_process import SparkJob, writer_of
from integration.kit.spark.sessions import run_writer

# A batch is met in the middle if its tasks sleep, and if their rows come in small parts.
IN_SMALL_PARTS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}


def columns(prefix: str, *, every: int = 0, millis: int = 15) -> list[str]:
    """The columns of the copy. A task sleeps for ``millis`` at each row of ``every``."""
    slow = f"if(sequence % {every} = 0 and length(reflect('java.lang.Thread', 'sleep', {millis}L)) = -1, null, data)"
    return [
        f"concat('{prefix}.', substring_index(subject, '.', -1)) as subject",
        f"{slow} as data" if every else "data",
    ]


def query(url: str, name: str, *, batch: int, every: int = 0, **sink: str) -> dict[str, Any]:
    """From the stream IN to the stream of this name in capitals."""
    return {
        "name": name,
        "source": {
            "servers": url,
            "stream": "IN",
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": str(batch),
            "minPartitions": "2",
        },
        "columns": columns(name, every=every),
        "sink": {"servers": url, **sink},
    }


def by_claims(copy: dict[str, Any]) -> dict[str, Any]:
    """The same in queue mode."""
    saved = {
        name: copy["source"][name] for name in ("servers", "stream", "maxMessagesPerTrigger", "minPartitions")
    }
    return {**copy, "source": {**saved, "mode": "queue", "consumer": "work"}}


async def filled(oracle: Oracle, count: int, outs: Mapping[str, float], **config: Any) -> None:
    """The stream IN with numbered messages, and streams to write to with the seconds for which each remembers ids."""
    await oracle.create_stream("IN", ["in.>"], storage="file", allow_direct=True, **config)
    for name, window in outs.items():
        await oracle.create_stream(
            name, [f"{name.lower()}.>"], storage="file", allow_direct=True, duplicate_window=int(window * 1e9)
        )
    for part in range(4):
        await oracle.publish_many(f"in.{part}", count // 4, first=part * count // 4 + 1, size=64)


async def with_consumer(oracle: Oracle, batch: int, ack_wait: float = 120) -> None:
    """A durable consumer of IN which has room for two batches."""
    await oracle.create_consumer(
        "IN",
        "work",
        ack_policy="explicit",
        ack_wait=int(ack_wait * 1e9),
        max_ack_pending=2 * batch,
    )


async def until(oracle: Oracle, job: SparkJob, stream: str, count: int) -> None:
    """Wait until this many are stored."""

    async def enough_stored() -> bool:
        assert_running(job)
        return int((await oracle.state(stream))["messages"]) >= count

    await eventually(enough_stored, 300, what=f"{count} messages in {stream}")


def assert_running(job: SparkJob) -> None:
    if job.process.poll() is not None:
        raise RuntimeError(f"the job has ended:\n{job.log[-6000:]}")


def run(spark: Any, copy: dict[str, Any], checkpoint: Path) -> None:
    """Run a copy in a session until all messages are copied. Raises `StreamingQueryException` if it failed."""
    run_writer(writer_of(spark, copy, checkpoint), 600.0)


def put_back(checkpoint: Path, batch: int, *, planned: bool = False) -> None:
    """Reset a checkpoint to the moment after a batch was committed or, with ``planned``, after it was planned."""
    for log, last in (("offsets", batch), ("commits", batch - planned)):
        for path in (checkpoint / log).iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdecimal() and int(number) > last:
                path.unlink()
