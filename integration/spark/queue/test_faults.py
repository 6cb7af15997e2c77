"""Faults of queue mode: an option that does not fit is refused on the driver, by name. A failure is recovered."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import nats.errors
import pytest

from integration.consumers.test_poison_messages import store_raw
from integration.kit.calls.queue import QueueQuery
from integration.kit.judge.oracle import number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from jsclient import ConfigError, ConnectError, RequestTimeoutError

pytest.importorskip("pyspark.sql.streaming.datasource")

ACK_WAIT = 3.0


def ns(seconds):
    return int(seconds * 1e9)


def numbers(rows):
    return sorted(number_of(row["data"]) for row in rows)


def seen(first, last):
    return list(range(first, last + 1))


# --- refused ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("L20")
@pytest.mark.parametrize(
    ("stream", "consumer", "options", "says"),
    [
        ({}, {"name": "q", "deliver_subject": "x"}, {}, "'consumer'.*push consumer"),
        ({"retention": "limits"}, {"name": "q", "ack_policy": "none"}, {}, "'consumer'.*'none'.*explicit"),
        ({"retention": "limits"}, {"name": "q", "ack_policy": "all"}, {}, "'consumer'.*'all'.*explicit"),
        ({}, {"name": "other"}, {}, "'consumer'.*no consumer 'q'.*create"),
        ({"allow_direct": False}, {"name": "q"}, {}, "'stream'.*direct.*allow_direct=True"),
        ({"retention": "limits"}, {"name": "q"}, {"ackOn": "purge"}, "'ackOn'.*not a work queue"),
    ],
)
async def test_does_not_fit_refused(server, oracle, make_stream, stream, consumer, options, says):
    own = await make_stream(**{"retention": "workqueue", "allow_direct": True, **stream})
    await own.create_consumer(**consumer)
    with pytest.raises(ConfigError, match=says):
        await QueueQuery(server, own, "q", options).make()


async def test_a_stream_that_is_not_there(server):
    with pytest.raises(ConfigError, match=r"'stream'.*stream 'NOT_THERE' does not exist"):
        await QueueQuery(server, "NOT_THERE", "q").make()


async def test_a_server_that_is_not_there():
    nowhere = SimpleNamespace(url="nats://127.0.0.1:9")
    with pytest.raises(ConnectError):
        await QueueQuery(nowhere, "S", "q", {"timeout": "1"}).make()


@pytest.mark.covers("L20")
@pytest.mark.parametrize(
    ("denied", "says"),
    [
        ("$JS.API.STREAM.INFO.*", "'stream'.*STREAM.INFO.ORDERS.*allow it"),
        ("$JS.API.CONSUMER.INFO.>", "'consumer'.*CONSUMER.INFO.ORDERS.q.*allow it"),
        ("$JS.API.DIRECT.GET.>", "'stream'.*executors.*DIRECT.GET.ORDERS.*allow it"),
        ("$JS.API.CONSUMER.MSG.NEXT.>", "'consumer'.*pulls.*MSG.NEXT.ORDERS.q.*allow it"),
        ("$JS.ACK.>", "'consumer'.*acked.*JS.ACK.*allow it"),
    ],
)
async def test_missing_right_named(own_server, oracle_for, denied, says):
    rights = {"publish": {"deny": [denied]}}
    own = await own_server(
        config={
            "authorization": {
                "users": [
                    {"user": "judge", "password": "x"},
                    {"user": "ann", "password": "hush", "permissions": rights},
                ]
            }
        }
    )
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    await oracle.create_stream("ORDERS", ["orders.>"], retention="workqueue", allow_direct=True)
    await oracle.create_consumer("ORDERS", "q")
    await oracle.publish_many("orders.a", 10)
    query = QueueQuery(own, "ORDERS", "q", {"user": "ann", "password": "hush"})
    try:
        with pytest.raises(ConfigError, match=says) as caught:
            await query.plan()
        assert "hush" not in str(caught.value)
    finally:
        await query.stop()


# --- got over --------------------------------------------------------------------------------------------------


@pytest.fixture
async def own_queue(own_server, oracle_for):
    """`await own_queue(**server_options)`: a query on a work queue of a private server."""
    results = []

    async def create(*, ack_wait=ACK_WAIT, retention="workqueue", options=None, **server_options):
        own = await own_server(**server_options)
        oracle = await oracle_for(own)
        stream = await OwnStream.create(
            oracle, "queue", retention=retention, allow_direct=True, storage="file"
        )
        await stream.create_consumer("q", ack_wait=ns(ack_wait), max_ack_pending=100_000)
        query = QueueQuery(own, stream, "q", options or {})
        results.append(query)
        return own, query

    yield create
    from jsclient.tables.server_options import ServerOptions
    from jsclient.tables.session import session

    for query in results:
        if query._reader is not None:
            await query.stop()
        opened = session(ServerOptions.of(query.server.url))
        await asyncio.to_thread(opened.run, opened.js.close())


async def test_old_server_message_get(own_queue):
    """It has no direct get of many messages."""
    _, query = await own_queue(version="2.10.25")
    await query.stream.publish(1500)
    assert await query.drain() == [1500]
    assert numbers(query.rows) == seen(1, 1500)
    assert (await query.stream.state())["messages"] == 0


@pytest.mark.parametrize("remaining", [0, 50])
async def test_old_server_claims_gone(own_queue, remaining):
    """It answers for each message alone: more of them than are asked for at once do not exist."""
    _, query = await own_queue(
        version="2.10.25", retention="limits", options={"failOnDataLoss": "false", "minPartitions": 1}
    )
    await query.stream.publish(300)
    partitions = await query.plan()
    assert len(partitions) == 1
    await query.stream.oracle.purge(query.stream.name, seq=301 - remaining)
    query.commit(await asyncio.wait_for(query.read(partitions), 20))
    assert await query.plan() is None
    assert numbers(query.rows) == seen(301 - remaining, 300)


@pytest.mark.parametrize("version", ["2.10.25", "newest"])
@pytest.mark.parametrize("data", [b"", b"data"])
async def test_status_lines_stored(own_queue, version, data):
    """Clients may store header blocks that look like an answer of the server without a message."""
    own, query = await own_queue(version=version)
    statuses = ["404 Message Not Found", "409 Consumer Deleted", "503", "204 EOB"]
    blocks = [b"", *(f"NATS/1.0 {status}\r\n\r\n".encode() for status in statuses), b"NATS/1.0", b""]
    await store_raw(own.url, [(query.stream.subject("x").encode(), block, data) for block in blocks])

    async def stored():
        return (await query.stream.state())["messages"] == len(blocks)

    await eventually(stored, what="the messages")
    rows = await asyncio.wait_for(query.read(await query.plan()), 20)
    assert [(row["sequence"], row["data"]) for row in rows] == [
        (seq, data) for seq in range(1, len(blocks) + 1)
    ]


async def test_lagging_replica_is_not_awaited_for_ever(server, make_stream, monkeypatch):
    """The leader has a message that direct gets do not find: the task fails after its patience."""
    from jsclient._runtime.retry import RetryPolicy
    from jsclient.spark.queue import reading

    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(10)
    await stream.create_consumer("q", ack_wait=ns(30))
    query = QueueQuery(server, stream, "q")
    partitions = await query.plan()
    await stream.oracle.delete_message(stream.name, 5)

    async def has_it(_, seq):
        return seq

    monkeypatch.setattr(reading._ClaimReader, "_next_of_leader", has_it)
    monkeypatch.setattr(reading, "_RETRY", RetryPolicy(0.05, 0.05, patience=1.0))
    with pytest.raises(RequestTimeoutError, match="a replica does not have yet"):
        await asyncio.wait_for(query.read(partitions), 20)
    await query.stop()


async def test_second_form_of_ack_subjects(own_queue):
    """Acks and signs of life are made from claims in the form that the server uses."""
    _, query = await own_queue(ack_v2=True, version="newest")
    await query.stream.publish(200)
    partitions = await query.plan()
    assert query.logged["ack"].count(".") == 5
    await asyncio.sleep(2 * ACK_WAIT)
    assert (await query.stream.consumer_info("q"))["num_redelivered"] == 0
    rows = await query.read(partitions)
    assert all(row["reply"].count(".") == 10 for row in rows)
    query.commit(rows)
    assert await query.plan() is None
    assert (await query.stream.state())["messages"] == 0
    assert numbers(query.rows) == seen(1, 200)


@pytest.mark.server(">=2.14")
async def test_forgotten_acked_again(server, oracle, make_stream, caplog):
    """A server that is killed may not have noted its last deliveries: it answers no ack of them, and delivers them
    again. A reset of the consumer does the same. Spark gets them once, and it is reported."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(100)
    await stream.create_consumer("q", ack_wait=ns(60), max_ack_pending=1000)
    query = QueueQuery(server, stream, "q", {"maxMessagesPerTrigger": "60"})
    await query.batch()
    await oracle.api(f"CONSUMER.RESET.{stream.name}.q", {"seq": 21})
    while await query.batch():
        pass
    info = await stream.consumer_info("q")
    assert numbers(query.rows) == seen(1, 100)
    assert info["num_ack_pending"] == info["num_pending"] == 0
    assert query._reader.reportLatestOffset()["lapsed"] == 40
    assert "lost the record of these deliveries" in caplog.text
    await query.stop()


