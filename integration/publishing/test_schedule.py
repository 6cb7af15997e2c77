"""Scheduled messages: how they look on the wire, that they come, how they end. Source: ADR-51.

Row 133 of the conformance suite: header encoding and real delivery. A missing target is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle, Stored
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy

FIRST = pytest.mark.server(">=2.12")
COMPLETE = pytest.mark.server(">=2.14")

Scheduled = Callable[..., Awaitable[OwnStream]]


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


@pytest.fixture
async def planned(oracle: Oracle, make_stream: Any) -> OwnStream:
    """A stream that allows schedules and times to live."""
    stream: OwnStream = await make_stream(allow_msg_schedules=True, allow_msg_ttl=True)
    return stream


def soon(seconds: float = 1.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def later() -> datetime:
    return soon(3600)


async def on(stream: OwnStream, *tokens: str) -> list[Stored]:
    subject = stream.subject(*tokens)
    return [message for message in await stream.messages() if message.subject == subject]


async def arrived(stream: OwnStream, *tokens: str, count: int = 1, timeout: float = 20) -> list[Stored]:
    """The messages of a subject, once there are this many."""

    async def stored_messages() -> list[Stored] | None:
        actual = await on(stream, *tokens)
        return actual if len(actual) >= count else None

    results: list[Stored] = await eventually(
        stored_messages, timeout, f"{count} messages on {tokens}", interval=0.1
    )
    return results


def headers(message: Stored) -> dict[str, str]:
    lines = message.headers.decode().split("\r\n")[1:-2]
    return dict(line.split(": ", 1) for line in lines)


# On the wire


@FIRST
async def test_a_time_on_the_wire(js: Any, tap: Proxy, planned: OwnStream) -> None:
    """Row 133: the header block, to the byte."""
    at = datetime(2035, 1, 31, 12, 30, 0, 250_000, tzinfo=UTC)
    ack = await js.schedule(planned.subject("s"), planned.subject("t"), b"x", at=at, headers={"Mine": "1"})
    assert (ack.stream, ack.seq, ack.duplicate) == (planned.name, 1, False)
    (sent,) = tap.sent(planned.subject("s"))
    assert sent.payload == b"x"
    assert (
        sent.headers
        == (
            "NATS/1.0\r\nMine: 1\r\nNats-Schedule: @at 2035-01-31T12:30:00.250000Z\r\n"
            f"Nats-Schedule-Target: {planned.subject('t')}\r\n\r\n"
        ).encode()
    )
    (stored,) = await planned.messages()
    # A schedule replaces the previous schedule, and the server writes the previous one into it.
    assert headers(stored).pop("Nats-Rollup") == "sub"


@COMPLETE
async def test_everything_on_the_wire(js: Any, tap: Proxy, planned: OwnStream) -> None:
    """Row 133: every other header."""
    await js.schedule(
        planned.subject("s"), planned.subject("t"), cron="0 30 6 * * mon-fri", time_zone="UTC",
        source=planned.subject("u"), ttl=60, rollup="sub", lifetime=timedelta(days=1), msg_id="id",
        expected_last_subject_seq=0,
    )  # fmt: skip
    await js.schedule(planned.subject("s", "2"), planned.subject("t"), every=1.5, ttl="never")
    assert [frame.headers.decode().split("\r\n")[1:-2] for frame in tap.sent(planned.all)] == [
        [
            "Nats-Schedule: 0 30 6 * * mon-fri",
            f"Nats-Schedule-Target: {planned.subject('t')}",
            "Nats-Schedule-Time-Zone: UTC",
            f"Nats-Schedule-Source: {planned.subject('u')}",
            "Nats-Schedule-TTL: 60",
            "Nats-Schedule-Rollup: sub",
            "Nats-Msg-Id: id",
            "Nats-Expected-Last-Subject-Sequence: 0",
            "Nats-TTL: 86400",
        ],
        [
            "Nats-Schedule: @every 1.5s",
            f"Nats-Schedule-Target: {planned.subject('t')}",
            "Nats-Schedule-TTL: never",
        ],
    ]
    assert len(await planned.messages()) == 2


async def test_cannot_work_refused_before_wire(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 133: a target is needed, and a legal one."""
    since = len(tap.frames)
    good: dict[str, Any] = {"subject": "a.s", "target": "a.t", "at": later()}
    refused: list[dict[str, Any]] = [
        {"target": ""},
        {"target": None},
        {"target": "a.*"},
        {"target": "a.s"},
        {"target": "a b"},
        {"subject": "a.>"},
        {"at": None},
        {"at": datetime(2035, 1, 1)},  # noqa: DTZ001  that is the point
        {"every": 5},
        {"at": None, "every": 0.5},
        {"at": None, "cron": "* * * * *"},
        {"time_zone": "UTC"},
        {"source": "a.t"},
        {"source": "a.*"},
        {"ttl": 0.5},
        {"lifetime": 0.5},
        {"rollup": "all"},
        {"data": "text"},
        {"headers": {"Nats-Schedule": "@hourly"}},
        {"headers": {"a b": "c"}},
        {"msg_id": ""},
        {"timeout": 0},
    ]
    for changes in refused:
        arguments = {**good, **changes}
        with pytest.raises(jsclient.ConfigError):
            await js.schedule(arguments.pop("subject"), arguments.pop("target"), **arguments)
    for call in (
        js.cancel_schedule("a.*"),
        js.cancel_schedule("a.s", stream="a.b"),
        js.finish_schedule("a.s", "a.s"),
        js.finish_schedule("a.*", "a.t"),
    ):
        with pytest.raises(jsclient.ConfigError):
            await call
    await js.ping()
    assert traffic(tap, since) == []


