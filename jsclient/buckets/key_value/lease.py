"""The value that represents a lock on its key: `Lease`.

The value has a TTL. To renew it, the holder stores the value again and requires the revision that it stored last. The
server therefore refuses the renewal of a client whose value has expired. The client counts the TTL from the time before
it sent the value, so it considers the lock lost before the server removes the value.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, Generic

from ..._runtime.publish import check_payload, publish
from ..._runtime.retry import is_transient
from ...errors import JetStreamError, WrongLastSequenceError
from ...protocol.buckets.entry import OPERATION, OWN, PURGE, ValueT
from ...protocol.models.message import StoredMessage
from .storing import has_value

if TYPE_CHECKING:
    from .key_value import KeyValue

__all__ = ["Lease"]

# Header with a random id, which distinguishes this lock's value from the values of other clients.
_OWNER: Final = "Jsc-Lease"
# The lock is considered lost when only this fraction of the TTL remains, so that the block has time to stop.
_MARGIN: Final = 0.1
_LEAST: Final = 0.1  # minimum timeout for removing the value, in seconds
_PAUSE: Final = 0.3  # seconds between attempts to find a value that may have been stored
_LOOKS: Final = 2


class Lease(Generic[ValueT]):
    """The value with which a client claims the lock of a key.

    Attributes:
        kv, key, ttl: The bucket, the key, and the TTL in seconds.
        revision: Revision of this client's value.
        until: Event loop time at which the lock is lost unless the value is renewed.
        may_store: Set to False to end an attempt before it stores the value.
        awaits_answer: Whether a value was sent and the reply has not arrived yet.
    """

    def __init__(self, kv: KeyValue[ValueT], key: str, value: ValueT | None, ttl: float) -> None:
        self.kv: KeyValue[ValueT] = kv
        self.key: str = kv._keys.checked(key)  # noqa: SLF001  same package
        self.ttl: float = ttl
        self.revision: int = 0
        self.until: float = 0.0
        self.may_store: bool = True
        self.awaits_answer: bool = False
        self._value = b"" if value is None else check_payload(kv._keys.encoded(key, value))  # noqa: SLF001
        self._owner = secrets.token_hex(12)
        # Event loop time by which all values that were sent have expired on the server.
        self._all_expired_at = 0.0

    def now(self) -> float:
        """Return the event loop time."""
        return self.kv._context.connection.now()  # noqa: SLF001  same package

    def is_ours(self, message: StoredMessage) -> bool:
        """Return whether a message is this lock's own value."""
        return message.headers.get(_OWNER) == self._owner

    async def _newest(self, timeout: float | None = None) -> StoredMessage | None:
        """Return the newest message of the key, from the leader."""
        body = {"last_by_subj": self.kv._keys.subject(self.key)}  # noqa: SLF001  same package
        return await self.kv._stored(body, timeout)  # noqa: SLF001

    async def take(self) -> bool:
        """Store our value if the key has no value. Return whether it was stored."""
        message = await self._newest()
        if not self.may_store:
            return False
        if message is not None and has_value(self.kv, message) and not self.is_ours(message):
            # Another client holds the lock. In contrast, if the value is our own, an earlier attempt stored it and only
            # its reply was lost, so the value may be stored again.
            return False
        try:
            await self._store_value(0 if message is None else message.seq)
        except WrongLastSequenceError:
            self.awaits_answer = False
            return False
        return True

    async def _store_value(self, expected: int, timeout: float | None = None) -> None:
        """Set our value if the key has the expected revision."""
        sent = self.now()
        self._all_expired_at = sent + self.ttl + (self.kv._context.timeout if timeout is None else timeout)  # noqa: SLF001
        self.awaits_answer = True
        self.revision = await self.kv._write(  # noqa: SLF001  same package
            self.key,
            self._value,
            expected=expected,
            ttl=self.ttl,
            headers={_OWNER: self._owner},
            timeout=timeout,
        )
        self.awaits_answer = False
        self.until = sent + self.ttl * (1 - _MARGIN)

    async def find(self, timeout: float | None = None) -> bool:
        """Return whether the key has our value, and update ``revision``. Used if the reply of a request was lost."""
        message = await self._newest(timeout)
        if message is None or not self.is_ours(message):
            return False
        self.revision = message.seq
        return True

    async def renew(self, timeout: float) -> bool:
        """Store our value again. Return False if the key has another client's value or no value."""
        try:
            await self._store_value(self.revision, timeout)
        except WrongLastSequenceError:
            if not await self.find(timeout):
                return False
            await self._store_value(self.revision, timeout)
        return True

    async def put(self, key: str, data: bytes) -> int:
        """Store an encoded value under another key, provided that the lock's key still has our revision."""
        keys = self.kv._keys  # noqa: SLF001  same package
        ack = await publish(
            self.kv._context,  # noqa: SLF001
            keys.target(key),
            data,
            headers={OWN: "1"} if keys.own else None,
            expected_last_subject_seq=self.revision,
            expected_last_subject_seq_subject=keys.subject(self.key),
            stream_exists=True,
        )
        return ack.seq

    async def give_back(self) -> bool:
        """Remove our value. Return False if the key has another value.

        The attempt ends when the value is about to expire anyway.
        """
        timeout = max(_LEAST, min(self.until - self.now(), self.kv._context.timeout))  # noqa: SLF001  same package
        try:
            async with asyncio.timeout(timeout):
                return await self._remove()
        except (TimeoutError, JetStreamError):
            return True  # nothing more to do, because the value expires by itself

    async def _remove(self) -> bool:
        try:
            await self._purge()
        except WrongLastSequenceError:
            if not await self.find():
                return False
            await self._purge()
        return True

    async def _purge(self) -> None:
        await self.kv._write(  # noqa: SLF001  same package
            self.key, b"", expected=self.revision, headers={OPERATION: PURGE}, rollup="sub", ttl=self.ttl
        )

    async def clear_value(self) -> None:
        """Remove a value that may have been stored although no reply arrived. Give up once it must have expired."""
        looks = 0
        while self.now() < self._all_expired_at and looks < _LOOKS:
            try:
                if await self.find():
                    await self._purge()
                    return
                looks += 1  # the request may still be on its way to the server, so look again
            except JetStreamError as error:
                if not is_transient(error) and not isinstance(error, WrongLastSequenceError):
                    return
            await asyncio.sleep(_PAUSE)
