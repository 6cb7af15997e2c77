"""Continuous reading from an ordered consumer, by one reader at a time. Source: ADR-37 §Consume."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from ...errors import ClosedError, ConcurrentReadError, RequestTimeoutError
from ...protocol.consumers.fetch import Pull
from ...protocol.wire.frames import Frame
from ..message import Message
from .puller import OrderedPuller

__all__ = ["OrderedMessages", "Seat"]

_ITERATED = (
    "the ordered consumer is being iterated: end that loop first, or leave the reader that messages() gave"
)


class Seat:
    """Allows one reader at a time. An abandoned reader, as after ``break``, is released by garbage collection."""

    def __init__(self, puller: OrderedPuller) -> None:
        self._puller = puller
        self._reader: weakref.ref[OrderedMessages] | None = None
        self._fetches = False

    @property
    def reader(self) -> OrderedMessages | None:
        """The current reader."""
        return None if self._reader is None else self._reader()

    def take(self, reader: OrderedMessages) -> None:
        """Register a reader. Raises `ConcurrentReadError` if another one is in use."""
        self._check()
        self._reader = weakref.ref(reader, self._forgotten)

    def leave(self, reader: OrderedMessages) -> None:
        """Release the place; a no-op for any other reader."""
        if self.reader is reader:
            self._reader = None
            self._rest()

    @contextmanager
    def fetch(self) -> Iterator[None]:
        """Hold the place during a fetch. Raises `ConcurrentReadError` if a reader is in use."""
        self._check()
        self._reader, self._fetches = None, True
        try:
            yield
        finally:
            self._fetches = False

    def _check(self) -> None:
        if self._fetches:
            raise ConcurrentReadError("a fetch from this ordered consumer is in flight: wait for its end")
        if self.reader is not None and self.reader.is_in_use:
            raise ConcurrentReadError(_ITERATED)

    def _forgotten(self, reader: weakref.ref[OrderedMessages]) -> None:
        if self._reader is reader:
            self._reader = None
            self._rest()

    def _rest(self) -> None:
        self._puller.tracker.rest()
        self._puller.carry_out([])


class OrderedMessages:
    """An iteration over an ordered consumer's messages; ``async for``, `next`, `close`, `drain`.

    The first pull request is sent on first use. Messages buffered at its end go to the next reader.
    """

    def __init__(
        self, puller: OrderedPuller, seat: Seat, pull: Pull, threshold: int, *, stays: bool = True
    ) -> None:
        self._puller = puller
        self._seat = seat
        self._pull = pull
        self._threshold = threshold
        self._stays = stays  # in use from its first message to its end, not only during a call
        self._channel = puller.channel
        self._tracker = puller.tracker
        self._front: deque[Frame] = deque()  # the buffered messages, while this is the current reader
        self._waiting = 0
        self._draining = self._closed = False

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be read."""
        return len(self._puller.front)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def is_in_use(self) -> bool:
        """Whether no other reader is allowed now."""
        return not self._closed and (self._stays or self._waiting > 0)

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message: see `OrderedConsumer.next`."""
        puller = self._puller
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            self._sit()
            message = puller.take()
            if message is not None:
                return message
            self._see_end()
            self._waiting += 1
            try:
                in_time = await puller.changed.wait_until(deadline)
            finally:
                self._waiting -= 1
            if not in_time:
                message = puller.take()
                if message is not None:
                    return message
                raise RequestTimeoutError("no message", timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """As `next`, for ``async for``. Not a generator: a cancelled one would end and lose the remaining messages."""
        front = self._front
        if len(front) > self._tracker.low:
            return Message(front.popleft(), self._channel)
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _sit(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed")
        if self._seat.reader is not self:
            puller = self._puller
            self._seat.take(self)
            self._front = puller.front
            if not puller.nothing_comes:
                now = puller.context.connection.now()
                puller.carry_out(self._tracker.read(self._pull, self._threshold, now))

    def _see_end(self) -> None:
        """Raise if nothing more will arrive."""
        puller, refused = self._puller, self._tracker.error
        if puller.error is not None:
            self._seat.leave(self)  # the next reader gets the same error
            raise puller.error
        if refused is not None:
            self._leave()
            raise refused
        if puller.nothing_comes or self._draining:
            self._leave()
            raise ClosedError(
                "the ordered consumer is closed" if puller.nothing_comes else "the reader is closed"
            )

    def _leave(self) -> None:
        self._closed = True
        self._front = deque()
        self._seat.leave(self)
        self._puller.changed.set()

    async def close(self) -> None:
        """End now. Buffered messages are kept for the next reader. Calling it again does nothing."""
        if not self._closed:
            self._leave()

    stop = close

    async def drain(self) -> None:
        """Stop sending requests; messages that have arrived can still be read, then the iteration ends."""
        if self._seat.reader is not self:
            await self.close()  # it has not started
        elif not self._closed:
            self._draining = True
            self._tracker.rest()
            self._puller.changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
