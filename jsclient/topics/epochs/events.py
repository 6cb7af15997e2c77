"""The base of subscriptions to stored and live topics, which return single events or whole epochs."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, Literal, NoReturn, Self, TypeAlias, TypeVar

import msgspec

from ..._runtime.handle import ReadHandle
from ...errors import ClosedError, ConfigError, EpochsLostError, JetStreamError, ProtocolError
from ...protocol.epochs.frontier import Antichain, Order
from ...protocol.epochs.trackers import Data, Epoch, EpochBuffer, EpochSubscriber, FrontierUpdate
from ...protocol.topics.value_codec import Codec

__all__ = ["CompletedEpoch", "CompletedEpochs", "EpochEvents", "Filter"]

T = TypeVar("T", bound=Hashable)


class CompletedEpoch(Generic[T]):
    """All data of one epoch, from all partitions of a subscription. Returned by `EpochSubscription.completed`.

    Use `items` to get everything at once, or iterate over the batches::

        async for batch in epoch:
            handle(batch)

    Attributes:
        time: The time of the epoch.
        first_seq: Stream sequence of the first message of the epoch, or 0 if the topic is live.
        last_seq: Stream sequence of the last message of the epoch, or 0 if the topic is live.
    """

    def __init__(self, epoch: Epoch[T], again: Callable[[], AsyncIterator[Any]]) -> None:
        self.time = epoch.time
        self.first_seq: int = epoch.first_seq
        self.last_seq: int = epoch.last_seq
        self._batches = epoch.batches
        self._again = again

    @property
    def is_kept(self) -> bool:
        """Whether the items are in memory.

        If False, the epoch was too large to keep. Iterating over the epoch then reads the items from the stream again.
        A live topic has no stream, so iterating raises `EpochsLostError` instead.
        """
        return self._batches is not None

    @property
    def items(self) -> list[Any]:
        """The items of all batches of the epoch, in a single list.

        Each batch must be a list or another collection of items.

        Raises:
            ConfigError: The epoch was too large to be kept in memory, or a batch is a single value, such as a number, a
                string or a dict. In both cases, read the batches with ``async for batch in epoch``.
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
        """Yield the batches of the epoch as they were sent, in the order of the stream.

        Raises:
            EpochsLostError: The epoch wasn't kept in memory, and some of its messages were removed before they were
                read again. Discard the batches yielded so far.

        May also raise any request error.
        """
        if self._batches is not None:
            for batch in self._batches:
                yield batch
            return
        async for batch in self._again():
            yield batch

    def __repr__(self) -> str:
        return f"<CompletedEpoch {self.time!r}>"


class CompletedEpochs(Generic[T]):
    """Iterates over whole epochs as they are completed. Returned by `EpochSubscription.completed`.

    If messages were lost, ``async for`` raises `EpochsLostError`, which names the epochs that can't be returned. The
    subscription stays open, so start another loop to continue with the epochs that follow.

    An epoch counts as consumed in `EpochSubscription.position` as soon as it has been returned. So save the position
    after you have handled an epoch, and before you read the next one.
    """

    def __init__(
        self,
        events: EpochEvents[T],
        core: EpochSubscriber[T],
        owners: Callable[[], dict[int, str]],
        read_again: Callable[[Epoch[T], dict[int, str]], AsyncIterator[Any]],
        max_bytes: int,
    ) -> None:
        if max_bytes < 1:
            raise ConfigError(f"max_bytes is {max_bytes}: it must be 1 or more")
        self._events, self._core, self._owners_now, self._read_again = events, core, owners, read_again
        self._buffer: EpochBuffer[T] = EpochBuffer(core.order, max_bytes)
        self._owners: dict[T, dict[int, str]] = {}  # the owners of the partitions at the start of an epoch
        self._ready: deque[CompletedEpoch[T]] = deque()

    @property
    def open(self) -> int:
        """The number of epochs that aren't complete yet, but for which data has arrived."""
        return len(self._buffer)

    @property
    def retained_bytes(self) -> int:
        """How much data is kept in memory for incomplete epochs, in bytes."""
        return self._buffer.retained_bytes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CompletedEpoch[T]:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def next(self, timeout: float | None = None) -> CompletedEpoch[T]:
        """Wait for the next completed epoch and return it.

        Args:
            timeout: Maximum time between two events of the subscription, in seconds, so the call may take longer. By
                default, wait indefinitely.

        Raises:
            RequestTimeoutError: No event arrived within ``timeout`` seconds.
            ClosedError: The topic has ended, or the subscription was closed.
            EpochsLostError: Messages of the epochs named in the error were lost. The next call continues with later
                epochs.
            ProtocolError: Data can't be decoded. Every further call raises the same error.
            PositionInvalidError: The stream was deleted and created again.

        May also raise a request error that retrying can't fix, for example `PermissionDeniedError`. If the call is
        cancelled, no epoch is lost.
        """
        while not self._ready:
            try:
                event, size = await self._events.sized(timeout)
            except EpochsLostError:
                self._buffer.drop_data()
                self._owners.clear()
                raise
            if isinstance(event, Data):
                self._owners.setdefault(event.time, self._owners_now())
                self._buffer.add_data(event, size)
            else:
                self._ready.extend(map(self._whole, self._buffer.completed(self._core.frontier)))
        epoch = self._ready.popleft()
        self._core.release(epoch.time)
        return epoch

    def _whole(self, epoch: Epoch[T]) -> CompletedEpoch[T]:
        owners = self._owners.pop(epoch.time)
        return CompletedEpoch(epoch, lambda: self._read_again(epoch, owners))


