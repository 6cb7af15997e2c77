"""Fast ingest: what is stored is told, whatever happens on the way. Source: ADR-50 §Fast-ingest.

Row 134 names the tests of nats.js that are matched here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient.publishing import ingest_channel

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


def operation(number: object, code: object) -> Any:
    """A message of an ingest, by its number and what it asks for: 0 start, 1 append, 2 and 3 commit, 4 ping."""
    return lambda frame: match.published(">")(frame) and (frame.reply or "").endswith(f".{number}.{code}.$FI")


def control(kind: str) -> Any:
    """An answer of the server of this type; "final" for the last one."""

    def fits(frame: Any) -> bool:
        if not (match.delivered(">")(frame) and (frame.subject or "").endswith(".$FI") and frame.payload):
            return False
        return json.loads(frame.payload).get("type", "final") == kind

    return fits


def codes(tap: Proxy) -> list[str]:
    """What was sent, as number and operation."""
    return [
        ".".join((frame.reply or "").split(".")[-3:-1])
        for frame in tap.sent()
        if (frame.reply or "").endswith(".$FI")
    ]


async def stored(stream: OwnStream) -> list[bytes]:
    if not (await stream.state())["messages"]:
        return []
    return [message.payload for message in await stream.messages()]


async def filled(ingest: Any, stream: OwnStream, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        assert await ingest.publish(stream.subject("a"), b"%d" % number) == number


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


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


async def test_several_share_a_stream(js: Any, near: Any, foreign_js: Any, stream: OwnStream) -> None:
    async def ingested(connection: Any, name: str) -> int:
        async with connection.fast_ingest(ack_every=20) as ingest:
            await ingest.publish_many(stream.subject(name), numbered(1, 300))
        return ingest.ack.count

    done = await asyncio.gather(
        *(ingested(connection, name) for connection in (js, near, foreign_js) for name in ("a", "b"))
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
        asked = [asyncio.create_task(ingest.ping()) for _ in range(5)]
        await held.wait()
        held.release()
        assert set(await asyncio.gather(*asked)) == {20}
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


async def test_stream_takes_none_told_by_name(near: Any, make_stream: Any) -> None:
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
    (told,) = of(jsclient.IngestRefused, events)
    assert (told.ingest, told.number, told.error.err_code) == (ingest.id, 6, 10071)
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
        for given, error in (
            ({"subject": "a b"}, jsclient.InvalidNameError),
            ({"subject": 7}, jsclient.InvalidNameError),
            ({"data": "text"}, jsclient.ConfigError),
            ({"data": bytes(2**20 + 1)}, jsclient.MaxPayloadError),
            ({"headers": {"A": "1\n"}}, jsclient.InvalidNameError),
            ({"msg_id": ""}, jsclient.ConfigError),
        ):
            with pytest.raises(error):
                await ingest.publish(**{"subject": stream.subject("a"), **given})
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


# --- what is lost on the way -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 7, 30])
async def test_lost_message_ends_it(tap: Proxy, near: Any, stream: OwnStream, number: int) -> None:
    lost = tap.drop_frames(operation(number, 1))
    ingest = near.fast_ingest(ack_every=4)
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of(ingest, stream, 30)
    assert lost.count == 1
    assert (caught.value.stored, caught.value.complete) == (number - 1, True)
    assert (ingest.acked, ingest.ack.count) == (number - 1, number - 1)
    assert await stored(stream) == numbered(1, number - 1)


async def _all_of(ingest: Any, stream: OwnStream, count: int) -> None:
    await filled(ingest, stream, count)
    await ingest.commit()


@pytest.mark.parametrize("number", [2, 7, 30])
async def test_gaps_lost_reported(
    tap: Proxy, near: Any, stream: OwnStream, events: list[Any], number: int
) -> None:
    tap.drop_frames(operation(number, 1))
    ingest = near.fast_ingest(ack_every=4, gap="ok")
    await _all_of(ingest, stream, 30)
    assert [(event.first, event.last) for event in of(jsclient.IngestGap, events)] == [(number, number)]
    assert (ingest.lost, ingest.refused, ingest.acked, ingest.ack.count) == (1, 0, 30, 30)
    assert await stored(stream) == numbered(1, number - 1) + numbered(number + 1, 30)


async def test_acks_lost_asked_for(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    lost = tap.drop_frames(lambda frame: control("ack")(frame) and not frame.subject.endswith(".4.$FI"))
    async with near.fast_ingest(ack_every=4) as ingest:
        await within(10, filled(ingest, stream, 20), "publishing without acks")
    assert lost.count >= 3
    assert ingest.ack.count == 20


async def test_final_ack_lost_leaves_end_unknown(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(control("final"), count=1)
    ingest = near.fast_ingest(ack_every=5)
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of(ingest, stream, 12)
    assert (caught.value.sent, caught.value.stored, caught.value.complete) == (12, 10, False)
    assert await stored(stream) == numbered(1, 12)


async def test_end_lost_sent_again(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(operation(6, 3), count=2)
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 5)
    assert ingest.ack.count == 5


async def test_last_message_lost_found_out(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(operation(6, 2))
    ingest = near.fast_ingest()
    await filled(ingest, stream, 5)
    with pytest.raises(jsclient.IngestError) as caught:
        await ingest.commit(stream.subject("a"), b"6")
    assert (caught.value.sent, caught.value.stored, caught.value.complete) == (6, 5, True)


async def test_server_falls_silent_timeout(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest(ack_every=4, timeout=0.4)
    await filled(ingest, stream, 1)
    tap.drop_frames(match.delivered("_INBOX.>"))
    with pytest.raises(jsclient.IngestError) as caught:
        await _many(ingest, stream)
    assert isinstance(caught.value.__cause__, jsclient.RequestTimeoutError)
    assert not caught.value.complete
    first = near.fast_ingest(timeout=0.3)
    with pytest.raises(jsclient.IngestError):
        await first.publish(stream.subject("a"))
    with pytest.raises(jsclient.IngestError):
        await first.publish(stream.subject("a"))


async def _many(ingest: Any, stream: OwnStream) -> None:
    for _ in range(100):
        await ingest.publish(stream.subject("a"))


async def test_an_idle_one_is_kept_alive(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets an ingest after 10 s without a message."""
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 0.05)
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
        await eventually(lambda: codes(tap).count("3.4") >= 3, what="pings")
        await filled(ingest, stream, 2, first=4)
    assert ingest.ack.count == 5


