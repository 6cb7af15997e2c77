"""The expectations of a publish: each is met, fails or is refused in these tests. Source: ADR-22, ADR-50.

Row 128 of the conformance suite: each expectation header, success and mismatch with its number, zero is a value.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network import match
from integration.kit.network.asking import api_requests, traffic
from integration.kit.network.proxy import Proxy


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


def block(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


async def three(js: Any, stream: OwnStream) -> None:
    """1: a, 2: b, 3: a. The last message has the id "last"."""
    await js.publish(stream.subject("a"))
    await js.publish(stream.subject("b"))
    await js.publish(stream.subject("a"), msg_id="last")


# (arguments that are met, arguments that are not, the error, its number, the header on the wire), {p} is the stream's
# prefix
EACH: list[Any] = [
    pytest.param(
        {"expected_stream": "{n}"}, {"expected_stream": "another"},
        jsclient.ApiError, 10060, "Nats-Expected-Stream: {n}",
        id="stream",
    ),
    pytest.param(
        {"expected_last_seq": 3}, {"expected_last_seq": 2},
        jsclient.WrongLastSequenceError, 10071, "Nats-Expected-Last-Sequence: 3",
        id="last-seq",
    ),
    pytest.param(
        {"expected_last_seq": 3}, {"expected_last_seq": 0},
        jsclient.WrongLastSequenceError, 10071, "Nats-Expected-Last-Sequence: 3",
        id="last-seq-not-0",
    ),
    pytest.param(
        {"expected_last_subject_seq": 3}, {"expected_last_subject_seq": 1},
        jsclient.WrongLastSequenceError, 10071, "Nats-Expected-Last-Subject-Sequence: 3",
        id="last-subject-seq",
    ),
    pytest.param(
        {"expected_last_subject_seq": 3}, {"expected_last_subject_seq": 0},
        jsclient.WrongLastSequenceError, 10071, "Nats-Expected-Last-Subject-Sequence: 3",
        id="last-subject-seq-not-0",
    ),
    pytest.param(
        {"expected_last_msg_id": "last"}, {"expected_last_msg_id": "first"},
        jsclient.ApiError, 10070, "Nats-Expected-Last-Msg-Id: last",
        id="last-msg-id",
    ),
    pytest.param(
        {"expected_last_subject_seq": 2, "expected_last_subject_seq_subject": "{p}.b"},
        {"expected_last_subject_seq": 3, "expected_last_subject_seq_subject": "{p}.b"},
        jsclient.WrongLastSequenceError, 10071,
        "Nats-Expected-Last-Subject-Sequence: 2\r\nNats-Expected-Last-Subject-Sequence-Subject: {p}.b",
        id="last-subject-seq-of-another",
        marks=pytest.mark.server(">=2.11"),
    ),
    pytest.param(
        {"expected_last_subject_seq": 3, "expected_last_subject_seq_subject": "{p}.>"},
        {"expected_last_subject_seq": 2, "expected_last_subject_seq_subject": "{p}.*"},
        jsclient.WrongLastSequenceError, 10071,
        "Nats-Expected-Last-Subject-Sequence: 3\r\nNats-Expected-Last-Subject-Sequence-Subject: {p}.>",
        id="last-subject-seq-of-many",
        marks=pytest.mark.server(">=2.11"),
    ),
    pytest.param(
        {"expected_last_subject_seq": 0, "expected_last_subject_seq_subject": "{p}.none.>"},
        {"expected_last_subject_seq": 0, "expected_last_subject_seq_subject": "{p}.b"},
        jsclient.WrongLastSequenceError, 10071,
        "Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Subject-Sequence-Subject: {p}.none.>",
        id="no-message-on-another",
        marks=pytest.mark.server(">=2.11"),
    ),
]  # fmt: skip


def filled(arguments: dict[str, Any], stream: OwnStream) -> dict[str, Any]:
    return {
        name: value.format(p=stream.prefix, n=stream.name) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


@pytest.mark.parametrize(("right", "wrong", "error", "number", "header"), EACH)
async def test_expectation_or_nothing(
    js: Any, stream: OwnStream, right: Any, wrong: Any, error: type[Exception], number: int, header: str
) -> None:
    """Row 128: success, and the class and number of a mismatch."""
    await three(js, stream)
    with pytest.raises(jsclient.ApiError) as caught:
        await js.publish(stream.subject("a"), b"no", **filled(wrong, stream))
    assert type(caught.value) is error
    assert (caught.value.code, caught.value.err_code) == (400, number)
    assert (await stream.state())["last_seq"] == 3
    ack = await js.publish(stream.subject("a"), b"yes", **filled(right, stream))
    assert (ack.stream, ack.seq, ack.duplicate) == (stream.name, 4, False)
    assert (await stream.messages())[3].headers == block(header.format(p=stream.prefix, n=stream.name))


@pytest.mark.parametrize("argument", ["expected_last_seq", "expected_last_subject_seq"])
async def test_zero_means_there_none_yet(js: Any, tap: Proxy, stream: OwnStream, argument: str) -> None:
    """Row 128: zero is a value. Clients that leave it out store the message."""
    assert (await js.publish(stream.subject("a"), **{argument: 0})).seq == 1
    with pytest.raises(jsclient.WrongLastSequenceError) as caught:
        await js.publish(stream.subject("a"), **{argument: 0})
    assert caught.value.err_code == 10071
    names = {
        "expected_last_seq": "Nats-Expected-Last-Sequence",
        "expected_last_subject_seq": "Nats-Expected-Last-Subject-Sequence",
    }
    assert [frame.headers for frame in tap.sent(stream.all)] == [block(f"{names[argument]}: 0")] * 2


async def test_several_expectations_hold_together(js: Any, stream: OwnStream) -> None:
    await three(js, stream)
    every = {
        "expected_stream": stream.name,
        "expected_last_seq": 3,
        "expected_last_subject_seq": 2,
        "expected_last_msg_id": "last",
    }
    for name, wrong in (("expected_last_seq", 2), ("expected_last_subject_seq", 3)):
        with pytest.raises(jsclient.WrongLastSequenceError):
            await js.publish(stream.subject("b"), msg_id="id", **{**every, name: wrong})
    assert (await js.publish(stream.subject("b"), msg_id="id", **every)).seq == 4


async def test_bad_expectation_refused(js: Any, tap: Proxy, stream: OwnStream) -> None:
    since = len(tap.frames)
    for arguments, error in (
        ({"expected_last_subject_seq_subject": "a"}, jsclient.ConfigError),
        (
            {"expected_last_subject_seq": 1, "expected_last_subject_seq_subject": "a..b"},
            jsclient.InvalidNameError,
        ),
        (
            {"expected_last_subject_seq": 1, "expected_last_subject_seq_subject": "a\r\nb"},
            jsclient.InvalidNameError,
        ),
        ({"expected_last_seq": 2**64}, jsclient.ConfigError),
        ({"expected_last_subject_seq": True}, jsclient.ConfigError),
        ({"expected_last_msg_id": ""}, jsclient.ConfigError),
        ({"expected_stream": ""}, jsclient.ConfigError),
        ({"rollup": "SUB"}, jsclient.ConfigError),
        ({"rollup": True}, jsclient.ConfigError),
        ({"rollup": "sub", "headers": {"Nats-Rollup": "all"}}, jsclient.ConfigError),
    ):
        with pytest.raises(error):
            await js.publish(stream.subject("a"), **arguments)
    await js.ping()
    assert traffic(tap, since) == []


@pytest.mark.server("<2.11")
async def test_overlooked_one_refused(js: Any, tap: Proxy, stream: OwnStream) -> None:
    since = len(tap.frames)
    with pytest.raises(jsclient.ConfigError, match=r"2\.11"):
        await js.publish(
            stream.subject("a"), expected_last_subject_seq=1, expected_last_subject_seq_subject=stream.all
        )
    await js.ping()
    assert traffic(tap, since) == []


# An answer that was lost


@pytest.mark.parametrize(
    "expectation",
    [
        {"expected_last_seq": 3},
        {"expected_last_subject_seq": 3},
        {"expected_last_msg_id": "last"},
        pytest.param(
            {"expected_last_subject_seq": 3, "expected_last_subject_seq_subject": "{p}.>"},
            marks=pytest.mark.server(">=2.11"),
        ),
        pytest.param(
            {"expected_last_subject_seq": 2, "expected_last_subject_seq_subject": "{p}.b"},
            marks=pytest.mark.server(">=2.11"),
        ),
    ],
)
async def test_stored_despite_expectation(
    js: Any, tap: Proxy, stream: OwnStream, expectation: dict[str, Any]
) -> None:
    """A server that judges expectations before ids refuses the second try of a message that it stored at the first."""
    await three(js, stream)
    lost = tap.cut_inside_frame(predicate=match.is_publish_ack)
    publishing = js.publish(
        stream.subject("a"), b"once", msg_id="mine", timeout=15, **filled(expectation, stream)
    )
    ack = await within(20, publishing, "the publish")
    assert lost.count == 1
    assert (ack.stream, ack.seq, ack.duplicate) == (stream.name, 4, True)
    assert (await stream.state())["last_seq"] == 4


@pytest.mark.parametrize(
    "expectation",
    [{"expected_last_seq": 3}, {"expected_last_subject_seq": 3}, {"expected_last_msg_id": "last"}],
)
async def test_lost_answer_then_refused(
    js: Any, tap: Proxy, stream: OwnStream, expectation: dict[str, Any]
) -> None:
    """The first try was refused, its answer lost: the second one must not be taken for stored."""
    await three(js, stream)
    await stream.oracle.publish_many(stream.subject("a"), 1)  # someone was faster
    lost = tap.cut_inside_frame(predicate=match.is_publish_ack)
    publishing = js.publish(stream.subject("a"), b"never", msg_id="mine", timeout=15, **expectation)
    with pytest.raises(jsclient.ApiError) as caught:
        await within(20, publishing, "the publish")
    assert lost.count == 1
    assert caught.value.err_code in (10070, 10071)
    assert (await stream.state())["last_seq"] == 4


async def test_message_pushed_out_already_stored(
    js: Any, tap: Proxy, oracle: Oracle, make_stream: Any
) -> None:
    """Stored, answer lost, and replaced by someone else's before the second try: the server knows its id."""
    stream = await make_stream(max_msgs_per_subject=1)
    await three(js, stream)
    again = tap.hold_frames(lambda frame: frame.connection == 1 and frame.subject == stream.subject("a"))
    lost = tap.cut_inside_frame(predicate=match.is_publish_ack)
    publishing = asyncio.create_task(
        js.publish(stream.subject("a"), b"once", msg_id="mine", timeout=15, expected_last_subject_seq=3)
    )
    await lost.wait()
    await oracle.publish_many(stream.subject("a"), 1)
    again.release()
    ack = await within(20, publishing, "the publish")
    assert (ack.seq, ack.duplicate) == (4, True)
    assert [m.seq for m in await stream.messages()] == [2, 5]


