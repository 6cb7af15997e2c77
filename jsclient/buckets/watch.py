"""A watch of a bucket: the entries that exist, and then each change. Source: ADR-8, ADR-20."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol, Self, TypeVar

from .._runtime.handle import ReadHandle, State
from .._runtime.tasks import Signal
from ..errors import ClosedError, ConfigError
from ..protocol.events import Event

__all__ = ["BucketWatch"]


class _Entry(Protocol):
    @property
    def revision(self) -> int: ...
    @property
    def is_deleted(self) -> bool: ...


EntryT = TypeVar("EntryT", bound=_Entry)

_OPEN: Final = State.OPEN  # Python 3.11 reads a global name much faster than a member of an enum


class _Reader(Protocol[EntryT]):
    """Reads the existing entries, and then each change. See `BucketReader`."""

    @property
    def is_current(self) -> bool: ...
    async def open(self) -> None: ...
    def entry_events(self) -> AsyncIterator[Event]: ...
    async def next_run(self) -> list[EntryT]: ...
    async def close(self) -> None: ...


class BucketWatch(ReadHandle[EntryT]):
    """Reads the entries of a bucket and then its changes, with ``async for``.

    This is the base class of `KeyValueWatch` and `ObjectWatch`.
    """

    _state = State.NEW

    def __init__(self, reader: _Reader[EntryT], *, ignore_deletes: bool) -> None:
        self._reader = reader
        self._ignore_deletes = ignore_deletes
        self._became_current = Signal()
        # Entries that have been read but not returned yet, except for the last one, which is held back in `_held`. It
        # is returned only once it is known whether it is the last entry that existed at the start, because returning
        # that entry makes `is_current` true.
        self._ready: deque[EntryT] = deque()
        self._held: EntryT | None = None  # never None while `_ready` contains entries
        self._is_current = False  # true once all entries that existed at the start have been returned
        self._revision = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.value}{', current' if self.is_current else ''}>"

    async def __aenter__(self) -> Self:
        if self._state is State.NEW:
            await self._reader.open()
            self._state = State.OPEN
            try:
                await self._look_ahead(1)
            except BaseException:
                await self.close()
                raise
        return self

    async def _look_ahead(self, count: int) -> None:
        """Read until ``count`` of the entries that existed at the start are ahead, or all remaining ones.

        Before an entry is returned, it must be known whether it is the last. The entries after it may be deletions
        that are skipped, or may have been removed.
        """
        while len(self._ready) + (self._held is not None) < count and not self._reader.is_current:
            await self._read_ahead()

    async def _read_ahead(self) -> None:
        entries = await self._reader.next_run()
        if self._ignore_deletes:
            entries = [entry for entry in entries if not entry.is_deleted]
        if entries:
            if self._held is not None:
                self._ready.append(self._held)
            self._ready += entries
            self._held = self._ready.pop()

    @property
    def is_current(self) -> bool:
        """Whether all entries that existed when the watch was opened have been returned, so only changes follow."""
        return self._is_current or (self._held is None and self._reader.is_current)

    @property
    def revision(self) -> int:
        """The revision of the last entry returned. Pass it to a new watch as ``after`` to continue later.

        It is 0 until the first entry has been returned, even if this watch itself was opened with ``after``.
        """
        return self._revision

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of this watch, such as `ConsumerReset`: first the recent events, then each new one.

        Raises:
            ClosedError: The watch isn't open.
        """
        if self._state is State.NEW:
            raise ClosedError("the watch is not open: use it with 'async with'")
        return self._reader.entry_events()

    async def current(self) -> None:
        """Wait until all entries that existed when the watch was opened have been read by a different task.

        Raises:
            ClosedError: The watch was closed.
        """
        while not self.is_current:
            if self.is_closed:
                raise ClosedError("the watch is closed")
            await self._became_current.wait()

    async def next(self) -> EntryT:
        """Wait for the next entry and return it.

        Cancelling the call is safe: the next call returns the entry.

        Raises:
            BucketNotFoundError: The bucket was deleted.
            ClosedError: The watch or the connection is closed.
            ConfigError: The watch isn't open. Use it in an ``async with`` block.

        May also raise any error of `OrderedConsumer.next`.
        """
        if self._state is State.NEW:  # opening here would create a second consumer
            raise ConfigError("the watch is not open: 'async with bucket.watch() as watch' opens it")
        if self.is_closed:
            raise ClosedError("the watch is closed")
        if self._held is not None:
            await self._look_ahead(2)
        while self._held is None:  # another task may have returned the entries read ahead
            self._note_current()
            await self._read_ahead()
        return self._take_entry()

    async def __anext__(self) -> EntryT:
        # Usually the next entry has already arrived, and can be returned without another coroutine.
        ready = self._ready
        if ready and self._state is _OPEN:
            entry = ready.popleft()
            revision = entry.revision
            if revision > self._revision:  # noqa: PLR1730  a call of max() takes as long as all other lines
                self._revision = revision
            return entry
        return await super().__anext__()

    def _take_entry(self) -> EntryT:
        if self._ready:
            entry = self._ready.popleft()
        else:
            assert self._held is not None
            entry, self._held = self._held, None
        self._revision = max(self._revision, entry.revision)
        if self._held is None:
            self._note_current()
        return entry

    def _note_current(self) -> None:
        """If no entry is ahead, record whether all entries that existed at the start were returned."""
        if self._reader.is_current and not self._is_current:
            self._is_current = True
            self._became_current.set()

    async def close(self) -> None:
        """Stop watching, and delete the consumer unless other watches of the connection use it."""
        self._state = State.CLOSED
        self._became_current.set()
        await self._reader.close()
