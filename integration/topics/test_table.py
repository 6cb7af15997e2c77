"""A table of the newest record of each subject, and the newest records of a topic with wildcards."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

import jsclient
from integration.kit.clients.topics import republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.wire import Frame
from jsclient import ClosedError, ConfigError, PositionInvalidError, RequestTimeoutError, TopicTable


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


def content(table: Any) -> dict[str, int]:
    return {subject.rpartition(".")[2]: int(record.data) for subject, record in table.items()}


async def no_consumers(stream: OwnStream) -> None:
    """A request for the history that is in flight ends in the background."""

    async def none() -> bool:
        return await stream.consumer_names() == []

    await eventually(none, what="nothing is held on the server")


async def purged(handle: Any) -> bool:
    try:
        return await handle.purge(subject="s.s0") is not None
    except jsclient.JetStreamError:
        return False


async def update(js: Any, stream: OwnStream, first: int, end: int, subjects: int = 20) -> dict[str, int]:
    """Publish numbers to the subjects in turn. Return the newest of each."""
    async with js.publisher() as pub:
        for number in range(first, end):
            await pub.publish(stream.subject(f"s{number % subjects}"), b"%d" % number)
    return {f"s{number % subjects}": number for number in range(max(first, end - subjects), end)}


@pytest.mark.parametrize("push", ["auto", "republish", None])
@pytest.mark.parametrize("direct", [True, False])
async def test_snapshot_then_current(
    js: Any, stream: OwnStream, oracle: Any, push: Any, *, direct: bool
) -> None:
    await oracle.update_stream(stream.name, allow_direct=direct)
    expected = await update(js, stream, 0, 60)
    async with js.topic(stream.all).table(push=push, quiet=0.3) as table:
        assert content(table) == expected
        assert len(table) == 20
        assert table.position.seq == 60
        expected = await update(js, stream, 60, 100)
        await within(10, table.wait_for(lambda records: content(records) == expected), "the changes")
        subject = stream.subject("s3")
        assert subject in table
        assert table[subject].position.seq == table[subject].seq == 84
        assert table.get(stream.subject("none")) is None
        assert set(table) == {stream.subject(f"s{number}") for number in range(20)}
    assert content(table) == expected
    await no_consumers(stream)


async def test_empty_topic(js: Any, stream: OwnStream) -> None:
    async with js.topic(stream.all).table() as table:
        assert dict(table) == {}
        await js.publish(stream.subject("a"), b"1")
        await within(10, table.wait_for(len), "the first record")
        assert content(table) == {"a": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"check": 0}, "check"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"push": "fast"}, "push is 'fast'"),
        ({}, "retention"),
    ],
)
async def test_options_refused(
    js: Any, oracle: Any, make_stream: Any, options: dict[str, Any], words: str
) -> None:
    stream = await make_stream(**({} if options else {"retention": "workqueue"}))
    with pytest.raises(ConfigError, match=words):
        await js.topic(stream.all).table(**options)


async def test_many_subjects(js: Any, stream: OwnStream) -> None:
    """More than one request for newest messages may match."""
    expected = await update(js, stream, 0, 3000, 1100)
    async with js.topic(stream.all).table() as table:
        assert content(table) == expected


@pytest.mark.parametrize("limit", [1, 3, -1])
async def test_opened_while_it_changes(
    js: Any, stream: OwnStream, oracle: Any, events: Any, limit: int
) -> None:
    """Whatever is replaced before it is read: the table is right, and no gap is reported."""
    await oracle.update_stream(stream.name, max_msgs_per_subject=limit)
    chance = random.Random(3)
    expected: dict[str, int] = {}

    async def publish() -> None:
        async with js.publisher() as pub:
            for number in range(4000):
                name = f"s{chance.randrange(50)}"
                expected[name] = number
                await pub.publish(stream.subject(name), b"%d" % number)

    publishing = asyncio.create_task(publish())
    tables = [await js.topic(stream.all).table(check=0.2) for _ in range(4)]
    await publishing
    for table in tables:
        await within(20, table.wait_for(lambda records: content(records) == expected), "the newest records")
        await table.close()
    assert [event for event in events if isinstance(event, jsclient.HistoryTruncated)] == []


async def test_removed_subjects(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    await update(js, stream, 0, 40)
    async with js.topic(stream.all).table(check=0.2) as table:
        changes = table.changes()
        await handle.purge(subject=stream.subject("s19"))
        await handle.delete_message(37)  # the newest record of s16. The previous record remains
        await within(
            20,
            table.wait_for(lambda records: len(records) == 19 and records[stream.subject("s16")].seq == 17),
            "the removals",
        )
        seen = dict([await changes.next(timeout=5) for _ in range(2)])
        assert seen[stream.subject("s19")] is None
        assert seen[stream.subject("s16")].data == b"16"
        await handle.purge()
        await within(20, table.wait_for(lambda records: not records), "the purge")
        await js.publish(stream.subject("s1"), b"7")
        await within(20, table.wait_for(lambda records: content(records) == {"s1": 7}), "a new record")


@pytest.mark.parametrize("push", ["republish", "auto", None])
async def test_removed_before_the_history_is_read(js: Any, stream: OwnStream, push: Any) -> None:
    """A republished record does not move the position if a record of another topic is before it."""
    handle = await js.stream(stream.name)
    await js.publish(stream.subject("a"), b"1")
    await js.publish(stream.subject("b"), b"2")
    async with js.topic(stream.subject("*")).table(push=push, quiet=3, check=0.2) as table:
        await js.publish(stream.subject("other.x"), b"")
        await js.publish(stream.subject("a"), b"3")
        await within(20, table.wait_for(lambda records: content(records) == {"a": 3, "b": 2}), "the update")
        await js.publish(stream.subject("other.x"), b"")
        await js.publish(stream.subject("b"), b"4")
        await within(20, table.wait_for(lambda records: content(records) == {"a": 3, "b": 4}), "the update")
        await handle.purge(subject=stream.subject("a"))
        await handle.delete_message(6)  # the newest record of b. The previous record remains
        await within(20, table.wait_for(lambda records: content(records) == {"b": 2}), "the removals")


async def test_removed_while_a_page_is_on_its_way(
    js: Any, stream: OwnStream, oracle: Any, proxy: Any, connect: Any, server: Any
) -> None:
    """A page of the history that was read before a removal, and is late, does not bring the subject back for good."""
    await oracle.update_stream(stream.name, allow_direct=False)
    handle = await js.stream(stream.name)
    await js.publish(stream.subject("a"), b"1")
    await js.publish(stream.subject("b"), b"1")
    tap = await proxy(server)
    far = await connect(tap, timeout=20.0)  # a quarter of it for the deletion of a reader's consumer
    has_read = False

    def ends_the_page(frame: Frame) -> bool:
        nonlocal has_read
        has_read |= frame.payload == b"2"
        deletions = tap.sent(f"$JS.API.CONSUMER.DELETE.{stream.name}.*")
        return has_read and frame.subject in {one.reply for one in deletions if ".jsc-" in str(one.subject)}

    async with far.topic(stream.all).table(push=None, quiet=0.2, check=0.1) as table:
        held = tap.hold_frames(ends_the_page)
        await js.publish(stream.subject("a"), b"2")
        await held.wait()
        await handle.purge(subject=stream.subject("a"))
        await within(10, table.wait_for(lambda records: content(records) == {"b": 1}), "the removal")
        looks = len(tap.sent("$JS.API.STREAM.INFO.>"))
        await eventually(lambda: len(tap.sent("$JS.API.STREAM.INFO.>")) > looks + 5, 10, "more comparisons")
        held.release()
        await within(10, table.wait_for(lambda records: records.position.seq >= 3), "the page")
        await within(10, table.wait_for(lambda records: content(records) == {"b": 1}), "the removal again")


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("remaining", [0, 1])
async def test_many_removed(
    js: Any, stream: OwnStream, proxy: Any, connect: Any, server: Any, remaining: int
) -> None:
    """If no record is left, all subjects go at once. Otherwise the leader is asked for several at the same time."""
    count = 2000
    handle = await js.stream(stream.name)
    await update(js, stream, 0, count, count)
    slow = await proxy(server)
    far = await connect(slow)
    async with far.topic(stream.all).table(check=0.1) as table:
        assert len(table) == count
        slow.delay(0.05)  # 2,000 requests one after the other take more than 100 s
        await handle.purge(keep=remaining)
        expected = {f"s{count - 1}": count - 1} if remaining else {}
        await within(80, table.wait_for(lambda records: content(records) == expected), "the removals")


async def test_connection_closed(stream: OwnStream, connect: Any, server: Any) -> None:
    js = await connect(server)
    expected = await update(js, stream, 0, 3)
    table = await js.topic(stream.all).table()
    changes = table.changes()
    await js.close()
    assert table.is_closed
    assert content(table) == expected, "its last state"
    assert [change async for change in changes] == []
    with pytest.raises(ClosedError):
        await within(5, table.wait_for(lambda _: False), "a closed connection")


async def test_deletion_markers(js: Any, stream: OwnStream) -> None:
    """Of a key-value bucket, and of the server."""
    marks = [{"KV-Operation": "DEL"}, {"KV-Operation": "PURGE"}, {"Nats-Marker-Reason": "MaxAge"}]
    await update(js, stream, 0, 4, 4)
    await js.publish(stream.subject("s0"), b"", headers=marks[0])
    async with js.topic(stream.all).table() as table:
        assert content(table) == {"s1": 1, "s2": 2, "s3": 3}
        for number in (1, 2):
            await js.publish(stream.subject(f"s{number}"), b"", headers=marks[number])
        await within(10, table.wait_for(lambda records: content(records) == {"s3": 3}), "the deletions")


async def test_changes(js: Any, stream: OwnStream) -> None:
    await update(js, stream, 0, 3, 3)
    async with js.topic(stream.all).table() as table:
        everything, new = table.changes("first"), table.changes()
        assert [int((await everything.next(timeout=5)).record.data) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RequestTimeoutError):
            await new.next(timeout=0.05)
        with pytest.raises(RequestTimeoutError):
            await table.wait_for(lambda records: len(records) == 4, timeout=0.05)
        expected = await update(js, stream, 3, 303, 3)
        await within(10, table.wait_for(lambda records: content(records) == expected), "the changes")
        assert len([await new.next(timeout=5) for _ in range(3)]) == 3, "one for each subject"
        with pytest.raises(RequestTimeoutError):
            await new.next(timeout=0.05)
        waiting = asyncio.create_task(new.next())
        await asyncio.sleep(0)
        await new.close()
        with pytest.raises(ClosedError):
            await within(5, waiting, "a closed reader")
        with pytest.raises(ConfigError, match="start"):
            table.changes("all")
    assert [change.subject async for change in everything] == [stream.subject(f"s{n}") for n in range(3)]
    with pytest.raises(ClosedError):
        await within(5, table.wait_for(lambda _: False), "a closed table")


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("push", ["consumer", "republish"])
async def test_server_killed(own_server: Any, connect: Any, push: Any) -> None:
    """Updates and removals while the table is not connected."""
    server = await own_server()
    js = await connect(server, reconnect_time_wait=0.05, connect_timeout=1.0)
    writer = await connect(server, reconnect_time_wait=0.05, connect_timeout=1.0)
    republish = {"src": ">", "dest": "pushed.>"}
    handle = await writer.create_stream("S", subjects=["s.>"], allow_direct=True, republish=republish)
    async with js.topic("s.*").table(push=push, quiet=0.3, check=0.2) as table:
        for first in range(0, 300, 100):
            async with writer.publisher(timeout=30) as pub:
                for number in range(first, first + 100):
                    await pub.publish(f"s.s{number % 30}", b"%d" % number, msg_id=str(number))
            await server.kill()
            await server.start()
        await eventually(lambda: purged(handle), 20, "the purge")
        expected = {f"s{number % 30}": number for number in range(270, 300)}
        del expected["s0"]
        await within(30, table.wait_for(lambda records: content(records) == expected), "the newest records")


def users(denied: list[str]) -> dict[str, Any]:
    ann = {"user": "ann", "password": "x", "permissions": {"publish": {"deny": denied}}}
    return {"authorization": {"users": [{"user": "judge", "password": "x"}, ann]}}


async def test_may_not_be_compared(own_server: Any, connect: Any) -> None:
    """It is reported once. The table continues, and is compared after a reconnect with more rights."""
    server = await own_server(config=users(["$JS.API.STREAM.MSG.GET.>"]))
    seen: list[Any] = []
    fast = {"reconnect_time_wait": 0.05, "connect_timeout": 1.0, "password": "x"}
    judge = await connect(server, user="judge", **fast)
    js = await connect(server, user="ann", on_event=seen.append, **fast)
    republish = {"src": ">", "dest": "pushed.>"}
    handle = await judge.create_stream("S", subjects=["s.>"], allow_direct=True, republish=republish)
    for number in range(3):
        await judge.publish(f"s.s{number}", b"%d" % number)
    async with js.topic("s.*").table(push="consumer", check=0.1) as table:
        assert await handle.purge(subject="s.s0") == 1

        def denied() -> list[str]:
            return [event.subject for event in seen if isinstance(event, jsclient.PermissionDenied)]

        # The reader and the comparison each ask once.
        await eventually(lambda: denied() == ["$JS.API.STREAM.MSG.GET.S"] * 2, what="the events")
        await judge.publish("s.s1", b"7")
        await within(10, table.wait_for(lambda records: content(records)["s1"] == 7), "a record")
        assert table.position.seq == 4
        server.reload(users([]))
        await server.restart()
        await within(
            20, table.wait_for(lambda records: content(records) == {"s1": 7, "s2": 2}), "the removal"
        )
        assert len(denied()) == 2
    assert [event for event in seen if isinstance(event, jsclient.ErrorRaised)] == []


# Before 2.11, a table is opened with a consumer in any case.
@pytest.mark.parametrize("direct", [pytest.param(True, marks=pytest.mark.server(">=2.11")), False])
async def test_opened_without_a_right(own_server: Any, connect: Any, *, direct: bool) -> None:
    """It is opened with direct gets, or without them with a consumer. The error names the right that is missing."""
    right = "$JS.API.DIRECT.GET" if direct else "$JS.API.CONSUMER.CREATE"
    server = await own_server(config=users([f"{right}.>"]))
    judge = await connect(server, user="judge", password="x")
    await judge.create_stream("S", subjects=["s.>"], allow_direct=direct)
    await judge.publish("s.a", b"1")
    js = await connect(server, user="ann", password="x", timeout=60.0)
    with pytest.raises(jsclient.PermissionDeniedError) as caught:
        await within(20, js.topic("s.*").table(), "the refusal")  # before the timeout of a request
    assert caught.value.subject.startswith(f"{right}.S")


async def test_stream_recreated(js: Any, stream: OwnStream, oracle: Any) -> None:
    await update(js, stream, 0, 3)
    async with js.topic(stream.all).table(quiet=0.2) as table:
        config = (await js.stream(stream.name)).config
        await js.delete_stream(stream.name)
        await js.create_stream(config)
        with pytest.raises(PositionInvalidError):
            await within(20, table.wait_for(lambda _: False), "the error")
        for access in (dict, len, lambda records: records.get("x"), TopicTable.changes):
            with pytest.raises(PositionInvalidError):
                access(table)


async def test_latest_of_several_subjects(js: Any, stream: OwnStream) -> None:
    await update(js, stream, 0, 60)
    async with js.topic(stream.all).latest() as newest:
        got = [await within(10, newest.next(), "a record") for _ in range(20)]
        assert [record.seq for record in got] == [*range(41, 61)]
        assert (await newest.current()).seq == 60
        with pytest.raises(RequestTimeoutError):
            await newest.next(timeout=0.05)
        async with js.topic(stream.subject("s1")).publisher() as pub:
            await pub.finish(b"end")
        last = await within(10, newest.next(), "the end of a subject")
        assert last.is_last
        assert last.subject == stream.subject("s1")
        await js.publish(stream.subject("s2"), b"100")
        assert int((await within(10, newest.next(), "a change")).data) == 100
    await no_consumers(stream)


async def test_latest_opens_once(stream: OwnStream, proxy: Any, connect: Any, server: Any, js: Any) -> None:
    """Reads with short timeouts continue the opening of the reader."""
    expected = await update(js, stream, 0, 20)
    slow = await proxy(server)
    far = await connect(slow)
    slow.delay(0.1)
    async with far.topic(stream.all).latest() as newest:
        results: dict[str, int] = {}

        async def read() -> bool:
            with suppress(RequestTimeoutError):
                record = await newest.next(timeout=0.15)  # the opening takes several requests of 0.2 s
                results[record.subject.rpartition(".")[2]] = int(record.data)
            return results == expected

        await eventually(read, 20, "all records")
    await no_consumers(stream)


async def test_latest_closed_while_it_opens(
    stream: OwnStream, proxy: Any, connect: Any, server: Any, js: Any
) -> None:
    await update(js, stream, 0, 20)
    slow = await proxy(server)
    far = await connect(slow)
    slow.delay(0.1)
    newest = far.topic(stream.all).latest()
    with pytest.raises(RequestTimeoutError):
        await newest.next(timeout=0.05)
    reading = asyncio.create_task(newest.next())
    await asyncio.sleep(0)
    await within(5, newest.close(), "the end")
    with pytest.raises(ClosedError):
        await within(5, reading, "a closed reader")
    slow.heal()
    await no_consumers(stream)
