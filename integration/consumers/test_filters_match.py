"""A filter that no message of the stream can match is refused, by every way in. One that may match never is."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.network.asking import api_requests
from integration.kit.network.proxy import Proxy
from jsclient import ConsumerConfig
from jsclient.models import StreamSource, SubjectTransform

RIGHTS = {"publish": {"deny": ["$JS.API.STREAM.>"]}}


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


WAYS = ["create", "ensure", "subscribe", "durable", "pull_subscribe", "ordered push", "ordered pull"]


async def by(way: str, js: Any, stream: str, filter_subject: str) -> Any:
    match way:
        case "create":
            return await (await js.stream(stream)).create_consumer(filter_subject=filter_subject)
        case "ensure":
            handle = await js.stream(stream)
            return await handle.ensure_consumer(durable_name="d", filter_subject=filter_subject)
        case "subscribe":
            return await js.subscribe(filter_subject, stream=stream)
        case "durable":
            return await js.subscribe(filter_subject, stream=stream, durable="d", delete_on_close=True)
        case "pull_subscribe":
            config = ConsumerConfig(filter_subjects=[filter_subject])
            return await js.pull_subscribe(stream=stream, config=config)
        case "ordered push":
            return await js.subscribe(filter_subject, stream=stream, ordered=True)
        case _:
            return await js.ordered_consumer(stream, filter_subject=filter_subject)


async def consumer_names(js: Any, stream: str) -> list[str]:
    return [info.name async for info in (await js.stream(stream)).consumers()]


@pytest.mark.parametrize("way", WAYS)
async def test_impossible_filter_refused(js: Any, stream: OwnStream, way: str) -> None:
    if way != "pull_subscribe":
        await stream.publish(2)
    with pytest.raises(
        jsclient.ConfigError, match=r"filter 'zzz' can match no message of stream '"
    ) as caught:
        await by(way, js, stream.name, "zzz")
    assert repr(stream.all) in str(caught.value)
    for _ in range(100):  # the deletion may be in progress
        if not (names := await consumer_names(js, stream.name)):
            break
    assert names == []


@pytest.mark.parametrize("way", WAYS)
async def test_possible_filter_taken(js: Any, tap: Proxy, stream: OwnStream, way: str) -> None:
    """If a message matches, or the handle knows the subjects, no further request is sent."""
    await stream.publish(2, "b")
    since = len(tap.frames)
    handle = await by(way, js, stream.name, stream.subject("b"))
    if way not in {"create", "ensure", "ordered pull"}:
        assert [one for one in api_requests(tap, since=since) if one.startswith("STREAM.")] == []
    await handle.close()


@pytest.mark.parametrize("way", ["create", "subscribe", "ordered pull"])
@pytest.mark.parametrize("kind", ["mirror", "sources", "transform", "stored"])
async def test_other_subjects_may_be_stored(js: Any, stream: OwnStream, way: str, kind: str) -> None:
    name = f"{stream.name}-2"
    mine = [f"{name}.>"]
    match kind:
        case "mirror":
            created = await js.create_stream(name, mirror=StreamSource(name=stream.name))
        case "sources":
            created = await js.create_stream(name, mine, sources=[StreamSource(name=stream.name)])
        case "transform":
            change = SubjectTransform(src=f"{name}.*", dest=f"zzz.{name}.{{{{wildcard(1)}}}}")
            created = await js.create_stream(name, mine, subject_transform=change)
        case _:
            created = await js.create_stream(name, [f"zzz.{name}.>"])
            await js.publish(f"zzz.{name}.1")
            created = await js.update_stream(name, mine)
    try:
        handle = await by(way, js, name, f"zzz.{name}.1")
        await handle.close()
    finally:
        await js.delete_stream(created.name)


async def test_changed_subjects_are_seen(js: Any, stream: OwnStream, connect: Any) -> None:
    """The handle knows the subjects of before: a wrong refusal would be worse than none."""
    handle = await js.stream(stream.name)
    await js.ensure_stream(stream.name, [stream.all, f"{stream.name}-new"], on_drift="update")
    consumer = await handle.create_consumer(filter_subject=f"{stream.name}-new")
    assert consumer.config.filter_subject == f"{stream.name}-new"


@pytest.mark.parametrize("way", ["subscribe", "pull_subscribe", "ordered pull"])
async def test_user_who_may_not_ask(own_server: Any, connect: Any, way: str) -> None:
    """The filter is taken, and no denial is reported: the user did not ask for this."""
    users = [{"user": "admin", "password": "a"}, {"user": "limited", "password": "l", "permissions": RIGHTS}]
    server = await own_server(config={"authorization": {"users": users}})
    admin = await connect(server, user="admin", password="a")
    await admin.create_stream("S", ["S.>"])
    events: list[Any] = []
    js = await connect(server, user="limited", password="l", on_event=events.append)
    handle = await by(way, js, "S", "zzz")
    await js.ping()
    await handle.close()
    assert [event for event in events if "STREAM.INFO" in str(event)] == []
