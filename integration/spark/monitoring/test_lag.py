"""The answers of a server about unread messages, and the thread that asks for them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from jsclient.errors import ConsumerNotFoundError, PositionInvalidError
from jsclient.spark.monitoring.lag import LagWatch, unread_after
from jsclient.spark.monitoring.progress import LogPosition, QueuePosition
from jsclient.tables.server_options import ServerOptions

KEPT = {"ack_policy": "explicit", "durable_name": "c"}


async def place_in(js, stream, seq, *subjects):
    created = (await js.stream(stream.name)).cached_info.created.isoformat()
    return LogPosition(stream.name, created, seq, tuple(map(stream.subject, subjects)))


async def test_unread_messages(js, stream):
    await stream.publish(5, "a")
    await stream.publish(5, "b")
    before = time.monotonic()
    await stream.publish(5, "a")
    assert (await unread_after(js, await place_in(js, stream, 3))).last == 15
    assert (await unread_after(js, await place_in(js, stream, 3, "b"))).last == 10
    some = await unread_after(js, await place_in(js, stream, 3, "b", "c"))
    assert some.last == 10
    position = await place_in(js, stream, 10, "a", "b")
    requests = time.monotonic()
    late = await unread_after(js, position)
    took = time.monotonic() - requests
    assert late.last == 15
    assert some.since < before < late.since + took + 0.01  # two clocks
    nothing = await unread_after(js, await place_in(js, stream, 15))
    assert nothing.last == 0
    assert before < nothing.since <= time.monotonic()
    assert (await unread_after(js, await place_in(js, stream, 10, "b"))).last == 0


async def test_nothing_unread_takes_one_request(js, stream, monkeypatch):
    await stream.publish(5)

    async def fail(*_):
        raise AssertionError("a message was asked for")

    monkeypatch.setattr("jsclient.streams.stream.Stream.get_next_message", fail)
    assert (await unread_after(js, await place_in(js, stream, 5, "a"))).last == 0


@pytest.mark.parametrize("retention", ["workqueue", "limits"])
async def test_messages_not_acked(js, make_stream, retention):
    """Pending and delivered messages count: the age belongs to the oldest of them."""
    stream = await make_stream(retention=retention)
    await stream.create_consumer("c", filter_subjects=[stream.subject("a"), stream.subject("b")], **KEPT)
    position = QueuePosition(stream.name, "c")
    assert (await unread_after(js, position)).last == 0
    await stream.publish(3, "a")
    between = time.monotonic()
    await stream.publish(4, "b")
    await stream.publish(2, "b")
    actual = await unread_after(js, position)
    assert (actual.last, actual.since < between) == (9, True)
    consumer = await (await js.stream(stream.name)).consumer("c")
    claimed = await consumer.fetch(5)
    assert (await unread_after(js, position)).last == 9
    for message in claimed[:3]:
        await message.ack_sync()
    actual = await unread_after(js, position)
    assert (actual.last, actual.since > between - 0.01) == (6, True)  # two clocks
    for message in [*claimed[3:], *await consumer.fetch(4)]:
        await message.ack_sync()
    actual = await unread_after(js, position)
    assert (actual.last, actual.since > between) == (0, True)


async def test_consumer_is_missing(js, stream):
    with pytest.raises(ConsumerNotFoundError):
        await unread_after(js, QueuePosition(stream.name, "c"))


async def test_recreated_stream_refused(js, stream):
    position = await place_in(js, stream, 0)
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all])
    with pytest.raises(PositionInvalidError, match="recreated"):
        await unread_after(js, position)


class Watched:
    """A watch and its answers."""

    def __init__(self, url, places):
        self.places, self.answers = dict(places), []
        options = ServerOptions.of({"servers": url, "timeout": "0.5"})
        self.watch = LagWatch(options, 0.05, lambda: self.places, lambda *answer: self.answers.append(answer))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "jsclient-spark-lag"]


async def test_watch_ends_and_begins_again(js, server, stream):
    await stream.publish(5)
    position = await place_in(js, stream, 2)
    watched = Watched(server.url, {"a": position})
    watched.watch.start_thread()
    watched.watch.start_thread()
    assert len(threads()) == 1
    key, requests, unread = await eventually(lambda: watched.answers and watched.answers[0])
    assert (key, requests, unread.last) == ("a", position, 5)
    watched.places.clear()
    await eventually(lambda: threads() == [])
    watched.places["b"] = position
    watched.watch.start_thread()
    await eventually(lambda: watched.answers[-1][0] == "b")
    await asyncio.to_thread(watched.watch.close)
    assert threads() == []
    watched.watch.start_thread()
    assert threads() == []


async def test_server_away_and_back(own_server, oracle_for, caplog):
    """The answer stays None meanwhile, and the log says so once."""
    own = await own_server()
    stream = await OwnStream.create(await oracle_for(own), "away", storage="file")
    await stream.publish(5)
    async with jsclient.connect(own.url) as js:
        watched = Watched(own.url, {"a": await place_in(js, stream, 2)})
    others = {name: LogPosition(name, "", 0) for name in ("B", "C", "D", "E")}
    watched.places |= others
    await own.stop()
    watched.watch.start_thread()
    await eventually(lambda: len(watched.answers) > 3 * 5)
    assert {unread for _, _, unread in watched.answers} == {None}
    (warning,) = [text for text in caplog.messages if "in seconds is unknown" in text]
    assert warning.startswith("the lag of streams 'B', 'C', 'D' and 2 others in seconds is unknown: ")
    for name in others:
        del watched.places[name]
    await own.start()
    await eventually(lambda: watched.answers[-1][0] == "a" and watched.answers[-1][2] is not None)
    assert watched.answers[-1][2].last == 5
    await asyncio.to_thread(watched.watch.close)


async def test_close_does_not_wait_for_server(own_server):
    own = await own_server()
    await own.stop()
    watched = Watched(own.url, {"a": LogPosition("S", "", 0)})
    watched.watch.start_thread()
    async with asyncio.timeout(30):
        await asyncio.to_thread(watched.watch.close)
    await never(threads, 0.1)
