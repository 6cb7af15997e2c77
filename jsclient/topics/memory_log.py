"""A log in this process."""

from __future__ import annotations

import bisect
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter

from .._runtime.context import Closable
from .._runtime.event_hub import EventHub, OnEvent
from .._runtime.tasks import Tasks
from ..errors import ClosedError, ConfigError, JetStreamError, WrongLastSequenceError
from ..protocol.events import ErrorRaised, Event
from ..protocol.topics.links import MissingRule
from ..protocol.topics.position import Extent, Position
from ..protocol.topics.record import Kind, Record, RecordHeaders
from ..protocol.topics.record_codec import kind_headers
from ..protocol.wire.checks import check_count
from ..protocol.wire.header_names import EXPECTED_LAST_SUBJECT_SEQUENCE, MSG_ID
from ..protocol.wire.names import check_filter_subject, has_wildcard, subject_matches
from .log import Feed, Log, Page, Push, Receive

__all__ = ["MemoryLog"]


class MemoryLog(Log):
    """A log in this process, which needs no server. Use it in tests. The records are lost when the process ends.

    Args:
        subject: The subject of the records. If it contains wildcards, records of several subjects can be appended.
        stream: Name of the log, which is part of positions.
        max_records: Maximum number of records to keep. When there are more, the oldest are removed. By default, all
            records are kept.
        on_event: A function to call with every event. By default, events are logged as warnings.

    Raises:
        ConfigError: ``max_records`` isn't a positive integer.
        InvalidNameError: The subject is invalid.
    """

    def __init__(
        self,
        subject: str = ">",
        *,
        stream: str = "memory",
        max_records: int | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        if max_records is not None:
            check_count("max_records", max_records)
        self.subject: str = check_filter_subject(subject)
        self.is_one_subject: bool = not has_wildcard(subject)
        self.stream = stream
        self._hub = EventHub(on_event)
        self.tasks: Tasks = Tasks(self.report)
        self.open: set[Closable] = set()
        self._incarnation = secrets.token_hex(8)
        self._max_records = max_records
        self._records: deque[Record] = deque()
        self._last_seq = 0
        self._last_of: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._pushes: dict[str, Receive] = {}
        self._closed = False

    def emit(self, event: Event) -> None:
        self._hub.emit(event)

    def report(self, error: BaseException) -> None:
        if not isinstance(error, JetStreamError):
            raise error
        self.emit(ErrorRaised(error=error))

    async def wait_ready(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed")

    async def extent(self) -> Extent:
        first, last = (self._records[0], self._records[-1]) if self._records else (None, None)
        return Extent(
            self.stream,
            self._incarnation,
            self._last_seq + 1 if first is None else first.seq,
            self._last_seq,
            0 if first is None else first.time_ns,
            0 if last is None else last.time_ns,
        )

    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        await self.wait_ready()
        records: list[Record] = []
        start = bisect.bisect_right(self._records, since, key=attrgetter("seq"))
        for index in range(start, len(self._records)):
            record = self._records[index]
            max_bytes -= record.size
            if records and (len(records) >= limit or max_bytes < 0):
                return Page(records, more=True)
            records.append(record)
        return Page(records, up_to=self._last_seq)

    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        await self.wait_ready()
        times = [(record.seq, record.time_ns) for record in self._records if record.time_ns >= time_ns]
        extent = await self.extent()
        return extent.after_time(time_ns, times, allow_truncated=allow_truncated) or extent.end

    async def last(self, subject: str | None = None) -> Record | None:
        await self.wait_ready()
        for record in reversed(self._records):
            if subject is None or subject_matches(subject, record.subject):
                return record
        return None

    async def append(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        kind: Kind = Kind.VALUE,
        headers: Mapping[str, str] | None = None,
        expected: int | None = None,
        msg_id: str | None = None,
    ) -> Position:
        await self.wait_ready()
        subject = self.own_subject(subject)
        if msg_id is not None and msg_id in self._ids:
            return Position(self.stream, self._incarnation, self._ids[msg_id])
        last = self._last_of.get(subject, 0)
        if not self._records or last < self._records[0].seq:
            last = 0  # the record was removed, so the subject counts as empty, as it does on a server
        if expected is not None and expected != last:
            raise WrongLastSequenceError(400, 10071, f"wrong last sequence: {last}")
        self._last_seq += 1
        sent = {} if msg_id is None else {MSG_ID: msg_id}
        if expected is not None:
            sent[EXPECTED_LAST_SUBJECT_SEQUENCE] = str(expected)
        record = Record(
            seq=self._last_seq,
            time_ns=time.time_ns(),
            subject=subject,
            data=bytes(data),
            headers=RecordHeaders({**(headers or {}), **kind_headers(kind), **sent}),
            previous=self._last_seq - 1,
            kind=kind,
            origin=Position(self.stream, self._incarnation, 0),
        )
        self._last_of[subject] = record.seq
        if msg_id is not None:
            self._ids[msg_id] = record.seq
        self._records.append(record)
        while self._max_records is not None and len(self._records) > self._max_records:
            self._ids.pop(self._records.popleft().headers.get(MSG_ID, ""), None)
        for push in list(self._pushes.values()):
            push([record])
        return Position(self.stream, self._incarnation, record.seq, record.time_ns)

    def feed(self, push: Push) -> Feed:
        if push not in ("auto", "consumer", "republish", None):
            raise ConfigError(f"push is {push!r:.40}: 'auto', 'consumer', 'republish' or None is needed")
        return _MemoryFeed(self._pushes)

    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        return MissingRule(allow_truncated=allow_truncated)

    async def close(self) -> None:
        """Close the log and its open readers. Its records are gone, so positions in the log become useless.

        Appending to the log and requesting its records then raises `ClosedError`. Readers still return the records that
        they have already received.
        """
        self._closed = True
        for reader in list(self.open):
            await reader.abandon()
        await self.tasks.cancel()
        await self._hub.close()


class _MemoryFeed(Feed):
    def __init__(self, pushes: dict[str, Receive]) -> None:
        self._pushes = pushes

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        self._pushes[id] = receive

    async def close(self, id: str) -> None:
        self._pushes.pop(id, None)