FORGETFUL = "jetstream { limits { batch { timeout: 1s } } }"  # in place of 10 s


async def test_keepalive_outlives_timeout(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await own_server(config=FORGETFUL)
    js = await connect(own)
    stream = await make_stream(oracle=await oracle_for(own), allow_batched=True)
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 30.0)
    forgotten = js.fast_ingest(gap="ok")
    await filled(forgotten, stream, 3)
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 0.1)
    kept = js.fast_ingest()
    await filled(kept, stream, 3)
    with pytest.raises(jsclient.IngestError) as caught:
        await eventually(forgotten.ping, 10, "the server's patience to end", interval=1.5)
    assert caught.value.__cause__.err_code == 10208
    await filled(kept, stream, 3, first=4)
    assert (await kept.commit()).count == 6


# --- the connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_harmless_reconnect(
    tap: Proxy, near: Any, stream: OwnStream, gap: str, events: list[Any]
) -> None:
    async with near.fast_ingest(gap=gap, ack_every=5) as ingest:
        await filled(ingest, stream, 8)
        await ingest.ping()
        tap.cut()
        await tap.wait_links(2)
        await eventually(lambda: near.is_connected, what="the reconnect")
        await filled(ingest, stream, 30, first=9)
    assert (ingest.ack.count, ingest.lost) == (38, 0)
    assert of(jsclient.IngestGap, events) == []
    assert await stored(stream) == numbered(1, 38)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_lost_with_connection_told(
    tap: Proxy, near: Any, stream: OwnStream, gap: str, events: list[Any]
) -> None:
    ingest = near.fast_ingest(gap=gap, ack_every=50)
    await filled(ingest, stream, 8)
    await ingest.ping()
    lost = tap.drop_frames(match.published(stream.all))
    await filled(ingest, stream, 4, first=9)
    await lost.wait(4)
    lost.remove()
    tap.cut()
    await tap.wait_links(2)
    await eventually(lambda: near.is_connected, what="the reconnect")
    if gap == "ok":
        await filled(ingest, stream, 4, first=13)
        await ingest.commit()
        assert ingest.lost == 4
        assert sum(event.last - event.first + 1 for event in of(jsclient.IngestGap, events)) == 4
        assert await stored(stream) == numbered(1, 8) + numbered(13, 16)
    else:
        await eventually(lambda: ingest.is_closed, what="the server's answer to the ping after the reconnect")
        with pytest.raises(jsclient.IngestError) as caught:
            await ingest.publish(stream.subject("a"))
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (12, 8, True)
        assert await stored(stream) == numbered(1, 8)


