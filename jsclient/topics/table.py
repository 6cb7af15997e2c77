"""`TopicTable`: the newest record of each subject of a topic, kept current.

A table is a snapshot of the newest records and a reader after it, with the guarantees of `Topic.each`: pushes may be
lost, and servers may restart. Records that were replaced before they were read are not a gap, since newer ones
follow.

No record shows that messages were removed from the stream. Therefore the number of removed messages is looked up from
time to time. When it has changed, the table is compared with the sequences of the newest messages, and the stream's
leader decides on each difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakSet

from .._runtime.handle import Handle, ReadHandle, State
from .._runtime.handlers import check_handler, check_plain
from .._runtime.retry import Retry
from .._runtime.tasks import Signal
from ..errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, RequestTimeoutError
from ..protocol.buckets.entry import operation_of
from ..protocol.models.back_doubt import BackwardCheck
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.wire.checks import deadline_of
from ..protocol.wire.headers import Headers
from .log_reader import LogReader, open_reader
from .snapshot import newest_of_each, take_snapshot
from .stream_log import StreamLog

__all__ = ["TableChange", "TableChanges", "TopicTable", "open_table"]

_EACH: Final = 0.001  # minimum pause between comparisons, in seconds for each subject
_AT_ONCE: Final = 64  # number of subjects about which the leader is asked concurrently
_RECHECK: Final = 0.5  # seconds until an uncertain extent is requested again


class TableChange(NamedTuple):
    """A changed subject of a `TopicTable`, with its latest record. Returned by `TableChanges.next`.

    ``record`` is the latest record of ``subject``, or None if the subject was removed from the table.
    """

    subject: str
    record: Record | None


class _Newest(NamedTuple):
    """The leader's answer about a subject, and the record that the table had at the request."""

    subject: str
    before: Record | None
    newest: Record | None

    @property
    def goes_back(self) -> bool:
        before, newest = self.before, self.newest
        return before is not None and (newest is None or newest.seq < before.seq)


@dataclass(slots=True)
class _Compared:
    """Tracks whether the table is known to lack all messages that were removed from the stream.

    That is known once two comparisons in a row have found no difference. One comparison isn't enough, because the
    server of the consumer or of the history may lag. Before the second comparison, the reader must also have read
    everything that was stored at the first. Without that condition, a page of the history that was read before a
    removal could still arrive after both comparisons.

    Attributes:
        removed: The number of messages that were removed from the stream until then, or -1 to compare again.
    """

    removed: int = -1
    _equal: int = -1
    _end: int = 0

    def equal(self, removed: int, end: int, read: int) -> None:
        """Record that a comparison found no difference.

        ``end`` is the stream's last sequence, and ``read`` the reader's sequence before the comparison.
        """
        self.removed = removed if removed == self._equal and read >= self._end else -1
        if removed != self._equal:
            self._equal, self._end = removed, end

    def note_difference(self) -> None:
        """Record that a difference was found, or that the table could not be compared."""
        self.removed = self._equal = -1


def _is_removal(headers: Headers) -> bool:
    """Return whether headers mark the end of a subject, because a key was deleted or a record expired."""
    return operation_of(headers) != "PUT"


