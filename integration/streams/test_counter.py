"""Counters: numbers that many clients add to. Source: ADR-49."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections import Counter as Tally
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.asking import api_requests, body, traffic
from integration.kit.network.proxy import Proxy

pytestmark = pytest.mark.server(">=2.12")

HUGE = 10**40


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


@pytest.fixture
async def counting(oracle: Oracle, make_stream: Any) -> OwnStream:
    stream: OwnStream = await make_stream(allow_msg_counter=True, allow_direct=True)
    return stream


async def test_a_counter_counts(js: Any, tap: Proxy, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    assert (counter.stream, repr(counter)) == (counting.name, f"<Counter {counting.name}>")
    hits = counting.subject("hits")
    results = [await counter.add(hits, amount) for amount in (1, 5, -10, 0, HUGE, -HUGE - 3)]
    assert results == [1, 6, -4, -4, HUGE - 4, -7]
    assert await counter.add(hits) == -6
    assert await counter.add(counting.subject("other")) == 1
    sent = tap.sent(hits)
    assert [frame.header("Nats-Incr") for frame in sent] == [
        "+1", "+5", "-10", "+0", f"+{HUGE}", f"-{HUGE + 3}", "+1",
    ]  # fmt: skip
    assert {frame.payload for frame in sent} == {b""}
    assert json.loads((await counting.messages())[4].payload) == {"val": str(HUGE - 4)}


async def test_a_counter_is_read(js: Any, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    hits = counting.subject("hits")
    for call in (counter.load(hits), counter.get(hits)):
        with pytest.raises(jsclient.MessageNotFoundError):
            await call
    await counter.add(hits, 7)
    await counter.add(hits, -2, headers={"Why": "a refund"})
    assert await counter.load(hits) == 5
    entry = await counter.get(hits)
    assert (entry.subject, entry.value, entry.increment, entry.sources, entry.seq) == (hits, 5, -2, {}, 2)
    stored = await (await js.stream(counting.name)).get_message(2)
    assert (stored.headers["Why"], entry.time) == ("a refund", stored.time)
    assert isinstance(entry, jsclient.CounterEntry)


@pytest.mark.smoke
async def test_concurrent_adds(connect: Any, tap: Proxy, counting: OwnStream) -> None:
    counters = [await (await connect(tap)).counter(counting.name) for _ in range(4)]
    results = await asyncio.gather(
        *(counters[number % 4].add(counting.subject("hits"), 1) for number in range(200))
    )
    assert sorted(results) == list(range(1, 201))
    assert await counters[0].load(counting.subject("hits")) == 200


# Reading many


async def test_every_counter_is_read_once(js: Any, tap: Proxy, counting: OwnStream) -> None:
    """More counters than one answer of the server may contain (1,024)."""
    counter = await js.counter(counting.name)
    assert [entry async for entry in counter.entries()] == []
    await asyncio.gather(
        *(counter.add(counting.subject("n", number), number, timeout=60) for number in range(1500))
    )
    await asyncio.gather(
        *(counter.add(counting.subject("n", number), 1, timeout=60) for number in range(0, 1500, 3))
    )
    actual = {entry.subject: entry.value async for entry in counter.entries()}
    assert actual == {counting.subject("n", number): number + (number % 3 == 0) for number in range(1500)}
    requests = tap.sent("$JS.API.DIRECT.GET.>")
    assert [len(body(frame)["multi_last"]) for frame in requests] == [1000, 500]
    subjects = Tally(
        [
            entry.subject
            async for entry in counter.entries(
                counting.subject("n", "7"), counting.subject("n", "*"), counting.subject("n", "8")
            )
        ]
    )
    assert len(subjects) == 1500
    assert set(subjects.values()) == {1}
    assert [entry.value async for entry in counter.entries(counting.subject("n", "12"))] == [13]
    assert [entry async for entry in counter.entries(counting.subject("none", ">"))] == []


async def test_answer_server_cuts_short_read_on(js: Any, tap: Proxy, counting: OwnStream) -> None:
    """The server bounds the bytes of an answer, by default to 64 MiB: here to 400."""
    counter = await js.counter(counting.name)
    for number in range(50):
        await counter.add(counting.subject("n", number), number)

    def bounded(frame: Any) -> bytes:
        raw: bytes = frame.but(payload=json.dumps({**body(frame), "max_bytes": 400}).encode()).raw
        return raw

    tap.modify_frames(match.published("$JS.API.DIRECT.GET.>"), bounded)
    actual = [(entry.subject, entry.value) async for entry in counter.entries()]
    assert actual == [(counting.subject("n", number), number) for number in range(50)]
    assert len(tap.sent("$JS.API.DIRECT.GET.>")) > 5


async def test_reading_many_leaves_nothing_behind(js: Any, tap: Proxy, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    for number in range(20):
        await counter.add(counting.subject(number), number)
    before = len(tap.link.subs)
    async for entry in counter.entries():
        assert entry.value >= 0
        break
    assert len([entry async for entry in counter.entries()]) == 20
    task = asyncio.create_task(anext(counter.entries()))
    held = tap.hold_frames(lambda frame: b"Nats-Num-Pending" in frame.headers)
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.release()
    await eventually(lambda: len(tap.link.subs) == before, what="all inboxes to be gone")
    assert await js.ping() > 0


async def test_reading_many_needs_direct_gets(js: Any, oracle: Oracle, make_stream: Any) -> None:
    stream = await make_stream(allow_msg_counter=True)
    counter = await js.counter(stream.name)
    await counter.add(stream.subject("a"))
    with pytest.raises(jsclient.ConfigError, match="allow_direct"):
        await anext(counter.entries())
    with pytest.raises(jsclient.InvalidNameError):
        await anext(counter.entries("a b"))
    assert await counter.load(stream.subject("a")) == 1


async def test_goes_wrong_while_many_read_reported(
    js: Any, tap: Proxy, oracle: Oracle, counting: OwnStream
) -> None:
    counter = await js.counter(counting.name)
    await counter.add(counting.subject("a"))
    answers = tap.hold_frames(lambda frame: b"Nats-Num-Pending" in frame.headers)
    reading = asyncio.create_task(anext(counter.entries()))
    await answers.wait()
    tap.cut()
    with pytest.raises(jsclient.DisconnectedError):
        await within(10, reading, "reading")
    answers.remove()
    assert [entry.value async for entry in counter.entries()] == [1]
    # Another client changes the stream, so no one answers.
    await oracle.update_stream(counting.name, allow_direct=False)
    with pytest.raises(jsclient.NoRespondersError, match="direct gets"):
        await anext(counter.entries())


# Answers that are lost


async def test_id_retried_counted_once(js: Any, tap: Proxy, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    hits = counting.subject("hits")
    await counter.add(hits, 40)
    lost = tap.cut_inside_frame(predicate=match.is_publish_ack)
    assert await within(20, counter.add(hits, 2, msg_id="one", timeout=15), "adding") == 42
    assert lost.count == 1
    assert len(tap.sent(hits)) == 3
    await counter.add(hits, 100)
    # The same id again: the same answer, and no increment.
    assert await counter.add(hits, 2, msg_id="one") == 42
    assert await counter.load(hits) == 142


async def test_no_id_lost_answer_unknown(js: Any, tap: Proxy, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    dropped = tap.drop_frames(match.is_publish_ack)
    with pytest.raises(jsclient.RequestTimeoutError):
        await counter.add(counting.subject("hits"), timeout=0.4)
    await dropped.wait()
    assert len(tap.sent(counting.subject("hits"))) == 1
    assert await counter.load(counting.subject("hits")) == 1


async def test_old_id_gives_current(js: Any, oracle: Oracle, make_stream: Any) -> None:
    stream = await make_stream(allow_msg_counter=True, max_msgs_per_subject=1)
    counter = await js.counter(stream.name)
    hits = stream.subject("hits")
    assert await counter.add(hits, 1, msg_id="one") == 1
    assert await counter.add(hits, 1) == 2
    assert await counter.add(hits, 1, msg_id="one") == 2
    assert await counter.load(hits) == 2


async def test_id_used_for_another_counter_reported(js: Any, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    await counter.add(counting.subject("a"), 5, msg_id="one")
    with pytest.raises(jsclient.PublishError, match="nothing was added"):
        await counter.add(counting.subject("b"), 5, msg_id="one")
    with pytest.raises(jsclient.MessageNotFoundError):
        await counter.load(counting.subject("b"))


# Values that cannot occur


async def test_counter_is_not_pickled(js: Any, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"<Counter .*> cannot be pickled or copied"):
            attempt(counter)


async def test_uncountable_refused(js: Any, tap: Proxy, counting: OwnStream) -> None:
    counter = await js.counter(counting.name)
    since = len(tap.frames)
    refused: list[Any] = [
        (counting.subject("a"), 1.0, {}),
        (counting.subject("a"), True, {}),
        (counting.subject("a"), "1", {}),
        (counting.subject("a"), 10**4300, {}),
        (counting.subject("*"), 1, {}),
        ("", 1, {}),
        (counting.subject("a"), 1, {"msg_id": ""}),
        (counting.subject("a"), 1, {"timeout": 0}),
        (counting.subject("a"), 1, {"headers": {"Nats-Incr": "2"}}),
        (counting.subject("a"), 1, {"headers": {"a b": "2"}}),
    ]
    for subject, amount, options in refused:
        with pytest.raises(jsclient.ConfigError):
            await counter.add(subject, amount, **options)
    for call in (counter.load(counting.all), counter.get("a..b")):
        with pytest.raises(jsclient.InvalidNameError):
            await call
    await js.ping()
    assert traffic(tap, since) == []


async def test_only_stream_counts_counters(
    js: Any, tap: Proxy, stream: OwnStream, counting: OwnStream
) -> None:
    with pytest.raises(jsclient.ConfigError, match="allow_msg_counter"):
        await js.counter(stream.name)
    with pytest.raises(jsclient.StreamNotFoundError):
        await js.counter("missing")
    with pytest.raises(jsclient.InvalidNameError):
        await js.counter("a.b")
    assert api_requests(tap) == [f"STREAM.INFO.{stream.name}", "STREAM.INFO.missing"]
    counter = await js.counter(counting.name)
    with pytest.raises(jsclient.ApiError) as caught:
        await counter.add(stream.subject("a"))
    assert caught.value.err_code == 10168
    assert (await stream.state())["messages"] == 0
    with pytest.raises(jsclient.ApiError) as caught:
        await counter.add(counting.subject("a"), headers={"Nats-Rollup": "sub"})
    assert caught.value.err_code == 10171


async def test_other_stream_reported(js: Any, oracle: Oracle, make_stream: Any, counting: OwnStream) -> None:
    other = await make_stream(allow_msg_counter=True)
    counter = await js.counter(counting.name)
    with pytest.raises(jsclient.PublishError, match=other.name):
        await counter.add(other.subject("a"))


async def test_sourced_counter(js: Any, oracle: Oracle, make_stream: Any, counting: OwnStream) -> None:
    """ADR-49 §Source-based: the value of each source, apart from the additions here."""
    origin = await make_stream(allow_msg_counter=True)
    source = {
        "name": origin.name,
        "subject_transforms": [{"src": origin.subject("hits"), "dest": counting.subject("all")}],
    }
    await oracle.update_stream(counting.name, sources=[source])
    here, there = await js.counter(counting.name), await js.counter(origin.name)
    await there.add(origin.subject("hits"), 30)
    await there.add(origin.subject("hits"), 3)

    async def sourced() -> bool:
        entry = await here.get(counting.subject("all"))
        return bool(entry.value == 33)

    async def arrived() -> bool:
        try:
            return await sourced()
        except jsclient.MessageNotFoundError:
            return False

    await eventually(arrived, 20, "what the source counted")
    await here.add(counting.subject("all"), 1000)
    entry = await here.get(counting.subject("all"))
    assert (entry.value, entry.increment) == (1033, 1000)
    assert entry.sources == {origin.name: {origin.subject("hits"): 33}}
    assert [counter_entry.sources async for counter_entry in here.entries()] == [entry.sources]
