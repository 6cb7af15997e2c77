"""Users with exactly the rights that a bucket prints can do what these say, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.buckets.kit import keys_of, names_of
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.servers.nats_server import fits
from jsclient import (
    ConfigError,
    InvalidNameError,
    JetStreamError,
    KeyNotFoundError,
    PermissionDenied,
    PermissionDeniedError,
)

ADMIN = {"user": "top", "password": "x"}
ROLES = ("reader", "writer", "admin")
API = "$JS.API"


@pytest.fixture
async def site(own_server: Any, connect: Any) -> Any:
    """`top, users = await site(open)`: the client of an administrator, and one of each role for what ``open`` opens."""

    async def make(open_bucket: Any) -> tuple[Any, dict[str, Any], Any]:
        draft = await open_bucket(await connect(await own_server()))
        users = [
            {
                "user": role,
                "password": "x",
                "permissions": json.loads(json.dumps(draft.permissions(role, inbox_prefix=f"_INBOX_{role}"))),
            }
            for role in ROLES
        ]
        own = await own_server(config={"authorization": {"users": [ADMIN, *users]}})
        top = await connect(own, user="top", password="x")
        clients = {
            role: await connect(own, user=role, password="x", inbox_prefix=f"_INBOX_{role}") for role in ROLES
        }
        return top, clients, own

    return make


async def config_bucket(js: Any) -> Any:
    return await js.key_value("cfg", check=False)


async def blob_store(js: Any) -> Any:
    return await js.object_store("blobs", check=False)


async def refused(js: Any, *subjects: str) -> None:
    """The server refuses to let this user publish to each of these subjects."""
    for subject in subjects:
        with pytest.raises(PermissionDeniedError):
            await js._context.requests.ask(subject, timeout=10)


def requests_about(stream: str, *words: str) -> list[str]:
    return [f"{API}.{word}.{stream}" for word in words]


MANAGEMENT = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE",
              "STREAM.SNAPSHOT", "STREAM.RESTORE")  # fmt: skip


async def read_everything(kv: Any, top: Any, version: str) -> None:
    """Call each method that reads. The bucket has the keys a and b.c."""
    assert (await kv.get("a")).value == b"1"
    assert (await kv.get("a", revision=1)).value == b"1"
    assert (await kv.get("a", min_revision=1)).value == b"1"
    assert await keys_of(kv) == ["a", "b.c"]
    assert await keys_of(kv, "b.*") == ["b.c"]
    assert await keys_of(kv, "a", "b.c") == ["a", "b.c"]
    assert [entry.value async for entry in kv.history("a")] == [b"1"]
    assert (await kv.status()).values >= 2
    if fits(version, ">=2.11"):
        assert sorted(await kv.get_many(["a", "b.*"])) == ["a", "b.c"]
    other = await top.key_value("cfg")
    async with kv.watch("a", "b.*") as watch, kv.cache() as cache:
        assert [(await watch.next()).key for _ in range(2)] == ["a", "b.c"]
        revision = await other.put("b.c", b"3")
        assert (await within(5, watch.next(), "the change")).value == b"3"
        await within(5, cache.wait_for(revision), "the change in the cache")
        assert cache["b.c"].value == b"3"


@pytest.fixture
async def cfg(site: Any) -> Any:
    top, users, own = await site(config_bucket)
    kv = await top.create_key_value("cfg", storage="memory", **markers(own.version))
    await kv.put("a", b"1")
    await kv.put("b.c", b"2")
    return top, users, own


def markers(version: str) -> dict[str, Any]:
    """Options that allow locks and transactions, where the server has them."""
    options: dict[str, Any] = {}
    if fits(version, ">=2.11"):
        options["limit_marker_ttl"] = 60
    if fits(version, ">=2.12"):
        options["allow_atomic"] = True
    return options


@pytest.mark.covers("K17")
@pytest.mark.parametrize("role", ROLES)
async def test_each_role_reads(cfg: Any, role: str, events: list[Any]) -> None:
    top, users, own = cfg
    await read_everything(await users[role].key_value("cfg"), top, own.version)
    assert of(PermissionDenied, events) == []


async def test_reader_only_reads(cfg: Any) -> None:
    top, users, _ = cfg
    js = users["reader"]
    kv = await js.key_value("cfg")
    for call in (
        kv.put("a", b"0"),
        kv.create("z", b"0"),
        kv.update("a", b"0", 1),
        kv.delete("a"),
        kv.purge("a"),
        kv.update_with("a", lambda _: b"0"),
        js.create_key_value("other"),
        js.update_key_value("cfg", history=2),
        js.delete_key_value("cfg"),
    ):
        with pytest.raises(PermissionDeniedError):
            await call
    await refused(js, "$KV.cfg.a", "$KV.other.a", *requests_about("KV_cfg", *MANAGEMENT))
    await refused(
        js, *requests_about("KV_other", "STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"), f"{API}.INFO"
    )
    status = await (await top.key_value("cfg")).status()
    assert (status.values, status.config.max_msgs_per_subject) == (2, 1)


async def test_writer_writes(cfg: Any, events: list[Any]) -> None:
    _, users, own = cfg
    js = users["writer"]
    kv = await js.key_value("cfg")
    await kv.put("a", b"2", msg_id="1")
    revision = await kv.create("new", b"1")
    revision = await kv.update("new", b"2", revision)
    await kv.delete("new", last=revision)
    await kv.purge("new")
    await kv.update_with("n", lambda value: b"%d" % (int(value or 0) + 1))
    if fits(own.version, ">=2.11"):
        async with kv.lock("lock", ttl=4) as lock:
            taken = (await kv.get("lock")).revision
            await lock.put("locked", b"1")

            async def is_renewed() -> bool:
                return bool((await kv.get("lock")).revision > taken)

            await eventually(is_renewed, what="the renewal")
    if fits(own.version, ">=2.12"):
        async with kv.transaction() as tx:
            tx.put("a", b"3")
            tx.delete("n")
        assert (await kv.get("a")).value == b"3"
    assert of(PermissionDenied, events) == []
    await refused(js, "$KV.other.a", *requests_about("KV_cfg", *MANAGEMENT))
    await refused(js, *requests_about("KV_other", "STREAM.INFO", "STREAM.DELETE"))


async def test_admin_does_everything(cfg: Any, events: list[Any]) -> None:
    _, users, own = cfg
    js = users["admin"]
    kv = await js.key_value("cfg")
    await kv.put("a", b"2")
    await kv.delete("a")
    assert await kv.purge_deletes(older_than=0) == 1
    kept = markers(own.version)
    await js.update_key_value("cfg", storage="memory", history=2, **kept)
    assert (await kv.status()).history == 2
    await js.ensure_key_value("cfg", storage="memory", history=2, **kept)
    assert [name async for name in js.key_value_names()] == ["cfg"]
    await js.delete_key_value("cfg")
    await js.create_key_value("cfg", storage="memory")
    assert of(PermissionDenied, events) == []
    await refused(js, "$KV.other.a", *requests_about("KV_other", *MANAGEMENT))


async def test_a_user_does_not_read_what_is_sent_to_others(cfg: Any) -> None:
    _, users, _ = cfg
    for subject in ("_INBOX_writer.>", "$KV.cfg.>", ">"):
        inbox = await users["reader"]._connection.subscribe(subject, lambda _: None)
        await users["reader"].ping()
        assert inbox.denied is not None
        await users["reader"]._connection.unsubscribe(inbox)


async def test_a_mirror_and_a_handle_that_only_reads(js: Any, name: str) -> None:
    """Values of a mirror are written to its origin, and a handle that does not write names no subject to write."""
    kv = await js.key_value(name, check=False, writable=False)
    assert kv.permissions("writer") == kv.permissions("reader")
    other = await js.key_value(name, check=False)
    assert f"$KV.{name}.>" in other.permissions("writer")["publish"]["allow"]


async def test_what_cannot_be_printed(js: Any, name: str) -> None:
    for bucket in (await js.key_value(name, check=False), await js.object_store(name, check=False)):
        with pytest.raises(ConfigError, match="'reader', 'writer' or 'admin'"):
            bucket.permissions("untrusted reader")
        with pytest.raises(InvalidNameError):
            bucket.permissions("reader", inbox_prefix="a.>")
        with pytest.raises(InvalidNameError):
            bucket.account_rights("A B", "GUESTS")


# --- object stores -----------------------------------------------------------------------------------------


@pytest.fixture
async def blobs(site: Any) -> Any:
    top, users, own = await site(blob_store)
    store = await top.create_object_store("blobs", storage="memory")
    await store.put("a", b"x" * 300_000)
    await store.add_link("link", "a")
    return top, users, own


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_reads_objects(blobs: Any, role: str, events: list[Any]) -> None:
    top, users, _ = blobs
    store = await users[role].object_store("blobs")
    assert await store.get("link") == b"x" * 300_000
    async with store.open("a") as file:
        file.seek(299_999)
        assert await file.read() == b"x"
    assert await names_of(store) == ["a", "link"]
    assert not (await store.status()).is_sealed
    async with store.watch() as watch:
        assert [(await watch.next()).name for _ in range(2)] == ["a", "link"]
        await (await top.object_store("blobs")).put("b", b"1")
        assert (await within(5, watch.next(), "the new object")).name == "b"
    assert of(PermissionDenied, events) == []


@pytest.mark.full
async def test_writer_of_objects(blobs: Any, events: list[Any]) -> None:
    top, users, _ = blobs
    js = users["writer"]
    store = await js.object_store("blobs")
    await store.put("a", b"y" * 200_000)
    await store.rename("a", "c")
    await store.update_info("c", description="words")
    await store.put("d", b"1")
    await store.delete("d")
    assert await names_of(store) == ["link", "c"]
    state = (await (await top.stream("OBJ_blobs")).info(subjects_filter="$O.blobs.C.>")).state
    assert len(state.subjects) == 1  # no chunk of the replaced or deleted objects is left
    assert of(PermissionDenied, events) == []
    with pytest.raises(PermissionDeniedError):
        await store.seal()
    await refused(js, *requests_about("OBJ_blobs", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.CREATE"))
    reader = await users["reader"].object_store("blobs")
    for call in (reader.put("e", b"1"), reader.delete("c"), reader.rename("c", "e"), reader.seal()):
        with pytest.raises(PermissionDeniedError):
            await call
    await refused(users["reader"], "$O.blobs.M.x", "$O.blobs.C.x", *requests_about("OBJ_blobs", *MANAGEMENT))


async def test_admin_of_objects(blobs: Any, events: list[Any]) -> None:
    _, users, _ = blobs
    js = users["admin"]
    store = await js.object_store("blobs")
    await store.seal()
    assert [name async for name in js.object_store_names()] == ["blobs"]
    await js.delete_object_store("blobs")
    await js.create_object_store("blobs", storage="memory")
    assert of(PermissionDenied, events) == []


# --- guests ---------------------------------------------------------------------------------------------


def two_accounts(rights: dict[str, Any]) -> dict[str, Any]:
    """A server's configuration: the account of the bucket, and one of guests with these rights."""
    app = {"jetstream": "enabled", "users": [ADMIN], **rights.get("APP", {})}
    guests = {"users": [{"user": "guest", "password": "x"}], **rights.get("GUESTS", {})}
    return {"accounts": {"APP": app, "GUESTS": guests}}


