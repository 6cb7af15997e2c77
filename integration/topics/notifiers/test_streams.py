"""The streams of kits: found, made, left as they are, gone, and the descriptors that name them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from integration.kit.clients.retries import impatient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import within
from jsclient import ConfigError, StreamNotFoundError

pytestmark = pytest.mark.usefixtures("oracle")

KINDS = pytest.mark.parametrize("kind", ["notifier_kit", "subscription_kit"])


@pytest.fixture
async def kits(server: Any, connect: Any) -> Any:
    kits = Kits(await connect(server), await connect(server))
    yield kits
    await kits.clear()


@KINDS
async def test_users_stream_left_as(kits: Kits, stream: Any, oracle: Oracle, kind: str) -> None:
    """D33."""
    before = (await oracle.stream_info(stream.name))["config"]
    producer, iterable = await getattr(kits.here, kind)(stream.subject("x"))
    await producer.update_state("a")
    await producer.finish("done")
    assert await iterable.completion() == "done"
    assert (await oracle.stream_info(stream.name))["config"] == before


@KINDS
async def test_stream_created_asked_for(kits: Kits, oracle: Oracle, kind: str) -> None:
    subject = kits.subject()
    options = {"max_age": 3600.0, "storage": "memory"}
    kit = await getattr(kits.here, kind)(subject, stream=f"named_{subject.replace('.', '_')}", **options)
    await getattr(kits.there, kind)(subject)  # finds it
    name = kit.permissions("writer")["publish"]["allow"][2].split(".")[-1]
    kits.made.append(name)
    config = (await oracle.stream_info(name))["config"]
    assert name.startswith("named_")
    assert config["subjects"] == [subject]
    assert config["max_age"] == 3600 * 10**9
    assert config["allow_direct"]
    assert config["republish"] == {"src": subject, "dest": f"jsc.push.{subject}"}
    assert config["max_msgs_per_subject"] == (1 if kind == "notifier_kit" else -1)


@KINDS
async def test_same_time_same_stream(kits: Kits, kind: str) -> None:
    subject = kits.subject()
    created = [
        getattr(js, kind)(subject, storage="memory") for js in (kits.here, kits.there) for _ in range(5)
    ]
    opened = await asyncio.gather(*created)
    streams = {kit.permissions("writer")["publish"]["allow"][2] for kit in opened}
    assert len(streams) == 1
    kits.made.append(streams.pop().split(".")[-1])


@KINDS
async def test_what_cannot_work_is_refused(kits: Kits, make_stream: Any, kind: str) -> None:
    make = getattr(kits.here, kind)
    other, queue = await make_stream(), await make_stream(retention="workqueue")
    for subject in ("a.*", "a.>", "", "a b"):
        with pytest.raises(ConfigError):
            await make(subject)
    with pytest.raises(ConfigError, match="does not hold"):
        await make("elsewhere", stream=other.name)
    with pytest.raises(ConfigError, match="retention"):
        await make(queue.subject("x"))
    for options in ({"timeout": 0}, {"quiet": 0}):
        with pytest.raises(ConfigError):
            await make(other.subject("x"), **options)
    if kind == "notifier_kit":
        with pytest.raises(ConfigError):
            await make("not.made", initial=object())
        assert [name async for name in kits.here.stream_names("not.made")] == []


async def test_stream_deleted_ends_waiting(server: Any, connect: Any, monkeypatch: Any) -> None:
    impatient(monkeypatch, 0.5)
    kits = Kits(await connect(server), await connect(server, timeout=3.0))
    updater, notifier = await kits.notifier_kit("a")
    internals = await notifier.get_sharable_notifier_internals()
    again = kits.there.make_notifier(internals, quiet=0.1)
    count = (await again.get_update_since()).update_count
    waiter = asyncio.create_task(again.get_update_since(count))
    await kits.clear()
    kits.made.clear()
    with pytest.raises(StreamNotFoundError):
        await within(40, waiter, "the error")
    with pytest.raises(StreamNotFoundError):
        await again.get_update_since()
    del updater


async def test_descriptors_none_refused(kits: Kits, js: Any) -> None:
    _, notifier = await kits.notifier_kit("a")
    _, subscription = await kits.subscription_kit()
    newest = await notifier.get_sharable_notifier_internals()
    every = await subscription.get_sharable_subscription_internals()
    odd = [{}, None, 7, "text", {**newest, "v": 2}, {**newest, "stream": "a.b"}, {**newest, "subject": "a.*"}]
    odd += [{**newest, "codec": "pickle"}, {**newest, "republished": ">"}, {**newest, "more": 1}, every]
    for arguments in odd:
        with pytest.raises(ConfigError):
            js.make_notifier(arguments)
    for arguments in ({}, newest, {**every, "stream": "other"}, {**every, "codec": "pickle"}):
        with pytest.raises(ConfigError):
            js.make_subscription(arguments)

    async def soon() -> Any:
        return {}

    with pytest.raises(ConfigError):
        await js.make_notifier(soon()).get_update_since()
