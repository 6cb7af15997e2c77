"""Partition ownership of a sink. Each attempt to write a batch takes its partitions, and the commit releases them.

Only one query may write a topic. Spark identifies a query by its checkpoint. Every frontier record written by a sink
names the query and the attempt. A task therefore knows whether its query owns a partition, and whether another task of
the same attempt has already taken the partition. `ProducerFencedError` is raised if another query owns the topic.

The record of a commit names a new producer that never sends data. If a task that Spark has abandoned is still running,
its data comes from a replaced producer from then on, and every reader skips it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...client import JetStream
from ...errors import EpochsLostError, ProducerFencedError, WrongLastSequenceError
from ...protocol.epochs.frontier import Int
from ...protocol.epochs.records import EpochReading, FrontierEntry, data_subject, frontier_subject
from ...protocol.epochs.trackers import EpochPublisher
from ...protocol.topics.record import Kind, Record
from ...protocol.wire.header_names import MSG_ID
from ...streams.stream import Stream
from ...tables.session import context_of
from ...topics.epochs.history import EpochHistory
from ...topics.epochs.home import Outlet
from ...topics.log import Log
from ...topics.stream_log import StreamLog
from ..sink.message_ids import query_hash

__all__ = ["Owned", "SinkTopic", "WriteAttempt"]

_WRITER = "Jsc-Writer"
_RACES = 100  # attempts to write a frontier record. An attempt fails if another task writes one first


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """An attempt of Spark to write a batch."""

    query: str  # hash of the query's id
    run: str  # unique id of the attempt
    epoch: int  # number of the batch, which is the time of its epoch

    @classmethod
    def of_epoch(cls, query: str, run: str, epoch: int) -> WriteAttempt:
        return cls(query_hash(query), run, epoch)


class Owned(NamedTuple):
    """The last frontier record of a partition, and its owner.

    Attributes:
        query, run: The query and the attempt that wrote the record, or "" if no sink wrote it.
        begun: The sequence after which all data from attempts of the open batch is stored.
        last_seq: Sequence of the last message on the subject, which the next record must follow.
    """

    entry: FrontierEntry[int]
    query: str = ""
    run: str = ""
    begun: int = 0
    last_seq: int = 0

    @classmethod
    def from_record(cls, entry: FrontierEntry[int], record: Record, last_seq: int) -> Owned:
        parts = record.headers.get(_WRITER, "").split()
        if len(parts) != 3 or not parts[2].isdecimal():
            return cls(entry, begun=entry.seq, last_seq=last_seq)
        return cls(entry, parts[0], parts[1], int(parts[2]) or entry.seq, last_seq)

    def may_have(self, epoch: int) -> bool:
        """Return whether data of an epoch may have been stored before the record."""
        return any(time >= epoch for time in self.entry.record.upper) or self.entry.up_to + 1 < self.entry.seq

    @property
    def has_begun(self) -> bool:
        """Whether any data was sent or any epoch was completed."""
        record = self.entry.record
        return bool(record.upper) or record.lower != (Int().bottom,)

    def has_completed(self, epoch: int) -> bool:
        return all(time > epoch for time in self.entry.record.lower)


class SinkTopic:
    """A topic that a sink writes. Its coroutines run on the event loop of the session."""

    def __init__(self, js: JetStream, stream: Stream, topic: str, order: Int, partitions: int) -> None:
        self._context = context_of(js)
        self._stream, self._order = stream, order
        self.name: str = topic
        self.partitions: int = partitions

    def _history(self, partition: int) -> EpochHistory[int]:
        log = StreamLog(self._context, self._stream, f"{self.name}.{partition}.*")
        return EpochHistory(log, self._order, self.name)

    async def read_owner(self, partition: int) -> Owned | None:
        """Return the last frontier record of a partition and its owner, or None if the partition has no record."""
        entry, record, last_seq = await self._history(partition).last_frontier(partition)
        return None if entry is None or record is None else Owned.from_record(entry, record, last_seq)

    async def is_completed(self, attempt: WriteAttempt) -> bool:
        """Return whether the batch is committed. Raises `ProducerFencedError` if another query owns the topic.

        A commit completes partition 0 first, so only this partition is checked.
        """
        owned = await self.read_owner(0)
        if owned is not None:
            self._check_owner(0, owned, attempt)
        return owned is not None and owned.has_completed(attempt.epoch)

    async def take_partition(self, partition: int, attempt: WriteAttempt) -> Owned:
        """Take the partition, unless another task of the attempt has taken it.

        Raises `ProducerFencedError` if another query owns the partition.
        """
        for _ in range(_RACES):
            owned = await self.read_owner(partition)
            if owned is not None and self._check_owner(partition, owned, attempt):
                return owned
            history = self._history(partition)
            outlet = _Outlet(history.log, self.name, partition, attempt, owned)
            try:
                await history.take_partition(partition, outlet.record, start=None)
            except _Raced:
                pass
        raise ProducerFencedError(frontier_subject(self.name, partition))

    def _check_owner(self, partition: int, owned: Owned, attempt: WriteAttempt) -> bool:
        """Return whether this attempt owns the partition. Raises `ProducerFencedError` if another query owns it."""
        if owned.query != attempt.query and (owned.query or owned.has_begun):
            raise ProducerFencedError(frontier_subject(self.name, partition), None, owned.entry.seq)
        return owned.run == attempt.run

    async def complete(self, partition: int, attempt: WriteAttempt, *, written: bool) -> None:
        """Complete the epoch of the batch and all earlier epochs in a partition. All data must be stored.

        Args:
            partition: The partition.
            attempt: The attempt that has written the batch.
            written: Whether the attempt wrote to this partition. If so, it must still own the partition.

        Raises:
            ProducerFencedError: Another producer owns the partition now.
        """
        subject = frontier_subject(self.name, partition)
        owned = await self.read_owner(partition)
        if owned is not None and owned.query == attempt.query and owned.has_completed(attempt.epoch):
            return
        if not written:
            owned = await self.take_partition(partition, attempt)
        if owned is None or not self._check_owner(partition, owned, attempt):
            raise ProducerFencedError(subject, None, None if owned is None else owned.entry.seq)
        log, last = self._history(partition).log, owned.entry
        end = (await log.extent()).last_seq
        core = EpochPublisher.restored(self._order, last.record, [attempt.epoch])
        record = core.advance(attempt.epoch + 1)
        assert record is not None
        producer = secrets.token_hex(8)
        entry = FrontierEntry(record, 0, producer, end, last.producer)
        for _ in range(_RACES):
            try:
                await log.append(
                    record.to_json(self._order),
                    subject=subject,
                    kind=Kind.FRONTIER,
                    headers={**entry.headers, _WRITER: f"{attempt.query} {attempt.run} 0"},
                    expected=owned.last_seq,
                    msg_id=f"{self.name}.{partition}/{producer}/f{last.seq}",
                )
                return
            except WrongLastSequenceError as error:
                owned = await self.read_owner(partition)
                # If the last valid record is still the same, no other attempt has taken over. Somebody stored an
                # invalid message instead, so retry.
                if owned is None or owned.entry.seq != last.seq:
                    raise ProducerFencedError(subject, last.seq) from error
        raise ProducerFencedError(subject, last.seq)

    async def stored(
        self, partition: int, attempt: WriteAttempt, owned: Owned, *, also_own: bool
    ) -> list[str]:
        """Return the message ids of all valid data that other attempts of the batch have stored in a partition.

        With ``also_own``, the data of this attempt is included.

        Raises:
            EpochsLostError: Some of the data was removed.
        """
        history = self._history(partition)
        reading: EpochReading[int] = EpochReading(self._order, self.name, [partition])
        ids: list[str] = []
        since = owned.begun - 1
        end = (await history.log.extent()).last_seq if also_own else owned.entry.seq
        while since < end:
            page = await history.page(since, end)
            # If the page doesn't begin with the record that opened the batch, data of the batch may have been removed.
            # Raise an error. Otherwise, the rows that were removed would seem to be missing, and would be stored again.
            if since < owned.begun and page.records and page.records[0].seq != owned.begun:
                raise EpochsLostError(
                    (attempt.epoch,), f"what follows frontier record {owned.begun} was removed"
                )
            for record in page.records:
                since = record.seq
                if (
                    reading.entry_of(record) is None
                    and reading.time_of(record) == attempt.epoch
                    and (known := record.headers.get(MSG_ID))
                ):
                    ids.append(known)
            if not page.records:
                break
        return ids

    def subject(self, partition: int) -> str:
        """Return the subject to which the data of a partition is published."""
        return data_subject(self.name, partition)


class _Raced(Exception):
    """Raised when another producer has written a frontier record in the meantime."""


class _Outlet(Outlet):
    """Outlet for the record that takes a partition. It writes nothing if another record was written since the check."""

    def __init__(
        self, log: Log, topic: str, partition: int, attempt: WriteAttempt, owned: Owned | None
    ) -> None:
        super().__init__(log, data_subject(topic, partition), frontier_subject(topic, partition))
        self._writer = f"{attempt.query} {attempt.run} {0 if owned is None else owned.begun}"
        self._seen = 0 if owned is None else owned.last_seq

    async def record(self, data: bytes, headers: Any, expected: int, msg_id: str | None) -> int:
        if expected != self._seen:
            raise _Raced
        try:
            return await super().record(data, {**headers, _WRITER: self._writer}, expected, msg_id)
        except WrongLastSequenceError:
            raise _Raced from None
