"""A mapping that follows a bucket: `KeyValue.cache`. It is a `TopicTable` for each filter."""

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
    """The new state of a key in a `KeyValueCache`. ``entry`` is None if the key has no value any more."""

    key: str
    entry: KeyValueEntry[ValueT] | None


class KeyValueCache(Handle, Mapping[str, KeyValueEntry[ValueT]], Generic[ValueT]):
    """A mapping from each key of a bucket to its value, kept current. Created by `KeyValue.cache`.

    An open cache has every key that matches and has a value. Reading it sends no request. Iterate over a copy, such as
    ``dict(cache)``, if the loop awaits. It outlasts reconnects and restarts of servers: a value that was replaced
    meanwhile may be skipped, the newest value of a key never.

    If it cannot be continued, because the bucket was deleted or recreated, every access raises the error:
    `BucketNotFoundError` or `PositionInvalidError`. After `close`, and after the connection was closed, it keeps its
    last state.
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
        self._reached = 0  # a revision that a caller waited for although no key in the cache has it
        self._stale_at: float | None = None  # the time of the loop when the connection was lost
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
                # The connection may be lost while a table is opened. Opening then continues after the reconnect.
                table = open_table(log, check=check, changed=self._changed)
                self._tables.append(await table)
            # A table that was opened before a loss may miss what happened since.
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
        """Return the subject of a key, or None if no key can be like that."""
        if self._keys.key_codec is None:
            return f"{self._keys.reads}{key}"
        try:
            return self._keys.subject(key)  # type: ignore[arg-type]
        except InvalidNameError:
            return None

    def _counts(self, record: Record) -> bool:
        """Return whether a record is a value. Reports a record that another client has stored."""
        if not self._keys.is_stray(record.headers):
            return True
        self._strays.report_message(record.subject, record.seq)
        return False

    def _subjects(self) -> list[str]:
        """Return the subjects of all values that count, for a handle with ``own`` or a codec of keys."""
        tables = self._following()
        return [
            subject
            for table in tables
            for subject, one in table.items()
            if self._counts(one) and self._subject(self._keys.key(subject)) == subject
        ]

    @property
    def _is_filtered(self) -> bool:
        """Whether messages of other clients may not count, because of their origin or their key."""
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
        """Whether the cache or its connection was closed."""
        return self._state is State.CLOSED or any(table.is_closed for table in self._tables)

    @property
    def revision(self) -> int:
        """The revision up to which every change of the matching keys is in the cache."""
        return max(self._reached, min((table.position.seq for table in self._tables), default=0))

    # --- staleness ---------------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether changes may be missing, because the connection was lost and what happened since was not read yet.

        It is also true after the cache or its connection was closed.
        """
        return self._stale_at is not None or self.is_closed

    @property
    def stale_for(self) -> float:
        """Seconds since the connection was lost, or the cache was closed. 0.0 if the cache is not stale."""
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
        # While tables are opened, `_open` catches up at its end.
        if what is Lifecycle.CONNECTED and self._state is State.OPEN:
            self._catching_up = self._context.tasks.start(
                self._catch_up(), f"catching up of {self._keys.bucket}"
            )

    async def _catch_up(self) -> None:
        """Read everything that the bucket has now. Then the cache is not stale any more."""
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
                    raise  # the task reports it, and the cache stays stale
            else:
                if changes == self._changes_of_connection:
                    self._stale_at = None
                    return

    # --- following ---------------------------------------------------------------------------------------

    async def wait_for(self, revision: int, timeout: float | None = None) -> None:
        """Wait until every change up to a revision, such as the revision of a put, is in the cache.

        A revision of a key that does not match is waited for as well. Then nothing in the cache is older than it.

        Raises:
            RequestTimeoutError: The cache did not have it within ``timeout`` seconds.
            BucketNotFoundError: The bucket was deleted. ClosedError: The cache was closed.

        Also raises the error that ended the cache, and any error of an API request.
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
            # The error of a table would name what the program does not know.
            raise self._closed_error(error) from None
        except RequestTimeoutError as error:
            if deadline is None or now() < deadline:
                raise
            raise RequestTimeoutError(f"revision {revision} in the cache", timeout or 0.0) from error
        self._reached = max(self._reached, revision)

    def changes(self, start: Literal["first", "now"] = "now") -> KeyValueCacheChanges[ValueT]:
        """Read the changes of the cache, for ``async for``: the newest state of each key that has changed.

        A slow reader misses intermediate states, but never the newest state.

        Args:
            start: ``"now"`` reads changes from now on, ``"first"`` reads all keys of the cache first.

        Raises:
            ConfigError: ``start`` has another value.
        """
        parts = [table.changes(start) for table in self._following()]
        return KeyValueCacheChanges(self, self._tables[0], parts)

    async def close(self) -> None:
        """Stop following the bucket, and release the resources on the server."""
        self._state = State.CLOSED
        self._context.connection.remove_listener(self._connection_changed)
        if self._stale_at is None:
            self._stale_at = self._context.connection.now()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._changed.set()
        # Each table ends in its own task, which continues even if this call is cancelled.
        ends = [self._context.tasks.start(table.close(), "end of a cache") for table in self._tables]
        if ends:
            await asyncio.wait(ends)


class KeyValueCacheChanges(ReadHandle[KeyValueChange[ValueT]], Generic[ValueT]):
    """The changes of a cache, for ``async for``. Created by `KeyValueCache.changes`. A cancelled read loses no change.

    The loop ends when the cache, its connection or this reader is closed.
    """

    def __init__(self, cache: KeyValueCache[ValueT], table: TopicTable, parts: list[TableChanges]) -> None:
        self._cache = cache
        self._table = table  # it shares the signal of changes with other tables
        self._parts = parts

    async def next(self, timeout: float | None = None) -> KeyValueChange[ValueT]:
        """Return the newest state of a key that has changed and was not returned since.

        Raises:
            RequestTimeoutError: No key changed in ``timeout`` seconds. ClosedError: The cache, its connection or this
                reader was closed. BucketNotFoundError: The bucket was deleted.

        Also raises the error that ended the cache, if any.
        """
        cache = self._cache

        def has_ended_or_changed(_: object) -> bool:
            return self.is_closed or bool(cache._following() and self._changed_part())  # noqa: SLF001  one module

        while True:
            if self.is_closed:
                raise ClosedError("the reader of changes is closed")
            if (part := self._changed_part()) is not None:
                subject, record = await part.next()  # the record exists, so this call does not block
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
    """Wait until a table has every change up to a revision of its bucket. Raises `RequestTimeoutError`.

    The revision may belong to a key that is not in the table. Then the newest record before it is the one to wait for,
    which the leader of the stream names.
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
        # The revision that the caller waits for may be removed meanwhile, or another record may precede it. So check
        # again.
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
    """Open a cache of the keys of these subjects. ``create`` is the method that creates such a bucket."""
    logs = [StreamLog(context, Stream(context, info), subject) for subject in subjects]
    for log in logs:
        log.is_one_subject = False  # a record with a value never ends a key, whatever its headers are
    cache = KeyValueCache[Any](context, keys, logs, strays, create)
    await cache._open(check)  # noqa: SLF001  one module
    return cache
