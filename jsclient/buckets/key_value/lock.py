"""A lock on a key of a bucket, and what it protects: `KeyValue.lock`.

The key has a value with a TTL as long as the lock is held. The holder sets the value again at each third of the TTL, if
it has the revision of the last time. If the holder dies, the value expires, and the next one creates it. The holder
counts the TTL from before it sent the value, so that its time ends before the server removes the value.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from ..._runtime.handle import Handle, State
from ..._runtime.publish import check_payload, publish
from ..._runtime.retry import is_transient
from ...errors import (
    ConfigError,
    JetStreamError,
    LeaseLostError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from ...protocol.buckets.entry import OPERATION, OWN, PURGE, ValueT
from ...protocol.models.message import StoredMessage
from ...protocol.wire.checks import check_server, deadline_of
from .storing import has_value

if TYPE_CHECKING:
    from .key_value import KeyValue
    from .watch import KeyValueWatch

__all__ = ["MOST_WAIT", "KeyValueLock", "acquire"]

MOST_WAIT: Final = 0.5
"""Seconds after which a key that is locked is looked at again, though no change of it was read."""

_OWNER: Final = "Jsc-Lease"  # this header distinguishes this lock's value from the values of other clients
_SHARE: Final = 3  # the value is renewed after a third of the TTL
# the lock counts as lost when this share of the TTL remains, so that the block has time to stop
_MARGIN: Final = 0.1
_PAUSE: Final = 0.2  # seconds between attempts to renew, and to acquire
_LEAST_TTL: Final = 1.0
_TTL_SERVER: Final = (2, 11)
_TAKEN: Final = "the key has another revision, of another client"


class KeyValueLock(Handle, Generic[ValueT]):
    """A lock that this client holds. Created by `KeyValue.lock`.

    With ``async with`` the block is cancelled when the lock is lost, and `LeaseLostError` is raised.

    Attributes:
        key: The key.
        token: The fencing token. Each holder of the key has a greater one than the holder before it. Give it to what
            the lock protects, so that it can refuse a smaller one.
    """

    def __init__(self, kv: KeyValue[ValueT], key: str, value: ValueT | None, ttl: float) -> None:
        self.key: str = kv._keys.checked(key)  # noqa: SLF001  one room
        self.token: int = 0
        self._kv = kv
        self._value = b"" if value is None else check_payload(kv._keys.encoded(key, value))  # noqa: SLF001
        self._ttl = ttl
        self._owner = secrets.token_hex(12)
        self._revision = 0  # the revision of this lock's value
        self._until = 0.0  # the time of the loop at which the lock is lost unless it is renewed
        self._turn = asyncio.Lock()  # only one task at a time may change the revision
        self._loss: LeaseLostError | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._block: asyncio.Task[object] | None = None
        self._cancelled = 0  # how often the task of the block had been cancelled before the block began

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self._loss else self._state.value
        return f"<KeyValueLock {self._kv.bucket}/{self.key} token {self.token}, {state}>"

    @property
    def is_held(self) -> bool:
        """Whether this client certainly holds the lock now, by the clock. No request is sent."""
        return self._state is State.OPEN and self._loss is None and self._now() < self._until

    def _now(self) -> float:
        return self._kv._context.connection.now()  # noqa: SLF001  one room

    # --- holding it --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        self._cancelled = self._block.cancelling() if self._block is not None else 0
        if self._loss is not None:
            raise self._loss
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        loss = self._loss
        if loss is not None and block is not None and not self._is_cancelled_by_others(block):
            await self.close()
            raise loss from (None if isinstance(error, asyncio.CancelledError) else error)
        await super().__aexit__(kind, error, trace)

    def _is_cancelled_by_others(self, block: asyncio.Task[object]) -> bool:
        """Return whether the task was cancelled by somebody else, too. Takes back our own cancellation."""
        return block.uncancel() > self._cancelled if block.cancelling() > self._cancelled else False

    def check(self) -> None:
        """Raise `LeaseLostError` if the lock is not certainly held now. No request is sent."""
        if not self.is_held:
            raise self._loss or self._lost("it was released, or not renewed in time")

    async def put(self, key: str, value: ValueT) -> int:
        """Set the value of another key of the bucket, and return its revision. The server refuses it without the lock.

        Args:
            key, value: See `KeyValue.put`.

        Raises:
            LeaseLostError: The lock is not held. Nothing was stored.

        Also raises the errors of `KeyValue.put`.
        """
        data = check_payload(self._kv._keys.encoded(key, value))  # noqa: SLF001  one room
        async with self._turn:
            self.check()
            try:
                return await self._put(key, data)
            except WrongLastSequenceError:
                message = await self._newest()
            if message is not None and self._is_ours(message):
                # A renewal was stored, and its answer was lost.
                self._revision = message.seq
                try:
                    return await self._put(key, data)
                except WrongLastSequenceError:
                    pass
            self._lose(_TAKEN)
            raise self._loss or self._lost(_TAKEN)

    async def _put(self, key: str, value: bytes) -> int:
        kv = self._kv
        ack = await publish(
            kv._context,  # noqa: SLF001  one room
            kv._keys.target(key),  # noqa: SLF001
            value,
            headers={OWN: "1"} if kv._keys.own else None,  # noqa: SLF001
            expected_last_subject_seq=self._revision,
            expected_last_subject_seq_subject=kv._keys.subject(self.key),  # noqa: SLF001
            stream_exists=True,
        )
        return ack.seq

    # --- the value of the key ----------------------------------------------------------------------------

    async def _newest(self, timeout: float | None = None) -> StoredMessage | None:
        """Return the newest message of the key, from the leader."""
        body = {"last_by_subj": self._kv._keys.subject(self.key)}  # noqa: SLF001  one room
        return await self._kv._stored(body, timeout)  # noqa: SLF001

    def _is_ours(self, message: StoredMessage) -> bool:
        return message.headers.get(_OWNER) == self._owner

    async def try_acquire(self) -> bool:
        """Store our value if the key has none. Returns whether the lock is held."""
        message = await self._newest()
        if message is not None and has_value(self._kv, message) and not self._is_ours(message):
            # An earlier attempt may have stored this lock's own value, although its answer was lost.
            return False
        try:
            await self._store(0 if message is None else message.seq)
        except WrongLastSequenceError:
            return False
        self.token = self._revision
        self._renewing = self._kv._context.tasks.start(  # noqa: SLF001  one room
            self._renew_always(), f"lock of {self.key}"
        )
        return True

    async def _store(self, expected: int, timeout: float | None = None) -> None:
        """Set our value if the key has the expected revision."""
        sent = self._now()
        self._revision = await self._kv._write(  # noqa: SLF001  one room
            self.key,
            self._value,
            expected=expected,
            ttl=self._ttl,
            headers={_OWNER: self._owner},
            timeout=timeout,
        )
        self._until = sent + self._ttl * (1 - _MARGIN)

    async def _renew_always(self) -> None:
        pause = self._ttl / _SHARE
        while self._loss is None:
            await asyncio.sleep(max(0.0, min(pause, self._until - self._now())))
            remaining = self._until - self._now()
            if remaining <= 0:
                self._lose("it could not be renewed in time")
                return
            try:
                # The deadline applies even if a put under the lock takes long.
                async with asyncio.timeout(remaining), self._turn:
                    await self._renew(remaining)
                pause = self._ttl / _SHARE
            except (TimeoutError, JetStreamError) as error:
                if isinstance(error, JetStreamError) and not is_transient(error):
                    self._lose(str(error))
                    return
                pause = min(_PAUSE, self._ttl / 10)

    async def _renew(self, timeout: float) -> None:
        try:
            await self._store(self._revision, timeout)
        except WrongLastSequenceError:
            message = await self._newest(timeout)
            if message is None or not self._is_ours(message):
                self._lose(_TAKEN)
            else:  # a renewal was stored, and its answer was lost
                await self._store(message.seq, timeout)

    # --- its end -----------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> LeaseLostError:
        return LeaseLostError(self._kv.bucket, self.key, self.token, reason)

    def _lose(self, reason: str) -> None:
        if self._loss is None and self._state is State.OPEN:
            self._loss = self._lost(reason)
            # If the task of the block itself notices the loss, it raises the error and is not cancelled.
            if self._block is not None and self._block is not asyncio.current_task():
                self._block.cancel(str(self._loss))

    async def close(self) -> None:
        """Release the lock. If the server cannot be reached, the value expires."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._loss is None:
            # If this call is cancelled, the release continues in the background.
            await asyncio.shield(self._kv._context.tasks.start(self._release(), "release"))  # noqa: SLF001

    async def _release(self) -> None:
        """Remove our value. The time for it ends with the value itself."""
        timeout = max(0.1, min(self._until - self._now(), self._kv._context.timeout))  # noqa: SLF001  one room
        try:
            async with asyncio.timeout(timeout):
                await self._remove(self._revision)
        except WrongLastSequenceError:
            message = await self._newest(timeout)
            if message is not None and self._is_ours(message):
                await self._remove(message.seq)
        except (TimeoutError, JetStreamError):
            return  # the value expires after its TTL

    async def _remove(self, revision: int) -> None:
        await self._kv._write(  # noqa: SLF001  one room
            self.key, b"", expected=revision, headers={OPERATION: PURGE}, rollup="sub", ttl=self._ttl
        )


