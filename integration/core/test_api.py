"""Plain messages are published, and requests answered, on the connection of a `JetStream`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually, never
from integration.kit.network.wire import TO_SERVER
from jsclient import (
    ClosedError,
    ConfigError,
    DisconnectedError,
    InvalidNameError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDenied,
    PermissionDeniedError,
    Reconnected,
    RequestTimeoutError,
)


async def test_publish(core: Any, oracle: Any, subject: str) -> None:
    async with oracle.listen(subject) as arrived:
        await core.publish(subject, b"a", headers={"One": "1", "Two": ["2", "3"]}, reply="answers.here")
        await core.publish(subject)
        await core.publish(subject, memoryview(b"b"))
        await core.flush()
        await eventually(lambda: len(arrived) == 3)
    assert [message.data for message in arrived] == [b"a", b"", b"b"]
    assert arrived[0].reply == "answers.here"
    assert arrived[0].headers["One"] == "1"


async def test_request(core: Any, subject: str) -> None:
    async def answer(request: Any) -> None:
        await request.respond(request.data.upper(), headers={"Of": request.header("Name")})

    async with core.subscribe(subject, callback=answer):
        reply = await core.request(subject, b"abc", headers={"Name": "x"})
    assert (reply.data, reply.headers, reply.error, reply.status) == (b"ABC", {"Of": "x"}, None, 0)


async def test_no_responders_at_once(core: Any, subject: str) -> None:
    with pytest.raises(NoRespondersError, match=subject):
        await core.request(subject, timeout=60)


async def test_request_timeout(core: Any, subject: str) -> None:
    async with core.subscribe(subject):
        with pytest.raises(RequestTimeoutError, match="request"):
            await core.request(subject, timeout=0.1)


async def test_requests_at_once(core: Any, subject: str) -> None:
    """Each reply goes to its own request."""

    async def answer(request: Any) -> None:
        await asyncio.sleep(0.001 * (int(request.data) % 7))
        await request.respond(request.data)

    async with core.subscribe(subject, callback=answer, concurrency=50):
        replies = await asyncio.gather(*(core.request(subject, b"%d" % n, timeout=60) for n in range(500)))
    assert [int(reply.data) for reply in replies] == list(range(500))


async def test_cancelled_request(core: Any, subject: str) -> None:
    """A late reply goes to no one, and further requests are answered."""
    async with core.subscribe(subject) as requests:
        waiting = asyncio.create_task(core.request(subject, b"1"))
        first = await requests.next(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        later = asyncio.create_task(core.request(subject, b"2"))
        await first.respond(b"late")
        await (await requests.next(5)).respond(b"in time")
        assert (await later).data == b"in time"


BAD_SUBJECTS = ["", "a b", "a..b", ".a", "a.", "a\nb", "a.*", ">", "\ud800", None, b"a"]


@pytest.mark.parametrize("bad", BAD_SUBJECTS)
async def test_bad_subjects(js: Any, bad: Any) -> None:
    for call in (js.core.publish, js.core.request):
        with pytest.raises(InvalidNameError):
            await call(bad)
    with pytest.raises(InvalidNameError):
        js.core.request_many(bad)
    if bad not in {"a.*", ">"}:
        with pytest.raises(InvalidNameError):
            await js.core.subscribe(bad)


BAD_CALLS = {
    "payload": lambda core: core.publish("a", "text"),
    "payload of a request": lambda core: core.request("a", {"a": 1}),
    "reply": lambda core: core.publish("a", reply="b *"),
    "headers": lambda core: core.publish("a", headers=[("a", "b")]),
    "header name": lambda core: core.publish("a", headers={"a b": "c"}),
    "header value": lambda core: core.publish("a", headers={"a": "b\r\nc"}),
    "timeout": lambda core: core.request("a", timeout=0),
    "timeout as text": lambda core: core.request("a", timeout="1"),
    "queue": lambda core: core.subscribe("a", queue="b c"),
    "callback": lambda core: core.subscribe("a", callback=1),
    "callback without an argument": lambda core: core.subscribe("a", callback=lambda: None),
    "concurrency": lambda core: core.subscribe("a", callback=print, concurrency=0),
    "concurrency alone": lambda core: core.subscribe("a", concurrency=2),
    "max_pending": lambda core: core.subscribe("a", max_pending=0),
    "max_pending_bytes": lambda core: core.subscribe("a", max_pending_bytes=-1),
    "reply_prefixes as text": lambda core: core.subscribe("a", reply_prefixes="a."),
    "reply_prefixes of the server": lambda core: core.subscribe("a", reply_prefixes=["$JS."]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
async def test_bad_arguments(js: Any, name: str) -> None:
    with pytest.raises(ConfigError):
        await BAD_CALLS[name](js.core)


async def test_bad_arguments_of_request_many(js: Any) -> None:
    for options in ({"max_messages": 0}, {"stall": 0}, {"timeout": -1}, {"sentinel": "end"}):
        with pytest.raises(ConfigError):
            js.core.request_many("a", **options)


async def test_unknown_argument_named(js: Any) -> None:
    with pytest.raises(TypeError, match="did you mean 'reply'"):
        await js.core.publish("a", replay="b")


async def test_too_large(core: Any, subject: str) -> None:
    data = bytes(1024 * 1024 + 1)
    with pytest.raises(MaxPayloadError):
        await core.publish(subject, data)
    with pytest.raises(MaxPayloadError):
        await core.request(subject, data)
    with pytest.raises(MaxPayloadError):
        core.request_many(subject, data)


async def test_without_jetstream(own_server: Any, connect: Any, subject: str) -> None:
    """Neither connecting nor plain messages need it."""
    own = await own_server(jetstream=False)
    js = await connect(own)
    async with js.core.subscribe(subject) as sub:
        await js.core.publish(subject, b"x")
        assert (await sub.next(5)).data == b"x"


async def test_disconnected(own_server: Any, connect: Any, events: list[Any], subject: str) -> None:
    """A publish fails at once, because no one would receive it. A request waits for the connection."""
    own = await own_server()
    js = await connect(own, **FAST)
    sub = await js.core.subscribe(subject)
    await own.kill()
    await eventually(lambda: not js.is_connected)
    with pytest.raises(DisconnectedError):
        await js.core.publish(subject, b"x")
    with pytest.raises(RequestTimeoutError):
        await js.core.request(subject, timeout=0.1)
    waiting = asyncio.create_task(js.core.request(subject, b"y", timeout=60))
    await own.start()
    await wait_for_event(Reconnected, events)
    await (await sub.next(30)).respond(b"z")
    assert (await waiting).data == b"z"


async def test_lost_between_two_messages(
    own_server: Any, connect: Any, events: list[Any], subject: str
) -> None:
    """The second of two messages in one iteration of the loop fails if the connection was lost after the first."""
    js = await connect(await own_server(), **FAST)
    await js.core.publish(subject, b"remembered")
    await js.core.publish(subject, b"written")
    js._connection.drop_link()
    with pytest.raises(DisconnectedError):
        await js.core.publish(subject, b"lost")


async def test_server_that_does_not_keep_up(proxy: Any, server: Any, connect: Any, subject: str) -> None:
    """Publishes wait while the buffer is full, so memory stays bounded. None is lost, and they keep their order."""
    tap = await proxy(frames=False)
    js = await connect(tap)
    numbers, size, room = range(30_000), 1000, 3 * 1024 * 1024
    async with (await connect(server)).core.subscribe(subject) as sub:

        async def publish() -> None:
            for number in numbers:
                await js.core.publish(subject, b"%d" % number + bytes(size))

        tap.stall(TO_SERVER)
        publishing = asyncio.create_task(publish())
        await eventually(lambda: js.stats().bytes_waiting > 2 * 1024 * 1024, what="a full buffer")
        another = asyncio.create_task(js.core.publish(subject, b"another"))
        await never(lambda: publishing.done() or another.done(), 0.3, "a publish that does not wait")
        assert js.stats().bytes_waiting < room
        tap.unstall()
        await asyncio.gather(publishing, another)
        await js.core.flush(60)
        arrived = [(await sub.next(30)).data for _ in range(len(numbers) + 1)]
    arrived.remove(b"another")
    assert [int(data[:-size]) for data in arrived] == [*numbers]


async def test_closed(server: Any, subject: str) -> None:
    js = await jsclient.connect(server.url)
    await js.close()
    for call in (
        js.core.publish(subject),
        js.core.request(subject),
        js.core.subscribe(subject),
        js.core.flush(),
    ):
        with pytest.raises(ClosedError):
            await call


async def test_denied(own_server: Any, connect: Any, events: list[Any]) -> None:
    """A request fails at once, and a publish is reported."""
    user = {"user": "ann", "password": "x", "permissions": {"publish": {"deny": ["secret"]}}}
    own = await own_server(config={"authorization": {"users": [user]}})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    with pytest.raises(PermissionDeniedError, match="secret"):
        await js.core.request("secret", timeout=60)
    await js.core.publish("secret")
    await eventually(lambda: sum(isinstance(event, PermissionDenied) for event in events) == 2)
