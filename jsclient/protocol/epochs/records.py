"""The storage format of epochs: subjects, headers, and ownership of a partition.

Partition 2 of the topic ``trades`` has two subjects, ``trades.2.data`` and ``trades.2.frontier``. The time of data is
a header, so that dropped data is never decoded.

A partition has one producer at a time. Each producer has a token, which is part of every message it writes. It starts
with a frontier record, and the server stores a frontier record only if it directly follows the last frontier record
that its producer knows. So a replaced producer cannot write frontier records any more. It can still send data, but
data without the token of the last frontier record before it comes from a replaced producer, and every reader skips
it. The server need not check this, so data can be sent without waiting.

A producer that takes over cannot know what its predecessor stores meanwhile. Its first record names the sequence up
to which it has read. As a snapshot it describes that sequence, and the predecessor's data counts up to the record
itself.

Any other message on these subjects is invalid. Every reader and producer skips, counts and reports it, and it changes
nothing. The server stores ``Nats-Expected-Last-Subject-Sequence`` with a record after checking it. A frontier record
without that header, such as a copy of an earlier record, is therefore invalid as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from ...errors import ConfigError, InvalidNameError, PositionInvalidError, ProtocolError, TopicMismatchError
from ..topics.record import Kind, Record
from ..topics.record_codec import is_copy, link_of
from ..topics.value_codec import Codec, codec_name
from ..wire.checks import check_count
from ..wire.names import check_publish_subject
from .frontier import Antichain, Int, Order, Product

__all__ = [
    "EPOCH",
    "MAX_PARTITIONS",
    "PRODUCER",
    "Data",
    "DataMessage",
    "EpochPosition",
    "EpochReading",
    "FrontierEntry",
    "FrontierRecord",
    "FrontierUpdate",
    "InitialFrontierSnapshot",
    "LowerFrontierUpdate",
    "Message",
    "Schema",
    "Skip",
    "SubscriberEvent",
    "check_partition",
    "check_topic",
    "data_headers",
    "data_subject",
    "frontier_subject",
    "make_schema",
    "order_name",
    "read_schema",
    "schema_key",
]

T = TypeVar("T", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class InitialFrontierSnapshot(msgspec.Struct, Generic[T], frozen=True):
    """Both frontiers of a partition, in the first message to a subscriber. No other message is a snapshot."""

    lower: tuple[T, ...]
    upper: tuple[T, ...]


class LowerFrontierUpdate(msgspec.Struct, Generic[T], frozen=True):
    """A change of the lower frontier: each added time with +1, and each removed time with -1."""

    updates: tuple[tuple[T, int], ...]


class DataMessage(msgspec.Struct, Generic[T], frozen=True):
    """A batch of data of one epoch. ``data`` is still encoded."""

    time: T
    data: Any


Message: TypeAlias = InitialFrontierSnapshot[T] | LowerFrontierUpdate[T] | DataMessage[T]


class Data(msgspec.Struct, Generic[T], frozen=True):
    """Items of one epoch from one partition. Returned by `EpochSubscription` and `LiveSubscription`.

    Attributes:
        time: The time of the epoch.
        items: The items of one `PartitionPublisher.send`, decoded.
        partition: Number of the partition.
        seq: Stream sequence of the message, or 0 if the topic is live.
        whole: False if other items of the epoch are missing, because they were sent before the subscription started.
            This only happens with ``filter=None``.
    """

    time: T
    items: Any
    partition: Hashable
    seq: int
    whole: bool


class FrontierUpdate(msgspec.Struct, Generic[T], frozen=True):
    """The frontier has moved, so some epochs are complete. Returned by `EpochSubscription` and `LiveSubscription`.

    The frontier consists of the earliest times for which data may still arrive. All earlier epochs are complete.

    Attributes:
        changes: Each time that was added (+1) or removed (-1). The first update adds all times of the frontier.
        frontier: The frontier after the change, merged from all partitions.
    """

    changes: tuple[tuple[T, int], ...]
    frontier: tuple[T, ...]


SubscriberEvent: TypeAlias = Data[T] | FrontierUpdate[T]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    v: Literal[1]
    updates: list[tuple[Any, Literal[1, -1]]]
    lower: list[Any]
    upper: list[Any]


class FrontierRecord(msgspec.Struct, Generic[T], frozen=True):
    """The change of the lower frontier, with both frontiers after the change."""

    updates: tuple[tuple[T, int], ...]
    lower: tuple[T, ...]
    upper: tuple[T, ...]

    @property
    def snapshot(self) -> InitialFrontierSnapshot[T]:
        """The snapshot for a subscriber that starts after this record."""
        return InitialFrontierSnapshot(self.lower, self.upper)

    @property
    def update(self) -> LowerFrontierUpdate[T]:
        """The update for a subscriber that was connected before this record."""
        return LowerFrontierUpdate(self.updates)

    def to_json(self, order: Order[T]) -> bytes:
        """Encode the record as it is stored."""
        encode = order.encode
        updates = [(encode(time), 1 if change > 0 else -1) for time, change in self.updates]
        stored = _Stored(1, updates, [*map(encode, self.lower)], [*map(encode, self.upper)])  # type: ignore[arg-type]
        return msgspec.json.encode(stored)

    @classmethod
    def from_json(cls, data: bytes, order: Order[T]) -> FrontierRecord[T]:
        """Read a stored record. Raises `ProtocolError` if it is not valid, or has another order or a newer version."""
        decode = order.decode
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            return cls(
                tuple((decode(time), change) for time, change in stored.updates),
                tuple(map(decode, stored.lower)),
                tuple(map(decode, stored.upper)),
            )
        except (msgspec.DecodeError, ConfigError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"not a frontier record: {data[:80]!r}: {error}") from None


_Sequence: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _EpochToken(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    v: Literal[1]
    since: _Sequence
    missed: list[Any]
    frontiers: list[list[Any]]
    records: list[tuple[int, _Sequence]] = []
    stream: str = ""
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class EpochPosition(Generic[T]):
    """A position in an epoch topic, from which a subscription in any process can continue.

    Returned by `EpochSubscription.position`. Store the position as JSON, and pass it to `EpochTopic.subscribe` as
    ``start``. Don't rely on the attributes, which describe what has been read.

    Attributes:
        order: The `Order` of the topic's times. Positions are compared without this attribute.
        since: The data of all epochs that haven't been consumed yet comes after this stream sequence.
        missed: The latest times for which data had been sent when the first subscription started. The subscription
            hasn't read that data, so epochs at or before any of these times may be incomplete.
        frontiers: The frontiers of this subscription and of those it continues, each with the earliest times that
            weren't complete. An epoch that any of them completes has been consumed, so its data is skipped.
        records: A ``(partition, sequence)`` pair for each partition. Its frontier is read from this sequence on.
        stream: Name of the stream.
        incarnation: Creation time of the stream, which reveals that the stream was deleted and created again.
    """

    order: Order[T] = field(compare=False, repr=False)
    since: int
    missed: tuple[T, ...]
    frontiers: tuple[tuple[T, ...], ...]
    records: tuple[tuple[int, int], ...] = ()
    stream: str = ""
    incarnation: str = ""

    def to_json(self) -> str:
        """Return the position as a JSON string, ready to be stored in a file or a database."""
        encode = self.order.encode
        missed = [*map(encode, self.missed)]
        frontiers = [[*map(encode, frontier)] for frontier in self.frontiers]
        token = _EpochToken(1, self.since, missed, frontiers, [*self.records], self.stream, self.incarnation)
        return msgspec.json.encode(token).decode()

    @staticmethod  # in a class method, pyright couldn't infer the type of times from the order
    def from_json(token: str | bytes, order: Order[S]) -> EpochPosition[S]:
        """Parse a token returned by `to_json`.

        Args:
            token: The JSON text.
            order: The order of the topic. See `EpochTopic.order`.

        Raises:
            PositionInvalidError: The token is malformed, is for a different order, or uses a newer format than this
                version of the library supports.
        """
        try:
            fields = msgspec.json.decode(token, type=_EpochToken)
            missed = tuple(map(order.decode, fields.missed))
            frontiers = tuple(tuple(map(order.decode, frontier)) for frontier in fields.frontiers)
        except (msgspec.DecodeError, ConfigError, UnicodeError, RecursionError) as error:
            raise PositionInvalidError(
                f"{token!r:.200} is not a valid position in a topic of epochs: {error}"
            ) from None
        return EpochPosition(
            order, fields.since, missed, frontiers, tuple(fields.records), fields.stream, fields.incarnation
        )


Skip = Callable[[Record, ProtocolError], None]
"""A function that receives an invalid record that was skipped, and the reason."""

EPOCH: Final = "Jsc-Epoch"
PRODUCER: Final = "Jsc-Producer"
_AFTER: Final = "Jsc-After-Producer"  # the producer that was replaced
_UP_TO: Final = "Jsc-Up-To"  # the sequence up to which the data of that producer was read

_KNOWN_TIMES: Final = 1024


def data_subject(topic: str, partition: int) -> str:
    """Return the subject of a partition's data."""
    return f"{topic}.{partition}.data"


