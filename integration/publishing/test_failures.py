"""The errors of a publisher for publishes that fail, and for publishes that it may not send."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.calls.publisher import results
from integration.kit.clients.foreign import flushed
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import (
    ApiError,
    NoRespondersError,
    PermissionDeniedError,
    PublishesFailedError,
    PublishFailed,
    RequestTimeoutError,
    WrongLastSequenceError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.row(129)
async def test_unseen_failures_raised(js: Any, oracle: Oracle, make_stream: Any, events: list[Any]) -> None:
    """Row 129. R2: nats-py never answers 50 of 50."""
    stream = await make_stream(max_msgs=5, discard="new")
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            futures = [await pub.publish(stream.subject(n), b"%d" % n) for n in range(50)]
            with pytest.raises(ApiError) as seen:
                await futures[5]
            assert isinstance(futures[6].exception() if futures[6].done() else seen.value, ApiError)
    assert seen.value.err_code == 10077
    assert [future.result().seq for future in futures[:5]] == [1, 2, 3, 4, 5]
    failures = caught.value.failures
    assert {type(error) for _, error in failures} == {ApiError}
    assert [subject for subject, _ in failures][-40:] == [stream.subject(n) for n in range(10, 50)]
    assert stream.subject(5) not in {subject for subject, _ in failures}
    assert caught.value.told == 0
    assert (pub.stored, pub.failed) == (5, 45)
    assert of(PublishFailed, events) == []
    assert isinstance(caught.value.__cause__, ApiError)


async def test_seen_failures_not_raised(js: Any, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        awaited = await pub.publish(stream.subject("a"), expected_last_seq=7)
        gathered = await pub.publish(stream.subject("b"), expected_last_subject_seq=7)
        called = await pub.publish(stream.subject("c"), expected_stream="another")
        numbers: list[int] = []
        called.add_done_callback(lambda future: numbers.append(future.exception().err_code))
        requests = await pub.publish(stream.subject("d"), expected_last_msg_id="another")
        with pytest.raises(WrongLastSequenceError):
            await awaited
        [error] = await asyncio.gather(gathered, return_exceptions=True)
        assert isinstance(error, WrongLastSequenceError)
        await asyncio.wait([requests])
        assert requests.exception().err_code == 10070
    assert numbers == [10060]
    assert pub.failed == 4


async def test_flush_raises_failures_once(js: Any, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        await pub.publish(stream.subject("a"), expected_last_seq=7)
        await pub.publish(stream.subject("a"), b"good")
        with pytest.raises(PublishesFailedError) as caught:
            await pub.flush()
        [(subject, error)] = caught.value.failures
        assert (subject, type(error)) == (stream.subject("a"), WrongLastSequenceError)
        await pub.flush()


async def test_failure_behind_error_of_block_reported(js: Any, stream: OwnStream, events: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            for _ in range(3):
                await pub.publish(stream.subject("a"), expected_last_seq=7)
            raise ZeroDivisionError
    [note] = caught.value.__notes__
    assert note.startswith(
        f"3 other publishes failed, or their outcome is unknown, the first: {stream.subject('a')!r}: "
    )
    assert "wrong last sequence" in note
    event = await wait_for_event(PublishFailed, events)
    assert (event.subject, type(event.error), event.count) == (stream.subject("a"), WrongLastSequenceError, 3)
    assert pub.is_closed


async def test_error_of_block_without_failures_has_no_note(js: Any, stream: OwnStream) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            await pub.publish(stream.subject("a"))
            seen = await pub.publish(stream.subject("a"), expected_last_seq=7)
            await asyncio.wait([seen])
            assert isinstance(seen.exception(), WrongLastSequenceError)
            raise ZeroDivisionError
    assert not hasattr(caught.value, "__notes__")


async def test_outage_longer_than_timeout_names_lost_ones(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """The publish that finds no connection raises. Those in flight, whose outcome is unknown, are in its note."""
    with pytest.raises(RequestTimeoutError, match="not connected") as caught:  # noqa: PT012
        async with js.publisher(timeout=0.5) as pub:
            await (await pub.publish(stream.subject("a"), b"0", timeout=30))
            tap.drop_frames(match.is_publish_ack)
            for number in range(3):
                await pub.publish(stream.subject("a"), b"%d" % number, msg_id=f"id-{number}")
            tap.refuse()
            tap.cut()
            await eventually(lambda: not js.is_connected, what="the outage")
            await within(30, pub.publish(stream.subject("b"), b"late"), "the publish without a connection")
    [note] = caught.value.__notes__
    assert note.startswith(
        f"3 other publishes failed, or their outcome is unknown, the first: {stream.subject('a')!r}: "
    )
    assert pub.published == 4


async def test_failures_identify_their_messages(js: Any, stream: OwnStream) -> None:
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            await pub.publish(stream.subject("a"), msg_id="first")
            await pub.publish(stream.subject("a"), msg_id="second", expected_last_seq=7)
            await pub.publish(stream.subject("b"), headers={"Nats-Msg-Id": "third"}, expected_last_seq=7)
            await pub.publish(stream.subject("c"), headers={"Other": "1"}, expected_last_seq=7)
            await pub.publish("nowhere")
            assert pub.published == 5
    failures = caught.value.failures
    assert [(one.number, one.msg_id) for one in failures] == [
        (2, "second"),
        (3, "third"),
        (4, None),
        (5, None),
    ]
    assert [one.subject for one in failures] == [*map(stream.subject, "abc"), "nowhere"]
    assert [(subject, error) for subject, error in failures] == [(one.subject, one.error) for one in failures]


@pytest.mark.row(129)
async def test_unanswered_frees_place(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 129: AckTimeout."""
    tap.drop_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=2, timeout=0.3) as pub:
        short = await pub.publish(stream.subject("x"), b"1")
        long = await pub.publish(stream.subject("x"), b"2", timeout=4.0)
        started = time.monotonic()
        third = await within(30, pub.publish(stream.subject("x"), b"3"), "a place")
        assert time.monotonic() - started > 0.25
        assert short.done()
        assert not long.done()
        assert [type(error) for error in await results([short, long, third])] == [RequestTimeoutError] * 3
    assert len(tap.sent(stream.all)) == 3
    assert (await stream.state())["messages"] == 3


