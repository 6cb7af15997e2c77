"""A lock on a key of a bucket, and what it protects: `KeyValue.lock`.

The key has a value with a TTL as long as the lock is held, see `Lease`. The holder stores the value again at each third
of the TTL. If the holder dies, the value expires, and the next client stores its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Generic, Self

from ..._runtime.connection.connection import Lifecycle
from ..._runtime.handle import Handle, State
from ..._runtime.publish import check_payload
from ..._runtime.retry import is_transient
from ...errors import ConfigError, JetStreamError, LeaseLostError, WrongLastSequenceError
from ...protocol.buckets.entry import ValueT
from .lease import Lease

__all__ = ["CONNECTION_CLOSED", "KeyValueLock"]

CONNECTION_CLOSED: Final = "its connection was closed"
"""The reason of a `LeaseLostError` after which the client cannot acquire the lock again."""

_SHARE: Final = 3  # the value is renewed after a third of the TTL
_PAUSE: Final = 0.2  # seconds between attempts to renew
_LAST: Final = 0.5  # seconds that a closing connection waits for the end of the block
_TAKEN: Final = "the key has another revision, of another client"
_LATE: Final = "it could not be renewed in time"
_RELEASED: Final = "it was released"


class KeyValueLock(Handle, Generic[ValueT]):
    """A lock that this client holds. Created by `KeyValue.lock`.

    With ``async with`` the block is cancelled when the lock is lost or its connection is closed, and `LeaseLostError`
    is raised. It is also raised at the end of a block that has taken too long for the lock to be held until then, for
    example because it kept the event loop busy.

    Other errors of the block are raised as they are, with a note about the loss. A `JetStreamError` is an exception: it
    becomes the cause of `LeaseLostError`, which explains it. A cancellation from outside stays one.

    Attributes:
        key: The key.
        token: The fencing token. Each holder of the key has a greater one than the holder before it. Give it to what
            the lock protects, so that it can refuse a smaller one.
    """

    def __init__(self, lease: Lease[ValueT]) -> None:
        self.key: str = lease.key
        self.token: int = lease.revision
        self._lease = lease
        self._kv = lease.kv
        self._turn = asyncio.Lock()  # only one task at a time may change the revision
        self._loss: LeaseLostError | None = None
        self._block: asyncio.Task[object] | None = None
        self._cancelled = 0  # how often the task of the block had been cancelled before the block began
        self._is_replaced = False  # whether this client has stored another value of the key itself
        self._has_cancelled = False  # whether the lock has cancelled the block
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        context = self._kv._context  # noqa: SLF001  one room
        context.attach(self, self._follow)
        self._renewing = context.tasks.start(self._renew_always(), f"lock of {self.key}")

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self._loss else self._state.value
        return f"<KeyValueLock {self._kv.bucket}/{self.key} token {self.token}, {state}>"

    @property
    def is_held(self) -> bool:
        """Whether this client certainly holds the lock now, by the clock. No request is sent."""
        return self._state is State.OPEN and self._loss is None and self._is_in_time()

    def _is_in_time(self) -> bool:
        return self._lease.now() < self._lease.until

    # --- holding it --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._block is not None:
            raise ConfigError(
                f"{self!r} is used by another block: it would not be cancelled if the lock is lost"
            )
        try:
            self.check()
        except LeaseLostError:
            self._end()
            raise
        self._block = asyncio.current_task()
        self._cancelled = 0 if self._block is None else self._block.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if self._state is State.OPEN and not self._is_in_time():
            self._lose(_LATE)
        if self._has_cancelled and block is not None:
            self._has_cancelled = False
            block.uncancel()
        is_cancelled_by_others = is_cancelled and block is not None and block.cancelling() > self._cancelled
        await self.close()  # which may find that somebody else has removed the value
        loss = self._loss
        if loss is None or is_cancelled_by_others or error is loss:
            return
        if error is None or isinstance(error, asyncio.CancelledError | JetStreamError):
            # The loss of another lock may have this one as its cause, so it must not become the cause of this one.
            has_cause = not is_cancelled and not isinstance(error, LeaseLostError)
            raise loss from (error if has_cause else None)
        error.add_note(str(loss))

    def check(self) -> None:
        """Raise `LeaseLostError` if the lock is not certainly held now. No request is sent."""
        if self._state is State.OPEN and not self._is_in_time():
            self._lose(_LATE)
        if self._loss is not None:
            raise self._loss
        if self._state is not State.OPEN:
            raise self._lost(_RELEASED)

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
                return await self._lease.put(key, data)
            except WrongLastSequenceError:
                is_ours = await self._lease.find()
            if is_ours:  # a renewal was stored, and its answer was lost
                with suppress(WrongLastSequenceError):
                    return await self._lease.put(key, data)
            self._lose(_TAKEN)
            raise self._loss or self._lost(_TAKEN)

    async def _renew_always(self) -> None:
        lease = self._lease
        pause = lease.ttl / _SHARE
        while self._loss is None:
            await asyncio.sleep(max(0.0, min(pause, lease.until - lease.now())))
            remaining = lease.until - lease.now()
            if remaining <= 0:
                self._lose(_LATE)
                return
            try:
                # The deadline applies even if a put under the lock takes long.
                async with asyncio.timeout(remaining), self._turn:
                    if not await lease.renew(remaining):
                        self._lose(_TAKEN)
                pause = lease.ttl / _SHARE
            except (TimeoutError, JetStreamError) as error:
                if isinstance(error, JetStreamError) and not is_transient(error):
                    self._lose(str(error))
                    return
                pause = min(_PAUSE, lease.ttl / 10)

    # --- its end -----------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> LeaseLostError:
        return LeaseLostError(self._kv.bucket, self.key, self.token, reason)

    def _lose(self, reason: str) -> None:
        """Note that the lock is lost, end the renewal, and cancel the block."""
        if self._loss is not None or self._state is not State.OPEN:
            return
        self._loss = self._lost(reason)
        context = self._kv._context  # noqa: SLF001  one room
        context.detach(self, self._follow)
        current = asyncio.current_task()
        if self._renewing is not current:
            self._renewing.cancel()
        # If the task of the block itself notices the loss, it raises the error and is not cancelled. If it closes the
        # connection, cancelling it would break off the close.
        if self._block is not None and self._block not in (current, context.closer):
            self._has_cancelled = True
            self._block.cancel(str(self._loss))

    def _follow(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._lose(CONNECTION_CLOSED)

    async def abandon(self) -> None:
        """End the lock with its connection.

        The value is removed when the block has ended. A block that takes longer to end, or that closes the connection
        itself, keeps the value, which expires: no other client has the lock as long as the block may run.
        """
        context = self._kv._context  # noqa: SLF001  one room
        if self._loss is not None:
            return
        self._lose(CONNECTION_CLOSED)
        if self._block is None:
            await self.close()
        elif self._block is not context.closer:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST):
                    await self._ended.wait()

    async def close(self) -> None:
        """Release the lock. If the server cannot be reached, the value expires.

        Cancelled: the release continues in the background.
        """
        await asyncio.wait([self._end()])

    def _end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = self._kv._context.tasks.start(self._finish(), f"release of {self.key}")  # noqa: SLF001
            self._state = State.CLOSED
        return self._ending

    def _end_with_change(self) -> None:
        """End the lock, because a transaction of this client has replaced its value."""
        self._is_replaced = True
        self._end()

    async def _finish(self) -> None:
        context = self._kv._context  # noqa: SLF001  one room
        try:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            context.detach(self, self._follow)
            has_value = not self._is_replaced and not context.connection.is_closed
            if has_value and not await self._lease.give_back() and self._loss is None:
                self._loss = self._lost(_TAKEN)
        finally:
            self._ended.set()
