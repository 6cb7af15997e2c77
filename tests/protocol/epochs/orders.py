"""Orders of times for tests, small ones and random partial ones, and builders of messages and subscribers."""

from __future__ import annotations

import random
from typing import Any

from jsclient.errors import ConfigError
from jsclient.protocol.epochs.frontier import Int, Order, Product
from jsclient.protocol.epochs.records import InitialFrontierSnapshot, LowerFrontierUpdate
from jsclient.protocol.epochs.trackers import EpochSubscriber

INT = Int()
PAIR = Product(INT, INT)


def snapshot(lower: Any, upper: Any) -> InitialFrontierSnapshot[Any]:
    return InitialFrontierSnapshot(tuple(lower), tuple(upper))


def update(*changes: tuple[Any, int]) -> LowerFrontierUpdate[Any]:
    return LowerFrontierUpdate(tuple(changes))


def subscriber(*partitions: Any, order: Any = INT, **options: Any) -> EpochSubscriber[Any]:
    return EpochSubscriber(order, frozenset(partitions or (0,)), **options)


class Poset:
    """A random partial order of 0 … size - 1, with 0 as the least."""

    def __init__(self, chance: random.Random, size: int, density: float) -> None:
        self.bottom = 0
        self.size = size
        above: list[set[int]] = [set() for _ in range(size)]
        for one in reversed(range(size)):
            above[one].add(one)
            for other in range(one + 1, size):
                if one == 0 or chance.random() < density:
                    above[one] |= above[other]
        self.above = above

    def less_equal(self, one: int, other: int) -> bool:
        return other in self.above[one]

    def encode(self, time: int) -> int:
        if time not in range(self.size):
            raise ConfigError(f"{time!r} is not a time")
        return time

    def decode(self, value: Any) -> int:
        return self.encode(value)


def some_order(chance: random.Random) -> tuple[Order[Any], list[Any]]:
    """An order and all its times: one or two dimensions, or any at all."""
    kind = chance.randrange(3)
    if kind == 0:
        return Int(), [*range(6)]
    if kind == 1:
        return PAIR, [(a, b) for a in range(4) for b in range(4)]
    size = chance.randint(2, 9)
    return Poset(chance, size, chance.choice([0.1, 0.3, 0.6])), [*range(size)]