def frontier_subject(topic: str, partition: int) -> str:
    """Return the subject of a partition's frontier records."""
    return f"{topic}.{partition}.frontier"


def data_headers(order: Order[T], time: T, producer: str) -> dict[str, str]:
    """Return the headers of data. Raises `ConfigError` if the time is not valid."""
    return {EPOCH: msgspec.json.encode(order.encode(time)).decode(), PRODUCER: producer}


class FrontierEntry(msgspec.Struct, Generic[T], frozen=True):
    """A frontier record in the stream.

    Attributes:
        seq: Its sequence, or 0 if it is not stored yet.
        producer: The token of the producer that wrote it.
        before: The token of the producer that was replaced, or "" for the first producer.
        up_to: The sequence up to which its upper frontier includes all data of the partition. This is the record's
            sequence, except for the first record of a producer that took over.
    """

    record: FrontierRecord[T]
    seq: int
    producer: str
    up_to: int
    before: str = ""
    time_ns: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """The record's headers, without the kind."""
        headers = {PRODUCER: self.producer}
        return {**headers, _AFTER: self.before, _UP_TO: str(self.up_to)} if self.before else headers

    def owner_at(self, seq: int) -> str:
        """Return the producer whose data counts after this sequence, according to this record."""
        return self.before if self.before and seq < self.seq else self.producer

    @classmethod
    def from_record(cls, record: Record, order: Order[T]) -> FrontierEntry[T]:
        """Read a record. Raises `ProtocolError` if it is not a frontier record."""
        headers = record.headers
        producer, before, up_to = (headers.get(name, "") for name in (PRODUCER, _AFTER, _UP_TO))
        number = up_to.isascii() and up_to.isdecimal() and len(up_to) <= 20
        if record.kind is not Kind.FRONTIER or not producer or (before and not number):
            raise ProtocolError(f"message {record.seq} on {record.subject!r} is not a frontier record")
        if link_of(headers) is None:
            raise ProtocolError(
                f"message {record.seq} on {record.subject!r} is not a frontier record: the server did not check which "
                "one it follows"
            )
        frontiers = FrontierRecord.from_json(record.data, order)
        return cls(
            frontiers, record.seq, producer, int(up_to) if before else record.seq, before, record.time_ns
        )


