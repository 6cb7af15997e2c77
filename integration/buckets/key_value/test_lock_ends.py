"""The ends of a block under a lock: a loss, a cancellation from outside, a closed connection, and several together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from jsclient import ConfigError, KeyNotFoundError, LeaseLostError, RequestTimeoutError
from jsclient.buckets import KeyValueLock

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def locks(make: Any) -> Any:
    return await make(limit_marker_ttl=30)


class Holder:
    """A client with a connection of its own, which holds a lock until that is lost. ``ended``: when its block ended."""

    def __init__(self, js: Any, kv: Any) -> None:
        self.js, self.kv = js, kv
        self.ended = list[float]()

    async def hold(self, ttl: float = 30, *, slowly: float = 0) -> asyncio.Task[None]:
        """Acquire the lock, and return the task whose block holds it. The end of the block takes ``slowly`` seconds."""
        held = asyncio.Event()

        async def hold() -> None:
            async with self.kv.lock("a", ttl=ttl):
                held.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(slowly)
                    self.ended.append(time.monotonic())

        holding = asyncio.create_task(hold())
        await within(10, held.wait())
        return holding


@pytest.fixture
async def holder(locks: Any, connect: Any, server: Any) -> Holder:
    js = await connect(server)
    return Holder(js, await js.key_value(locks.bucket))


def is_free(kv: Any, key: str = "a") -> Callable[[], Awaitable[bool]]:
    async def is_free() -> bool:
        try:
            await kv.get(key, min_revision=1)
        except KeyNotFoundError:
            return True
        return False

    return is_free


async def removed(kv: Any) -> None:
    """An administrator removes the value of the lock."""
    await kv.purge("a")


def blocked(seconds: float) -> None:
    """Keep the event loop busy, so that no renewal can run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


# --- the connection is closed ----------------------------------------------------------------------------


async def test_connection_is_closed(locks: Any, holder: Holder) -> None:
    holding = await holder.hold()
    began = time.monotonic()
    await holder.js.close()
    assert time.monotonic() - began < 15  # long before the end of the lock
    with pytest.raises(LeaseLostError, match="connection"):
        await within(5, holding, "the block")
    async with locks.lock("a", ttl=30, timeout=5):
        assert holder.ended[0] < time.monotonic()


async def test_connection_is_closed_during_a_slow_end(locks: Any, holder: Holder) -> None:
    """The lock is not given to another client as long as the block runs, and closing does not wait for the block."""
    holding = await holder.hold(7, slowly=4)
    await holder.js.close()
    assert not holder.ended
    async with locks.lock("a", ttl=30, timeout=40):
        assert holder.ended
    with pytest.raises(LeaseLostError):
        await within(5, holding, "the block")


async def test_block_closes_its_own_connection(holder: Holder) -> None:
    async def hold() -> None:
        async with holder.kv.lock("a", ttl=30) as lock:
            await holder.js.close()
            assert not lock.is_held

    with pytest.raises(LeaseLostError, match="connection"):
        await hold()


