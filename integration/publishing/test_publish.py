"""Publishing: what is stored, refused or unknown, and what never reaches the wire. Source: ADR-22."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import flushed
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


def block(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


async def test_publish_stored_and_ack_says_where(js: Any, stream: OwnStream) -> None:
    for number, payload in enumerate((b"", b"one", bytearray(b"two"), memoryview(b"three")), start=1):
        ack = await js.publish(stream.subject("a"), payload)
        assert (ack.stream, ack.seq, ack.duplicate) == (stream.name, number, False)
    assert [(m.subject, m.payload, m.headers) for m in await stream.messages()] == [
        (stream.subject("a"), payload, b"") for payload in (b"", b"one", b"two", b"three")
    ]


async def test_headers_come_back_as_they_given(js: Any, stream: OwnStream) -> None:
    headers = {
        "One": "a: b; c",
        "Many": ["1", "2", "3"],
        "Empty": "",
        "Text": "grüße",
        "Case": "x",
        "case": "y",
    }
    await js.publish(stream.subject("a"), b"x", headers=headers)
    (stored,) = await stream.messages()
    assert stored.headers == block(
        "One: a: b; c", "Many: 1", "Many: 2", "Many: 3", "Empty: ", "Text: grüße", "Case: x", "case: y"
    )
    sub = await js.subscribe(stream.all)
    (pushed,) = await take(sub, 1)
    got = await (await js.stream(stream.name)).get_message(1)
    for actual in (pushed.headers, got.headers):
        assert actual == {
            name: value if isinstance(value, str) else value[0] for name, value in headers.items()
        }
        assert actual.get_all("Many") == ["1", "2", "3"]
    # A message can be published again as it was read.
    await js.publish(stream.subject("b"), pushed.data, headers=pushed.headers)
    assert (await stream.messages())[1].headers == stored.headers


async def test_header_lists_on_nats_py(natspy_js: Any, stream: OwnStream) -> None:
    await natspy_js.publish(stream.subject("a"), b"x", headers={"One": "1", "Many": ["1", "2"]})
    (stored,) = await stream.messages()
    assert stored.headers == block("One: 1", "Many: 1", "Many: 2")


async def test_callers_headers_not_changed(js: Any, stream: OwnStream) -> None:
    """P30: nats-py writes expectations and TTL into the caller's dict, so the next publish has them too."""
    headers = {"Mine": "1"}
    await js.publish(stream.subject("a"), headers=headers, expected_stream=stream.name, msg_id="first")
    assert headers == {"Mine": "1"}
    await js.publish(stream.subject("a"), headers=headers)
    assert (await stream.messages())[1].headers == block("Mine: 1")


@pytest.mark.smoke
async def test_a_message_id_is_stored_once(js: Any, stream: OwnStream) -> None:
    first = await js.publish(stream.subject("a"), b"1", msg_id="id-1")
    again = await js.publish(stream.subject("a"), b"2", msg_id="id-1")
    other = await js.publish(stream.subject("a"), b"3", msg_id="id-2")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (first.seq, again.seq, other.seq) == (1, 1, 2)
    assert [m.payload for m in await stream.messages()] == [b"1", b"3"]


async def test_id_retried_stored_once(js: Any, tap: Proxy, stream: OwnStream) -> None:
    dropped = tap.drop_frames(match.is_publish_ack, count=1)
    ack = await within(20, js.publish(stream.subject("a"), b"1", msg_id="id", timeout=15), "the publish")
    assert dropped.count == 1
    assert (ack.seq, ack.duplicate) == (1, True)
    assert len(tap.sent(stream.all)) == 2
    assert (await stream.state())["messages"] == 1


async def test_no_id_lost_answer_unknown(js: Any, tap: Proxy, stream: OwnStream) -> None:
    dropped = tap.drop_frames(match.is_publish_ack)
    with pytest.raises(jsclient.RequestTimeoutError):
        await js.publish(stream.subject("a"), b"1", timeout=0.4)
    await dropped.wait()
    assert len(tap.sent(stream.all)) == 1
    assert (await stream.state())["messages"] == 1


