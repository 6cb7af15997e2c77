"""The messages of publishers of epochs, and their storage format.

The protocol has three messages. In a stream the first two are one: a frontier record says how the lower frontier
changed, and what both frontiers are after it, so that the last one of a partition is a snapshot for a new
subscriber.

A subscriber turns them into events.

Source: Strymon's publish-subscribe protocol.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from ...errors import ConfigError, PositionInvalidError, ProtocolError
from .frontier import Order

__all__ = [
    "Data",
    "DataMessage",
    "EpochPosition",
    "FrontierRecord",
    "FrontierUpdate",
    "InitialFrontierSnapshot",
    "LowerFrontierUpdate",
    "Message",
    "SubscriberEvent",
]

T = TypeVar("T", bound=Hashable)


class InitialFrontierSnapshot(msgspec.Struct, Generic[T], frozen=True):
    """Both frontiers, once and first."""

    lower: tuple[T, ...]
    upper: tuple[T, ...]


class LowerFrontierUpdate(msgspec.Struct, Generic[T], frozen=True):
    """How the lower frontier changed: each +1 or -1."""

    updates: tuple[tuple[T, int], ...]


class DataMessage(msgspec.Struct, Generic[T], frozen=True):
    """A batch of one time. ``data`` is not looked at: it may be encoded still."""

    time: T
    data: Any


Message: TypeAlias = InitialFrontierSnapshot[T] | LowerFrontierUpdate[T] | DataMessage[T]


class Data(msgspec.Struct, Generic[T], frozen=True):
    """Items of one time. ``whole``: nothing of that epoch was missed; false only without a filter."""

    time: T
    items: Any
    partition: Hashable
    seq: int
    whole: bool


class FrontierUpdate(msgspec.Struct, Generic[T], frozen=True):
    """The merged lower frontier changed; at first, all of it is new."""

    changes: tuple[tuple[T, int], ...]
    frontier: tuple[T, ...]


SubscriberEvent: TypeAlias = Data[T] | FrontierUpdate[T]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    v: Literal[1]
    updates: list[tuple[Any, Literal[1, -1]]]
    lower: list[Any]
    upper: list[Any]


class FrontierRecord(msgspec.Struct, Generic[T], frozen=True):
    """How the lower frontier changed, and both frontiers after it."""

    updates: tuple[tuple[T, int], ...]
    lower: tuple[T, ...]
    upper: tuple[T, ...]

    @property
    def snapshot(self) -> InitialFrontierSnapshot[T]:
        """The snapshot for a subscriber that starts after it."""
        return InitialFrontierSnapshot(self.lower, self.upper)

    @property
    def update(self) -> LowerFrontierUpdate[T]:
        """The update for a subscriber that was connected before it."""
        return LowerFrontierUpdate(self.updates)

    def to_json(self, order: Order[T]) -> bytes:
        """As it is stored."""
        encode = order.encode
        return msgspec.json.encode(
            _Stored(
                1,
                [(encode(time), 1 if change > 0 else -1) for time, change in self.updates],
                [encode(time) for time in self.lower],
                [encode(time) for time in self.upper],
            )
        )

    @classmethod
    def from_json(cls, data: bytes, order: Order[T]) -> FrontierRecord[T]:
        """Read a stored record.

        Raises:
            ProtocolError: It is not a frontier record, or one of another order or a newer version.
        """
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


class _Token(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    v: Literal[1]
    since: _Sequence
    missed: list[Any]
    frontiers: list[list[Any]]
    records: list[tuple[int, _Sequence]] = []
    stream: str = ""
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class EpochPosition(Generic[T]):
    """The position of a subscriber of epochs: everything that another one, in any process, needs to continue.

    Attributes:
        order: The order of its times. Ignored by comparisons.
        since: Stream sequence; all data of open epochs that is still needed is after it. To continue, start with the
            last frontier record of each partition up to there (or its first one, if that is later).
        missed: Of epochs at or before these something was missed.
        frontiers: Epochs completed by one of these frontiers were consumed.
        records: The sequence of that frontier record of each partition.
        stream, incarnation: The stream; as in `jsclient.Position`.
    """

    order: Order[T] = field(compare=False, repr=False)
    since: int
    missed: tuple[T, ...]
    frontiers: tuple[tuple[T, ...], ...]
    records: tuple[tuple[int, int], ...] = ()
    stream: str = ""
    incarnation: str = ""

    def to_json(self) -> str:
        """The position as a token."""
        encode = self.order.encode
        missed = [*map(encode, self.missed)]
        frontiers = [[*map(encode, frontier)] for frontier in self.frontiers]
        token = _Token(1, self.since, missed, frontiers, [*self.records], self.stream, self.incarnation)
        return msgspec.json.encode(token).decode()

    @classmethod
    def from_json(cls, token: str | bytes, order: Order[T]) -> EpochPosition[T]:
        """Read a token of `to_json`. ``order`` is that of the topic, `EpochTopic.order`.

        Raises:
            PositionInvalidError: It is not a token of `to_json`, or one of another order or a newer version.
        """
        try:
            read = msgspec.json.decode(token, type=_Token)
            missed = tuple(map(order.decode, read.missed))
            frontiers = tuple(tuple(map(order.decode, one)) for one in read.frontiers)
        except (msgspec.DecodeError, ConfigError, UnicodeError, RecursionError) as error:
            raise PositionInvalidError(
                f"{token!r:.200} is not a valid position in a topic of epochs: {error}"
            ) from None
        return cls(order, read.since, missed, frontiers, tuple(read.records), read.stream, read.incarnation)