Filter: TypeAlias = Literal["atomic"] | Iterable[Any] | None
"""Selects the data that a subscriber drops.

``"atomic"`` drops epochs that the subscriber can't receive in full, and None drops nothing. An iterable of times drops
the same epochs as ``"atomic"``, and also all data at or before any of these times.
"""


class EpochEvents(ReadHandle[Data[T] | FrontierUpdate[T]], Generic[T]):
    """Reads the `Data` and `FrontierUpdate` events of some partitions of a topic."""

    def __init__(
        self, topic: str, order: Order[T], partitions: tuple[int, ...], codec: Codec, filter: Filter
    ) -> None:
        coarser = () if filter is None or filter == "atomic" else tuple(filter)
        for time in coarser:
            order.encode(time)
        self._topic, self._order, self._partitions, self._codec = topic, order, partitions, codec
        self._core: EpochSubscriber[T] = EpochSubscriber(
            order, frozenset(partitions), atomic=filter is not None, coarser=coarser
        )
        self._events: deque[Data[T] | FrontierUpdate[T]] = deque()
        self._error: JetStreamError | None = None  # EpochsLostError is raised once, any other error always
        self._has_returned_data = False

    @property
    def partitions(self) -> tuple[int, ...]:
        """The numbers of the partitions that the subscription reads."""
        return self._partitions

    @property
    def frontier(self) -> Antichain[T]:
        """The times for which data may still arrive, from any of the partitions.

        All further data is at or after one of these times, so all earlier epochs are complete. The frontier is empty
        when the topic has ended.
        """
        return self._core.frontier

    @property
    def filter(self) -> Antichain[T]:
        """The times of epochs that the subscription skips: data at or before any of them isn't returned.

        Times are removed as their epochs are completed.
        """
        return self._core.filter

    def is_completed(self, time: T) -> bool:
        """Return whether every partition has completed the epoch ``time``, so no more of its data can arrive."""
        return self._core.is_completed(time)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} of {self._topic} {list(self._partitions)} at {list(self.frontier)}>"

    async def next(self, timeout: float | None = None) -> Data[T] | FrontierUpdate[T]:
        """Wait for the next event and return it. Most applications read whole epochs with `completed` instead.

        If the call is cancelled, no event is lost.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No event arrived within ``timeout`` seconds. The subscription can still be used.
            ClosedError: The topic has ended, or the subscription was closed.
            EpochsLostError: Messages were lost. Discard the data of the epochs named in the error. The next call
                continues.
            ProtocolError: Data can't be decoded. Every further call raises the same error.
            PositionInvalidError: The stream was deleted and created again.

        May also raise a request error that retrying can't fix, for example `PermissionDeniedError`.
        """
        return (await self.sized(timeout))[0]

    async def sized(self, timeout: float | None = None) -> tuple[Data[T] | FrontierUpdate[T], int]:
        """Return the next event, and the encoded size of its items in bytes. Raises the errors of `next`."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            if self._error is not None:
                await self._raise(self._error)
            if self._events:
                return self._decoded(self._events[0])
            if self._core.is_over:
                await self.close()
            if self.is_closed:
                raise ClosedError(f"topic {self._topic!r} is over, or the subscription was closed")
            await self._more(deadline, timeout or 0.0)

    @abc.abstractmethod
    async def _more(self, deadline: float | None, timeout: float) -> None:
        """Wait for events or an error. Raises `RequestTimeoutError` at the deadline."""

    async def _raise(self, error: JetStreamError) -> NoReturn:
        if isinstance(error, EpochsLostError):
            self._error = None
        else:
            await self.close()
        raise error

    def _decoded(self, event: Data[T] | FrontierUpdate[T]) -> tuple[Data[T] | FrontierUpdate[T], int]:
        if isinstance(event, FrontierUpdate):
            self._events.popleft()
            return event, 0
        try:
            items = self._codec.decode(event.items)
        except Exception as error:
            self._error = ProtocolError(
                f"data of epoch {event.time!r} at {event.seq}, partition {event.partition}, cannot be decoded: {error}"
            )
            raise self._error from error
        self._events.popleft()
        self._has_returned_data = True
        return msgspec.structs.replace(event, items=items), len(event.items)

    def completed(self, *, max_bytes: int = 256 * 1024 * 1024) -> CompletedEpochs[T]:
        """Iterate over whole epochs as they are completed. An epoch comes after all epochs before it.

        Call this method before you read from the subscription, and read only from the result afterwards. The data of
        incomplete epochs is kept in memory.

        Args:
            max_bytes: Maximum size of the data to keep in memory, in bytes. If there is more, the data of the largest
                epochs is dropped, and read from the stream again when you iterate over these epochs. In a live topic,
                this data is lost, and iterating over these epochs raises `EpochsLostError`.

        Raises:
            ConfigError: Data has already been read from the subscription, so the first epochs would be incomplete.
        """
        if self._has_returned_data:
            raise ConfigError("data was read from this subscription: call completed() before that")
        self._core.hold = True
        return CompletedEpochs(self, self._core, self._owners, self._read_again, max_bytes)

    def _owners(self) -> dict[int, str]:
        """Return the current producer of each partition. Only its data counts."""
        return {}

    @abc.abstractmethod
    def _read_again(self, epoch: Epoch[T], owners: dict[int, str]) -> AsyncIterator[Any]:
        """Read the items of an epoch again. ``owners`` are the owners of the partitions at its first message."""
