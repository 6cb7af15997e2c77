"""How many messages a worker takes ahead, and how long those may have waited that it has not taken."""

from __future__ import annotations

import itertools

import pytest

from jsclient.protocol.consumers.worker.prefetch import Prefetch, Waiting
from jsclient.protocol.consumers.worker.work_rules import WorkOptions, WorkRules
from jsclient.protocol.models.consumer import ConsumerConfig


def make(config: ConsumerConfig | None = None, **options) -> Prefetch:
    config = config or ConsumerConfig()
    return Prefetch(WorkRules(WorkOptions(**options), config), config)


def handle(prefetch: Prefetch, count: int, each: float, now: float = 100.0) -> float:
    """Start ``count`` handlers, ``each`` seconds apart. Returns the time."""
    for _ in range(count):
        prefetch.count += 1
        if prefetch.count >= prefetch.enough or now >= prefetch.until:
            prefetch.check(now)
        now += each
    return now


def ahead(prefetch: Prefetch, concurrency: int = 1) -> int:
    return prefetch.capacity - concurrency + prefetch.pull


def test_slow_handlers_take_two_each_ahead():
    prefetch = make(concurrency=3)
    assert (prefetch.capacity, prefetch.pull) == (6, 3)
    handle(prefetch, 20, 2.0)
    assert (prefetch.capacity, prefetch.pull) == (6, 3)


@pytest.mark.parametrize(("each", "messages"), [(0.1, 5), (0.01, 50), (0.002, 250), (0.00001, 500)])
def test_half_a_second_ahead(each, messages):
    prefetch = make()
    handle(prefetch, 5000, each)
    assert ahead(prefetch) == pytest.approx(messages, abs=1)


def test_doubles_at_most():
    prefetch = make()
    sizes = []
    now = 100.0
    for _ in range(40):
        now = handle(prefetch, 1, 0.00001, now)
        sizes.append(ahead(prefetch))
    assert max(sizes) == 32  # 2, 4, 8, 16 were handled before
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


def test_slower_again_shrinks():
    prefetch = make()
    now = handle(prefetch, 5000, 0.00001)
    assert ahead(prefetch) == 500
    handle(prefetch, 3, 1.0, now)
    assert ahead(prefetch) == 2


def test_small_again_after_idle_time():
    prefetch = make()
    now = handle(prefetch, 5000, 0.00001)
    prefetch.rested()
    assert ahead(prefetch) == 2
    handle(prefetch, 1, 0.1, now + 60)
    assert ahead(prefetch) == 2


@pytest.mark.parametrize(
    ("config", "options", "most"),
    [
        (ConsumerConfig(max_ack_pending=100), {}, 100),
        (ConsumerConfig(max_ack_pending=-1), {}, 500),
        (ConsumerConfig(max_ack_pending=4), {"concurrency": 10}, 20),  # not less than it was
        (ConsumerConfig(), {"prefetch": 7}, 7),  # the user's choice
        (ConsumerConfig(), {"concurrency": 400}, 800),
        (ConsumerConfig(), {"ordered": True}, 500),
    ],
)
def test_limits(config, options, most):
    prefetch = make(config, **options)
    handle(prefetch, 20_000, 0.000001)
    assert ahead(prefetch, options.get("concurrency", 1)) == most


def test_requests_within_limit_of_consumer():
    prefetch = make(ConsumerConfig(max_batch=10))
    handle(prefetch, 5000, 0.00001)
    assert prefetch.pull == 10


def test_redelivered_messages_keep_it_small():
    """They may be the messages that kill their workers. Messages that wait beside them lose a delivery each time."""
    prefetch = make()
    now = 100.0
    for number in range(1000):
        if number % 5 == 0:
            prefetch.redelivered()
        now = handle(prefetch, 1, 0.0001, now)
    assert ahead(prefetch) < 10
    for number in range(5000):
        if number % 50 == 0:  # a few failed here, and were retried
            prefetch.redelivered()
        now = handle(prefetch, 1, 0.0001, now)
    assert ahead(prefetch) == 500


def test_age_of_what_waits():
    waiting = Waiting(100.0)
    waiting.taken(1, 9, 110.0)  # ten had arrived
    assert waiting.since == 100.0
    waiting.taken(4, 105, 120.0)  # a hundred more
    assert waiting.since == 100.0
    waiting.taken(5, 100, 130.0)  # the ten of 110 are taken, so the others arrived later
    assert waiting.since == 110.0
    waiting.taken(100, 3, 140.0)
    assert waiting.since == 130.0
    waiting.taken(3, 0, 150.0)
    assert waiting.since == 150.0
    waiting.taken(1, 50, 160.0)
    waiting.taken(0, 0, 170.0)  # another task read them
    assert waiting.since == 170.0
