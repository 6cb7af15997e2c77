"""Fast ingest: the ordinary case, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.calls.fast_ingest import codes, control, filled, numbered, stored
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.network import match
from integration.kit.network.proxy import Proxy

pytestmark = pytest.mark.server(">=2.14")


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def near(tap: Proxy, connect: Any, oracle: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await make_stream(allow_batched=True)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still causes no PINGs: the tests compare all that was sent."""
    monkeypatch.setattr("jsclient.publishing.ingest_channel.PING_AFTER", 60.0)
    monkeypatch.setattr("jsclient.publishing.ingest_channel.KEEP_ALIVE", 60.0)


# --- all is well -------------------------------------------------------------------------------------------


async def test_commit_with_message_ends(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - basics, done() resolves with terminal ack."""
    ingest = near.fast_ingest(ack_every=5)
    await filled(ingest, stream, 4)
    ack = await ingest.commit(stream.subject("a"), b"5")
    assert (ack.stream, ack.batch, ack.count, ack.seq) == (stream.name, ingest.id, 5, 5)
    assert (ingest.ack, ingest.sent, ingest.acked, ingest.is_closed) == (ack, 5, 5, True)
    assert (ingest.lost, ingest.refused) == (0, 0)
    assert await stored(stream) == numbered(1, 5)
    assert codes(tap) == ["1.0", "2.1", "3.1", "4.1", "5.2"]
    assert not any(frame.headers for frame in tap.sent(stream.all))


async def test_leaving_the_block_ends_it(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - end (EOB)."""
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
    assert (ingest.ack.batch, ingest.ack.count, ingest.ack.seq) == (ingest.id, 3, 3)
    assert await stored(stream) == numbered(1, 3)
    assert codes(tap) == ["1.0", "2.1", "3.1", "4.3"]


async def test_a_single_message_may_be_all(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ack = await near.fast_ingest().commit(stream.subject("a"), b"1")
    assert (ack.seq, ack.count) == (1, 1)
    async with near.fast_ingest() as ingest:
        await ingest.publish(stream.subject("a"), b"2")
    assert (ingest.ack.seq, ingest.ack.count) == (2, 1)
    assert codes(tap) == ["1.2", "1.0", "2.3"]


async def test_an_empty_one_sends_nothing(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest() as ingest:
        assert await ingest.ping() == 0
        assert await ingest.publish_many(stream.subject("a"), []) == 0
    assert (ingest.ack, ingest.is_closed) == (None, True)
    with pytest.raises(jsclient.ConfigError):
        await near.fast_ingest().commit()
    assert codes(tap) == []


@pytest.mark.parametrize("ack_every", [1, 2, 7])
@pytest.mark.parametrize("acks", [1, 2, 3])
async def test_server_limit_in_flight(
    tap: Proxy, near: Any, stream: OwnStream, ack_every: int, acks: int
) -> None:
    """Row 134: fast ingest - backpressure."""
    async with near.fast_ingest(ack_every=ack_every, max_outstanding_acks=acks) as ingest:
        await filled(ingest, stream, 100)
    assert ingest.ack.count == 100
    assert await stored(stream) == numbered(1, 100)
    acked, flow, sent = 0, 0, 0
    for frame in tap.frames:
        if control("ack")(frame):
            answer = json.loads(frame.payload)
            acked, flow = max(acked, answer["seq"]), answer["msgs"]
        elif match.published(stream.all)(frame) and frame.payload:
            sent += 1
            assert sent <= max(1, acked + flow * acks)
    assert sent == 100


async def test_many_payloads_go_in_one_call(near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=50) as ingest:
        assert await ingest.publish_many(stream.subject("a"), iter(numbered(1, 3000))) == 3000
        assert await ingest.publish(stream.subject("b"), b"3001") == 3001
        assert (
            await ingest.publish_many(stream.subject("c"), [bytearray(b"3002"), memoryview(b"3003")]) == 3003
        )
    assert ingest.ack.count == 3003
    assert await stored(stream) == numbered(1, 3003)


@pytest.mark.smoke
async def test_tasks_may_share_it(near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=3) as ingest:
        numbers = await asyncio.gather(*(ingest.publish(stream.subject("a"), b"x") for _ in range(100)))
    assert sorted(numbers) == list(range(1, 101))
    assert ingest.ack.count == 100


async def test_several_share_a_stream(js: Any, near: Any, natspy_js: Any, stream: OwnStream) -> None:
    async def ingested(connection: Any, name: str) -> int:
        async with connection.fast_ingest(ack_every=20) as ingest:
            await ingest.publish_many(stream.subject(name), numbered(1, 300))
        return ingest.ack.count

    done = await asyncio.gather(
        *(ingested(connection, name) for connection in (js, near, natspy_js) for name in ("a", "b"))
    )
    assert done == [300] * 6
    assert (await stream.state())["messages"] == 1800


async def test_large_messages_wait_for_socket(near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest() as ingest:
        await ingest.publish_many(stream.subject("a"), (bytes(200_000) for _ in range(40)))
        for _ in range(40):
            await ingest.publish(stream.subject("a"), bytes(200_000))
    assert ingest.ack.count == 80
    assert (await stream.state())["bytes"] > 16_000_000


async def test_headers_and_expectations(near: Any, js: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - expect.lastSequence on first msg."""
    await js.publish(stream.subject("a"), b"0", msg_id="one")
    async with near.fast_ingest() as ingest:
        await ingest.publish(stream.subject("a"), b"1", expected_last_seq=1, headers={"Mine": ["1", "2"]})
        await ingest.publish(stream.subject("b"), b"2", msg_id="two", expected_last_subject_seq=0)
        await ingest.publish(stream.subject("a"), b"again", msg_id="one")
        await ingest.publish(stream.subject("a"), b"3")
    assert (ingest.ack.count, ingest.ack.seq) == (4, 4)
    messages = await stream.messages()
    assert [message.payload for message in messages] == [b"0", b"1", b"2", b"3"]
    assert messages[1].headers.count(b"Mine: ") == 2


async def test_pings_coalesce(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - ping, concurrent pings coalesce."""
    async with near.fast_ingest(ack_every=10) as ingest:
        await filled(ingest, stream, 25)
        held = tap.hold_frames(control("ack"))
        call = [asyncio.create_task(ingest.ping()) for _ in range(5)]
        await held.wait()
        held.release()
        assert set(await asyncio.gather(*call)) == {20}
        assert codes(tap).count("25.4") == 1
        await ingest.ping()
        assert codes(tap).count("25.4") == 2
        await filled(ingest, stream, 1, first=26)
    assert ingest.ack.count == 26


@pytest.mark.parametrize("prefix", ["FI", "_inbox.foo.bar.baz"])
async def test_inbox_prefix_of_connection_used(
    tap: Proxy, connect: Any, stream: OwnStream, prefix: str
) -> None:
    """Row 134: fast ingest - custom inboxPrefix, multi-token inboxPrefix."""
    js = await connect(tap, inbox_prefix=prefix)
    async with js.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
    assert ingest.ack.count == 3
    assert all(frame.reply.startswith(f"{prefix}.") for frame in tap.sent(stream.all))


@pytest.mark.parametrize("bad", ["", " ", "has space", "*", ">", "foo.*", "foo.>"])
async def test_bad_inbox_prefix_refused(server: Any, bad: str) -> None:
    """Row 134: fast ingest - invalid inboxPrefix rejected."""
    with pytest.raises(jsclient.ConfigError):
        await jsclient.connect(server.url, inbox_prefix=bad)


# --- refused -----------------------------------------------------------------------------------------------


async def test_stream_takes_none_reported_by_name(near: Any, make_stream: Any) -> None:
    """Row 134: fast ingest - rejects non_supported."""
    plain = await make_stream()
    ingest = near.fast_ingest()
    for _ in range(2):
        with pytest.raises(jsclient.BatchNotEnabledError):
            await ingest.publish(plain.subject("a"))
    with pytest.raises(jsclient.BatchNotEnabledError):
        await near.fast_ingest().commit(plain.subject("a"))
    with pytest.raises(jsclient.NoRespondersError):
        await near.fast_ingest().publish("nobody.listens.here")
    assert await stored(plain) == []


async def test_after_end_takes_nothing_more(near: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - add after closed rejects."""
    ingest = near.fast_ingest()
    await filled(ingest, stream, 2)
    await ingest.commit()
    for call in (
        ingest.publish(stream.subject("a")),
        ingest.publish_many(stream.subject("a"), [b"1"]),
        ingest.commit(),
        ingest.commit(stream.subject("a")),
        ingest.ping(),
    ):
        with pytest.raises(jsclient.ClosedError):
            await call
    assert len(await stored(stream)) == 2


async def test_wrong_first_expectation(near: Any, stream: OwnStream) -> None:
    """Row 134: fast ingest - expect.lastSequence mismatch closes batch."""
    ingest = near.fast_ingest()
    with pytest.raises((jsclient.IngestError, jsclient.WrongLastSequenceError)):
        await _first_and_commit(ingest, stream)
    assert ingest.is_closed
    assert await stored(stream) == []
    with pytest.raises((jsclient.IngestError, jsclient.WrongLastSequenceError)):
        await ingest.publish(stream.subject("a"))


async def _first_and_commit(ingest: Any, stream: OwnStream) -> None:
    await ingest.publish(stream.subject("a"), expected_last_seq=5)
    await ingest.commit(stream.subject("a"))


async def test_refused_message_ends_it(near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest()
    await filled(ingest, stream, 10)
    await ingest.publish(stream.subject("a"), expected_last_seq=999)
    await ingest.publish(stream.subject("a"), b"never")
    for call in (ingest.commit(), ingest.publish(stream.subject("a"))):
        with pytest.raises(jsclient.IngestError) as caught:
            await call
        assert isinstance(caught.value.__cause__, jsclient.WrongLastSequenceError)
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (12, 10, True)
    assert (ingest.acked, ingest.refused, ingest.is_closed) == (10, 1, True)
    assert await stored(stream) == numbered(1, 10)


async def test_leaving_block_raises_swallowed_in(near: Any, stream: OwnStream) -> None:
    async def work() -> None:
        async with near.fast_ingest(ack_every=2) as ingest:
            for number in range(1, 50):
                try:
                    await ingest.publish(
                        stream.subject("a"),
                        headers={"Nats-Expected-Last-Sequence": "9"} if number == 5 else None,
                    )
                except jsclient.JetStreamError:
                    pass

    with pytest.raises(jsclient.IngestError) as caught:
        await work()
    assert caught.value.stored == 4


async def test_gaps_refused_reported(near: Any, stream: OwnStream, events: list[Any]) -> None:
    async with near.fast_ingest(gap="ok") as ingest:
        await filled(ingest, stream, 5)
        await ingest.publish(stream.subject("a"), b"6", expected_last_seq=999)
        await filled(ingest, stream, 5, first=7)
    (event,) = of(jsclient.IngestRefused, events)
    assert (event.ingest, event.number, event.error.err_code) == (ingest.id, 6, 10071)
    assert (ingest.sent, ingest.acked, ingest.refused, ingest.lost) == (11, 11, 1, 0)
    assert await stored(stream) == numbered(1, 5) + numbered(7, 11)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_a_message_for_no_stream(near: Any, stream: OwnStream, events: list[Any], gap: str) -> None:
    ingest = near.fast_ingest(gap=gap)
    await filled(ingest, stream, 2)
    await ingest.publish("nobody.listens.here")
    await ingest.publish(stream.subject("a"), b"4")
    if gap == "ok":
        await ingest.commit()
        assert [event.number for event in of(jsclient.IngestRefused, events)] == [3]
        assert (ingest.refused, ingest.lost) == (1, 0)
        assert await stored(stream) == [b"1", b"2", b"4"]
    else:
        with pytest.raises(jsclient.IngestError) as caught:
            await ingest.commit()
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (4, 2, True)
        assert await stored(stream) == [b"1", b"2"]


async def test_message_for_another_stream_ends(near: Any, make_stream: Any, stream: OwnStream) -> None:
    other = await make_stream(allow_batched=True)
    ingest = near.fast_ingest()
    await filled(ingest, stream, 2)
    await ingest.publish(other.subject("a"))
    with pytest.raises(jsclient.IngestError) as caught:
        await ingest.commit()
    assert (caught.value.stored, caught.value.complete) == (2, True)
    assert await stored(other) == []
    assert await stored(stream) == [b"1", b"2"]


async def test_message_too_large_for_stream(near: Any, oracle: Any, make_stream: Any, events: Any) -> None:
    small = await make_stream(allow_batched=True, max_msg_size=10)
    async with near.fast_ingest(gap="ok") as ingest:
        await ingest.publish_many(small.subject("a"), [b"1", bytes(11), b"3"])
    assert [(event.number, event.error.err_code) for event in of(jsclient.IngestRefused, events)] == [
        (2, 10054)
    ]
    assert (ingest.refused, ingest.lost) == (1, 0)
    assert await stored(small) == [b"1", b"3"]
    with pytest.raises(jsclient.ApiError):
        await near.fast_ingest().publish(small.subject("a"), bytes(11))
    ingest = near.fast_ingest()
    await ingest.publish_many(small.subject("a"), [b"1", bytes(11), b"3"])
    with pytest.raises(jsclient.IngestError) as caught:
        await ingest.commit()
    assert (caught.value.stored, caught.value.complete) == (1, True)


async def test_unsendable_refused_early(near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 1)
        for arguments, error in (
            ({"subject": "a b"}, jsclient.InvalidNameError),
            ({"subject": 7}, jsclient.InvalidNameError),
            ({"data": "text"}, jsclient.ConfigError),
            ({"data": bytes(2**20 + 1)}, jsclient.MaxPayloadError),
            ({"headers": {"A": "1\n"}}, jsclient.InvalidNameError),
            ({"msg_id": ""}, jsclient.ConfigError),
        ):
            with pytest.raises(error):
                await ingest.publish(**{"subject": stream.subject("a"), **arguments})
        for bad, error in (("text", jsclient.ConfigError), (bytes(2**20 + 1), jsclient.MaxPayloadError)):
            with pytest.raises(error):
                await ingest.publish_many(stream.subject("a"), [b"2", bad, b"4"])
        assert ingest.sent == 3
    assert await stored(stream) == [b"1", b"2", b"2"]


@pytest.mark.parametrize(
    "options",
    [
        {"gap": "maybe"},
        {"ack_every": 0},
        {"ack_every": 65_536},
        {"ack_every": True},
        {"max_outstanding_acks": 0},
        {"timeout": -1},
    ],
)
async def test_options_out_of_range_refused(near: Any, options: dict[str, Any]) -> None:
    with pytest.raises(jsclient.ConfigError):
        near.fast_ingest(**options)
