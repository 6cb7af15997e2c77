"""A record of a topic, and the queue of a reader."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NoReturn

import msgspec

from ...errors import ConfigError
from ..wire.headers import Headers
from .position import Position

__all__ = ["NO_HEADERS", "Aside", "Kind", "Record", "RecordHeaders", "RecordQueue", "sizes"]


class Kind(enum.Enum):
    """What a record means: an ordinary value, or a marker that ends the topic. The value of `Record.kind`.

    * ``VALUE``: An ordinary record.
    * ``FINISH``: The last record of a subject. The producer has finished the topic, with this payload as the result.
    * ``FAIL``: The last record of a subject, whose payload is the reason. The producer has ended the topic because of a
      failure.
    * ``FRONTIER``: Not a value, but the progress of a partition. Stored only by the publishers of an epoch topic.
    """

    VALUE = "value"
    FINISH = "finish"
    FAIL = "fail"
    FRONTIER = "frontier"


class RecordHeaders(Headers):
    """The headers of a record. They are immutable, because records may share them. A ``copy()`` is mutable."""

    __slots__ = ("size",)

    size: int
    """Approximate size of names and values in bytes."""

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        own = headers if type(headers) is Headers else Headers(headers)
        dict.update(self, own)
        self._repeated = {name: list(values) for name, values in own._repeated.items()}  # noqa: SLF001  also a Headers
        self.size = sum(map(len, own)) + sum(map(len, own.values()))
        for values in self._repeated.values():
            self.size += sum(map(len, values))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the headers of a record are immutable: change the result of copy()")


for _name in (
    *("__setitem__", "__delitem__", "__ior__", "add", "update", "setdefault"),
    *("pop", "popitem", "clear"),
):
    setattr(RecordHeaders, _name, RecordHeaders._refuse)  # noqa: SLF001  the class is still being defined


NO_HEADERS: Final = RecordHeaders()


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # a record is never part of a cycle
    """A message of a topic, with its place in the stream. Returned by the readers of topics and events.

    Records are immutable, and safe to share between tasks and threads.

    Attributes:
        seq: Sequence of the message in its stream. Sequences grow from record to record, but may have gaps.
        time_ns: The time at which the server stored the record, as Unix time in nanoseconds, or 0 if unknown.
        subject: The subject to which the record was published.
        data: The payload.
        headers: The headers, which are immutable. Use ``headers.copy()`` to get headers that you can change.
        previous: Stream sequence of the record before this one, 0 if this is the first record, or None if the
            predecessor is unknown. If the topic has several subjects, this may be the predecessor with the same
            subject. Readers need the sequence to notice missing records. Most applications can ignore it.
        kind: ``Kind.VALUE`` for an ordinary record, or ``Kind.FINISH`` or ``Kind.FAIL`` for the marker that ends the
            topic.
        origin: Identifies the stream, so that `position` can be computed. None if the record wasn't read from a log.
    """

    seq: int
    time_ns: int = 0
    subject: str = ""
    data: bytes = b""
    headers: Headers = msgspec.field(default_factory=lambda: NO_HEADERS)
    previous: int | None = None
    kind: Kind = Kind.VALUE
    origin: Position | None = None

    @property
    def position(self) -> Position:
        """The position right after this record. Save it to continue with the next record later.

        Pass it to `Topic.each` or `Topic.since`, in this process or any other.

        If the topic has several subjects and is read with the push ``"republish"``, save the position of the reader
        instead. Records of different subjects may then be returned out of order, so earlier records may still follow
        this one.

        Raises:
            ConfigError: The record wasn't read from a log, so it has no position.
        """
        if self.origin is None:
            raise ConfigError(f"record {self.seq} was not read from a log: it has no position")
        return self.origin.at(self.seq, self.time_ns)

    @property
    def is_last(self) -> bool:
        """Whether the producer ended the topic with this record.

        If the topic's subject contains wildcards, only the subject of this record has ended. Other subjects may
        continue.
        """
        return self.kind is Kind.FINISH or self.kind is Kind.FAIL

    @property
    def size(self) -> int:
        """Approximate size of the subject, the payload and the headers, in bytes. It limits the queues of readers."""
        size = len(self.subject) + len(self.data)
        if headers := self.headers:
            size += headers.size if isinstance(headers, RecordHeaders) else RecordHeaders(headers).size
        return size


def sizes(records: Sequence[Record]) -> list[int]:
    """Return the size of each record in bytes: subject, payload and headers."""
    try:
        # Compute the sizes inline, because a property call for each record is slow.
        return [len(one.subject) + len(one.data) + one.headers.size for one in records]  # type: ignore[attr-defined]
    except AttributeError:  # records of an application's own log may have another type of headers
        return [record.size for record in records]


@dataclass(slots=True)
class RecordQueue:
    """A bounded queue. When empty it accepts a record of any size, which could not be read otherwise.

    Attributes:
        max_records, max_bytes: The capacity.
        kept: Sequence of the position after the last record taken.
        kept_time_ns: Time stamp of the last record taken.
        pending_bytes: Bytes in the queue.
    """

    max_records: int
    max_bytes: int
    kept: int = 0
    kept_time_ns: int = 0
    pending_bytes: int = 0
    _records: deque[Record] = field(default_factory=deque)
    _sizes: deque[int] = field(default_factory=deque)  # sizes of the records
    # Maps the sequence of a record to the sequence from which to resume after that record. Contains only records whose
    # position is lower than their own sequence, because an earlier record of another subject may be missing.
    _positions: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_half_empty(self) -> bool:
        """Whether half of the capacity is free."""
        return len(self._records) <= self.max_records // 2 and self.pending_bytes <= self.max_bytes // 2

    @property
    def room(self) -> tuple[int, int]:
        """The number of records and bytes that may still be added, at least 1 of each."""
        return max(self.max_records - len(self._records), 1), max(self.max_bytes - self.pending_bytes, 1)

    def has_room(self, record: Record) -> bool:
        if not self._records:
            return True
        return len(self._records) < self.max_records and self.pending_bytes + record.size <= self.max_bytes

    def add_record(self, record: Record, kept: int) -> None:
        """Add a record. ``kept`` is the sequence of the position after it."""
        self._records.append(record)
        size = record.size
        self._sizes.append(size)
        self.pending_bytes += size
        if kept != record.seq:
            self._positions[record.seq] = kept

    def extend(self, records: Sequence[Record]) -> bool:
        """Add consecutive records. Return False, and add none, if they do not all fit."""
        added = sizes(records)
        pending_bytes = self.pending_bytes + sum(added)
        if len(self._records) + len(records) > self.max_records or pending_bytes > self.max_bytes:
            return False
        self._records += records
        self._sizes += added
        self.pending_bytes = pending_bytes
        return True

    def take_records(self, limit: int) -> list[Record]:
        records = self._records
        if limit >= len(records):
            taken = list(records)
            records.clear()
            self._sizes.clear()
            self.pending_bytes = 0
        else:
            taken = [records.popleft() for _ in range(limit)]
            self.pending_bytes -= sum([self._sizes.popleft() for _ in taken])
        if taken:
            last = taken[-1]
            self.kept, self.kept_time_ns = last.seq, last.time_ns
            if self._positions:
                # Remove the entries of all records taken. The entry of the last one determines `kept`.
                for record in taken:
                    self.kept = self._positions.pop(record.seq, record.seq)
        return taken

    def take_one(self) -> Record | None:
        """Take one record, or return None.

        Faster than ``take_records(1)``, because an ``async for`` calls it for each record.
        """
        if not self._records:
            return None
        record = self._records.popleft()
        self.pending_bytes -= self._sizes.popleft()
        seq = record.seq
        self.kept = self._positions.pop(seq, seq) if self._positions else seq
        self.kept_time_ns = record.time_ns
        return record


@dataclass(slots=True)
class Aside:
    """Pushed records that arrived before their predecessors. They are offered again after the history was read."""

    max_records: int
    max_bytes: int
    _records: list[Record] = field(default_factory=list)
    _bytes: int = 0

    def add_record(self, record: Record) -> bool:
        """Add a record. Return False if it does not fit, because it is then read from the history later."""
        size = self._bytes + record.size
        if len(self._records) >= self.max_records or size > self.max_bytes:
            return False
        self._records.append(record)
        self._bytes = size
        return True

    def take_all(self) -> list[Record]:
        """Remove and return all records, in order."""
        records = sorted(self._records, key=attrgetter("seq"))
        self._records, self._bytes = [], 0
        return records
