"""The local copy of a bucket that `KeyValue.cache` returns. It consists of one `TopicTable` for each filter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from ..._runtime.connection.connection import Lifecycle
from ..._runtime.context import Context
from ..._runtime.handle import Handle, ReadHandle, State
from ..._runtime.retry import Retry
from ..._runtime.tasks import Signal
from ...errors import ClosedError, InvalidNameError, JetStreamError, RequestTimeoutError, StreamNotFoundError
from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.stream import StreamInfo
from ...protocol.topics.record import Record
from ...protocol.wire.checks import check_count, deadline_of
from ...streams.stream import Stream
from ...topics.stream_log import StreamLog
from ...topics.table import TableChanges, TopicTable, open_table
from ..bucket_handle import no_bucket
from .entries import recorded_entry
from .strays import StrayMessages

__all__ = ["KeyValueCache", "KeyValueCacheChanges", "KeyValueChange", "open_cache"]

_RECHECK: Final = 0.5  # seconds between two requests for the bucket's state

T = TypeVar("T")


class KeyValueChange(NamedTuple, Generic[ValueT]):
    """A changed key of a `KeyValueCache`, with its latest entry. Returned by `KeyValueCacheChanges.next`.

    ``entry`` is the new entry of ``key``, or None if the key no longer has a value.
    """

    key: str
    entry: KeyValueEntry[ValueT] | None


class KeyValueCache(Handle, Mapping[str, KeyValueEntry[ValueT]], Generic[ValueT]):
    """A local copy of a bucket, as a mapping of keys to entries that is kept up to date. Returned by `KeyValue.cache`.

    Reading the cache sends no requests, so it is as fast as a dict::

        async with kv.cache("shop.*") as cache:
            print(cache["shop.open"].value)

    While the cache is open, it contains all matching keys that have a value. If the body of a loop over the cache
    awaits anything, the cache may change during the loop, so iterate over a copy such as ``dict(cache)``.

    The cache survives reconnects and server restarts. It may skip intermediate values of a key, but never misses the
    latest one. If the bucket is deleted or created again, the cache can't continue. The event `ErrorRaised` reports
    this, and every access raises `BucketNotFoundError` or `PositionInvalidError`. After the cache or its connection is
    closed, the last state can still be read.
    """

    def __init__(
        self,
        context: Context,
        keys: KeySpace,
        logs: list[StreamLog],
        strays: StrayMessages,
        create: str,
    ) -> None:
        self._context = context
        self._keys = keys
        self._logs = logs
        self._strays = strays
        self._create = create
        self._tables: list[TopicTable] = []
        self._changed = Signal()  # shared by all tables
        self._reached = 0  # the highest revision that a call of `wait_for` has waited for successfully
        self._stale_at: float | None = None  # event loop time when the connection was lost
        self._catching_up: asyncio.Task[None] | None = None
        self._changes_of_connection = 0
        self._state = State.NEW

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else " stale" if self.is_stale else ""
        return f"<KeyValueCache {self._keys.bucket}: revision {self.revision}{state}>"

    async def _open(self, check: float) -> None:
        self._context.connection.add_listener(self._connection_changed)
        try:
            for log in self._logs:
                # If the connection is lost meanwhile, `open_table` continues after the reconnect.
                table = open_table(log, check=check, changed=self._changed)
                self._tables.append(await table)
            # If the connection was lost meanwhile, tables that were opened before the loss may lack later changes.
            if self._stale_at is not None:
                await self._catch_up()
            if self.is_closed:
                raise self._closed_error()
            self._state = State.OPEN
        except BaseException as error:
            await self.close()
            if isinstance(error, StreamNotFoundError):
                raise no_bucket(error, self._create) from None
            raise

    # --- the mapping -------------------------------------------------------------------------------------

    def _following(self) -> list[TopicTable]:
        """Return the tables. Raises the error that ended one of them."""
        return self._named(lambda: [table for table in self._tables if len(table) >= 0])

    def _named(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None

    def _closed_error(self, error: ClosedError | None = None) -> ClosedError:
        """Return the error of a closed cache, in place of the error of a table."""
        if error is not None and not self.is_closed:
            return error
        return ClosedError("the cache is closed: no change follows")

    def __getitem__(self, key: str) -> KeyValueEntry[ValueT]:
        if (subject := self._subject(key)) is not None:
            for table in self._following():
                if (record := table.get(subject)) is not None and self._counts(record):
                    return recorded_entry(self._keys, record)
        raise KeyError(key)

    def _subject(self, key: object) -> str | None:
        """Return the subject of a key, or None if the key is invalid."""
        if self._keys.key_codec is None:
            return f"{self._keys.reads}{key}"
        try:
            return self._keys.subject(key)  # type: ignore[arg-type]
        except InvalidNameError:
            return None

    def _counts(self, record: Record) -> bool:
        """Return whether a record is a value. If another client has stored the record, report it and return False."""
        if not self._keys.is_stray(record.headers):
            return True
        self._strays.report_message(record.subject, record.seq)
        return False

    def _subjects(self) -> list[str]:
        """Return the subjects of all valid values. Needed only for handles with ``own`` or a key codec."""
        tables = self._following()
        return [
            subject
            for table in tables
            for subject, one in table.items()
            if self._counts(one) and self._subject(self._keys.key(subject)) == subject
        ]

    @property
    def _is_filtered(self) -> bool:
        """Whether some messages must be ignored, because other clients stored them or the key can't be decoded."""
        return self._keys.own or self._keys.key_codec is not None

    def __iter__(self) -> Iterator[str]:
        if self._is_filtered:
            return map(self._keys.key, self._subjects())
        return (self._keys.key(subject) for table in self._following() for subject in table)

    def __len__(self) -> int:
        if self._is_filtered:
            return len(self._subjects())
        return sum(map(len, self._following()))

    def __contains__(self, key: object) -> bool:
        subject = self._subject(key)
        if self._keys.own:
            return subject in self._subjects()
        return any(subject in table for table in self._following())

    @property
    def is_closed(self) -> bool:
        """Whether the cache or its connection was closed. A closed cache no longer changes, but can still be read."""
        return self._state is State.CLOSED or any(table.is_closed for table in self._tables)

    @property
    def revision(self) -> int:
        """The revision of the bucket that the cache has reached.

        The cache includes all changes of matching keys up to this revision.
        """
        return max(self._reached, min((table.position.seq for table in self._tables), default=0))

    # --- staleness ---------------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the cache may be missing changes.

        True from the moment the connection is lost until the cache has caught up after reconnecting. Also true once the
        cache or its connection is closed.
        """
        return self._stale_at is not None or self.is_closed

    @property
    def stale_for(self) -> float:
        """How long the cache has been stale, in seconds. 0.0 if the cache isn't stale."""
        if self._stale_at is None:
            if not self.is_closed:
                return 0.0
            self._stale_at = self._context.connection.now()
        return self._context.connection.now() - self._stale_at

    def _connection_changed(self, what: Lifecycle) -> None:
        if self._stale_at is None:
            self._stale_at = self._context.connection.now()
        self._changes_of_connection += 1
        if self._catching_up is not None:
            self._catching_up.cancel()
        # While tables are still being opened, there is nothing to do, because `_open` catches up at its end.
        if what is Lifecycle.CONNECTED and self._state is State.OPEN:
            self._catching_up = self._context.tasks.start(
                self._catch_up(), f"catching up of {self._keys.bucket}"
            )

    async def _catch_up(self) -> None:
        """Wait until the cache has caught up with the current state of the bucket, then mark it as no longer stale."""
        tries = Retry()
        while True:
            changes = self._changes_of_connection
            try:
                for table, log in zip(self._following(), self._logs, strict=True):
                    await _reach(table, log, (await log.extent()).last_seq, None)
            except ClosedError:
                return
            except JetStreamError as error:
                if not await tries.again(error):
                    raise  # the task reports the error, and the cache remains stale
            else:
                if changes == self._changes_of_connection:
                    self._stale_at = None
                    return

    # --- following ---------------------------------------------------------------------------------------

    async def wait_for(self, revision: int, timeout: float | None = None) -> None:
        """Wait until the cache contains every change of matching keys up to ``revision``.

        Use it to read your own writes::

            revision = await kv.put("shop.open", b"yes")
            await cache.wait_for(revision)

        Args:
            revision: A revision of the bucket, for example the one returned by `KeyValue.put`. It may belong to a key
                that matches none of the cache's filters. The call then returns once the cache has caught up to that
                point.
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: The cache didn't reach ``revision`` within ``timeout`` seconds.
            BucketNotFoundError: The bucket was deleted.
            ClosedError: The cache or its connection was closed.

        If the cache has failed, the call raises the error that ended it. May also raise any request error.
        """
        check_count("revision", revision, 0)
        now = self._context.connection.now
        deadline = deadline_of(timeout, now())
        try:
            for table, log in zip(self._following(), self._logs, strict=True):
                if revision > self._reached:
                    await _reach(table, log, revision, deadline)
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None
        except ClosedError as error:
            # The message of the error mentions a table, which is internal, so raise an error about the cache instead.
            raise self._closed_error(error) from None
        except RequestTimeoutError as error:
            if deadline is None or now() < deadline:
                raise
            raise RequestTimeoutError(f"revision {revision} in the cache", timeout or 0.0) from error
        self._reached = max(self._reached, revision)

    def changes(self, start: Literal["first", "now"] = "now") -> KeyValueCacheChanges[ValueT]:
        """Return an asynchronous iterator over the changes of the cache::

            async for key, entry in cache.changes():
                print(key, entry and entry.value)

        For each key that has changed, the iterator returns the latest state. A slow reader may miss intermediate
        states, but never the latest one.

        Args:
            start: With ``"now"``, the default, only later changes are returned. With ``"first"``, all keys of the cache
                are returned first.

        Raises:
            ConfigError: ``start`` has a different value.
        """
        parts = [table.changes(start) for table in self._following()]
        return KeyValueCacheChanges(self, self._tables[0], parts)

    async def close(self) -> None:
        """Stop following the bucket, and delete the consumers on the server. The last state can still be read."""
        self._state = State.CLOSED
        self._context.connection.remove_listener(self._connection_changed)
        if self._stale_at is None:
            self._stale_at = self._context.connection.now()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._changed.set()
        # Close each table in its own task, so that the tables are closed even if this call is cancelled.
        ends = [self._context.tasks.start(table.close(), "end of a cache") for table in self._tables]
        if ends:
            await asyncio.wait(ends)