async def test_cannot_be_found_out_in_time_unknown(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """The second try is refused, and no answer shows whether the first attempt was stored."""
    await three(js, stream)
    tap.drop_frames(lambda frame: match.is_publish_ack(frame) and b"10071" not in frame.payload)
    publishing = js.publish(stream.subject("a"), b"once", msg_id="mine", timeout=3, expected_last_seq=3)
    with pytest.raises(jsclient.RequestTimeoutError):
        await within(30, publishing, "the publish")
    assert (await stream.state())["last_seq"] == 4


async def test_lost_answer_no_responders(js: Any, tap: Proxy, stream: OwnStream, oracle: Oracle) -> None:
    again = tap.hold_frames(lambda frame: frame.connection == 1 and frame.subject == stream.subject("a"))
    lost = tap.cut_inside_frame(predicate=match.is_publish_ack)
    publishing = asyncio.create_task(js.publish(stream.subject("a"), b"once", msg_id="mine", timeout=3))
    await lost.wait()
    await oracle.delete_stream(stream.name)
    again.release()
    with pytest.raises(jsclient.RequestTimeoutError, match="unknown"):
        await within(30, publishing, "the publish")


async def test_nothing_asked_without_lost_answer(js: Any, tap: Proxy, stream: OwnStream) -> None:
    await three(js, stream)
    with pytest.raises(jsclient.WrongLastSequenceError):
        await js.publish(stream.subject("a"), msg_id="mine", expected_last_seq=1)
    assert api_requests(tap) == []
    assert len(tap.sent(stream.subject("a"))) == 3


# Rollup


@pytest.mark.parametrize(("rollup", "remaining"), [("sub", [2, 4]), ("all", [4])])
async def test_rollup_replaces_there(
    js: Any, oracle: Oracle, make_stream: Any, rollup: str, remaining: list[int]
) -> None:
    stream = await make_stream(allow_rollup_hdrs=True)
    await three(js, stream)
    await js.publish(stream.subject("a"), b"all there is", rollup=rollup)
    messages = await stream.messages()
    assert [m.seq for m in messages] == remaining
    assert messages[-1].headers == block(f"Nats-Rollup: {rollup}")


async def test_forbidden_rollup_refused(js: Any, stream: OwnStream) -> None:
    await three(js, stream)
    with pytest.raises(jsclient.ApiError) as caught:
        await js.publish(stream.subject("a"), rollup="sub")
    assert caught.value.err_code == 10111
    assert (await stream.state())["messages"] == 3
