"""Partially ordered times and their frontiers.

A time identifies the epoch of a message. Times need not be numbers, and need not be totally ordered. For example,
neither of the (hour, revision) pairs (3, 1) and (2, 5) is before the other. For this reason, progress isn't described
by a single time but by an *antichain*, which is a set of times none of which is before another.

A *lower* frontier contains minimal times: all further data is at or after one of them. It is stored as a multiset, so
that it can be changed by +1 and -1, and the frontiers of several partitions can be merged by addition. An *upper*
frontier contains the maximal times seen so far.

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
"""Times that are added to a frontier (+1) and removed from it (-1)."""


class Order(Protocol[T]):
    """Interface that defines which times epochs can have, and which times come before which.

    `Int` and `Product` are orders. Implement this interface to use times of your own, such as dates. Times must be
    hashable, and two different times must not be equal. They needn't be totally ordered, so there may be two times of
    which neither is before the other.

    Two further members are optional. ``name`` identifies the order in the stored schema of a topic, so that subscribers
    with a different order are refused. ``successor(time)`` returns the next time, so that
    `PartitionPublisher.commit_epoch` can be called without ``to``.
    """

    @property
    def bottom(self) -> T:
        """The minimum time, which is before all other times. By default, a partition begins at this time."""

    def less_equal(self, one: T, other: T) -> bool:
        """Return whether ``one`` is equal to ``other`` or before it.

        The relation must be a partial order: each time is at or before itself, two different times are never before
        each other, and if a is before b and b before c, then a is before c.
        """

    def encode(self, time: T) -> Any:
        """Return a time as a JSON value to store with the data. Raises `ConfigError` if the time is invalid."""

    def decode(self, value: Any) -> T:
        """Return the time that was stored as this JSON value. Raises `ConfigError` if the value is invalid."""


@dataclass(frozen=True, slots=True)
class Int:
    """Times that are integers, in the usual order. This is the default order of epoch topics.

    Attributes:
        bottom: The minimum time, at which a partition begins by default. Smaller times are invalid. Defaults to 0.
    """

    bottom: int = 0

    def less_equal(self, one: int, other: int) -> bool:
        return one <= other

    def successor(self, time: int) -> int:
        """Return the next time, to which `PartitionPublisher.commit_epoch` advances by default."""
        return time + 1

    def encode(self, time: int) -> int:
        if isinstance(time, bool) or not isinstance(time, int) or time < self.bottom:
            raise ConfigError(f"{time!r:.60} is not a valid time, needs an integer >= {self.bottom}")
        return time

    def decode(self, value: Any) -> int:
        return self.encode(value)


class Product:
    """Partial order of times that are tuples. Two tuples are compared part by part.

    A time is less than or equal to another if each of its parts is less than or equal to the corresponding part of the
    other. Some times can't be compared. For example, ``Product(Int(), Int())`` orders pairs of an hour and a revision.
    (3, 1) is less than (4, 1), but (3, 1) and (2, 5) aren't comparable.

    Args:
        orders: The order of each part, such as `Int`.
    """

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
    """Return the times, sorted so that each time comes after all times before it."""
    unsorted = [*times]
    # The sort key of a time is the number of times at or before it. A later time has a larger key.
    return sorted(unsorted, key=lambda time: sum(order.less_equal(other, time) for other in unsorted))


@dataclass(frozen=True, slots=True, eq=False)
class Antichain(Generic[T]):
    """A set of times in which no time is before another. The frontier of an epoch topic is such a set.

    A frontier marks the progress of a topic. All further data is at or after one of its times. If times are integers,
    the frontier contains a single time, or none when the topic has ended. Two antichains are equal if they contain the
    same times.

    Attributes:
        order: The partial order that compares the times.
        elements: The times. They aren't checked, so use `minimal` or `maximal` to create an antichain from any times.
    """

    order: Order[T]
    elements: tuple[T, ...] = ()

    @classmethod
    def minimal(cls, order: Order[T], times: Iterable[T]) -> Antichain[T]:
        """Return an antichain of the earliest of ``times``: those that aren't after any other."""
        least: list[T] = []
        for time in times:
            if not any(order.less_equal(other, time) for other in least):
                least = [other for other in least if not order.less_equal(time, other)]
                least.append(time)
        return cls(order, tuple(least))

    @classmethod
    def maximal(cls, order: Order[T], times: Iterable[T]) -> Antichain[T]:
        """Return an antichain of the latest of ``times``: those that aren't before any other."""
        return cls(order).with_maximal(*times)

    def with_maximal(self, *times: T) -> Antichain[T]:
        """Return the antichain of the latest times among this antichain and ``times``.

        Returns the antichain itself if ``times`` changes nothing.
        """
        greatest, order = self.elements, self.order
        for time in times:
            if not any(order.less_equal(time, other) for other in greatest):
                greatest = (*(other for other in greatest if not order.less_equal(other, time)), time)
        return self if greatest is self.elements else Antichain(order, greatest)

    def some_below(self, time: T) -> bool:
        """Return whether any element is at or before ``time``. The order may be partial.

        For the frontier of a topic, the result says whether data for this time may still arrive.
        """
        less_equal = self.order.less_equal
        for element in self.elements:  # noqa: SIM110  a generator per message would be slow
            if less_equal(element, time):
                return True
        return False

    def some_above(self, time: T) -> bool:
        """Return whether any element is at or after ``time``. The order may be partial.

        For the upper frontier of a publisher, the result says whether data for this time may already have been sent.
        """
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
    """A collection of times, possibly with duplicates, that keeps track of the earliest ones.

    Use it to merge the frontiers of several publishers: add the times of each frontier, and apply every change.

    Attributes:
        order: The partial order that compares the times.
        frontier: The earliest times of the collection. Empty if the collection is empty.
    """

    order: Order[T]
    frontier: Antichain[T] = field(init=False)
    _counts: Counter[T] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.frontier = Antichain.minimal(self.order, self._counts)

    @classmethod
    def of(cls, order: Order[T], times: Iterable[T]) -> MutableAntichain[T]:
        """Create a collection that contains ``times``.

        Args:
            order: The partial order that compares the times.
            times: The times to add. If a time is repeated, each occurrence is counted.
        """
        return cls(order, Counter(times))

    def __iter__(self) -> Iterator[T]:
        """Iterate over the distinct times."""
        return iter(self._counts)

    def count(self, time: T) -> int:
        """Return how many times the collection contains ``time``."""
        return self._counts.get(time, 0)

    def update(self, changes: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
        """Add and remove times, and return the resulting changes of the frontier.

        Args:
            changes: Pairs of a time and the number by which its count changes, such as +1 or -1.

        Returns:
            The changes of `frontier`, with -1 for each time that left it and +1 for each time that entered it. Empty if
            the frontier stays the same.

        Raises:
            ProtocolError: A time would be removed more often than the collection contains it. Nothing was changed.
        """
        sums: Counter[T] = Counter()
        for time, change in changes:
            sums[time] += change
        for time, change in sums.items():
            if self._counts.get(time, 0) + change < 0:
                raise ProtocolError(f"{time!r} was taken from a frontier that does not have it")
        added, has_shrunk = [], False
        for time, change in sums.items():
            count = self._counts.get(time, 0)
            if count + change:
                self._counts[time] = count + change
                if not count:
                    added.append(time)
            elif count:
                del self._counts[time]
                has_shrunk = has_shrunk or time in self.frontier.elements
        if not has_shrunk and not added:
            return []
        # If the frontier lost none of its times, only a newly added time can be less than one of its elements, so it is
        # enough to compare the elements and the added times. Otherwise, compare all times.
        before = self.frontier.elements
        self.frontier = Antichain.minimal(self.order, self._counts if has_shrunk else (*before, *added))
        after = self.frontier.elements
        removed = [(time, -1) for time in before if time not in after]
        return removed + [(time, 1) for time in after if time not in before]


class Capabilities(Generic[T]):
    """The capabilities of a publisher. Initially, it has one capability for the least time.

    Each method that changes the capabilities returns the changes of the frontier, which are empty if the frontier stays
    the same. A method that raises an error changes nothing.
    """

    __slots__ = ("_held", "order")

    def __init__(self, order: Order[T], times: Iterable[T] | None = None) -> None:
        self.order: Order[T] = order
        self._held = MutableAntichain.of(order, [order.bottom] if times is None else times)

    @property
    def frontier(self) -> Antichain[T]:
        """The minimal capabilities. If there are none, the producer may not send any data."""
        return self._held.frontier

    def count(self, time: T) -> int:
        """Return the number of capabilities for exactly this time."""
        return self._held.count(time)

    def allows(self, time: T) -> bool:
        """Return whether data of this time may be sent."""
        return self._held.frontier.some_below(time)

    def check_time(self, time: T) -> None:
        """Raise `EpochCompletedError` if no capability allows the time, or `ConfigError` if it is not valid."""
        self.order.encode(time)
        frontier = self._held.frontier
        if not frontier.some_below(time):
            raise EpochCompletedError(time, frontier.elements)

    def update(self, changes: Changes[T]) -> list[tuple[T, int]]:
        """Drop and add capabilities in one step.

        Raises:
            EpochCompletedError: The earlier capabilities do not allow an added capability.
            ConfigError: The producer does not have a dropped capability, or a time is not valid in this order.
        """
        sums: dict[T, int] = {}
        for time, change in changes:
            sums[time] = sums.get(time, 0) + change
        for time, change in sums.items():
            self.order.encode(time)
            if change > 0:
                self.check_time(time)
            elif self.count(time) + change < 0:
                raise ConfigError(f"no capability for {time!r} is held: it cannot be dropped")
        return self._held.update(sums.items())

    def advance(self, to: T) -> list[tuple[T, int]]:
        """Replace all capabilities before a time by a capability for this time. Incomparable capabilities remain."""
        self.check_time(to)
        before = [time for time in self._held if self.order.less_equal(time, to)]
        # Update without the usual checks, which can't fail here. Only held capabilities are dropped, and `check_time`
        # has allowed the new one.
        return self._held.update([*((time, -self._held.count(time)) for time in before), (to, 1)])

    def close(self) -> list[tuple[T, int]]:
        """Drop all capabilities. This completes all epochs."""
        return self._held.update([(time, -self._held.count(time)) for time in self._held])
