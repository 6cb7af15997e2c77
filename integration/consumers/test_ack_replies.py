"""What is answered to a message, on the wire and to the server's mind. Source: ADR-15 §Ack Handling."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import noting, numbers, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match

ACKS = {
    "ack": (lambda m: m.ack(), b"+ACK"),
    "nak": (lambda m: m.nak(), b"-NAK"),
    "nak later": (lambda m: m.nak(delay=1.5), b'-NAK {"delay": 1500000000}'),
    "term": (lambda m: m.term(), b"+TERM"),
    "term with a reason": (lambda m: m.term("poison"), b"+TERM poison"),
    "in progress": (lambda m: m.in_progress(), b"+WPI"),
    "ack and wait": (lambda m: m.ack_sync(timeout=5), b"+ACK"),
}
TERMINAL = [name for name in ACKS if name != "in progress"]


async def answer(kind: str, message: Any) -> None:
    await ACKS[kind][0](message)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.mark.row(111)
@pytest.mark.covers("J62", "J71", "J72", "J73", "J74", "J75")
@pytest.mark.parametrize("kind", ACKS)
async def test_ack_publish_of_kind_to_jsack(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    await stream.publish(1)
    [message] = await take(await near.subscribe(stream.all), 1)
    await answer(kind, message)
    frame = await tap.wait_for(match.is_ack)
    delivery = tap.find(match.is_data)[0]
    assert (frame.op, frame.subject, frame.payload) == ("PUB", delivery.reply, ACKS[kind][1])
    assert (frame.reply is not None) == (kind == "ack and wait")
    assert message.acked == (kind != "in progress")


@pytest.mark.row(111, 112)
@pytest.mark.covers("J76")
@pytest.mark.parametrize("first", TERMINAL)
async def test_terminal_ack_is_final(tap: Any, near: Any, stream: OwnStream, first: str) -> None:
    await stream.publish(1)
    [message] = await take(await near.subscribe(stream.all), 1)
    await answer(first, message)
    for kind in ACKS:
        await answer(kind, message)
    await near.ping()
    sent = [f.payload for f in tap.find(match.is_ack) if f.subject == message.reply]
    assert sent == [ACKS[first][1]]


@pytest.mark.row(112)
@pytest.mark.covers("J76")
async def test_of_acks_at_same_time_one_sent(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    [message] = await take(await near.subscribe(stream.all), 1)
    await asyncio.gather(*(answer(kind, message) for kind in TERMINAL * 3))
    await near.ping()
    assert len([f for f in tap.find(match.is_ack) if f.subject == message.reply]) == 1


@pytest.mark.row(112)
@pytest.mark.covers("J75", "J77")
async def test_in_progress_then_ack(tap: Any, near: Any, stream: OwnStream) -> None:
    config = jsclient.ConsumerConfig(ack_wait=2.0)
    sub = await near.subscribe(stream.all, durable="d", config=config, delete_on_close=False)
    await stream.publish(1)
    [message] = await take(sub, 1)
    for _ in range(8):  # longer than ack_wait, and each pause much shorter
        await asyncio.sleep(0.3)
        await message.in_progress()
    assert not message.acked
    await message.ack_sync(timeout=5)
    acks = tap.find(match.is_ack)
    assert [f.payload for f in acks] == [b"+WPI"] * 8 + [b"+ACK"]
    # One delivery is what +WPI was for. Without it the server sends again after ack_wait, as it does if this machine
    # was so slow that a single pause was as long.
    times = [frame.time for frame in (tap.find(match.is_data)[0], *acks)]
    longest = max(later - sooner for sooner, later in itertools.pairwise(times))
    assert (await stream.consumer_info("d"))["delivered"]["consumer_seq"] == 1 or longest > 1.5


@pytest.mark.covers("J75")
async def test_no_progress_redelivers(js: Any, stream: OwnStream) -> None:
    sub = await js.subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=0.5))
    await stream.publish(1)
    first, second = await take(sub, 2)
    assert (first.metadata.num_delivered, second.metadata.num_delivered) == (1, 2)
    assert first.metadata.stream_seq == second.metadata.stream_seq == 1
    await second.ack()


@pytest.mark.smoke
@pytest.mark.row(113)
@pytest.mark.covers("J73")
async def test_nak_now_or_delayed(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=30.0))
    await stream.publish(1)
    [first] = await take(sub, 1)
    await first.nak()
    [second] = await take(sub, 1, timeout=5)
    await second.nak(delay=1.0)
    [third] = await take(sub, 1, timeout=10)
    assert third.metadata.num_delivered == 3
    nak = tap.find(match.is_ack)[-1]
    again = tap.find(match.is_data)[-1]
    assert again.time - nak.time >= 0.9
    await third.ack()


@pytest.mark.covers("J74")
async def test_term_reason_in_advisory(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with oracle.listen(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.>") as advisories:
        config = jsclient.ConsumerConfig(ack_wait=1.0)
        sub = await js.subscribe(stream.all, durable="d", config=config, delete_on_close=False)
        await stream.publish(1)
        [message] = await take(sub, 1)
        await message.term("cannot be read")
        await eventually(lambda: advisories, what="the advisory")
        assert b"cannot be read" in advisories[0].data
    await never(lambda: sub.pending, 1.5, "a redelivery")
    assert (await stream.consumer_info("d"))["num_ack_pending"] == 0


@pytest.mark.row(115)
@pytest.mark.covers("J79")
@pytest.mark.parametrize("kind", ACKS)
async def test_without_ack_policy_nothing_sent(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    await stream.publish(1)
    sub = await near.subscribe(stream.all, config=jsclient.ConsumerConfig(ack_policy="none"))
    [message] = await take(sub, 1)
    await answer(kind, message)
    await near.ping()
    assert tap.find(match.is_ack) == []


@pytest.mark.row(114, 115)
@pytest.mark.covers("J79")
async def test_no_policy_no_ack(tap: Any, near: Any, stream: OwnStream) -> None:
    got: list[Any] = []
    config = jsclient.ConsumerConfig(ack_policy="none")
    await near.subscribe(stream.all, config=config, callback=noting(got), auto_ack=True)
    await stream.publish(5)
    await eventually(lambda: len(got) == 5, what="five messages")
    await near.ping()
    assert tap.find(match.is_ack) == []


@pytest.mark.core_cases(2)
@pytest.mark.covers("J78", "J80")
@pytest.mark.parametrize("kind", ACKS)
async def test_offline_ack_repeatable(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], kind: str
) -> None:
    sub = await near.subscribe(stream.all, durable="d", delete_on_close=False)
    await stream.publish(1)
    [message] = await take(sub, 1)
    tap.refuse()
    tap.cut()
    await wait_for_event(jsclient.Disconnected, events)
    # ack_sync would wait for a connection until its timeout. A short time is enough here.
    failed = (jsclient.DisconnectedError, jsclient.RequestTimeoutError)
    with pytest.raises(failed):
        await (message.ack_sync(timeout=0.2) if kind == "ack and wait" else answer(kind, message))
    assert not message.acked
    await tap.accept()
    await wait_for_event(jsclient.Reconnected, events)
    assert tap.find(match.is_ack) == []
    await message.ack_sync(timeout=5)
    assert message.acked
    assert await stream.oracle.ack_floor(stream.name, "d") == 1


@pytest.mark.row(116)
@pytest.mark.covers("J78", "J80")
async def test_unconfirmed_ack_repeatable(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, durable="d", delete_on_close=False)
    await stream.publish(1)
    [message] = await take(sub, 1)
    lost = tap.drop_frames(match.is_ack, count=1)
    with pytest.raises(jsclient.RequestTimeoutError):
        await message.ack_sync(timeout=0.3)
    assert lost.count == 1
    assert not message.acked
    await message.ack_sync(timeout=5)
    assert await stream.oracle.ack_floor(stream.name, "d") == 1


@pytest.mark.row(116)
@pytest.mark.covers("J72")
async def test_after_ack_sync_server_counted(js: Any, stream: OwnStream) -> None:
    sub = await js.subscribe(stream.all, durable="d", delete_on_close=False)
    await stream.publish(5)
    for count, message in enumerate(await take(sub, 5), start=1):
        await message.ack_sync()
        assert await stream.oracle.ack_floor(stream.name, "d") == count


@pytest.mark.covers("J71", "J72")
async def test_ack_all_acks_each_message_once(tap: Any, near: Any, stream: OwnStream) -> None:
    config = jsclient.ConsumerConfig(max_ack_pending=5000)
    sub = await near.pull_subscribe(stream.all, durable="d", config=config, delete_on_close=False)
    await stream.publish(2500)
    messages = list(await sub.fetch(2500, expires=10))
    assert numbers(messages) == list(range(1, 2501))
    await messages[7].term()
    await jsclient.ack_all(messages)
    await stream.oracle.wait_consumer(stream.name, "d", lambda info: info["ack_floor"]["stream_seq"] == 2500)
    sent = tap.find(match.is_ack)
    assert {frame.subject for frame in sent} == {message.reply for message in messages}
    assert len(sent) == 2500


@pytest.mark.covers("J80")
async def test_ack_all_says_could_not_be_sent(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    await stream.publish(3)
    messages = list(await sub.fetch(3))
    await within(5, near.close(), "closing")
    with pytest.raises(ExceptionGroup) as raised:
        await jsclient.ack_all(messages)
    assert [type(error) for error in raised.value.exceptions] == [jsclient.ClosedError] * 3
    assert not any(message.acked for message in messages)


@pytest.mark.covers("J71", "J72", "J73", "J74", "J75")
async def test_acks_on_user_connection(natspy_js: Any, stream: OwnStream) -> None:
    async with stream.oracle.listen("$JS.ACK.>") as seen:
        sub = await natspy_js.subscribe(stream.all, durable="d", delete_on_close=False)
        await stream.publish(4)
        one, two, three, four = await take(sub, 4)
        await one.ack()
        await two.in_progress()
        await two.term()
        await three.ack_sync(timeout=5)
        await four.nak(delay=60)
        await natspy_js.ping()
        mine = {m.reply for m in (one, two, three, four)}
        await eventually(lambda: len([m for m in seen if m.subject in mine]) == 5, what="five acks")
        assert [bytes(m.data) for m in seen if m.subject in mine] == [
            b"+ACK", b"+WPI", b"+TERM", b"+ACK", b'-NAK {"delay": 60000000000}',
        ]  # fmt: skip
    assert (await stream.consumer_info("d"))["num_ack_pending"] == 1
