"""The Parquet part of docs/howto/spark-to-a-database.md: a batch that fails is there once, or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import number_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "spark-to-a-database.md"

pytestmark = [pytest.mark.server(">=2.11"), pytest.mark.full]


def functions(spark: Any, server: Any, folder: Path) -> dict[str, Any]:
    """What the page defines for files."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "def write_files" in block)
    from jsclient.spark import ack_batch

    def payments(rows: Any) -> Any:
        return rows.selectExpr("stream AS stream_created", "sequence", "data")

    names = {"spark": spark, "SERVERS": server.url, "ack_batch": ack_batch, "payments": payments}
    exec(code.replace("/data/payments", str(folder)), names)
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


@pytest.mark.parametrize("fails", ["rename", "ack"])
async def test_failed_batch_written_once(
    started: Any, aside: Any, drain: Any, monkeypatch: Any, fails: str
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
            await aside(drain, frame, also=page["write_files"])
    assert (await stream.state())["messages"] == 100
    assert (await aside(drain, frame, also=page["write_files"])).runs == [0, 1]
    rows = await aside(lambda: page["written"]().collect())
    assert sorted(number_of(bytes(row.data)) for row in rows) == [*range(1, 101)]
    assert (await stream.state())["messages"] == 0


async def test_foreign_checkpoint_acks_nothing(started: Any, aside: Any, drain: Any, tmp_path: Path) -> None:
    """A new checkpoint repeats the numbers of batches that were written: an error, and the messages stay."""
    stream, frame, page = await started()
    write = page["write_files"]
    await aside(drain, frame, also=write)
    await stream.publish(50, first=101)
    with pytest.raises(Exception, match="has other rows"):
        await aside(drain, frame, checkpoint=tmp_path / "new", also=write)
    assert (await stream.state())["messages"] == 50
