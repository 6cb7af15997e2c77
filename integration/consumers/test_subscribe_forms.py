"""Every way to subscribe and to read, against a real server. Source: ADR-15."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.reading import noting, numbers, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network.asking import api_requests, delivers
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import ConsumerConfig


async def read_next(sub: Any, count: int) -> list[int]:
    return numbers(await take(sub, count))


async def read_iterating(sub: Any, count: int) -> list[int]:
    results: list[int] = []
    async for message in sub:
        results.append(number_of(message.data))
        await message.ack()
        if len(results) == count:
            break
    return results


async def read_batches(sub: Any, count: int) -> list[int]:
    results: list[int] = []
    async for batch in sub.batches(4):
        assert 1 <= len(batch) <= 4
        results += numbers(batch)
        await jsclient.ack_all(batch)
        if len(results) >= count:
            break
    return results


async def read_fetching(sub: Any, count: int) -> list[int]:
    results: list[int] = []
    while len(results) < count:
        batch = await sub.fetch(min(4, count - len(results)))
        results += numbers(batch)
        await jsclient.ack_all(batch)
    return results


PUSH = [read_next, read_iterating, read_batches]
PULL = [read_next, read_iterating, read_fetching]


@pytest.fixture(params=["own", "foreign"])
def door(request: pytest.FixtureRequest) -> Any:
    """A `JetStream` on a connection of jsclient, and one on a connection of nats-py."""
    return request.getfixturevalue("js" if request.param == "own" else "natspy_js")


@pytest.mark.core_cases(4)
@pytest.mark.covers("J1", "J2")
@pytest.mark.parametrize("read", PUSH)
@pytest.mark.parametrize("queue", [None, "workers"])
async def test_push_next_and_iteration(door: Any, stream: OwnStream, read: Any, queue: str | None) -> None:
    await stream.publish(10)
    async with await door.subscribe(stream.all, queue=queue) as sub:
        assert await within(10, read(sub, 10), "reading") == list(range(1, 11))
        assert sub.queue == queue
        assert (await sub.consumer_info()).is_push


@pytest.mark.covers("J1", "J2")
@pytest.mark.parametrize("durable", [None, "worker"])
@pytest.mark.parametrize("read", PULL)
async def test_pull_next_and_iteration(door: Any, stream: OwnStream, read: Any, durable: str | None) -> None:
    await stream.publish(10)
    async with await door.pull_subscribe(stream.all, durable=durable) as sub:
        assert await within(10, read(sub, 10), "reading") == list(range(1, 11))
        assert not (await sub.consumer_info()).is_push


@pytest.mark.smoke
@pytest.mark.row(114)
@pytest.mark.covers("J1", "J2", "J48")
@pytest.mark.parametrize("queue", [None, "workers"])
@pytest.mark.parametrize("plain", [True, False], ids=["function", "coroutine function"])
async def test_callback_acks_messages(door: Any, stream: OwnStream, queue: str | None, plain: bool) -> None:
    """§4.1-6: explicit policy by default, and the ack floor reaches what was delivered."""
    results: list[int] = []

    def note(message: jsclient.Message) -> None:
        results.append(number_of(message.data))

    async def note_later(message: jsclient.Message) -> None:
        await asyncio.sleep(0)
        note(message)

    await stream.publish(10)
    async with await door.subscribe(stream.all, queue=queue, callback=note if plain else note_later) as sub:
        await eventually(lambda: results == list(range(1, 11)), what="ten calls")
        info = await stream.oracle.wait_consumer(
            stream.name, sub.consumer, lambda info: info["ack_floor"]["stream_seq"] == 10
        )
        assert info["config"]["ack_policy"] == "explicit"


@pytest.mark.covers("J2", "J47")
async def test_pending_at_creation(js: Any, stream: OwnStream) -> None:
    """§4.1-5."""
    await stream.publish(10, "a")
    for tokens, expected in ((("a",), 10), (("b",), 0)):
        sub = await js.pull_subscribe(stream.subject(*tokens))
        assert (await sub.consumer_info()).num_pending == expected
        await sub.unsubscribe()


@pytest.mark.covers("J6", "J20", "J2")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_stream_without_subject_reads_all_of(js: Any, stream: OwnStream, kind: str) -> None:
    """§4.1-1 and 10."""
    await stream.publish(2, "a")
    await stream.publish(1, "b")
    async with await getattr(js, kind)(stream=stream.name) as sub:
        assert len(await take(sub, 3)) == 3
        assert (await sub.consumer_info()).config.filters == []


@pytest.mark.covers("J2")
async def test_named_ephemeral_keeps_name(js: Any, stream: OwnStream) -> None:
    """§4.1-23."""
    async with await js.pull_subscribe(stream.all, config=ConsumerConfig(name="named")) as sub:
        assert sub.consumer == "named"
        assert await stream.consumer_names() == ["named"]
        assert (await sub.consumer_info()).config.durable_name is None


@pytest.mark.smoke
@pytest.mark.row(126)
@pytest.mark.covers("J25", "J31")
async def test_ten_members_share_consumer(connect: Any, server: ServerUnderTest, stream: OwnStream) -> None:
    """§4.1-22 and 31."""
    connections = [await connect(server) for _ in range(5)]
    subs = await asyncio.gather(
        *(js.subscribe(stream.subject("x"), queue="workers") for js in connections for _ in range(2))
    )
    assert {sub.consumer for sub in subs} == {"workers"} == set(await stream.consumer_names())
    assert sum(sub.created for sub in subs) == 1
    results: list[int] = []

    async def work(sub: Any) -> None:
        async for message in sub:
            results.append(number_of(message.data))
            await message.ack()

    workers = [asyncio.create_task(work(sub)) for sub in subs]
    await stream.publish(500)
    await eventually(lambda: len(results) >= 500, 20, "every message")
    await stream.oracle.wait_consumer(
        stream.name, "workers", lambda info: info["ack_floor"]["stream_seq"] == 500
    )
    assert sorted(results) == list(range(1, 501))
    for sub in subs:
        await sub.unsubscribe()
    await within(5, asyncio.gather(*workers), "the workers' end")


@pytest.mark.covers("J25", "J114", "J113", "J52")
async def test_queue_creator_deletes(connect: Any, server: ServerUnderTest, stream: OwnStream) -> None:
    first, second = await connect(server), await connect(server)
    for delete_on_close in (True, False):
        creator = await first.subscribe(stream.subject("x"), queue="shared", delete_on_close=delete_on_close)
        member = await second.subscribe(stream.subject("x"), queue="shared")
        assert (creator.created, member.created) == (True, False)
        await creator.drain()
        await eventually(
            stream.consumer_names if not delete_on_close else lambda: _is_removed(stream),
            what="the consumer's fate",
        )
        if not delete_on_close:
            seq = await stream.publish(1)
            assert (await member.next(5)).metadata.stream_seq == seq
        await member.unsubscribe()
    assert await stream.consumer_names() == ["shared"], "who did not create it must not delete it"


async def _is_removed(stream: OwnStream) -> bool:
    return not await stream.consumer_names()


@pytest.mark.row(119)
@pytest.mark.covers("J112")
async def test_consumer_there_before_never_deleted(js: Any, stream: OwnStream) -> None:
    await stream.create_consumer("push", deliver_subject="deliver.there", filter_subject=stream.all)
    await stream.create_consumer("pull", filter_subject=stream.all)
    for end in ("unsubscribe", "drain"):
        for options in ({"consumer": "push"}, {"durable": "push"}):
            sub = await js.subscribe(stream.all, **options, delete_on_close=True)
            assert not sub.created
            await getattr(sub, end)()
        for options in ({"consumer": "pull"}, {"durable": "pull"}):
            sub = await js.pull_subscribe(stream.all, **options, delete_on_close=True)
            await getattr(sub, end)()
    await js.close()
    assert sorted(await stream.consumer_names()) == ["pull", "push"]


@pytest.mark.covers("J113", "J108", "J3")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("durable", [None, "worker"])
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_subscription_leaves_nothing_behind(
    js: Any, stream: OwnStream, oracle: Oracle, server: ServerUnderTest, end: str, durable: str, kind: str
) -> None:
    """P7: nats-py leaves consumers on the server, durable ones for ever."""
    await js.account_info()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        sub = await getattr(js, kind)(stream.all, durable=durable)
        assert sub.created
        assert await stream.consumer_names() == [sub.consumer]
        await getattr(sub, end)()


@pytest.mark.covers("J40", "J113")
async def test_recreated_durable_new_inbox(proxy: Any, connect: Any, stream: OwnStream) -> None:
    """§4.1-7."""
    tap = await proxy()
    js = await connect(tap)
    subjects = []
    for _ in range(2):
        sub = await js.subscribe(stream.all, durable="again")
        subjects.append(sub.subject)
        await sub.drain()
        assert await stream.consumer_names() == []
    assert subjects == [frame.subject for frame in delivers(tap)]
    assert len(set(subjects)) == 2
    assert len(api_requests(tap, "CONSUMER.DELETE.>")) == 2


@pytest.mark.covers("J70")
async def test_message_time_nanoseconds(js: Any, stream: OwnStream) -> None:
    """P33: in nats-py it is a microsecond off for every second message."""
    await stream.publish(200)
    async with await js.subscribe(stream.all) as sub:
        for message in await take(sub, 200):
            tokens = message.reply.split(".")
            nanoseconds = int(tokens[7 if len(tokens) == 9 else 9])
            assert message.metadata.timestamp_ns == nanoseconds
            since_1970 = message.metadata.timestamp - datetime(1970, 1, 1, tzinfo=UTC)
            assert since_1970 // timedelta(microseconds=1) == nanoseconds // 1000


@pytest.mark.covers("J81", "J107")
async def test_status_never_reaches_callback(
    proxy: Any, connect: Any, events: list[Any], stream: OwnStream
) -> None:
    """P25: nats-py hands it over as an empty message."""
    tap = await proxy()
    js = await connect(tap)
    results: list[bytes] = []
    sub = await js.subscribe(stream.all, callback=noting(results, lambda message: message.data))
    for status in (
        "409 Consumer Deleted",
        "409 Message Size Exceeds MaxBytes",
        "503",
        "499 Odd",
        "100 Odd",
        "404",
    ):
        tap.inject_message(sub.subject, status=status)
    await stream.publish(1)
    await eventually(lambda: results, what="the message behind the statuses")
    assert results == [b"1"]
    reports = [str(event) for event in events]
    for text in ("Consumer Deleted", "503", "499"):
        assert any(text in event for event in reports), f"{text} must be told: {reports}"


@pytest.mark.covers("J48", "J2")
async def test_ack_pending_fits_buffer(js: Any, stream: OwnStream) -> None:
    """§4.1-28 and 29."""
    await stream.publish(200)
    async with await js.subscribe(stream.all, max_pending=25) as sub:
        assert (await sub.consumer_info()).config.max_ack_pending == 25
        await eventually(lambda: sub.pending == 25, what="a full buffer")
        await never(lambda: sub.pending > 25, 0.2, "more than the buffer holds")
        actual = await within(15, read_iterating(sub, 200), "reading")
        assert actual == list(range(1, 201))
        assert sub.dropped == 0