class EpochReading(Generic[T]):
    """Converts the records of a stream to messages. It skips records that do not count, and reports invalid records.

    Attributes:
        owners: The producer whose data counts now, by partition. The dict is replaced on a change, never modified.
        joined: The sequence of each partition's snapshot. Earlier records are not checked.
        refused: Number of data messages skipped because their producer had been replaced, or because they name none.
    """

    def __init__(
        self, order: Order[T], topic: str, partitions: Iterable[int], skipped: Skip | None = None
    ) -> None:
        self.order = order
        self.owners: dict[int, str] = {}
        self.joined: dict[int, int] = {}
        self.refused: int = 0
        self._skipped = skipped
        self._partitions = {
            subject(topic, partition): partition
            for partition in partitions
            for subject in (data_subject, frontier_subject)
        }
        self._frontiers = {frontier_subject(topic, partition) for partition in self._partitions.values()}
        self._times: dict[str, T] = {}

    def partition_of(self, record: Record) -> int | None:
        """Return the partition of a record, or None if its subject belongs to no partition."""
        return self._partitions.get(record.subject)

    def time_of(self, record: Record) -> T | None:
        """Return the time of data that counts, or None for any other record."""
        partition = self._partitions.get(record.subject)
        if partition is None or record.subject in self._frontiers:
            return None
        if record.headers.get(PRODUCER) != self.owners.get(partition, ""):
            self.refused += 1
            return None
        return self._time(record)

    def entry_of(self, record: Record) -> FrontierEntry[T] | None:
        """Return the frontier entry in a record, or None. The producer of the entry owns the partition from now on."""
        entry = self._entry(record)
        if entry is not None:
            self._own(record, entry)
        return entry

    def _entry(self, record: Record) -> FrontierEntry[T] | None:
        if record.subject not in self._frontiers:
            return None
        try:
            return FrontierEntry.from_record(record, self.order)
        except ProtocolError as error:
            self._skip(record, error)
            return None

    def _own(self, record: Record, entry: FrontierEntry[T]) -> None:
        partition = self._partitions[record.subject]
        if self.owners.get(partition) != entry.producer:
            self.owners = {**self.owners, partition: entry.producer}

    def _skip(self, record: Record, error: ProtocolError) -> None:
        if self._skipped is not None:
            self._skipped(record, error)

    def _time(self, record: Record) -> T | None:
        if is_copy(record.headers):
            self._skip(
                record, ProtocolError(f"message {record.seq} on {record.subject!r} is a copy of another one")
            )
            return None
        text = record.headers.get(EPOCH, "")
        if text in self._times:
            return self._times[text]
        try:
            time = self.order.decode(msgspec.json.decode(text))
        except (msgspec.DecodeError, ConfigError, UnicodeError, RecursionError) as error:
            self._skip(
                record,
                ProtocolError(
                    f"message {record.seq} on {record.subject!r} has no valid time: {text!r:.60}: {error}"
                ),
            )
            return None
        if len(self._times) >= _KNOWN_TIMES:
            self._times.clear()
        self._times[text] = time
        return time

    def message(self, record: Record, lower: Callable[[int], Antichain[T]]) -> tuple[int, Message[T]] | None:
        """Return the partition and message of the next record, or None if it is skipped. Data is not decoded.

        ``lower`` returns the lower frontier of a partition as known to the reader.
        """
        partition = self._partitions.get(record.subject)
        if partition is None:
            return None
        if record.subject not in self._frontiers:
            time = self.time_of(record)
            return None if time is None else (partition, DataMessage(time, record.data))
        entry = self._entry(record)
        if entry is None:
            return None
        if entry.producer == self.owners.get(partition):
            return partition, entry.record.update
        # For a new producer's first record, compute the change from the frontier that the reader knows.
        old, new = lower(partition), entry.record.lower
        reopened = [time for time in new if not old.some_below(time)]
        if reopened and record.seq > self.joined.get(partition, 0):
            error = f"message {record.seq} on {record.subject!r} goes back to {reopened[0]!r}, which was completed"
            self._skip(record, ProtocolError(error))
            return None
        self._own(record, entry)
        removed = [(time, -1) for time in old if time not in new]
        return partition, LowerFrontierUpdate((*removed, *((time, 1) for time in new if time not in old)))


