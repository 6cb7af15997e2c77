"""Whole epochs, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from ...errors import ClosedError, ConfigError, EpochsLostError
from ...protocol.epochs.buffer import Epoch, EpochBuffer
from ...protocol.epochs.trackers import Data, EpochSubscriber, FrontierUpdate

__all__ = ["CompletedEpoch", "CompletedEpochs"]

T = TypeVar("T", bound=Hashable)


class CompletedEpoch(Generic[T]):
    """All data of one time, from all partitions.

    Attributes:
        time: Its time.
        first_seq, last_seq: The range of its messages in the stream, both included.
    """

    def __init__(self, epoch: Epoch[T], again: Callable[[], AsyncIterator[Any]]) -> None:
        self.time = epoch.time
        self.first_seq: int = epoch.first_seq
        self.last_seq: int = epoch.last_seq
        self._batches = epoch.batches
        self._again = again

    @property
    def is_kept(self) -> bool:
        """Whether its items are in memory. Otherwise it was too large, and iterating reads them from the stream."""
        return self._batches is not None

    @property
    def items(self) -> list[Any]:
        """The items of all its batches, which must be lists, in one.

        Raises:
            ConfigError: It was too large to be kept, or a batch is not a list: ``async for batch in epoch`` reads it.
        """
        if self._batches is None:
            raise ConfigError(
                f"epoch {self.time!r} is too large to be kept: read it with 'async for batch in epoch'"
            )
        items: list[Any] = []
        for batch in self._batches:
            if not isinstance(batch, Iterable) or isinstance(batch, Mapping | str | bytes):
                raise ConfigError(
                    f"epoch {self.time!r} has a {type(batch).__name__} as batch, not a list of items: read it with "
                    "'async for batch in epoch'"
                )
            items.extend(batch)
        return items

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Its batches, as they were sent, in the order of the stream.

        Raises:
            EpochsLostError: It was removed before it could be read again. And those of any request.
        """
        if self._batches is not None:
            for batch in self._batches:
                yield batch
            return
        async for batch in self._again():
            yield batch

    def __repr__(self) -> str:
        return f"<CompletedEpoch {self.time!r}>"


class _Events(Protocol[T]):
    async def sized(self, timeout: float | None = None) -> tuple[Data[T] | FrontierUpdate[T], int]: ...


class CompletedEpochs(Generic[T]):
    """Whole epochs, for ``async for``. Made by `EpochSubscription.completed`.

    An error ends the loop only: after `EpochsLostError` another loop continues with the epochs that are whole.
    `EpochSubscription.position` counts an epoch as consumed once it was returned.
    """

    def __init__(
        self,
        events: _Events[T],
        core: EpochSubscriber[T],
        owners: Callable[[], dict[int, str]],
        read_range: Callable[[int, int, dict[int, str], T], AsyncIterator[Any]],
        max_bytes: int,
    ) -> None:
        if max_bytes < 1:
            raise ConfigError(f"max_bytes is {max_bytes}: it must be 1 or more")
        self._events, self._core, self._owners_now, self._read_range = events, core, owners, read_range
        self._buffer: EpochBuffer[T] = EpochBuffer(core.order, max_bytes)
        self._owners: dict[T, dict[int, str]] = {}  # the owners of the partitions at the start of an epoch
        self._ready: deque[CompletedEpoch[T]] = deque()

    @property
    def open(self) -> int:
        """The number of epochs in memory that are not completed."""
        return len(self._buffer)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the payloads kept for them."""
        return self._buffer.kept_bytes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CompletedEpoch[T]:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def next(self, timeout: float | None = None) -> CompletedEpoch[T]:
        """The next epoch. Raises as `EpochSubscription.next`; ``timeout`` is between two events of it."""
        while not self._ready:
            try:
                event, size = await self._events.sized(timeout)
            except EpochsLostError:
                self._buffer.clear()
                self._owners.clear()
                raise
            if isinstance(event, Data):
                self._owners.setdefault(event.time, self._owners_now())
                self._buffer.add(event, size)
            else:
                self._ready.extend(map(self._whole, self._buffer.completed(self._core.frontier)))
        epoch = self._ready.popleft()
        self._core.release(epoch.time)
        return epoch

    def _whole(self, epoch: Epoch[T]) -> CompletedEpoch[T]:
        owners, time = self._owners.pop(epoch.time), epoch.time
        return CompletedEpoch(epoch, lambda: self._read_range(epoch.first_seq, epoch.last_seq, owners, time))
