"""Hostile names at every door: one documented error, and nothing on the wire (X4, X5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.network.asking import traffic
from jsclient import ConfigError, ConsumerConfig, Disconnected, ErrorRaised, InvalidNameError, MaxPayloadError

HOSTILE = [
    "",
    " ",
    "a b",
    "a\tb",
    "a\rb",
    "a\nb",
    "a\r\nPUB x 0\r\n\r\n",
    "\r\n",
    "a\x00b",
    "a\x01b",
    "a\x1fb",
    "a\x7fb",
    "a\x85b",
    "a\ud800b",
    "\udcff",
    ".",
    "..",
    ".a",
    "a.",
    "a..b",
    "a" * 5000,
    "é" * 3000,
    "a." * 3000 + "a",
    "a\x0bb",
    "a\x0cb",
    "\x1b[31m",
    "\n",
    "a\x1cb",
    "a\x1eb",
    "a\x80b",
    "a\x9fb",
]
"""Wrong as a subject and as a name of any kind."""

NOT_NAMES = ["*", ">", "a.b", "a*", "a>b", "a/b", "a\\b", "né", "../a", "x" * 256]
"""Wrong as the name of a consumer or of a new stream."""

EXISTING = {"stream", "delete_stream", "stream of subscribe"}
"""Doors for a stream that another client may have created, whose name may have any characters."""

WILD = ["*", ">", "a.*", "a.>", "*.a"]
"""Wrong as a subject to publish to."""

Door = Callable[[Any, str, OwnStream], Awaitable[Any]]

SUBJECTS: dict[str, Door] = {
    "publish": lambda js, bad, _: js.publish(bad, b"x"),
    "deliver subject": lambda js, bad, s: js.subscribe(s.all, config=ConsumerConfig(deliver_subject=bad)),
}
FILTERS: dict[str, Door] = {
    "subscribe": lambda js, bad, s: js.subscribe(bad, stream=s.name),
    "pull_subscribe": lambda js, bad, s: js.pull_subscribe(bad, stream=s.name),
    "filter subject": lambda js, bad, s: js.subscribe(
        stream=s.name, config=ConsumerConfig(filter_subject=bad)
    ),
    "stream subjects": lambda js, bad, _: js.create_stream("S", subjects=[bad]),
}
NAMES: dict[str, Door] = {
    "stream of subscribe": lambda js, bad, s: js.subscribe(s.all, stream=bad),
    "consumer": lambda js, bad, s: js.subscribe(s.all, stream=s.name, consumer=bad),
    "durable": lambda js, bad, s: js.subscribe(s.all, stream=s.name, durable=bad),
    "queue": lambda js, bad, s: js.subscribe(s.all, stream=s.name, queue=bad),
    "pull durable": lambda js, bad, s: js.pull_subscribe(s.all, stream=s.name, durable=bad),
    "config name": lambda js, bad, s: js.subscribe(s.all, stream=s.name, config=ConsumerConfig(name=bad)),
    "stream": lambda js, bad, _: js.stream(bad),
    "create_stream": lambda js, bad, _: js.create_stream(bad, subjects=["a"]),
    "delete_stream": lambda js, bad, _: js.delete_stream(bad),
}
OPTIONAL = {
    # An empty text there means "not given", as in the ADR.
    "subscribe",
    "pull_subscribe",
    "filter subject",
    "deliver subject",
    "stream of subscribe",
    "consumer",
    "durable",
    "queue",
    "pull durable",
    "config name",
}


@pytest.mark.covers("J3", "J26")
@pytest.mark.parametrize("door", [*SUBJECTS, *FILTERS, *NAMES])
async def test_hostile_names_refused_before_wire(
    door: str, proxy: Any, connect: Any, stream: OwnStream
) -> None:
    """X4: 31 and more names at each of 15 doors. 0 on the wire, one documented error."""
    tap = await proxy()
    js = await connect(tap)
    await js.account_info()
    await js.ping()
    call = {**SUBJECTS, **FILTERS, **NAMES}[door]
    names = [*HOSTILE, *(_not_names(door) if door in NAMES else []), *(WILD if door in SUBJECTS else [])]
    start = len(tap.frames)
    wrong: list[str] = []
    for bad in names:
        # there, an empty text means that no name is given
        if bad == "" and door in OPTIONAL:
            continue
        wrong += await _wrong(partial(call, js, bad, stream), bad)
    assert wrong == []
    await js.ping()
    assert traffic(tap, start) == []
    assert await stream.consumer_names() == []


def _not_names(door: str) -> list[str]:
    return [name for name in NOT_NAMES if name.isascii() or door not in EXISTING]


async def _wrong(call: Callable[[], Awaitable[Any]], bad: str) -> list[str]:
    """What is to be said against how a call ended. Nothing if it was refused as documented."""
    try:
        await call()
    except ConfigError as error:
        # `InvalidNameError`, or of the config where that is what the text cannot be put into.
        by_name = isinstance(error, InvalidNameError) or not bad or not bad.isascii()
        fit_to_show = len(str(error)) < 400 and "\n" not in str(error)
        return [] if by_name and fit_to_show else [f"{bad[:20]!r}: {error!r}"]
    except Exception as error:  # noqa: BLE001
        return [f"{bad[:20]!r}: {error!r}"[:200]]
    return [f"{bad[:20]!r}: accepted"]


@pytest.mark.parametrize("name", ["A B", "A\r\nB", "", "A:B", "A\x00", "é", " A", "A\ud800"])
async def test_header_names_are_checked(name: str, proxy: Any, connect: Any, stream: OwnStream) -> None:
    """X5."""
    tap = await proxy()
    js = await connect(tap)
    with pytest.raises(InvalidNameError):
        await js.publish(stream.subject("x"), b"x", headers={name: "v"})
    assert tap.sent(stream.all) == []


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\n", "a\r", "a\x00b", "a\ud800"])
async def test_header_values_refused(value: str, proxy: Any, connect: Any, stream: OwnStream) -> None:
    """X5."""
    tap = await proxy()
    js = await connect(tap)
    for headers in ({"A": value}, {"A": ["b", value]}):
        with pytest.raises(ConfigError):
            await js.publish(stream.subject("x"), b"x", headers=headers)
    with pytest.raises(ConfigError):
        await js.publish(stream.subject("x"), b"x", msg_id=value)
    assert tap.sent(stream.all) == []


async def test_max_payload_with_headers(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """X5: the connection was closed for good in nats-py, 3 of 3."""
    own = await own_server(config={"max_payload": 2000})
    stream = await OwnStream.create(await oracle_for(own), "small")
    js = await connect(own)
    await js.publish(stream.subject("x"), b"x" * 2000)
    for headers, size in (({}, 2001), ({"A": "b" * 100}, 1950)):
        with pytest.raises(MaxPayloadError):
            await js.publish(stream.subject("x"), b"x" * size, headers=headers)
    assert await js.ping() < 5
    assert of(Disconnected, events) == of(ErrorRaised, events) == []


async def test_longest_legal_names_work(js: Any, oracle: Any, events: list[Any]) -> None:
    """X4: what is accepted does not end the connection."""
    subject = "a" + ".b" * 1790
    await oracle.create_stream("L" * 200, ["a.>"], storage="memory")
    try:
        await js.publish(subject, b"x", headers={"A": "b"}, msg_id="1")
        sub = await js.subscribe("a.>", stream="L" * 200)
        message = await sub.next(timeout=5)
        assert message.subject == subject
        await message.ack_sync()
        await sub.unsubscribe()
    finally:
        await oracle.delete_stream("L" * 200)
    assert of(Disconnected, events) == of(ErrorRaised, events) == []


async def test_inbox_prefix_ours_and_checked(
    proxy: Any, connect: Any, oracle: Any, server: Any, stream: OwnStream
) -> None:
    """X8: a neighbour with `_INBOX.>` sees 0 of our replies. Inboxes cannot be guessed."""
    tap = await proxy()
    js = await connect(tap, inbox_prefix="_INBOX_app")
    async with oracle.listen("_INBOX.>") as neighbours, oracle.listen("_INBOX_app.>") as ours:
        before = len(neighbours)
        await stream.publish(3)
        published = len(neighbours) - before
        sub = await js.subscribe(stream.all)
        psub = await js.pull_subscribe(stream.all)
        for _ in range(3):
            await sub.next(timeout=5)
        await psub.fetch(3)
        await js.ping()
        assert [m for m in neighbours[published:] if m.subject.startswith("_INBOX_app")] == []
        assert len(ours) >= 6
    inboxes = {(frame.subject or "").removesuffix(".*") for frame in tap.subs()}
    assert len(inboxes) >= 3
    for inbox in inboxes:
        prefix, _, unguessable = inbox.partition(".")
        assert (prefix, len(unguessable) >= 22) == ("_INBOX_app", True)
    for bad in ("a b", "a.*", "", "a\r\n", "a..b"):
        with pytest.raises(ConfigError):
            await jsclient.connect(server.url, inbox_prefix=bad)
