"""Queue mode against a real server, with the calls that Spark makes but without Spark: claims, replays, acks, loss."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.judge.oracle import number_of
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import published

pyspark = pytest.importorskip("pyspark.sql.streaming.datasource")

ACK_WAIT = 3.0  # seconds. A test that is slower is kept alive anyway, unless it stands still for two


def ns(seconds):
    return int(seconds * 1e9)


@pytest.fixture
async def queue(server, oracle, make_stream):
    """`await queue(retention=..., consumer={...}, **options)`: a query on a new stream with a new durable `q`."""
    results = []

    async def create(*, count=0, stream=None, consumer=None, columns=(), **options):
        own = await make_stream(**{"retention": "workqueue", "allow_direct": True, **(stream or {})})
        if count:
            await own.publish(count)
        await own.create_consumer(
            "q", **{"ack_wait": ns(ACK_WAIT), "max_ack_pending": 100_000, **(consumer or {})}
        )
        query = QueueQuery(server, own, "q", {"minPartitions": 2, **options}, columns)
        results.append(query)
        return query

    yield create
    for query in results:
        await query.stop()


async def info(query):
    return await query.stream.consumer_info(query.consumer)


def numbers(rows):
    return sorted(number_of(row["data"]) for row in rows)


def seen(first, last):
    return list(range(first, last + 1))


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("L15")
@pytest.mark.parametrize("retention", ["workqueue", "limits", "interest"])
async def test_read_once_acked_after(queue, retention):
    """Never an ack before the batch was committed. All of them when Spark asks on."""
    query = await queue(stream={"retention": retention}, maxMessagesPerTrigger=400)
    await query.stream.publish(1000)
    for batch in (1, 2, 3):
        partitions = await query.plan()
        assert len(partitions) == 2
        rows = await query.read(partitions)
        remaining = await info(query)
        assert remaining["num_ack_pending"] == len(rows) == (400, 400, 200)[batch - 1]
        assert remaining["ack_floor"]["stream_seq"] == 400 * (batch - 1)
        query.commit(rows)
    assert await query.plan() is None
    assert (await info(query))["num_ack_pending"] == 0
    assert (await query.stream.state())["messages"] == (1000 if retention == "limits" else 0)
    assert numbers(query.rows) == seen(1, 1000)
    named = {"stream": query.stream.name, "consumer": "q"}
    assert query._reader.reportLatestOffset() == {"b": 3, **named, "pending": 0, "lapsed": 0}


@pytest.mark.covers("L8")
async def test_rows_say_deliveries_said(queue, oracle, server):
    """All columns, as a delivery of the same message to someone else shows them. The reply in the server's form."""
    query = await queue(stream={"retention": "limits"})
    await oracle.publish(query.stream.subject("a"), b"1", headers={"H": "h"})
    await query.stream.publish(2, first=2)
    await query.stream.create_consumer("other")
    inbox = oracle.nc.new_inbox()
    sub = await oracle.nc.subscribe(inbox)
    await oracle.nc.publish(
        f"$JS.API.CONSUMER.MSG.NEXT.{query.stream.name}.other", b'{"batch":3}', reply=inbox
    )
    others = [await sub.next_msg(5) for _ in range(3)]
    rows = await query.batch()
    for row, other in zip(sorted(rows, key=lambda row: row["sequence"]), others, strict=True):
        meta = other.metadata
        assert row["subject"] == other.subject
        assert row["data"] == other.data
        assert dict(row["headers"] or []) == {k: [v] for k, v in (other.headers or {}).items()}
        assert (row["stream"], row["consumer"]) == (query.stream.name, "q")
        assert (row["sequence"], row["consumer_sequence"]) == (meta.sequence.stream, meta.sequence.consumer)
        assert (row["num_delivered"], row["num_pending"]) == (1, meta.num_pending)
        assert row["reply"] == other.reply.replace(".other.", ".q.")
        assert row["timestamp_ns"] == int(other.reply.split(".")[-2])
        assert abs(row["timestamp"].timestamp() - row["timestamp_ns"] / 1e9) < 1e-5


