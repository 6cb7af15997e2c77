"""The progress mirror: a durable consumer that shows, in every tool of NATS, how far a query is."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from integration.kit.calls.source import Query, options_of
from integration.kit.judge.waiting import eventually
from jsclient.errors import ConfigError

RESET = pytest.mark.server(">=2.14")


def numbers(first, last):
    return list(range(first, last + 1))


async def lag(stream, name="progress"):
    return (await stream.consumer_info(name))["num_pending"]


async def shows(stream, pending):
    """Wait until the mirror has ``pending`` messages: the server counts new messages a moment later."""

    async def same():
        assert await lag(stream) == pending
        return True

    await eventually(same, 10, f"{pending} pending messages")


@RESET
async def test_mirror_shows_left_after_each_batch(server, stream):
    await stream.publish(100)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest", maxMessagesPerTrigger=40)
    reader = query.reader()
    start, lags = query.start(reader), []
    while (end := query.ask(reader, start)) != start:
        lags.append(await lag(stream))
        query.batch(reader, start, end)
        start = end
    # The last message as well.
    assert lags == [100, 60, 20]
    await shows(stream, 0)
    info = await stream.consumer_info("progress")
    assert info["ack_floor"]["stream_seq"] == 100
    assert info["num_ack_pending"] == 0


@RESET
async def test_mirror_goes_on_with_query(server, stream):
    await stream.publish(50)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest")
    query.drain()
    await stream.publish(30)
    await shows(stream, 30)
    query.drain()
    await shows(stream, 0)


@RESET
async def test_batch_failed_not_shown_as_done(server, stream):
    await stream.publish(50)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest")
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    reader.partitions(start, end)  # and the batch fails. Spark begins again with its offsets
    again = query.reader()
    query.batch(again, start, end)
    await shows(stream, 50)
    assert query.ask(again, end) == end
    await shows(stream, 0)


@RESET
async def test_second_query_on_mirror_refused(server, oracle, make_stream):
    """On an interest stream the faster one would remove what the slower one has not read."""
    stream = await make_stream(retention="interest")
    options = {"consumer": "progress", "startingOffsets": "earliest", "maxMessagesPerTrigger": 40}
    fast, slow = Query(server, stream, **options), Query(server, stream, **options)
    fast.drain()
    slow_reader = slow.reader()
    begin = slow.start(slow_reader)
    await stream.publish(100)
    fast.drain()
    assert fast.sequences == numbers(1, 100)
    with pytest.raises(ConfigError, match="'progress', which shows the progress of another query"):
        slow.start(slow.reader())
    end = slow.ask(slow_reader, begin)  # had begun before the other one had a checkpoint
    with pytest.raises(ConfigError, match="give each query its own"):
        slow.ask(slow_reader, end)
    await stream.publish(10)
    fast.drain()  # restarted, with its checkpoint
    assert fast.sequences == numbers(1, 110)
    await shows(stream, 0)


@RESET
async def test_mirror_of_earlier_checkpoint_claimed(server, stream):
    """Its offsets have no name of the query yet."""
    await stream.publish(50)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest", maxMessagesPerTrigger=20)
    query.drain()
    consumer = await stream.consumer_info("progress")
    assert consumer["config"]["metadata"]["jsclient_spark_query"] == query.offsets[-1][1]["owner"]
    await stream.delete_consumer("progress")
    end = query.offsets[-1][1]
    del end["owner"]
    for _ in range(2):
        query.ask(query.reader(), end)  # idle, and restarted
    await stream.publish(50)
    query.drain()
    assert query.offsets[-1][1]["owner"]
    await shows(stream, 0)
    with pytest.raises(ConfigError, match="another query"):
        Query(server, stream, consumer="progress").reader().initialOffset()


@RESET
async def test_query_starts_at_end_no_lag(server, stream):
    await stream.publish(50)
    query = Query(server, stream, consumer="progress")
    query.start(query.reader())
    await shows(stream, 0)


@RESET
async def test_mirror_counts_filter_matches(server, stream):
    await stream.publish(20, "mine")
    await stream.publish(20, "yours")
    mine, also = stream.subject("mine"), stream.subject("also")
    query = Query(
        server,
        stream,
        consumer="progress",
        subjects=f"{mine},{also}",
        startingOffsets="earliest",
        maxMessagesPerTrigger=5,
    )
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    query.ask(reader, end)
    await shows(stream, 20 - len(query.rows))


@RESET
async def test_interest_stream_keeps_not_processed(server, oracle, make_stream):
    stream = await make_stream(retention="interest")
    query = Query(server, stream, consumer="progress", startingOffsets="earliest", maxMessagesPerTrigger=40)
    query.drain()  # makes the mirror, whose interest keeps what comes
    await stream.publish(100)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    assert (await stream.state())["messages"] == 100
    query.ask(reader, end)
    assert (await stream.state())["messages"] == 60
    query.drain()
    assert query.sequences == list(range(1, 101))
    assert (await stream.state())["messages"] == 0


@RESET
async def test_mirror_moved_after_batch(server, stream):
    await stream.create_consumer("progress", ack_policy="explicit", deliver_policy="all")
    await stream.publish(50)
    query = Query(server, stream, consumer="progress")
    reader = query.reader()
    start = query.start(reader)
    await shows(stream, 50)
    await stream.publish(5)
    end = query.ask(reader, start)
    await shows(stream, 55)
    query.batch(reader, start, end)
    query.ask(reader, end)
    await shows(stream, 0)


@RESET
async def test_mirror_somebody_deleted_recreated(server, stream):
    await stream.publish(50)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest", maxMessagesPerTrigger=20)
    reader = query.reader()
    start = query.start(reader)
    for _ in range(2):
        end = query.ask(reader, start)
        query.batch(reader, start, end)
        await stream.delete_consumer("progress")
        start = end
    query.ask(reader, start)
    await shows(stream, 10)


@RESET
@pytest.mark.parametrize(
    "config",
    [
        {"deliver_policy": "last"},
        {"ack_policy": "none"},
        {"filter_subject": "other"},
        {"deliver_subject": "inbox"},
    ],
    ids=str,
)
async def test_consumer_cannot_be_mirror_refused(server, stream, config):
    if "filter_subject" in config:
        config = {"filter_subject": stream.subject("other")}
    await stream.create_consumer("progress", **{"ack_policy": "explicit", "deliver_policy": "all", **config})
    with pytest.raises(ConfigError, match="option 'consumer' is 'progress'"):
        Query(server, stream, consumer="progress").reader().initialOffset()


@RESET
async def test_a_work_queue_has_no_mirror(server, oracle, make_stream):
    stream = await make_stream(retention="workqueue", allow_direct=True)
    with pytest.raises(ConfigError, match="'mode' = 'queue'"):
        Query(server, stream, consumer="progress").reader().initialOffset()


@pytest.mark.server("<2.14")
async def test_server_knows_no_reset_refused_here(server, stream):
    with pytest.raises(ConfigError, match=r"needs nats-server 2\.14"):
        Query(server, stream, consumer="progress").reader().initialOffset()


async def test_an_older_server_is_refused(own_server, oracle_for):
    own = await own_server(version="2.10.25", ack_v2=False)
    oracle = await oracle_for(own)
    await oracle.create_stream("S", ["s"], storage="memory")
    with pytest.raises(ConfigError, match=r"needs nats-server 2.14; 2.10.25 is connected"):
        Query(own, "S", consumer="progress").reader().initialOffset()


@RESET
async def test_failed_move_reported(server, stream, caplog, monkeypatch):
    from jsclient.errors import ApiError

    async def refuse(self, seq=None):
        raise ApiError(500, 10204, "not now")

    await stream.publish(10)
    query = Query(server, stream, consumer="progress", startingOffsets="earliest")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "jsclient.spark"):
        patch.setattr("jsclient.consumers.pull.consumer.Consumer.reset", refuse)
        query.drain()
    assert query.sequences == list(range(1, 11))
    assert "does not show the progress" in caplog.text
    reader = query.reader()
    assert reader.latestOffset(query.offsets[-1][1], ReadAllAvailable()) == query.offsets[-1][1]
    await shows(stream, 0)


@RESET
@pytest.mark.full
async def test_mirror_after_last_batch(spark, drain, server, stream):
    await stream.publish(250)
    options = options_of(
        server, stream, startingOffsets="earliest", maxMessagesPerTrigger=100, consumer="progress"
    )
    frame = spark.readStream.format("jetstream").options(**options).load()
    assert len(drain(frame).rows) == 250
    await shows(stream, 0)