class TopicTable(Handle, Mapping[str, Record]):
    """A read-only mapping from each subject of a topic to its latest record. Opened by `Topic.table`.

    The table follows the topic in the background, so reading it sends no request. If the body of a loop over the table
    awaits anything, the table may change meanwhile, so iterate over a copy such as ``dict(table)``. A record that ends
    its subject (`Record.is_last`) is treated like any other record.

    A subject disappears from the table when a record marks its deletion. This happens when a key of a key-value bucket
    is deleted or purged, and when the server stores a delete marker. If records are removed from the stream by a purge,
    a deletion or a limit, no record announces this. For this reason, the table is also compared with the stream every
    ``check`` seconds. If the user isn't allowed to read the stream, the event `PermissionDenied` is reported, and the
    next comparison takes place after the next reconnect.

    If the stream is deleted or created again, the table can't continue. The event `ErrorRaised` reports this, and every
    access raises the error. After you close the table or the connection, you can still read the last state. Check
    `is_closed` if you need the current state.
    """

    def __init__(
        self,
        log: StreamLog,
        records: dict[str, Record],
        reader: LogReader,
        check: float,
        changed: Signal | None = None,
    ) -> None:
        self._log = log
        self._records = records
        self._reader = reader
        self._check = check
        self._error: JetStreamError | None = None
        self._ended = False
        # Tables may share a signal, so that a task can wait for a change of any of them.
        self._changed = Signal() if changed is None else changed
        self._watching: WeakSet[TableChanges] = WeakSet()
        self._tasks = [
            log.tasks.start(self._follow(), f"table of {log.subject}"),
            log.tasks.start(self._compare_always(), f"comparison of {log.subject}"),
        ]

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        closed = " closed" if self.is_closed else ""
        return (
            f"<TopicTable {self._log.subject}: {len(self._records)} subjects at {self.position.seq}{closed}>"
        )

    @property
    def is_closed(self) -> bool:
        """Whether the table or its connection was closed. A closed table no longer changes, but can still be read."""
        return self._reader.is_closed

    @property
    def position(self) -> Position:
        """The position that the table has reached. Pass it to `Topic.since` to read the records that follow."""
        return self._reader.position

    @property
    def _current(self) -> dict[str, Record]:
        if self._error is not None:
            raise self._error
        return self._records

    def __getitem__(self, subject: str) -> Record:
        return self._current[subject]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, subject: object) -> bool:
        return subject in self._current

    def changes(self, start: Literal["first", "now"] = "now") -> TableChanges:
        """Return a reader of the changes of the table.

        Each change consists of a subject and its latest record::

            async for change in table.changes():
                print(change.subject, change.record)

        If a subject changes several times before you read the change, only its latest state is returned.

        Args:
            start: With ``"now"``, the default, only later changes are returned. With ``"first"``, every subject that is
                already in the table is returned first.

        Raises:
            ConfigError: ``start`` has a different value.
        """
        if start not in ("first", "now"):
            raise ConfigError(f"start is {start!r:.40}: 'first' or 'now' is needed")
        current = self._current
        changes = TableChanges(self, current if start == "first" else {})
        self._watching.add(changes)
        return changes

    async def wait_for(self, condition: Callable[[TopicTable], object], timeout: float | None = None) -> None:
        """Wait until a condition on the table is true.

        The condition is checked immediately, and then after each change::

            await table.wait_for(lambda table: "sensors.7" in table, timeout=10)

        Args:
            condition: A plain function that is called with the table and returns whether the condition is true.
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: The condition wasn't true within ``timeout`` seconds.
            ClosedError: The table was closed.
            ConfigError: ``condition`` isn't a plain function of one argument.

        If the table has failed, the call raises the error that stopped it. An exception that ``condition`` raises is
        passed on.
        """
        check_handler("condition", condition, "table")
        check_plain("condition", condition)
        deadline = deadline_of(timeout, asyncio.get_running_loop().time())
        while not condition(self):
            await self._next_change(deadline, "a change of the table", timeout)

    async def _next_change(self, deadline: float | None, what: str, timeout: float | None) -> None:
        if self._error is not None:
            raise self._error
        if self._ended or self.is_closed:
            raise ClosedError("the table is closed, or its topic has ended: no change follows")
        if not await self._changed.wait_until(deadline):
            raise RequestTimeoutError(what, timeout or 0.0, self._log.problem)

    async def close(self) -> None:
        """Stop following the topic. The last state of the table can still be read."""
        for task in self._tasks:
            task.cancel()
        self._changed.set()
        await self._reader.close()

    async def _follow(self) -> None:
        try:
            async with aclosing(self._reader.batches()) as batches:
                async for records in batches:
                    # Removals are marked by headers. If no record has headers and no `TableChanges` exists, add all
                    # records at once.
                    if self._watching or [record for record in records if record.headers]:
                        for record in records:
                            self._set(record.subject, None if _is_removal(record.headers) else record)
                    else:
                        self._records.update([(record.subject, record) for record in records])
                    self._changed.set()
        except JetStreamError as error:
            self._error = error
            self._log.report(error)
        self._ended = True
        self._tasks[1].cancel()
        self._changed.set()

    def _set(self, subject: str, record: Record | None) -> None:
        if record is not None:
            self._records[subject] = record
        elif self._records.pop(subject, None) is None:
            return
        for changes in self._watching:
            changes.noted(subject, record)

    async def _compare_always(self) -> None:
        """Compare the table with the stream if messages were removed from it since the last comparison."""
        compared, tries, compare_at = _Compared(), Retry(), 0.0
        now, connection = asyncio.get_running_loop().time, self._log.context.connection
        refused = -1  # number of the connection on which a comparison was denied
        while True:
            await asyncio.sleep(self._check)
            if connection.connects == refused:
                continue
            try:
                await self._log.wait_ready()
                state = (await self._log.handle.info()).state
                removed = state.last_seq - state.messages
                if removed == compared.removed:
                    continue
                if self._records and await self._is_empty():
                    self._clear(state.last_seq)
                if now() < compare_at:
                    continue
                read = self.position.seq
                if await self._compare(state.last_seq):
                    compared.note_difference()
                else:
                    compared.equal(removed, state.last_seq, read)
                compare_at, tries = now() + _EACH * len(self._records), Retry()
            except PermissionDeniedError:  # already reported with the event PermissionDenied
                compared.note_difference()
                refused = connection.connects
            except JetStreamError as error:
                if not await tries.again(error):
                    raise  # the task reports the error, and the table continues to follow the log

    def _clear(self, end: int) -> None:
        """Remove all subjects up to sequence ``end``, because no record of the topic is stored."""
        for subject in [subject for subject, record in self._records.items() if record.seq <= end]:
            self._set(subject, None)
        self._changed.set()

    async def _compare(self, end: int) -> bool:
        """Compare the newest sequences, and ask the stream's leader for each subject that differs."""
        stored: dict[str, int] = {}
        async with aclosing(newest_of_each(self._log, end, headers_only=True)) as lists:
            async for records in lists:
                for record in records:
                    stored[record.subject] = 0 if _is_removal(record.headers) else record.seq
        known = {subject: record.seq for subject, record in self._records.items()}
        read = min(end, self.position.seq)  # the reader returns the records after this sequence
        # Ignore records of the table after `end`, because `stored` may not include them. A republished record may reach
        # the table before the reader's position includes it.
        differ = [subject for subject, seq in known.items() if stored.get(subject, 0) < seq <= end]
        differ += [subject for subject, seq in stored.items() if known.get(subject, 0) < seq <= read]
        if (older := await self._ask_leader(differ)) and await self._may_be_stale():
            older = await self._ask_leader([answer.subject for answer in older])
        for answer in older:
            self._apply(answer)
        self._changed.set()
        return bool(differ)

    async def _is_empty(self) -> bool:
        """Return True if the topic has no stored records."""
        if await self._log.last() is not None:
            return False
        return not await self._may_be_stale() or await self._log.last() is None

    async def _may_be_stale(self) -> bool:
        """Return True if an older answer may have come from a former leader that no longer answers requests."""
        seen = max(self.position.seq, *(record.seq for record in self._records.values()), 0)
        doubt, now = BackwardCheck(), asyncio.get_running_loop().time
        incarnation, replicated = self.position.incarnation, False
        while True:
            extent = await self._log.extent()
            replicated |= extent.replicas > 1
            if doubt.check_end(seen, extent, now(), incarnation=incarnation) != "ask again":
                return replicated
            await asyncio.sleep(_RECHECK)

    async def _ask_leader(self, subjects: list[str]) -> list[_Newest]:
        """Request the newest record of each subject and update the table.

        Return older answers without applying them.
        """
        older: list[_Newest] = []
        for first in range(0, len(subjects), _AT_ONCE):
            requests = map(self._newest_of, subjects[first : first + _AT_ONCE])
            results = await asyncio.gather(*requests, return_exceptions=True)
            for result in results:
                if isinstance(result, _Newest):
                    if result.goes_back:
                        older.append(result)
                    else:
                        self._apply(result)
            # Apply all answers before raising an error, so that one failed request does not discard the others.
            self._changed.set()
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        return older

    async def _newest_of(self, subject: str) -> _Newest:
        before = self._records.get(subject)
        return _Newest(subject, before, await self._log.last(subject))

    def _apply(self, answer: _Newest) -> None:
        """Apply an answer to the table, unless the reader will return its record or has returned a newer record."""
        subject, before, newest = answer
        known = 0 if before is None else before.seq
        if newest is not None and (newest.seq == known or newest.seq > max(self.position.seq, known)):
            return
        if newest is not None and _is_removal(newest.headers):
            newest = None
        if self._records.get(subject) is before:  # no newer record was read in the meantime
            self._set(subject, newest)