async def check_bucket_for_locks(kv: KeyValue[Any], ttl: float) -> None:
    """Raise `ConfigError` if the server or the bucket cannot have locks, or the TTL is too short."""
    check_server(kv._context.connection.server_version, _TTL_SERVER, "a lock")  # noqa: SLF001  one room
    if ttl < _LEAST_TTL:
        raise ConfigError(f"ttl is {ttl}: a lock lasts {_LEAST_TTL:.0f} s or more")
    config = (await kv._known()).config  # noqa: SLF001
    if not config.allow_msg_ttl:
        raise ConfigError(f"bucket {kv.bucket!r} has no TTL for each key: create it with limit_marker_ttl")
    if config.max_msgs_per_subject != 1:
        raise ConfigError(
            f"bucket {kv.bucket!r} keeps {config.max_msgs_per_subject} values of each key: a lock needs a history of 1"
        )


async def acquire(
    kv: KeyValue[ValueT], key: str, *, ttl: float, value: ValueT | None, timeout: float | None
) -> KeyValueLock[ValueT]:
    """Wait for a lock, and return it. See `KeyValue.lock`."""
    lock = KeyValueLock(kv, key, value, ttl)
    await check_bucket_for_locks(kv, ttl)
    deadline = deadline_of(timeout, lock._now())  # noqa: SLF001  one module
    release = _Release(kv, key)
    try:
        while not await _attempt(lock):
            # If the connection is lost, the watch may miss the release. So the lock is tried again after MOST_WAIT.
            remaining = MOST_WAIT if deadline is None else min(MOST_WAIT, deadline - lock._now())  # noqa: SLF001
            if remaining <= 0:
                raise RequestTimeoutError(f"lock of key {key!r} of bucket {kv.bucket!r}", timeout or 0.0)
            await release.wait(remaining)
    except BaseException:
        await lock.close()
        _give_up(lock)
        raise
    finally:
        await release.close()
    return lock