async def test_only_columns_wanted(queue):
    query = await queue(count=5, columns=("reply", "sequence"))
    rows = await query.batch()
    assert [list(row) for row in rows] == [["reply", "sequence"]] * 5


async def test_filter_matches_little(queue, oracle):
    """One message in 50: requests name the filter, so that the others do not come."""
    query = await queue()
    await query.stream.delete_consumer("q")
    await query.stream.create_consumer("q", filter_subject=query.stream.subject("few"), ack_wait=ns(ACK_WAIT))
    for number in range(1, 21):
        await query.stream.publish(49, "many")
        await oracle.publish(query.stream.subject("few"), str(number).encode())
    assert await query.drain() == [20]
    assert numbers(query.rows) == seen(1, 20)
    assert (await query.stream.state())["messages"] == 49 * 20


@pytest.mark.server(">=2.10")
async def test_several_filters(queue, oracle):
    """A direct get takes one filter, so messages that lie far apart are read singly."""
    query = await queue()
    await query.stream.delete_consumer("q")
    filters = [query.stream.subject("a"), query.stream.subject("b")]
    await query.stream.create_consumer("q", filter_subjects=filters, ack_wait=ns(ACK_WAIT))
    for number in range(1, 31):
        if number % 3 == 0:
            await query.stream.publish(100, "many")
        await oracle.publish(filters[number % 2], str(number).encode())
    assert await query.drain() == [30]
    assert numbers(query.rows) == seen(1, 30)


async def test_consumer_delivers_headers_only(queue):
    """The claim needs no payload. Rows have it."""
    query = await queue(count=50, consumer={"headers_only": True}, maxBytesPerTrigger=100_000)
    await query.stream.publish(50, first=51, size=10_000)
    sizes = await query.drain()
    assert numbers(query.rows) == seen(1, 100)
    assert len(sizes) > 2  # 500 kB of payloads that the consumer does not deliver


# --- how much, how often ---------------------------------------------------------------------------------------


@pytest.mark.covers("L7")
async def test_limits_of_a_batch(queue):
    query = await queue(maxMessagesPerTrigger=30)
    await query.stream.publish(100)
    assert await query.drain() == [30, 30, 30, 10]
    query.options = {"maxBytesPerTrigger": 20_000}
    await query.stream.publish(100, first=101, size=1000)
    sizes = await query.drain()
    assert max(sizes) <= 20
    assert sum(sizes) == 100
    assert numbers(query.rows) == seen(1, 200)


async def test_oversized_message_alone(queue):
    query = await queue(maxBytesPerTrigger=1000, fetchMaxBytes=2000)
    await query.stream.publish(3, size=50_000)
    assert await query.drain() == [1, 1, 1]


async def test_by_default_batch_may_be_unacked(queue):
    query = await queue(count=250, consumer={"max_ack_pending": 100})
    assert await query.drain() == [100, 100, 50]


@pytest.mark.covers("L7")
async def test_available_now_ends_with_there(queue):
    """Messages that come meanwhile are for the next run."""
    query = await queue(count=50, maxMessagesPerTrigger=20)
    query.available_now = True
    await query.start()
    sizes = []
    while (rows := await query.batch()) is not None:
        sizes.append(len(rows))
        await query.stream.publish(10, first=51 + 10 * (len(sizes) - 1))
    assert sizes == [20, 20, 10]
    assert await query.drain() == [20, 10]
    assert numbers(query.rows) == seen(1, 80)


@pytest.mark.covers("L36")
async def test_idle_query_asks_once_poll(queue, oracle):
    """One pull waits as long as a poll. No other request is sent."""
    query = await queue(count=1, pollIntervalMs=50)
    assert len(await query.batch()) == 1
    assert await query.plan() is None
    async with oracle.listen("$JS.API.>") as requests:
        for _ in range(10):
            assert await query.plan() is None
            query._reader.reportLatestOffset()
        await eventually(lambda: sum(query.stream.name in message.subject for message in requests) >= 10)
    ours = [message.subject for message in requests if query.stream.name in message.subject]
    assert ours == [f"$JS.API.CONSUMER.MSG.NEXT.{query.stream.name}.q"] * 10