@pytest.mark.server("<2.12")
async def test_old_server_gets_none(js: Any, tap: Proxy, stream: OwnStream) -> None:
    since = len(tap.frames)
    for call in (
        js.schedule(stream.subject("s"), stream.subject("t"), at=later()),
        js.finish_schedule(stream.subject("s"), stream.subject("t")),
    ):
        with pytest.raises(jsclient.ConfigError, match=r"a schedule needs nats-server 2\.12"):
            await call
    await js.ping()
    assert traffic(tap, since) == []


@pytest.mark.server(">=2.12,<2.14")
@pytest.mark.parametrize(
    "arguments", [{"every": 5}, {"cron": "@daily"}, {"at": "2035-01-01T00:00:00Z", "source": "x"},
                  {"at": "2035-01-01T00:00:00Z", "rollup": "sub"}],
)  # fmt: skip
async def test_times_only_server(js: Any, tap: Proxy, stream: OwnStream, arguments: dict[str, Any]) -> None:
    since = len(tap.frames)
    with pytest.raises(jsclient.ConfigError, match=r"needs nats-server 2\.14"):
        await js.schedule(stream.subject("s"), stream.subject("t"), **arguments)
    await js.ping()
    assert traffic(tap, since) == []


# What the server says


@FIRST
async def test_stream_refuses_number(js: Any, oracle: Oracle, make_stream: Any) -> None:
    for config, target, options, number in (
        ({}, "t", {}, 10188),
        ({"allow_msg_schedules": True}, None, {}, 10190),
        ({"allow_msg_schedules": True}, "t", {"ttl": 5}, 10166),
        ({"allow_msg_schedules": True}, "t", {"lifetime": 5}, 10166),
    ):
        stream = await make_stream(**config)
        with pytest.raises(jsclient.ApiError) as caught:
            await js.schedule(
                stream.subject("s"),
                "elsewhere.at.all" if target is None else stream.subject(target),
                at=later(),
                **options,
            )
        assert (caught.value.code, caught.value.err_code) == (400, number)
        assert (await stream.state())["messages"] == 0


CRON = [
    "* * * * * *", "0 0 0 1 1 *", "59 59 23 31 12 6", "*/5 0-30/10 8-11 1,15 jan-mar mon,wed,FRI", "0 0 9 ? * 1-5",
    "5/10 0 0 * * *", "0  0   0 * * *", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight",
    "@hourly",
]  # fmt: skip
NOT_CRON = [
    "* * * * *", "* * * * * * *", "60 * * * * *", "* 60 * * * *", "* * 24 * * *", "* * * 0 * *", "* * * 32 * *",
    "* * * * 13 *", "* * * * 0 *", "* * * * january *", "* * * * * 7", "* * * * * jan", "* * mon * * *",
    "9-5 * * * * *", "* * * * * fri-mon", "*/0 * * * * *", "*/ * * * * *", "*/a * * * * *", "1/2/3 * * * * *",
    "1-2-3 * * * * *", "-1 * * * * *", "1- * * * * *", "1e1 * * * * *", "@HOURLY", "@fortnightly", "hourly",
]  # fmt: skip


