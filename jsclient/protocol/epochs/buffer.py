"""Whole epochs: data is kept until its epoch is completed, and then returned at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from .frontier import Antichain, Order, in_order
from .trackers import Data

__all__ = ["Epoch", "EpochBuffer"]

T = TypeVar("T", bound=Hashable)


class Epoch(msgspec.Struct, Generic[T], frozen=True):
    """All data of one time, from all partitions.

    Attributes:
        time: Its time.
        batches: The items of each of its messages, in order; None: it was too large to be kept, and has to be read
            again.
        first_seq, last_seq: The range of its messages in the stream, both included; 0: they are not stored.
    """

    time: T
    batches: tuple[Any, ...] | None
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class _Open:
    """An epoch that is not completed."""

    first_seq: int
    last_seq: int
    batches: list[Any] | None = field(default_factory=list)
    bytes: int = 0


@dataclass(slots=True)
class EpochBuffer(Generic[T]):
    """Keeps the data of open epochs, up to ``max_bytes``. Beyond that only the range of the largest ones is kept.

    Attributes:
        max_bytes: Bytes of data to keep.
        kept_bytes: Bytes of data kept.
    """

    order: Order[T]
    max_bytes: int = 256 * 1024 * 1024
    kept_bytes: int = 0
    _open: dict[T, _Open] = field(default_factory=dict)

    def __len__(self) -> int:
        """Epochs that are open."""
        return len(self._open)

    def add(self, data: Data[T], size: int) -> None:
        """Add data of ``size`` bytes, unless its epoch cannot be whole."""
        if not data.whole:
            return
        epoch = self._open.get(data.time)
        if epoch is None:
            epoch = self._open[data.time] = _Open(data.seq, data.seq)
        epoch.first_seq = min(epoch.first_seq, data.seq)
        epoch.last_seq = max(epoch.last_seq, data.seq)
        if epoch.batches is not None:
            epoch.batches.append(data.items)
            epoch.bytes += size
            self.kept_bytes += size
        while self.kept_bytes > self.max_bytes:
            largest = max(self._open.values(), key=_bytes_of)
            self.kept_bytes -= largest.bytes
            largest.batches, largest.bytes = None, 0

    def completed(self, frontier: Antichain[T]) -> list[Epoch[T]]:
        """Take the epochs that a subscriber's frontier has passed, each after the epochs before it."""
        times = in_order(self.order, (time for time in self._open if not frontier.some_below(time)))
        given = []
        for time in times:
            epoch = self._open.pop(time)
            self.kept_bytes -= epoch.bytes
            batches = None if epoch.batches is None else tuple(epoch.batches)
            given.append(Epoch(time, batches, epoch.first_seq, epoch.last_seq))
        return given

    def clear(self) -> None:
        """Drop all data: see `EpochSubscriber.lost`."""
        self._open.clear()
        self.kept_bytes = 0


def _bytes_of(epoch: _Open) -> int:
    return epoch.bytes
