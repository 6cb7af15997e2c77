"""A lock on a key of a bucket: `KeyValue.lock`.

While the lock is held, the key has a value with a TTL (see `Lease`). The holder stores the value again after each third
of the TTL. If the holder dies, the value expires, and another client can store its own value.
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
"""The reason in a `LeaseLostError` that means that the client can't acquire the lock again."""

_SHARE: Final = 3  # the value is renewed after a third of the TTL
_PAUSE: Final = 0.2  # seconds between attempts to renew
_LAST: Final = 0.5  # seconds that a closing connection waits for the end of the block
_TAKEN: Final = "the key has another revision, of another client"
_LATE: Final = "it could not be renewed in time"
_RELEASED: Final = "it was released"


class KeyValueLock(Handle, Generic[ValueT]):
    """A lock that this client holds. Returned by `KeyValue.lock`.

    The lock is released when the ``async with`` block ends::

        async with kv.lock("reports") as lock:
            await write_report(fencing_token=lock.token)

    If the lock is lost or its connection is closed, the block is cancelled, and `LeaseLostError` is raised. The error
    is also raised at the end of the block if the lock expired earlier, for example because the block kept the event
    loop busy.

    If the lock is lost and the block raises a `JetStreamError`, that error becomes the cause of the `LeaseLostError`.
    Any other exception of the block is raised unchanged, with a note about the loss. If another task has cancelled the
    block, ``CancelledError`` is raised.

    Attributes:
        key: The key that represents the lock.
        token: The fencing token. Each holder of the lock gets a greater token than all holders before. Pass the token
            to the resource that the lock protects, so it can refuse requests with smaller tokens.
    """

    def __init__(self, lease: Lease[ValueT]) -> None:
        self.key: str = lease.key
        self.token: int = lease.revision
        self._lease = lease
        self._kv = lease.kv
        self._turn = asyncio.Lock()  # only one task at a time may change the revision
        self._loss: LeaseLostError | None = None
        self._block: asyncio.Task[object] | None = None
        self._cancelled = 0  # number of cancellations of the block's task before the block began
        self._is_replaced = False  # true if a transaction of this client has replaced the value of the lock
        self._has_cancelled = False  # true if the lock has cancelled the block
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        context = self._kv._context  # noqa: SLF001  same package
        context.attach(self, self._follow)
        self._renewing = context.tasks.start(self._renew_always(), f"lock of {self.key}")

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self._loss else self._state.value
        return f"<KeyValueLock {self._kv.bucket}/{self.key} token {self.token}, {state}>"

    @property
    def is_held(self) -> bool:
        """Whether the lock is certainly held at this moment, according to the local clock. No request is sent."""
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
        await self.close()  # may find out that another client has removed the value
        loss = self._loss
        if loss is None or is_cancelled_by_others or error is loss:
            return
        if error is None or isinstance(error, asyncio.CancelledError | JetStreamError):
            # If ``error`` is the loss of another lock, this loss may be its cause. Don't create a cycle of causes.
            has_cause = not is_cancelled and not isinstance(error, LeaseLostError)
            raise loss from (error if has_cause else None)
        error.add_note(str(loss))

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lock is certainly held at this moment, according to the local clock.

        No request is sent. Call `check` before a step that must not run without the lock.
        """
        if self._state is State.OPEN and not self._is_in_time():
            self._lose(_LATE)
        if self._loss is not None:
            raise self._loss
        if self._state is not State.OPEN:
            raise self._lost(_RELEASED)

    async def put(self, key: str, value: ValueT) -> int:
        """Set the value of a different key of the bucket, but only if the lock is still held. Return the new revision.

        The server itself checks the lock, so a process that has lost the lock without noticing can't write.

        Args:
            key: The key, which must not be the key of the lock.
            value: The new value, which may be empty. Without a codec, it must be bytes.

        Raises:
            LeaseLostError: The lock is no longer held. Nothing was stored.

        May also raise any error of `KeyValue.put`.
        """
        data = check_payload(self._kv._keys.encoded(key, value))  # noqa: SLF001  same package
        async with self._turn:
            self.check()
            try:
                return await self._lease.put(key, data)
            except WrongLastSequenceError:
                is_ours = await self._lease.find()
            if is_ours:  # a renewal has changed the revision, but the reply was lost
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
                # The timeout also covers the wait for ``_turn``, which a slow `put` of another task may hold for long.
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
        """Mark the lock as lost, stop renewing it, and cancel the block."""
        if self._loss is not None or self._state is not State.OPEN:
            return
        self._loss = self._lost(reason)
        context = self._kv._context  # noqa: SLF001  same package
        context.detach(self, self._follow)
        current = asyncio.current_task()
        if self._renewing is not current:
            self._renewing.cancel()
        # If the block's own task notices the loss, it raises the error, so don't cancel it. If that task is closing the
        # connection, a cancellation would interrupt the close.
        if self._block is not None and self._block not in (current, context.closer):
            self._has_cancelled = True
            self._block.cancel(str(self._loss))

    def _follow(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._lose(CONNECTION_CLOSED)

    async def abandon(self) -> None:
        """End the lock because the connection is closing. For internal use.

        The value is removed once the block has ended, so no other client gets the lock while the block is running. If
        the block doesn't end in time, or if the block itself closes the connection, the value remains until it expires.
        """
        context = self._kv._context  # noqa: SLF001  same package
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
        """Release the lock. If the server can't be reached, the lock becomes free when its TTL has passed.

        The call raises no error, even if the lock was lost before. Only the end of the ``async with`` block raises
        `LeaseLostError`. If the call is cancelled, the lock is released in the background.
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
        context = self._kv._context  # noqa: SLF001  same package
        try:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            context.detach(self, self._follow)
            has_value = not self._is_replaced and not context.connection.is_closed
            if has_value and not await self._lease.give_back() and self._loss is None:
                self._loss = self._lost(_TAKEN)
        finally:
            self._ended.set()
