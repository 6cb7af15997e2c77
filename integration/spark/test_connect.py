"""Under Spark Connect, whose client has no JVM: source, sink, both in one query, and the calls of foreachBatch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from integration.kit.judge.oracle import number_of

pytestmark = pytest.mark.server(">=2.11")


@pytest.mark.covers("L1", "L32")
@pytest.mark.full
async def test_a_batch_is_read_and_written(connect_spark, server, make_stream):
    stream = await make_stream(allow_direct=True)
    code = """
        frame = spark.range(1, 101).selectExpr("concat(prefix, '.', id % 3) as subject", "cast(id as string) as value")
        frame.write.format("jetstream").option("servers", servers).mode("append").save()
        read = spark.read.format("jetstream").options(servers=servers, stream=stream).load()
        result = [[row.subject, int(row.data)] for row in read.collect()]
    """.replace("prefix", f"'{stream.prefix}'")
    rows = await asyncio.to_thread(connect_spark, code, servers=server.url, stream=stream.name)
    assert sorted(rows, key=lambda row: row[1]) == [[f"{stream.prefix}.{n % 3}", n] for n in range(1, 101)]


@pytest.mark.covers("L25", "L32")
@pytest.mark.full
async def test_query_from_stream_to_stream(connect_spark, server, make_stream, checkpoint):
    source, target = await make_stream(allow_direct=True), await make_stream()
    await source.publish(1000)
    code = """
        frame = (
            spark.readStream.format("jetstream")
            .options(servers=servers, stream=source, startingOffsets="earliest", maxMessagesPerTrigger="600")
            .load()
            .selectExpr(f"'{subject}' as subject", "data")
        )
        query = (
            frame.writeStream.format("jetstream")
            .options(servers=servers, expectedStream=target, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        table = spark.read.format("jetstream").options(servers=servers, stream=target).load()
        result = [progress.numInputRows for progress in query.recentProgress], table.count()
    """
    rows, count = await asyncio.to_thread(
        connect_spark,
        code,
        servers=server.url,
        source=source.name,
        target=target.name,
        subject=target.subject("copy"),
        checkpoint=str(checkpoint),
    )
    assert rows == [600, 400]
    assert count == 1000
    assert sorted(number_of(one.payload) for one in await target.messages()) == list(range(1, 1001))


@pytest.mark.covers("L21", "L32")
@pytest.mark.full
async def test_foreach_batch_acks_and_publishes(connect_spark, server, make_stream, checkpoint):
    """The function is pickled and runs in a process of the server."""
    source, target = await make_stream(allow_direct=True), await make_stream()
    await source.create_consumer("work", ack_policy="explicit")
    await source.publish(300)
    code = """
        frame = (
            spark.readStream.format("jetstream")
            .options(servers=servers, stream=source, mode="queue", consumer="work", ackOn="manual")
            .load()
        )

        def work(rows, batch):
            from jsclient.spark import ack_batch, heartbeat, publish_batch

            with heartbeat(rows, servers):
                out = rows.selectExpr(f"'{subject}' as subject", "data")
                publish_batch(out, servers, batch_id=batch, query="connect")
            assert ack_batch(rows, servers) == rows.count()

        query = (
            frame.writeStream.foreachBatch(work)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
    """
    await asyncio.to_thread(
        connect_spark,
        code,
        servers=server.url,
        source=source.name,
        subject=target.subject("done"),
        checkpoint=str(checkpoint),
    )
    info = await source.consumer_info("work")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    assert sorted(number_of(one.payload) for one in await target.messages()) == list(range(1, 301))


@pytest.mark.covers("L22")
@pytest.mark.full
async def test_foreach_batch_writes_to_database(connect_spark, server, make_stream, database, tmp_path):
    """The functions of the example for PostgreSQL, stopped between the transaction of a batch and its ack."""
    import psycopg

    stream = await make_stream(retention="workqueue", allow_direct=True)
    for number in range(300):
        await stream.oracle.publish(stream.subject("a"), b'{"account": 1, "cents": %d}' % number)
    await stream.create_consumer("database", ack_wait=60_000_000_000, max_ack_pending=1000)
    code = """
        import psycopg
        from functools import partial

        example = {"__name__": "example"}
        exec(program, example)
        ack_batch = example["ack_batch"]

        def stop_once(rows, servers):
            import os

            if os.path.exists(marker):
                return ack_batch(rows, servers)
            open(marker, "w").close()
            raise RuntimeError("stopped before the ack")

        example["ack_batch"] = stop_once
        with psycopg.connect(database) as db:
            db.execute(example["TABLES"])
        source = {"servers": servers, "stream": stream, "mode": "queue", "consumer": "database"}
        reader = spark.readStream.format("jetstream").options(**source, ackOn="manual", maxMessagesPerTrigger="200")
        rows = reader.schema("stream_created timestamp, sequence bigint, data binary, reply string").load()

        def run():
            writer = rows.writeStream.foreachBatch(partial(example["write"], servers, database))
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            return writer.start().awaitTermination(60)

        try:
            run()
        except Exception as error:
            assert "stopped before the ack" in str(error), error
        else:
            raise AssertionError("the first run went on")
        with psycopg.connect(database) as db:
            assert db.execute("SELECT count(*) FROM payments").fetchone() == (200,)
        assert run()
    """
    program = Path(__file__).resolve().parents[2] / "examples" / "spark" / "payments_to_postgres.py"
    await asyncio.to_thread(
        connect_spark,
        code,
        program=program.read_text(encoding="utf-8"),
        servers=server.url,
        stream=stream.name,
        database=database,
        checkpoint=str(tmp_path / "checkpoint"),
        marker=str(tmp_path / "stopped"),
    )
    with psycopg.connect(database) as db:
        actual = db.execute("SELECT count(*), sum(cents) FROM payments").fetchone()
    assert actual == (300, sum(range(300)))
    assert (await stream.state())["messages"] == 0


@pytest.mark.full
async def test_own_registrations_start(connect_spark, server, make_stream, tmp_path):
    source, target = await make_stream(allow_direct=True), await make_stream()
    await source.publish(100)
    code = """
        from jsclient.spark import register

        queries = []
        for number in range(3):
            register(spark)
            frame = (
                spark.readStream.format("jetstream")
                .options(servers=servers, stream=source, startingOffsets="earliest")
                .load()
                .selectExpr(f"'{subject}' as subject", "data")
            )
            writer = frame.writeStream.format("jetstream").trigger(availableNow=True)
            queries.append(writer.options(servers=servers, checkpointLocation=f"{files}/{number}").start())
        assert all(query.awaitTermination(120) for query in queries)
    """
    await asyncio.to_thread(
        connect_spark,
        code,
        servers=server.url,
        source=source.name,
        subject=target.subject("copy"),
        files=str(tmp_path),
    )
    assert sorted(number_of(one.payload) for one in await target.messages()) == sorted([*range(1, 101)] * 3)


@pytest.mark.full
async def test_wrong_option_told_to_client(connect_spark, server):
    code = """
        try:
            spark.read.format("jetstream").options(servers=servers, stream="S", maxMesagesPerTrigger="1").load().schema
        except Exception as error:
            result = str(error)
    """
    reports = await asyncio.to_thread(connect_spark, code, servers=server.url)
    assert "has no option 'maxmesagespertrigger': did you mean 'maxMessagesPerTrigger'?" in reports


@pytest.mark.full
async def test_name_of_query_in_log_of_sink(connect_spark, server, make_stream, tmp_path):
    """Spark gives it to the sink, in a process of the server."""
    source, target = await make_stream(allow_direct=True), await make_stream()
    await source.publish(5)
    code = """
        reader = spark.readStream.format("jetstream").options(servers=servers, stream=source)
        rows = reader.option("startingOffsets", "earliest").load().selectExpr("'not a subject' as subject", "data")
        writer = rows.writeStream.options(servers=servers, expectedStream=target, checkpointLocation=checkpoint)
        query = writer.format("jetstream").queryName("broken one").start()
        try:
            query.awaitTermination(120)
        except Exception as error:
            result = str(error)
    """
    options = {"source": source.name, "target": target.name, "checkpoint": str(tmp_path / "checkpoint")}
    reports = await asyncio.to_thread(connect_spark, code, servers=server.url, **options)
    assert "not a subject" in reports
    assert "query broken one, batch 0 failed." in connect_spark.log
