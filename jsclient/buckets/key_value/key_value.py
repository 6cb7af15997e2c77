"""The handle of a key-value bucket: `JetStream.key_value`. Source: ADR-8, ADR-48, ADR-57."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ..._runtime.context import Context
from ..._runtime.handle import Opening, listing
from ..._runtime.publish import check_payload, publish
from ...errors import ConfigError, KeyNotFoundError
from ...protocol.buckets.bucket_config import BucketStatus
from ...protocol.buckets.entry import DELETE, OPERATION, PURGE, KeyValueEntry, ValueT
from ...protocol.buckets.keys import KeySpace
from ...protocol.buckets.rights import BucketRights
from ...protocol.models.consumer import DeliverPolicy
from ...protocol.models.message import StoredMessage
from ...protocol.models.stream import StreamInfo
from ...protocol.publishing.in_flight import MAX_IN_FLIGHT
from ...protocol.wire.checks import check_count, check_seconds
from ...streams.stream import Stream
from ..bucket_handle import BucketHandle
from ..following.reader import SharedReader
from ..reading import BucketReader, Decode, policy_of, reader_config
from ..rights import WithBucketRights
from .acquiring import acquire
from .cache import KeyValueCache, open_cache
from .election import elect
from .entries import entries_of, keys_of, stored_entry
from .lock import KeyValueLock
from .purge_deletes import purge_deletes
from .put_many import put_many
from .snapshot import KeyValueSnapshot, take_snapshot
from .storing import store_after, store_new
from .strays import StrayMessages
from .transaction import KeyValueTransaction
from .updating import update_with
from .watch import KeyValueWatch

__all__ = ["KeyValue"]

T = TypeVar("T")

_YOUNG: Final = 1800.0  # seconds for which the markers of deleted keys are kept by default


class KeyValue(WithBucketRights, BucketHandle, Generic[ValueT]):
    """A key-value bucket, which maps string keys to values. Returned by `JetStream.key_value` and `create_key_value`.

    Each key is stored as a subject of a stream, and the latest message of that subject contains the value. The object
    holds no resources, so you don't need to close it.
    """

    _create = "create_key_value"

    def __init__(self, context: Context, stream: str, keys: KeySpace, info: StreamInfo | None) -> None:
        super().__init__(context, keys.bucket, stream, info)
        self._keys = keys
        self._strays = StrayMessages(context, stream)

    def _rights(self) -> BucketRights:
        reads, writes = self._keys.reads, self._keys.writes
        return BucketRights(
            api=self._context.api,
            stream=self._stream,
            stored=(f"{reads}>",),
            written=(f"{writes}>",) if writes else (),
        )

    # --- reading -----------------------------------------------------------------------------------------

    async def get(
        self, key: str, *, revision: int | None = None, min_revision: int | None = None
    ) -> KeyValueEntry[ValueT]:
        """Return the latest entry of a key, which contains the value.

        Any replica may answer, including one that lags behind. Pass ``min_revision`` if you need a value that was just
        stored, possibly by a different client.

        Args:
            key: The key.
            revision: Return the entry that was stored with this revision, if the bucket still contains it.
            min_revision: Never return an entry that is older than this revision, such as the revision returned by
                `put`. If the replica that answers lags behind, the leader is asked.

        Raises:
            ConfigError: A revision is invalid, or both ``revision`` and ``min_revision`` are given.
            KeyNotFoundError: The key has no value. If the key was deleted, ``error.deleted`` is the deletion's entry.
            ValueInvalidError: The codec can't decode the value. ``error.entry`` contains the raw bytes.
            InvalidNameError: The key is invalid.

        May also raise any request error.
        """
        subject = self._keys.subject(key)
        if revision is not None:
            check_count("revision", revision)
            if min_revision is not None:
                raise ConfigError("revision and min_revision are both given: give one of them")
            message = await self._stored({"seq": revision})
            if message is not None and message.subject != subject:
                message = None
        else:
            message = await self._newest(subject, f"get key {key!r}")
            # A lagging replica may return an old value or no value at all, so ask the leader.
            if min_revision is not None and (
                message is None or message.seq < check_count("min_revision", min_revision)
            ):
                message = await self._stored({"last_by_subj": subject})
        if message is None:
            raise KeyNotFoundError(self.bucket, key)
        entry = self._entry(key, message)
        if entry.is_deleted:
            raise KeyNotFoundError(self.bucket, key, entry)
        if entry.decoded is not None:
            _ = entry.value  # raises if it cannot be decoded
        return entry

    def _entry(self, key: str, message: StoredMessage, delta: int = 0) -> KeyValueEntry[ValueT]:
        if self._keys.is_stray(message.headers):
            self._strays.report_message(message.subject, message.seq)
        return stored_entry(self._keys, key, message, delta)

    async def get_many(self, keys: str | Iterable[str]) -> KeyValueSnapshot[ValueT]:
        """Return the entries of several keys as of one revision. Requires nats-server 2.11 or later.

        Args:
            keys: Keys or filters, such as ``["a.1", "b.*"]``. Keys without a value are omitted from the result. The
                client requests 1,000 keys or filters at a time, which together may match at most 1,024 keys. Entries of
                later requests may be newer than the revision of the snapshot.

        Raises:
            TooManyResultsError: More than 1,024 keys match the filters of one request.
            InvalidNameError: A key or filter is invalid.

        May also raise any request error.
        """
        filters = self._keys.filters([keys] if isinstance(keys, str) else keys)
        stream = Stream(self._context, await self._known())
        return await take_snapshot(stream, self._keys, filters, self._renewed, self._strays.report_message)

    @listing
    async def keys(self, *filters: str) -> AsyncGenerator[str, None]:
        """Iterate over the keys that have a value, ordered by their last change. Values aren't transferred.

        If a key is written during the iteration, it may be missing, but it is never returned twice.

        Args:
            filters: Return only keys that match one of these filters. A token may be ``*``, and the last token ``>``.

        Raises:
            BucketNotFoundError: The bucket was deleted.
            InvalidNameError: A filter is invalid.

        May also raise any request error.
        """
        seen: set[str] = set()
        config = reader_config(self._keys.subjects(filters), headers_only=True)
        reader = BucketReader(
            self._context, self._stream, config, self._counted(keys_of, self._keys), self._create
        )
        async for run in reader.initial_runs():
            for key, is_deleted in run:
                if key not in seen:
                    seen.add(key)
                    if not is_deleted:
                        yield key

    @listing
    async def history(self, *filters: str) -> AsyncGenerator[KeyValueEntry[ValueT], None]:
        """Iterate over all stored entries of the matching keys, oldest first and including deletions. See `keys`."""
        async for run in self._reader(filters, policy=DeliverPolicy.ALL).initial_runs():
            for entry in run:
                yield entry

    def watch(
        self,
        *filters: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        after: int | None = None,
    ) -> KeyValueWatch[ValueT]:
        """Return a watch that yields the entries of matching keys, then every change. Open it with ``async with``.

        Args:
            filters: Keys, or filters in which a token may be ``*`` and the last token ``>``. Defaults to all keys.
            include_history: Yield all stored entries of each key first, instead of only the latest one.
            updates_only: Skip the existing entries, and yield only later changes.
            ignore_deletes: Don't yield deletions.
            meta_only: Don't transfer values. `KeyValueEntry.size` is still available.
            after: Yield every stored entry with a revision greater than this, such as the revision of a snapshot.

        Raises:
            InvalidNameError: A filter is invalid.
            ConfigError: More than one of ``include_history``, ``updates_only`` and ``after`` is given.

        Opening the watch may raise `BucketNotFoundError` or any other request error.
        """
        policy = policy_of(include_history=include_history, updates_only=updates_only, after=after)
        reader = self._reader(filters, policy=policy, after=after, headers_only=meta_only)
        return KeyValueWatch(SharedReader(reader), ignore_deletes=ignore_deletes)

    def cache(self, *filters: str, check: float = 30.0) -> Opening[KeyValueCache[ValueT]]:
        """Return a local copy of all matching values, which is kept up to date. Open it with ``async with``.

        Args:
            filters: Keys, or filters as in `watch`. Caches of one connection share a consumer for each filter.
            check: Interval in seconds between checks for values that a limit or an administrator has removed.

        Raises:
            InvalidNameError: A filter is invalid.
            ConfigError: Two filters overlap, or ``check`` is invalid.

        Opening the cache may raise `BucketNotFoundError` or any other request error.
        """
        subjects = self._keys.subjects(filters)
        return Opening(partial(self._open_cache, subjects, check_seconds("check", check)), "cache()")

    async def _open_cache(self, subjects: list[str], check: float) -> KeyValueCache[ValueT]:
        info = await self._renewed()
        return await open_cache(
            self._context, info, self._keys, subjects, self._strays, check=check, create=self._create
        )

    def _reader(
        self,
        filters: Iterable[str],
        *,
        policy: DeliverPolicy = DeliverPolicy.LAST_PER_SUBJECT,
        after: int | None = None,
        headers_only: bool = False,
        keys: KeySpace | None = None,
    ) -> BucketReader[KeyValueEntry[ValueT]]:
        subjects = self._keys.subjects(filters)
        config = reader_config(subjects, policy=policy, after=after, headers_only=headers_only)
        decode = self._counted(entries_of, keys or self._keys)
        return BucketReader(self._context, self._stream, config, decode, self._create)

    def _counted(self, decode: Callable[..., list[T]], keys: KeySpace) -> Decode[T]:
        """Return a function that decodes messages, without those that another client has stored."""
        return self._strays.skipped(decode, keys) if keys.own else partial(decode, keys)

    # --- writing -----------------------------------------------------------------------------------------

    async def put(
        self, key: str, value: ValueT, *, ttl: float | timedelta | None = None, msg_id: str | None = None
    ) -> int:
        """Set the value of a key, and return its revision.

        Args:
            key: The key.
            value: The value, which may be empty. Without a codec, it must be bytes.
            ttl: Lifetime of the value in seconds, at least 1. The bucket needs ``limit_marker_ttl`` and a history of 1,
                because otherwise an older value would reappear.
            msg_id: A unique id. If the reply is lost, the client then sends the value again. If the id was already used
                within the duplicate window of the bucket, nothing is stored, and the earlier revision is returned.

        Raises:
            InvalidNameError: The key is invalid. Nothing was sent.
            ConfigError: ``ttl``, ``msg_id`` or the type of ``value`` is invalid. Nothing was sent.
            MaxPayloadError: The value is larger than the server accepts. Nothing was sent.
            ApiError: The bucket refused the value, for example because the bucket is full.
            RequestTimeoutError, DisconnectedError: The reply was lost, so the value may or may not be stored.
        """
        self._check_ttl(ttl)
        return await self._write(key, self._keys.encoded(key, value), ttl=ttl, msg_id=msg_id)

    async def put_many(
        self,
        values: Mapping[str, ValueT] | Iterable[tuple[str, ValueT]],
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> int:
        """Set many keys in order. Return the highest resulting revision, or 0 if ``values`` is empty.

        This is much faster than calling `put` repeatedly, because many values can be in flight at the same time. It
        isn't a transaction, so other clients see each value as soon as it is stored.

        Args:
            values: A mapping, or an iterable of ``(key, value)`` pairs. A key may occur several times.
            max_in_flight: Maximum number of values that are sent but not yet acked.

        Raises:
            PublishManyError: Some values couldn't be stored. The exception maps the index of each failed value to its
                error. If a key or value is invalid, ``__cause__`` is an `InvalidNameError` or `ConfigError`.
            ReadOnlyError: The handle is read-only.

        If the call is cancelled, values that were already sent may be stored.
        """
        return await put_many(self._context, self._keys, values, max_in_flight)

    async def create(
        self, key: str, value: ValueT, *, ttl: float | timedelta | None = None, msg_id: str | None = None
    ) -> int:
        """Create a key and return its revision. See `put` for the arguments.

        Unlike in `put`, ``ttl`` is allowed with any history, because a new key has no older value that could reappear.
        If the history is greater than 1, the server raises a ``ttl`` below ``limit_marker_ttl`` to that limit (ADR-43).

        Raises:
            KeyExistsError: The key already has a value. Nothing was stored.

        May also raise any error of `put`.
        """
        return await store_new(self, key, self._keys.encoded(key, value), ttl=ttl, msg_id=msg_id)

    async def update(
        self,
        key: str,
        value: ValueT,
        last: int,
        *,
        ttl: float | timedelta | None = None,
        msg_id: str | None = None,
    ) -> int:
        """Set the value of a key only if its latest revision is still ``last``. Return the new revision.

        Args:
            key: The key. The arguments ``value``, ``ttl`` and ``msg_id`` are the same as for `put`.
            last: The expected revision, or 0 if the bucket must contain neither a value nor a deletion of the key.

        Raises:
            RevisionMismatchError: The key has a different revision. Nothing was stored.

        May also raise any error of `put`.
        """
        self._check_ttl(ttl)
        check_count("last", last, 0)
        return await store_after(self, key, self._keys.encoded(key, value), last, ttl=ttl, msg_id=msg_id)

    async def delete(self, key: str, *, last: int | None = None) -> int:
        """Delete the value of a key but keep its history. Return the revision of the deletion.

        Args:
            key: The key. If it has no value, the deletion is stored anyway, so this isn't an error.
            last: The revision that the key must have. By default, the revision isn't checked.

        Raises:
            RevisionMismatchError: The key has a different revision. Nothing was deleted.

        May also raise any error of `put`.
        """
        return await store_after(self, key, b"", last, headers={OPERATION: DELETE})

    async def purge(self, key: str, *, last: int | None = None, ttl: float | timedelta | None = None) -> int:
        """Delete the value and the history of a key. Return the revision of the deletion.

        Args:
            key: The key. If it has no value, the deletion is stored anyway, so this isn't an error.
            last: The revision that the key must have. By default, the revision isn't checked.
            ttl: How long until the server removes the deletion too, in seconds. The bucket needs ``limit_marker_ttl``.

        Raises:
            RevisionMismatchError: The key has a different revision. Nothing was deleted.

        May also raise any error of `put`.
        """
        return await store_after(self, key, b"", last, headers={OPERATION: PURGE}, rollup="sub", ttl=ttl)

    async def update_with(
        self, key: str, function: Callable[[ValueT | None], ValueT | None], *, attempts: int = 100
    ) -> int:
        """Replace a value with ``function(value)``, retrying if another client changes it. Return the new revision.

        Args:
            key: The key.
            function: A plain function. It is called with the current value, or with None if there is no value. It
                returns the new value. If it returns None, the key doesn't change, and its current revision is returned.
                ``function`` may be called several times.
            attempts: Maximum number of times that ``function`` is called.

        Raises:
            RevisionMismatchError: Another client changed the value during every attempt.
            KeyNotFoundError: The key has no value, and ``function`` returned None.

        May also raise any error of `get` and `put`, and any exception that ``function`` raises.
        """
        return await update_with(self, key, function, attempts)

    def transaction(self) -> KeyValueTransaction[ValueT]:
        """Change several keys, all or none of them: ``async with kv.transaction() as tx``.

        Requires nats-server 2.12 or later and ``allow_atomic``. The changes are committed when the block ends without
        an error. Raises `ReadOnlyError` if the handle is read-only, or `ConfigError` if the server is too old.
        """
        self._keys.check_writable()
        return KeyValueTransaction(self)

    # --- locks -------------------------------------------------------------------------------------------

    def lock(
        self, key: str, *, ttl: float = 15.0, value: ValueT | None = None, timeout: float | None = None
    ) -> Opening[KeyValueLock[ValueT]]:
        """Acquire a lock that only one client can hold: ``async with kv.lock("reports") as lock``.

        Requires nats-server 2.11 or later, and a bucket with ``limit_marker_ttl`` and a history of 1. The lock is
        renewed as long as it is held. If the holder dies or loses its connection, a different client can acquire the
        lock within ``ttl + 1`` seconds. A process that is suspended for longer may still believe that it holds the
        lock. Use `KeyValueLock.put` and `KeyValueLock.token` to prevent such a process from writing.

        Args:
            key: The key that represents the lock.
            ttl: How long until the lock is free after its holder has died, in seconds, at least 1.
            value: The value of the key while the lock is held, for example the name of the holder.
            timeout: How long to wait for the lock, in seconds, including all requests. By default, wait indefinitely.

        Raises:
            InvalidNameError: The key is invalid.
            ConfigError: ``ttl``, ``value`` or ``timeout`` is invalid.

        Opening the lock raises `RequestTimeoutError` after ``timeout`` seconds, `ConfigError` if the server or the
        bucket doesn't support locks, or any error of `put`. If the lock is lost or the connection is closed, the block
        is cancelled and ends with `LeaseLostError`. See `KeyValueLock`. If the call itself is cancelled, the lock isn't
        held, and a value that was already stored is removed in the background.
        """
        self._keys.target(key)
        seconds = check_seconds("ttl", ttl)
        return Opening(partial(acquire, self, key, ttl=seconds, value=value, timeout=timeout), "lock()")

    async def elect(
        self,
        key: str,
        work: Callable[[KeyValueLock[ValueT]], Awaitable[T]],
        *,
        ttl: float = 15.0,
        value: ValueT | None = None,
    ) -> T:
        """Run ``work`` in only one of the clients that call this method, and return its result.

        Requires nats-server 2.11 or later. If the call is cancelled, ``work`` is cancelled and the lock is released.

        Args:
            key: The key that represents the lock. The arguments ``ttl`` and ``value`` are the same as for `lock`.
            work: A coroutine function, called with the lock each time this client is elected. If the lock is lost,
                ``work`` is cancelled, the event `ErrorRaised` reports the loss, and the client waits to be elected.

        Raises:
            ConfigError: ``work`` isn't a coroutine function.
            ClosedError: The connection was closed.

        May also raise any error of `lock`, and any exception that ``work`` raises.
        """
        return await elect(self, key, work, ttl=ttl, value=value)

    async def _write(
        self,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        msg_id: str | None = None,
        **options: Any,
    ) -> int:
        if msg_id is None and self._keys.own:
            msg_id = secrets.token_hex(11)  # also marks the message as a value of a handle with ``own``
        ack = await publish(
            self._context,
            self._keys.target(key),
            check_payload(value),
            expected_last_subject_seq=expected,
            msg_id=msg_id,
            **{"stream_exists": True, **options},
        )
        return ack.seq

    def _check_ttl(self, ttl: object) -> None:
        history = 1 if self._info is None else self._info.config.max_msgs_per_subject
        if ttl is not None and history != 1:
            raise ConfigError(
                f"ttl is given, and bucket {self.bucket!r} keeps {history} values of each key: when the value expires, "
                "the value before it would come back"
            )

    # --- the bucket --------------------------------------------------------------------------------------

    async def status(self) -> BucketStatus:
        """Request the status of the bucket, such as its size and its options, from the server.

        Raises `BucketNotFoundError` if the bucket was deleted, or any other request error.
        """
        return BucketStatus.of(await self._renewed())

    async def purge_deletes(self, *, older_than: float = _YOUNG) -> int:
        """Remove all entries of deleted keys, and return the number of these keys. New values are never removed.

        Args:
            older_than: Minimum age of a deletion, in seconds. If a deletion is more recent, only the history of its key
                is removed, and watches can still read the deletion. 0 removes all deletions.

        Raises:
            ConfigError: ``older_than`` isn't a number of seconds.
            ReadOnlyError: The handle is read-only.

        May also raise any request error.
        """
        return await purge_deletes(self, older_than)
