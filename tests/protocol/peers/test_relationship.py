"""The record of a relationship: how it is stored, read, looked up and listed."""

from __future__ import annotations

import pytest

from jsclient.errors import ProtocolError
from jsclient.protocol.peers.channel import Policy
from jsclient.protocol.peers.relationship import (
    Dead,
    Raise,
    Relationship,
    RelationshipState,
    Send,
    filtered,
    read_value,
    selected,
    targets,
    write_value,
)


def build(which: str, state: RelationshipState = RelationshipState.ESTABLISHED, **fields) -> Relationship:
    defaults = {"rx": f"a.{which}", "tx": f"b.{which}"}
    return Relationship(id=which, state=state, **(defaults | fields))


RECORDS = [
    build("one", rx_role="node", tx_role="hub"),
    build("two", rx_role="node", tx_role="leaf"),
    build("three", rx_role="owner"),
    build("four", RelationshipState.INBOUND, rx_role="node"),
    build("five", RelationshipState.OUTBOUND, tx=None),
    build("six", RelationshipState.REMOVED, tx=None),
]


def ids(records):
    return [one.id for one in records]


def test_record_comes_back_from_store():
    record = build(
        "one",
        RelationshipState.REMOVED,
        policy=Policy(events=("door:*",)),
        attrs={"note": [1, {"a": None}]},
        dead=(Dead("b.x", 12.5),),
        outbox=(
            Send(eci="b.wk", domain="wrangler", type="t", attrs={"x": 1}, id="m", host="nats://h", key="k"),
            Raise(domain="wrangler", type="t", attrs={}, id="m2", error="why", key="k"),
        ),
    )
    assert read_value("relationship.one", write_value(record)) == record


def test_words_in_store_those_of_picos():
    text = write_value(build("one", tx_role="hub", tx_host="nats://h", well_known_tx="b.wk")).decode()
    for word in (
        '"Id":"one"',
        '"Tx":"b.one"',
        '"Rx":"a.one"',
        '"Tx_role":"hub"',
        '"Tx_host":',
        '"wellKnown_Tx":',
    ):
        assert word in text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"Id":"one","state":"odd"}',
        b'{"Id":"two","state":"inbound"}',
        b"[" * 10**5,
    ],
)
def test_error_names_invalid_record(data):
    with pytest.raises(ProtocolError, match="relationship"):
        read_value("relationship.one", data)


def test_error_names_invalid_channel():
    with pytest.raises(ProtocolError, match="channel"):
        read_value("channel.x", b'{"eci":"a.b","policy":{"events":["odd"]}}')


@pytest.mark.covers("P65")
def test_dead_request_until_its_time():
    record = build("one", RelationshipState.REMOVED, dead=(Dead("b.x", 12.5), Dead("b.y", 20.0)))
    assert record.knows_dead("b.x", 12.4)
    assert not record.knows_dead("b.x", 12.5), "its time is over"
    assert record.knows_dead("b.y", 12.5)
    assert not record.knows_dead("b.z", 0.0)
    assert record.with_dead("b.z", 30.0, 12.5) == (Dead("b.y", 20.0), Dead("b.z", 30.0)), "b.x is forgotten"
    assert record.with_dead("b.y", 30.0, 1.0) == (Dead("b.x", 12.5), Dead("b.y", 30.0)), "one entry each"


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"Id": "one"}, "one"),
        ({"Id": "one", "Rx": "a.two", "Tx": "b.two"}, "one"),
        ({"Rx": "a.two"}, "two"),
        ({"Rx": "a.two", "Tx": "b.three"}, "two"),
        ({"Tx": "b.three"}, "three"),
        ({}, "four"),
        ({"Id": None, "Rx": None, "Tx": None}, "four"),
        ({"Id": "nobody"}, None),
        ({"Rx": "a.nobody"}, None),
        ({"Id": ["one"]}, None),
        ({"Rx": "a.six"}, "six"),
        ({"Tx": "b.six"}, None),
    ],
)
@pytest.mark.covers("P62")
def test_lookup_order_of_message(attrs, expected):
    record = selected(RECORDS, attrs, "a.four")
    assert (record and record.id) == expected


def test_no_channel_names_nothing():
    assert selected(RECORDS, {}, None) is None
    assert selected(RECORDS, {}, "a.six") is None


@pytest.mark.covers("P29", "P30", "P31", "P32")
def test_sent_to_the_union_each_once():
    """D28."""
    assert ids(targets(RECORDS, id="one")) == ["one"]
    assert ids(targets(RECORDS, tx_role="hub")) == ["one"]
    assert ids(targets(RECORDS, rx_role="node")) == ["one", "two"]
    assert ids(targets(RECORDS, id="one", tx_role="leaf", rx_role="owner")) == ["one", "two", "three"]
    assert ids(targets(RECORDS, id="one", tx_role="hub", rx_role="node")) == ["one", "two"]
    assert targets(RECORDS) == []
    assert targets(RECORDS, id="four") == [], "pending"


@pytest.mark.covers("P61")
def test_lists_by_state_and_by_key_and_value():
    assert [one["Id"] for one in filtered(RECORDS, RelationshipState.ESTABLISHED)] == ["one", "two", "three"]
    assert [one["Id"] for one in filtered(RECORDS, RelationshipState.ESTABLISHED, "Rx_role", "node")] == [
        "one",
        "two",
    ]
    assert [one["Id"] for one in filtered(RECORDS, RelationshipState.ESTABLISHED, "Tx_role", None)] == [
        "three"
    ]
    assert filtered(RECORDS, RelationshipState.ESTABLISHED, "odd", None) == []
    assert [one["Id"] for one in filtered(RECORDS, RelationshipState.INBOUND)] == ["four"]
    assert [one["Id"] for one in filtered(RECORDS, RelationshipState.OUTBOUND, "Rx", "a.five")] == ["five"]


@pytest.mark.covers("P26", "P39")
def test_list_all_needed_and_unknown_none():
    (one,) = filtered([build("one", rx_role="node")], RelationshipState.ESTABLISHED)
    assert one == {
        "Id": "one",
        "Tx": "b.one",
        "Rx": "a.one",
        "Tx_role": None,
        "Rx_role": "node",
        "Tx_host": None,
        "Tx_verify_key": None,
        "Tx_public_key": None,
        "name": None,
        "channel_type": None,
    }