PAYLOADS = (
    b"",
    b"999",
    b'{"filter":"$KV.cfg.>"}',
    b'{"seq":1}',
    b'{"last_by_subj":"$KV.cfg.a"}',
    b'{"batch":10,"seq":1}',
    b'{"multi_last":["$KV.cfg.>"],"batch":10}',
)


async def attack(js: Any, subjects: list[str], replies: list[str]) -> None:
    """Request everything that a user may request, so that the answer goes to each of these subjects."""
    for subject in subjects:
        for reply in replies:
            for payload in PAYLOADS:
                await js._connection.publish(subject, payload, reply=reply)
    await js.ping()


async def test_what_a_reader_in_the_account_can_do(cfg: Any) -> None:
    """The reason for `account_rights`: the server sends the answer to a request of a reader where the reader says."""
    top, users, _ = cfg
    kv = await top.key_value("cfg")
    publish = users["reader"]._connection.publish
    await publish(f"{API}.DIRECT.GET.KV_cfg.$KV.cfg.a", b"", reply="$KV.cfg.b.c")

    async def is_overwritten() -> bool:
        return bool((await kv.get("b.c")).value == b"1")

    await eventually(is_overwritten, what="the answer is stored as the value of a key")
    await kv.put("empty", b"")
    await publish(f"{API}.DIRECT.GET.KV_cfg.$KV.cfg.empty", b"", reply=f"{API}.STREAM.PURGE.KV_cfg")

    async def is_purged() -> bool:
        return (await kv.status()).values == 0

    await eventually(is_purged, 10, what="the answer is a request that purges the bucket")


