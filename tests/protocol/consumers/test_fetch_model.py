"""The accounting of a continuous pull reader against a model of the server."""

from __future__ import annotations

import random

import pytest

from jsclient.protocol.consumers.consume import PullBuffer
from jsclient.protocol.consumers.status import Ending, Meaning
from jsclient.protocol.wire.headers import Headers


class FetchSimulation:
    """The server keeps requests, fills, expires or refuses them. The connection is lost. The user takes messages."""

    def __init__(self, seed: int, max_bytes: int | None) -> None:
        self.chance = random.Random(seed)
        self.limit = self.chance.choice([1, 2, 7, 50])
        self.max_bytes = max_bytes
        self.buffer = PullBuffer(self.limit, self.limit // 2 if self.limit > 1 else 0, max_bytes)
        self.buffer.connected()
        self.held: list[list[int]] = []  # messages and bytes that each request may still bring
        self.waiting: list[int] = []
        self.now = 0.0

    def ask(self) -> None:
        if (expected := self.buffer.next_amount()) is not None:
            self.held.append([expected[0], expected[1] or 10**9])

    def check(self) -> None:
        assert sum(request[0] for request in self.held) + len(self.waiting) <= self.limit
        if self.max_bytes is not None:
            assert sum(request[1] for request in self.held) + sum(self.waiting) <= self.max_bytes
        assert self.buffer.buffered == len(self.waiting)
        assert self.buffer.buffered_bytes == sum(self.waiting)

    # --- steps -----------------------------------------------------------------------------------------------

    def end(self, meaning: Meaning, ending: Ending) -> None:
        """The oldest request ends unfilled. The server says how much of it."""
        if self.held:
            messages, size = self.held.pop(0)
            fields = {"Nats-Pending-Messages": str(messages), "Nats-Pending-Bytes": str(size)}
            self.buffer.ended(meaning, ending, Headers(fields), self.now)

    def deliver(self) -> None:
        if not self.held:
            return
        size = self.chance.randint(10, 100)
        if size > self.held[0][1]:
            self.end(Meaning.ENDED, Ending.MAX_BYTES)
            return
        self.held[0][0] -= 1
        self.held[0][1] -= size
        if 0 in self.held[0]:  # filled: the server ends it without a word
            self.held.pop(0)
        self.waiting.append(size)
        self.buffer.delivered(size)

    def take(self) -> None:
        if self.waiting:
            self.buffer.taken(self.waiting.pop(0))

    def expire(self) -> None:
        self.end(self.chance.choice([Meaning.ENDED, Meaning.RETRY]), Ending.EXPIRED)

    def reconnect(self) -> None:
        if self.chance.random() < 0.2:
            self.held.clear()
            self.buffer.disconnected()
            assert self.buffer.next_amount() is None
            self.buffer.connected()

    def time_passes(self) -> None:
        self.now += 10.0
        self.buffer.end_pause(self.now)

    def run(self, steps: int) -> None:
        actions = [self.deliver] * 5 + [self.take] * 4 + [self.expire, self.reconnect, self.time_passes]
        for _ in range(steps):
            self.ask()
            self.check()
            self.chance.choice(actions)()

    def empty(self) -> None:
        while self.held:
            self.end(Meaning.ENDED, Ending.EXPIRED)
        while self.waiting:
            self.take()
        self.time_passes()


@pytest.mark.row(63, 76)
@pytest.mark.parametrize("max_bytes", [None, 700])
def test_limits_hold_and_empty_asks(max_bytes):
    for seed in range(300):
        simulation = FetchSimulation(seed, max_bytes)
        simulation.run(200)
        simulation.empty()
        assert simulation.buffer.next_amount() is not None, seed
