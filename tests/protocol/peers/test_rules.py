"""The decisions about a request for a relationship, from the peer itself and from another peer."""

from __future__ import annotations

import pytest

from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import MAX_DEAD, Fresh, RelationshipState
from jsclient.protocol.peers.rules import (
    Redeliver,
    Refusal,
)
from tests.protocol.peers.kit import last, related, requested, two


@pytest.mark.covers("P16", "P43")
def test_request_makes_channel_and_says_so():
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Rx_role="owner", Tx_role="thing", note="hello")
    (record,) = a.list("outbound")
    assert record["Rx"] in dict(a.tracker.channels)
    world.settle()
    needed = last(a, "subscription_request_needed")
    assert needed.attrs["Rx"] == record["Rx"]
    assert needed.attrs["wellKnown_Tx"] == b.wk
    assert needed.attrs["note"] == "hello"


@pytest.mark.covers("P8", "P17", "P41", "P44")
def test_request_has_all_attributes():
    world, a, b = two()
    attrs = {
        "Rx_role": "owner",
        "Tx_role": "thing",
        "note": {"deep": [1]},
        "Tx": "odd",
        "Rx": "odd",
        "Tx_public_key": 1,
    }
    a.ask("subscription", wellKnown_Tx=b.wk, name="kitchen", **attrs)
    world.settle()
    (sent,) = world.sent
    (record,) = a.list("outbound")
    assert (sent.eci, sent.domain, sent.type, sent.host) == (
        b.wk,
        "wrangler",
        "new_subscription_request",
        None,
    )
    own = a.record(record["Id"])
    assert sent.attrs == {
        "Id": record["Id"],
        "Tx": record["Rx"],
        "Rx_role": "thing",
        "Tx_role": "owner",
        "Tx_host": None,
        "Tx_verify_key": own.rx_verify_key,
        "Tx_public_key": own.rx_public_key,
        "name": "kitchen",
        "channel_type": "subscription",
        "note": {"deep": [1]},
        "wellKnown_Tx": b.wk,
    }


@pytest.mark.covers("P18", "P19", "P45", "P46", "P47")
def test_both_sides_pending():
    world, a, b = requested(note="hello", name="kitchen")
    assert a.types == ["subscription_request_needed", "outbound_pending_subscription_added"]
    assert b.types == ["inbound_pending_subscription_added"]
    (mine,), (theirs,) = a.list("outbound"), b.list("inbound")
    assert (mine["Id"], mine["Tx"], mine["Rx_role"], mine["Tx_role"]) == ("fleet", None, "owner", "thing")
    assert (theirs["Id"], theirs["Tx"], theirs["Rx_role"], theirs["Tx_role"]) == (
        "fleet",
        mine["Rx"],
        "thing",
        "owner",
    )
    assert theirs["Rx"] in dict(b.tracker.channels)
    record = a.record("fleet")
    assert (theirs["Tx_verify_key"], theirs["Tx_public_key"]) == (record.rx_verify_key, record.rx_public_key)
    reports = b.raised[0].attrs
    assert reports == theirs | {"note": "hello", "wellKnown_Tx": b.wk}
    assert last(a, "outbound_pending_subscription_added").attrs == mine | {"note": "hello"}
    assert len(world.sent) == 1


@pytest.mark.covers("P33")
def test_same_id_on_both_sides():
    world, a, b = two()
    a.ask("subscription", Fresh("unique", "x"), wellKnown_Tx=b.wk)
    world.settle()
    assert a.list("outbound")[0]["Id"] == b.list("inbound")[0]["Id"] == "unique"
    assert a.list("outbound")[0]["name"] == "unique"


@pytest.mark.covers("P59")
@pytest.mark.parametrize("eci", [None, "", "b", "b.*", 7])
def test_no_tx_no_request(eci):
    world, a, _ = two()
    a.ask("subscription", wellKnown_Tx=eci)
    assert a.types == ["wellKnown_Tx_format_failure"]
    assert "subscription" in a.raised[0].error
    assert not a.list("outbound")
    assert not world.sent


