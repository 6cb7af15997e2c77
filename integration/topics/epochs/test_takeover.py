"""A partition has one publisher: a second is refused while the first is alive, or fences it with takeover=True."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from jsclient.errors import EpochsLostError, ProducerFencedError, PublisherExistsError
from tests.topics.epochs.kit import all_of

BEAT = 1.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def topic(js: Any, request: Any) -> Any:
    epochs = js.epochs("take" + "".join(c for c in request.node.name if c.isalnum()), partitions=2)
    yield epochs
    for name in [name async for name in js.stream_names()]:
        if name == epochs.name:
            await js.delete_stream(name)


@pytest.mark.covers("S51")
async def test_existing_name_is_refused_while_alive(
    js: Any, connect: Any, server: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine the answer of a publisher that is alive takes its time.
    monkeypatch.setattr("jsclient.topics.epochs.presence.ANSWER", 30.0)
    other = (await connect(server.url)).epochs(topic.name)
    async with topic.publisher() as one:
        for again in (topic, other):
            with pytest.raises(PublisherExistsError, match=r"partition 0 .*takeover=True"):
                await again.publisher()
        async with other.publisher(1):
            pass
        await one.send(1, ["counts"])
        await one.advance(2)
        async with other.publisher(takeover=True) as two:
            with pytest.raises(ProducerFencedError):
                await one.advance(3)
            with pytest.raises(PublisherExistsError):
                await topic.publisher()
            await two.send(2, ["mine"])
    monkeypatch.setattr("jsclient.topics.epochs.presence.ANSWER", 600.0)
    async with asyncio.timeout(60):  # after a release the next publisher does not wait
        async with other.publisher() as three, other.publisher(1) as four:
            for pub in (three, four):
                await pub.close()
    async with topic.subscribe(start="first") as sub:
        assert await all_of(sub.completed()) == {1: ["counts"], 2: ["mine"]}


async def test_dead_or_frozen_publisher_is_fenced(
    js: Any, server: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed is gone at once, one that is stopped after the time for an answer."""
    monkeypatch.setattr("jsclient.topics.epochs.presence.ANSWER", 4.0)  # a slow process is alive
    code = f"""
import asyncio, jsclient
async def main():
    async with jsclient.connect({server.url!r}) as js, js.epochs({topic.name!r}, partitions=2).publisher(PART) as pub:
        await pub.send(1, ["x"])
        await pub.flush()
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    for number, how in enumerate(("kill", "stop")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code.replace("PART", str(number)), stdout=-1, cwd=ROOT
        )
        try:
            assert process.stdout is not None
            assert await within(60, process.stdout.readline(), "the publisher") == b"ready\n"
            with pytest.raises(PublisherExistsError):
                await topic.publisher(number)
            process.send_signal(9 if how == "kill" else 19)
            if how == "kill":
                await process.wait()
            async with await within(20, topic.publisher(number), "the next publisher") as pub:
                assert pub.upper.elements == (1,)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.covers("S51")
async def test_live_name_is_refused_while_alive(js: Any, connect: Any, server: Any, topic: Any) -> None:
    other = (await connect(server.url)).epochs(topic.name, partitions=2)
    async with await topic.live_publisher(beat=BEAT) as one:
        for again in (topic, other):
            with pytest.raises(PublisherExistsError, match=r"partition 0 .*takeover=True"):
                await again.live_publisher(beat=BEAT)
        async with await topic.live_subscribe([0], beat=BEAT) as sub:
            await one.send(1, ["lost"])
            async with await other.live_publisher(takeover=True, beat=BEAT) as two:
                with pytest.raises(ProducerFencedError):
                    await one.send(2, ["x"])
                await eventually(
                    lambda: two.subscribers == 1, what="its subscribers connect to the other one"
                )
                await two.send(5, ["mine"])
                await two.close()
            whole = sub.completed()
            with pytest.raises(EpochsLostError):
                await whole.next(30)
            assert (await whole.next(30)).items == ["mine"]
    async with await topic.live_publisher(beat=BEAT):
        pass


async def test_without_the_right_to_ask_it_is_fenced(own_server: Any, connect: Any) -> None:
    rights = {"deny": ["T.*.publisher"]}
    users = [
        {"user": "a", "password": "x"},
        {"user": "b", "password": "x", "permissions": {"publish": rights, "subscribe": rights}},
    ]
    server = await own_server(config={"authorization": {"users": users}})
    a, b = [(await connect(server.url, user=name, password="x")).epochs("T") for name in "ab"]
    for one, two in ((a, b), (b, a)):
        async with one.publisher() as pub:
            await pub.send(1, ["x"])
            async with await within(5, two.publisher(), "the next publisher") as next_one:
                with pytest.raises(ProducerFencedError):
                    await pub.advance(2)
                await next_one.send(1, ["y"])


@pytest.mark.parametrize("reply", ["$JS.API.STREAM.DELETE.VICTIM", "victim.loot", ""])
async def test_question_answered_only_to_inboxes(js: Any, oracle: Any, topic: Any, reply: str) -> None:
    """A client that may ask chooses the reply subject: it must be an inbox, or the request stays unanswered."""
    seen: list[Any] = []
    loot = await js._connection.subscribe("victim.loot", seen.extend)
    await oracle.create_stream("VICTIM", ["victim.x"], storage="memory")
    try:
        async with topic.publisher() as pub:
            for question in (b'{"v":1,"verb":"ask"}', b'{"v":1,"verb":"take"}', b"", b"[" * 9999, b"\xff"):
                await js._connection.publish(f"{topic.name}.0.publisher", question, reply=reply)
            await js._connection.ping(5)
            await pub.send(1, ["x"])
            await pub.advance(2)
        assert "VICTIM" in await oracle.stream_names()
        assert [frame for frame in seen if not frame[2]] == [], "only the server reports that nobody listens"
    finally:
        await oracle.delete_stream("VICTIM")
        await js._connection.unsubscribe(loot)