class KeyValueCacheChanges(ReadHandle[KeyValueChange[ValueT]], Generic[ValueT]):
    """An asynchronous iterator over the changes of a cache. Returned by `KeyValueCache.changes`.

    ``async for`` stops when the cache, its connection or this reader is closed. If a read is cancelled, no change is
    lost.
    """

    def __init__(self, cache: KeyValueCache[ValueT], table: TopicTable, parts: list[TableChanges]) -> None:
        self._cache = cache
        self._table = table  # used to wait for changes of any table, because all tables share one signal
        self._parts = parts

    async def next(self, timeout: float | None = None) -> KeyValueChange[ValueT]:
        """Wait for a key to change, and return its latest state.

        If a key changes several times before you read it, the changes in between aren't returned.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No key changed within ``timeout`` seconds. The reader can still be used.
            ClosedError: The cache, its connection or this reader was closed.
            BucketNotFoundError: The bucket was deleted.

        If the cache has failed, the call raises the error that ended it.
        """
        cache = self._cache

        def has_ended_or_changed(_: object) -> bool:
            return self.is_closed or bool(cache._following() and self._changed_part())  # noqa: SLF001  same module

        while True:
            if self.is_closed:
                raise ClosedError("the reader of changes is closed")
            if (part := self._changed_part()) is not None:
                subject, record = await part.next()  # returns immediately, because there is a record
                counts = record is not None and cache._counts(record)  # noqa: SLF001
                entry = recorded_entry(cache._keys, record) if record is not None and counts else None  # noqa: SLF001
                return KeyValueChange(cache._keys.key(subject), entry)  # noqa: SLF001
            try:
                await self._table.wait_for(has_ended_or_changed, timeout)
            except StreamNotFoundError as error:
                raise no_bucket(error, cache._create) from None  # noqa: SLF001
            except ClosedError as error:
                raise cache._closed_error(error) from None  # noqa: SLF001

    def _changed_part(self) -> TableChanges | None:
        return next((part for part in self._parts if not part.is_waiting), None)

    async def close(self) -> None:
        """Stop reading changes. The cache stays open."""
        self._state = State.CLOSED
        for part in self._parts:
            await part.close()


