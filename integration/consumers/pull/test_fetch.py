"""Fetching: how a request ends, and what of it the user sees. Source: ADR-15 §Pull Mode Statuses, ADR-37 §Fetch."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.wire import TO_CLIENT, TO_SERVER
from integration.kit.servers.nats_server import fits
from jsclient.consumers.pull import puller

NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.mark.smoke
@pytest.mark.row(51, 80)
async def test_fetch_takes_its_batch(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(7)
    sub = await near.pull_subscribe(stream.all)
    batch = await sub.fetch(5)
    assert (numbers(batch), batch.ending, batch.error) == ([1, 2, 3, 4, 5], jsclient.Ending.FULL, None)
    assert numbers(await sub.fetch(2)) == [6, 7]
    request = [json.loads(frame.payload) for frame in tap.sent(NEXT)]
    assert [(one["batch"], 4 * 10**9 < one["expires"] <= 5 * 10**9) for one in request] == [
        (5, True),
        (2, True),
    ]


@pytest.mark.row(45, 53, 54, 61)
@pytest.mark.covers("J103", "J104")
async def test_404_and_408_are_silent(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.pull_subscribe(stream.all)
    empty = await sub.fetch(3, no_wait=True)
    assert (list(empty), empty.ending, empty.error) == ([], jsclient.Ending.NO_MESSAGES, None)
    await tap.wait_for(match.with_status("404"))
    late = await sub.fetch(3, expires=0.2)
    assert (list(late), late.ending, late.error) == ([], jsclient.Ending.EXPIRED, None)
    await tap.wait_for(match.with_status("408"))
    await stream.publish(2)
    short = await sub.fetch(3, no_wait=True)
    assert (numbers(short), short.ending) == ([1, 2], jsclient.Ending.NO_MESSAGES)
    await stream.publish(3, first=3)
    full = await sub.fetch(3, expires=5)
    assert (numbers(full), full.ending) == ([3, 4, 5], jsclient.Ending.FULL)
    with pytest.raises(jsclient.RequestTimeoutError):
        await sub.next(timeout=0.2)
    assert alarms(events) == []


@pytest.mark.row(45)
@pytest.mark.covers("J103", "J104")
@pytest.mark.parametrize("status", ["404 No Messages", "408 Request Timeout"])
async def test_ending_status_not_counted(tap: Any, near: Any, stream: OwnStream, status: str) -> None:
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(3, expires=10))
    request = await tap.wait_for(match.published(NEXT))
    seq = await stream.publish(2)
    await tap.wait_for(match.is_message(seq))
    tap.inject_message(request.reply, status=status)
    batch = await within(5, fetching, "the fetch")
    assert numbers(batch) == [1, 2]
    assert batch.error is None


@pytest.mark.covers("J81", "J103")
async def test_p26_heartbeats_of_pull_not_counted(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """P26: heartbeats were counted as messages."""
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(2, expires=60, idle_heartbeat=0.6))
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= 4, what="heartbeats")
    await stream.publish(2)
    assert numbers(await within(5, fetching, "the fetch")) == [1, 2]
    assert alarms(events) == []


@pytest.mark.row(45)
@pytest.mark.covers("J105")
async def test_p13_push_consumer_fails(near: Any, stream: OwnStream) -> None:
    """P13: an empty list, or a timeout, after the whole time."""
    name = (await stream.create_consumer("push", deliver_subject=f"d.{stream.prefix}"))["name"]
    consumer = await (await near.stream(stream.name)).consumer(name)
    for call in (consumer.fetch(10, expires=30), consumer.fetch(1, expires=30), consumer.next(timeout=30)):
        with pytest.raises(jsclient.PushBasedError):
            await within(5, call, "the error")


@pytest.mark.row(45, 52)
@pytest.mark.covers("J105")
@pytest.mark.parametrize("what", ["consumer", "stream"])
@pytest.mark.parametrize("batch", [1, 10])
async def test_p13_deleted_in_flight_fails(near: Any, stream: OwnStream, batch: int, what: str) -> None:
    """P13: an empty list, or a timeout, after the whole time."""
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(batch, expires=30))
    await stream.until_asked(sub.consumer)
    await (stream.delete_consumer(sub.consumer) if what == "consumer" else stream.delete())
    with pytest.raises(jsclient.ConsumerDeletedError) as raised:
        await within(5, fetching, "the error")
    assert raised.value.code == 409


@pytest.mark.row(52)
@pytest.mark.covers("J105")
async def test_messages_come_with_error(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(3)
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(10, expires=30))
    await tap.wait_for(match.is_message(3))
    await stream.delete_consumer(sub.consumer)
    batch = await within(5, fetching, "the fetch")
    assert numbers(batch) == [1, 2, 3]
    assert batch.ending is jsclient.Ending.DELETED
    assert isinstance(batch.error, jsclient.ConsumerDeletedError)


@pytest.mark.row(45, 47, 48)
@pytest.mark.covers("J105")
@pytest.mark.parametrize(
    ("limit", "ask"),
    [
        ({"max_batch": 5}, {"batch": 6}),
        ({"max_expires": 10**9}, {"batch": 1, "expires": 30}),
        ({"max_bytes": 1000}, {"batch": 1, "max_bytes": 1001}),
    ],
    ids=["max_batch", "max_expires", "max_bytes"],
)
async def test_p13_limit_named_at_once(
    near: Any, stream: OwnStream, limit: dict[str, Any], ask: dict[str, Any]
) -> None:
    """P13: ten stored, `max_batch` 5, fetch(10): an empty list after the whole time."""
    await stream.publish(10)
    await stream.create_consumer("limited", **limit)
    sub = await near.pull_subscribe(stream=stream.name, consumer="limited")
    with pytest.raises(jsclient.PullLimitError) as raised:
        await within(5, sub.fetch(**{"expires": 0.9, **ask}), "the error")
    assert raised.value.code == 409
    assert not raised.value.retryable
    assert numbers(await sub.fetch(1, expires=0.9)) == [1]


@pytest.mark.row(60, 61)
@pytest.mark.covers("J105")
async def test_p13_too_many_waiting(near: Any, stream: OwnStream, server: Any) -> None:
    """P13: an empty list, or a timeout, after the whole time."""
    config = jsclient.ConsumerConfig(max_waiting=1)
    sub = await near.pull_subscribe(stream.all, config=config)
    waiting = asyncio.create_task(sub.fetch(1, expires=5.0))
    await stream.oracle.wait_consumer(stream.name, sub.consumer, lambda info: info["num_waiting"] == 1)
    # 2.12 and newer drop such a request silently. Then its missing heartbeats show that.
    error = jsclient.HeartbeatError if fits(server.version, ">=2.12") else jsclient.PullLimitError
    with pytest.raises(error):
        await within(20, sub.fetch(1, expires=30, idle_heartbeat=0.3), "the error")
    assert len(await waiting) == 0
    await stream.publish(1)
    assert numbers(await sub.fetch(1)) == [1]


@pytest.mark.row(55, 82)
@pytest.mark.server(">=2.12")
@pytest.mark.covers("J106")
async def test_missing_consumer_fails(near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.pull_subscribe(stream=stream.name, consumer="nothing")
    for call in (sub.fetch(1, expires=30), sub.fetch(10, expires=30), sub.next(timeout=30)):
        with pytest.raises(jsclient.ConsumerNotFoundError, match=r"'nothing' of stream .* not found.*create"):
            await within(5, call, "the error")
    wrong = await near.pull_subscribe(stream="NOWHERE", consumer="nothing")
    with pytest.raises(jsclient.StreamNotFoundError, match=r"stream 'NOWHERE' not found.*create"):
        await within(5, wrong.fetch(1), "the error")
    await stream.create_consumer("nothing")
    await stream.publish(1)
    assert numbers(await sub.fetch(1)) == [1]


@pytest.mark.row(82)
@pytest.mark.server(">=2.12")
async def test_missing_consumer_unknown(tap: Any, connect: Any, stream: OwnStream) -> None:
    """Whether the consumer exists cannot be asked: no time of an election is lost by asking for long."""
    near = await connect(tap, timeout=60.0)
    sub = await near.pull_subscribe(stream=stream.name, consumer="nothing")
    tap.drop_frames(match.published("$JS.API.CONSUMER.INFO.>"))
    text = rf"the pull request of consumer 'nothing' of stream '{stream.name}': .*check .*\(status 503\)"
    with pytest.raises(jsclient.NoRespondersError, match=text) as raised:
        await within(20, sub.fetch(1, expires=60), "the error")
    assert (raised.value.code, raised.value.retryable) == (503, True)


@pytest.mark.row(82)
@pytest.mark.parametrize("how", [{"expires": 30}, {"no_wait": True}], ids=["waits", "no_wait"])
async def test_consumer_without_leader_asked_again(
    tap: Any, near: Any, stream: OwnStream, how: dict[str, Any]
) -> None:
    """No server listens for its requests at first, as in an election, or just after its creation in a cluster."""
    await stream.create_consumer("there")
    sub = await near.pull_subscribe(stream=stream.name, consumer="there")
    await stream.publish(1)
    refused = tap.hold_frames(match.published(NEXT), count=2)
    fetching = asyncio.create_task(sub.fetch(1, **how))
    for number in range(2):
        await refused.wait(number + 1, timeout=20)
        tap.inject_message(refused.frames[number].reply, status="503")
    assert numbers(await within(20, fetching, "the fetch")) == [1]
    refused = tap.hold_frames(match.published(NEXT))
    fetching = asyncio.create_task(sub.fetch(1, **how))
    for number in range(4):
        await refused.wait(number + 1, timeout=20)
        tap.inject_message(refused.frames[number].reply, status="503")
    with pytest.raises(jsclient.NoRespondersError):
        await within(20, fetching, "the error")
    assert len(refused.frames) == 4


@pytest.mark.row(82)
@pytest.mark.server(">=2.12")
async def test_deleted_consumer_reported_by_next_fetch(tap: Any, near: Any, stream: OwnStream) -> None:
    """No server answers: the server is asked once whether the consumer was deleted, or has no leader for a moment."""
    await stream.create_consumer("seen")
    sub = await near.pull_subscribe(stream=stream.name, consumer="seen")
    checked = len(tap.sent("$JS.API.CONSUMER.INFO.>"))
    await stream.delete_consumer("seen")
    with pytest.raises(jsclient.ConsumerDeletedError, match="'seen' of stream"):
        await within(5, sub.fetch(1, expires=30), "the error")
    assert len(tap.sent("$JS.API.CONSUMER.INFO.>")) == checked + 1


@pytest.mark.row(55)
@pytest.mark.server("<2.12")
async def test_old_server_missing_consumer(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream=stream.name, consumer="nothing")
    with pytest.raises(jsclient.HeartbeatError):
        await within(5, sub.fetch(1, expires=30, idle_heartbeat=0.3), "the error")


@pytest.mark.row(58)
@pytest.mark.covers("J104")
async def test_p28_fetches_do_not_starve(near: Any, stream: OwnStream) -> None:
    """P28: three stored, fetch(3) and fetch(2): both took the whole time."""
    await stream.publish(3)
    sub = await near.pull_subscribe(stream.all)
    short = asyncio.create_task(sub.fetch(2, expires=20))
    long = asyncio.create_task(sub.fetch(3, expires=20))
    first = await within(15, short, "fetch(2)")
    assert first.ending is jsclient.Ending.FULL
    # One that expires beside it does not end it.
    expired = asyncio.create_task(sub.fetch(4, expires=0.2))
    await within(5, expired, "fetch(4)")
    assert not long.done()
    await stream.publish(6, first=4)
    second = await within(5, long, "fetch(3)")
    assert second.ending is jsclient.Ending.FULL
    remainder = await sub.fetch(10, no_wait=True)
    got = numbers([*first, *expired.result(), *second, *remainder])
    assert sorted(got) == list(range(1, 10))


@pytest.mark.row(57)
@pytest.mark.covers("J104")
async def test_many_fetches_each_once(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    fetches = [asyncio.create_task(sub.fetch(size, expires=10)) for size in (1, 2, 3, 4) * 5]
    publishing = asyncio.create_task(stream.publish(50))
    batches = await within(15, asyncio.gather(*fetches), "all fetches")
    await publishing
    assert [len(batch) for batch in batches] == [1, 2, 3, 4] * 5
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(1, 51))


@pytest.mark.row(46, 56, 80)
async def test_fetch_by_bytes_keeps_within_them(near: Any, stream: OwnStream) -> None:
    await stream.publish(13, size=500)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    probe = (await sub.fetch(1))[0].size
    some = await sub.fetch(100, max_bytes=3 * probe + 20)
    assert len(some) == 3
    assert sum(message.size for message in some) <= 3 * probe + 20
    assert some.ending is jsclient.Ending.MAX_BYTES
    none = await within(5, sub.fetch(100, max_bytes=100), "a fetch where nothing fits")
    exact = await within(15, sub.fetch(100, max_bytes=3 * probe, expires=30), "a fetch filled to the byte")
    assert (numbers(exact), exact.ending, exact.error) == ([5, 6, 7], jsclient.Ending.MAX_BYTES, None)
    assert (len(none), none.ending) == (0, jsclient.Ending.MAX_BYTES)
    remainder = await sub.fetch(6, max_bytes=100_000)
    assert (numbers(remainder), remainder.ending) == ([8, 9, 10, 11, 12, 13], jsclient.Ending.FULL)


@pytest.mark.row(54, 60)
async def test_illegal_requests_refused(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    for wrong in (
        {"batch": 0},
        {"batch": -1},
        {"batch": 1, "expires": 0},
        {"batch": 1, "max_bytes": 0},
        {"batch": 1, "expires": 2, "idle_heartbeat": 1.5},
    ):
        with pytest.raises(jsclient.ConfigError):
            await sub.fetch(**wrong)
    assert tap.sent(NEXT) == []


@pytest.mark.row(59)
async def test_cancelled_fetch_loses_nothing(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    got: list[int] = []
    cancelled = 0
    for number in range(1, 21):
        fetching = asyncio.create_task(sub.fetch(5, expires=20))
        await asyncio.sleep(0.002 * (number % 4))
        await stream.publish(1, first=number)
        fetching.cancel()
        await asyncio.wait({fetching})
        if fetching.cancelled():
            cancelled += 1
        else:
            got += numbers(fetching.result())
    assert cancelled > 5
    while len(got) < 20:
        got += numbers(await sub.fetch(20 - len(got), expires=5))
    assert sorted(got) == list(range(1, 21))


@pytest.mark.row(59)
async def test_fetch_by_two_requests_keeps_order(tap: Any, near: Any, stream: OwnStream) -> None:
    """The server serves the request of a cancelled call and the request for the remaining messages in turns."""
    sub = await near.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(3, expires=20))
    await eventually(lambda: tap.sent(NEXT), 10, "the first request")
    fetching.cancel()
    await asyncio.wait({fetching})
    both = asyncio.create_task(sub.fetch(6, expires=20))
    await eventually(lambda: len(tap.sent(NEXT)) == 2, 10, "the second request")
    await stream.publish(6)
    assert numbers(await both) == [1, 2, 3, 4, 5, 6]


async def _cancelled_fetch(tap: Any, sub: Any, batch: int) -> None:
    """Leave a request on the server whose caller no longer waits."""
    fetching = asyncio.create_task(sub.fetch(batch, expires=20))
    await eventually(lambda: tap.sent(NEXT), 10, "the first request")
    fetching.cancel()
    await asyncio.wait({fetching})


@pytest.mark.row(59)
async def test_fetch_beside_an_abandoned_request_keeps_order(tap: Any, near: Any, stream: OwnStream) -> None:
    """A fetch with ``max_bytes`` does not take over the other request. It returns its messages, though."""
    sub = await near.pull_subscribe(stream.all)
    await _cancelled_fetch(tap, sub, 3)
    limited = asyncio.create_task(sub.fetch(4, expires=20, max_bytes=100_000))
    await eventually(lambda: len(tap.sent(NEXT)) == 2, 10, "the second request")
    await stream.publish(6)
    assert numbers(await limited) == [1, 2, 3, 4]
    assert numbers(await sub.fetch(2)) == [5, 6]


@pytest.mark.row(59)
async def test_fetch_cancelled_at_arrival_keeps_order(tap: Any, near: Any, stream: OwnStream) -> None:
    """The call is cancelled after the messages of two requests have arrived, and before it has collected them."""
    sub = await near.pull_subscribe(stream.all)
    await _cancelled_fetch(tap, sub, 4)
    both = asyncio.create_task(sub.fetch(8, expires=20))
    await eventually(lambda: len(tap.sent(NEXT)) == 2, 10, "the second request")
    tap.stall(TO_CLIENT)
    await stream.publish(8)
    tap.unstall(TO_CLIENT)
    while not any(slot.frames for slot in sub._puller._busy):
        await asyncio.sleep(0)
    both.cancel()
    await asyncio.wait({both})
    assert both.cancelled()
    assert numbers(await sub.fetch(8)) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.row(59)
@pytest.mark.parametrize("direction", [TO_CLIENT, TO_SERVER], ids=["answers", "requests"])
async def test_late_fetch_loses_nothing(
    tap: Any, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch, direction: Any
) -> None:
    """They come after the time for which the inbox of a request is kept: the next call gets all messages."""
    monkeypatch.setattr(puller, "_LINGER", 0.1)
    sub = await near.pull_subscribe(stream.all)
    await stream.publish(1000, size=1000)
    tap.stall(direction)
    assert list(await sub.fetch(1000, expires=0.1)) == []
    await asyncio.sleep(0.7)  # the inbox of that request is forgotten
    fetching = asyncio.create_task(sub.fetch(1000, expires=30))
    await asyncio.sleep(0.2)  # messages that arrive before the next request belong to no request
    tap.unstall(direction)
    assert sorted(numbers(await fetching)) == list(range(1, 1001))


@pytest.mark.full
@pytest.mark.row(59)
@pytest.mark.parametrize("how", [{"no_wait": True}, {"expires": 1.0}], ids=["no_wait", "expires"])
async def test_slow_link_loses_nothing(
    proxy: Any, connect: Any, stream: OwnStream, how: dict[str, Any]
) -> None:
    """The messages of one request need longer than it: the rest goes to the next calls."""
    slow = await proxy(frames=False)
    near = await connect(slow)
    await stream.publish(2000, size=1000)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(max_ack_pending=5000))
    slow.rate(300_000)
    got: list[int] = []
    async with asyncio.timeout(25):
        while len(got) < 2000:
            got += numbers(await sub.fetch(2000, **how))
    assert got == list(range(1, 2001))


@pytest.mark.row(50)
async def test_silence_ends_fetch_by_heartbeat(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own))
    js = await connect(own)
    sub = await js.pull_subscribe(stream.all)
    fetching = asyncio.create_task(sub.fetch(10, expires=30, idle_heartbeat=0.3))
    await stream.oracle.wait_consumer(stream.name, sub.consumer, lambda info: info["num_waiting"] == 1)
    own.pause()
    with pytest.raises(jsclient.HeartbeatError):
        await within(8, fetching, "the alarm")
    own.resume()


@pytest.mark.row(81)
async def test_fetches_leave_nothing(
    server: Any, oracle: Any, js: Any, stream: OwnStream, events: list[Any]
) -> None:
    await js.stream_names(stream.all).__anext__()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        sub = await js.pull_subscribe(stream.all)
        for number in range(1, 31):
            await stream.publish(1, first=number)
            assert numbers(await sub.fetch(1)) == [number]
            await sub.fetch(1, no_wait=True)
        await asyncio.gather(*(sub.fetch(1, expires=0.2) for _ in range(5)))
        await sub.unsubscribe()
    assert of(jsclient.ErrorRaised, events) == []


@pytest.mark.row(58)
async def test_late_status_ends_no_other_fetch(tap: Any, near: Any, stream: OwnStream) -> None:
    """A 408 may come after the fetch that it ends, if a round trip takes half a second."""
    sub = await near.pull_subscribe(stream.all)
    tap.delay(0.4)
    assert len(await sub.fetch(5, expires=0.5)) == 0
    fetching = asyncio.create_task(sub.fetch(5, expires=30))
    await never(fetching.done, 1.2, "the end by a status of the other one")
    await stream.publish(5)
    assert numbers(await fetching) == [1, 2, 3, 4, 5]


async def test_consumer_deleted_without_an_answer(tap: Any, near: Any, stream: OwnStream) -> None:
    """Server 2.10 says nothing to a pull request for a consumer that does not exist."""
    sub = await near.pull_subscribe(stream.all)
    tap.drop_frames(match.with_status("503"))  # of newer servers
    await stream.delete_consumer(sub.consumer)
    with pytest.raises(jsclient.ConsumerDeletedError):
        await within(20, sub.fetch(5, no_wait=True), "the error")


async def test_late_answer_of_a_fetch_that_does_not_wait(tap: Any, near: Any, stream: OwnStream) -> None:
    """While it is late, the fetch looks whether its consumer exists, and waits on."""
    await stream.publish(3)
    sub = await near.pull_subscribe(stream.all)
    since = len(tap.frames)
    held = tap.hold_frames(match.published(NEXT))
    fetching = asyncio.create_task(sub.fetch(3, no_wait=True))
    await tap.wait_for(match.published("$JS.API.CONSUMER.INFO.>"), since=since)
    held.release()
    assert numbers(await fetching) == [1, 2, 3]
    assert len(tap.sent(NEXT)) == 1
