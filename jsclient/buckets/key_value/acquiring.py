"""Acquires the lock of a key: `acquire`.

Each attempt to store the value runs in its own task. If the wait is cancelled or times out, the attempt isn't
interrupted, because it would then be unknown whether the value was stored. Instead, the value is removed in the
background.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..._runtime.connection.connection import CLOSED
from ..._runtime.retry import is_transient
from ...errors import ClosedError, ConfigError, JetStreamError, RequestTimeoutError
from ...protocol.buckets.entry import ValueT
from ...protocol.wire.checks import check_server, deadline_of
from .lease import Lease
from .lock import KeyValueLock

if TYPE_CHECKING:
    from .key_value import KeyValue
    from .watch import KeyValueWatch

__all__ = ["MOST_WAIT", "acquire"]

MOST_WAIT: Final = 0.5
"""How long to wait before the next attempt to lock the key if no release is observed, in seconds."""

_PAUSE: Final = 0.2  # seconds between two attempts to acquire the lock
_LAST_ATTEMPT: Final = 1.0  # extra seconds for the last attempt, because the timeout may be 0
_LEAST_TTL: Final = 1.0
_TTL_SERVER: Final = (2, 11)


async def acquire(
    kv: KeyValue[ValueT], key: str, *, ttl: float, value: ValueT | None, timeout: float | None
) -> KeyValueLock[ValueT]:
    """Wait until the lock is acquired, and return it. See `KeyValue.lock`."""
    lease = Lease(kv, key, value, ttl)
    if ttl < _LEAST_TTL:
        raise ConfigError(f"ttl is {ttl}: a lock lasts {_LEAST_TTL:.0f} s or more")
    deadline = deadline_of(timeout, lease.now())
    if deadline == math.inf:
        deadline = None
    try:
        async with asyncio.timeout_at(None if deadline is None else deadline + _LAST_ATTEMPT):
            await _check_bucket(kv)
            await _wait_for(lease, deadline)
    except TimeoutError:
        raise RequestTimeoutError(f"lock of key {key!r} of bucket {kv.bucket!r}", timeout or 0.0) from None
    # Don't await anything from here on. If the task were cancelled now, the server would have the lock's value, but no
    # `KeyValueLock` would exist to release it.
    return KeyValueLock(lease)


async def _check_bucket(kv: KeyValue[Any]) -> None:
    """Raise `ConfigError` if the server or the bucket doesn't support locks."""
    check_server(kv._context.connection.server_version, _TTL_SERVER, "a lock")  # noqa: SLF001  same package
    config = (await kv._known()).config  # noqa: SLF001
    if not config.allow_msg_ttl:
        raise ConfigError(f"bucket {kv.bucket!r} has no TTL for each key: create it with limit_marker_ttl")
    if config.max_msgs_per_subject != 1:
        raise ConfigError(
            f"bucket {kv.bucket!r} keeps {config.max_msgs_per_subject} values of each key: a lock needs a history of 1"
        )


async def _wait_for(lease: Lease[Any], deadline: float | None) -> None:
    """Store the value of the lock as soon as the key has no value. Raises `TimeoutError` after the deadline."""
    release = _Release(lease)
    try:
        while not await _attempt(lease):
            # Try again after MOST_WAIT at the latest, because the watch may miss the release while disconnected.
            remaining = MOST_WAIT if deadline is None else min(MOST_WAIT, deadline - lease.now())
            if remaining <= 0:
                raise TimeoutError
            await release.wait(remaining)
    except BaseException:
        lease.may_store = False
        if lease.awaits_answer:
            _in_background(lease, lease.clear_value())
        raise
    finally:
        release.close()


async def _attempt(lease: Lease[Any]) -> bool:
    """Try once to store the value, and return whether it was stored.

    If the call is cancelled, a background task waits for the end of the attempt, then removes its value.
    """
    context = lease.kv._context  # noqa: SLF001  same package
    if context.closer is not None:  # the connection is about to be closed, so the lock would not be released
        raise ClosedError(CLOSED)
    attempt = context.tasks.start(lease.take(), f"attempt to lock {lease.key}", awaited=True)
    try:
        await asyncio.wait([attempt])
    except BaseException:
        _in_background(lease, _undo(lease, attempt))
        raise
    try:
        return attempt.result()  # type: ignore[no-any-return]
    except asyncio.CancelledError:  # closing the connection cancels its tasks
        raise ClosedError(CLOSED) from None
    except JetStreamError as error:
        if not is_transient(error):
            raise
        await asyncio.sleep(_PAUSE)
        return False


def _in_background(lease: Lease[Any], work: Coroutine[Any, Any, None]) -> None:
    lease.kv._context.tasks.start(work, f"end of the wait for {lease.key}")  # noqa: SLF001  same package


async def _undo(lease: Lease[Any], attempt: asyncio.Task[bool]) -> None:
    """Wait for the end of an attempt, then remove the value that it may have stored."""
    await asyncio.wait([attempt])
    if not attempt.cancelled() and attempt.exception() is None and attempt.result():
        await lease.give_back()
    elif lease.awaits_answer:
        await lease.clear_value()


class _Release:
    """Waits until a key is deleted or expires. The watch that it uses is opened by the first call of `wait`."""

    def __init__(self, lease: Lease[Any]) -> None:
        self._lease = lease
        self._watch: KeyValueWatch[Any] | None = None
        self._opening: asyncio.Task[object] | None = None

    async def wait(self, timeout: float) -> None:
        """Wait for the deletion of the key, but at most ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                watch = await self._opened()
                while not (await watch.next()).is_deleted:
                    pass
        except TimeoutError:
            return
        except JetStreamError:
            # The consumer could not be created, or the connection was lost. Ignore the error, because the next attempt
            # to lock the key reports any problem that matters.
            self.close()
            await asyncio.sleep(min(timeout, _PAUSE))

    async def _opened(self) -> KeyValueWatch[Any]:
        """Open the watch in its own task, because a cancelled opening waits until the consumer has been deleted."""
        if self._watch is None or self._opening is None:
            self._watch = self._lease.kv.watch(self._lease.key, meta_only=True)
            tasks = self._lease.kv._context.tasks  # noqa: SLF001  same package
            self._opening = tasks.start(self._watch.__aenter__(), "watch of a lock", awaited=True)
        await asyncio.wait([self._opening])
        if self._opening.cancelled():  # closing the connection cancels its tasks
            raise ClosedError(CLOSED)
        self._opening.result()
        return self._watch

    def close(self) -> None:
        """Close the watch in the background, because the server may take long to answer."""
        watch, opening = self._watch, self._opening
        self._watch = self._opening = None
        if watch is not None and opening is not None:
            _in_background(self._lease, _close(watch, opening))


async def _close(watch: KeyValueWatch[Any], opening: asyncio.Task[object]) -> None:
    opening.cancel()
    await asyncio.wait([opening])
    with suppress(JetStreamError):
        await watch.close()
