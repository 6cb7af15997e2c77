"""The permissions that a kit gives, on a server that enforces them: exactly the rights that each user needs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.servers.nats_server import fits
from jsclient import (
    ClosedError,
    ConfigError,
    ConsumerConfig,
    PermissionDenied,
    PermissionDeniedError,
    ProducerFencedError,
)
from jsclient.events import RecordSkipped

ADMIN = {"user": "admin", "password": "x"}


class Site:
    """A server with a kit of an administrator, and a user for each role."""

    def __init__(self, own: Any, js: Any, kit: Any, connect: Any) -> None:
        self.own, self.js, self.kit, self._connect = own, js, kit, connect

    @classmethod
    async def make(cls, own_server: Any, connect: Any, make_kit: Any, roles: Any) -> Site:
        # On a separate server, the same kit says which permissions its users need.
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


STATUS = b"999"


async def _overwritten(site: Site) -> bool:
    stream = await site.js.stream((await site.kit.notifier.get_sharable_notifier_internals())["stream"])
    return bool((await stream.info()).state.first_seq > 1)


async def attack(js: Any, subjects: list[str], replies: list[str]) -> None:
    """Request everything that a user may request, with these reply subjects: NATS does not check them."""
    for subject in subjects:
        for reply in replies:
            for payload in (STATUS, b"", b'{"batch":10,"seq":1}', b'{"seq":1}'):
                await js._connection.publish(subject, payload, reply=reply)
    await js.ping()


@pytest.mark.covers("A15")
@pytest.mark.parametrize("role", ROLES[1:])
async def test_answer_stored_as_state_is_skipped(newest: Site, role: str, events: list[Any]) -> None:
    js = await newest.user(role)
    notifier = js.make_notifier(await newest.kit.notifier.get_sharable_notifier_internals())
    record = await notifier.get_update_since()
    waiting = asyncio.create_task(notifier.get_update_since(record.update_count))
    await js.ping()
    may = newest.kit.permissions(role)["publish"]["allow"]
    await attack(js, [one for one in may if "*" not in one], ["price.gold"])
    # The answers are stored some time after the pong. Until then a late reader finds the first value.
    await eventually(lambda: _overwritten(newest), what="the first value is gone")
    late = asyncio.create_task(newest.kit.notifier.get_update_since())
    await never(lambda: waiting.done() or late.done(), 0.2, "a value that nobody gave")
    await within(5, newest.kit.updater.update_state(2), "the next value")
    assert (await within(5, waiting, "the next value")).value == 2
    assert (await within(5, late, "the next value")).value == 2
    assert {one.subject for one in of(RecordSkipped, events)} == {"price.gold"}
    await attack(js, [one for one in may if "*" not in one], ["price.gold"])
    again = await newest.js.notifier_kit("price.gold")
    await within(5, again.updater.update_state(3), "another producer")
    with pytest.raises(ProducerFencedError):
        await newest.kit.updater.update_state(4)


@pytest.mark.covers("A15")
@pytest.mark.parametrize("role", ROLES[1:])
async def test_answer_stored_as_value_is_skipped(every: Site, role: str, events: list[Any]) -> None:
    js = await every.user(role)
    publication = every.kit.publication
    iterator = aiter(every.kit.subscription)
    may = [one for one in every.kit.permissions(role)["publish"]["allow"] if "*" not in one]
    await publication.update_state(1)
    internals = await every.kit.subscription.get_sharable_subscription_internals()
    stream = await every.js.stream(internals["stream"])
    for value in (2, 3):
        stored = (await stream.info()).state.last_seq
        await attack(js, may, ["price.gold"])

        async def is_stored(stored: int = stored) -> bool:
            return bool((await stream.info()).state.last_seq > stored)

        await eventually(is_stored, what="an answer is stored")
        await within(5, publication.update_state(value), "the next value")
    await publication.finish("end")
    await attack(js, may, ["price.gold"])
    events.clear()
    assert [value async for value in iterator] == [1, 2, 3]
    await eventually(lambda: of(RecordSkipped, events), what="the report of the reader")
    again = await every.js.subscription_kit("price.gold")
    with pytest.raises(ClosedError):
        again.publication.update_state(4)
    assert {one.subject for one in of(RecordSkipped, events)} == {"price.gold"}


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
    await eventually(lambda: _has_consumer(stream), what="a consumer")
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


# --- users of a separate account ---------------------------------------------------------------------------


def two_accounts(rights: dict[str, Any]) -> dict[str, Any]:
    """A server's configuration: the administrator's account, and one of guests with these rights."""
    app = {"jetstream": "enabled", "users": [ADMIN], **rights.get("APP", {})}
    guests = {"users": [{"user": "guest", "password": "x"}], **rights.get("GUESTS", {})}
    return {"accounts": {"APP": app, "GUESTS": guests}}


@pytest.fixture(params=["notifier", "subscription"])
async def guests(own_server: Any, connect: Any, request: Any) -> Site:
    async def make(js: Any) -> Any:
        kind = js.notifier_kit if request.param == "notifier" else js.subscription_kit
        return await kind("price.gold", storage="memory")

    draft = await make(await connect(await own_server()))
    own = await own_server(config=two_accounts(draft.account_rights("APP", "GUESTS")))
    js = await connect(own, user="admin", password="x")
    return Site(own, js, await make(js), connect)


@pytest.mark.covers("A14", "A15")
@pytest.mark.server(">=2.11")
async def test_guests_read_and_their_answers_stay(guests: Site, events: list[Any]) -> None:
    js = await guests._connect(guests.own, user="guest", password="x")
    is_notifier = hasattr(guests.kit, "notifier")
    producer = guests.kit.updater if is_notifier else guests.kit.publication
    facet = guests.kit.notifier if is_notifier else guests.kit.subscription
    share = "notifier" if is_notifier else "subscription"
    shared = await getattr(facet, f"get_sharable_{share}_internals")()
    reading = aiter(getattr(js, f"make_{share}")({**shared, "api_prefix": "JS.APP.API"}))
    for value in (1, 2):
        waiting = asyncio.create_task(anext(reading))
        await js.ping()
        await asyncio.sleep(0.1)
        await producer.update_state(value)
        assert await within(5, waiting, "the value") == value
    rights = guests.kit.account_rights("APP", "GUESTS")["GUESTS"]["imports"]
    may = [one.get("to", one["service"]["subject"]) for one in rights if "service" in one]
    stream = await guests.js.stream(shared["stream"])
    replies = ["price.gold", "jsc.push.price.gold", f"$JS.API.STREAM.DELETE.{stream.name}", *may]
    await attack(js, [*may, "price.gold", "jsc.push.price.gold", *replies], replies)
    await asyncio.sleep(0.2)  # answers of the server would be stored some time after the pong
    info = await stream.info()
    assert (info.state.last_seq, info.state.consumer_count) == (2, 0)
    await producer.finish("end")
    with pytest.raises(StopAsyncIteration):
        await within(5, anext(reading), "the end")
    assert reading.completion == "end"
    assert of(RecordSkipped, events) == []