async def test_offline_publish_waits(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=5) as ingest:
        await filled(ingest, stream, 3)
        await ingest.ping()
        tap.refuse()
        tap.cut()
        await eventually(lambda: not near.is_connected, what="the disconnect")
        publishing = asyncio.create_task(filled(ingest, stream, 40, first=4))
        await eventually(lambda: ingest.sent >= 5, what="messages that wait")
        await tap.accept()
        await within(10, publishing, "publishing over a reconnect")
    assert ingest.ack.count == 43
    assert await stored(stream) == numbered(1, 43)


async def test_connection_does_not_come_back_ends(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest(ack_every=5, timeout=0.3)
    await filled(ingest, stream, 7)
    await ingest.ping()
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of_more(ingest, stream)
    assert isinstance(caught.value.__cause__, jsclient.DisconnectedError)
    assert (caught.value.stored, caught.value.complete) == (5, False)
    await tap.accept()
    await eventually(lambda: near.is_connected, what="the reconnect")
    await near.ping()
    assert await stored(stream) == numbered(1, 7)


async def _all_of_more(ingest: Any, stream: OwnStream) -> None:
    await filled(ingest, stream, 100, first=8)


async def test_connection_lost_in_commit_made_good(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest()
    await filled(ingest, stream, 5)
    await ingest.ping()
    lost = tap.drop_frames(operation(6, 3), count=1)
    committing = asyncio.create_task(ingest.commit())
    await lost.wait()
    tap.cut()
    ack = await within(10, committing, "the commit over a reconnect")
    assert ack.count == 5


async def test_restart_forgets_ingest(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server()
    js = await connect(own)
    stream = await make_stream(oracle=await oracle_for(own), allow_batched=True, storage="file")
    ingest = js.fast_ingest(ack_every=10, gap="ok", timeout=20)
    await filled(ingest, stream, 25)
    await ingest.ping()
    await own.kill()
    await own.start()
    with pytest.raises(jsclient.IngestError) as caught:
        await within(30, _many(ingest, stream), "publishing over a restart")
    assert caught.value.__cause__.err_code == 10208
    assert (caught.value.stored, caught.value.complete) == (20, False)
    async with js.fast_ingest() as ingest:
        await filled(ingest, stream, 2)
    assert ingest.ack.count == 2


# --- cancelling and leaving --------------------------------------------------------------------------------


async def test_exception_in_block_keeps_sent(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async def work() -> None:
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    await tap.wait_for(operation(6, 3))
    await eventually(lambda: _is(stream, 5), what="five messages")


async def _is(stream: OwnStream, count: int) -> bool:
    return bool((await stream.state())["messages"] == count)


async def test_cancelled_publish_unsent(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=2) as ingest:
        await filled(ingest, stream, 1)
        held = tap.hold_frames(control("ack"))
        publishing = asyncio.create_task(filled(ingest, stream, 50, first=2))
        await held.wait()
        await eventually(lambda: ingest.sent == 4, what="a full window")
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert ingest.sent == 4
        held.release()
        await filled(ingest, stream, 6, first=5)
    assert ingest.ack.count == 10
    assert await stored(stream) == numbered(1, 10)


async def test_cancelled_start_loses_nothing(tap: Proxy, near: Any, stream: OwnStream) -> None:
    held = tap.hold_frames(control("ack"))
    ingest = near.fast_ingest()
    starting = asyncio.create_task(ingest.publish(stream.subject("a"), b"1"))
    await held.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    held.release()
    await filled(ingest, stream, 3, first=2)
    assert (await ingest.commit()).count == 4


async def test_cancelled_commit_repeatable(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest()
    await filled(ingest, stream, 3)
    held = tap.hold_frames(control("final"))
    committing = asyncio.create_task(ingest.commit())
    await held.wait()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    with pytest.raises(jsclient.ClosedError):
        await ingest.publish(stream.subject("a"))
    held.release()
    assert (await ingest.commit()).count == 3


async def test_cancelled_leaving_leaves_no_channel(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """It stayed subscribed, and was kept alive by a ping every 3 s."""
    held = tap.hold_frames(control("final"))

    async def ingest() -> None:
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 3)

    working = asyncio.create_task(ingest())
    await held.wait()
    assert near._context.open
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not near._context.open
    held.release()
    await eventually(lambda: _is(stream, 3), what="three messages")


async def test_closing_connection_ends(connect: Any, tap: Proxy, stream: OwnStream) -> None:
    js = await connect(tap)
    ingest = js.fast_ingest(ack_every=2)
    await filled(ingest, stream, 3)
    await js.close()
    with pytest.raises((jsclient.IngestError, jsclient.ClosedError)):
        await ingest.publish(stream.subject("a"))
    await eventually(lambda: _is(stream, 3), what="three messages")


async def _linger(js: Any, stream: OwnStream) -> None:
    async with js.fast_ingest() as ingest:
        await ingest.publish(stream.subject("a"), b"x")
        await asyncio.sleep(60)


async def test_nothing_stays_behind(
    near: Any, stream: OwnStream, make_stream: Any, oracle: Any, server: Any
) -> None:
    plain = await make_stream()
    await near.publish(plain.subject("a"))
    connection = near._connection
    listeners = len(connection._listeners), len(connection.denied), len(near._context.open)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 3)
        with pytest.raises(jsclient.BatchNotEnabledError):
            await near.fast_ingest().publish(plain.subject("a"))
        ingest = near.fast_ingest()
        await ingest.publish(stream.subject("a"), b"x")
        await ingest.publish(stream.subject("a"), b"x", expected_last_seq=999)
        with pytest.raises(jsclient.IngestError):
            await ingest.commit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_linger(near, stream), 0.05)
    assert (len(connection._listeners), len(connection.denied), len(near._context.open)) == listeners


# --- answers that make no sense ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [b"", b"nonsense", b"[]", b"{}", b'{"type":"ack"}', b'{"type":"ack","seq":-1,"msgs":1}', b'{"type":"x"}'],
)
async def test_channel_nonsense_ignored(
    tap: Proxy, near: Any, stream: OwnStream, events: list[Any], payload: bytes
) -> None:
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
        tap.inject_message(f"{tap.sent(stream.all)[0].reply}", payload)
        await eventually(lambda: of(jsclient.ErrorRaised, events), what="the event")
        await filled(ingest, stream, 3, first=4)
    assert ingest.ack.count == 6
    assert all(isinstance(event.error, jsclient.ProtocolError) for event in of(jsclient.ErrorRaised, events))


async def test_single_store_detected(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Behind a leaf node or another domain the stream's server may be older than the one connected to."""
    tap.modify_frames(
        control("ack"), lambda frame: frame.but(payload=b'{"stream":"OLD","seq":7}').raw, count=1
    )
    with pytest.raises(jsclient.IngestError) as caught:
        await near.fast_ingest().publish(stream.subject("a"))
    assert isinstance(caught.value.__cause__, jsclient.ProtocolError)
    assert (caught.value.sent, caught.value.stored) == (1, 1)
