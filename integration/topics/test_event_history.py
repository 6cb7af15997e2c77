"""Events with a history on a stream: the suite of tests/topics/test_event_history.py, and what only a server shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import noting
from integration.kit.judge.waiting import eventually, within
from jsclient import EventSource
from jsclient.protocol.wire.units import parse_time_ns
from tests.topics.test_event_history import EventSuite, data, publish, read

REPUBLISH = {"src": ">", "dest": "pushed.>"}


class StreamWorld:
    """Logs on a server, each a stream, which may republish what it stores."""

    def __init__(self, js: Any, make_stream: Any, events: list[Any], config: dict[str, Any]) -> None:
        self.events = events
        self._js, self._make, self._config = js, make_stream, config
        self.prefix = ""

    async def source(self, tail: str = "a", **config: Any) -> EventSource:
        stream = await self._make(**self._config, **config)
        self.prefix = stream.prefix
        source: EventSource = self._js.events(stream.subject(tail))
        return source

    async def until(self, condition: Any) -> None:
        await eventually(condition)


@pytest.fixture(params=["direct", "plain", "republish"])
async def world(request: Any, js: Any, oracle: Any, make_stream: Any, events: list[Any]) -> StreamWorld:
    configs: dict[str, dict[str, Any]] = {
        "direct": {"allow_direct": True},
        "plain": {"allow_direct": False},
        "republish": {"allow_direct": True, "republish": REPUBLISH},
    }
    return StreamWorld(js, make_stream, events, configs[request.param])


class TestEvents(EventSuite):
    pass


# --- what only a server shows -------------------------------------------------------------------------------------


@pytest.mark.covers("T5", "T6", "T7", "T8", "T9", "T20", "T38")
async def test_push_has_time_and_link(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream(allow_direct=True, republish=REPUBLISH)
    source = js.events(stream.subject("a"))
    async with await source.subscribe("first") as sub:
        await eventually(
            lambda: tap.find(lambda frame: frame.op == "SUB" and frame.subject.startswith("pushed."))
        )
        await js.ping()
        await publish(source, b"1", b"2")
        await oracle.publish(stream.subject("other"), b"x")
        await publish(source, b"3")
        assert await read(sub, 3) == [b"1", b"2", b"3"]
        pushed = await eventually(lambda: (seen := tap.received("pushed.>")) and len(seen) == 3 and seen)
        links = [(frame.header("Nats-Sequence"), frame.header("Nats-Last-Sequence")) for frame in pushed]
        assert links == [("1", "0"), ("2", "1"), ("4", "2")]
        assert len({frame.sid for frame in pushed}) == 1, "the id of the NATS subscription"
        stamps = [parse_time_ns(frame.header("Nats-Time-Stamp")) for frame in pushed]
        assert stamps == [event.time_ns for event in await source.history()]
        event, at = await source.current()
        assert (at.seq, at.time_ns) == (4, event.time_ns)
        assert await stream.consumer_names() == []


@pytest.mark.smoke
@pytest.mark.server(">=2.11")
@pytest.mark.covers("T9", "T10", "T11", "T12", "T13")
async def test_long_history_no_consumer(js: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True, max_msgs=30_000)
    await stream.publish(25_000, "a")
    source = js.events(stream.subject("a"))
    await source.current()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        history = source.history()
        seqs = [event.seq async for events in history.batches() for event in events]
        assert seqs == [*range(1, 25_001)]
        assert history.position is not None
        assert await source.history(history.position) == []
        async for event in source.history(history.position.at(20_000)):
            assert event.seq == 20_001
            break
        assert await stream.consumer_names() == []


@pytest.mark.covers("T4", "T19")
async def test_history_includes_earlier(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    source = js.events(stream.subject("a"))
    at = (await source.current()).position
    for number in range(50):
        sent = await source.publish(b"%d" % number)
        assert [event.seq for event in await source.history(at)] == [sent.seq]
        at = sent


async def test_deleted_last_event(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    source = js.events(stream.subject("a"))
    at = await publish(source, b"1", b"2", b"3")
    history = source.history(at[0], limit=10).batches(1)
    assert data(await anext(history)) == [b"2"]
    await oracle.delete_message(stream.name, at[2].seq)
    await within(5.0, drained(history), "the end of a history")


async def drained(history: Any) -> list[Any]:
    return [events async for events in history]


async def test_stream_lookup_on_first_use(js: Any, oracle: Any, make_stream: Any) -> None:
    source = js.events("nobody.has.this")
    with pytest.raises(jsclient.NoMatchingStreamError):
        await source.subscribe()
    with pytest.raises(jsclient.StreamNotFoundError):
        await js.events("nobody.has.this", stream="NOBODY").current()
    for wrong in ("a b", ""):
        with pytest.raises(jsclient.InvalidNameError):
            js.events(wrong)
    with pytest.raises(jsclient.InvalidNameError):
        js.events("a", stream="a.b")


async def test_close_deletes_consumers(connect: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    js = await connect(server)
    stream = await make_stream(allow_direct=True)
    source = js.events(stream.subject("a"))
    sub = await source.subscribe(push="consumer")
    got: list[Any] = []
    called = await source.subscribe(push="consumer", callback=noting(got))
    await eventually(stream.consumer_names)
    waiting = asyncio.create_task(sub.next())
    await asyncio.sleep(0)
    await js.close()
    with pytest.raises(jsclient.ClosedError):
        await within(5.0, waiting, "a read")
    await called.wait()
    await eventually(lambda: no_consumers(stream))


async def no_consumers(stream: Any) -> bool:
    return await stream.consumer_names() == []
