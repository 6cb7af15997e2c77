"""The times that a producer may still send: a multiset of capabilities, each for its time and all later ones.

A producer publishes the lower frontier of its capabilities. A time that no capability allows is completed for ever,
since a capability is derived only from an earlier one.

Source: Timely Dataflow (capabilities), Strymon's publish-subscribe protocol.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from ...errors import ConfigError, EpochCompletedError
from .frontier import Antichain, Changes, MutableAntichain, Order

__all__ = ["Capabilities"]

T = TypeVar("T", bound=Hashable)


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
        """
        Raises:
            EpochCompletedError: No capability allows that time.
            ConfigError: It is not a valid time of this order.
        """
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

    def mint(self, time: T) -> list[tuple[T, int]]:
        """One more, for this time."""
        return self.update([(time, 1)])

    def drop(self, time: T) -> list[tuple[T, int]]:
        """One less."""
        return self.update([(time, -1)])

    def downgrade(self, time: T, to: T) -> list[tuple[T, int]]:
        """One for a later time in place of one."""
        return self.split(time, to)

    def split(self, time: T, *into: T) -> list[tuple[T, int]]:
        """Several for later times in place of one."""
        for part in into:
            self.order.encode(part)
            if not self.order.less_equal(time, part):
                raise EpochCompletedError(part, (time,))
        return self.update([(time, -1), *((part, 1) for part in into)])

    def advance(self, to: T) -> list[tuple[T, int]]:
        """Replace all capabilities before this time by one for it; incomparable ones stay.

        In a total order this completes everything before it.
        """
        self.check(to)
        before = [time for time in self._held if self.order.less_equal(time, to)]
        return self.update([*((time, -self.count(time)) for time in before), (to, 1)])

    def close(self) -> list[tuple[T, int]]:
        """Drop all capabilities: everything is completed."""
        return self.update([(time, -self.count(time)) for time in self._held])
