"""When a consumer that exists is not the consumer that was asked for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jsclient.protocol.models import ConsumerConfig
from jsclient.protocol.models.drift import config_mismatches
from jsclient.protocol.wire.codec import from_wire, to_wire
from tests.protocol.models.kit import ADR_15, NEWER, NOON

OTHER = {
    "ack_policy": "none",
    "ack_wait": 31,
    "deliver_group": "others",
    "deliver_policy": "last",
    "description": "another",
    "durable_name": "e",
    "filter_subject": "b",
    "flow_control": False,
    "idle_heartbeat": 6,
    "max_ack_pending": 8,
    "max_deliver": 4,
    "max_waiting": 9,
    "opt_start_seq": 5,
    "opt_start_time": "2030-01-31T12:00:00.000000001Z",
    "rate_limit_bps": 2000,
    "replay_policy": "instant",
    "sample_freq": "51",
    "backoff": [1, 2],
    "filter_subjects": ["a"],
    "headers_only": False,
    "max_batch": 6,
    "max_expires": 4,
    "max_bytes": 1001,
    "inactive_threshold": 31,
    "num_replicas": 1,
    "mem_storage": False,
    "metadata": {"a": "c"},
    "pause_until": NOON,
    "priority_groups": ["B"],
    "priority_policy": "pinned_client",
    "priority_timeout": 10,
}


COMPARED = [(field, value) for field, value, _ in ADR_15 + NEWER if field not in ("deliver_subject", "name")]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_set_and_differs_mismatch(field, value):
    expected = ConsumerConfig(**{field: value})
    existing = ConsumerConfig(**{field: OTHER[field]})
    assert config_mismatches(expected, existing) == [
        (field, getattr(expected, field), getattr(existing, field))
    ]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_set_and_absent_there_mismatch(field, value):
    expected = ConsumerConfig(**{field: value})
    assert config_mismatches(expected, ConsumerConfig()) == [(field, getattr(expected, field), None)]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_not_set_not_compared(field, value):
    assert config_mismatches(ConsumerConfig(), ConsumerConfig(**{field: value})) == []


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_same_value_no_mismatch(field, value):
    expected = ConsumerConfig(**{field: value})
    assert config_mismatches(expected, from_wire(ConsumerConfig, to_wire(expected))) == []


@pytest.mark.covers("J36")
def test_all_mismatches_reported_in_order():
    expected = ConsumerConfig(max_deliver=3, ack_wait=1, description="x", extra={"new": 1})
    existing = ConsumerConfig(max_deliver=4, ack_wait=2, description="x", extra={"new": 2})
    assert config_mismatches(expected, existing) == [
        ("new", 1, 2),
        ("ack_wait", 1.0, 2.0),
        ("max_deliver", 3, 4),
    ]


@pytest.mark.covers("J37")
def test_deliver_subject_no_mismatch():
    assert config_mismatches(ConsumerConfig(deliver_subject="a"), ConsumerConfig(deliver_subject="b")) == []
    assert config_mismatches(ConsumerConfig(deliver_subject="a"), ConsumerConfig()) == []
    assert config_mismatches(ConsumerConfig(name="a"), ConsumerConfig(name="b")) == []


# The configuration of a user, and the configuration that the server (2.15.1) has after creating the consumer from it.
SERVER_MADE_OF_IT = [
    ({"ack_wait": 0}, {"ack_wait": 30}),
    ({"ack_wait": 5, "backoff": [1, 2]}, {"ack_wait": 1, "backoff": [1, 2]}),
    ({"max_deliver": 0}, {"max_deliver": -1}),
    ({"max_deliver": -1}, {"max_deliver": -1}),
    ({"max_deliver": -5}, {"max_deliver": -1}),
    ({"max_waiting": 0}, {"max_waiting": 512}),
    ({"max_waiting": -1}, {"max_waiting": 512}),
    ({"max_ack_pending": 0}, {"max_ack_pending": 1000}),
    ({"max_ack_pending": -7}, {"max_ack_pending": -1}),
    ({"max_batch": 0}, {"max_batch": 100}),
    ({"max_batch": -1}, {}),
    ({"max_expires": -1}, {}),
    ({"max_bytes": -1}, {}),
    ({"inactive_threshold": 0}, {"inactive_threshold": 5}),
    ({"inactive_threshold": -1}, {}),
    ({"num_replicas": 0}, {"num_replicas": 3}),
    ({"priority_timeout": 0}, {"priority_timeout": 120}),
    ({"idle_heartbeat": 0}, {}),
    ({"idle_heartbeat": -1}, {}),
    ({"rate_limit_bps": 0}, {}),
    ({"flow_control": False, "headers_only": False, "mem_storage": False}, {}),
    ({"flow_control": None}, {"flow_control": False}),
    ({"ack_policy": "flow_control", "flow_control": False, "idle_heartbeat": 5},
     {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": 1}),
    ({"description": "", "sample_freq": "", "filter_subject": ""}, {}),
    ({"filter_subjects": [], "backoff": [], "metadata": {}, "priority_groups": []}, {}),
    ({"filter_subjects": ["a"]}, {"filter_subject": "a"}),
    ({"filter_subject": "a"}, {"filter_subjects": ["a"]}),
    ({"filter_subjects": ["b", "a"]}, {"filter_subjects": ["a", "b"]}),
    ({"metadata": {"a": "b"}}, {"metadata": {"a": "b", "_nats.level": "5", "_nats.ver": "2.15.1"}}),
    ({"metadata": {"_nats.x": "y"}}, {"metadata": {"_nats.level": "5"}}),
    ({"metadata": {}}, {"metadata": {"_nats.level": "5"}}),
    ({"sample_freq": "50%"}, {"sample_freq": "50"}),
    ({"priority_policy": "none"}, {}),
    ({"opt_start_time": "2030-01-31T14:00:00.000000001+02:00"}, {"opt_start_time": "2030-01-31T12:00:00.000000001Z"}),
    ({"opt_start_time": NOON}, {"opt_start_time": "2030-01-31T12:00:00Z"}),
    ({"ack_wait": timedelta(seconds=1.5)}, {"ack_wait": 1.5}),
]  # fmt: skip


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("expected", "existing"), SERVER_MADE_OF_IT)
def test_no_conflict_with_own(expected, existing):
    assert config_mismatches(ConsumerConfig(**expected), ConsumerConfig(**existing)) == []


@pytest.mark.covers("J36")
@pytest.mark.parametrize(
    ("expected", "existing", "field"),
    [
        ({"max_deliver": -1}, {"max_deliver": 5}, "max_deliver"),
        ({"max_ack_pending": -1}, {"max_ack_pending": 1000}, "max_ack_pending"),
        ({"idle_heartbeat": 0}, {"idle_heartbeat": 5}, "idle_heartbeat"),
        ({"flow_control": False}, {"flow_control": True}, "flow_control"),
        ({"description": ""}, {"description": "x"}, "description"),
        ({"metadata": {}}, {"metadata": {"a": "b"}}, "metadata"),
        ({"filter_subject": ""}, {"filter_subject": "a"}, "filter_subject"),
        ({"filter_subject": "a"}, {"filter_subjects": ["a", "b"]}, "filter_subject"),
        ({"backoff": [1, 2]}, {"backoff": [2, 1]}, "backoff"),
        ({"ack_wait": 5, "backoff": [1, 2]}, {"ack_wait": 3, "backoff": [1, 2]}, "ack_wait"),
        ({"ack_wait": 1.000_000_001}, {"ack_wait": 1}, "ack_wait"),
        ({"ack_policy": "explicit"}, {"ack_policy": "all"}, "ack_policy"),
    ],
)
def test_what_looks_alike_and_is_not(expected, existing, field):
    mismatches = config_mismatches(ConsumerConfig(**expected), ConsumerConfig(**existing))
    assert [name for name, _, _ in mismatches] == [field]
