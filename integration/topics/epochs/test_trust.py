"""A user who may only publish to a topic's live subject, or one stray message, cannot harm the topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually
from jsclient.epochs import Data
from jsclient.errors import ConfigError, ProducerFencedError, RequestTimeoutError
from jsclient.events import RecordSkipped
from tests.topics.epochs.kit import all_of, items
from tests.topics.epochs.kit import events as read_events

BEAT = 0.2
VICTIM = "$JS.API.STREAM.DELETE.VICTIM"
GUEST = {"publish": ["open.*.live"], "subscribe": ["_INBOX_guest.>"]}


def request_body(verb: str) -> bytes:
    return json.dumps({"v": 1, "verb": verb, "order": "int", "codec": "json"}).encode()


@pytest.fixture
async def world(own_server: Any, oracle_for: Any, connect: Any) -> Any:
    """A stream to attack, a live publisher with all rights, and a guest with almost none."""
    users = [
        {"user": "owner", "password": "x"},
        {"user": "guest", "password": "x", "permissions": GUEST},
    ]
    server = await own_server(config={"authorization": {"users": users}})
    oracle = await oracle_for(server.url.replace("nats://", "nats://owner:x@"))
    await oracle.create_stream("VICTIM", ["victim.>"], storage="memory")
    owner = await connect(server.url, user="owner", password="x")
    guest = await connect(server.url, user="guest", password="x", inbox_prefix="_INBOX_guest")
    return server, oracle, owner, guest


@pytest.fixture
async def publisher(world: Any) -> AsyncIterator[Any]:
    _, _, owner, _ = world
    async with await owner.epochs("open").live_publisher(beat=BEAT) as pub:
        yield pub


@pytest.mark.parametrize("verb", ["alive", "connect", "leave"])
async def test_live_reply_cannot_be_api_call(world: Any, publisher: Any, verb: str) -> None:
    _, oracle, _, guest = world
    for _ in range(3):
        await guest._connection.publish("open.0.live", request_body(verb), reply=VICTIM)
    await guest._connection.ping(5)
    await publisher.send(1, ["x"])
    await asyncio.sleep(2 * BEAT)
    assert await oracle.stream_names() == ["VICTIM"], "the stream was deleted with the publisher's rights"
    assert publisher.subscribers == 0


@pytest.mark.parametrize("reply", ["victim.loot", "$SYS.REQ.SERVER.PING", "_INBOX", "_INBOXES"])
async def test_live_data_goes_only_to_inboxes(world: Any, publisher: Any, reply: str) -> None:
    _, oracle, owner, guest = world
    seen: list[Any] = []
    loot = await owner._connection.subscribe(reply, seen.extend)
    await guest._connection.publish("open.0.live", request_body("connect"), reply=reply)
    await publisher.send(1, ["secret"])
    await asyncio.sleep(2 * BEAT)
    assert (await oracle.stream_info("VICTIM"))["state"]["messages"] == 0
    assert (seen, publisher.subscribers) == ([], 0)
    await owner._connection.unsubscribe(loot)


async def test_live_subscribers_limited(world: Any) -> None:
    _, _, owner, guest = world
    topic = owner.epochs("open")
    async with (
        await topic.live_publisher(beat=BEAT, max_subscribers=1) as pub,
        await topic.live_subscribe(beat=BEAT),
    ):
        for number in range(50):
            await guest._connection.publish(
                "open.0.live", request_body("connect"), reply=f"_INBOX_guest.{number}"
            )
        await guest._connection.ping(5)
        await eventually(lambda: pub.refused == 50)
        assert pub.subscribers == 1


async def test_live_reply_prefix_option(world: Any) -> None:
    _, _, owner, guest = world
    topic = owner.epochs("open")
    async with await topic.live_publisher(beat=BEAT, reply_prefix="_INBOX_team"):
        with pytest.raises(RequestTimeoutError):
            await guest.epochs("open").live_subscribe(beat=BEAT, timeout=1)
    for wrong in (0, True, "1"):
        with pytest.raises(ConfigError):
            await topic.live_publisher(max_subscribers=wrong)


async def test_guest_with_inbox_served(world: Any, publisher: Any) -> None:
    _, _, _, guest = world
    async with await guest.epochs("open").live_subscribe(beat=BEAT) as sub:
        await publisher.send(1, ["a"])
        assert items(await read_events(sub, lambda event: isinstance(event, Data))) == [(1, ["a"])]


# --- stray messages in a stored topic ----------------------------------------------------------------------

HEADER = b"NATS/1.0 %b\r\n\r\n"
STRAYS = {
    "text": (b"", b"?"),
    "empty": (b"", b""),
    "heartbeat": (HEADER % b"100 Idle Heartbeat", b""),
    "no messages": (HEADER % b"404 No Messages", b""),
    "puback": (b"", b'{"stream":"T","seq":3}'),
    "frontier without headers": (b"", b'{"v":1,"updates":[],"lower":[9],"upper":[9]}'),
    "copy": (b"", b""),
}


@pytest.fixture(params=STRAYS)
async def stray(request: Any, js: Any) -> Any:
    """Stores a stray message on the frontier subject of a topic."""
    header, payload = STRAYS[request.param]

    async def store(topic: Any) -> int:
        subject, block, data = f"{topic.name}.0.frontier", header, payload
        stream = await js.stream(topic.name)
        last = (await stream.info()).state.last_seq
        if request.param == "copy" and last:
            first = await stream.get_message(1)
            lines = "".join(
                f"{name}: {value}\r\n" for name, value in first.headers.items() if name.startswith("Jsc-")
            )
            block, data = f"NATS/1.0\r\n{lines}\r\n".encode(), first.data
        ack = await js._context.requests.ask(subject, data, header=block, timeout=5.0)
        return int(json.loads(ack[3])["seq"])

    return store


@pytest.fixture
async def topic(js: Any, request: Any) -> AsyncIterator[Any]:
    topic = js.epochs("T" + "".join(c for c in request.node.name if c.isalnum()))
    await topic.create()
    yield topic
    await js.delete_stream(topic.name)


async def test_stray_frontier_ends_no_subscriber(js: Any, topic: Any, stray: Any, events: Any) -> None:
    async with await topic.publisher() as pub, await topic.subscribe() as sub:
        whole = sub.completed()
        await pub.send(1, ["a"])
        seq = await stray(topic)
        await pub.advance(2)
        await pub.send(2, ["b"])
        await pub.commit_epoch(3, ["c"])
        assert [(one.time, one.items) for one in [await whole.next(5) for _ in range(3)]] == [
            (1, ["a"]),
            (2, ["b"]),
            (3, ["c"]),
        ]
        assert sub.skipped == 1
        skipped = [one for one in events if isinstance(one, RecordSkipped)]
        assert {(one.subject, one.stream_seq) for one in skipped} == {(f"{topic.name}.0.frontier", seq)}
        async with await topic.subscribe(start="first") as early:
            await pub.close()
            assert await all_of(early.completed()) == {1: ["a"], 2: ["b"], 3: ["c"]}


@pytest.mark.core_cases(2)
async def test_stray_frontier_closes_no_partition(topic: Any, stray: Any) -> None:
    await stray(topic)
    async with await topic.publisher(start=0) as first:
        await first.send(1, ["a"], msg_id="1")
        await first.advance(1)
        await stray(topic)
        async with await topic.subscribe() as sub, await topic.publisher(takeover=True) as second:
            assert second.frontier.elements == (1,)
            await stray(topic)
            with pytest.raises(ProducerFencedError):
                await first.advance(5)
            await second.send(1, ["a"], msg_id="1")
            await second.send(2, ["b"])
            await second.advance(3)
            for _ in range(200):
                await second.send(3, ["c"])
            await second.flush()
            for _ in range(70):
                await stray(topic)
            async with await topic.publisher(takeover=True) as third:
                assert third.frontier.elements == (3,)
                await third.close()
            assert await all_of(sub.completed()) == {2: ["b"], 3: ["c"] * 200}


async def test_stray_frontier_hides_no_snapshot(topic: Any, stray: Any) -> None:
    async with await topic.publisher() as pub:
        await pub.send(4, ["x"])
        await pub.advance(3)
        await stray(topic)
        for start in ("now", "first"):
            async with await topic.subscribe(start=start, wait=False) as sub:
                if start == "now":
                    assert (sub.frontier.elements, sub.filter.elements) == ((3,), (4,))
                position = sub.position
            async with await topic.subscribe(start=position) as again:
                assert again.frontier == sub.frontier


async def test_answers_stored_in_a_topic_change_nothing(world: Any, events: Any) -> None:
    """A reader's requests whose answers are stored as frontier records and as data, copies of both among them."""
    _, _, owner, _ = world
    topic = owner.epochs("T")
    await topic.create(duplicate_window=0.2, allow_direct=True)
    async with await topic.publisher() as pub, await topic.subscribe() as sub:
        whole = sub.completed()
        for time in (1, 2):
            await pub.send(time, ["a"])
            await pub.flush()
            await asyncio.sleep(0.5)  # ids are forgotten
            for request in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"):
                for payload in (b"", b"999", *(b'{"seq":%d}' % seq for seq in range(1, 9))):
                    for target in ("T.0.data", "T.0.frontier"):
                        await owner._connection.publish(f"$JS.API.{request}.T", payload, reply=target)
            await owner.ping()
            await pub.advance(time + 1)
        assert [(one.time, one.items) for one in [await whole.next(5) for _ in range(2)]] == [
            (1, ["a"]),
            (2, ["a"]),
        ]
        assert sub.skipped > 10
        async with await topic.publisher(takeover=True) as again:
            assert again.frontier.elements == (3,)
