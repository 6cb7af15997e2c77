"""Subscribing with few rights: what is denied is reported by the call, what suffices works. Source: ADR-15."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network.asking import api_requests, delivers
from integration.kit.network.proxy import Proxy
from jsclient import ConsumerConfig

Rights = dict[str, dict[str, list[str]]]


@pytest.fixture
async def limited(own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any) -> Any:
    """Start a server with a user of these rights. Gives the user's `JetStream`, the proxy, the stream, the monitor."""

    async def start(rights: Rights, **options: Any) -> tuple[Any, Proxy, OwnStream, str]:
        users = [
            {"user": "judge", "password": "judge"},
            {"user": "limited", "password": "limited", "permissions": rights},
        ]
        own = await own_server(config={"authorization": {"users": users}})
        oracle = await oracle_for(own, user="judge", password="judge")
        stream = await make_stream(oracle=oracle)
        tap = await proxy(own)
        js = await connect(tap, user="limited", password="limited", **options)
        await js.ping()
        return js, tap, stream, own.monitor

    return start


@pytest.mark.covers("J3", "J60")
@pytest.mark.parametrize("durable", [None, "worker"])
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_denied_create_is_clean(limited: Any, kind: str, durable: str | None) -> None:
    js, tap, stream, monitor = await limited(
        {"publish": {"deny": ["$JS.API.CONSUMER.>"], "allow": [">"]}}, timeout=60
    )
    await js.account_info()
    async with no_leaks(oracle=stream.oracle, streams=[stream.name], monitor=monitor):
        with pytest.raises(jsclient.PermissionDeniedError) as caught:
            await within(20, getattr(js, kind)(stream.all, durable=durable), "the refusal")
    assert caught.value.operation == "publish"
    await js.ping()
    assert {frame.sid for frame in delivers(tap)} == {frame.sid for frame in tap.unsubs()}


@pytest.mark.covers("J3", "J60", "J41")
@pytest.mark.parametrize("durable", [None, "worker"])
async def test_denied_listen_removes_new(limited: Any, durable: str | None) -> None:
    js, tap, stream, monitor = await limited({"subscribe": {"deny": ["_INBOX.*", "forbidden.>"]}})
    await js.account_info()
    async with no_leaks(oracle=stream.oracle, streams=[stream.name], monitor=monitor):
        for config in (ConsumerConfig(), ConsumerConfig(deliver_subject="forbidden.x")):
            with pytest.raises(jsclient.PermissionDeniedError) as caught:
                await js.subscribe(stream.all, durable=durable, config=config)
            assert caught.value.operation == "subscribe"
    assert len(api_requests(tap, "CONSUMER.DELETE.>")) == 2


@pytest.mark.covers("J3", "J40")
async def test_denied_listen_keeps_found(limited: Any) -> None:
    js, _, stream, monitor = await limited({"subscribe": {"deny": ["forbidden.>"]}})
    await stream.create_consumer("there", deliver_subject="forbidden.x")
    await js.account_info()
    async with no_leaks(oracle=stream.oracle, streams=[stream.name], monitor=monitor):
        with pytest.raises(jsclient.PermissionDeniedError):
            await js.subscribe(stream=stream.name, consumer="there")
    assert await stream.consumer_names() == ["there"]


@pytest.mark.covers("J22", "J23")
async def test_denied_lookup_pull_only(
    limited: Any,
) -> None:
    """§4.1-26."""
    rights = {"publish": {"allow": ["$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>"]}}
    js, tap, stream, _ = await limited(rights)
    await stream.create_consumer("pull")
    await stream.create_consumer("push", deliver_subject="deliver.here")
    await stream.publish(3)
    sub = await js.pull_subscribe(stream=stream.name, consumer="pull")
    assert not sub.created
    assert len(await sub.fetch(3)) == 3
    await sub.unsubscribe()
    with pytest.raises(jsclient.PermissionDeniedError):
        await js.subscribe(stream=stream.name, consumer="push")
    await js.ping()
    assert api_requests(tap, "CONSUMER.CREATE.>") + api_requests(tap, "CONSUMER.DELETE.>") == []
    assert {frame.sid for frame in delivers(tap)} == {frame.sid for frame in tap.unsubs()}


IMPORTS = """
accounts {
  JS: {
    jetstream: enabled
    users: [{user: judge, password: judge}]
    exports: [
      {service: "$JS.API.CONSUMER.MSG.NEXT.>", response: stream}
      {service: "$JS.API.CONSUMER.INFO.>"}
      {service: "$JS.ACK.>", response: stream}
      {stream: "deliver.>"}
    ]
  }
  USER: {
    users: [{user: user, password: user}]
    imports: [
      {service: {account: JS, subject: "$JS.API.CONSUMER.MSG.NEXT.>"}, to: "team.CONSUMER.MSG.NEXT.>"}
      {service: {account: JS, subject: "$JS.API.CONSUMER.INFO.>"}, to: "team.CONSUMER.INFO.>"}
      {service: {account: JS, subject: "$JS.ACK.>"}}
      {stream: {account: JS, subject: "deliver.>"}}
    ]
  }
}
"""


@pytest.mark.covers("J21", "J22", "J23", "J40")
async def test_importing_account_binds(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    """§4.1-26."""
    own = await own_server(config=IMPORTS)
    oracle: Oracle = await oracle_for(own, user="judge", password="judge")
    stream = await make_stream(oracle=oracle)
    await stream.create_consumer("pull")
    await stream.create_consumer("push", deliver_subject="deliver.here")
    await stream.publish(5)
    js = await connect(own, user="user", password="user", prefix="team", timeout=2.0)
    pull = await js.pull_subscribe(stream=stream.name, consumer="pull")
    push = await js.subscribe(stream=stream.name, consumer="push")
    for message in [*await pull.fetch(5), *await take(push, 5)]:
        await message.ack()
    for name in ("pull", "push"):
        await oracle.wait_consumer(stream.name, name, lambda info: info["ack_floor"]["stream_seq"] == 5)
    with pytest.raises(jsclient.NoRespondersError):
        await js.subscribe(stream.all, stream=stream.name)
    await asyncio.gather(pull.unsubscribe(), push.unsubscribe())
    assert sorted(await stream.consumer_names()) == ["pull", "push"]