MAX_PARTITIONS: Final = 4096


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of a topic's order and codec, and the number of its partitions, which are numbered from 0."""

    v: Literal[1]
    order: str
    codec: str
    partitions: int

    def to_json(self) -> str:
        """Encode the schema as it is stored."""
        return msgspec.json.encode(self).decode()

    def check_arguments(self, topic: str, order: Order[Any], codec: Codec, partitions: int | None) -> None:
        """Raise `TopicMismatchError` if the arguments differ. If ``partitions`` is None, any number is accepted."""
        expected = {"order": order_name(order), "codec": codec_name(codec), "partitions": partitions}
        mismatches: list[tuple[str, Any, Any]] = [
            (field, value, getattr(self, field))
            for field, value in expected.items()
            if value is not None and value != getattr(self, field)
        ]
        if mismatches:
            raise TopicMismatchError(topic, mismatches)


def schema_key(topic: str) -> str:
    """Return the key of a topic's schema in the metadata of its stream."""
    return f"jsc-epochs.{topic}"


def read_schema(text: str, topic: str) -> Schema:
    """Read a schema. Raises `ProtocolError` if it is not valid or has a newer version."""
    try:
        return msgspec.json.decode(text, type=Schema)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"the schema of topic {topic!r} cannot be read: {text!r:.100}: {error}") from None


def make_schema(order: Order[Any], codec: Codec, partitions: int) -> Schema:
    """Return the schema of a topic with this order, codec and number of partitions."""
    return Schema(1, order_name(order), codec_name(codec), partitions)


def order_name(order: Order[Any]) -> str:
    """Return the name of an order in a schema: its ``name``, otherwise its class."""
    if isinstance(order, Int):
        return "int" if order.bottom == 0 else f"int({order.bottom})"
    if isinstance(order, Product):
        return f"product({', '.join(map(order_name, order.orders))})"
    return str(getattr(order, "name", "") or type(order).__qualname__)


def check_topic(name: str) -> str:
    """Return ``name`` if it is valid for a topic: one or more subject tokens. Raises `InvalidNameError`."""
    check_publish_subject(name)
    if len(name) > 200:
        raise InvalidNameError("topic", name, "it may have 200 characters")
    return name


def check_partition(partition: int, partitions: int) -> int:
    """Return ``partition`` if it is in the range 0 to ``partitions - 1``. Raises `ConfigError`."""
    return check_count("partition", partition, 0, partitions - 1)