async def test_idle_query_takes_comes_at_once(queue):
    query = await queue(pollIntervalMs=30_000)
    await query.start()
    waiting = asyncio.create_task(query.batch())
    await query.stream.until_asked("q")
    await query.stream.publish(1)
    assert numbers(await asyncio.wait_for(waiting, 10)) == [1]


async def test_offset_not_run_handed_out_again(queue):
    query = await queue(count=10)
    await query.plan()
    first, query.logged = query.logged, None
    await query.stream.publish(10, first=11)
    await query.plan()
    assert query.logged == first
    assert (await info(query))["num_ack_pending"] == 10


# --- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("L16")
@pytest.mark.parametrize("retention", ["workqueue", pytest.param("limits", marks=pytest.mark.full)])
async def test_batch_failed_same_after_restart(queue, retention):
    """No message is delivered twice although it takes 2.5 times ``ack_wait``."""
    query = await queue(count=500, stream={"retention": retention}, maxMessagesPerTrigger=200)
    await query.batch()
    partitions = await query.plan()
    await asyncio.sleep(2.5 * ACK_WAIT)
    failed = await query.read(partitions)
    assert (await info(query))["num_redelivered"] == 0
    await query.stop()  # the sink failed
    await query.stream.publish(100, first=501)
    await query.start()
    rows = await query.read(await query.plan())
    assert rows == failed
    query.commit(rows)
    while await query.batch():
        pass
    state = await info(query)
    assert numbers(query.rows) == seen(1, 600)
    assert state["num_redelivered"] == state["num_ack_pending"] == 0
    assert state["delivered"]["consumer_seq"] == 600  # each was delivered once


@pytest.mark.covers("L16")
async def test_restart_keeps_claims(queue):
    query = await queue(count=50)
    await query.plan()
    await query.stop()
    await query.start()
    await query.plan()
    await asyncio.sleep(2 * ACK_WAIT)
    assert (await info(query))["num_redelivered"] == 0
    assert query._reader.reportLatestOffset()["lapsed"] == 0


async def test_unsent_acks_after_stop(queue):
    query = await queue(count=50)
    await query.batch()
    await query.stop()
    assert (await info(query))["num_ack_pending"] == 50
    assert await query.plan() is None
    assert (await info(query))["num_ack_pending"] == 0


@pytest.mark.covers("L17")
async def test_two_other_workers_share_consumer(queue, js):
    """Each message goes to one of three, once."""
    query = await queue(maxMessagesPerTrigger=200)
    await query.stream.publish(3000)
    handle = await (await js.stream(query.stream.name)).consumer("q")
    others = []

    async def work():
        while batch := await handle.fetch(50, expires=0.3):
            for message in batch:
                others.append(number_of(message.data))
                await message.ack()

    async def run():
        while await query.batch():
            pass

    await asyncio.gather(run(), work(), work())
    assert await query.plan() is None
    assert sorted(numbers(query.rows) + others) == seen(1, 3000)
    assert query.rows
    assert others
    assert (await info(query))["num_redelivered"] == 0


@pytest.mark.parametrize("retention", ["workqueue", pytest.param("limits", marks=pytest.mark.full)])
async def test_long_absence_reported(queue, js, caplog, retention):
    """They come twice if the stream still has them. In a work queue they are left out. No message is missing."""
    query = await queue(count=100, stream={"retention": retention})
    await query.plan()
    await query.stop()
    handle = await (await js.stream(query.stream.name)).consumer("q")
    others = []
    while len(others) < 30:
        for message in await handle.fetch(30 - len(others), expires=5.0):
            assert message.metadata.num_delivered == 2
            others.append(number_of(message.data))
            await message.ack_sync()
    with caplog.at_level(logging.WARNING, "jsclient"):
        rows = await query.batch()
        assert await query.plan() is None
    twice = 30 if retention == "limits" else 0
    assert len(rows) == 70 + twice
    assert sorted({*numbers(rows), *others}) == seen(1, 100)
    assert query._reader.reportLatestOffset()["lapsed"] == 30
    assert "claims lapsed: up to 30 messages" in caplog.text
    assert ("were removed before they were read" in caplog.text) == (retention == "workqueue")
    assert (await info(query))["num_ack_pending"] == 0


