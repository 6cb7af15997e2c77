"""Odd acks, headers and statuses on the way from a real server: reported, and the next message comes (F4, X6, X7)."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.judge.reading import noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import is_data, is_message, published, stream_seq
from integration.kit.network.wire import Frame
from jsclient import (
    ConsumerConfig,
    ConsumerDeleted,
    ConsumerReset,
    ErrorRaised,
    FlowControlRefused,
    ForeignMessage,
    HandlerFailed,
    JetStreamError,
    NotJetStreamMessageError,
    RequestTimeoutError,
    StatusError,
)

BIG = "9" * 400
V2 = "$JS.ACK._.hash."
MALFORMED = [
    "$JS.ACK.",
    "$JS.ACK.S",
    "$JS.ACK.S.C",
    "$JS.ACK.S.C.1.2.3.4",
    "$JS.ACK.S.C.1.2.3.4.5.6",
    "$JS.ACK..C.1.2.3.4.5",
    "$JS.ACK.S.C.1.2.3.4.",
    "$JS.ACK.S.C.x.2.3.4.5",
    "$JS.ACK.S.C.1.x.3.4.5",
    "$JS.ACK.S.C.1.2.x.4.5",
    "$JS.ACK.S.C.1.2.3.x.5",
    "$JS.ACK.S.C.1.2.3.4.x",
    "$JS.ACK.S.C.1.-2.3.4.5",
    "$JS.ACK.S.C.1.+2.3.4.5",
    "$JS.ACK.S.C.1.1_0.3.4.5",
    "$JS.ACK.S.C.1.2.5",
    "$JS.ACK.S.C.1.\u0661.3.4.5",
    f"$JS.ACK.S.C.1.{BIG}.3.4.5",
    "$JS.ACK.S.C.1.18446744073709551616.3.4.5",
    f"{V2}S.C.1.x.3.4.5",
    f"{V2}S.C.1.2..4.5",
    f"{V2}.C.1.2.3.4.5",
]
ODD_HEADERS = [
    b"NA",
    b"NATS",
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"NATS/1.0 \r\n\r\n",
    b"NATS/1.0\n\n",
    b"NATS/9.9\r\n\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\x00\x00",
    b"\xff\xfe\xfd",
    b"NATS/1.0\r\nA\r\n\r\n",
    b"NATS/1.0\r\n: x\r\n\r\n",
    b"NATS/1.0\r\nA:\r\n\r\n",
    b"NATS/1.0\r\nA:b:c\r\n\r\n",
    b"NATS/1.0\r\n A: b\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n c\r\n\r\n",
    b"NATS/1.0\r\nA : b\r\n\r\n",
    b"NATS/1.0\r\nA: \xff\r\n\r\n",
    b"NATS/1.0\r\n\xff: b\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n",
    b"NATS/1.0\r\nA: b",
    b"NATS/1.0\r\nA: 1\r\nA: 2\r\na: 3\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 abc\r\n\r\n",
    b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
    b"NATS/1.0\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
]
READERS = ["ordered", "durable"]


async def reader(kind: str, js: Any, stream: OwnStream) -> Any:
    if kind == "ordered":
        config = ConsumerConfig(idle_heartbeat=30.0)
        return await js.subscribe(stream.all, ordered=True, config=config)
    return await js.subscribe(stream.all, durable="d")


@pytest.mark.covers("J61", "J66")
@pytest.mark.parametrize("kind", READERS)
async def test_malformed_ack_reply_then_on(kind: str, proxy: Any, connect: Any, stream: OwnStream) -> None:
    """F2, F4: 22 replies. 11 dead and 9 taken as data in nats-py."""
    assert len(MALFORMED) == 22
    tap = await proxy()
    js = await connect(tap)
    sub = await reader(kind, js, stream)
    wrong: list[str] = []
    for number, reply in enumerate(MALFORMED, 1):
        tap.inject_message(sub.subject, b"poison", reply=reply)
        await stream.publish(1, first=number)
        try:
            with pytest.raises(NotJetStreamMessageError):
                await sub.next(timeout=5)
        except pytest.fail.Exception:
            wrong.append(reply)
            continue
        assert numbers(await take(sub, 1)) == [number]
    assert wrong == []
    assert len(tap.links) == 1


DAMAGED = ["x", "7x", "1_0", "999999999", "3", "-5", ""]


@pytest.mark.covers("J61", "J66")
@pytest.mark.parametrize("value", DAMAGED)
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_damaged_number_within_a_run(
    kind: str, value: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Of frames that arrive together all numbers are read: an ordered reader misses nothing, and reports it."""
    tap = await proxy()
    js = await connect(tap)
    await stream.publish(300)

    def damaged(frame: Any) -> bytes:
        parts = frame.reply.split(".")
        parts[-4] = value
        raw: bytes = frame.but(reply=".".join(parts)).raw
        return raw

    tap.modify_frames(lambda f: is_data(f) and stream_seq(f) == 150, damaged, count=1)
    seen, failures = [], 0
    # both readers scan the numbers of a run, each with its own tracker
    if kind == "push":
        reading: Any = await js.subscribe(stream.all, ordered=True)
    else:
        reading = await js.ordered_consumer(stream.name)
        reading = reading.messages()
    while not seen or seen[-1] != 300:
        try:
            seen += numbers([await reading.next(timeout=10)])
        except NotJetStreamMessageError:
            failures += 1
    assert set(seen) == set(range(1, 301))
    if value != "999999999":
        assert seen == sorted(set(seen)), "nothing twice"
    assert failures or of(ConsumerReset, events), "it is reported"
    await reading.close()