@pytest.mark.covers("L16")
@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_server_restarts_during_batch(own_queue, how):
    """Claims are kept alive again, rows are read, acks are counted: each message once."""
    own, query = await own_queue(ack_wait=20.0)
    await query.stream.publish(300)
    partitions = await query.plan()
    reading = asyncio.create_task(query.read(partitions))
    if how == "kill":
        await own.kill()
        await own.start()
    else:
        await own.restart()
    query.commit(await reading)
    assert await query.plan() is None
    info = await query.stream.consumer_info("q")
    assert numbers(query.rows) == seen(1, 300)
    assert info["num_ack_pending"] == info["num_redelivered"] == 0
    assert (await query.stream.state())["messages"] == 0


async def test_server_away_while_query_idle(own_queue):
    own, query = await own_queue()
    await query.stream.publish(10)
    assert len(await query.batch()) == 10
    assert await query.plan() is None
    await own.stop()
    waiting = asyncio.create_task(query.batch())
    await never(waiting.done, 0.5, "a batch without a server")
    await own.start()
    await eventually(lambda: _published(query.stream), 60, "a publish")
    await waiting
    deadline = asyncio.get_running_loop().time() + 60
    # A batch takes what is stored when it is planned: the first message goes alone.
    while set(numbers(query.rows)) != set(seen(1, 20)) and asyncio.get_running_loop().time() < deadline:
        await query.batch()
    assert set(numbers(query.rows)) == set(seen(1, 20))
    assert await query.plan() is None