async def account_site(own_server: Any, connect: Any, bucket: Any) -> tuple[Any, Any, dict[str, Any]]:
    draft = await bucket(await connect(await own_server()))
    rights = json.loads(json.dumps(draft.account_rights("APP", "GUESTS")))
    own = await own_server(config=two_accounts(rights))
    top = await connect(own, user="top", password="x")
    guest = await connect(own, user="guest", password="x", prefix="JS.APP.API", timeout=3.0)
    return top, guest, rights


def imported(rights: dict[str, Any]) -> list[str]:
    """The subjects under which the guests request services."""
    services = [one for one in rights["GUESTS"]["imports"] if "service" in one]
    return [one.get("to", one["service"]["subject"]) for one in services]


@pytest.mark.covers("K68")
@pytest.mark.server(">=2.11")
async def test_guests_read_and_change_nothing(own_server: Any, connect: Any) -> None:
    top, guest, rights = await account_site(own_server, connect, config_bucket)
    kv = await top.create_key_value("cfg", storage="memory")
    await kv.put("a", b"1")
    await kv.put("b.c", b"2")
    await kv.put("empty", b"")  # an answer without a payload would be a request to purge everything
    theirs = await guest.key_value("cfg")
    assert (await theirs.get("a")).value == b"1"
    assert (await theirs.get("a", revision=1)).value == b"1"
    with pytest.raises(KeyNotFoundError):
        await theirs.get("z")
    assert (await theirs.status()).values == 3
    assert sorted(await theirs.get_many(["a", "b.*"])) == ["a", "b.c"]
    before = await (await top.stream("KV_cfg")).info()
    may = [one.replace(".>", end) for one in imported(rights) for end in (".a", ".empty")]
    targets = [
        "$KV.cfg.a", "JS.APP.API.$KV.cfg.a", *requests_about("KV_cfg", *MANAGEMENT),
        *(one.replace(API, "JS.APP.API") for one in requests_about("KV_cfg", *MANAGEMENT)), *may,
    ]  # fmt: skip
    await attack(guest, [*may, *targets], targets)
    for call in (theirs.put("a", b"0"), theirs.delete("a"), guest.delete_key_value("cfg")):
        with pytest.raises(JetStreamError):
            await call

    async def is_changed() -> bool:
        after = await (await top.stream("KV_cfg")).info()
        return (after.state, after.config) != (before.state, before.config)

    await never(is_changed, 0.3, "a change of the bucket")
    assert (await theirs.get("a")).value == b"1"


