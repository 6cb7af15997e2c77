"""How a topic of epochs lies in a stream: subjects, headers, and who may write.

Partition 2 of the topic ``trades`` has two subjects, ``trades.2.data`` and ``trades.2.frontier``. The time of data is a
header, so that what is dropped is never decoded.

A partition has one producer at a time. Each has a token of its own, in every message it writes. It begins with a
frontier record, and every frontier record is stored only if it directly follows the one its producer knows, so a
producer whose place was taken can write none any more. Data it can still send: what does not have the token of the last
frontier record before it was sent by a producer that was replaced, and is passed over, by every reader alike. That
needs nothing of the server, and lets data be sent without waiting.

A producer that takes over cannot know what its predecessor stored while it looked. Its first record says up to where it
has looked; as a snapshot it is as of there, and up to where it lies the predecessor's data counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from ...errors import ConfigError, ProtocolError
from ..topics.record import Kind, Record
from .frontier import Antichain, Order
from .messages import DataMessage, FrontierRecord, LowerFrontierUpdate, Message

__all__ = [
    "EPOCH",
    "PRODUCER",
    "EpochReading",
    "FrontierEntry",
    "data_headers",
    "data_subject",
    "frontier_subject",
]

T = TypeVar("T", bound=Hashable)

EPOCH: Final = "Jsc-Epoch"
PRODUCER: Final = "Jsc-Producer"
_AFTER: Final = "Jsc-After-Producer"  # whose place a producer takes
_UP_TO: Final = "Jsc-Up-To"  # what it has seen of its data

_KNOWN_TIMES: Final = 1024


def data_subject(topic: str, partition: int) -> str:
    """Where a partition's data goes."""
    return f"{topic}.{partition}.data"


def frontier_subject(topic: str, partition: int) -> str:
    """Where its frontier records go."""
    return f"{topic}.{partition}.frontier"


def data_headers(order: Order[T], time: T, producer: str) -> dict[str, str]:
    """The headers of data. Raises `ConfigError` if it is no time."""
    return {EPOCH: msgspec.json.encode(order.encode(time)).decode(), PRODUCER: producer}


class FrontierEntry(msgspec.Struct, Generic[T], frozen=True):
    """A frontier record as it lies in the stream.

    Attributes:
        record: What it says.
        seq: Where it lies; 0: it is not stored yet.
        producer: Who wrote it.
        up_to: Up to here its upper frontier has all data of the partition: where it lies, but for the first record of a
            producer that took over.
        before: Who wrote before that, "" for the first producer.
        time_ns: When it was stored.
    """

    record: FrontierRecord[T]
    seq: int
    producer: str
    up_to: int
    before: str = ""
    time_ns: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """Its headers, but for the kind."""
        headers = {PRODUCER: self.producer}
        return {**headers, _AFTER: self.before, _UP_TO: str(self.up_to)} if self.before else headers

    def owner_at(self, seq: int) -> str:
        """Whose data counts that follows this sequence, as far as this record tells."""
        return self.before if self.before and seq < self.seq else self.producer

    @classmethod
    def read(cls, record: Record, order: Order[T]) -> FrontierEntry[T]:
        """The entry in a record.

        Raises:
            ProtocolError: There is none in it.
        """
        headers = record.headers
        producer, before, up_to = (headers.get(name, "") for name in (PRODUCER, _AFTER, _UP_TO))
        number = up_to.isascii() and up_to.isdecimal() and len(up_to) <= 20
        if record.kind is not Kind.FRONTIER or not producer or (before and not number):
            raise ProtocolError(
                f"message {record.seq} on {record.subject!r} is no frontier record of a producer"
            )
        said = FrontierRecord.from_json(record.data, order)
        return cls(said, record.seq, producer, int(up_to) if before else record.seq, before, record.time_ns)


class EpochReading(Generic[T]):
    """Makes messages of a stream's records, and passes over what does not count.

    Attributes:
        owners: Whose data counts now, by partition. Replaced when that changes.
        refused: Messages that were passed over because they came from a producer that had been replaced, or from none.
    """

    def __init__(self, order: Order[T], topic: str, partitions: Iterable[int]) -> None:
        self.order = order
        self.owners: dict[int, str] = {}
        self.refused = 0
        self._partitions = {
            subject(topic, partition): partition
            for partition in partitions
            for subject in (data_subject, frontier_subject)
        }
        self._frontiers = {frontier_subject(topic, partition) for partition in self._partitions.values()}
        self._times: dict[str, T] = {}

    def partition_of(self, record: Record) -> int | None:
        """The partition that a record belongs to; None: none of ours."""
        return self._partitions.get(record.subject)

    def time_of(self, record: Record) -> T | None:
        """The time of data that counts; None: it is no data, or does not count."""
        partition = self._partitions.get(record.subject)
        if partition is None or record.subject in self._frontiers:
            return None
        if record.headers.get(PRODUCER) != self.owners.get(partition, ""):
            self.refused += 1
            return None
        return self._time(record)

    def entry_of(self, record: Record) -> FrontierEntry[T] | None:
        """The frontier record in a record, whose producer owns the partition from now on; None: it is none."""
        if record.subject not in self._frontiers:
            return None
        entry = FrontierEntry.read(record, self.order)
        partition = self._partitions[record.subject]
        if self.owners.get(partition) != entry.producer:
            self.owners = {**self.owners, partition: entry.producer}
        return entry

    def _time(self, record: Record) -> T:
        text = record.headers.get(EPOCH, "")
        if text in self._times:
            return self._times[text]
        try:
            time = self.order.decode(msgspec.json.decode(text))
        except (msgspec.DecodeError, ConfigError, RecursionError) as error:
            raise ProtocolError(
                f"message {record.seq} on {record.subject!r} has no time: {text!r:.60}: {error}"
            ) from None
        if len(self._times) >= _KNOWN_TIMES:
            self._times.clear()
        self._times[text] = time
        return time

    def message(self, record: Record, lower: Callable[[int], Antichain[T]]) -> tuple[int, Message[T]] | None:
        """The partition and message of a record; data is not decoded. None: there is none in it that counts.

        Args:
            record: The next one.
            lower: The lower frontier of a partition as the reader knows it.

        Raises:
            ProtocolError: It is of our subjects and makes no sense.
        """
        partition = self.partition_of(record)
        if partition is None:
            return None
        before = self.owners.get(partition)
        entry = self.entry_of(record)
        if entry is None:
            time = self.time_of(record)
            return None if time is None else (partition, DataMessage(time, record.data))
        if entry.producer == before:
            return partition, entry.record.update
        # What the first record of a producer changes is the difference to what the reader knows.
        known, now = lower(partition), entry.record.lower
        gone = [(time, -1) for time in known if time not in now]
        return partition, LowerFrontierUpdate((*gone, *((time, 1) for time in now if time not in known)))
