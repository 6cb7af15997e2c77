"""The wire fields of the configuration of a consumer."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.models import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    user_set,
)
from jsclient.protocol.wire.codec import decode, encode, from_wire, to_wire
from tests.protocol.models.kit import ADR_15, ALWAYS, NEWER


@pytest.mark.covers("J9")
@pytest.mark.parametrize(("field", "value", "wire"), ADR_15 + NEWER)
def test_field_of_consumer_on_wire(field, value, wire):
    sent = to_wire(ConsumerConfig(**{field: value}))
    assert sent == ALWAYS | {field: wire}
    assert type(sent[field]) is type(wire)
    back = from_wire(ConsumerConfig, decode(encode(sent)))
    assert to_wire(back) == sent
    assert back.extra == {}


@pytest.mark.covers("J9")
def test_consumer_fields_match_adr():
    known = {field for field, _, _ in ADR_15 + NEWER}
    assert len(ADR_15) == 18
    assert set(ConsumerConfig.__struct_fields__) == known | {"extra"}


@pytest.mark.covers("J10")
def test_policies_always_sent():
    assert to_wire(ConsumerConfig()) == ALWAYS
    assert decode(encode({"stream_name": "S", "config": ConsumerConfig()}))["config"] == ALWAYS
    assert to_wire(ConsumerConfig(ack_policy="none")) == ALWAYS | {"ack_policy": "none"}


@pytest.mark.covers("J10")
def test_a_zero_that_was_set_is_sent():
    wire = to_wire(ConsumerConfig(max_deliver=0, flow_control=False, description="", ack_wait=0))
    assert wire == ALWAYS | {"max_deliver": 0, "flow_control": False, "description": "", "ack_wait": 0}


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        (AckPolicy, "none all explicit flow_control"),
        (DeliverPolicy, "all last new by_start_sequence by_start_time last_per_subject"),
        (ReplayPolicy, "instant original"),
        (PriorityPolicy, "none overflow pinned_client prioritized"),
        (RetentionPolicy, "limits interest workqueue"),
        (StorageType, "file memory"),
        (DiscardPolicy, "old new"),
        (StoreCompression, "none s2"),
        (PersistMode, "default async"),
    ],
)
def test_the_words_of_the_wire(enum, words):
    assert [str(member) for member in enum] == words.split()


def test_unknown_word_is_accepted_from_server_only():
    with pytest.raises(ConfigError, match="'sometimes' is none of 'none', 'all', 'explicit', 'flow_control'"):
        ConsumerConfig(ack_policy="sometimes")
    config = from_wire(ConsumerConfig, {"ack_policy": "sometimes"})
    assert config.ack_policy == "sometimes"
    assert to_wire(config.replace(max_deliver=3))["ack_policy"] == "sometimes"


def test_what_a_user_set():
    assert user_set(ConsumerConfig()) == {}
    assert user_set(ConsumerConfig(max_deliver=0, ack_policy="none", extra={"new": 1, "null": None})) == {
        "max_deliver": 0,
        "ack_policy": AckPolicy.NONE,
        "new": 1,
    }


@pytest.mark.parametrize(
    ("config", "filters"),
    [
        (ConsumerConfig(), []),
        (ConsumerConfig(filter_subject=""), []),
        (ConsumerConfig(filter_subject="a"), ["a"]),
        (ConsumerConfig(filter_subjects=["a", "b"]), ["a", "b"]),
    ],
)
def test_filters_in_any_form(config, filters):
    assert config.filters == filters