@COMPLETE
async def test_cron_agrees_with_server(js: Any, planned: OwnStream) -> None:
    target = planned.subject("t")
    for number, pattern in enumerate(CRON):
        await js.schedule(planned.subject("s", str(number)), target, cron=pattern)
    # One of them comes each second, perhaps by now.
    stored = {message.subject for message in await planned.messages()}
    assert stored - {target} == {planned.subject("s", str(number)) for number in range(len(CRON))}
    for pattern in NOT_CRON:
        with pytest.raises(jsclient.ConfigError):
            await js.schedule(planned.subject("s"), target, cron=pattern)
        raw = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target}
        with pytest.raises(jsclient.ApiError) as caught:
            await js.publish(planned.subject("s"), headers=raw)
        assert caught.value.err_code == 10189, pattern


@COMPLETE
async def test_zone_server_does_not_know_refused(js: Any, planned: OwnStream) -> None:
    with pytest.raises(jsclient.ApiError) as caught:
        await js.schedule(planned.subject("s"), planned.subject("t"), cron="@daily", time_zone="Middle/Earth")
    assert caught.value.err_code in (10189, 10223)


# It comes


@pytest.mark.smoke
@FIRST
async def test_message_at_its_time(js: Any, planned: OwnStream) -> None:
    """Row 133: real delivery."""
    at = soon()
    await js.schedule(
        planned.subject("s"), planned.subject("t"), b"hello", at=at, ttl=300, headers={"Mine": ["1", "2"]}
    )
    (message,) = await arrived(planned, "t")
    assert datetime.now(UTC) >= at
    assert message.payload == b"hello"
    assert message.headers.decode().split("\r\n")[1:-2] == [
        "Mine: 1",
        "Mine: 2",
        f"Nats-Scheduler: {planned.subject('s')}",
        "Nats-Schedule-Next: purge",
        "Nats-TTL: 300",
    ]
    assert await on(planned, "s") == []


@FIRST
async def test_what_is_past_comes_at_once(js: Any, planned: OwnStream) -> None:
    await js.schedule(planned.subject("s"), planned.subject("t"), b"late", at="2001-09-09T01:46:40Z")
    (message,) = await arrived(planned, "t")
    assert message.payload == b"late"


@COMPLETE
async def test_interval_comes_again_and_again(js: Any, planned: OwnStream) -> None:
    """Row 133: real delivery of what repeats. Each message contains the time of the next message."""
    await js.schedule(planned.subject("s"), planned.subject("t"), b"tick", every=1)
    ticks = await arrived(planned, "t", count=2)
    assert {tick.payload for tick in ticks} == {b"tick"}
    nexts = [datetime.fromisoformat(headers(tick)["Nats-Schedule-Next"]) for tick in ticks]
    assert nexts[1] - nexts[0] >= timedelta(seconds=1)
    assert len(await on(planned, "s")) == 1
    assert await js.cancel_schedule(planned.subject("s"))


@COMPLETE
async def test_cron_may_replace(js: Any, planned: OwnStream) -> None:
    await js.schedule(planned.subject("s"), planned.subject("t"), b"tick", cron="* * * * * *", rollup="sub")
    (first,) = await arrived(planned, "t")
    assert headers(first)["Nats-Rollup"] == "sub"

    async def replaced() -> bool:
        actual = await on(planned, "t")
        return len(actual) == 1 and actual[0].seq > first.seq

    await eventually(replaced, 20, "the next one in its place", interval=0.1)
    assert await js.cancel_schedule(planned.subject("s"))


@COMPLETE
async def test_a_source_is_sampled(js: Any, planned: OwnStream) -> None:
    """The last message of another subject is sent. Until it exists, the schedule's own message is sent."""
    await js.schedule(
        planned.subject("s"), planned.subject("t"), b"nothing yet", every=1, source=planned.subject("u")
    )
    assert (await arrived(planned, "t"))[0].payload == b"nothing yet"
    for value in (b"20", b"21"):
        await js.publish(planned.subject("u"), value, headers={"Unit": "C"})

    async def sampled() -> bool:
        last = (await on(planned, "t"))[-1]
        return last.payload == b"21" and headers(last)["Unit"] == "C"

    await eventually(sampled, 20, "a sample", interval=0.1)
    assert await js.cancel_schedule(planned.subject("s"))


# It is replaced, or ends


