"""The settings of a worker, applied to a consumer: limits, delays, signs of life."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.consumers.worker.work_rules import WorkOptions, WorkRules, default_delay
from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig


def rules(config: ConsumerConfig | None = None, **options) -> WorkRules:
    return WorkRules(WorkOptions(**options), config or ConsumerConfig())


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"prefetch": 0},
        {"max_deliver": 0},
        {"max_deliver": -1},
        {"handler_timeout": 0},
        {"handler_timeout": -1.0},
        {"handler_timeout": float("nan")},
        {"retry_delay": -1},
        {"retry_delay": "1"},
        {"grace": -1},
        {"grace": None},
        {"dead_letter": ""},
        {"dead_letter": "dead letters"},
        {"dead_letter": "dead.*"},
        {"dead_letter": "*.>"},
        {"dead_letter": ">"},
        {"dead_letter": "dead.>.x"},
        {"ordered": True, "keep_alive": False},
    ],
)
def test_what_cannot_work_is_refused(options):
    with pytest.raises(ConfigError):
        WorkOptions(**options).check_options()


@pytest.mark.parametrize("dead_letter", ["dead", "dead.orders", "dead.>", None])
def test_what_can_work_is_taken(dead_letter):
    WorkOptions(
        dead_letter=dead_letter, handler_timeout=None, grace=0, retry_delay=lambda _: 1.0
    ).check_options()


@pytest.mark.parametrize("policy", [AckPolicy.NONE, AckPolicy.ALL, AckPolicy.FLOW_CONTROL])
def test_needs_explicit_acks(policy):
    with pytest.raises(ConfigError, match="explicit"):
        rules(ConsumerConfig(ack_policy=policy))


@pytest.mark.parametrize(
    ("config", "waits"),
    [
        (ConsumerConfig(), [30.0, 30.0, 30.0]),
        (ConsumerConfig(ack_wait=6.0), [6.0, 6.0, 6.0]),
        (ConsumerConfig(ack_wait=3.0, backoff=[3.0, 9.0]), [3.0, 9.0, 9.0]),
    ],
)
def test_backoff_replaces_ack_wait(config, waits):
    work_rules = rules(config)
    assert [work_rules.ack_wait(delivery) for delivery in (1, 2, 3)] == waits
    assert [work_rules.interval(delivery) for delivery in (1, 2, 3)] == [wait / 3 for wait in waits]
    assert work_rules.hold == min(waits) / 3


@pytest.mark.parametrize(
    ("option", "consumer", "limit", "last"),
    [
        (None, None, None, None),
        (None, -1, None, None),
        (None, 5, 5, 5),
        (3, -1, 3, None),
        (3, 5, 3, 5),
        (7, 5, 5, 5),
    ],
)
def test_lower_limit_counts(option, consumer, limit, last):
    work_rules = rules(ConsumerConfig(max_deliver=consumer), max_deliver=option)
    for deliveries in range(1, 10):
        assert work_rules.is_final(deliveries) is (limit is not None and deliveries >= limit)
        assert work_rules.is_exhausted(deliveries) is (limit is not None and deliveries > limit)
        assert work_rules.is_last(deliveries) is (last is not None and deliveries >= last)


def test_default_pause_doubles():
    assert [default_delay(attempt) for attempt in (1, 2, 3, 7, 8, 10**6)] == [0.5, 1.0, 2.0, 32.0, 60.0, 60.0]
    assert rules().retry_delay(2) == (1.0, None)


@pytest.mark.parametrize(
    ("delay", "expected"), [(None, [1.0, 5.0, 5.0]), (2, [2.0, 2.0, 2.0]), (lambda n: n * 10, [10, 20, 30])]
)
def test_delay_of_options_wins(delay, expected):
    work_rules = rules(ConsumerConfig(backoff=[1.0, 5.0]), retry_delay=delay)
    assert [work_rules.retry_delay(attempt)[0] for attempt in (1, 2, 3)] == expected


@pytest.mark.parametrize("answer", [-1, float("nan"), "1", None])
def test_delay_none_reported_and_replaced(answer):
    delay, delay_error = rules(retry_delay=lambda _: answer).retry_delay(1)
    assert delay == 0.5
    assert isinstance(delay_error, ConfigError)


def test_raising_delay_replaced():
    delay, delay_error = rules(retry_delay=lambda n: n / 0).retry_delay(2)
    assert delay == 1.0
    assert isinstance(delay_error, ZeroDivisionError)


def test_nak_allows_for_server_adds_to():
    """Delivery n of a consumer with backoff waits ``backoff[n - 1] - backoff[0]`` longer than the nak says."""
    work_rules = rules(ConsumerConfig(backoff=[1.0, 4.0]), retry_delay=5.0)
    assert [work_rules.wire_delay(deliveries, 5.0) for deliveries in (1, 2, 3)] == [5.0, 2.0, 2.0]
    assert work_rules.wire_delay(2, 1.0) == 0.001  # it cannot be sooner
    assert rules(ConsumerConfig(backoff=[1.0, 4.0])).wire_delay(2, 4.0) is None  # left to the server
    assert rules(ConsumerConfig(ack_wait=9.0)).wire_delay(2, 4.0) == 4.0


@pytest.mark.parametrize(
    ("options", "capacity", "pull"),
    [
        ({}, 2, 1),
        ({"concurrency": 10}, 20, 10),
        ({"concurrency": 10, "prefetch": 1}, 10, 1),
        ({"concurrency": 1, "prefetch": 7}, 4, 4),
        ({"concurrency": 4, "ordered": True}, 36, 32),
    ],
)
def test_capacity_and_size_of_pull(options, capacity, pull):
    work_rules = rules(**options)
    assert (work_rules.capacity, work_rules.pull) == (capacity, pull)


def test_consumer_limit_respected():
    assert rules(ConsumerConfig(max_batch=3), concurrency=10).pull == 3


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, {"dead_letter": "dead"}, ["only Reject makes a dead letter; set max_deliver of run()"]),
        ({"max_deliver": -1}, {"dead_letter": "dead"}, ["deliveries have no limit"]),
        ({"max_deliver": 3}, {"dead_letter": "dead"}, []),
        ({}, {"dead_letter": "dead", "max_deliver": 3}, []),
        ({"max_deliver": 3}, {"max_deliver": 5}, ["max_deliver of run() is 5, but the consumer stops at 3"]),
        ({"max_deliver": 5}, {"max_deliver": 5}, []),
        ({"max_deliver": -1}, {"max_deliver": 5}, []),
        ({}, {}, []),
    ],
)
def test_doubts(config, options, expected):
    work_rules = rules(ConsumerConfig(**config), **options).doubts()
    assert len(work_rules) == len(expected)
    assert all(part in text for part, text in zip(expected, work_rules, strict=True))
