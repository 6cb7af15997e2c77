"""Ordered subscriptions: everything once, in order, whatever is lost. Source: ADR-15 §Ordered Consumers, ADR-17."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.5)
CREATES = "$JS.API.CONSUMER.CREATE.>"
CHUNKS, CHUNK = 256, 4096


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def store_object(stream: OwnStream) -> str:
    """Store 1 MiB in pieces that differ. Its SHA-256."""
    data = random.Random(17).randbytes(CHUNKS * CHUNK)
    for start in range(0, len(data), CHUNK):
        await stream.oracle.publish(stream.subject("chunk"), data[start : start + CHUNK])
    return hashlib.sha256(data).hexdigest()


def no_fault(tap: Any) -> Any: ...


def lose_one(tap: Any) -> Any:
    return tap.drop_frames(match.is_message(100), count=1)


def lose_a_tenth(tap: Any) -> Any:
    chance = random.Random(10)
    return tap.drop_frames(lambda frame: match.is_data(frame) and chance.random() < 0.1)


def lose_the_first(tap: Any) -> Any:
    return tap.drop_frames(match.is_message(1), count=2)


def lose_the_last(tap: Any) -> Any:
    return tap.drop_frames(match.is_message(CHUNKS), count=2)


def repeat_some(tap: Any) -> Any:
    chance = random.Random(11)
    return tap.duplicate_frames(lambda frame: match.is_data(frame) and chance.random() < 0.02)


def swap_some(tap: Any) -> Any:
    """Some deliveries come late, each in the place of the next late delivery: out of order and missing."""
    held: list[bytes] = []

    def late(frame: Any) -> bytes:
        held.append(frame.raw)
        return held.pop(0) if len(held) > 1 else b""

    return tap.modify_frames(lambda f: match.is_data(f) and match.stream_seq(f) % 60 in (0, 1), late, count=6)


@pytest.mark.core_cases(4)
@pytest.mark.row(92)
@pytest.mark.covers("J93")
@pytest.mark.parametrize("way", ["next", "callback"])
@pytest.mark.parametrize(
    "fault",
    [no_fault, lose_one, lose_a_tenth, lose_the_first, lose_the_last, repeat_some, swap_some],
    ids=lambda fault: fault.__name__,
)
async def test_object_of_one_mebibyte_comes_intact(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], fault: Any, way: str
) -> None:
    expected = await store_object(stream)
    rule = fault(tap)
    got: list[Any] = []
    if way == "callback":
        sub = await near.subscribe(stream.all, ordered=True, config=QUICK, callback=noting(got))
        await eventually(lambda: len(got) >= CHUNKS, what="all chunks")
    else:
        sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
        got = await take(sub, CHUNKS, 40)
    assert [message.metadata.stream_seq for message in got] == list(range(1, CHUNKS + 1))
    assert hashlib.sha256(b"".join(message.data for message in got)).hexdigest() == expected
    resets = of(jsclient.ConsumerReset, events)
    if rule is None:
        assert resets == []
    else:
        assert rule.count >= 1
        assert resets
    # Nothing comes a second time.
    await stream.publish(1)
    if way == "callback":
        await eventually(lambda: len(got) > CHUNKS, what="one more")
        assert numbers(got[CHUNKS:]) == [1]
    else:
        assert numbers(await take(sub, 1)) == [1]
    assert {type(event) for event in alarms(events)} <= {jsclient.ConsumerReset, jsclient.HeartbeatMissed}
    await sub.unsubscribe()


@pytest.mark.row(104)
@pytest.mark.covers("J93", "J94")
async def test_consumer_one_of_adr_17(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.subject("a"), ordered=True)
    [created] = tap.sent(CREATES)
    assert created.subject == f"$JS.API.CONSUMER.CREATE.{stream.name}"
    config = json.loads(created.payload)["config"]
    assert config["ack_policy"] == "none"
    assert config["max_deliver"] == 1
    assert config["flow_control"] is True
    assert config["idle_heartbeat"] == 5_000_000_000
    assert config["mem_storage"] is True
    assert config["num_replicas"] == 1
    assert config["filter_subject"] == stream.subject("a")
    assert config["deliver_subject"] == sub.subject
    assert not config.keys() & {"durable_name", "name", "deliver_group"}
    info = await stream.consumer_info(sub.consumer)
    assert info["config"]["ack_policy"] == "none"
    await sub.unsubscribe()


@pytest.mark.smoke
@pytest.mark.row(96, 99)
@pytest.mark.covers("J93", "J94")
@pytest.mark.parametrize("fault", ["consumer deleted", "silence", "connection cut"])
async def test_resumes_after_last_message(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], fault: str
) -> None:
    sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(10)
    assert numbers(await take(sub, 10)) == list(range(1, 11))
    old = sub.consumer
    if fault == "consumer deleted":
        await stream.delete_consumer(old)
    elif fault == "silence":
        # By its number: data comes on the subject that it was published to.
        sid = next(frame.sid for frame in tap.subs() if frame.subject == sub.subject)
        tap.drop_frames(lambda frame: frame.op in ("MSG", "HMSG") and frame.sid == sid)
    else:
        tap.cut()
    await stream.publish(10, first=11)
    assert numbers(await take(sub, 10)) == list(range(11, 21))
    reset = await wait_for_event(jsclient.ConsumerReset, events)
    assert sub.consumer != old
    assert reset.consumer == sub.consumer
    # Messages in flight to the old consumer's subject may have arrived before the reset.
    assert 11 <= reset.resume_stream_seq <= 21
    config = json.loads(tap.sent(CREATES)[-1].payload)["config"]
    assert config["deliver_policy"] == "by_start_sequence"
    assert config["opt_start_seq"] == reset.resume_stream_seq
    assert bool(of(jsclient.HeartbeatMissed, events)) == (fault != "connection cut")
    await eventually(lambda: _consumers_are(stream, [sub.consumer]), what="the old consumer is deleted")
    await sub.unsubscribe()


async def _consumers_are(stream: OwnStream, names: list[str]) -> bool:
    return await stream.consumer_names() == names


@pytest.mark.row(108)
@pytest.mark.covers("J93")
async def test_p3_late_reader_gets_all(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """P3: 1000 messages, a queue of 100, read late: 100 came, then nothing."""
    await stream.publish(1000)
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK, max_pending=100)
    slow = await wait_for_event(jsclient.SlowConsumer, events)
    assert slow.first_stream_seq == 101
    await never(lambda: sub.pending > 100, 0.5, "more than the queue holds")
    assert sub.pending == 100
    assert numbers(await take(sub, 1000, 20)) == list(range(1, 1001))
    with pytest.raises(jsclient.RequestTimeoutError):
        await sub.next(timeout=0.2)
    await sub.unsubscribe()


@pytest.mark.row(105)
@pytest.mark.covers("J93")
async def test_messages_wait_survive_reset(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(10)
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    await eventually(lambda: sub.pending == 10, what="ten wait")
    await stream.delete_consumer(sub.consumer)
    await wait_for_event(jsclient.ConsumerReset, events)
    await stream.publish(5, first=11)
    assert numbers(await take(sub, 15)) == list(range(1, 16))
    await sub.unsubscribe()


@pytest.mark.covers("J93")
async def test_p29_resets_leave_no_consumer(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """P29: three resets left four consumers on the server, for as long as their inactivity threshold."""
    config = QUICK.replace(inactive_threshold=300.0)
    sub = await near.subscribe(stream.all, ordered=True, config=config)
    for seq in (1, 3, 5):
        tap.drop_frames(match.is_message(seq), count=1)
        await stream.publish(2, first=seq)
        assert numbers(await take(sub, 2)) == [seq, seq + 1]
    assert len(of(jsclient.ConsumerReset, events)) == 3
    await eventually(lambda: _consumers_are(stream, [sub.consumer]), what="one consumer")
    await sub.unsubscribe()
    assert await stream.consumer_names() == []


@pytest.mark.row(102)
@pytest.mark.covers("J93", "J110", "J113")
@pytest.mark.parametrize("end", ["drain", "unsubscribe"])
async def test_p6_end_leaves_nothing(
    server: Any, oracle: Any, tap: Any, near: Any, stream: OwnStream, end: str
) -> None:
    """P6: after drain a new consumer was made, and tasks lived on."""
    await near.stream_names(stream.all).__anext__()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
        await stream.publish(3)
        await eventually(lambda: sub.pending == 3, what="three wait")
        await getattr(sub, end)()
        remainder = [message async for message in sub]
        assert numbers(remainder) == ([1, 2, 3] if end == "drain" else [])
        await eventually(lambda: _consumers_are(stream, []), what="no consumer")
    await never(lambda: len(tap.sent(CREATES)) > 1, 5 * 0.25, "another consumer")


@pytest.mark.row(102)
@pytest.mark.covers("J93")
@pytest.mark.parametrize("end", ["drain", "unsubscribe"])
async def test_end_in_reset_leaves_nothing(tap: Any, near: Any, stream: OwnStream, end: str) -> None:
    sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(1)
    await take(sub, 1)
    held = tap.hold_frames(match.published(CREATES), count=1)
    await stream.delete_consumer(sub.consumer)
    await held.wait(timeout=10)
    ending = asyncio.create_task(getattr(sub, end)())
    await near.ping()
    held.release()
    await within(10, ending, "the end")
    await near.ping()
    await eventually(lambda: _consumers_are(stream, []), what="no consumer")
    assert [message async for message in sub] == []


@pytest.mark.row(96, 110)
@pytest.mark.covers("J93")
async def test_stream_deleted_error_in_end(js: Any, stream: OwnStream, events: list[Any]) -> None:
    got: list[Any] = []
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    called = await js.subscribe(stream.all, ordered=True, config=QUICK, callback=noting(got))
    await stream.publish(2)
    await eventually(lambda: sub.pending == len(got) == 2, what="two messages")
    await stream.delete()
    assert numbers(await take(sub, 2)) == [1, 2]
    with pytest.raises(jsclient.StreamNotFoundError):
        await sub.next(timeout=20)
    with pytest.raises(jsclient.ClosedError):
        await sub.next(timeout=1)
    await eventually(lambda: called.is_closed, 10, "the end of the one with a callback")
    lost = [e for e in of(jsclient.ErrorRaised, events) if isinstance(e.error, jsclient.StreamNotFoundError)]
    assert lost


@pytest.mark.covers("J93")
async def test_replaced_stream_from_start(js: Any, oracle: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(20)
    assert numbers(await take(sub, 20)) == list(range(1, 21))
    await stream.delete()
    await oracle.create_stream(stream.name, [stream.all], storage="memory")
    await stream.publish(5, first=101)
    assert numbers(await take(sub, 5)) == [101, 102, 103, 104, 105]
    again = await wait_for_event(jsclient.StreamReset, events)
    assert (again.stream, again.last_stream_seq) == (stream.name, 20)
    await sub.unsubscribe()


@pytest.mark.row(108)
@pytest.mark.covers("J93")
async def test_message_larger_than_queue(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """A few consumers suffice."""
    await stream.publish(3, size=5000)
    sub = await near.subscribe(stream.all, ordered=True, max_pending_bytes=1000)
    assert numbers(await take(sub, 3)) == [1, 2, 3]
    assert len(tap.sent(CREATES)) <= 3


@pytest.mark.row(106)
@pytest.mark.covers("J84", "J93")
async def test_slow_reader_not_silence(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Messages that wait for room are a sign of life too."""
    await stream.publish(300)
    config = jsclient.ConsumerConfig(idle_heartbeat=0.8)
    sub = await js.subscribe(stream.all, ordered=True, config=config, max_pending=100)
    await wait_for_event(jsclient.SlowConsumer, events)
    await never(lambda: of(jsclient.HeartbeatMissed, events), 5 * 0.8, "an alarm")
    assert numbers(await take(sub, 300)) == list(range(1, 301))