async def _reach(table: TopicTable, log: StreamLog, revision: int, deadline: float | None) -> None:
    """Wait until a table contains every change up to a revision of its bucket. Raises `RequestTimeoutError`.

    If the revision belongs to a key outside the table, wait for the newest record of the table before that revision.
    The leader of the stream is asked for it.
    """
    now = log.context.connection.now
    while table.position.seq < revision:
        if (await log.extent()).last_seq >= revision:
            newest = await log.last()
            target = min(revision, 0 if newest is None else newest.seq)
        else:
            target = revision
        if table.position.seq >= target and target < revision:
            return
        # Check the target again from time to time. If the record with this revision is removed or belongs to another
        # key, the table never reaches it, and the call would wait forever.
        until = now() + _RECHECK if deadline is None else min(deadline, now() + _RECHECK)
        with suppress(RequestTimeoutError):
            await table.wait_for(_has_reached(target), max(until - now(), 0.001))
        if deadline is not None and now() >= deadline and table.position.seq < target:
            raise RequestTimeoutError(f"revision {revision}", 0.0)


def _has_reached(target: int) -> Callable[[TopicTable], bool]:
    return lambda table: table.position.seq >= target


async def open_cache(
    context: Context,
    info: StreamInfo,
    keys: KeySpace,
    subjects: list[str],
    strays: StrayMessages,
    *,
    check: float,
    create: str,
) -> KeyValueCache[Any]:
    """Open a cache of the keys with these subjects.

    ``create`` is the name of the method that creates a bucket, which error messages recommend.
    """
    logs = [StreamLog(context, Stream(context, info), subject) for subject in subjects]
    for log in logs:
        log.is_one_subject = False  # no record ends the log, even if its headers mark the end of a topic
    cache = KeyValueCache[Any](context, keys, logs, strays, create)
    await cache._open(check)  # noqa: SLF001  same module
    return cache
