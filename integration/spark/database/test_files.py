"""The Parquet part of docs/howto/spark-to-a-database.md: a batch that fails is written once, or not at all."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import number_of
from integration.kit.judge.recount import Recount
from integration.kit.judge.waiting import eventually
from integration.kit.spark.program import Program

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "spark-to-a-database.md"

pytestmark = [pytest.mark.server(">=2.11"), pytest.mark.full]


def code_of_page(folder: Path) -> str:
    """What the page defines for files."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "def write_files" in block)
    return code.replace("/data/payments", str(folder))


def functions(spark: Any, server: Any, folder: Path) -> dict[str, Any]:
    from jsclient.spark import ack_batch

    def payments(rows: Any) -> Any:
        return rows.selectExpr("stream AS stream_created", "sequence", "data")

    names = {"spark": spark, "SERVERS": server.url, "ack_batch": ack_batch, "payments": payments}
    exec(code_of_page(folder), names)
    return names


@pytest.fixture
def started(server: Any, make_stream: Any, spark: Any, tmp_path: Path) -> Any:
    """`await started(**options)`: a work queue with 100 messages, the frame of it, and what the page defines."""

    async def start(**options: str) -> tuple[Any, Any, dict[str, Any]]:
        stream = await make_stream(retention="workqueue", allow_direct=True)
        await stream.publish(100)
        await stream.create_consumer("q", ack_wait=300_000_000_000, max_ack_pending=1000)
        source = {"servers": server.url, "stream": stream.name, "mode": "queue", "consumer": "q"}
        reader = spark.readStream.format("jetstream").options(**source, ackOn="manual", **options)
        return stream, reader.load(), functions(spark, server, tmp_path / "payments")

    return start


@pytest.mark.covers("L22")
@pytest.mark.parametrize("fails", ["rename", "ack"])
async def test_failed_batch_written_once(
    started: Any, in_thread: Any, drain: Any, monkeypatch: Any, fails: str
) -> None:
    stream, frame, page = await started(maxMessagesPerTrigger="60")

    def die(*_: Any) -> Any:
        raise RuntimeError("the driver dies")

    with monkeypatch.context() as patched:
        if fails == "ack":
            patched.setitem(page, "ack_batch", die)
        else:
            patched.setattr(Path, "rename", die)
        with pytest.raises(Exception, match="the driver dies"):
            await in_thread(drain, frame, also=page["write_files"])
    assert (await stream.state())["messages"] == 100
    assert (await in_thread(drain, frame, also=page["write_files"])).runs == [0, 1]
    rows = await in_thread(lambda: page["written"]().collect())
    assert sorted(number_of(bytes(row.data)) for row in rows) == [*range(1, 101)]
    assert (await stream.state())["messages"] == 0


async def test_foreign_checkpoint_acks_nothing(
    started: Any, in_thread: Any, drain: Any, tmp_path: Path
) -> None:
    """A new checkpoint repeats the numbers of batches that were written: an error, and the messages stay."""
    stream, frame, page = await started()
    write = page["write_files"]
    await in_thread(drain, frame, also=write)
    await stream.publish(50, first=101)
    with pytest.raises(Exception, match="has other rows"):
        await in_thread(drain, frame, checkpoint=tmp_path / "new", also=write)
    assert (await stream.state())["messages"] == 50


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from jsclient.spark import ack_batch

SERVERS, STREAM = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


def payments(rows):
    return rows.selectExpr("stream AS stream_created", "sequence", "data")

{code}
reader = spark.readStream.format("jetstream").options(servers=SERVERS, stream=STREAM, mode="queue")
rows = reader.options(consumer="q", ackOn="manual", maxMessagesPerTrigger="100").load()
writer = rows.writeStream.foreachBatch(write_files).trigger(availableNow=True)
writer.option("checkpointLocation", str(FOLDER / "checkpoint")).start().awaitTermination()
"""


@pytest.mark.covers("L22")
@pytest.mark.limit(900)
@pytest.mark.fault("work queue to Parquet with manifests: driver, JVM and workers killed at four places")
async def test_each_row_once_over_kills(
    server: Any, make_stream: Any, spark: Any, in_thread: Any, recount: Any, tmp_path: Path
) -> None:
    """In the second batch of a run: before and after the rename, and before and after the ack."""
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(600)
    await stream.create_consumer("q", ack_wait=300_000_000_000, max_ack_pending=1000)
    folder = tmp_path / "payments"
    (program := tmp_path / "payments.py").write_text(PROGRAM.format(code=code_of_page(folder)))
    command = [str(program), server.url, stream.name]
    positions = [("os", "rename", "before"), ("os", "rename", "after")]
    positions += [("jsclient.spark", "ack_batch", "before"), ("jsclient.spark", "ack_batch", "after")]
    for position in positions:
        one = Program(tmp_path, command, (*position, 2))
        try:
            await eventually(
                one.has_stopped, 240, what=f"the program {position[2]} {position[1]}", interval=0.1
            )
        finally:
            one.kill()
    last = Program(tmp_path, command)
    try:
        await asyncio.to_thread(last.finish)
    finally:
        last.kill()
    rows = await in_thread(lambda: functions(spark, server, folder)["written"]().collect())
    recount.exact(Recount.of("Parquet", range(1, 601), [number_of(bytes(row.data)) for row in rows]))
    assert (await stream.state())["messages"] == 0