async def test_lost_answer_with_id_once(js: Any, tap: Proxy, stream: OwnStream) -> None:
    dropped = tap.drop_frames(match.is_publish_ack, count=3)
    async with js.publisher(timeout=60) as pub:
        futures = [await pub.publish(stream.subject("x"), b"%d" % n, msg_id=f"id-{n}") for n in range(5)]
        acks = await results(futures)
    assert dropped.count == 3
    assert sorted(ack.seq for ack in acks) == [1, 2, 3, 4, 5]
    assert sum(ack.duplicate for ack in acks) == 3
    assert (pub.resent, pub.stored) == (3, 5)
    assert (await stream.state())["messages"] == 5
    lost = [frame.reply for frame in tap.sent(stream.all)][5:]
    assert len(lost) == 3
    assert all((reply or "").endswith("-2") for reply in lost)


async def test_no_resend_is_unknown(js: Any, tap: Proxy, stream: OwnStream) -> None:
    tap.drop_frames(match.is_publish_ack)
    async with js.publisher(timeout=2.5, resend=False) as pub:
        with pytest.raises(RequestTimeoutError):
            await (await pub.publish(stream.subject("x"), b"1", msg_id="id"))
    assert len(tap.sent(stream.all)) == 1


async def test_second_try_finds_stored(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Servers judge sequences before ids: the message itself is what its repetition does not expect."""
    tap.drop_frames(match.is_publish_ack, count=1)
    async with js.publisher(timeout=60) as pub:
        future = await pub.publish(stream.subject("x"), b"1", msg_id="id", expected_last_subject_seq=0)
        ack = await within(60, future, "the publish")
    assert (ack.seq, ack.duplicate) == (1, True)
    assert [message.payload for message in await stream.messages()] == [b"1"]


async def test_late_refusal_of_old_try(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Two tries are on the wire. The error of the first message must not apply to the second, which may be stored."""
    refusal = b'{"error":{"code":503,"err_code":10077,"description":"full"}}'
    dropped = tap.drop_frames(match.is_publish_ack, count=1)
    hold = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(timeout=60) as pub:
        future = await pub.publish(stream.subject("x"), b"1", msg_id="id")
        await dropped.wait(1)
        await hold.wait(1)
        tap.inject_message(tap.sent(stream.all)[0].reply or "", refusal)
        await js.ping()
        assert not future.done()
        hold.release()
        assert (await within(30, future, "the publish")).duplicate


@pytest.mark.row(129)
async def test_no_stream_told_after_three_tries(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """ADR-22: 250 ms apart. Row 129: Retry. Others are not held up."""
    subject = f"{stream.prefix}x.none"
    started = time.monotonic()
    async with js.publisher() as pub:
        futures = [await pub.publish(subject, b"%d" % n) for n in range(100)]
        good = await pub.publish(stream.subject("x"))
        await good
        assert not any(future.done() for future in futures)
        outcomes = await results(futures)
    assert {type(error) for error in outcomes} == {NoRespondersError}
    assert subject in str(outcomes[0])
    assert time.monotonic() - started > 0.49  # timers of uvloop count milliseconds
    sent = [int(frame.payload) for frame in tap.sent(subject)]
    assert sent == [*range(100), *range(100), *range(100)]


@pytest.mark.row(129)
async def test_stream_appears_meanwhile(js: Any, tap: Proxy, stream: OwnStream, oracle: Oracle) -> None:
    """Row 129: Retry."""
    subject = f"{stream.prefix}x.soon"
    async with js.publisher(timeout=60) as pub:
        futures = [await pub.publish(subject, b"%d" % n) for n in range(10)]
        await tap.wait_for(match.with_status("503"))
        again = tap.hold_frames(match.published(subject))  # the second attempts, 250 ms later
        await oracle.update_stream(stream.name, subjects=[stream.all, f"{stream.prefix}x.>"])
        again.release()
        acks = await results(futures)
    assert [ack.seq for ack in acks] == list(range(1, 11))


async def test_answer_none_error(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    async def answer(message: Any) -> None:
        await message.respond(b"thank you")

    await oracle.nc.subscribe(f"{stream.prefix}x.service", cb=answer)
    await flushed(oracle.nc)
    async with js.publisher() as pub:
        with pytest.raises(jsclient.ProtocolError):
            await (await pub.publish(f"{stream.prefix}x.service"))


# --- rights ----------------------------------------------------------------------------------------------


async def denied(own_server: Any, oracle_for: Any, **rights: Any) -> Any:
    own = await own_server(
        config={
            "authorization": {
                "users": [
                    {"user": "judge", "password": "x"},
                    {"user": "ann", "password": "x", "permissions": rights},
                ]
            }
        }
    )
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    return own, await OwnStream.create(oracle, "denied")


async def test_denied_subject(own_server: Any, oracle_for: Any, connect: Any) -> None:
    """X3: by name and at once. The others go through."""
    own, stream = await denied(own_server, oracle_for, publish={"deny": ["*.secret.>"]})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    started = time.monotonic()
    async with js.publisher(timeout=90) as pub:
        good = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(50)]
        bad = [await pub.publish(stream.subject("secret", n % 2), msg_id=f"{n}") for n in range(100)]
        outcomes = await results(bad)
        await results(good)
    assert time.monotonic() - started < 40, "before the timeout of a publish"
    assert {type(error) for error in outcomes} == {PermissionDeniedError}
    assert [error.subject for error in outcomes] == [stream.subject("secret", n % 2) for n in range(100)]
    assert (await stream.state())["messages"] == 50


async def test_inbox_this_user_may_not_have(own_server: Any, oracle_for: Any, connect: Any) -> None:
    own, stream = await denied(own_server, oracle_for, subscribe={"deny": ["_INBOX.>"]})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    async with js.publisher(timeout=90) as pub:
        for _ in range(2):
            with pytest.raises(PermissionDeniedError) as caught:
                await within(30, await pub.publish(stream.subject("x")), "the publish")
            assert caught.value.operation == "subscribe"

    async def both() -> bool:
        return (await stream.state())["messages"] == 2

    # The answer cannot be heard, but the messages are stored.
    await eventually(both, what="the messages")
