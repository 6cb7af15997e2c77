"""The server waits until the reader has come this far. Source: ADR-15 §Flow Control."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match

CONFIG = jsclient.ConsumerConfig(flow_control=True, idle_heartbeat=0.3, ack_policy="none")
SLOW = CONFIG.replace(idle_heartbeat=5.0)
WINDOW = 32 * 1024 * 1024
SIZE = 10_000


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap, reconnect_time_wait=0.1)


def answered(tap: Any) -> list[str]:
    """The subjects of the answers to flow control, in order."""
    return [frame.subject for frame in tap.find(match.is_flow_control_reply)]


@pytest.mark.row(34)
@pytest.mark.covers("J95", "J96", "J97")
async def test_next_answers_in_place(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, config=SLOW)
    for number in (1, 2):
        await stream.publish(1, first=number)
    await eventually(lambda: sub.pending == 2, what="two messages")
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await stream.publish(1, first=3)
    await eventually(lambda: sub.pending == 3, what="three messages")

    assert numbers(await take(sub, 2)) == [1, 2]
    await near.ping()
    assert answered(tap) == []
    third = await sub.next(timeout=5)
    assert third.data == b"3"
    answer = await tap.wait_for(match.is_flow_control_reply)
    assert (answer.op, answer.subject, answer.payload, answer.reply) == ("PUB", "$JS.FC.S.C.one", b"", None)


@pytest.mark.covers("J95", "J97")
async def test_next_answers_trailing(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, config=SLOW)
    started = time.monotonic()
    waiting = asyncio.create_task(sub.next(timeout=3.0))
    await near.ping()
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await tap.wait_for(match.is_flow_control_reply)
    assert not waiting.done()
    with pytest.raises(jsclient.RequestTimeoutError):
        await waiting
    assert 2.9 <= time.monotonic() - started < 20


@pytest.mark.covers("J95", "J96")
async def test_callback_answers_in_place(tap: Any, near: Any, stream: OwnStream) -> None:
    gate, handled = asyncio.Event(), []

    async def handle(message: Any) -> None:
        await gate.wait()
        handled.append((message.data, len(answered(tap))))

    sub = await near.subscribe(stream.all, config=SLOW, callback=handle)
    await stream.publish(1)
    await stream.publish(1, first=2)
    await eventually(lambda: sub.pending == 1, what="one message in the handler, one behind it")
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await stream.publish(1, first=3)
    await eventually(lambda: sub.pending == 2, what="two messages behind")
    await never(lambda: answered(tap), 0.3, "an answer before its place")
    gate.set()
    await eventually(lambda: len(handled) == 3, what="three messages handled")
    await eventually(lambda: answered(tap) == ["$JS.FC.S.C.one"], what="the answer")
    assert [(data, count) for data, count in handled[:2]] == [(b"1", 0), (b"2", 0)]


async def read(sub: Any, way: str, count: int, note: Callable[[Any], None]) -> None:
    """Read `count` messages in one of the ways."""
    remaining = count
    # Each way empties the queue differently, and the answers must leave at the same messages.
    if way == "next":
        for _ in range(count):
            note(await sub.next(timeout=5))
    elif way == "async for":
        async for message in sub:
            note(message)
            remaining -= 1
            if not remaining:
                break
    else:
        async for batch in sub.batches(50):
            for message in batch:
                note(message)
            remaining -= len(batch)
            if not remaining:
                break


@pytest.mark.row(34, 39, 43)
@pytest.mark.covers("J81", "J95", "J96")
@pytest.mark.parametrize("way", ["next", "async for", "batches", "callback"])
async def test_server_requests_once(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    count = 1500
    await stream.publish(count, size=SIZE)
    seen: list[tuple[int, int]] = []  # number, frames recorded when it was taken

    def note(message: Any) -> None:
        seen.append((numbers([message])[0], len(tap.frames)))

    if way == "callback":
        await near.subscribe(
            stream.all,
            config=SLOW,
            callback=noting(seen, lambda message: (numbers([message])[0], len(tap.frames))),
        )
        await eventually(lambda: len(seen) == count, what="all messages")
    else:
        sub = await near.subscribe(stream.all, config=SLOW)
        await within(60, read(sub, way, count, note), "reading all")
    await near.ping()

    assert [number for number, _ in seen] == list(range(1, count + 1))
    requests, answers = tap.find(match.is_flow_control), tap.find(match.is_flow_control_reply)
    assert len(requests) >= 3
    assert [frame.reply for frame in requests] == [frame.subject for frame in answers]
    assert {frame.payload for frame in answers} == {b""}
    taken_at = dict(seen)
    for request, answer in zip(requests, answers, strict=True):
        before = [f for f in tap.frames[: request.number] if match.is_data(f)]
        last = match.stream_seq(before[-1]) if before else 0
        # A batch is taken as a whole: its answers may go out before the loop body ran for its last message.
        if last and way != "batches":
            assert taken_at[last] <= answer.number
    assert [e for e in alarms(events) if not isinstance(e, jsclient.FlowControlStalled)] == []


@pytest.mark.row(36)
@pytest.mark.covers("J95")
async def test_p11_thirty_megabytes_flow(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """P11: 3000 x 10 kB with flow control took 20 s, in pauses as long as the heartbeat."""
    await stream.publish(3000, size=SIZE)
    sub = await js.subscribe(stream.all, config=SLOW)
    count, longest, before = 0, 0.0, time.monotonic()
    async for _ in sub:
        count, now = count + 1, time.monotonic()
        longest, before = max(longest, now - before), now
        if count == 3000:
            break
    assert longest < SLOW.idle_heartbeat, "one stall lasts as long as the heartbeat"
    assert of(jsclient.FlowControlStalled, events) == []
    await sub.unsubscribe()


@pytest.mark.row(34, 35)
@pytest.mark.covers("J95")
async def test_p12_slow_callback_holds_server_back(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """P12: the whole backlog was buffered, because requests were answered when they arrived."""
    size, count = 100_000, 900  # 90 MB, almost three windows
    await stream.publish(count, size=size)
    most, handled = 0, 0
    done = asyncio.Event()

    async def slow(_: Any) -> None:
        nonlocal most, handled
        most = max(most, sub.pending_bytes)
        handled += 1
        await asyncio.sleep(0.002)
        if handled == count:
            done.set()

    sub = await js.subscribe(stream.all, config=SLOW, callback=slow)
    await within(100, done.wait(), "handling all")
    assert size < most <= WINDOW
    assert alarms(events) == []
    assert sub.dropped == 0


@pytest.mark.covers("J98")
async def test_other_subjects_by_option(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    prefixes = ["flow.", "_FC.$other", "a"]
    sub = await near.subscribe(stream.all, config=SLOW, flow_control_prefixes=prefixes)
    for subject in ("flow.9.x", "_FC.$other-form_1", "a", "$JS.FC.S.C.one"):
        tap.inject_message(sub.subject, status="100 FlowControl Request", reply=subject)
        await stream.publish(1)
        await take(sub, 1)
        answer = await tap.wait_for(match.published(subject))
        assert answer.payload == b""
    assert of(jsclient.events.FlowControlRefused, events) == []


@pytest.mark.row(39)
@pytest.mark.covers("J98")
@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.{stream}",
        "$JS.hub.API.STREAM.DELETE.{stream}",
        "$SYS.REQ.USER.INFO",
        "orders.new",
        "_INBOX.of.another",
        "$JS.FC",
        "a.*",
        "a.>",
    ],
)
@pytest.mark.parametrize("way", ["request", "stalled"])
async def test_forbidden_subject_refused(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], subject: str, way: str
) -> None:
    subject = subject.format(stream=stream.name)
    sub = await near.subscribe(stream.all, config=SLOW)
    before = len(tap.frames)
    if way == "request":
        tap.inject_message(sub.subject, status="100 FlowControl Request", reply=subject)
    else:
        headers = {"Nats-Consumer-Stalled": subject}
        tap.inject_message(sub.subject, status="100 Idle Heartbeat", headers=headers)
    refused = await wait_for_event(jsclient.FlowControlRefused, events)
    assert (refused.subject, refused.consumer) == (subject, sub.consumer)
    await stream.publish(1)
    assert numbers(await take(sub, 1)) == [1]
    await near.ping()
    assert [f for f in tap.sent(since=before) if f.subject == subject] == []


@pytest.mark.covers("J95")
async def test_limit_in_messages_refused(js: Any, stream: OwnStream) -> None:
    """The server counts bytes: 16,824 of 20,000 small messages were dropped."""
    for arguments in ({}, {"durable": "d"}):
        with pytest.raises(jsclient.ConfigError, match="max_pending is 1000: with flow control"):
            await js.subscribe(stream.all, config=SLOW, max_pending=1000, **arguments)
    assert await stream.consumer_names() == []
    await stream.create_consumer(
        "there", deliver_subject="to", flow_control=True, idle_heartbeat=5_000_000_000, ack_policy="none"
    )
    with pytest.raises(jsclient.ConfigError, match="max_pending is 1000: with flow control"):
        await js.subscribe(stream=stream.name, consumer="there", max_pending=1000)


@pytest.mark.covers("J95")
async def test_no_limit_in_messages(
    js: Any, stream: OwnStream, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jsclient.consumers import opening

    monkeypatch.setattr(opening, "MAX_PENDING", 1000)  # fewer than the window of small messages
    await stream.publish(20_000)
    sub = await js.subscribe(stream.all, config=SLOW)
    await eventually(lambda: sub.pending > 2000, what="more than the limit")
    assert numbers(await take(sub, 20_000)) == list(range(1, 20_001))
    assert sub.dropped == 0
    assert alarms(events) == []


@pytest.mark.covers("J99")
async def test_needs_heartbeat(js: Any, stream: OwnStream) -> None:
    with pytest.raises(jsclient.ApiError) as raised:
        await js.subscribe(stream.all, config=jsclient.ConsumerConfig(flow_control=True))
    assert raised.value.err_code == 10108
    assert await stream.consumer_names() == []


@pytest.mark.row(37)
@pytest.mark.covers("J100", "J101")
async def test_lost_request_from_stalled(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    lost = tap.drop_frames(match.is_flow_control, count=1)
    await stream.publish(400, size=SIZE)
    sub = await near.subscribe(stream.all, config=CONFIG)
    assert numbers(await take(sub, 400)) == list(range(1, 401))
    [request] = lost.frames
    stalled = tap.find(lambda f: f.header("Nats-Consumer-Stalled") == request.reply)
    assert stalled
    await near.ping()
    answers = [f for f in tap.find(match.is_flow_control_reply) if f.subject == request.reply]
    assert len(answers) == 1
    assert answers[0].number > stalled[0].number
    assert answers[0].payload == b""
    event = await wait_for_event(jsclient.FlowControlStalled, events)
    assert event.subject == request.reply


async def test_lost_answer_is_said_to_be_sent_again(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    lost = tap.drop_frames(match.is_flow_control_reply, count=1)
    await stream.publish(400, size=SIZE)
    sub = await near.subscribe(stream.all, config=CONFIG)
    assert numbers(await take(sub, 400)) == list(range(1, 401))
    event = await wait_for_event(jsclient.FlowControlStalled, events)
    assert event.subject == lost.frames[0].subject
    assert event.again
    assert "it was sent, did not arrive, and is sent again once" in str(event)


@pytest.mark.row(39)
@pytest.mark.covers("J100", "J101")
async def test_repeats_answered_once(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, config=SLOW)

    def heartbeat(subject: str) -> None:
        headers = {"Nats-Consumer-Stalled": subject}
        tap.inject_message(sub.subject, status="100 Idle Heartbeat", headers=headers)

    waiting = asyncio.create_task(sub.next(timeout=20))
    heartbeat("$JS.FC.S.C.one")
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    heartbeat("$JS.FC.S.C.one")
    await near.ping()
    heartbeat("$JS.FC.S.C.one")
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.two")
    heartbeat("$JS.FC.S.C.two")
    await stream.publish(1)
    await waiting
    await near.ping()
    assert answered(tap) == ["$JS.FC.S.C.one", "$JS.FC.S.C.two"]


@pytest.mark.row(39)
@pytest.mark.covers("J102")
async def test_pull_does_not_answer(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(1, expires=10))
    request = await tap.wait_for(match.published("$JS.API.CONSUMER.MSG.NEXT.>"))
    tap.inject_message(request.reply, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await stream.publish(1)
    assert numbers(await fetching) == [1]
    await near.ping()
    assert answered(tap) == []


@pytest.mark.row(37)
@pytest.mark.covers("J100")
async def test_lost_answer_given_again(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """The stalled heartbeats ask for it, although the subject was answered once."""
    await stream.publish(1000, size=10_000)
    lost = tap.drop_frames(match.is_flow_control_reply, count=1)
    sub = await near.subscribe(stream.all, config=CONFIG)
    assert numbers(await take(sub, 1000)) == list(range(1, 1001))
    assert lost.count == 1
    assert (await wait_for_event(jsclient.FlowControlStalled, events)).subject == lost.frames[0].subject


@pytest.mark.row(37)
@pytest.mark.covers("J100")
async def test_unsent_answer_follows_reconnect(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(1000, size=10_000)
    sub = await near.subscribe(stream.all, durable="d", config=CONFIG)
    await eventually(lambda: tap.find(match.is_flow_control), what="a request")

    async def waits() -> bool:
        # What is under way when the connection is cut would be lost: this consumer knows no acks.
        before = sub.pending
        await near.ping()
        delivered = (await stream.consumer_info("d"))["delivered"]["stream_seq"]
        return bool(sub.pending == before == delivered)

    await eventually(waits, what="the server to wait, with nothing under way")
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    waiting = sub.pending
    got = await take(sub, waiting)
    await tap.accept()
    got += await take(sub, 1000 - waiting)
    assert numbers(got) == list(range(1, 1001))
