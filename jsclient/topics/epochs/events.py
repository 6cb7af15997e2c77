"""The base of subscriptions to stored and live topics: events one at a time, and whole epochs."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable
from typing import Any, Generic, Literal, NoReturn, Self, TypeAlias, TypeVar

import msgspec

from ...errors import ClosedError, ConfigError, EpochsLostError, JetStreamError, ProtocolError
from ...protocol.epochs.frontier import Antichain, Order
from ...protocol.epochs.trackers import Data, EpochSubscriber, FrontierUpdate
from ...protocol.topics.value_codec import Codec
from .completed import CompletedEpochs

__all__ = ["EpochEvents", "Filter"]

T = TypeVar("T", bound=Hashable)

Filter: TypeAlias = Literal["atomic"] | Iterable[Any] | None
"""The data that a subscriber drops. "atomic": epochs that it cannot receive in full; None: nothing; times: besides the
former, everything at or before one of them."""


class EpochEvents(abc.ABC, Generic[T]):
    """Events of some partitions of a topic, for ``async for``: `Data` and `FrontierUpdate`."""

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
        self._error: JetStreamError | None = None  # EpochsLostError is raised once, any other error for ever
        self._given = self._closed = False

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that it reads."""
        return self._partitions

    @property
    def frontier(self) -> Antichain[T]:
        """The merged lower frontier: further data is at or after one of its elements. Empty: the topic is over."""
        return self._core.frontier

    @property
    def filter(self) -> Antichain[T]:
        """Data at or before one of its elements is dropped. It becomes empty as those epochs are completed."""
        return self._core.filter

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def is_completed(self, time: T) -> bool:
        """Whether nothing more of this time can come, from any partition."""
        return self._core.is_completed(time)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} of {self._topic} {list(self._partitions)} at {list(self.frontier)}>"

    # --- reading ---------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Data[T] | FrontierUpdate[T]:
        """The next event.

        Raises:
            RequestTimeoutError: No event came in ``timeout`` seconds. ClosedError: The topic is over, or it was closed.
            EpochsLostError: See the class. The next call continues.
            ProtocolError: Data cannot be decoded. Every further call raises it.
            PositionInvalidError: The stream was recreated. And permanent errors of the server.
        """
        return (await self.sized(timeout))[0]

    async def sized(self, timeout: float | None = None) -> tuple[Data[T] | FrontierUpdate[T], int]:
        """The next event, and the encoded size of its items. Raises as `next`."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            if self._error is not None:
                await self._raise(self._error)
            if self._events:
                return self._decoded(self._events[0])
            if self._core.is_over:
                await self.close()
            if self._closed:
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
        self._given = True
        return msgspec.structs.replace(event, items=items), len(event.items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Data[T] | FrontierUpdate[T]:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def completed(self, *, max_bytes: int = 256 * 1024 * 1024) -> CompletedEpochs[T]:
        """Iterate over whole epochs as they are completed, each after the epochs before it.

        Data of open epochs is kept in memory. Call it before reading, and do not read events from this subscription.

        Args:
            max_bytes: Bytes of payloads to keep in memory. Beyond that the largest epochs are read again from the
                stream when they are returned.

        Raises:
            ConfigError: Data was read before, so an epoch could be incomplete without notice.
        """
        if self._given:
            raise ConfigError("data was read from this subscription: call completed() before that")
        self._core.hold = True
        return CompletedEpochs(self, self._core, self._owners, self._read_range, max_bytes)

    def _owners(self) -> dict[int, str]:
        """The producers whose data counts now, by partition."""
        return {}

    @abc.abstractmethod
    def _read_range(self, first: int, last: int, owners: dict[int, str], time: T) -> AsyncIterator[Any]:
        """Read the items of an epoch again. ``owners``: the owners of the partitions at the first sequence."""

    # --- the end ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop reading. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
