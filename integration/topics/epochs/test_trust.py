"""What a user who may only publish to a topic's live subject, or one stray message, can do to a topic: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually
from jsclient.epochs import Data
from jsclient.errors import ConfigError, RequestTimeoutError
from tests.topics.epochs.test_topic import events, items

BEAT = 0.2
VICTIM = "$JS.API.STREAM.DELETE.VICTIM"
GUEST = {"publish": ["open.*.live"], "subscribe": ["_INBOX_guest.>"]}


def asked(verb: str) -> bytes:
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
async def test_live_reply_cannot_be_an_api_call(world: Any, publisher: Any, verb: str) -> None:
    _, oracle, _, guest = world
    for _ in range(3):
        await guest._connection.publish("open.0.live", asked(verb), reply=VICTIM)
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
    await guest._connection.publish("open.0.live", asked("connect"), reply=reply)
    await publisher.send(1, ["secret"])
    await asyncio.sleep(2 * BEAT)
    assert (await oracle.stream_info("VICTIM"))["state"]["messages"] == 0
    assert (seen, publisher.subscribers) == ([], 0)
    await owner._connection.unsubscribe(loot)


async def test_live_subscribers_are_limited(world: Any) -> None:
    _, _, owner, guest = world
    topic = owner.epochs("open")
    async with (
        await topic.live_publisher(beat=BEAT, max_subscribers=1) as pub,
        await topic.live_subscribe(beat=BEAT),
    ):
        for number in range(50):
            await guest._connection.publish("open.0.live", asked("connect"), reply=f"_INBOX_guest.{number}")
        await guest._connection.ping(5)
        await eventually(lambda: pub.refused == 50)
        assert pub.subscribers == 1


async def test_live_reply_prefix_is_an_option(world: Any) -> None:
    _, _, owner, guest = world
    topic = owner.epochs("open")
    async with await topic.live_publisher(beat=BEAT, reply_prefix="_INBOX_team"):
        with pytest.raises(RequestTimeoutError):
            await guest.epochs("open").live_subscribe(beat=BEAT, timeout=1)
    for wrong in (0, True, "1"):
        with pytest.raises(ConfigError):
            await topic.live_publisher(max_subscribers=wrong)


async def test_guest_with_an_inbox_is_served(world: Any, publisher: Any) -> None:
    _, _, _, guest = world
    async with await guest.epochs("open").live_subscribe(beat=BEAT) as sub:
        await publisher.send(1, ["a"])
        assert items(await events(sub, lambda event: isinstance(event, Data))) == [(1, ["a"])]