@pytest.mark.server(">=2.11")
async def test_guests_are_told_of_changes(own_server: Any, connect: Any) -> None:
    """The owner may export the subjects of the keys as a stream, too. A guest cannot publish to the owner by it."""
    draft = await config_bucket(await connect(await own_server()))
    rights = json.loads(json.dumps(draft.account_rights("APP", "GUESTS")))
    rights["APP"]["exports"].append({"stream": "$KV.cfg.>", "accounts": ["GUESTS"]})
    rights["GUESTS"]["imports"].append({"stream": {"account": "APP", "subject": "$KV.cfg.>"}})
    own = await own_server(config=two_accounts(rights))
    kv = await (await connect(own, user="top", password="x")).create_key_value("cfg", storage="memory")
    guest = await connect(own, user="guest", password="x", prefix="JS.APP.API", timeout=3.0)
    theirs = await guest.key_value("cfg")
    async with guest.core.subscribe("$KV.cfg.>") as hints:
        await guest.ping()
        revision = await kv.put("a", b"1")
        hint = await hints.next(timeout=10)
        assert (hint.subject, hint.data) == ("$KV.cfg.a", b"1")
        assert (await theirs.get("a", min_revision=revision)).value == b"1"
        for subject in ("$KV.cfg.a", hint.reply):
            await guest.core.publish(subject, b"0")
        await guest.ping()
    assert (await kv.get("a")).revision == revision


@pytest.mark.server(">=2.11")
async def test_guests_read_objects_and_change_nothing(own_server: Any, connect: Any) -> None:
    top, guest, rights = await account_site(own_server, connect, blob_store)
    store = await top.create_object_store("blobs", storage="memory")
    info = await store.put("a", b"x" * 300_000)
    theirs = await guest.object_store("blobs")
    assert (await theirs.info("a")).digest == info.digest
    assert not (await theirs.status()).is_sealed
    before = await (await top.stream("OBJ_blobs")).info()
    subjects = [f"$O.blobs.C.{info.nuid}", "$O.blobs.M.YQ=="]
    may = [one.replace(".>", "") for one in imported(rights)] + [
        f"JS.APP.API.DIRECT.GET.OBJ_blobs.{subjects[0]}"
    ]
    targets = [*subjects, *requests_about("OBJ_blobs", *MANAGEMENT), *may]
    await attack(guest, [*may, *targets], targets)

    async def is_changed() -> bool:
        after = await (await top.stream("OBJ_blobs")).info()
        return (after.state, after.config) != (before.state, before.config)

    await never(is_changed, 0.3, "a change of the store")
    assert await store.get("a") == b"x" * 300_000
