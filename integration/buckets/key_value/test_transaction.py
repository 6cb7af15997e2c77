"""Several keys are changed together or not at all, and only if what was read is still so."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from integration.kit.judge.waiting import within
from jsclient import (
    BatchNotEnabledError,
    ClosedError,
    ConfigError,
    InvalidNameError,
    KeyExistsError,
    KeyNotFoundError,
    LeaseLostError,
    ReadOnlyError,
    RevisionMismatchError,
)

pytestmark = pytest.mark.server(">=2.12")


@pytest.fixture
async def atomic(make: Any) -> Any:
    return await make(allow_atomic=True, limit_marker_ttl=30)


async def test_all_kinds_of_changes(atomic: Any) -> None:
    for key in ("b", "c", "d", "e"):
        await atomic.put(key, b"old")
    await atomic.delete("e")
    async with atomic.transaction() as tx:
        tx.put("a", b"1")
        tx.put("b", b"2", last=1)
        tx.delete("c", last=2)
        tx.purge("d")
        tx.create("e", b"5")
        tx.create("f", b"6", ttl=600)
        assert len(tx) == 6
    assert tx.revision == 11
    assert {key: entry.value for key, entry in (await atomic.get_many(">")).items()} == {
        "a": b"1",
        "b": b"2",
        "e": b"5",
        "f": b"6",
    }
    with pytest.raises(KeyNotFoundError) as caught:
        await atomic.get("d")
    assert caught.value.deleted.operation == "PURGE"


@pytest.mark.parametrize("count", [1, 2, 1000])
async def test_sizes(atomic: Any, count: int) -> None:
    async with atomic.transaction() as tx:
        for number in range(count):
            tx.put(f"k{number}", b"%d" % number)
    assert tx.revision == count
    assert (await atomic.status()).values == count


async def test_nothing_is_stored(atomic: Any) -> None:
    """One revision differs."""
    await atomic.put("a", b"1")
    conflicts = [
        (lambda tx: tx.put("a", b"2", last=7), RevisionMismatchError),
        (lambda tx: tx.put("a", b"2", last=0), RevisionMismatchError),
        (lambda tx: tx.delete("a", last=7), RevisionMismatchError),
        (lambda tx: tx.create("a", b"2"), KeyExistsError),
        (lambda tx: tx.guard("a", 7), RevisionMismatchError),
        (lambda tx: tx.guard("none", 1), RevisionMismatchError),
    ]
    for change, kind in conflicts:
        tx = atomic.transaction()
        tx.put("b", b"2")
        change(tx)
        tx.put("c", b"3")
        with pytest.raises(kind) as caught:
            await tx.commit()
        assert caught.value.key in ("a", "none")
        assert (await atomic.status()).values == 1
        with pytest.raises(ClosedError):
            tx.put("d", b"")


async def test_block_fails(atomic: Any) -> None:
    async def fail() -> None:
        async with atomic.transaction() as tx:
            tx.put("b", b"2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await atomic.status()).values == 0


async def test_guards(atomic: Any) -> None:
    """A guard uses the expectation of a change that has none, before or after it."""
    await atomic.put("rate", b"1")
    async with atomic.transaction() as tx:
        tx.guard("rate", 1)
        tx.guard("none", 0)
        tx.put("a", b"1", last=0)
        tx.put("b", b"2")
        tx.put("c", b"3")
    assert tx.revision == 4
    async with atomic.transaction() as tx:  # of a key that is changed: one expectation for both
        tx.put("rate", b"2", last=1)
        tx.guard("rate", 1)
    tx = atomic.transaction()
    tx.put("rate", b"3")
    tx.guard("rate", 1)
    with pytest.raises(RevisionMismatchError):
        await tx.commit()


async def test_guard_without_a_place(atomic: Any) -> None:
    await atomic.put("a", b"1")
    for guards in (1, 2):
        tx = atomic.transaction()
        tx.put("b", b"2", last=0)
        for number in range(guards):
            tx.guard(f"g{number}", 0)
            if number:
                tx.put("c", b"3")
        with pytest.raises(ConfigError, match=f"guard of key 'g{guards - 1}' could not be checked"):
            await tx.commit()
    tx = atomic.transaction()
    tx.guard("a", 1)
    with pytest.raises(ConfigError, match="could not be checked"):
        await tx.commit()
    assert (await atomic.status()).values == 1


async def test_bad_arguments(atomic: Any, js: Any, name: str) -> None:
    tx = atomic.transaction()
    tx.put("a", b"1", last=3)
    bad = [
        (lambda: tx.put("a", b"2"), ConfigError),
        (lambda: tx.put("a b", b"2"), InvalidNameError),
        (lambda: tx.put("b", "text"), ConfigError),
        (lambda: tx.put("b", b"", last=-1), ConfigError),
        (lambda: tx.guard("b"), ConfigError),
        (lambda: tx.guard("b", -1), ConfigError),
        (lambda: tx.guard("_kv", 1), InvalidNameError),
    ]
    for call, kind in bad:
        with pytest.raises(kind):
            call()
    with pytest.raises(ConfigError, match="at another revision"):
        tx.guard("a", 4)
    tx = atomic.transaction()
    tx.guard("a", 4)
    for change in (tx.put, tx.delete, tx.purge):
        with pytest.raises(ConfigError, match="at another revision"):
            change("a", *([b""] if change == tx.put else []), last=3)
    with pytest.raises(ConfigError, match="two revisions"):
        tx.guard("a", 5)
    async with atomic.transaction() as empty:
        pass
    assert empty.revision == 0
    with pytest.raises(ReadOnlyError):
        (await js.key_value(name, writable=False)).transaction()


async def test_under_a_lock(atomic: Any) -> None:
    """The lock is not renewed while the transaction is committed, and its loss is an error."""

    async def work() -> None:
        async with atomic.lock("lock", ttl=30) as lock:
            locks.append(lock)
            async with atomic.transaction() as tx:
                tx.guard(lock)
                tx.put("a", b"1")
                tx.put("b", b"2")
            assert (await atomic.get("a")).value == b"1"
            await atomic.purge("lock")
            tx = atomic.transaction()
            tx.guard(lock)
            tx.put("a", b"2")
            with pytest.raises(LeaseLostError):
                await tx.commit()

    locks: list[Any] = []
    with pytest.raises(LeaseLostError):  # the block ends without its lock
        await work()
    tx = atomic.transaction()
    tx.guard(locks[0])
    tx.put("a", b"3")
    with pytest.raises(LeaseLostError):
        await tx.commit()
    assert (await atomic.get("a")).value == b"1"


async def test_bad_ttl(atomic: Any, make: Any, js: Any) -> None:
    """It is refused before anything of the transaction is sent."""
    tx = atomic.transaction()
    for change in (tx.put, tx.create):
        for ttl in (0.5, 0, -1, timedelta(milliseconds=10), "soon", float("nan")):
            with pytest.raises(ConfigError):
                change("a", b"1", ttl=ttl)
    assert len(tx) == 0
    tx.put("a", b"1", ttl=1)
    tx.create("b", b"1", ttl=timedelta(minutes=1))
    assert await tx.commit() == 2
    plain = await js.create_key_value(f"{atomic.bucket}_plain", allow_atomic=True)
    try:
        tx = plain.transaction()
        for change in (tx.put, tx.create):
            with pytest.raises(ConfigError, match="limit_marker_ttl"):
                change("a", b"1", ttl=60)
        assert len(tx) == 0
    finally:
        await js.delete_key_value(plain.bucket)


async def test_guard_beside_create(atomic: Any) -> None:
    """A deleted key is created at the revision of its deletion, which a guard may name."""
    await atomic.put("a", b"1")
    deleted = await atomic.delete("a")
    tx = atomic.transaction()
    tx.create("a", b"2")
    tx.guard("a", 0)
    with pytest.raises(RevisionMismatchError):
        await tx.commit()
    async with atomic.transaction() as tx:
        tx.guard("a", deleted)
        tx.create("a", b"2")
    tx = atomic.transaction()
    tx.create("a", b"3")
    tx.guard("a", tx.revision)
    with pytest.raises(KeyExistsError):
        await tx.commit()
    assert (await atomic.get("a")).value == b"2"


async def test_guards_of_a_locked_key(atomic: Any) -> None:
    """No guard is left out: a key is guarded either by its lock or by a revision."""
    async with atomic.lock("lock", ttl=30) as lock:
        stored = (await atomic.get("lock")).revision
        for revision in (stored, stored + 7):
            tx = atomic.transaction()
            tx.put("a", b"1")
            tx.guard(lock)
            with pytest.raises(ConfigError, match="its lock"):
                tx.guard("lock", revision)
            tx = atomic.transaction()
            tx.guard("lock", revision)
            with pytest.raises(ConfigError, match="its lock"):
                tx.guard(lock)
            with pytest.raises(ConfigError, match="no revision"):
                atomic.transaction().guard(lock, revision)
        for change in (tx.delete, tx.purge):
            with pytest.raises(ConfigError, match="at another revision"):
                change("lock", last=stored)
        tx = atomic.transaction()
        tx.delete("lock", last=stored)
        with pytest.raises(ConfigError, match="its lock"):
            tx.guard(lock)
        tx = atomic.transaction()
        tx.guard(lock)
        with pytest.raises(ConfigError, match="its lock"):
            tx.create("lock", b"")
        await lock.close()
        async with atomic.lock("lock", ttl=30) as second:
            tx.guard(lock)  # the same lock again
            with pytest.raises(ConfigError, match="another lock"):
                tx.guard(second)
            async with atomic.transaction() as release:
                release.guard(second)
                release.purge("lock")
                release.put("a", b"done")
            assert not second.is_held
    assert (await atomic.get("a")).value == b"done"


@pytest.mark.limit(120)
async def test_transfers(atomic: Any) -> None:
    """Money moves between accounts in concurrent transactions, and the sum stays."""
    accounts = [f"account.{number}" for number in range(4)]
    for account in accounts:
        await atomic.put(account, b"100")
    moved = 0

    async def move(start: int) -> None:
        nonlocal moved
        for step in range(10):
            source, target = accounts[(start + step) % 4], accounts[(start + step + 1) % 4]
            while True:
                snapshot = await atomic.get_many([source, target])
                assert len(snapshot) == 2
                try:
                    async with atomic.transaction() as tx:
                        for account, change in ((source, -1), (target, 1)):
                            entry = snapshot[account]
                            tx.put(account, b"%d" % (int(entry.value) + change), last=entry.revision)
                except RevisionMismatchError:
                    continue  # another transfer has changed an account since the snapshot
                moved += 1
                break

    await within(100, asyncio.gather(*map(move, range(4))), "the transfers")
    assert moved == 40
    values = [int(entry.value) for entry in (await atomic.get_many("account.*")).values()]
    assert sum(values) == 400
    assert (await atomic.status()).values == 4
    assert (await atomic.get_many("account.*")).revision == 4 + 2 * moved


async def test_bucket_without_batches(kv: Any) -> None:
    tx = kv.transaction()
    tx.put("a", b"1")
    tx.put("b", b"1")
    with pytest.raises(BatchNotEnabledError):
        await tx.commit()


async def test_older_server(own_server: Any, connect: Any) -> None:
    own = await own_server(version="2.10.25")
    kv = await (await connect(own)).create_key_value("cfg")
    with pytest.raises(ConfigError, match=r"a transaction needs nats-server 2\.12"):
        kv.transaction()
