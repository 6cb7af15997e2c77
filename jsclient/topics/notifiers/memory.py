"""Kits in this process, without a server. Their producers need no event loop.

An iteration is a chain of cells that are filled one after the other. The last cell is empty. A consumer holds a
reference to a cell and waits until the cell is filled. Nothing refers to the consumers, and cells that all consumers
have passed are garbage-collected.

Use a kit only in the thread whose event loop its consumers use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from ...errors import ClosedError
from ...protocol.topics.record import Kind
from ...protocol.topics.value_codec import Codec
from .iteration import (
    NO_STATE,
    IterationSubscription,
    Member,
    Notifier,
    NotifierInternals,
    NotifierKit,
    NotifierSource,
    Producer,
    SubscriptionInternals,
    SubscriptionKit,
    SubscriptionSource,
)
from .log_iteration import passable_reason

__all__ = ["make_notifier_kit", "make_subscription_kit"]


def make_notifier_kit(initial: Any = NO_STATE, *, codec: Codec | None = None) -> NotifierKit:
    """Create a producer of states and a notifier, from which consumers in this process read the latest state.

    No server is involved::

        updater, notifier = make_notifier_kit("starting")
        updater.update_state("ready")

    Args:
        initial: The first state. None is a valid state. If it is omitted, consumers wait for the first update.
        codec: Encodes and decodes the values, as on a server. Values that the codec can't encode are refused, and an
            exception passed to `Producer.fail` becomes a string. By default, consumers receive the published objects
            themselves.

    Returns:
        The updater and the notifier.

    Raises:
        ConfigError: The codec can't encode the initial state.
    """
    cells = _Cells(codec)
    updater = Producer(cells.publish)
    if initial is not NO_STATE:
        updater.update_state(initial)
    return NotifierKit(updater, Notifier(_NewestView(cells)))


def make_subscription_kit(*, codec: Codec | None = None) -> SubscriptionKit:
    """Create a producer of values and a subscription, from which consumers in this process read every value.

    No server is involved::

        publication, subscription = make_subscription_kit()
        publication.update_state("first")

    Once the application drops its last reference to the subscription, values that all consumers have read are freed.

    Args:
        codec: Encodes and decodes the values, as on a server. By default, consumers receive the published
            objects themselves.

    Returns:
        The publication and the subscription.
    """
    cells = _Cells(codec)
    return SubscriptionKit(Producer(cells.publish), IterationSubscription(_ChainView(cells.tail)))


class _Published:
    """The awaitable result of a published member. The number is already known, so awaiting it doesn't wait."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __await__(self) -> Generator[None, None, int]:
        return self._count
        yield


class _Cell:
    """A cell of the chain. It contains a member, or waits for it, and has a link to the next cell."""

    __slots__ = ("_filled", "entry", "next")

    def __init__(self) -> None:
        self.entry: Member | None = None
        self.next: _Cell | None = None  # None after the end
        self._filled: asyncio.Event | None = None

    def fill(self, entry: Member) -> None:
        self.entry = entry
        if self._filled is not None:
            self._filled.set()
            self._filled = None

    async def wait_filled(self) -> Member:
        if self.entry is None:
            if self._filled is None:
                self._filled = asyncio.Event()
            await self._filled.wait()
            assert self.entry is not None
        return self.entry


class _Cells:
    """The cells of a kit. Numbers and encodes the members, and accepts no member after the end.

    Attributes:
        newest: The newest member.
        tail: The cell to be filled next. After the end, the last cell.
    """

    __slots__ = ("_codec", "newest", "tail")

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self.newest: Member | None = None
        self.tail = _Cell()

    def publish(self, kind: Kind, value: Any) -> _Published:
        if self.tail.entry is not None:
            raise ClosedError("the iteration has ended: no value can follow; create a new kit")
        traceback = value.__traceback__ if kind is Kind.FAIL and isinstance(value, BaseException) else None
        if self._codec is not None:
            if kind is Kind.FAIL:
                value, traceback = passable_reason(value), None
            # Encode and decode the value, so that consumers get the same value as from a server.
            value = self._codec.decode(self._codec.encode(value))
        number = 1 if self.newest is None else self.newest.number + 1
        self.newest = Member(kind, value, number, traceback)
        # Add the next cell before filling this one, because consumers that wait for this cell continue with the next
        # one.
        filled = self.tail
        if kind is Kind.VALUE:
            self.tail = filled.next = _Cell()
        filled.fill(self.newest)
        return _Published(number)


class _NewestView(NotifierSource):
    """The notifier's read-only access to the cells."""

    __slots__ = ("_cells",)

    def __init__(self, cells: _Cells) -> None:
        self._cells = cells

    async def entry_after(self, count: Any) -> Member:
        newest = self._cells.newest
        if newest is None or (newest.kind is Kind.VALUE and type(count) is int and count == newest.number):
            return await self._cells.tail.wait_filled()
        return newest

    async def internals(self) -> NotifierInternals:
        return NotifierInternals(self)


class _ChainView(SubscriptionSource):
    """The source of a subscription that starts at a cell of the chain."""

    __slots__ = ("_first",)

    def __init__(self, first: _Cell) -> None:
        self._first = first

    async def reader(self, position: Any) -> _ChainReader:
        return _ChainReader(self._first if position is None else position)

    async def internals(self, position: Any) -> SubscriptionInternals:
        return SubscriptionInternals(_ChainView(self._first if position is None else position))


class _ChainReader:
    __slots__ = ("position",)

    def __init__(self, position: _Cell) -> None:
        self.position = position

    async def read_member(self) -> Member:
        while True:
            cell = self.position
            entry = await cell.wait_filled()
            if self.position is cell:  # no concurrent read has returned this entry
                self.position = cell.next or cell
                return entry

    async def close(self) -> None:
        """Do nothing, because the reader has no resources."""
