"""Watches of every kind have what the stream has after reconnects, purges and expiries, by a recount of requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from integration.buckets.conftest import headers_of
from integration.buckets.following.kit import Follower
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually, within
from jsclient import DisconnectedError, KeyExistsError, RequestTimeoutError

pytestmark = pytest.mark.server(">=2.11")

KEYS = [f"{group}.{number}" for group in "abc" for number in range(8)]


class Kind(NamedTuple):
    """A kind of watch, the keys that it has, and what is compared of each entry."""

    open: Callable[[], Any]
    fits: Callable[[str], bool]
    about: Callable[[Any], Any]


def with_value(entry: Any) -> tuple[int, bool, bytes]:
    return entry.revision, entry.is_deleted, entry.value


def with_size(entry: Any) -> tuple[int, bool, int]:
    assert entry.raw == b""
    return entry.revision, entry.is_deleted, entry.size


async def write(kv: Any, oracle: Any, ended: asyncio.Event, name: str) -> None:
    """Change the bucket in every way. Purges of the stream leave no marker."""
    number = 0
    while not ended.is_set():
        number += 1
        key = random.choice(KEYS)
        with suppress(DisconnectedError, RequestTimeoutError, KeyExistsError):
            match random.randrange(8):
                case 0:
                    await kv.delete(key)
                case 1:
                    await kv.purge(key)
                case 2:
                    await kv.create(key, b"%d" % number, ttl=1)
                case 3 if number % 5 == 0:
                    await oracle.purge(kv.stream, filter=f"$KV.{name}.{key}")
                case 4:
                    await oracle.publish(f"$KV.{name}.{key}", b"stray %d" % number)
                case _:
                    await kv.put(key, b"%d" % number)
        await asyncio.sleep(0.003)


def is_of(*groups: str) -> Callable[[str], bool]:
    return lambda key: key[0] in groups


@pytest.mark.covers("K46", "K51", "K52", "K54", "K55")
@pytest.mark.limit(240)
async def test_keys(make: Any, connect: Any, proxy: Any, server: Any, oracle: Any, name: str) -> None:
    kv = await make(history=3, limit_marker_ttl=600)
    between = await proxy(frames=False)
    js = await connect(between, **FAST)
    followed, mine = await js.key_value(name), await js.key_value(name, own=True)
    writer = await (await connect(server)).key_value(name, own=True)
    random.seed(11)
    ended = asyncio.Event()
    writing = asyncio.create_task(write(writer, oracle, ended, name))
    everything, some = is_of("a", "b", "c"), is_of("a", "c")
    kinds = [
        Kind(lambda: followed.watch("a.*", "c.*"), some, with_value),
        Kind(lambda: followed.watch(meta_only=True), everything, with_size),
        Kind(lambda: followed.watch("a.*", "c.*", meta_only=True), some, with_size),
        Kind(lambda: followed.watch(ignore_deletes=True), everything, with_value),
        Kind(lambda: followed.watch("b.*", include_history=True), is_of("b"), with_value),
        Kind(mine.watch, everything, with_value),
    ]
    followers: list[Follower] = []
    for _ in range(3):
        followers += [await Follower.open(kind.open(), kind.about) for kind in kinds]
        between.cut()
        await between.wait_links(1)
        await asyncio.sleep(0.3)
    await asyncio.sleep(1.5)
    ended.set()
    await writing
    await asyncio.sleep(1.5)  # what was created with a TTL has expired

    async def equal() -> bool:
        stored = {one.subject.removeprefix(f"$KV.{name}."): one for one in await oracle.messages(kv.stream)}
        for position, follower in enumerate(followers):
            number = position % len(kinds)
            kind = kinds[number]
            for key, one in stored.items():
                headers = headers_of(one)
                is_deleted = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
                is_stray = not is_deleted and "Jsc-Own" not in headers and "Nats-Msg-Id" not in headers
                if not kind.fits(key) or (number == 3 and is_deleted) or (number == 5 and is_stray):
                    continue
                value = len(one.payload) if kind.about is with_size else one.payload
                assert follower.seen.get(key) == (one.seq, is_deleted, value), (position, key)
        return True

    await eventually(equal, 60, "every watch has the newest of each key", interval=0.5)
    for follower in followers:
        assert follower.revisions == sorted(set(follower.revisions))
        await follower.end()


@pytest.mark.covers("O35")
@pytest.mark.limit(240)
async def test_objects(connect: Any, proxy: Any, oracle: Any, store: Any) -> None:
    """Watches of all objects and of some names, with deletions."""
    between = await proxy(frames=False)
    followed = await (await connect(between, **FAST)).object_store(store.bucket)
    random.seed(12)
    watches = []
    for round_ in range(12):
        for _ in range(10):
            name = f"o{random.randrange(6)}"
            if random.random() < 0.3 and name in {info.name async for info in store.list()}:
                await store.delete(name)
            else:
                await store.put(name, random.randbytes(random.randrange(3000)))
        if round_ % 4 == 0:
            watches += [followed.watch(), followed.watch("o1", "o2")]
            for watch in watches[-2:]:
                await within(30, watch.__aenter__(), "the watch is open")
        if round_ % 4 == 3:
            between.cut()
    expected: dict[str, Any] = {}
    for message in await oracle.messages(f"OBJ_{store.bucket}"):
        if message.subject.startswith(f"$O.{store.bucket}.M."):
            fields = json.loads(message.payload)
            expected[fields["name"]] = (fields["nuid"], fields.get("deleted", False))
    for number, watch in enumerate(watches):
        wanted = {name: one for name, one in expected.items() if number % 2 == 0 or name in {"o1", "o2"}}
        seen: dict[str, Any] = {}
        while seen != wanted:
            info = await within(30, watch.next(), "a description")
            seen[info.name] = (info.nuid, info.is_deleted)
        await watch.close()
