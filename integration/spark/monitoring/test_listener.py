"""The figures of running queries: in a classic session and under Spark Connect, with and without a server to ask."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time

import pytest

from integration.kit.calls.source import options_of
from integration.kit.judge.waiting import eventually

SERIES = re.compile(
    r'jsclient_spark_(\w+)\{query="([^"]*)",query_id="[^"]+"(?:,source="\d+",stream="(\w*)")?\} (\S+)'
)


class Figures:
    """The figures of a listener, read from its text for Prometheus."""

    def __init__(self, listener):
        self.listener = listener

    def series(self, query):
        actual = SERIES.findall(self.listener.prometheus())
        return [(metric, stream, float(value)) for metric, name, stream, value in actual if name == query]

    def of(self, query):
        """The values of a query by metric."""
        return {metric: value for metric, _, value in self.series(query)}

    def get(self, metric, query="copy"):
        return self.of(query).get(metric)

    def of_streams(self, metric, query="copy"):
        """The values of a metric by stream."""
        return {stream: value for name, stream, value in self.series(query) if name == metric}

    def streams(self, query="copy"):
        return {stream for _, stream, _ in self.series(query) if stream}


@pytest.fixture
def listen(spark):
    """Adds listeners, and removes them."""
    from jsclient.spark import JetStreamListener

    added = []

    def add(**options):
        listener = JetStreamListener(**options)
        spark.streams.addListener(listener)
        added.append(listener)
        return Figures(listener)

    yield add
    for one in added:
        spark.streams.removeListener(one)
        one.close()


def never_began(query):
    """Wait until a query has begun. Whether it failed because its Python process took too long to start."""
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.05)
    return not query.isActive and "connect back" in str(query.exception())


@pytest.fixture
def start(spark, in_thread, tmp_path):
    """Starts queries that read a stream. A gate lets their batches through one by one."""
    queries = []

    async def begin(server, stream, *, name="copy", work=lambda rows, number: None, **options):
        arguments = options_of(server, stream, **options)
        if stream is None:
            del arguments["stream"]
        if options.get("mode") != "queue":
            arguments["startingOffsets"] = "earliest"
        frame = spark.readStream.format("jetstream").options(**arguments).load()

        def batch(rows, number):
            rows.count()
            work(rows, number)

        writer = frame.writeStream.foreachBatch(batch)
        writer = writer.queryName(name).option("checkpointLocation", str(tmp_path / name))
        query = await in_thread(writer.start)
        while await in_thread(never_began, query):  # Spark gives its Python process ten seconds
            query = await in_thread(writer.start)
        queries.append(query)
        return query

    yield begin
    for query in queries:
        query.stop()


@pytest.mark.covers("L34")
async def test_rows_and_lag_of_query(listen, start, in_thread, server, stream, caplog):
    caplog.set_level(logging.INFO, "jsclient.spark.progress")
    figures = listen(log_every=0, servers=server.url, ask_every=0.1)
    await stream.publish(50)
    query = await start(server, stream, maxMessagesPerTrigger=30)
    await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.get("rows_total") == 50)
    assert figures.get("lag_messages") == 0
    assert figures.streams() == {stream.name}
    await eventually(lambda: figures.get("lag_seconds") == 0)

    def lines():
        return [record for record in caplog.records if getattr(record, "event", "") == "QueryProgress"]

    await eventually(lambda: len(lines()) >= 2)
    assert [(record.rows, record.lag_messages) for record in lines()[:2]] == [(30, 20), (20, 0)]
    assert f"query copy, batch 0: 30 rows of stream {stream.name}" in lines()[0].getMessage()
    await in_thread(query.stop)
    await eventually(lambda: figures.of("copy") == {})


@pytest.mark.covers("L34")
@pytest.mark.full
async def test_lag_after_stop_and_in_long_batch(listen, start, in_thread, server, stream):
    """It has grown when the query is started again. Its age grows while a batch runs, then it falls to 0."""
    figures = listen(servers=server.url, ask_every=0.1)
    await stream.publish(50)
    query = await start(server, stream)
    await in_thread(query.processAllAvailable)
    await in_thread(query.stop)
    await stream.publish(100, first=51)
    gate = threading.Event()
    query = await start(
        server, stream, maxMessagesPerTrigger=20, work=lambda _, number: number == 1 or gate.wait(120)
    )
    await eventually(lambda: figures.get("lag_messages") == 80, 60)
    age = await eventually(lambda: figures.get("lag_seconds"))
    await eventually(lambda: (figures.get("lag_seconds") or 0) > age)
    await stream.publish(10, first=151)  # no batch ends, but the server is asked
    await eventually(lambda: figures.get("lag_messages") == 90)
    gate.set()
    await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.get("rows_total") == 110)
    assert figures.get("lag_messages") == 0
    assert figures.get("query_up") == 1


@pytest.mark.covers("L34")
@pytest.mark.full
async def test_lag_of_each_stream(listen, start, in_thread, server, make_stream):
    """Of several streams of a source. One that is deleted loses its series."""
    figures = listen(servers=server.url, ask_every=0.1)
    one, two = await make_stream(), await make_stream()
    await one.publish(50)
    await two.publish(10)
    pattern = f"{one.name.rsplit('_', 1)[0]}_*"
    options = {"streamPattern": pattern, "maxMessagesPerTrigger": 30, "failOnDataLoss": False}
    gate = threading.Event()
    query = await start(
        server, None, work=lambda _, number: number == 0 or gate.wait(120), pollIntervalMs=10, **options
    )

    def lags():
        actual = figures.of_streams("lag_messages")
        return actual.get(one.name), actual.get(two.name)

    await eventually(lambda: lags() == (25, 5), 60)
    assert figures.of_streams("position") == {one.name: 25, two.name: 5}
    assert figures.of_streams("end_position") == {one.name: 50, two.name: 10}
    await two.publish(3, first=11)
    await eventually(lambda: lags() == (25, 8))
    assert await eventually(lambda: {one.name, two.name} == {*figures.of_streams("lag_seconds")})
    gate.set()
    await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.get("rows_total") == 63)
    assert figures.of_streams("rows_total") == {"": 63}
    await eventually(lambda: figures.of_streams("lag_seconds") == {one.name: 0, two.name: 0})
    await two.delete()
    await one.publish(1, first=51)
    await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.of_streams("position") == {one.name: 51}, 60)
    assert figures.streams() == {one.name}


@pytest.mark.full
async def test_lag_of_queue(listen, start, in_thread, server, make_stream):
    """Unacked messages: pending messages, and the messages of the current batch."""
    figures = listen(servers=server.url, ask_every=0.1)
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.create_consumer("c", ack_policy="explicit", durable_name="c")
    await stream.publish(50)
    gate = threading.Event()
    query = await start(
        server,
        stream,
        mode="queue",
        consumer="c",
        maxMessagesPerTrigger=20,
        work=lambda _, number: number == 0 or gate.wait(120),
    )
    await eventually(lambda: figures.get("lag_messages") == 30, 60)
    age = await eventually(lambda: figures.get("lag_seconds"))
    await eventually(lambda: (figures.get("lag_seconds") or 0) > age)
    await stream.publish(5, first=51)
    await eventually(lambda: figures.get("lag_messages") == 35)
    gate.set()
    await in_thread(query.processAllAvailable)
    await eventually(lambda: (figures.get("lag_messages"), figures.get("lag_seconds")) == (0, 0))


@pytest.mark.full
async def test_two_queries_and_one_that_fails(listen, start, in_thread, server, make_stream, caplog):
    figures = listen(log_every=None)
    one, two = await make_stream(allow_direct=True), await make_stream(allow_direct=True)
    await one.publish(10)
    await two.publish(20)

    def fail(rows, number):
        raise RuntimeError("as the test wants it")

    first = await start(server, one, name="one")
    second = await start(server, two, name="two")
    await start(server, one, name="failing", work=fail)
    for query in (first, second):
        await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.of("failing") == {"query_up": 0}, 60)
    await eventually(lambda: (figures.get("rows_total", "one"), figures.get("rows_total", "two")) == (10, 20))
    assert figures.streams("one") == {one.name}
    assert figures.streams("two") == {two.name}
    (event,) = [record for record in caplog.records if "as the test wants it" in record.getMessage()]
    assert (event.event, event.query) == ("QueryFailed", "failing")
    await in_thread(second.stop)
    await eventually(lambda: figures.of("two") == {})
    assert figures.get("query_up", "one") == 1


@pytest.mark.full
async def test_failing_listener_does_not_harm(listen, start, in_thread, server, stream, monkeypatch, caplog):
    def fail(progress):
        raise RuntimeError("as the test wants it")

    monkeypatch.setattr("jsclient.spark.monitoring.listener.read_progress", fail)
    figures = listen()
    await stream.publish(5)
    query = await start(server, stream)
    await in_thread(query.processAllAvailable)
    assert query.lastProgress["numInputRows"] == 5
    await eventually(lambda: "an event of a query was not counted" in caplog.text)
    assert figures.of("copy") == {"query_up": 1}


@pytest.mark.covers("L34")
@pytest.mark.full
async def test_losses_are_warnings(listen, start, in_thread, server, stream, caplog):
    figures = listen(log_every=None)
    await stream.publish(10)
    query = await start(server, stream, failOnDataLoss=False)
    await in_thread(query.processAllAvailable)
    await in_thread(query.stop)
    await stream.publish(20, first=11)
    await stream.oracle.purge(stream.name, seq=16)
    query = await start(server, stream, failOnDataLoss=False)
    await in_thread(query.processAllAvailable)
    await stream.publish(1, first=31)  # the report of a batch is made when it is planned
    await in_thread(query.processAllAvailable)
    await eventually(lambda: figures.get("lost_messages_total") == 5)
    (event,) = [record for record in caplog.records if getattr(record, "lost", 0)]
    assert event.levelname == "WARNING"
    assert "since the start: 5 messages removed unread" in event.getMessage()


@pytest.mark.full
async def test_connect(connect_spark, server, make_stream, tmp_path):
    stream = await make_stream(allow_direct=True)
    await stream.publish(50)
    code = """
        import time
        from jsclient.spark import JetStreamListener

        listener = JetStreamListener(servers=servers, ask_every=0.2)
        spark.streams.addListener(listener)
        frame = spark.readStream.format("jetstream").options(
            servers=servers, stream=stream, startingOffsets="earliest", maxMessagesPerTrigger="20"
        )
        writer = frame.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.queryName("copy").start()
        query.processAllAvailable()

        def until(*wanted):
            deadline = time.monotonic() + 60
            while not all(part in listener.prometheus() for part in wanted):
                assert time.monotonic() < deadline, listener.prometheus()
                time.sleep(0.1)

        labels = f'{{query="copy",query_id="{query.id}",source="0",stream="{stream}"}}'
        until(f"rows_total{labels} 50", f"lag_messages{labels} 0", f"lag_seconds{labels} 0")
        query.stop()
        deadline = time.monotonic() + 60
        while listener.prometheus():
            assert time.monotonic() < deadline, listener.prometheus()
            time.sleep(0.1)
        spark.streams.removeListener(listener)
        listener.close()
        result = "done"
    """
    options = {"servers": server.url, "stream": stream.name, "checkpoint": str(tmp_path / "copy")}
    assert await asyncio.to_thread(connect_spark, code, **options) == "done"
