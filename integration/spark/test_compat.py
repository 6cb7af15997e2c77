"""The parts that depend on Spark itself, in short: the tests that also run on the oldest PySpark that will do.

Tests marked `full` have a test of the same promise elsewhere that `check` runs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.kit.judge.oracle import number_of
from integration.kit.spark.sessions import environment
from jsclient.spark import ack_batch, heartbeat, publish_batch, register

pytestmark = pytest.mark.server(">=2.11")


def numbers(rows):
    return sorted(number_of(row["data"]) for row in rows)


@pytest.mark.covers("L1", "L4", "L7")
@pytest.mark.full
async def test_query_resumes(spark, server, make_stream, in_thread, drain):
    """Source, admission control, AvailableNow, restart from the checkpoint."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(1000)
    frame = (
        spark.readStream.format("jetstream")
        .options(
            servers=server.url, stream=stream.name, startingOffsets="earliest", maxMessagesPerTrigger="400"
        )
        .load()
    )
    first = await in_thread(drain, frame)
    assert numbers(first.rows) == list(range(1, 1001))
    assert [len(rows) for rows in first.batches.values()] == [400, 400, 200]
    await stream.publish(5, first=1001)
    assert numbers((await in_thread(drain, frame)).rows) == list(range(1001, 1006))


@pytest.mark.covers("L1", "L6")
async def test_batch_with_pushdown(spark, server, make_stream, in_thread):
    stream = await make_stream(allow_direct=True)
    await stream.publish(300)
    read = spark.read.format("jetstream").options(servers=server.url, stream=stream.name)

    def rows():
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            pushed = read.option("pushdown", "true").load().where("sequence between 11 and 20").collect()
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        return read.option("pushdown", "false").load().where("sequence > 290").collect(), pushed

    plain, pushed = await in_thread(rows)
    assert numbers(plain) == list(range(291, 301))
    assert numbers(pushed) == list(range(11, 21))


@pytest.mark.full
@pytest.mark.covers("L25")
async def test_replay_stores_once(spark, server, make_stream, in_thread, checkpoint):
    """Sink: the epoch and the query that it reads from Spark's local properties match this PySpark, too."""
    source, target = await make_stream(allow_direct=True), await make_stream(allow_direct=True)
    await source.publish(500)
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=server.url, stream=source.name, startingOffsets="earliest")
        .load()
        .selectExpr(f"'{target.subject('copy')}' as subject", "data")
    )

    def run():
        query = (
            frame.writeStream.format("jetstream")
            .options(servers=server.url, expectedStream=target.name, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    await in_thread(run)
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda p: int(p.name),
    )
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    await in_thread(run)
    assert sorted(number_of(one.payload) for one in await target.messages()) == list(range(1, 501))


@pytest.mark.full
async def test_a_batch_is_written(spark, server, make_stream, in_thread):
    target = await make_stream()

    def write():
        frame = spark.range(1, 101).selectExpr(
            f"'{target.subject()}' as subject", "cast(id as string) as value"
        )
        frame.write.format("jetstream").option("servers", server.url).mode("append").save()

    await in_thread(write)
    assert sorted(int(one.payload) for one in await target.messages()) == list(range(1, 101))


@pytest.mark.covers("L15")
@pytest.mark.full
async def test_a_queue_is_worked_off(spark, server, make_stream, in_thread, drain):
    stream = await make_stream(allow_direct=True, retention="workqueue")
    await stream.create_consumer("work", ack_policy="explicit")
    await stream.publish(200)
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=server.url, stream=stream.name, mode="queue", consumer="work")
        .load()
    )
    drained = await in_thread(drain, frame)
    assert numbers(drained.rows) == list(range(1, 201))
    assert (await stream.consumer_info("work"))["num_ack_pending"] == 0
    assert (await stream.state())["messages"] == 0


@pytest.mark.covers("L21")
async def test_foreach_batch_functions(spark, server, make_stream, in_thread, drain):
    stream, target = await make_stream(allow_direct=True), await make_stream()
    await stream.create_consumer("work", ack_policy="explicit")
    await stream.publish(200)
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=server.url, stream=stream.name, mode="queue", consumer="work", ackOn="manual")
        .load()
    )
    acked = []

    def work(rows, batch):
        with heartbeat(rows, server.url):
            out = rows.selectExpr(f"'{target.subject()}' as subject", "data")
            publish_batch(out, server.url, batch_id=batch)
        acked.append(ack_batch(rows, server.url))

    drained = await in_thread(lambda: drain(frame, also=work))
    assert sum(acked) == len(drained.rows) == 200
    assert (await stream.consumer_info("work"))["num_ack_pending"] == 0
    assert sorted(number_of(one.payload) for one in await target.messages()) == list(range(1, 201))


# --- the environment that queries share ---------------------------------------------------------------------------


async def test_query_keeps_environment(spark, server, make_stream, in_thread, drain):
    """Spark puts variables into the HashMap of the registration, with no lock: an added key could be counted twice."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(10)

    def run():
        fresh = spark.newSession()
        own = dict(fresh.sparkContext.environment)
        register(fresh)
        assert fresh.sparkContext.environment == own, "functions of the user get what they got before"
        source = fresh._jsparkSession.sessionState().dataSourceManager().lookupDataSource("jetstream")
        shared = source.dataSourceCls().envVars()
        before = dict(shared)
        options = {"servers": server.url, "stream": stream.name, "startingOffsets": "earliest"}
        drained = drain(fresh.readStream.format("jetstream").options(**options).load())
        return before, dict(shared), drained

    before, after, drained = await in_thread(run)
    assert numbers(drained.rows) == list(range(1, 11))
    assert sorted(after) == sorted(before)
    assert after["SPARK_LOCAL_DIRS"] != before["SPARK_LOCAL_DIRS"], "Spark puts its own values"
    assert after["SPARK_PYTHON_RUNTIME"] == "PYTHON_WORKER"


# --- found by its name --------------------------------------------------------------------------------------------


async def test_source_found_without_registration(spark, server, make_stream, in_thread):
    stream = await make_stream(allow_direct=True)
    await stream.publish(3)

    def count():
        fresh = spark.newSession()
        return fresh.read.format("jetstream").options(servers=server.url, stream=stream.name).load().count()

    assert await in_thread(count) == 3


LOOK_UP = """
import io
from pyspark.sql.worker import lookup_data_sources
found = io.BytesIO()
lookup = getattr(lookup_data_sources, "_main", None) or lookup_data_sources.main
lookup(io.BytesIO(), found)
print(b"jetstream" in found.getvalue(), b"other" in found.getvalue())
"""
OTHER = """
from pyspark.sql.datasource import DataSource
class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"
"""
BROKEN = {
    "jsclient cannot be imported": {"jsclient/__init__.py": "raise RuntimeError('half an installation')"},
    "jsclient is not there": {},
    "pyarrow is not there": {"pyarrow/__init__.py": "raise ImportError('no pyarrow')"},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_install_isolated(java, tmp_path, broken):
    """Spark imports our package unguarded when any Python source is used: another package must still be found."""
    files = {**BROKEN[broken], "pyspark_other/__init__.py": OTHER}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    import jsclient

    auto = Path(jsclient.__file__).parent / "spark" / "_auto" / "pyspark_jetstream"
    if not auto.exists():
        import pyspark_jetstream

        auto = Path(pyspark_jetstream.__file__).parent
    shutil.copytree(auto, tmp_path / "pyspark_jetstream")
    run = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        env={**environment(), "PYTHONPATH": str(tmp_path), "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == ["True", "True"], run.stderr