@pytest.mark.core_cases(2)
@pytest.mark.covers("J66")
@pytest.mark.parametrize("index", [-4, -3, -2, -1])
async def test_damaged_number_reaches_no_handler(
    index: int, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """A durable push: it is reported, the handler gets only messages it can ack, and the server delivers it again."""
    tap = await proxy()
    js = await connect(tap, on_event=events.append)
    await stream.publish(300)

    def damaged(frame: Any) -> bytes:
        parts = frame.reply.split(".")
        parts[index] = "7x"
        raw: bytes = frame.but(reply=".".join(parts)).raw
        return raw

    tap.modify_frames(lambda f: is_data(f) and stream_seq(f) == 150, damaged, count=1)
    seen: list[int] = []

    async def handler(message: Any) -> None:
        seen.append(message.metadata.stream_seq)
        await message.ack()

    config = ConsumerConfig(ack_wait=1.0)
    sub = await js.subscribe(stream.all, callback=handler, durable="d", config=config, delete_on_close=False)
    await eventually(lambda: set(seen) == {*range(1, 301)}, 20, "all are handled")
    assert [type(event.error) for event in of(ErrorRaised, events)] == [NotJetStreamMessageError]
    assert not of(HandlerFailed, events)
    await sub.unsubscribe()


@pytest.mark.covers("J66", "J107")
@pytest.mark.parametrize("kind", ["ordered", "durable"])
async def test_callback_gets_events_only(
    kind: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """F4: with a callback the report is an event."""
    tap = await proxy()
    js = await connect(tap)
    got: list[Any] = []
    options = {"ordered": True} if kind == "ordered" else {"durable": "d"}
    sub = await js.subscribe(stream.all, callback=noting(got), **options)
    for reply in MALFORMED:
        tap.inject_message(sub.subject, b"poison", reply=reply)
    await stream.publish(1)
    await eventually(lambda: got, what="the real message")
    assert numbers(got) == [1]
    errors = [event.error for event in of(ErrorRaised, events)]
    assert len(errors) == len(MALFORMED)
    assert {type(error) for error in errors} == {NotJetStreamMessageError}


@pytest.mark.covers("J81")
@pytest.mark.parametrize("kind", READERS)
async def test_odd_headers_are_data(
    kind: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """F4, X6: 29 blocks, all handed over in order. 5 or 6 dead in nats-py."""
    assert len(ODD_HEADERS) == 29
    tap = await proxy()
    js = await connect(tap)
    sub = await reader(kind, js, stream)
    sequences = range(1, len(ODD_HEADERS) + 1)

    def with_block(frame: Frame) -> bytes:
        # Its payload is its number, and the stream counts as it does.
        return frame.but(headers=ODD_HEADERS[int(frame.payload) - 1]).raw

    rule = tap.modify_frames(is_message(*sequences), with_block)
    await stream.publish(len(ODD_HEADERS) + 1)
    messages = await take(sub, len(ODD_HEADERS) + 1)
    assert rule.count == len(ODD_HEADERS)
    assert numbers(messages) == [*sequences, len(ODD_HEADERS) + 1]
    for message in messages:
        assert dict(message.headers) is not None
        repr(message)
    assert of(ConsumerDeleted, events) == []
    assert len(tap.links) == 1


@pytest.mark.parametrize("kind", READERS)
async def test_empty_data_with_status_line_data(
    kind: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """X6: a message is control if it has no ack reply. Its headers never decide that."""
    tap = await proxy()
    js = await connect(tap)
    sub = await reader(kind, js, stream)
    status = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    rule = tap.modify_frames(is_message(2), lambda frame: frame.but(headers=status, payload=b"").raw)
    await stream.publish(3)
    messages = await take(sub, 3)
    assert rule.count == 1
    assert [message.data for message in messages] == [b"1", b"", b"3"]
    assert of(ConsumerDeleted, events) == []


CONTROL = [
    "409 Consumer Deleted",
    "409 Leadership Change",
    "503",
    "400 Bad Request",
    "999 What Is This",
    "200 OK",
    "1 x",
    "100000 Too Large",
]


@pytest.mark.covers("J105", "J106", "J107")
@pytest.mark.parametrize("status", CONTROL)
async def test_injected_status_then_on(
    status: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """F4: unknown status = named error, never a message, never the end."""
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all, durable="d")
    tap.inject_message(sub.subject, status=status)
    await stream.publish(1)
    code = int(status.split(maxsplit=1)[0])
    is_status = 100 <= code <= 999
    if is_status:
        with pytest.raises(StatusError) as caught:
            await sub.next(timeout=5)
        assert caught.value.code == code
    assert numbers(await take(sub, 1)) == [1]
    assert is_status or len(of(ForeignMessage, events)) == 1


@pytest.mark.parametrize("kind", ["push", "ordered", "fetch", "messages"])
async def test_foreign_reported_seldom(
    kind: str, proxy: Any, connect: Any, oracle: Any, stream: OwnStream, events: list[Any]
) -> None:
    """X7: 100 foreign messages on the inbox, 0 handed over, a few alarms."""
    tap = await proxy()
    js = await connect(tap)
    before = len(tap.frames)
    taking: Any
    if kind in {"push", "ordered"}:
        sub = taking = await reader("ordered" if kind == "ordered" else "durable", js, stream)
        inbox = sub.subject
    else:
        psub = await js.pull_subscribe(stream.all, durable="d")
        taking = psub.messages(expires=10.0) if kind == "messages" else psub
        with pytest.raises(RequestTimeoutError):
            await taking.next(timeout=0.3)
        [pull] = tap.sent("$JS.API.CONSUMER.MSG.NEXT.>", before)
        inbox = pull.reply
    for number in range(100):
        # Without and with a reply, with user headers: none comes from the consumer.
        reply = "$JS.FC.x" if number % 2 else None
        tap.inject_message(inbox, b"foreign", reply=reply, headers={"A": "b"} if number % 3 else None)
    first = await wait_for_event(ForeignMessage, events)
    await eventually(lambda: of(ForeignMessage, events)[-1].count == 64, what="the last alarm")
    assert first.count == 1
    assert [event.count for event in of(ForeignMessage, events)] == [1, 2, 4, 8, 16, 32, 64]
    await stream.publish(1)
    assert numbers(await take(taking, 1)) == [1]
    assert tap.sent("$JS.FC.>") == []


DEPUTY = [
    "$JS.API.STREAM.DELETE.x",
    "$JS.API.STREAM.PURGE.x",
    "$JS.d.API.STREAM.DELETE.x",
    "$SYS.REQ.SERVER.PING",
    "$JS.ACK.S.C.1.2.3.4.5",
    "wild.*",
    "wild.>",
    "*",
    "a..b",
    "t" * 2000,
]


@pytest.mark.covers("J98", "J101")
@pytest.mark.parametrize("how", ["request", "stalled"])
async def test_flow_control_forbidden(
    how: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """X6: a client that can write to the inbox cannot make us call the API. A plain subject is answered once."""
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all, durable="d")
    sent = len(tap.frames)
    # A reply that starts $JS.ACK. makes a message data.
    hostile = [subject for subject in DEPUTY if how == "stalled" or not subject.startswith("$JS.ACK.")]
    for subject in [*hostile, "$JS.FC.S.C.x", "$JS.FC.S.C.x"]:
        if how == "request":
            tap.inject_message(sub.subject, status="100 FlowControl Request", reply=subject)
        else:
            headers = {"Nats-Consumer-Stalled": subject}
            tap.inject_message(sub.subject, status="100 Idle Heartbeat", headers=headers)
    await stream.publish(1)
    assert numbers(await take(sub, 1)) == [1]
    await js.ping()
    assert [frame.subject for frame in tap.find(published(">"), sent)] == ["$JS.FC.S.C.x"]
    assert [event.subject for event in of(FlowControlRefused, events)] == hostile
    assert len(tap.links) == 1


async def test_inbox_statuses_ignored(proxy: Any, connect: Any, stream: OwnStream) -> None:
    """X6, X8: replies no one waits for, and odd ones to those who do."""
    tap = await proxy()
    js = await connect(tap)
    await js.ping()
    info = await js.stream(stream.name)
    inbox = (tap.sent("$JS.API.STREAM.INFO.>")[0].reply or "").rsplit(".", 1)[0]
    for token in ("0", "1", "2", "999999", "x", "-1"):
        tap.inject_message(f"{inbox}.{token}", b"\xff not json", status="409 Consumer Deleted")
        tap.inject_message(f"{inbox}.{token}", b"{}")
    await js.ping()
    assert (await info.info()).config.name == stream.name
    assert len(tap.links) == 1


async def test_non_json_fails_one_request(proxy: Any, connect: Any, stream: OwnStream) -> None:
    """F1, F4: every odd API answer raises a `JetStreamError`, and the next request works."""
    tap = await proxy()
    js = await connect(tap)
    handle = await js.stream(stream.name)
    odd = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff",
        b'{"error": 1}',
        b'{"error": {"code": "x"}}',
        b"[" * 5000,
    ]
    for body in odd:
        rule = tap.modify_frames(
            lambda frame: frame.payload.startswith(b'{"type":'),
            lambda frame, body=body: frame.but(payload=body).raw,
            count=1,
        )
        with pytest.raises(JetStreamError):
            await handle.info()
        assert rule.count == 1
        assert (await handle.info()).config.name == stream.name