@pytest.mark.parametrize("id", ["", "a.b", "a b", "x" * 101, 7, "ä", ["a"]])
def test_id_token_can_be_key(id):
    _, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id=id)
    assert a.types == ["Id_format_failure"]


def test_a_role_is_a_text():
    _, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Rx_role=7)
    assert a.types == ["role_format_failure"]


def test_id_in_use_refused_here():
    _, a, b = related()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    assert a.types == ["duplicate_id_failure"]
    assert a.live("fleet").state is RelationshipState.ESTABLISHED


@pytest.mark.covers("P65")
def test_same_request_again_changes_nothing():
    world, a, b = two()
    fresh = Fresh("i", "c")
    for _ in range(2):
        a.ask("subscription", fresh, wellKnown_Tx=b.wk, Id="fleet")
        world.settle()
    assert len(world.sent) == 1
    a.ask("outbound_cancellation", Id="fleet")
    world.settle()
    a.ask("subscription", fresh, wellKnown_Tx=b.wk, Id="fleet")
    assert a.live("fleet") is None


@pytest.mark.covers("P60")
def test_request_without_tx_reported():
    _, _, b = two()
    b.receive(b.wk, "new_subscription_request", {"Id": "x"})
    assert b.types == ["no_Tx_failure"]
    assert b.raised[0].error
    assert not b.list("inbound")


@pytest.mark.parametrize(
    "odd",
    [
        {"Id": None},
        {"Id": "a.b"},
        {"Id": 7},
        {"Tx": "x"},
        {"Tx": "a.>"},
        {"Tx": 7},
        {"Rx_role": 7},
        {"Tx_role": []},
    ],
)
def test_request_makes_no_sense_refused(odd):
    _, _, b = two()
    b.receive(b.wk, "new_subscription_request", {"Id": "x", "Tx": "a.x"} | odd)
    assert [one.refusal for one in b.refused] == [Refusal.MALFORMED]
    assert len(b.store) == 1


def test_second_same_id_refused():
    """D26."""
    world, a, b = related()
    c = world.node("c")
    c.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    assert c.live("fleet") is None
    assert last(c, "outbound_subscription_cancelled").attrs["failed_request"] == "duplicate_id_failure"
    assert last(b, "duplicate_id_failure").error
    assert b.live("fleet").tx == a.live("fleet").rx, "the relationship of a is as it was"
    b.ask("subscription_cancellation", Id="fleet")
    world.settle()
    assert a.live("fleet") is None


def test_twins_bounded():
    _, _, b = related()
    for number in range(MAX_DEAD + 3):
        b.receive(b.wk, "new_subscription_request", {"Id": "fleet", "Tx": f"c.x{number}"})
        while b.todo:
            b.step()
    assert len(b.record("fleet").dead) == MAX_DEAD
    assert len(b.retried) == 3
    b.receive(b.wk, "inbound_removal", {"Id": "fleet", "Tx": "c.new"})
    assert len(b.retried) == 4
    assert b.live("fleet")


def test_excess_requests_wait():
    world, a, b = two(options=EngineOptions(max_inbound=2, retry_delay=3.0))
    for which in "pqr":
        a.ask("subscription", wellKnown_Tx=b.wk, Id=which)
    for _ in range(20):
        # one step of one peer, or one delivery, until both are idle
        if a.todo or b.todo:
            (a if a.todo else b).step()
        elif world.network:
            world.deliver()
    assert len(b.list("inbound")) == 2
    assert b.retried[0] == Redeliver(3.0, "too many requests wait to be decided")
    b.receive(b.wk, "inbound_removal", {"Id": "early", "Tx": "c.x"})
    assert b.record("early") is None, "what came too early waits too"
    b.ask("inbound_rejection", Id="p")
    world.settle()
    assert sorted(one["Id"] for one in b.list("inbound")) == ["q", "r"]
