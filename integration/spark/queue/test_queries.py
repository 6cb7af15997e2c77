"""Queue mode in Spark itself: the calls come in the order that the source counts on, and no ack comes too early."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from integration.kit.judge.oracle import number_of

ACK_WAIT = 3.0


def ns(seconds):
    return int(seconds * 1e9)


def seen(first, last):
    return list(range(first, last + 1))


def numbers(rows):
    return sorted(number_of(bytes(row["data"])) for row in rows)


@pytest.fixture
async def queue(server, oracle, spark, make_stream):
    """`await queue(retention=..., **options)`: a stream with a durable `q`, and a streaming frame of it."""

    async def create(*, retention="workqueue", **options):
        stream = await make_stream(retention=retention, allow_direct=True)
        await stream.create_consumer("q", ack_wait=ns(ACK_WAIT), max_ack_pending=10_000)
        arguments = {
            "servers": server.url,
            "stream": stream.name,
            "mode": "queue",
            "consumer": "q",
            **options,
        }
        return stream, spark.readStream.format("jetstream").options(**arguments)

    return create


@pytest.mark.covers("L15", "L16", "L24")
@pytest.mark.parametrize(
    ("retention", "lasts"),
    [
        ("workqueue", 0),
        pytest.param("workqueue", 2.5 * ACK_WAIT, marks=pytest.mark.full),
        pytest.param("limits", 2.5 * ACK_WAIT, marks=pytest.mark.full),
    ],
)
async def test_batch_slow_and_fails_comes_again_as(queue, drain, retention, lasts):
    """Row: queue source, batch failure, restart, batch longer than AckWait. No message is acked before its batch is
    committed, and no message is delivered twice."""
    stream, reader = await queue(retention=retention, maxMessagesPerTrigger="200")
    await stream.publish(500)
    frame, loop = reader.load(), asyncio.get_running_loop()
    tried = []

    def state():
        return asyncio.run_coroutine_threadsafe(stream.consumer_info("q"), loop).result(10)

    def fail(rows, number):
        acked = state()["delivered"]["consumer_seq"] - state()["num_ack_pending"]
        assert acked == 200 * number, "acks came too early, or not at all"
        if number == 1:
            tried.append(numbers(rows.collect()))
            if len(tried) == 1:
                time.sleep(lasts)
                assert state()["num_redelivered"] == 0
                raise RuntimeError("the sink is down")

    with pytest.raises(Exception, match="the sink is down"):
        await asyncio.to_thread(drain, frame, also=fail)
    await stream.publish(100, first=501)
    done = await asyncio.to_thread(drain, frame, also=fail)
    assert tried[0] == tried[1] == numbers(done.batches[1]) == seen(201, 400)
    assert numbers(done.rows) == seen(201, 600)
    info = await stream.consumer_info("q")
    assert info["num_redelivered"] == info["num_ack_pending"] == info["num_pending"] == 0
    assert info["delivered"]["consumer_seq"] == 600
    assert (await stream.state())["messages"] == (600 if retention == "limits" else 0)


@pytest.mark.covers("L16", "L17")
@pytest.mark.full
async def test_driver_away_too_long(queue, drain, js):
    """Row: queue source, driver loss longer than AckWait: at least once. Messages that another worker acked are gone
    from the work queue, which the progress reports, and no message is missing."""
    stream, reader = await queue()
    await stream.publish(100)
    frame = reader.load()

    def fail(rows, number):
        raise RuntimeError("the driver dies")

    with pytest.raises(Exception, match="the driver dies"):
        await asyncio.to_thread(drain, frame, also=fail)
    handle = await (await js.stream(stream.name)).consumer("q")
    others = []
    while len(others) < 40:
        for message in await handle.fetch(40 - len(others), expires=10.0):
            others.append(number_of(message.data))
            await message.ack_sync()
    await stream.publish(10, first=101)
    done = await asyncio.to_thread(drain, frame)
    assert sorted(numbers(done.rows) + others) == seen(1, 110)
    assert await pending_count(stream) == 0
    reports = done.progress[-1]["sources"][0]["latestOffset"]
    latest = json.loads(reports) if isinstance(reports, str) else reports
    assert latest == {"b": 2, "stream": stream.name, "consumer": "q", "pending": 0, "lapsed": 40}


async def pending_count(stream):
    return (await stream.consumer_info("q"))["num_ack_pending"]


@pytest.mark.covers("L20")
async def test_errors_name_option(queue, drain):
    stream, reader = await queue()
    await stream.delete_consumer("q")
    with pytest.raises(Exception, match=r"(?s)ConfigError.*option 'consumer'.*no consumer 'q'"):
        await asyncio.to_thread(drain, reader.load())


@pytest.mark.covers("L15")
@pytest.mark.full
async def test_schema_and_many_tasks(queue, drain):
    stream, reader = await queue(minPartitions="4")
    await stream.publish(1000)
    frame = reader.schema("reply string, data binary, num_delivered int").load()
    done = await asyncio.to_thread(drain, frame)
    assert numbers(done.rows) == seen(1, 1000)
    assert done.rows[0].asDict().keys() == {"reply", "data", "num_delivered"}
    assert await pending_count(stream) == 0