async def _attempt(lock: KeyValueLock[Any]) -> bool:
    try:
        return await lock.try_acquire()
    except JetStreamError as error:
        if not is_transient(error):
            raise
        await asyncio.sleep(_PAUSE)
        return False


def _give_up(lock: KeyValueLock[Any]) -> None:
    """Remove a value that may have been stored by the last attempt."""

    async def remove() -> None:
        message = await lock._newest()  # noqa: SLF001  one module
        if message is not None and lock._is_ours(message):  # noqa: SLF001
            await lock._remove(message.seq)  # noqa: SLF001

    lock._kv._context.tasks.start(_quietly(remove()), "end of a lock")  # noqa: SLF001


async def _quietly(work: Awaitable[object]) -> None:
    try:
        await work
    except JetStreamError:
        return  # the value expires


class _Release:
    """Waits until a key is deleted or expires, with a watch that is opened when somebody waits."""

    def __init__(self, kv: KeyValue[Any], key: str) -> None:
        self._kv = kv
        self._key = key
        self._watch: KeyValueWatch[Any] | None = None

    async def wait(self, timeout: float) -> None:
        """Wait so many seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                if self._watch is None:
                    watch = self._kv.watch(self._key, meta_only=True)
                    self._watch = await watch.__aenter__()
                while not (await self._watch.next()).is_deleted:
                    pass
        except TimeoutError:
            return
        except JetStreamError:
            # The server created no consumer, or the connection is lost. The next attempt shows whether that matters.
            await self.close()
            await asyncio.sleep(min(timeout, _PAUSE))

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with suppress(JetStreamError):
                await watch.close()