async def test_long_absence_alone(queue, caplog):
    """The time ran out, but no one asked for the messages: they are still claimed by us alone."""
    query = await queue(count=100)
    await query.plan()
    await query.stop()
    await asyncio.sleep(1.5 * ACK_WAIT)
    rows = await query.batch()
    assert numbers(rows) == seen(1, 100)
    assert await query.plan() is None
    assert "claims lapsed" not in caplog.text
    state = await info(query)
    assert state["num_ack_pending"] == state["num_redelivered"] == 0


async def test_lapsed_may_go_to_others(queue, js, caplog):
    """A restart came too late, and another worker asks only after it. The loss is reported at the end of the batch."""
    query = await queue(count=20)
    await query.plan()
    await query.stop()
    await asyncio.sleep(1.5 * ACK_WAIT)
    partitions = await query.plan()
    handle = await (await js.stream(query.stream.name)).consumer("q")
    others = await handle.fetch(5, expires=5.0)
    assert len(others) == 5
    for message in others:
        await message.ack_sync()
    query.commit(await query.read(partitions))
    assert await query.plan() is None
    both = numbers(query.rows) + [number_of(message.data) for message in others]
    assert sorted(set(both)) == seen(1, 20)
    assert query._reader.reportLatestOffset()["lapsed"] == 5
    assert "claims lapsed" in caplog.text


async def test_claims_gone_error(queue, oracle):
    """The error says how many, in which stream, and the remedy, and no message is acked."""
    query = await queue(count=100, stream={"retention": "limits"})
    partitions = await query.plan()
    for seq in (10, 11, 90):
        await oracle.delete_message(query.stream.name, seq)
    with pytest.raises(
        Exception, match=r"(?s)2 claimed .* no longer exist, from sequence 10 to 11.*'failOnDataLoss'"
    ):
        await query.read(partitions)
    assert (await info(query))["num_ack_pending"] >= 97


async def test_claims_gone_reported_and_settled(queue, oracle, caplog):
    query = await queue(count=100, stream={"retention": "limits"}, failOnDataLoss="false")
    partitions = await query.plan()
    for seq in (1, 10, 11, 50, 51, 90, 100):
        await oracle.delete_message(query.stream.name, seq)
    query.commit(await query.read(partitions))
    assert sorted({*seen(1, 100)} - {*numbers(query.rows)}) == [1, 10, 11, 50, 51, 90, 100]
    assert len(query.rows) == 93
    assert await query.plan() is None
    assert (await info(query))["num_ack_pending"] == 0
    assert sum(int(n) for n in re.findall(r"(\d+) claimed messages from", caplog.text)) == 7


@pytest.mark.full
async def test_leader_does_not_answer_about_a_missing_message(proxy, queue, oracle):
    """Direct gets do not find it, and the leader is asked again: the rows that came with it are not lost."""
    lossy = await proxy()
    query = await queue(count=100, stream={"retention": "limits"}, failOnDataLoss="false")
    query.server = lossy.url
    partitions = await query.plan()
    await oracle.delete_message(query.stream.name, 90)
    rule = lossy.drop_frames(published("$JS.API.STREAM.MSG.GET.>"), count=6)
    query.commit(await query.read(partitions))
    assert rule.count == 6
    assert numbers(query.rows) == [*seen(1, 89), *seen(91, 100)]


async def test_a_purge_takes_all_claims(queue):
    query = await queue(count=100, stream={"retention": "limits"}, failOnDataLoss="false")
    partitions = await query.plan()
    await query.stream.purge()
    assert await query.read(partitions) == []
    query.commit([])
    assert await query.plan() is None