class TableChanges(ReadHandle[TableChange]):
    """Reads the changes of a table, one subject at a time. Returned by `TopicTable.changes`.

    ``async for`` stops when the table, its connection or this reader is closed. If a read is cancelled, no change is
    lost.
    """

    def __init__(self, table: TopicTable, pending: Mapping[str, Record]) -> None:
        self._table = table
        self._pending: dict[str, Record | None] = dict(pending)

    @property
    def is_waiting(self) -> bool:
        """Whether all changes so far have been returned, so `next` would wait."""
        return not self._pending

    def noted(self, subject: str, record: Record | None) -> None:
        """Add a change of a subject. For internal use. The table calls this method.

        The change replaces an earlier change of the same subject that hasn't been returned yet.
        """
        self._pending[subject] = record

    def skip(self, record: Record) -> None:
        """Skip the change to this record, because you have already read the record from the table."""
        if self._pending.get(record.subject) is record:
            del self._pending[record.subject]

    async def next(self, timeout: float | None = None) -> TableChange:
        """Wait for a subject to change, and return its latest state.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No subject changed within ``timeout`` seconds. The reader can still be used.
            ClosedError: The table, its connection or this reader was closed.

        If the table has failed, the call raises the error that stopped it.
        """
        deadline = deadline_of(timeout, asyncio.get_running_loop().time())
        while not self.is_closed:
            if self._pending:
                subject = next(iter(self._pending))
                return TableChange(subject, self._pending.pop(subject))
            await self._table._next_change(deadline, "a change of the table", timeout)  # noqa: SLF001  same module
        raise ClosedError("the reader of changes is closed")

    async def close(self) -> None:
        """Stop reading changes. The table itself stays open."""
        self._state = State.CLOSED
        self._table._watching.discard(self)  # noqa: SLF001  same module
        self._table._changed.set()  # noqa: SLF001


async def open_table(
    log: StreamLog, *, check: float, changed: Signal | None = None, **options: Any
) -> TopicTable:
    """Open a table. ``options`` are passed to `LogReader`. If the call is cancelled, no reader stays open.

    ``changed`` is set after each change. Several tables can share it, so that a task can wait for any of them.
    """
    log.newest_only = True
    records, position = await take_snapshot(log)
    present = {subject: record for subject, record in records.items() if not _is_removal(record.headers)}
    return TopicTable(log, present, await open_reader(log, position, **options), check, changed)
