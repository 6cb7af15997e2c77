"""The value of a lock: two clients never have it, and what an old holder sends is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually
from integration.kit.network.match import is_publish_ack
from jsclient import KeyNotFoundError, RequestTimeoutError, WrongLastSequenceError
from jsclient.buckets.key_value.lease import Lease

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def locks(make: Any) -> Any:
    return await make(limit_marker_ttl=30)


async def test_old_holder_is_refused(locks: Any) -> None:
    """Its value has expired, as after a long freeze, and another client has stored its own."""
    old, new = Lease(locks, "a", b"old", 3), Lease(locks, "a", b"new", 30)
    assert await old.take()
    assert not await new.take()

    async def taken() -> bool:
        return await new.take()

    await eventually(taken, 30, "the other one takes the lock")
    assert old.now() > old.until  # by its own clock the old one had ended before
    assert new.revision > old.revision
    with pytest.raises(WrongLastSequenceError):
        await old.put("x", b"old")
    assert not await old.renew(5)
    assert not await old.give_back()
    assert not await old.take()
    assert (await locks.get("a")).value == b"new"
    assert await new.put("x", b"new")


async def test_renewal_after_the_value_expired(locks: Any) -> None:
    """Nobody else has the lock, but somebody may have had it."""
    lease = Lease(locks, "a", b"me", 1)
    assert await lease.take()

    async def expired() -> bool:
        try:
            await locks.get("a", min_revision=1)
        except KeyNotFoundError:
            return True
        return False

    await eventually(expired, 10)
    assert not await lease.renew(5)


async def test_value_in_doubt_is_removed(locks: Any, connect: Any, proxy: Any) -> None:
    """The answer to an attempt was lost."""
    between = await proxy()
    kv = await (await connect(between, timeout=3)).key_value(locks.bucket)
    lease = Lease(kv, "a", b"me", 60)
    between.drop_frames(is_publish_ack, 1)
    with pytest.raises(RequestTimeoutError):
        await lease.take()
    assert lease.awaits_answer
    assert (await locks.get("a")).value == b"me"
    await asyncio.wait_for(lease.clear_value(), 30)
    with pytest.raises(KeyNotFoundError):
        await locks.get("a", min_revision=1)


async def test_attempt_that_is_not_wanted_any_more(locks: Any) -> None:
    """It stores nothing."""
    lease = Lease(locks, "a", b"me", 60)
    lease.may_store = False
    assert not await lease.take()
    with pytest.raises(KeyNotFoundError):
        await locks.get("a", min_revision=1)
