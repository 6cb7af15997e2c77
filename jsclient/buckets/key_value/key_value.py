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
from ...errors import (
    ConfigError,
    KeyNotFoundError,
)
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
from .entries import entry_of, key_of, stored_entry
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
    """A key-value bucket. Each key is a subject of a stream, and the newest message of the subject is its value.

    Created by `JetStream.key_value` and `JetStream.create_key_value`. It has no state that must be closed.
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
        """Return the value of a key.

        Any replica may answer. Without ``min_revision`` the value may therefore be older than a value that was just
        put.

        Args:
            key: The key.
            revision: Return the value of this revision of the key, if the bucket still has it.
            min_revision: Do not return a value older than this revision, such as the revision of a put. If a replica is
                behind, the leader is asked.

        Raises:
            KeyNotFoundError: The key has no value. ``error.deleted`` is the entry of its deletion, if there is one.
            ValueInvalidError: The codec cannot decode the value. ``error.entry`` has its bytes.
            InvalidNameError: The key is not valid.

        May also raise any error of an API request.
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
            # A replica that is behind has an older value or none, but the leader has the newest value.
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
        """Return the values of several keys as of one revision (server 2.11). Keys without a value are omitted.

        Args:
            keys: Keys or filters, such as ``["a.1", "b.*"]``. At most 1,024 keys may match 1,000 of them, which are
                read together. Entries of further ones may be newer than the revision.

        Raises:
            TooManyResultsError: More than 1,024 keys match the filters of one request.
            InvalidNameError: A key is not valid.

        May also raise any error of an API request.
        """
        filters = self._keys.filters([keys] if isinstance(keys, str) else keys)
        stream = Stream(self._context, await self._known())
        return await take_snapshot(stream, self._keys, filters, self._renewed, self._strays.report_message)

    @listing
    async def keys(self, *filters: str) -> AsyncGenerator[str, None]:
        """Iterate over the keys that have a value, in the order of their newest revisions. Values are not transferred.

        A key that is written during the iteration may be missing, but is never returned twice.

        Args:
            filters: Return only keys that match one of these filters. A token may be ``*``, and the last token ``>``.

        Raises:
            BucketNotFoundError: The bucket was deleted.
            InvalidNameError: A filter is not valid.

        May also raise any error of an API request.
        """
        seen: set[str] = set()
        config = reader_config(self._keys.subjects(filters), headers_only=True)
        reader = BucketReader(
            self._context, self._stream, config, self._counted(key_of, self._keys), self._create
        )
        async for run in reader.initial_runs():
            for key, is_deleted in run:
                if key not in seen:
                    seen.add(key)
                    if not is_deleted:
                        yield key

    @listing
    async def history(self, *filters: str) -> AsyncGenerator[KeyValueEntry[ValueT], None]:
        """Iterate over all stored entries of the matching keys, deletions included, oldest first.

        See `keys` for the arguments and errors.
        """
        async for entry in self._reader(filters, policy=DeliverPolicy.ALL).initial():
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
        """Read the current entries of the matching keys, and then each change: ``async with kv.watch() as watch``.

        Args:
            filters: Keys, or filters in which a token may be ``*`` and the last token ``>``. The default is all keys.
            include_history: Read all entries that the bucket has, not only the newest of each key.
            updates_only: Skip the existing entries, and read only changes from now on.
            ignore_deletes: Do not return deletions.
            meta_only: Do not transfer values. `KeyValueEntry.size` has their size.
            after: Read all entries after this revision, such as the revision of a snapshot.

        Raises:
            InvalidNameError: A filter is not valid.
            ConfigError: More than one of ``include_history``, ``updates_only`` and ``after`` is given.

        Opening the watch raises `BucketNotFoundError` and any error of an API request.
        """
        policy = policy_of(include_history=include_history, updates_only=updates_only, after=after)
        reader = self._reader(filters, policy=policy, after=after, headers_only=meta_only)
        return KeyValueWatch(SharedReader(reader), ignore_deletes=ignore_deletes)

    def cache(self, *filters: str, check: float = 30.0) -> Opening[KeyValueCache[ValueT]]:
        """Keep a mapping from each key to its value: ``async with kv.cache("shop.*") as cache``.

        Args:
            filters: See `watch`. Caches of one connection share a consumer for each filter.
            check: Seconds between checks for values that a limit or an administrator removed, which no entry shows.

        Raises:
            InvalidNameError, ConfigError: An argument is not valid.

        Opening it raises `BucketNotFoundError` and any error of an API request.
        """
        subjects = self._keys.subjects(filters)
        return Opening(partial(self._open_cache, subjects, check_seconds("check", check)), "cache()")

    async def _open_cache(self, subjects: list[str], check: float) -> KeyValueCache[ValueT]:
        info, create = await self._renewed(), self._create
        return await open_cache(
            self._context, info, self._keys, subjects, self._strays, check=check, create=create
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
        config = reader_config(
            self._keys.subjects(filters), policy=policy, after=after, headers_only=headers_only
        )
        decode = self._counted(entry_of, keys or self._keys)
        return BucketReader(self._context, self._stream, config, decode, self._create)

    def _counted(self, decode: Callable[..., T], keys: KeySpace) -> Decode[T]:
        """Return a function that decodes a message, and skips stray messages."""
        return self._strays.skipped(decode, keys) if keys.own else partial(decode, keys)

    # --- writing -----------------------------------------------------------------------------------------

    async def put(
        self, key: str, value: ValueT, *, ttl: float | timedelta | None = None, msg_id: str | None = None
    ) -> int:
        """Set the value of a key, and return its revision.

        Args:
            key: The key.
            value: The value, bytes that may be empty, or with a codec whatever it encodes.
            ttl: Seconds until the value expires, 1 or more, in a bucket with ``limit_marker_ttl``. Allowed only with a
                history of 1, because otherwise the previous value would reappear.
            msg_id: With an id, the value is sent again if the answer is lost, and is stored once.

        Raises:
            InvalidNameError, ConfigError, MaxPayloadError: Nothing was sent.
            ApiError: The bucket refused the value, for instance because it is full.
            RequestTimeoutError, DisconnectedError: It is unknown whether the value was stored.
        """
        self._check_ttl(ttl)
        return await self._write(key, self._keys.encoded(key, value), ttl=ttl, msg_id=msg_id)

    async def put_many(
        self,
        values: Mapping[str, ValueT] | Iterable[tuple[str, ValueT]],
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> int:
        """Set the values of many keys, in order, and return the greatest of their revisions, or 0 without values.

        This is much faster than many calls of `put`, because up to ``max_in_flight`` values wait for their acks at the
        same time. It is not a transaction: other clients see each value as soon as it is stored.

        Args:
            values: A mapping, or pairs of a key and its value, such as a generator. A key may occur several times.
            max_in_flight: The maximum number of values without an ack.

        Raises:
            PublishManyError: Not all values are stored. It has the failed values by index. Its cause is an
                `InvalidNameError` or a `ConfigError` if a key or a value is not valid.
            ReadOnlyError: The handle only reads.

        If the call is cancelled, the values that were sent may be stored.
        """
        return await put_many(self._context, self._keys, values, max_in_flight)

    async def create(
        self, key: str, value: ValueT, *, ttl: float | timedelta | None = None, msg_id: str | None = None
    ) -> int:
        """Set the value of a key that has no value, and return its revision. See `put` for the arguments.

        ``ttl`` is allowed with any history, because the key has no previous value. With a history of more than 1 the
        server raises it to the ``limit_marker_ttl`` of the bucket, if it is shorter (ADR-43).

        Raises:
            KeyExistsError: The key has a value. Nothing was stored.

        Also raises the errors of `put`.
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
        """Set the value of a key that has revision ``last``, and return its new revision.

        Args:
            key, value, ttl, msg_id: See `put`.
            last: The revision that the key must have, or 0 if the bucket must have no entry of the key.

        Raises:
            RevisionMismatchError: The key has another revision. Nothing was stored.

        Also raises the errors of `put`.
        """
        self._check_ttl(ttl)
        check_count("last", last, 0)
        return await store_after(self, key, self._keys.encoded(key, value), last, ttl=ttl, msg_id=msg_id)

    async def delete(self, key: str, *, last: int | None = None) -> int:
        """Delete the value of a key, keep its history, and return the revision of the deletion.

        Args:
            key: The key. It need not have a value.
            last: The revision that the key must have.

        Raises:
            RevisionMismatchError: The key has another revision. Nothing was stored.

        Also raises the errors of `put`.
        """
        return await store_after(self, key, b"", last, headers={OPERATION: DELETE})

    async def purge(self, key: str, *, last: int | None = None, ttl: float | timedelta | None = None) -> int:
        """Delete the value of a key and its history, and return the revision of the deletion.

        Args:
            key, last: See `delete`.
            ttl: Seconds until the bucket removes the deletion as well, in a bucket with ``limit_marker_ttl``.

        Raises:
            RevisionMismatchError: The key has another revision. Nothing was stored.

        Also raises the errors of `put`.
        """
        return await store_after(self, key, b"", last, headers={OPERATION: PURGE}, rollup="sub", ttl=ttl)

    async def update_with(
        self, key: str, function: Callable[[ValueT | None], ValueT | None], *, attempts: int = 100
    ) -> int:
        """Replace a value by the result of a function, again if another client was faster. Return the revision.

        Args:
            key: The key.
            function: A plain function of the current value, or of None without a value. It returns the new value, or
                None to keep the current value, whose revision is returned then. It may be called several times.
            attempts: The maximum number of calls of ``function``.

        Raises:
            RevisionMismatchError: Other clients were faster at each attempt.
            KeyNotFoundError: ``function`` returned None for a key without a value.

        Also raises the errors of `get` and `put`, and the exceptions of ``function``.
        """
        return await update_with(self, key, function, attempts)

    def transaction(self) -> KeyValueTransaction[ValueT]:
        """Change several keys together or not at all: ``async with kv.transaction() as tx`` (server 2.12).

        The bucket needs ``allow_atomic``. Leaving the block commits. After an exception no change is stored. Raises
        `ReadOnlyError`, and `ConfigError` if the server is older.
        """
        self._keys.check_writable()
        return KeyValueTransaction(self)

    # --- locks -------------------------------------------------------------------------------------------

    def lock(
        self, key: str, *, ttl: float = 15.0, value: ValueT | None = None, timeout: float | None = None
    ) -> Opening[KeyValueLock[ValueT]]:
        """Return a lock that one client at a time can hold: ``async with kv.lock("reports") as lock`` (server 2.11).

        The bucket needs ``limit_marker_ttl`` and a history of 1. The lock is renewed as long as it is held. If the
        holder dies or loses its connection, the next client acquires the lock within ``ttl`` seconds and one more. A
        process that was suspended may continue for a moment after that. `KeyValueLock.put` and `KeyValueLock.token`
        protect against its writes.

        Args:
            key: The key.
            ttl: Seconds, 1 or more, until the lock of a holder that has died is free.
            value: The value of the key that other clients read, such as the name of the holder.
            timeout: Seconds to wait for the lock, including all requests that it takes. None waits without a limit.

        Raises:
            ConfigError, InvalidNameError: An argument is not valid.

        Opening it raises `RequestTimeoutError` after ``timeout`` seconds, `ConfigError` if the server or the bucket
        cannot have locks, and the errors of `put`. The block is cancelled if the lock is lost or the connection is
        closed, and ends with `LeaseLostError`, see `KeyValueLock`.

        Cancelled: the lock is not held. A value that was stored meanwhile is removed in the background.
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
        """Do some work in one client at a time, of all that call this (server 2.11). Returns what ``work`` returns.

        Args:
            key, ttl, value: See `lock`.
            work: A coroutine function that is called with the lock when this client is elected. It is cancelled when
                the lock is lost, which the event `ErrorRaised` reports, and called again when this client is elected
                again.

        Raises:
            ConfigError: ``work`` is not a coroutine function.
            ClosedError: The connection was closed.

        Also raises the errors of `lock`, and what ``work`` raises.

        Cancelled: ``work`` is cancelled, and the lock is released.
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
            msg_id = secrets.token_hex(11)  # it also tells values of this client from the messages of others
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
        """Request the state of the bucket.

        Raises:
            BucketNotFoundError: The bucket was deleted.

        May also raise any error of an API request.
        """
        return BucketStatus.of(await self._renewed())

    async def purge_deletes(self, *, older_than: float = _YOUNG) -> int:
        """Remove the entries of deleted keys, and return their number. A value that is put meanwhile is never removed.

        Args:
            older_than: Seconds. For a more recent deletion only the history is removed, and the deletion itself
                remains, so that watches see it. 0 removes all deletions.

        Raises:
            ConfigError: ``older_than`` is not a number of seconds.
            ReadOnlyError: The handle only reads.

        May also raise any error of an API request.
        """
        return await purge_deletes(self, older_than)