async def _published(stream):
    """Whether messages 11 to 20 are stored, some of them perhaps twice: a server that has just begun may refuse."""
    try:
        return await stream.publish(10, first=11)
    except nats.errors.Error:
        return False


async def test_frozen_server_available_now(own_queue):
    """No answer is not "no messages"."""
    own, query = await own_queue(ack_wait=30.0, options={"maxMessagesPerTrigger": "10", "timeout": "1"})
    await query.stream.publish(20)
    query.available_now = True
    await query.start()
    assert len(await query.batch()) == 10
    own.pause()
    waiting = asyncio.create_task(query.batch())
    await asyncio.sleep(3.0)
    assert not waiting.done()
    own.resume()
    assert len(await waiting) == 10
    assert await query.plan() is None
    assert numbers(query.rows) == seen(1, 20)


async def test_signs_of_life_came_too_late_reported(own_queue, caplog):
    """A frozen server gives nothing to others. Another worker who pulls first after that gets what ran out."""
    own, query = await own_queue(ack_wait=1.0)
    await query.stream.publish(5)
    await query.plan()
    driver = query._reader._driver
    await asyncio.to_thread(driver.session.run, _cancel(driver.holder))  # the signs of life end
    inbox = query.stream.oracle.nc.new_inbox()
    sub = await query.stream.oracle.nc.subscribe(inbox)
    pull = f"$JS.API.CONSUMER.MSG.NEXT.{query.stream.name}.q"
    await query.stream.oracle.nc.publish(pull, b'{"batch":3}', reply=inbox)
    for _ in range(3):
        await sub.next_msg(10)
    await asyncio.to_thread(driver.session.run, _beat(driver.holder))
    assert query._reader.reportLatestOffset()["lapsed"] == 3
    assert "claims lapsed" in caplog.text
    assert own.pid


async def _cancel(holder):
    holder._keeping.cancel()


async def _beat(holder):
    await holder._sign_of_life(holder._now())


async def test_deleted_consumer_named(own_queue):
    _, query = await own_queue()
    await query.stream.publish(10)
    await query.batch()
    await query.plan()
    await query.stream.delete_consumer("q")
    with pytest.raises(ConfigError, match=r"'consumer'.*deleted while the query ran"):
        await _plan_for(query, 30)


async def _plan_for(query, seconds):
    """An older server says nothing to a pull: then it is looked after some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await query.plan()
