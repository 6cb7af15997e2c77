"""Atomic changes of several keys: `KeyValue.transaction`. Source: ADR-50.

Each message of an atomic batch can carry one expectation, which is the revision that a key must have. If a change has a
revision, its message carries the expectation for its own key. A guard is an expectation for a key that isn't changed.
It is carried by the message of a change that has no revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeAlias

import msgspec

from ..._runtime.publish import check_payload
from ...errors import (
    ClosedError,
    ConfigError,
    KeyExistsError,
    LeaseLostError,
    RevisionMismatchError,
)
from ...protocol.buckets.entry import DELETE, OPERATION, OWN, PURGE, ValueT
from ...protocol.publishing.batch import BATCH_SERVER
from ...protocol.wire.checks import check_count, check_server
from ...protocol.wire.headers import ttl_header
from ...publishing.batch import AtomicBatch
from .lock import KeyValueLock
from .storing import has_value, store_past

if TYPE_CHECKING:
    from ...protocol.models.message import StoredMessage
    from .key_value import KeyValue

__all__ = ["KeyValueTransaction"]

_MOST: Final = 1000  # maximum number of messages in a batch

# Maps the key of each change to what its message expects: a key and its revision, or None for no expectation.
_Placed: TypeAlias = dict[str, tuple[str, int] | None]


class _Change(msgspec.Struct):
    """A message of the batch. ``last`` is the revision that its key must have, or None if any revision will do."""

    value: bytes
    last: int | None
    is_create: bool = False
    options: Mapping[str, Any] = {}


class KeyValueTransaction(Generic[ValueT]):
    """Collects changes to several keys and stores either all of them or none. Returned by `KeyValue.transaction`.

    Leaving the ``async with`` block commits the changes. If the block raises an exception, nothing is sent. Each key
    can be changed only once::

        async with kv.transaction() as tx:
            tx.put("account.1", b"90")
            tx.put("account.2", b"110")

    Attributes:
        revision: Revision of the last change once the transaction has been committed. The changes get consecutive
            revisions, in the order in which they were added. 0 before the commit, or if there are no changes.
    """

    def __init__(self, kv: KeyValue[ValueT]) -> None:
        check_server(kv._context.connection.server_version, BATCH_SERVER, "a transaction")  # noqa: SLF001  same package
        self._kv = kv
        self._changes: dict[str, _Change] = {}
        self._guards: dict[str, int] = {}
        self._locks: dict[str, KeyValueLock[Any]] = {}
        self._has_ended = False
        self.revision: int = 0

    def __len__(self) -> int:
        return len(self._changes)

    def __repr__(self) -> str:
        state = f"revision {self.revision}" if self.revision else "ended" if self._has_ended else "open"
        return f"<KeyValueTransaction {self._kv.bucket}: {len(self)} changes, {state}>"

    # --- changes -----------------------------------------------------------------------------------------

    def put(
        self, key: str, value: ValueT, *, last: int | None = None, ttl: float | timedelta | None = None
    ) -> None:
        """Add a change that sets the value of a key. Nothing is sent before the commit.

        Args:
            key: The key.
            value: The value. Without a codec, it must be bytes.
            last: The revision that the key must have, or 0 if the bucket must contain neither a value nor a deletion of
                the key. By default, the revision isn't checked.
            ttl: How long until the value expires, in seconds. See `KeyValue.put` for what the bucket needs.

        Raises:
            InvalidNameError: The key is invalid.
            ConfigError: ``value``, ``last`` or ``ttl`` is invalid, the bucket doesn't support ``ttl``, the transaction
                already changes the key, or ``last`` contradicts a guard of the key.
            ClosedError: The transaction has ended.
        """
        self._check_expiry(ttl)
        self._kv._check_ttl(ttl)  # noqa: SLF001  same package
        self._add(key, _Change(self._encoded(key, value), _revision("last", last), options={"ttl": ttl}))

    def create(self, key: str, value: ValueT, *, ttl: float | timedelta | None = None) -> None:
        """Add a change that creates a key. If the key already has a value, the commit raises `KeyExistsError`.

        ``key``, ``value`` and ``ttl`` have the same meaning as in `put`, which also lists the errors.
        """
        self._check_expiry(ttl)
        self._add(key, _Change(self._encoded(key, value), 0, is_create=True, options={"ttl": ttl}))

    def delete(self, key: str, *, last: int | None = None) -> None:
        """Add a change that deletes the value of a key but keeps its history.

        ``last`` is the revision that the key must have, or None to skip the check. Raises the same errors as `put`.
        """
        self._add(key, _Change(b"", _revision("last", last), options={"headers": {OPERATION: DELETE}}))

    def purge(self, key: str, *, last: int | None = None) -> None:
        """Add a change that deletes the value and the history of a key.

        ``last`` is the revision that the key must have, or None to skip the check. Raises the same errors as `put`.
        """
        options = {"headers": {OPERATION: PURGE}, "rollup": "sub"}
        self._add(key, _Change(b"", _revision("last", last), options=options))

    def _encoded(self, key: str, value: ValueT) -> bytes:
        return check_payload(self._kv._keys.encoded(key, value))  # noqa: SLF001  same package

    def _check_expiry(self, ttl: float | timedelta | None) -> None:
        info = self._kv._info  # noqa: SLF001  same package
        if ttl_header(ttl) is not None and info is not None and not info.config.allow_msg_ttl:
            raise ConfigError(
                f"ttl is given, and bucket {self._kv.bucket!r} has no TTL for each key: create it with "
                "limit_marker_ttl"
            )

    def _add(self, key: str, change: _Change) -> None:
        self._check_open()
        key = self._kv._keys.checked(key)  # noqa: SLF001  same package
        if key in self._changes:
            raise ConfigError(f"the transaction changes key {key!r} already: it can change a key once")
        if len(self) >= _MOST:
            raise ConfigError(f"the transaction has {_MOST} changes: the server takes no more")
        _check_together(key, change, self._guards.get(key), self._locks.get(key))
        self._changes[key] = change

    def guard(self, key: str | KeyValueLock[Any], revision: int | None = None) -> None:
        """Add a guard: commit only if a key has a certain revision, or only if a lock is held.

        Use guards for keys that the transaction depends on but doesn't change. A guarded key may also be changed. If it
        is guarded with a lock, the commit then ends that lock.

        With each change, the server can check only one revision. If the transaction doesn't change a guarded key, the
        guard is therefore attached to the change of another key that has no ``last``, so there must be enough of these
        changes. A key can't be guarded with both a lock and a revision, because each renewal of the lock changes the
        revision.

        Args:
            key: The key, or a lock of this bucket.
            revision: The revision that the key must have, or 0 if the bucket must contain neither a value nor a
                deletion of the key. Omit the revision for a lock.

        Raises:
            InvalidNameError: The key is invalid.
            ConfigError: ``revision`` is missing or invalid, the lock belongs to a different bucket, or the guard
                contradicts an earlier guard or change.
            ClosedError: The transaction has ended.
        """
        self._check_open()
        if isinstance(key, KeyValueLock):
            if revision is not None:
                raise ConfigError(
                    "a guard with a lock has no revision of its own: the lock knows the revision"
                )
            self._guard_with(key)
            return
        key = self._kv._keys.checked(key)  # noqa: SLF001
        if revision is None:
            raise ConfigError(f"a guard of key {key!r} needs the revision that the key must have")
        check_count("revision", revision, 0)
        if self._guards.get(key, revision) != revision:
            raise ConfigError(f"key {key!r} has guards with two revisions")
        _check_together(key, self._changes.get(key), revision, self._locks.get(key))
        self._guards[key] = revision

    def _guard_with(self, lock: KeyValueLock[Any]) -> None:
        if lock._kv.bucket != self._kv.bucket:  # noqa: SLF001  same package
            raise ConfigError(f"the lock is of bucket {lock._kv.bucket!r}, not of {self._kv.bucket!r}")  # noqa: SLF001
        if self._locks.get(lock.key, lock) is not lock:
            raise ConfigError(
                f"key {lock.key!r} is guarded with another lock: only one of the two can be held"
            )
        _check_together(lock.key, self._changes.get(lock.key), self._guards.get(lock.key), lock)
        self._locks[lock.key] = lock

    # --- its end -----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._has_ended:
            raise ClosedError("the transaction has ended")

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._has_ended = True
        elif not self._has_ended:
            await self.commit()

    async def commit(self) -> int:
        """Store all changes, or none of them. Return the revision of the last one, or 0 if there are no changes.

        You rarely call this method, because leaving the ``async with`` block commits the changes. The transaction ends
        with the call, even if the call raises an error. To try again, start a new transaction.

        Raises:
            ConfigError: There are more guards than changes to which they can be attached. Nothing was sent.
            RevisionMismatchError: A key has a different revision than expected. Nothing was stored.
            KeyExistsError: A key to be created already has a value. Nothing was stored.
            LeaseLostError: A lock is no longer held. Nothing was stored.
            BatchNotEnabledError: The bucket was created without ``allow_atomic``. Nothing was stored.
            ClosedError: The transaction has ended.

        May also raise any error of `AtomicBatch.commit`. After `RequestTimeoutError` or `DisconnectedError`, or if the
        call is cancelled, either all changes or none may be stored, so read the keys to find out.
        """
        self._check_open()
        self._has_ended = True
        self._place({**self._guards, **dict.fromkeys(self._locks, 0)})  # check the guards before sending
        if not self._changes:
            return 0
        async with AsyncExitStack() as stack:
            # Prevent renewals of the locks until the commit, because a renewal changes the revision of its key.
            for lock in sorted(self._locks.values(), key=lambda lock: lock.key):
                await stack.enter_async_context(lock._turn)  # noqa: SLF001  same package
                lock.check()
            locks = {key: lock._lease.revision for key, lock in self._locks.items()}  # noqa: SLF001
            await self._look_up_created()
            self.revision = await self._publish_past_strays(self._place({**self._guards, **locks}))
            for key in self._locks.keys() & self._changes.keys():
                self._locks[key]._end_with_change()  # noqa: SLF001  same package
        return self.revision

    def _place(self, guards: Mapping[str, int]) -> _Placed:
        """Assign the expectations to the changes. Raises `ConfigError` if no change is free to carry a guard."""
        placed = {
            key: None if change.last is None else (key, change.last) for key, change in self._changes.items()
        }
        # Attach each guard to the change of the same key. If that change has a revision too, the two are equal, because
        # `_check_together` refuses anything else.
        placed |= {key: (key, revision) for key, revision in guards.items() if key in placed}
        # A message can carry only one expectation. If a guarded key has no change of its own, its guard needs the
        # change of another key that carries no expectation.
        free = [key for key, carried in placed.items() if carried is None]
        others = [(key, revision) for key, revision in guards.items() if key not in placed]
        if len(others) > len(free):
            raise ConfigError(
                f"{len(others)} guards need as many changes without a revision of their own, and there are "
                f"{len(free)}: the guard of key {others[len(free)][0]!r} could not be checked"
            )
        return {**placed, **dict(zip(free, others, strict=False))}

    async def _look_up_created(self) -> None:
        """Look up the revisions of the keys to be created. A deleted key has one, and the commit must expect it."""
        created = {key: change for key, change in self._changes.items() if change.is_create}
        stored = await asyncio.gather(*map(self._newest, created))
        for (key, change), message in zip(created.items(), stored, strict=True):
            if message is not None and has_value(self._kv, message):
                raise KeyExistsError(self._kv.bucket, key, message.seq)
            change.last = 0 if message is None else message.seq
            if message is not None and self._is_stray(message):
                continue
            if (guard := self._guards.get(key, change.last)) != change.last:
                raise RevisionMismatchError(self._kv.bucket, key, guard)

    async def _newest(self, key: str) -> Any:
        return await self._kv._stored({"last_by_subj": self._kv._keys.subject(key)})  # noqa: SLF001  same package

    def _is_stray(self, message: StoredMessage) -> bool:
        return self._kv._keys.is_stray(message.headers)  # noqa: SLF001  same package

    async def _publish_past_strays(self, placed: _Placed) -> int:
        """Store the changes. If other clients have stored stray messages under the keys, expect their revisions."""
        current = placed

        async def past_strays() -> _Placed | None:
            nonlocal current
            before, current = current, await self._past_strays(current)
            return None if current == before else current

        revision = await store_past(self._publish, placed, past_strays)
        if revision is None:
            await self._explain(placed, current)
        return revision

    async def _past_strays(self, placed: _Placed) -> _Placed:
        """Return the expectations, with the revisions of stray messages that other clients may have stored."""
        if not self._kv._keys.own:  # noqa: SLF001  same package
            return placed
        expected = dict(carried for carried in placed.values() if carried is not None)
        keys = expected.keys() - self._locks.keys()  # a stray message under the key of a lock ends the lock
        stored = dict(zip(keys, await asyncio.gather(*map(self._newest, keys)), strict=True))
        strays = {
            key: message.seq
            for key, message in stored.items()
            if message is not None and message.seq != expected[key] and self._is_stray(message)
        }
        for key in strays:
            self._kv._entry(key, stored[key])  # noqa: SLF001  reports the stray message
        return {
            change: carried and (carried[0], strays.get(carried[0], carried[1]))
            for change, carried in placed.items()
        }

    async def _publish(self, placed: _Placed) -> int:
        keys, last = self._kv._keys, len(self) - 1  # noqa: SLF001  same package
        async with AtomicBatch(self._kv._context, ack_every=None, timeout=None) as batch:  # noqa: SLF001
            for number, (key, change) in enumerate(self._changes.items()):
                options = dict(change.options)
                if keys.own:
                    options["headers"] = {**options.get("headers", {}), OWN: "1"}
                if (carried := placed[key]) is not None:
                    options["expected_last_subject_seq"] = carried[1]
                    if carried[0] != key:
                        options["expected_last_subject_seq_subject"] = keys.subject(carried[0])
                send = batch.publish if number < last else batch.commit
                await send(keys.target(key), change.value, **options)
        assert batch.ack is not None
        return batch.ack.seq

    async def _explain(self, asked: _Placed, placed: _Placed) -> NoReturn:
        """Raise an error that names the first key whose revision differs from the expected one."""
        expected = dict(carried for carried in placed.values() if carried is not None)
        stored = await asyncio.gather(*map(self._newest, expected))
        differ = [
            key
            for key, message in zip(expected, stored, strict=True)
            if (0 if message is None else message.seq) != expected[key]
        ]
        # The keys are read after the refusal, and other clients may have changed them back in the meantime. If no key
        # differs any more, name the first one.
        key = (differ or list(expected))[0]
        newest = dict(zip(expected, stored, strict=True))[key]
        lock = self._locks.get(key)
        if lock is not None and not (newest is not None and lock._lease.is_ours(newest)):  # noqa: SLF001  same package
            raise LeaseLostError(self._kv.bucket, key, lock.token, "the key has another revision") from None
        if key in self._changes and self._changes[key].is_create:
            raise KeyExistsError(self._kv.bucket, key) from None
        asked_for = dict(carried for carried in asked.values() if carried is not None)
        raise RevisionMismatchError(self._kv.bucket, key, asked_for[key]) from None


def _check_together(
    key: str, change: _Change | None, guard: int | None, lock: KeyValueLock[Any] | None
) -> None:
    """Raise `ConfigError` if the change and the guards of a key contradict each other."""
    if lock is not None and (guard is not None or (change is not None and change.last is not None)):
        raise ConfigError(
            f"key {key!r} is guarded by its lock, whose renewals change the revision: give no other revision of the "
            "key, and do not create it"
        )
    # Don't compare the guard with the 0 that a key to be created starts with. The key may have been deleted before, and
    # the commit then expects the revision of that deletion.
    if guard is not None and change is not None and not change.is_create and change.last not in (None, guard):
        raise ConfigError(f"key {key!r} has a guard, and is changed at another revision")


def _revision(name: str, value: int | None) -> int | None:
    return None if value is None else check_count(name, value, 0)
