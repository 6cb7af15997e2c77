"""Stored messages, in both forms in which a server sends them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ProtocolError
from jsclient.protocol.models import (
    AckPolicy,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StoredMessage,
    consumer,
    read_direct_message,
    read_stored_message,
    stream_config,
)
from jsclient.protocol.wire.headers import Headers
from tests.protocol.models.kit import JSON, TIME, answer

TIME_NS = 1_795_199_360_230_418_711
STORED = StoredMessage(
    subject="f.2",
    seq=104,
    data=b"pay",
    headers=Headers([("Nats-Subject", "own"), ("A", "b"), ("A", "c")]),
    time=datetime(2026, 11, 20, 18, 29, 20, 230418, tzinfo=UTC),
    time_ns=TIME_NS,
)


def direct(**changes):
    added = {
        "Nats-Stream": "F",
        "Nats-Subject": "f.2",
        "Nats-Sequence": "104",
        "Nats-Time-Stamp": TIME,
    } | changes
    own = [("Nats-Subject", "own"), ("A", "b"), ("A", "c")]
    return Headers([*own, *((name, value) for name, value in added.items() if value is not None)])


def test_both_ways_to_get_message_give_same():
    assert read_stored_message(answer()) == STORED
    assert read_direct_message(direct(), b"pay") == STORED


def test_message_without_headers_and_payload():
    actual = read_stored_message(answer(hdrs=None, data=None))
    assert (actual.headers, actual.data) == ({}, b"")


def test_batch_message_has_num_pending():
    extra = {"Nats-Num-Pending": "7", "Nats-Last-Sequence": "103", "Nats-UpTo-Sequence": "200"}
    actual = read_direct_message(direct(**extra), b"pay")
    assert actual.num_pending == 7
    assert actual.headers == STORED.headers


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": None},
        {"subject": 7},
        {"seq": None},
        {"seq": "104"},
        {"seq": True},
        {"hdrs": 7},
        {"hdrs": "%%%"},
        {"hdrs": "é"},
        {"data": "abc"},
        {"data": []},
        {"time": None},
        {"time": "now"},
    ],
)
def test_what_is_no_stored_message(changes):
    with pytest.raises(ProtocolError):
        read_stored_message(answer(**changes))


@pytest.mark.parametrize("broken", [{}, {"message": None}, {"message": []}, {"message": {}}])
def test_an_answer_without_a_message(broken):
    with pytest.raises(ProtocolError):
        read_stored_message(broken)


@pytest.mark.parametrize(
    "headers",
    [
        Headers(),
        direct(**{"Nats-Sequence": None}),
        direct(**{"Nats-Sequence": "-1"}),
        direct(**{"Nats-Sequence": "1_0"}),
        direct(**{"Nats-Sequence": "٣"}),
        direct(**{"Nats-Sequence": "9" * 400}),
        direct(**{"Nats-Time-Stamp": None}),
        direct(**{"Nats-Time-Stamp": "now"}),
        direct(**{"Nats-Subject": ""}),
        direct(**{"Nats-Num-Pending": "many"}),
    ],
)
def test_what_is_no_direct_message(headers):
    with pytest.raises(ProtocolError):
        read_direct_message(headers, b"")


@given(st.dictionaries(st.sampled_from(["subject", "seq", "hdrs", "data", "time"]), JSON))
def test_any_stored_message_or_error(changes):
    try:
        assert isinstance(read_stored_message(answer(**changes)), StoredMessage)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("module", "enum"),
    [
        *((consumer, enum) for enum in (AckPolicy, DeliverPolicy, ReplayPolicy, PriorityPolicy)),
        *(
            (stream_config, enum)
            for enum in (RetentionPolicy, DiscardPolicy, StorageType, StoreCompression, PersistMode)
        ),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2],
)
def test_texts_of_enums(module, enum):
    """Type checkers see a misspelt text: the aliases have the values of the enum, and the fields take no others."""
    texts = getattr(module, f"{enum.__name__}Text")
    assert list(get_args(texts)) == [member.value for member in enum]
    fields = consumer.ConsumerFields if module is consumer else stream_config.StreamFields
    assert f"{enum.__name__} | {enum.__name__}Text | None" in str(fields.__annotations__)
    assert f"{enum.__name__} | str" not in str(fields.__annotations__)
