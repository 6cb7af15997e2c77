"""An ordered subscription on a fake connection: every message once, in order, through any number of consumers."""

from __future__ import annotations

import asyncio

import pytest

from jsclient import OrderedSubscription
from jsclient.errors import ConfigError, StreamNotFoundError
from jsclient.protocol.events import ConsumerReset, ErrorRaised, HeartbeatMissed, StreamReset
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import data, heartbeat
from tests.support.virtual import noting, settle, virtual


def creates(connection) -> list[dict]:
    return [sent.json["config"] for sent in connection.to("$JS.API.CONSUMER.CREATE.")]


def arrives(connection, *frames) -> None:
    """On the deliver subject of the newest consumer."""
    connection.deliver(creates(connection)[-1]["deliver_subject"], list(frames))


async def taken(sub, count: int) -> list[int]:
    return [(await sub.next(timeout=60)).metadata.stream_seq for _ in range(count)]


@virtual
@pytest.mark.covers("J93", "J94")
async def test_consumer_of_adr_17():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        assert isinstance(sub, OrderedSubscription)
        (config,) = creates(connection)
        assert config == {
            "ack_policy": "none",
            "deliver_policy": "all",
            "deliver_subject": sub.subject,
            "filter_subject": "orders.new",
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
            "inactive_threshold": 30_000_000_000,
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        }


@virtual
@pytest.mark.covers("J92", "J93")
async def test_gap_recreates_consumer():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        first = sub.consumer
        old = creates(connection)[0]["deliver_subject"]
        arrives(connection, data(3, 1), data(4, 2), data(9, 5))
        await settle(60)
        again = creates(connection)[1]
        assert (again["deliver_policy"], again["opt_start_seq"]) == ("by_start_sequence", 5)
        assert again["deliver_subject"] != old
        assert connection.listening == [again["deliver_subject"]]
        assert connection.deleted() == [first]
        assert connection.log.index(("unsub", old)) < connection.log.index(("sub", again["deliver_subject"]))
        connection.deliver(old, [data(99, 3)])
        arrives(connection, data(5, 1), data(6, 2))
        assert await taken(sub, 4) == [3, 4, 5, 6]
        (reset,) = connection.told(ConsumerReset)
        assert (reset.resume_stream_seq, reset.consumer) == (5, sub.consumer)


@virtual
@pytest.mark.covers("J94")
async def test_missed_heartbeats_make_new_consumer():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        arrives(connection, data(1, 1))
        connection.api.last_seq = 1
        await asyncio.sleep(16)
        assert len(creates(connection)) == 2
        assert creates(connection)[1]["opt_start_seq"] == 2
        assert len(connection.told(HeartbeatMissed)) == 1
        connection.api.delivered = 1
        arrives(connection, data(2, 1), heartbeat(1, 2))
        assert await taken(sub, 2) == [1, 2]


@virtual
async def test_lost_answer_makes_another_soon():
    """The answer to a request for a consumer may be lost with a leader: not 5 s, as for other requests, but 1.25 s."""
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        arrives(connection, data(1, 1))
        connection.api.last_seq = 1
        connection.api.on("CONSUMER.CREATE", SILENCE, SILENCE)
        connection.disconnect()
        connection.reconnect()
        await asyncio.sleep(1.2)
        assert len(creates(connection)) == 2
        await asyncio.sleep(2.5)
        assert len(creates(connection)) == 3
        await asyncio.sleep(0.5)
        assert len(creates(connection)) == 4
        connection.api.delivered = 1
        arrives(connection, data(2, 1), heartbeat(1, 2))
        assert await taken(sub, 2) == [1, 2]


@virtual
async def test_reconnect_recreates_at_once():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        arrives(connection, data(1, 1), data(2, 2))
        connection.api.last_seq = connection.api.delivered = 2
        connection.disconnect()
        await asyncio.sleep(3)
        connection.reconnect()
        await settle(60)
        assert creates(connection)[-1]["opt_start_seq"] == 3
        arrives(connection, data(3, 1))
        assert await taken(sub, 3) == [1, 2, 3]


@virtual
async def test_new_stays_at_its_start():
    async with connected() as (js, connection):
        connection.api.delivered = connection.api.last_seq = 100
        sub = await js.subscribe("orders.new", ordered=True, config=ConsumerConfig(deliver_policy="new"))
        connection.disconnect()
        connection.reconnect()
        await settle(60)
        config = creates(connection)[-1]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 101)
        arrives(connection, data(101, 1))
        assert await taken(sub, 1) == [101]


@virtual
async def test_overflow_reads_on_without_gap():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True, max_pending=4)
        connection.api.last_seq = 9
        arrives(connection, *[data(number, number) for number in range(1, 10)])
        await settle(60)
        assert len(creates(connection)) == 1
        assert await taken(sub, 2) == [1, 2]
        await settle(60)
        assert creates(connection)[-1]["opt_start_seq"] == 5
        arrives(connection, data(5, 1))
        assert await taken(sub, 3) == [3, 4, 5]


@virtual
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_close_while_full_leaves_no_task(end):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True, max_pending=1)
        arrives(connection, data(1, 1), data(2, 2))
        await settle()
        await getattr(sub, end)()
        if end == "drain":
            assert [message.metadata.stream_seq async for message in sub] == [1]
        await settle(60)
        assert len(creates(connection)) == 1
        assert connection.listening == []
        remaining = [task.get_name() for task in asyncio.all_tasks() if "reset" in task.get_name()]
        assert remaining == []