# The configuration of the stream: (arguments that are met, arguments that are not, the error)
EXPECTATIONS: list[Any] = [
    ("expected_last_seq", 2, 0, jsclient.WrongLastSequenceError),
    ("expected_last_seq", 2, 1, jsclient.WrongLastSequenceError),
    ("expected_last_subject_seq", 1, 0, jsclient.WrongLastSequenceError),
    ("expected_last_subject_seq", 1, 2, jsclient.WrongLastSequenceError),
    ("expected_last_msg_id", "second", "first", jsclient.ApiError),
    ("expected_stream", None, "another", jsclient.ApiError),
]


@pytest.mark.parametrize(("argument", "right", "wrong", "error"), EXPECTATIONS)
async def test_expectation_holds_or_nothing_stored(
    js: Any, stream: OwnStream, argument: str, right: Any, wrong: Any, error: type[Exception]
) -> None:
    await js.publish(stream.subject("a"), msg_id="first")
    await js.publish(stream.subject("b"), msg_id="second")
    with pytest.raises(error) as caught:
        await js.publish(stream.subject("a"), **{argument: wrong})
    assert caught.value.err_code in (10060, 10070, 10071)  # type: ignore[attr-defined]
    assert (await stream.state())["last_seq"] == 2
    ack = await js.publish(stream.subject("a"), **{argument: stream.name if right is None else right})
    assert ack.seq == 3


@pytest.mark.parametrize("argument", ["expected_last_seq", "expected_last_subject_seq"])
async def test_zero_is_an_expectation(js: Any, tap: Proxy, stream: OwnStream, argument: str) -> None:
    assert (await js.publish(stream.subject("a"), **{argument: 0})).seq == 1
    with pytest.raises(jsclient.WrongLastSequenceError):
        await js.publish(stream.subject("a"), **{argument: 0})
    if argument == "expected_last_subject_seq":
        assert (await js.publish(stream.subject("b"), **{argument: 0})).seq == 2


@pytest.mark.server(">=2.11")
async def test_time_to_live_kept_by_server(js: Any, tap: Proxy, oracle: Oracle, make_stream: Any) -> None:
    stream = await make_stream(allow_msg_ttl=True)
    await js.publish(stream.subject("a"), b"long", ttl=100)
    await js.publish(stream.subject("a"), b"short", ttl=1)
    await js.publish(stream.subject("a"), b"rounded up", ttl=1.2)
    assert [frame.headers for frame in tap.sent(stream.all)] == [
        block(f"Nats-TTL: {seconds}") for seconds in (100, 1, 2)
    ]

    async def one_remains() -> bool:
        return (await stream.state())["messages"] == 1

    await eventually(one_remains, 60, "the end of the short ones")
    (long,) = await stream.messages()
    assert (long.payload, long.headers) == (b"long", block("Nats-TTL: 100"))


@pytest.mark.server(">=2.11")
async def test_forbidden_ttl_refused(js: Any, stream: OwnStream) -> None:
    with pytest.raises(jsclient.ApiError) as caught:
        await js.publish(stream.subject("a"), ttl=5)
    assert caught.value.err_code == 10166
    assert (await stream.state())["messages"] == 0


