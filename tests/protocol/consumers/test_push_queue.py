"""The queue of a push subscription against a list."""

from __future__ import annotations

import random

import pytest

from jsclient.protocol.consumers.push import DeliveryQueue, total_size
from jsclient.protocol.wire.frames import frame_size
from tests.support.strategies import data


class Model:
    """The same queue as one plain list."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.max_messages = self.chance.choice([1, 3, 40])
        self.max_bytes = self.chance.choice([100, 1000, 10**6])
        self.queue = DeliveryQueue[str](self.max_messages, self.max_bytes)
        self.plain: list = []
        self.number = 0

    def messages(self) -> list:
        return [entry for entry in self.plain if isinstance(entry, tuple)]

    def arrive(self) -> None:
        frames = []
        for _ in range(self.chance.randint(1, 5)):
            self.number += 1
            frames.append(data(self.number, payload=b"x" * self.chance.randint(0, 60)))
        waiting = self.messages()
        fits = (
            len(waiting) + len(frames) <= self.max_messages
            and total_size([*waiting, *frames]) <= self.max_bytes
        )
        alone = not waiting and len(frames) == 1
        assert self.queue.add_frames(frames) is (fits or alone)
        if fits or alone:
            self.plain += frames

    def mark(self) -> None:
        self.number += 1
        self.queue.mark(f"mark {self.number}")
        self.plain.append(f"mark {self.number}")

    def mark_first(self) -> None:
        self.number += 1
        self.queue.mark_first(f"mark {self.number}")
        self.plain.insert(0, f"mark {self.number}")

    def take(self) -> None:
        if self.queue.front:
            assert self.queue.front.popleft() == self.plain.pop(0)
        else:
            assert self.queue.next_mark() == (self.plain.pop(0) if self.plain else None)

    def check(self) -> None:
        waiting = self.messages()
        assert self.queue.messages == len(waiting)
        assert self.queue.marks == len(self.plain) - len(waiting)
        assert bool(self.queue) is bool(self.plain)
        if self.chance.random() < 0.3:  # asking settles, so not always
            assert self.queue.bytes == sum(map(frame_size, waiting))


@pytest.mark.parametrize("part", range(4))
def test_bounded_list_with_marks(part):
    for seed in range(part * 100, part * 100 + 100):
        model = Model(seed)
        actions = [model.arrive] * 3 + [model.take] * 6 + [model.mark, model.mark_first]
        for _ in range(120):
            model.chance.choice(actions)()
            model.check()
        waiting = model.messages()
        assert model.queue.clear() == waiting
        assert (model.queue.messages, model.queue.bytes, model.queue.marks) == (0, 0, 0)


def test_half_empty_counts_runs():
    queue = DeliveryQueue[str](100, 2 * total_size([data(1), data(2)]))
    queue.add_frames([data(1), data(2), data(3)])
    assert not queue.is_half_empty
    queue.front.popleft()
    queue.front.popleft()
    assert not queue.is_half_empty
    queue.front.popleft()
    assert queue.is_half_empty