@pytest.mark.row(110)
@virtual
async def test_failed_create_retried():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10008, 503)] * 5)
        arrives(connection, data(1, 2))
        await asyncio.sleep(8)
        assert len(creates(connection)) == 7
        assert len(connection.told(ErrorRaised)) == 1
        arrives(connection, data(1, 1))
        assert await taken(sub, 1) == [1]


@virtual
async def test_stream_deleted_ends_behind_waits():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        arrives(connection, data(1, 1), data(5, 5))
        connection.api.on("CONSUMER.CREATE", *[Refusal(10059, 404, "stream not found")] * 50)
        await asyncio.sleep(60)
        assert await taken(sub, 1) == [1]
        with pytest.raises(StreamNotFoundError):
            await sub.next()
        assert sub.is_closed
        assert connection.listening == []


@virtual
async def test_stream_recreated_read_from_start():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", ordered=True)
        await settle(60)
        arrives(connection, data(1, 1), data(2, 2))
        connection.api.stream_created = "2026-06-01T00:00:00Z"
        connection.api.last_seq = 50
        connection.api.delivered = 2
        connection.disconnect()
        connection.reconnect()
        await settle(120)
        (event,) = connection.told(StreamReset)
        assert event.last_stream_seq == 2
        assert creates(connection)[-1]["opt_start_seq"] == 1
        arrives(connection, data(1, 1))
        assert await taken(sub, 3) == [1, 2, 1]


async def reader_at_two(js, connection):
    """An ordered reader that has had two messages of a stream that ends before them after a reconnect."""
    sub = await js.subscribe("orders.new", ordered=True)
    await settle(60)
    arrives(connection, data(1, 1), data(2, 2))
    connection.api.last_seq, connection.api.delivered = 1, 2
    connection.disconnect()
    connection.reconnect()
    await settle(120)
    return sub


@virtual
async def test_lower_end_of_one_replica_believed():
    async with connected() as (js, connection):
        await reader_at_two(js, connection)
        (event,) = connection.told(StreamReset)
        assert (event.last_stream_seq, event.stream_seq) == (2, 1)
        assert creates(connection)[-1]["opt_start_seq"] == 1


@virtual
async def test_former_leader_does_not_restart_reader():
    """It answers with an end before the reader's position until it hears of its successor."""
    async with connected() as (js, connection):
        connection.api.replicas = 3
        sub = await reader_at_two(js, connection)
        assert creates(connection)[-1]["opt_start_seq"] == 3
        arrives(connection, data(3, 1))
        assert await taken(sub, 3) == [1, 2, 3]
        await asyncio.sleep(4)
        connection.api.last_seq = 3
        await asyncio.sleep(60)
        assert not connection.told(StreamReset)


@virtual
@pytest.mark.parametrize("message_comes", [False, True])
async def test_lower_end_of_replicas_is_checked_again(message_comes):
    """Believed after 10 s, unless a message after the position comes, which the former leader does not know."""
    async with connected() as (js, connection):
        connection.api.replicas = 3
        await reader_at_two(js, connection)
        await asyncio.sleep(9.4)
        assert not connection.told(StreamReset)
        if message_comes:
            arrives(connection, data(3, 1))
        await asyncio.sleep(1.2)
        assert [event.stream_seq for event in connection.told(StreamReset)] == ([] if message_comes else [1])
        assert creates(connection)[-1]["opt_start_seq"] == (3 if message_comes else 1)


@virtual
async def test_another_stream_is_reported_without_delay():
    async with connected() as (js, connection):
        connection.api.replicas = 3
        await reader_at_two(js, connection)
        connection.api.stream_created = "2026-06-01T00:00:00Z"
        await asyncio.sleep(2)
        (event,) = connection.told(StreamReset)
        assert event.last_stream_seq == 2
        assert creates(connection)[-1]["opt_start_seq"] == 1


@virtual
async def test_end_check_stops_with_reader():
    async with connected() as (js, connection):
        connection.api.replicas = 3
        sub = await reader_at_two(js, connection)
        await sub.unsubscribe()
        requests = len(connection.to("$JS.API.STREAM.INFO"))
        await asyncio.sleep(60)
        assert len(connection.to("$JS.API.STREAM.INFO")) == requests
        assert not connection.told(StreamReset)


@virtual
async def test_no_acks_and_end_deletes():
    async with connected() as (js, connection):
        got = []
        sub = await js.subscribe("orders.new", ordered=True, callback=noting(got))
        arrives(connection, data(1, 1), data(2, 2), data(3, 3))
        await settle()
        for message in got:
            await message.ack()
        assert len(got) == 3
        assert connection.acks() == []
        await sub.unsubscribe()
        assert connection.deleted() == [sub.consumer]


@virtual
@pytest.mark.parametrize(
    "how",
    [
        {"queue": "q"},
        {"durable": "d"},
        {"consumer": "c"},
        {"config": ConsumerConfig(ack_policy="explicit")},
        {"config": ConsumerConfig(name="n")},
        {"config": ConsumerConfig(flow_control=False)},
    ],
)
@pytest.mark.covers("J3", "J93")
async def test_bad_options_refused(how):
    async with connected() as (js, connection):
        with pytest.raises(ConfigError):
            await js.subscribe("orders.new", ordered=True, **how)
        assert connection.log == []