@FIRST
async def test_new_schedule_takes_place_of_old_one(js: Any, planned: OwnStream) -> None:
    subject, target = planned.subject("s"), planned.subject("t")
    first = await js.schedule(subject, target, b"old", at=later())
    with pytest.raises(jsclient.WrongLastSequenceError):
        await js.schedule(subject, target, b"no", at=later(), expected_last_subject_seq=0)
    await js.schedule(subject, target, b"new", at=later(), expected_last_subject_seq=first.seq)
    assert [message.payload for message in await planned.messages()] == [b"new"]


@FIRST
async def test_cancelled_schedule_does_not_come(js: Any, planned: OwnStream) -> None:
    subject, target = planned.subject("s"), planned.subject("t")
    await js.schedule(subject, target, b"never", at=soon(4))
    # One that is sent after it says when it would have come.
    await js.schedule(planned.subject("s", "2"), target, b"after", at=soon(4.5))
    assert await js.cancel_schedule(subject)
    assert not await js.cancel_schedule(subject), "there is none any more"
    assert [message.payload for message in await arrived(planned, "t")] == [b"after"]
    assert not await js.cancel_schedule(planned.subject("s", "2")), "it was sent"


@FIRST
async def test_only_schedule_cancelled(js: Any, tap: Proxy, planned: OwnStream) -> None:
    await js.publish(planned.subject("t"), b"an order")
    assert not await js.cancel_schedule(planned.subject("t"))
    assert not await js.cancel_schedule(planned.subject("t"), stream=planned.name)
    assert tap.sent("$JS.API.STREAM.PURGE.>") == []
    with pytest.raises(jsclient.NoMatchingStreamError):
        await js.cancel_schedule("nobody.has.this")
    with pytest.raises(jsclient.StreamNotFoundError):
        await js.cancel_schedule(planned.subject("t"), stream="missing")


@FIRST
async def test_cancel_keeps_new_schedule(js: Any, tap: Proxy, planned: OwnStream) -> None:
    subject, target = planned.subject("s"), planned.subject("t")
    await js.schedule(subject, target, b"old", at=later())
    purge = tap.hold_frames(match.published("$JS.API.STREAM.PURGE.>"))
    cancelling = asyncio.create_task(js.cancel_schedule(subject))
    await purge.wait()
    await js.schedule(subject, target, b"new", at=later())
    purge.release()
    assert await within(10, cancelling, "cancelling") is False
    assert [message.payload for message in await on(planned, "s")] == [b"new"]


@FIRST
async def test_message_ends_schedule_with(js: Any, planned: OwnStream) -> None:
    """ADR-51 §Ending: sent before its time, once and not twice."""
    subject, target = planned.subject("s"), planned.subject("t")
    plan = await js.schedule(subject, target, b"later", at=soon(4))
    with pytest.raises(jsclient.WrongLastSequenceError):
        await js.finish_schedule(subject, target, b"no", expected_seq=plan.seq + 1)
    assert len(await on(planned, "s")) == 1
    await js.finish_schedule(subject, target, b"now", expected_seq=plan.seq)
    assert await on(planned, "s") == []
    await js.schedule(planned.subject("s", "2"), planned.subject("u"), b"after", at=soon(4.5))
    await arrived(planned, "u")
    assert [message.payload for message in await on(planned, "t")] == [b"now"]
    with pytest.raises(jsclient.WrongLastSequenceError):
        await js.finish_schedule(subject, target, b"twice", expected_seq=plan.seq)


@FIRST
async def test_lost_answer_stored_once(js: Any, tap: Proxy, planned: OwnStream) -> None:
    """The same for a finished schedule: the second attempt finds no schedule, because the first attempt removed it."""
    subject, target = planned.subject("s"), planned.subject("t")
    tap.cut_inside_frame(predicate=match.is_publish_ack)
    plan = await within(
        20, js.schedule(subject, target, b"x", at=later(), msg_id="plan", timeout=15), "scheduling"
    )
    assert (plan.seq, plan.duplicate) == (1, True)
    tap.cut_inside_frame(predicate=match.is_publish_ack)
    done = await within(
        20,
        js.finish_schedule(subject, target, b"x", msg_id="done", expected_seq=plan.seq, timeout=15),
        "finishing",
    )
    assert (done.seq, done.duplicate) == (2, True)
    assert [message.subject for message in await planned.messages()] == [target]


@FIRST
async def test_a_schedule_has_a_lifetime(js: Any, planned: OwnStream) -> None:
    await js.schedule(planned.subject("s"), planned.subject("t"), b"never", at=later(), lifetime=1)

    async def is_removed() -> bool:
        return (await planned.state())["messages"] == 0

    await eventually(is_removed, 20, "the end of the schedule", interval=0.1)
