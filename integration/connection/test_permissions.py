"""What a user may not do: the failing call says so by name, at once (X3)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
import jsclient.server
from integration.kit.judge.reading import of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from jsclient import (
    ConsumerConfig,
    Disconnected,
    ErrorRaised,
    JetStreamError,
    PermissionDenied,
    PermissionDeniedError,
)

LIMIT = 30.0
PATIENCE = 90.0  # of a request without an answer
WITHOUT_INBOX = """
accounts { A { jetstream: enabled, users: [
  { user: a, password: b, permissions: { publish: ">", subscribe: "nothing" } }
] } }
"""
"""X3, and what a loaded machine adds."""


async def restricted(own_server: Any, oracle_for: Any, *, publish: list[str], subscribe: list[str]) -> Any:
    """A server with a user who may not publish or subscribe to these, and a stream of the judge."""
    rights = {"publish": {"deny": publish}, "subscribe": {"deny": subscribe}}
    own = await own_server(
        config={
            "authorization": {
                "users": [
                    {"user": "judge", "password": "x"},
                    {"user": "ann", "password": "x", "permissions": rights},
                ]
            }
        }
    )
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    await oracle.create_stream("Mixed_Case", ["Orders.>"], storage="memory")
    return own, OwnStream(oracle, "Mixed_Case", "Orders")


CALLS = {
    "publish": ("Orders.New", lambda js: js.publish("Orders.New", b"x")),
    "publish with an id": ("Orders.New", lambda js: js.publish("Orders.New", b"x", msg_id="1")),
    "stream info": ("$JS.API.STREAM.INFO.Mixed_Case", lambda js: js.stream("Mixed_Case")),
    "stream names": ("$JS.API.STREAM.NAMES", lambda js: js.subscribe("Orders.New")),
    "consumer create": (
        "$JS.API.CONSUMER.CREATE.Mixed_Case",
        lambda js: js.subscribe("Orders.New", stream="Mixed_Case"),
    ),
    "durable create": (
        "$JS.API.CONSUMER.DURABLE.CREATE.Mixed_Case.d",
        lambda js: js.subscribe("Orders.New", stream="Mixed_Case", durable="d"),
    ),
    "pull create": (
        "$JS.API.CONSUMER.CREATE.Mixed_Case",
        lambda js: js.pull_subscribe("Orders.New", stream="Mixed_Case"),
    ),
    "ordered": (
        "$JS.API.CONSUMER.CREATE.Mixed_Case",
        lambda js: js.subscribe("Orders.New", stream="Mixed_Case", ordered=True),
    ),
}


@pytest.mark.covers("J3", "J60")
@pytest.mark.parametrize("what", CALLS)
async def test_call_not_allowed_says_so(
    what: str, own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """X3: 2 to 5 s and a generic timeout in nats-py."""
    subject, call = CALLS[what]
    own, stream = await restricted(own_server, oracle_for, publish=[subject], subscribe=["nothing"])
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    started = time.monotonic()
    with pytest.raises(PermissionDeniedError) as caught:
        await call(js)
    took = time.monotonic() - started
    print(f"{what}: {took:.3f} s")
    assert took < LIMIT
    # With its case: subjects are case-sensitive.
    assert (caught.value.operation, caught.value.subject) == ("publish", subject)
    assert of(PermissionDenied, events)
    assert await stream.consumer_names() == []
    assert (await stream.state())["messages"] == 0
    assert await js.ping() < 5


async def test_denied_deliver_subject(own_server: Any, oracle_for: Any, connect: Any) -> None:
    """X3: a subscription is refused after the server has read it, behind our back."""
    own, stream = await restricted(own_server, oracle_for, publish=["nothing"], subscribe=["Deliver.Here"])
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    started = time.monotonic()
    config = ConsumerConfig(deliver_subject="Deliver.Here")
    with pytest.raises(PermissionDeniedError) as caught:
        await js.subscribe("Orders.>", stream="Mixed_Case", config=config)
    assert time.monotonic() - started < LIMIT
    assert (caught.value.operation, caught.value.subject) == ("subscribe", "Deliver.Here")
    assert await stream.consumer_names() == []


async def test_denied_inbox_fails_first(own_server: Any, oracle_for: Any, connect: Any) -> None:
    """X3, X8: with the right prefix it works."""
    own, _ = await restricted(own_server, oracle_for, publish=["nothing"], subscribe=["_INBOX.>"])
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    started = time.monotonic()
    with pytest.raises(PermissionDeniedError):
        await js.stream("Mixed_Case")
    assert time.monotonic() - started < LIMIT
    js = await connect(own, user="ann", password="x", inbox_prefix="_INBOX_ann")
    assert (await js.stream("Mixed_Case")).name == "Mixed_Case"


@pytest.mark.parametrize("kind", ["fetch", "messages"])
async def test_pull_not_allowed_says_so(
    kind: str, own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """X3."""
    subject = "$JS.API.CONSUMER.MSG.NEXT.Mixed_Case.d"
    own, stream = await restricted(own_server, oracle_for, publish=[subject], subscribe=["nothing"])
    await stream.create_consumer("d")
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    psub = await js.pull_subscribe(stream="Mixed_Case", consumer="d")
    started = time.monotonic()
    if kind == "fetch":
        with pytest.raises(PermissionDeniedError):
            await psub.fetch(1, expires=PATIENCE)
    else:
        reader = psub.messages()
        with pytest.raises(PermissionDeniedError):
            await reader.next(timeout=PATIENCE)
    took = time.monotonic() - started
    print(f"{kind}: {took:.3f} s")
    assert took < LIMIT
    assert of(PermissionDenied, events)


async def test_ack_not_allowed_reported(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """X3: `ack()` succeeds and redelivery is endless in nats-py. Here an event, and `ack_sync` raises."""
    own, stream = await restricted(own_server, oracle_for, publish=["$JS.ACK.>"], subscribe=["nothing"])
    await stream.publish(2)
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    sub = await js.subscribe("Orders.>", stream="Mixed_Case")
    first, second = await take(sub, 2)
    started = time.monotonic()
    await first.ack()
    event = await wait_for_event(PermissionDenied, events)
    assert event.subject == first.reply
    with pytest.raises(PermissionDeniedError):
        await second.ack_sync()
    assert time.monotonic() - started < LIMIT
    assert not second.acked


async def test_two_calls_match_both_reported(own_server: Any, oracle_for: Any, connect: Any) -> None:
    """X3: and a call to another subject is not."""
    own, _ = await restricted(own_server, oracle_for, publish=["Orders.New"], subscribe=["nothing"])
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    results = await asyncio.gather(
        js.publish("Orders.New", b"1"),
        js.publish("Orders.Old", b"2"),
        js.publish("Orders.New", b"3"),
        return_exceptions=True,
    )
    assert [isinstance(result, PermissionDeniedError) for result in results] == [True, False, True]
    assert not isinstance(results[1], JetStreamError)


async def test_requests_without_an_inbox() -> None:
    """Each is refused by name, without waiting for an answer that cannot come."""
    async with jsclient.server.NatsServer(port=0, config=WITHOUT_INBOX) as server:
        url = server.url.replace("nats://", "nats://a:b@")
        async with jsclient.connect(url, on_event=lambda _: None, timeout=PATIENCE) as js:
            for _ in range(3):
                started = time.monotonic()
                with pytest.raises(jsclient.PermissionDeniedError):
                    await js.account_info()
                assert time.monotonic() - started < LIMIT, "not a timeout"


async def test_denied_acks_reported_once(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """One event for each of many acks hid everything else."""
    own, stream = await restricted(own_server, oracle_for, publish=["$JS.ACK.>"], subscribe=["nothing"])
    js = await connect(own, user="ann", password="x", timeout=PATIENCE)
    await stream.publish(50)
    for name in ("one", "two"):
        sub = await js.pull_subscribe("Orders.>", stream="Mixed_Case", durable=name)
        for message in await sub.fetch(50):
            await message.ack()
        await js.ping()
    denied = [event.subject.split(".")[:4] for event in of(PermissionDenied, events)]
    assert denied == [["$JS", "ACK", "Mixed_Case", "one"], ["$JS", "ACK", "Mixed_Case", "two"]]


async def test_too_many_subscriptions_keep_the_connection(
    own_server: Any, connect: Any, events: list[Any]
) -> None:
    """The server refuses a subscription, and closes nothing: another connection would be refused the same."""
    own = await own_server(config={"max_subscriptions": 2})
    js = await connect(own)
    for subject in "abcd":
        await js.core.subscribe(subject)
    assert "maximum subscriptions" in str((await wait_for_event(ErrorRaised, events)).error)
    await js.ping()
    assert of(Disconnected, events) == []
