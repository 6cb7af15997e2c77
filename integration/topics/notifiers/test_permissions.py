"""The permissions that a kit gives, on a server that enforces them: enough for what each user is to do, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.nats_server import fits
from jsclient import ConfigError, ConsumerConfig, PermissionDenied, PermissionDeniedError

ADMIN = {"user": "admin", "password": "x"}


class Site:
    """A server with a kit of an administrator, and a user for each role."""

    def __init__(self, own: Any, js: Any, kit: Any, connect: Any) -> None:
        self.own, self.js, self.kit, self._connect = own, js, kit, connect

    @classmethod
    async def make(cls, own_server: Any, connect: Any, make_kit: Any, roles: Any) -> Site:
        # On a server of its own the same kit says what its users are to be allowed.
        draft = await own_server()
        kit = await make_kit(await connect(draft))
        users = [
            {
                "user": role.split(maxsplit=1)[0],
                "password": "x",
                "permissions": kit.permissions(role, inbox_prefix=f"_INBOX_{role.split(maxsplit=1)[0]}"),
            }
            for role in roles
        ]
        own = await own_server(config={"authorization": {"users": [ADMIN, *users]}})
        js = await connect(own, user="admin", password="x")
        return cls(own, js, await make_kit(js), connect)

    async def user(self, role: str) -> Any:
        name = role.split(maxsplit=1)[0]
        return await self._connect(self.own, user=name, password="x", inbox_prefix=f"_INBOX_{name}")


ROLES = ("writer", "reader", "untrusted reader")


@pytest.fixture
async def newest(own_server: Any, connect: Any) -> Site:
    return await Site.make(
        own_server, connect, lambda js: js.notifier_kit("price.gold", initial=1, storage="memory"), ROLES
    )


@pytest.fixture
async def every(own_server: Any, connect: Any) -> Site:
    return await Site.make(
        own_server, connect, lambda js: js.subscription_kit("price.gold", storage="memory"), ROLES
    )


@pytest.mark.covers("A14", "A15", "A66")
async def test_writer_produces_and_readers_consume(newest: Site, events: list[Any]) -> None:
    shared = await newest.kit.notifier.get_sharable_notifier_internals()
    writer = await newest.user("writer")
    updater, _ = await writer.notifier_kit("price.gold")
    for role in ROLES[1:]:
        reader = await newest.user(role)
        notifier = reader.make_notifier(shared)
        record = await notifier.get_update_since()
        waiting = asyncio.create_task(notifier.get_update_since(record.update_count))
        await reader.ping()
        await updater.update_state(role)
        assert (await within(5, waiting, "the next value")).value == role
    assert of(PermissionDenied, events) == []


@pytest.mark.covers("A14", "A15", "A66")
async def test_writer_and_readers(every: Site, events: list[Any]) -> None:
    shared = await every.kit.subscription.get_sharable_subscription_internals()
    writer = await every.user("writer")
    publication, _ = await writer.subscription_kit("price.gold")
    await publication.update_state(1)
    reading = []
    for role in ROLES[1:]:
        if role == "untrusted reader" and not fits(every.own.version, ">=2.11"):
            continue  # there the history can be read by a consumer only
        reader = await every.user(role)
        iterator = aiter(reader.make_subscription(shared))
        assert await anext(iterator) == 1
        reading.append((reader, iterator))
    await publication.update_state(2)
    for _, iterator in reading:
        assert await within(5, anext(iterator), "the next value") == 2
    await publication.finish("done")
    for _, iterator in reading:
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
        assert iterator.completion == "done"
    assert of(PermissionDenied, events) == []


@pytest.mark.covers("A14", "A15", "A66", "A67")
@pytest.mark.parametrize("role", ROLES[1:])
async def test_reader_cannot_write(newest: Site, role: str) -> None:
    js = await newest.user(role)
    stream = (await newest.kit.notifier.get_sharable_notifier_internals())["stream"]
    refused = [
        js.publish("price.gold", b"0"),
        js.publish("jsc.push.price.gold", b"0"),
        js.publish(f"$JS.API.STREAM.PURGE.{stream}"),
        js.publish(f"$JS.API.STREAM.DELETE.{stream}"),
        js.publish(f"$JS.API.STREAM.UPDATE.{stream}"),
        js.notifier_kit("price.gold"),
        js.create_stream("OTHER", subjects=["other"]),
    ]
    if role == "untrusted reader":
        handle = await newest.js.stream(stream)
        handle._context = js._context
        refused += [
            handle.create_consumer(ConsumerConfig(name="c", filter_subject="price.gold")),
            handle.create_consumer(deliver_subject="victim"),
            js.pull_subscribe("price.gold", stream=stream),
            js.stream(stream),
        ]
    for call in refused:
        with pytest.raises(PermissionDeniedError):
            await call
    assert (await newest.kit.notifier.get_update_since()).value == 1
    info = await (await newest.js.stream(stream)).info()
    assert info.state.consumer_count == 0


@pytest.mark.covers("A15")
async def test_writer_does_for_and_nothing_else(newest: Site) -> None:
    js = await newest.user("writer")
    stream = (await newest.kit.notifier.get_sharable_notifier_internals())["stream"]
    for call in (
        js.publish("price.silver", b"0"),
        js.publish("jsc.push.price.gold", b"0"),
        js.delete_stream(stream),
        js.pull_subscribe("price.gold", stream=stream),
    ):
        with pytest.raises(PermissionDeniedError):
            await call


async def test_no_user_hears_another_one_answered(newest: Site) -> None:
    js = await newest.user("reader")
    inbox = await js._connection.subscribe("_INBOX_untrusted.>", lambda _: None)
    await js.ping()
    assert inbox.denied is not None
    await js._connection.unsubscribe(inbox)


async def test_untrusted_foreign_count(
    newest: Site,
) -> None:
    """It may not ask the leader, so what a replica has is current."""
    js = await newest.user("untrusted reader")
    notifier = js.make_notifier(await newest.kit.notifier.get_sharable_notifier_internals())
    assert (await within(5, notifier.get_update_since(10**9), "the current value")).value == 1


@pytest.mark.covers("A14", "A15")
async def test_reader_may_make_consumers_needs(own_server: Any, connect: Any, events: list[Any]) -> None:
    """A stream that does not republish."""

    async def make(js: Any) -> Any:
        await js.create_stream("PRICES", subjects=["price.*"], storage="memory", allow_direct=True)
        return await js.notifier_kit("price.gold", initial=1)

    site = await Site.make(own_server, connect, make, ("writer", "reader"))
    log = await site.js.subscription_kit("price.silver")
    js = await site.user("reader")
    notifier = js.make_notifier(await site.kit.notifier.get_sharable_notifier_internals())
    record = await notifier.get_update_since()
    waiting = asyncio.create_task(notifier.get_update_since(record.update_count))
    stream = await site.js.stream("PRICES")
    await eventually(lambda: _has_consumer(stream), 5, "a consumer")
    await site.kit.updater.update_state(2)
    assert (await within(5, waiting, "the next value")).value == 2
    assert of(PermissionDenied, events) == []
    other = js.make_subscription(await log.subscription.get_sharable_subscription_internals())
    with pytest.raises(PermissionDeniedError):
        await within(5, anext(aiter(other)), "the refusal: another subject")


async def _has_consumer(stream: Any) -> bool:
    return bool((await stream.info()).state.consumer_count)


async def test_untrusted_is_limited(js: Any, oracle: Any, make_stream: Any) -> None:
    plain = await make_stream()
    kits = [await make(plain.subject("x")) for make in (js.notifier_kit, js.subscription_kit)]
    for kit in kits:
        with pytest.raises(ConfigError, match="consumer"):
            kit.permissions("untrusted reader")
        with pytest.raises(ConfigError, match="role"):
            kit.permissions("admin")
        with pytest.raises(ConfigError):
            kit.permissions("reader", inbox_prefix="a.>")
    shared = await make_stream(
        allow_direct=True, republish={"src": f"{plain.prefix}2.>", "dest": f"push.{plain.prefix}.>"},
        subjects=[f"{plain.prefix}2.>"],
    )  # fmt: skip
    subject = f"{plain.prefix}2.x"
    newest, every = await js.notifier_kit(subject), await js.subscription_kit(subject)
    rights = newest.permissions("untrusted reader")
    assert rights["publish"]["allow"] == [f"$JS.API.DIRECT.GET.{shared.name}.{subject}"]
    assert rights["subscribe"]["allow"] == ["_INBOX.>", f"push.{plain.prefix}.x"]
    with pytest.raises(ConfigError, match="separate stream"):
        every.permissions("untrusted reader")