async def test_consumer_recreated_voids_claims(queue):
    query = await queue(count=20, stream={"retention": "limits"})
    await query.plan()
    await query.stop()
    await query.stream.delete_consumer("q")
    await query.stream.create_consumer("q", ack_wait=ns(ACK_WAIT))
    await query.start()
    with pytest.raises(Exception, match=r"(?s)recreated.*'failOnDataLoss'"):
        await query.plan()
    await query.stop()
    query.options["failOnDataLoss"] = "false"
    assert len(await query.batch()) == 20
    assert len(await query.batch()) == 20  # the new consumer delivers all again
    assert await query.plan() is None
    assert (await info(query))["num_ack_pending"] == 0


async def test_redelivered_messages_say_so(queue, js):
    query = await queue(count=10)
    handle = await (await js.stream(query.stream.name)).consumer("q")
    for message in await handle.fetch(4, no_wait=True):
        await message.nak()
    rows = await query.batch()
    assert sorted(row["num_delivered"] for row in rows) == [1] * 6 + [2] * 4
    assert numbers(rows) == seen(1, 10)
    assert await query.plan() is None
    assert (await query.stream.state())["messages"] == 0


async def test_checkpoint_skips_batch_refused(queue):
    """As one of asyncProgressTrackingEnabled does."""
    query = await queue(count=10)
    await query.plan()
    query.logged["b"] = 3
    with pytest.raises(ValueError, match="asyncProgressTrackingEnabled"):
        await query.plan()


# --- ackOn -----------------------------------------------------------------------------------------------------


async def test_purge_takes_claimed(queue, oracle):
    """One request replaces many acks, because no other message is below."""
    query = await queue(count=100, maxMessagesPerTrigger=60, ackOn="purge")
    await query.batch()
    async with oracle.listen("$JS.ACK.>") as acks:
        assert len(await query.batch()) == 40
        assert (await query.stream.state())["messages"] == 40
        assert await query.plan() is None
    assert not [ack for ack in acks if ack.data == b"+ACK" and query.stream.name in ack.subject]
    state = await info(query)
    assert state["num_ack_pending"] == 0
    assert (await query.stream.state())["messages"] == 0


async def test_purge_leaves_others_claimed(queue, js):
    query = await queue(count=100, ackOn="purge")
    handle = await (await js.stream(query.stream.name)).consumer("q")
    others = await handle.fetch(10, no_wait=True)
    assert len(await query.batch()) == 90
    assert await query.plan() is None
    assert (await query.stream.state())["messages"] == (await info(query))["num_ack_pending"] == 10
    assert [number_of(message.data) for message in others] == seen(1, 10)


@pytest.mark.covers("L21")
async def test_manual_leaves_acks_to_user(queue):
    """Claims are kept alive as long as their batch lasts, and not longer."""
    query = await queue(count=100, ackOn="manual", stream={"retention": "limits"})
    partitions = await query.plan()
    await asyncio.sleep(2 * ACK_WAIT)
    assert (await info(query))["num_redelivered"] == 0
    query.commit(await query.read(partitions))
    assert await query.plan() is None
    assert (await info(query))["num_ack_pending"] == 100
    again = await eventually(query.batch, 10 * ACK_WAIT, "a redelivery")
    assert {row["num_delivered"] for row in again} == {2}


async def test_manual_replays_batch_without_acked(queue):
    """A message that the user acked before the batch failed is gone from a work queue. It does not count as lost."""
    query = await queue(count=20, ackOn="manual")
    rows = await query.read(await query.plan())
    acked = [row["reply"] for row in rows if row["sequence"] <= 5]
    for reply in acked:
        await query.stream.oracle.nc.request(reply, b"+ACK")
    await query.stop()
    again = await query.batch()
    assert numbers(again) == seen(6, 20)
    assert (await info(query))["num_ack_pending"] == 15


async def test_manual_settles_nobody_can_ack(queue, oracle):
    query = await queue(count=10, ackOn="manual", stream={"retention": "limits"}, failOnDataLoss="false")
    partitions = await query.plan()
    await oracle.delete_message(query.stream.name, 5)
    rows = await query.read(partitions)
    assert len(rows) == 9
    assert (await info(query))["num_ack_pending"] == 9


async def test_manual_needs_column_to_ack_by(queue):
    query = await queue(ackOn="manual", columns=("data",))
    with pytest.raises(ValueError, match=r"'ackOn'.*'reply'"):
        await query.start()
