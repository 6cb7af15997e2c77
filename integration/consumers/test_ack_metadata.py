"""The metadata of a delivery, against the stored message. Source: ADR-15 §JSAck."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network import match

BOTH_FORMS = pytest.mark.parametrize(
    "ack_v2", [False, pytest.param(True, marks=pytest.mark.server(">=2.14"))], ids=["v1", "v2"]
)


def nanoseconds(time: str) -> int:
    """A time of the server, such as 2026-01-02T03:04:05.123456789Z, in nanoseconds since 1970."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return seconds // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0") or 0)


async def stored_at(stream: OwnStream, seq: int) -> int:
    answer = await stream.oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": seq})
    return nanoseconds(answer["message"]["time"])


@BOTH_FORMS
@pytest.mark.covers("J61", "J62", "J63", "J64", "J67", "J70")
async def test_metadata_in_both_forms(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, ack_v2: bool
) -> None:
    own = await own_server(ack_v2=ack_v2)
    oracle = await oracle_for(own)
    stream = await make_stream(oracle=oracle)
    await stream.publish(20)
    tap = await proxy(own)
    js = await connect(tap)
    sub = await js.subscribe(stream.all, durable="worker", delete_on_close=False)
    messages = await take(sub, 20)

    deliveries = tap.find(match.is_data)
    assert {len((frame.reply or "").split(".")) >= 11 for frame in deliveries} == {ack_v2}
    for number, (message, frame) in enumerate(zip(messages, deliveries, strict=True), start=1):
        metadata = message.metadata
        assert message.reply == frame.reply
        assert metadata.stream == stream.name
        assert metadata.consumer == "worker"
        assert metadata.num_delivered == 1
        assert (metadata.stream_seq, metadata.consumer_seq) == (number, number)
        assert metadata.num_pending == 20 - number
        assert metadata.domain is None
        assert metadata.timestamp_ns == await stored_at(stream, number)
        await message.ack()

    await oracle.wait_consumer(stream.name, "worker", lambda info: info["ack_floor"]["stream_seq"] == 20)
    assert [frame.subject for frame in tap.find(match.is_ack)] == [frame.reply for frame in deliveries]


@pytest.mark.covers("J70")
async def test_timestamp_has_nanoseconds(js: Any, stream: OwnStream) -> None:
    await stream.publish(200)
    sub = await js.subscribe(stream.all)
    metadata = [message.metadata for message in await take(sub, 200)]
    for one in metadata:
        assert one.timestamp_ns == await stored_at(stream, one.stream_seq)
        cut = timedelta(microseconds=one.timestamp_ns // 1000)
        assert one.timestamp == datetime(1970, 1, 1, tzinfo=UTC) + cut
    # Else the test could not distinguish nanoseconds from microseconds.
    assert any(one.timestamp_ns % 1000 for one in metadata)
    await sub.unsubscribe()


@pytest.mark.server(">=2.14")
@pytest.mark.covers("J64", "J68", "J69")
async def test_domain_in_metadata(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, tmp_path: Any
) -> None:
    config = {"jetstream": {"domain": "hub", "store_dir": str(tmp_path / "hub")}}
    own = await own_server(ack_v2=True, jetstream=False, config=config)
    stream = await make_stream(oracle=await oracle_for(own))
    await stream.publish(1)
    js = await connect(own)
    [message] = await take(await js.subscribe(stream.all), 1)
    assert message.metadata.domain == "hub"
    assert message.reply.split(".")[2] == "hub"
    assert message.reply.split(".")[3] not in str(message.metadata)
    await message.ack_sync(timeout=5)


@pytest.mark.server(">=2.14")
@pytest.mark.covers("J68")
async def test_no_domain_in_metadata(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server(ack_v2=True)
    stream = await make_stream(oracle=await oracle_for(own))
    await stream.publish(1)
    js = await connect(own)
    [message] = await take(await js.subscribe(stream.all), 1)
    assert message.reply.split(".")[:3] == ["$JS", "ACK", "_"], "the server names no domain so"
    assert message.metadata.domain is None
    await message.ack_sync(timeout=5)


@pytest.mark.covers("J65")
async def test_extra_tokens_ignored(proxy: Any, connect: Any, stream: OwnStream) -> None:
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all)
    head = "$JS.ACK._.hash.S.C.2.30.1.1700000000123456789.5"
    tap.inject_message(sub.subject, b"12", reply=f"{head}.random")
    tap.inject_message(sub.subject, b"13", reply=f"{head.replace('.30.1.', '.31.2.')}.random.and.more")
    twelve, thirteen = await take(sub, 2)
    assert (twelve.metadata.stream, twelve.metadata.consumer) == ("S", "C")
    assert (twelve.metadata.num_delivered, twelve.metadata.num_pending) == (2, 5)
    assert twelve.metadata.timestamp_ns == 1700000000123456789
    assert thirteen.metadata.stream_seq == 31
    await thirteen.ack()
    acked = await tap.wait_for(match.is_ack)
    assert acked.subject == f"{head.replace('.30.1.', '.31.2.')}.random.and.more"


@pytest.mark.covers("J66")
@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.S.C.1.1.1.1",
        "$JS.ACK._.hash.S.C.1.1.1.1",
        "$JS.ACK.S.C.one.1.1.1700000000123456789.0",
        "$JS.ACK._.hash.S.C.1.1.1.now.0",
    ],
    ids=["8 tokens", "10 tokens", "v1 no number", "v2 no number"],
)
async def test_malformed_jsack_then_on(proxy: Any, connect: Any, stream: OwnStream, reply: str) -> None:
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all)
    tap.inject_message(sub.subject, b"bad", reply=reply)
    with pytest.raises(jsclient.NotJetStreamMessageError):
        await sub.next(timeout=5)
    await stream.publish(1)
    assert [message.data for message in await take(sub, 1)] == [b"1"]


@pytest.mark.covers("J61")
async def test_foreign_message_reported(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all)
    tap.inject_message(sub.subject, b"foreign", reply="some.reply")
    tap.inject_message(sub.subject, b"foreign")
    await stream.publish(1)
    assert [message.data for message in await take(sub, 1)] == [b"1"]
    await eventually(
        lambda: [e.count for e in alarms(events) if isinstance(e, jsclient.ForeignMessage)] == [1, 2],
        what="two events",
    )