REFUSED: list[Any] = [
    ({"subject": subject}, jsclient.InvalidNameError)
    for subject in ("", ".", "a.", ".a", "a..b", "a b", "a\tb", "a.*", "a.>", "a\r\nPUB x 0\r\n", "a\x00", "\ud800", 7)
] + [
    ({"subject": "a", "headers": {name: "v"}}, jsclient.InvalidNameError)
    for name in ("", "a b", "a:b", "a\r\nb", "ä", "a\x00")
] + [
    ({"subject": "a", "headers": {"Name": value}}, jsclient.InvalidNameError)
    for value in ("a\r\nInjected: 1", "a\nb", "a\rb", "a\x00b", 7, b"bytes", None, "\ud800", ["ok", "a\r\nb"])
] + [
    ({"subject": "a", "data": "text"}, jsclient.ConfigError),
    ({"subject": "a", "data": None}, jsclient.ConfigError),
    ({"subject": "a", "msg_id": ""}, jsclient.ConfigError),
    ({"subject": "a", "msg_id": "a\r\nb"}, jsclient.ConfigError),
    ({"subject": "a", "expected_stream": "no.stream"}, jsclient.ConfigError),
    ({"subject": "a", "expected_last_seq": -1}, jsclient.ConfigError),
    ({"subject": "a", "expected_last_subject_seq": "1"}, jsclient.ConfigError),
    ({"subject": "a", "ttl": 0.5}, jsclient.ConfigError),
    *(({"subject": "a", "timeout": bad}, jsclient.ConfigError) for bad in (0, -1, float("nan"), True, "1")),
    ({"subject": "a", "headers": [("a", "b")]}, jsclient.ConfigError),
    ({"subject": "a", "headers": "a: b"}, jsclient.ConfigError),
    ({"subject": "a", "headers": {"Nats-Msg-Id": "a"}, "msg_id": "b"}, jsclient.ConfigError),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error"), REFUSED)
async def test_may_not_go_on_wire_refused_before(
    js: Any, tap: Proxy, arguments: dict[str, Any], error: type[Exception]
) -> None:
    since = len(tap.frames)
    with pytest.raises(error):
        await js.publish(**arguments)
    await js.ping()
    assert traffic(tap, since) == []


@pytest.mark.parametrize("with_headers", [False, True])
async def test_max_payload_refused(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, with_headers: bool
) -> None:
    own = await own_server(config={"max_payload": 3000})
    stream = await make_stream(oracle=await oracle_for(own))
    tap = await proxy(own)
    js = await connect(tap)
    headers = {"Name": "value"} if with_headers else None
    size_limit = 3000 - (len(block("Name: value")) if with_headers else 0)
    since = len(tap.frames)
    with pytest.raises(jsclient.MaxPayloadError) as caught:
        await js.publish(stream.subject("a"), bytes(size_limit + 1), headers=headers)
    assert (caught.value.size, caught.value.limit) == (3001, 3000)
    await js.ping()
    assert traffic(tap, since) == []
    assert (await js.publish(stream.subject("a"), bytes(size_limit), headers=headers)).seq == 1


async def test_no_stream_told_after_three_tries(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """ADR-22: twice more, 250 ms apart."""
    subject = f"{stream.prefix}x.none"
    started = time.monotonic()
    with pytest.raises(jsclient.NoRespondersError, match=subject):
        await within(30, js.publish(subject, b"x"), "the publish")
    assert time.monotonic() - started > 0.49  # timers of uvloop count milliseconds
    assert len(tap.sent(subject)) == 3


async def test_stream_deleted_while_somebody_listens(
    js: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain subscription hides that no stream takes the message, as of a reader of a topic without a consumer."""
    monkeypatch.setattr("jsclient._runtime.refusals._SHORT_TIMEOUT", 30.0)  # a busy machine answers later
    subject = stream.subject("a")
    listening = await stream.oracle.nc.subscribe(subject)
    await js.publish(subject, b"1")
    await stream.delete()
    with pytest.raises(
        jsclient.RequestTimeoutError, match=r"no stream has the subject .* another client"
    ) as caught:
        await js.publish(subject, b"2", timeout=0.5)
    assert subject in caught.value.why
    await listening.unsubscribe()


async def test_answer_that_is_lost_says_nothing_about_the_stream(
    proxy: Any, connect: Any, stream: OwnStream
) -> None:
    tap = await proxy()
    js = await connect(tap)
    tap.drop_frames(lambda frame: b'"seq":' in frame.payload)
    with pytest.raises(jsclient.RequestTimeoutError) as caught:
        await js.publish(stream.subject("a"), b"1", timeout=0.5)
    assert caught.value.why == ""


async def test_stream_being_created(js: Any, tap: Proxy, stream: OwnStream, oracle: Oracle) -> None:
    """P32: nats-py fails at once."""
    subject = f"{stream.prefix}x.soon"
    first_try = asyncio.create_task(tap.wait_for(match.with_status("503")))
    publishing = asyncio.create_task(js.publish(subject, b"x", timeout=60))
    await first_try
    again = tap.hold_frames(match.published(subject))  # the second attempt, 250 ms later
    await oracle.update_stream(stream.name, subjects=[stream.all, f"{stream.prefix}x.>"])
    again.release()
    ack = await within(60, publishing, "the publish")
    assert (ack.stream, ack.seq) == (stream.name, 1)
    assert len(tap.sent(subject)) == 2


async def test_reply_no_ack_error(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    async def answer(message: Any) -> None:
        await message.respond(b"thank you")

    await oracle.nc.subscribe(f"{stream.prefix}x.service", cb=answer)
    await flushed(oracle.nc)
    with pytest.raises(jsclient.ProtocolError):
        await js.publish(f"{stream.prefix}x.service")


@pytest.mark.parametrize(
    "ack", ['"S","seq":0', '"S","seq":-1', '"S","seq":18446744073709551616', '"","seq":3']
)
async def test_ack_without_place(js: Any, oracle: Oracle, stream: OwnStream, ack: str) -> None:
    """A stream confirms a message with its own name and a sequence. Anything else confirms nothing."""

    async def answer(message: Any) -> None:
        await message.respond(f'{{"stream":{ack}}}'.encode())

    await oracle.nc.subscribe(f"{stream.prefix}x.service", cb=answer)
    await flushed(oracle.nc)
    with pytest.raises(jsclient.ProtocolError, match=r"was acknowledged by stream|64 bits"):
        await js.publish(f"{stream.prefix}x.service")
    async with js.publisher() as pub:
        with pytest.raises(jsclient.ProtocolError):
            await (await pub.publish(f"{stream.prefix}x.service"))


async def scripted(oracle: Oracle, subject: str, *answers: tuple[float, bytes]) -> list[bytes]:
    """In place of a stream: answer publishes after this many seconds, or never (b""). Returns the list of publishes."""
    got: list[bytes] = []
    answering: set[asyncio.Task[None]] = set()

    async def answer(message: Any) -> None:
        after, data = answers[min(len(got), len(answers) - 1)]
        got.append(message.data)

        async def later() -> None:
            await asyncio.sleep(after)
            if data:
                await message.respond(data)

        task = asyncio.create_task(later())
        answering.add(task)
        task.add_done_callback(answering.discard)

    await oracle.nc.subscribe(subject, cb=answer)
    await flushed(oracle.nc)
    return got


STORED = b'{"stream":"S","seq":7,"duplicate":true}'


async def test_slow_answer_with_id(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """After each attempt without an answer, the next attempt waits longer."""
    got = await scripted(oracle, f"{stream.prefix}x.slow", (2.5, STORED))
    ack = await within(30, js.publish(f"{stream.prefix}x.slow", b"x", msg_id="1", timeout=20), "the publish")
    assert (ack.seq, len(got)) == (7, 2)


async def test_in_process_is_not_stored(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """Before 2.11 that was a duplicate without a sequence."""
    to = f"{stream.prefix}x.busy"
    got = await scripted(oracle, to, (0, b'{"stream":"S","seq":0,"duplicate":true}'), (0, STORED))
    ack = await within(30, js.publish(to, b"x", msg_id="1"), "the publish")
    assert (ack.seq, len(got)) == (7, 2)


async def test_in_process_without_id(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """Only a message with an id can be a duplicate: the answer is final, whatever would follow."""
    to = f"{stream.prefix}x.odd"
    busy = b'{"error":{"code":400,"err_code":10158,"description":"duplicate message id is in process"}}'
    full = b'{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}'
    got = await scripted(oracle, to, (0, busy), (0, full))
    with pytest.raises(jsclient.ApiError, match="in process"):
        await within(30, js.publish(to, b"x"), "the publish")
    assert len(got) == 1
    got = await scripted(oracle, f"{to}2", (0, busy), (0, full))
    async with js.publisher() as publisher:
        with pytest.raises(jsclient.ApiError, match="in process"):
            await within(30, await publisher.publish(f"{to}2", b"x", headers={"A": "b"}), "the ack")
    assert len(got) == 1


async def test_late_limit_inconclusive(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """Limits are judged before ids: it asks, and hears that the first try was stored."""
    to = f"{stream.prefix}x.full"
    full = b'{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}'
    got = await scripted(oracle, to, (0, b""), (0, full), (0, STORED))
    ack = await within(30, js.publish(to, b"x", msg_id="1", timeout=20), "the publish")
    assert (ack.seq, got) == (7, [b"x", b"x", b""])