async def test_connection_is_aborted(holder: Holder) -> None:
    """A cancelled close ends the connection at once, and the block learns of it, too."""
    holding = await holder.hold()
    closing = asyncio.create_task(holder.js.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    with pytest.raises(LeaseLostError, match="connection"):
        await within(5, holding, "the block")


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("fault", ["none", "refuse", "blackhole"])
async def test_close_with_a_held_lock(locks: Any, connect: Any, proxy: Any, fault: str) -> None:
    """Closing releases a lock that was acquired without a block, and does not wait for a server that is gone."""
    between = await proxy()
    js = await connect(between, timeout=60.0)
    lock = await (await js.key_value(locks.bucket)).lock("a", ttl=3)
    if fault == "blackhole":
        between.blackhole()
    elif fault == "refuse":
        between.refuse()
        between.cut()
    await within(20, js.close(), "the close")  # long before the timeout of a request
    assert not lock.is_held
    if fault == "none":
        assert await is_free(locks)()
    else:
        await eventually(is_free(locks), 20)
    with pytest.raises(LeaseLostError):
        lock.check()


# --- the block takes too long ----------------------------------------------------------------------------


async def test_overrun_is_not_silent(locks: Any) -> None:
    """A block that never lets the renewal run ends with an error, as somebody else may have had the lock meanwhile."""
    with pytest.raises(LeaseLostError):
        async with locks.lock("a", ttl=1) as lock:
            blocked(1.2)
    assert not lock.is_held
    async with locks.lock("a", ttl=30, timeout=5):
        pass


async def test_own_error_of_a_block_that_overran(locks: Any) -> None:
    """The error of the block is raised, and tells of the loss in a note."""

    async def hold() -> None:
        async with locks.lock("a", ttl=1):
            blocked(1.2)
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        await hold()
    assert any("is lost" in note for note in caught.value.__notes__)


async def test_removed_just_before_the_end(locks: Any) -> None:
    """The release shows that somebody removed the value, before any renewal did."""
    with pytest.raises(LeaseLostError, match="another client"):
        async with locks.lock("a", ttl=30):
            await removed(locks)


async def test_error_of_a_request_after_the_loss(locks: Any) -> None:
    """The loss explains the error of a request, which is its cause."""
    failure = RequestTimeoutError("put", 1.0)

    async def hold() -> None:
        async with locks.lock("a", ttl=1):
            blocked(1.2)
            raise failure

    with pytest.raises(LeaseLostError) as caught:
        await hold()
    assert caught.value.__cause__ is failure


# --- cancelled from outside ------------------------------------------------------------------------------


async def test_cancelled_after_the_block_noticed(locks: Any) -> None:
    """The block noticed the loss itself. A cancellation from outside stays one."""
    noticed = asyncio.Event()

    async def hold() -> None:
        async with locks.lock("a", ttl=30) as lock:
            await removed(locks)
            with pytest.raises(LeaseLostError):
                await lock.put("x", b"1")
            noticed.set()
            await asyncio.sleep(60)

    holding = asyncio.create_task(hold())
    await within(10, noticed.wait())
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(5, holding)
    assert holding.cancelled()


async def test_timeout_after_the_block_noticed(locks: Any) -> None:
    async def hold() -> None:
        async with asyncio.timeout(1), locks.lock("a", ttl=30) as lock:
            await removed(locks)
            with pytest.raises(LeaseLostError):
                await lock.put("x", b"1")
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await hold()


async def test_our_cancellation_is_taken_back(locks: Any) -> None:
    """Code after the block runs in a task that is not cancelled."""
    task = asyncio.current_task()
    assert task is not None

    async def hold() -> None:
        async with locks.lock("a", ttl=2):
            await removed(locks)
            await asyncio.sleep(60)

    async with asyncio.timeout(30) as limit:
        with pytest.raises(LeaseLostError):
            await hold()
        assert task.cancelling() == 0
        await asyncio.sleep(0.01)
    assert not limit.expired()


async def test_loss_in_a_task_group(locks: Any) -> None:
    """The group ends with the loss, and cancels its other tasks."""
    others = list[asyncio.Task[None]]()

    async def hold() -> None:
        async with locks.lock("a", ttl=2):
            await removed(locks)
            await asyncio.sleep(60)

    async def hold_beside_another() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(hold())
            others.append(group.create_task(asyncio.sleep(60)))

    with pytest.raises(BaseExceptionGroup) as caught:
        await hold_beside_another()
    assert [type(error) for error in caught.value.exceptions] == [LeaseLostError]
    assert [other.cancelled() for other in others] == [True]


async def test_task_group_around_a_block_that_noticed(locks: Any) -> None:
    """A failed neighbour cancels the block, whose own loss does not hide that."""

    async def fail(when: asyncio.Event) -> None:
        await when.wait()
        raise KeyError("x")

    async def hold_beside_another() -> None:
        noticed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(noticed))
            async with locks.lock("a", ttl=30) as lock:
                await removed(locks)
                with pytest.raises(LeaseLostError):
                    await lock.put("x", b"1")
                noticed.set()
                await asyncio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as caught:
        await hold_beside_another()
    assert [type(error) for error in caught.value.exceptions] == [KeyError]


async def test_two_locks_are_lost_together(holder: Holder) -> None:
    js, kv = holder.js, holder.kv
    held = asyncio.Event()

    async def hold() -> int:
        try:
            async with kv.lock("a", ttl=30), kv.lock("b", ttl=30):
                held.set()
                await asyncio.sleep(60)
        except LeaseLostError:
            pass
        task = asyncio.current_task()
        return -1 if task is None else task.cancelling()

    holding = asyncio.create_task(hold())
    await within(10, held.wait())
    await js.close()
    assert await within(5, holding) == 0


# --- a lock that is not held -----------------------------------------------------------------------------


async def test_block_with_a_released_lock(locks: Any) -> None:
    lock = await locks.lock("a", ttl=30)
    assert isinstance(lock, KeyValueLock)
    await lock.close()
    entered = False
    with pytest.raises(LeaseLostError, match="released"):
        async with lock:
            entered = True
    assert not entered


async def test_block_with_a_lock_that_ended(locks: Any) -> None:
    """The loop was busy for longer than the TTL after the lock was acquired."""
    lock = await locks.lock("a", ttl=1)
    blocked(1.2)
    with pytest.raises(LeaseLostError):
        async with lock:
            pytest.fail("the block ran")
    async with locks.lock("a", ttl=30, timeout=5):
        pass


async def test_one_block_at_a_time(locks: Any) -> None:
    """A second block would not be cancelled when the lock is lost."""
    async with locks.lock("a", ttl=30) as lock:
        with pytest.raises(ConfigError, match="another block"):
            async with lock:
                pytest.fail("the block ran")
        assert lock.is_held
    assert await is_free(locks)()
