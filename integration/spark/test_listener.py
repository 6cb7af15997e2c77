"""The figures of running queries: in a classic session and under Spark Connect, with and without a server to ask."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time

import pytest

import jsclient
from integration.kit.calls.source import options_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from jsclient.errors import PositionInvalidError
from jsclient.spark.monitoring.lag import LagWatch, unread_after
from jsclient.spark.monitoring.progress import LogPlace
from jsclient.spark.options.connect import ConnectOptions

SERIES = re.compile(
    r'jsclient_spark_(\w+)\{query="([^"]*)",query_id="[^"]+"(?:,source="\d+",stream="(\w*)")?\} (\S+)'
)


class Figures:
    """What a listener says, read from its text for Prometheus."""

    def __init__(self, listener):
        self.listener = listener

    def series(self, query):
        found = SERIES.findall(self.listener.prometheus())
        return [(metric, stream, float(value)) for metric, name, stream, value in found if name == query]

    def of(self, query):
        """The values of a query by metric."""
        return {metric: value for metric, _, value in self.series(query)}

    def get(self, metric, query="copy"):
        return self.of(query).get(metric)

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


@pytest.fixture
def start(spark, aside, tmp_path):
    """Starts queries that read a stream; a gate lets their batches through one by one."""
    queries = []

    async def begin(server, stream, *, name="copy", work=lambda rows, number: None, **options):
        given = options_of(server, stream, startingOffsets="earliest", **options)
        frame = spark.readStream.format("jetstream").options(**given).load()

        def batch(rows, number):
            rows.count()
            work(rows, number)

        writer = frame.writeStream.foreachBatch(batch)
        writer = writer.queryName(name).option("checkpointLocation", str(tmp_path / name))
        queries.append(await aside(writer.start))
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


async def test_rows_and_lag_of_query(listen, start, aside, server, stream, caplog):
    caplog.set_level(logging.INFO, "jsclient.spark.progress")
    figures = listen(log_every=0, servers=server.url, ask_every=0.1)
    await stream.publish(50)
    query = await start(server, stream, maxMessagesPerTrigger=30)
    await aside(query.processAllAvailable)
    await eventually(lambda: figures.get("rows_total") == 50)
    assert figures.get("lag_messages") == 0
    assert figures.streams() == {stream.name}
    await eventually(lambda: figures.get("lag_seconds") == 0)

    def lines():
        return [record for record in caplog.records if getattr(record, "event", "") == "QueryProgress"]

    await eventually(lambda: len(lines()) >= 2)
    assert [(record.rows, record.lag_messages) for record in lines()[:2]] == [(30, 20), (20, 0)]
    assert f"query copy, batch 0: 30 rows of stream {stream.name}" in lines()[0].getMessage()
    await aside(query.stop)
    await eventually(lambda: figures.of("copy") == {})


@pytest.mark.full
async def test_lag_after_stop_and_in_long_batch(listen, start, aside, server, stream):
    """It has grown when the query is started again; its age grows while a batch runs; then it falls to 0."""
    figures = listen(servers=server.url, ask_every=0.1)
    await stream.publish(50)
    query = await start(server, stream)
    await aside(query.processAllAvailable)
    await aside(query.stop)
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
    await aside(query.processAllAvailable)
    await eventually(lambda: figures.get("rows_total") == 110)
    assert figures.get("lag_messages") == 0
    assert figures.get("query_up") == 1


@pytest.mark.full
async def test_two_queries_and_one_that_fails(listen, start, aside, server, make_stream, caplog):
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
        await aside(query.processAllAvailable)
    await eventually(lambda: figures.of("failing") == {"query_up": 0}, 60)
    await eventually(lambda: (figures.get("rows_total", "one"), figures.get("rows_total", "two")) == (10, 20))
    assert figures.streams("one") == {one.name}
    assert figures.streams("two") == {two.name}
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "QueryFailed"]
    assert told.query == "failing"
    assert "as the test wants it" in told.getMessage()
    await aside(second.stop)
    await eventually(lambda: figures.of("two") == {})
    assert figures.get("query_up", "one") == 1


@pytest.mark.full
async def test_failing_listener_does_not_harm(listen, start, aside, server, stream, monkeypatch, caplog):
    def fail(progress):
        raise RuntimeError("as the test wants it")

    monkeypatch.setattr("jsclient.spark.monitoring.listener.read_progress", fail)
    figures = listen()
    await stream.publish(5)
    query = await start(server, stream)
    await aside(query.processAllAvailable)
    assert query.lastProgress["numInputRows"] == 5
    await eventually(lambda: "an event of a query was not counted" in caplog.text)
    assert figures.of("copy") == {"query_up": 1}


@pytest.mark.full
async def test_losses_are_warnings(listen, start, aside, server, stream, caplog):
    figures = listen(log_every=None)
    await stream.publish(10)
    query = await start(server, stream, failOnDataLoss=False)
    await aside(query.processAllAvailable)
    await aside(query.stop)
    await stream.publish(20, first=11)
    await stream.oracle.purge(stream.name, seq=16)
    query = await start(server, stream, failOnDataLoss=False)
    await aside(query.processAllAvailable)
    await stream.publish(1, first=31)  # the report of a batch is made when it is planned
    await aside(query.processAllAvailable)
    await eventually(lambda: figures.get("lost_messages_total") == 5)
    (told,) = [record for record in caplog.records if getattr(record, "lost", 0)]
    assert told.levelname == "WARNING"
    assert "5 messages were removed before they were read" in told.getMessage()


# --- the server that is asked --------------------------------------------------------------------------------


async def place_in(js, stream, seq, *subjects):
    created = (await js.stream(stream.name)).cached_info.created.isoformat()
    return LogPlace(stream.name, created, seq, tuple(map(stream.subject, subjects)))


async def test_unread_messages(js, stream):
    await stream.publish(5, "a")
    await stream.publish(5, "b")
    before = time.monotonic()
    await stream.publish(5, "a")
    assert (await unread_after(js, await place_in(js, stream, 3))).last == 15
    assert (await unread_after(js, await place_in(js, stream, 3, "b"))).last == 10
    some = await unread_after(js, await place_in(js, stream, 3, "b", "c"))
    assert some.last == 10
    late = await unread_after(js, await place_in(js, stream, 10, "a", "b"))
    assert late.last == 15
    assert some.since < before <= late.since + 0.05  # the clock of the server may have another granularity
    nothing = await unread_after(js, await place_in(js, stream, 15))
    assert nothing.last == 0
    assert before < nothing.since <= time.monotonic()
    assert (await unread_after(js, await place_in(js, stream, 10, "b"))).last == 0


async def test_recreated_stream_refused(js, stream):
    place = await place_in(js, stream, 0)
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all])
    with pytest.raises(PositionInvalidError, match="recreated"):
        await unread_after(js, place)


class Watched:
    """A watch and its answers."""

    def __init__(self, url, places):
        self.places, self.answers = dict(places), []
        options = ConnectOptions.of({"servers": url, "timeout": "0.5"})
        self.watch = LagWatch(options, 0.05, lambda: self.places, lambda *answer: self.answers.append(answer))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "jsclient-spark-lag"]


async def test_watch_ends_and_begins_again(js, server, stream):
    await stream.publish(5)
    place = await place_in(js, stream, 2)
    watched = Watched(server.url, {"a": place})
    watched.watch.start()
    watched.watch.start()
    assert len(threads()) == 1
    key, asked, unread = await eventually(lambda: watched.answers and watched.answers[0])
    assert (key, asked, unread.last) == ("a", place, 5)
    watched.places.clear()
    await eventually(lambda: threads() == [])
    watched.places["b"] = place
    watched.watch.start()
    await eventually(lambda: watched.answers[-1][0] == "b")
    await asyncio.to_thread(watched.watch.close)
    assert threads() == []
    watched.watch.start()
    assert threads() == []


async def test_server_away_and_back(own_server, oracle_for, caplog):
    """The answer is None meanwhile, and the log says so once."""
    own = await own_server()
    stream = await OwnStream.create(await oracle_for(own), "away", storage="file")
    await stream.publish(5)
    async with jsclient.connect(own.url) as js:
        watched = Watched(own.url, {"a": await place_in(js, stream, 2)})
    await own.stop()
    watched.watch.start()
    await eventually(lambda: len(watched.answers) > 3)
    assert {unread for _, _, unread in watched.answers} == {None}
    assert caplog.text.count("in seconds is unknown") == 1
    await own.start()
    await eventually(lambda: watched.answers[-1][2] is not None)
    assert watched.answers[-1][2].last == 5
    await asyncio.to_thread(watched.watch.close)


async def test_close_does_not_wait_for_server(own_server):
    own = await own_server()
    await own.stop()
    watched = Watched(own.url, {"a": LogPlace("S", "", 0)})
    watched.watch.start()
    async with asyncio.timeout(5):
        await asyncio.to_thread(watched.watch.close)
    await never(threads, 0.1)


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
    given = {"servers": server.url, "stream": stream.name, "checkpoint": str(tmp_path / "copy")}
    assert await asyncio.to_thread(connect_spark, code, **given) == "done"
