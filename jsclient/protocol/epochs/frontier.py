"""Partially ordered times, and frontiers of them.

A time says which epoch something belongs to. Times need not be numbers, nor have an order among all of them: of (hour,
revision) neither of (3, 1) and (2, 5) is before the other. So "up to here" is not one time but an *antichain*: times
none of which is before another.

A *lower* frontier has the minimal times: further data is greater than or equal to one of them. It is kept as a
multiset, so that changes of it are +1 and -1, and frontiers of several partitions are merged by adding them up. An
*upper* frontier has the maximal times of what was seen.

Source: Strymon's publish-subscribe protocol; Timely Dataflow (Antichain, MutableAntichain).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ...errors import ConfigError, EpochCompletedError, ProtocolError

__all__ = ["Antichain", "Capabilities", "Changes", "Int", "MutableAntichain", "Order", "Product", "in_order"]

T = TypeVar("T", bound=Hashable)

Changes: TypeAlias = Sequence[tuple[T, int]]
"""What is added to a frontier (+1) and taken from it (-1)."""


class Order(Protocol[T]):
    """A partial order of times with a least one. Times are hashable and equal only to themselves."""

    @property
    def bottom(self) -> T:
        """The least time: nothing is before it."""

    def less_equal(self, one: T, other: T) -> bool:
        """Whether ``one`` is ``other``, or before it: reflexive, transitive, antisymmetric."""

    def encode(self, time: T) -> Any:
        """The time as a JSON value. Raises `ConfigError` if it is not valid."""

    def decode(self, value: Any) -> T:
        """The time of a JSON value. Raises `ConfigError` if it is not valid."""


@dataclass(frozen=True, slots=True)
class Int:
    """Integers: the usual case."""

    bottom: int = 0

    def less_equal(self, one: int, other: int) -> bool:
        return one <= other

    def successor(self, time: int) -> int:
        """The next time. Optional: with it a publisher can advance from an epoch."""
        return time + 1

    def encode(self, time: int) -> int:
        if isinstance(time, bool) or not isinstance(time, int) or time < self.bottom:
            raise ConfigError(f"{time!r:.60} is not a valid time, needs an integer >= {self.bottom}")
        return time

    def decode(self, value: Any) -> int:
        return self.encode(value)


class Product:
    """Tuples, of which one is before another if each part is: ``Product(Int(), Int())`` for (hour, revision)."""

    __slots__ = ("bottom", "orders")

    def __init__(self, *orders: Order[Any]) -> None:
        self.orders: tuple[Order[Any], ...] = orders
        self.bottom: tuple[Any, ...] = tuple(order.bottom for order in orders)

    def less_equal(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return all(map(_less_equal, self.orders, one, other))

    def encode(self, time: tuple[Any, ...]) -> list[Any]:
        if not isinstance(time, tuple):
            raise ConfigError(f"{time!r:.60} is not a valid time, needs a tuple")
        self._check_length(time)
        return [order.encode(part) for order, part in zip(self.orders, time, strict=True)]

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ConfigError(f"{value!r:.60} is not a valid time, needs an array")
        self._check_length(value)
        return tuple(order.decode(part) for order, part in zip(self.orders, value, strict=True))

    def _check_length(self, parts: Sequence[Any]) -> None:
        if len(parts) != len(self.orders):
            raise ConfigError(f"{parts!r:.60} is not a valid time, needs {len(self.orders)} parts")


def _less_equal(order: Order[Any], one: Any, other: Any) -> bool:
    return order.less_equal(one, other)


def in_order(order: Order[T], times: Iterable[T]) -> list[T]:
    """The times so that each comes after those that are before it."""
    some = [*times]
    # What is before one time is before all that come after it, and that time itself is, too.
    return sorted(some, key=lambda time: sum(order.less_equal(other, time) for other in some))


@dataclass(frozen=True, slots=True, eq=False)
class Antichain(Generic[T]):
    """Times none of which is before another. Equal to another one with the same times."""

    order: Order[T]
    elements: tuple[T, ...] = ()

    @classmethod
    def minimal(cls, order: Order[T], times: Iterable[T]) -> Antichain[T]:
        """The least ones."""
        kept: list[T] = []
        for time in times:
            if not any(order.less_equal(other, time) for other in kept):
                kept = [other for other in kept if not order.less_equal(time, other)]
                kept.append(time)
        return cls(order, tuple(kept))

    @classmethod
    def maximal(cls, order: Order[T], times: Iterable[T]) -> Antichain[T]:
        """The greatest ones."""
        return cls(order).with_maximal(*times)

    def with_maximal(self, *times: T) -> Antichain[T]:
        """The greatest ones of these and those. Itself, if that is the same."""
        kept, order = self.elements, self.order
        for time in times:
            if not any(order.less_equal(time, other) for other in kept):
                kept = (*(other for other in kept if not order.less_equal(other, time)), time)
        return self if kept is self.elements else Antichain(order, kept)

    def some_below(self, time: T) -> bool:
        """Whether some element is the time, or before it. Of a lower frontier: the time may still come."""
        less_equal = self.order.less_equal
        for element in self.elements:  # noqa: SIM110  no generator for each message
            if less_equal(element, time):
                return True
        return False

    def some_above(self, time: T) -> bool:
        """Whether some element is the time, or after it. Of an upper frontier: the time may have been seen."""
        less_equal = self.order.less_equal
        for element in self.elements:  # noqa: SIM110
            if less_equal(time, element):
                return True
        return False

    def __iter__(self) -> Iterator[T]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __contains__(self, time: object) -> bool:
        return time in self.elements

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Antichain) and set(self.elements) == set(other.elements)

    def __hash__(self) -> int:
        return hash(frozenset(self.elements))


@dataclass(slots=True)
class MutableAntichain(Generic[T]):
    """A multiset of times, and its lower ``frontier``: the minimal times that are in it."""

    order: Order[T]
    frontier: Antichain[T] = field(init=False)
    _counts: Counter[T] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.frontier = Antichain.minimal(self.order, self._counts)

    @classmethod
    def of(cls, order: Order[T], times: Iterable[T]) -> MutableAntichain[T]:
        """With these in it."""
        return cls(order, Counter(times))

    def __iter__(self) -> Iterator[T]:
        """The times in it, each once."""
        return iter(self._counts)

    def count(self, time: T) -> int:
        """How many times a time is in it."""
        return self._counts.get(time, 0)

    def update(self, changes: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
        """Add and take times. Returns how the frontier changed. Raises `ProtocolError` for a time that is missing."""
        sums: Counter[T] = Counter()
        for time, change in changes:
            sums[time] += change
        for time, change in sums.items():
            if self.count(time) + change < 0:
                raise ProtocolError(f"{time!r} was taken from a frontier that does not have it")
        added, gone = [], False
        for time, change in sums.items():
            had = self.count(time)
            if had + change:
                self._counts[time] = had + change
                if not had:
                    added.append(time)
            elif had:
                del self._counts[time]
                gone = gone or time in self.frontier
        if not gone and not added:
            return []
        # While the frontier keeps its elements, only an added time can be less than one of them.
        before = self.frontier
        self.frontier = Antichain.minimal(self.order, self._counts if gone else (*before, *added))
        removed = [(time, -1) for time in before if time not in self.frontier]
        return removed + [(time, 1) for time in self.frontier if time not in before]


class Capabilities(Generic[T]):
    """The capabilities that one producer holds; at first one for the least time.

    Each method that changes them returns how the frontier changed, nothing if it is the same. One that raises has
    changed nothing.
    """

    __slots__ = ("_held", "order")

    def __init__(self, order: Order[T], times: Iterable[T] | None = None) -> None:
        self.order: Order[T] = order
        self._held = MutableAntichain.of(order, [order.bottom] if times is None else times)

    @property
    def frontier(self) -> Antichain[T]:
        """The minimal ones. Empty: nothing may be sent."""
        return self._held.frontier

    def count(self, time: T) -> int:
        """How many are held for this very time."""
        return self._held.count(time)

    def allows(self, time: T) -> bool:
        """Whether something of this time may be sent."""
        return self.frontier.some_below(time)

    def check(self, time: T) -> None:
        """Raise `EpochCompletedError` if no capability allows the time, `ConfigError` if it is not valid."""
        self.order.encode(time)
        if not self.allows(time):
            raise EpochCompletedError(time, self.frontier.elements)

    def update(self, changes: Changes[T]) -> list[tuple[T, int]]:
        """Drop and add capabilities, at once.

        Raises:
            EpochCompletedError: An added one is not allowed by those held before.
            ConfigError: A dropped one is not held, or a time is not valid in this order.
        """
        sums: dict[T, int] = {}
        for time, change in changes:
            sums[time] = sums.get(time, 0) + change
        for time, change in sums.items():
            self.order.encode(time)
            if change > 0:
                self.check(time)
            elif self.count(time) + change < 0:
                raise ConfigError(f"no capability for {time!r} is held: it cannot be dropped")
        return self._held.update(sums.items())

    def advance(self, to: T) -> list[tuple[T, int]]:
        """Replace all capabilities before this time by one for it; incomparable ones stay."""
        self.check(to)
        before = [time for time in self._held if self.order.less_equal(time, to)]
        return self.update([*((time, -self.count(time)) for time in before), (to, 1)])

    def close(self) -> list[tuple[T, int]]:
        """Drop all capabilities: everything is completed."""
        return self.update([(time, -self.count(time)) for time in self._held])
