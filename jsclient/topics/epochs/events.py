"""What subscribers of stored and of live topics share: events, one at a time, and whole epochs."""

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
"""What a subscriber drops: what it cannot have all of; nothing; or besides all at or before some of these times."""


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
        self._error: JetStreamError | None = None  # told once if it is EpochsLostError, else for ever
        self._given = self._closed = False

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those it reads."""
        return self._partitions

    @property
    def frontier(self) -> Antichain[T]:
        """The merged lower frontier: what may still come is at or after one of these. Empty: it is over."""
        return self._core.frontier

    @property
    def filter(self) -> Antichain[T]:
        """What is at or before one of these is dropped. Empties itself when all of that is completed."""
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
            RequestTimeoutError: None came in ``timeout`` seconds. ClosedError: The topic is over, or it was closed.
            EpochsLostError: See the class; the call after that goes on.
            ProtocolError: Data cannot be decoded, or the topic's publishers broke its rules; it does not go on.
            PositionInvalidError: The stream was made anew. And what the server refuses for good.
        """
        return (await self.sized(timeout))[0]

    async def sized(self, timeout: float | None = None) -> tuple[Data[T] | FrontierUpdate[T], int]:
        """The next event, and the bytes of its items as they came. Raises as `next`."""
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
        """Have events, an error, or nothing of note. Raises `RequestTimeoutError` at the deadline."""

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
        """Whole epochs, when they are completed, each after those that are before it; for ``async for``.

        What is open is kept here until then. Use it from the beginning, and instead of reading events.

        Args:
            max_bytes: Bytes of payloads that may be kept. The largest epochs beyond that are read again from the stream
                when they are given.

        Raises:
            ConfigError: Data was read before: of that epoch the rest would look like all.
        """
        if self._given:
            raise ConfigError("data was read from this subscription: call completed() before that")
        self._core.hold = True
        return CompletedEpochs(self, self._core, self._owners, self._read_range, max_bytes)

    def _owners(self) -> dict[int, str]:
        """Whose data counts here."""
        return {}

    @abc.abstractmethod
    def _read_range(self, first: int, last: int, owners: dict[int, str], time: T) -> AsyncIterator[Any]:
        """The items of an epoch, again. ``owners``: whose data counted at the first sequence."""

    # --- the end ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def close(self) -> None:
        """Read no more. Harmless when called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
