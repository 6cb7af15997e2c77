"""What is sent to peers on this host and on others."""

from __future__ import annotations

import pytest

from jsclient.errors import InvalidNameError
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import Fresh
from jsclient.protocol.peers.rules import (
    Ask,
    Raised,
    Refusal,
)
from jsclient.protocol.peers.tracker import event_on
from tests.protocol.peers.kit import related, requested, two
from tests.support.peer_world import Node, World

# --- hosts --------------------------------------------------------------------------------------------


HERE, THERE = "nats://here:4222", "tls://there:4222"


def across() -> tuple[World, Node, Node]:
    world = World()
    return (
        world,
        world.node("a", options=EngineOptions(host=HERE, allowed_hosts=frozenset({THERE}))),
        world.node("b", options=EngineOptions(host=THERE, allowed_hosts=frozenset({HERE}))),
    )


@pytest.mark.covers("P4", "P38", "P40", "P42")
def test_hosts_across_systems():
    world, a, b = across()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet", Tx_host=THERE)
    world.settle()
    assert world.sent[-1].host == THERE
    assert b.list("inbound")[0]["Tx_host"] == HERE
    b.ask("pending_subscription_approval", Id="fleet")
    world.settle()
    assert world.sent[-1].host == HERE
    assert a.list("established")[0]["Tx_host"] == THERE
    a.ask("send_event_on_subs", subID="fleet", domain="door", type="open")
    assert world.sent[-1].host == THERE
    assert event_on(b.list("established")[0], "door", "open", {}, "m").host == HERE
    world.settle()
    b.ask("subscription_cancellation", Id="fleet")
    world.settle()
    assert world.sent[-1].host == HERE
    assert a.live("fleet") is None


def test_the_own_host_is_no_host():
    world, a, b = across()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet", Tx_host=HERE)
    world.settle()
    assert (world.sent[0].host, world.sent[0].attrs["Tx_host"]) == (None, None)
    b.receive(b.wk, "new_subscription_request", {"Id": "x", "Tx": "a.x", "Tx_host": THERE})
    assert b.live("x").tx_host is None


@pytest.mark.parametrize("host", ["nats://evil:4222", 7, ["nats://here:4222"]])
def test_host_not_allowed_never_connected_to(host):
    """D30."""
    world, a, b = across()
    b.receive(b.wk, "new_subscription_request", {"Id": "x", "Tx": "c.x", "Tx_host": host})
    assert [one.refusal for one in b.refused] == [Refusal.HOST]
    a.ask("subscription", wellKnown_Tx="c.wk", Tx_host=host)
    assert a.types == ["Tx_host_failure"]
    assert not world.sent
    assert not a.todo


def test_hostless_cannot_cross():
    world = World()
    a = world.node("a", options=EngineOptions(allowed_hosts=frozenset({THERE})))
    a.ask("subscription", wellKnown_Tx="b.wk", Tx_host=THERE)
    assert a.types == ["Tx_host_failure"]


# --- sending ------------------------------------------------------------------------------------------


def fleet() -> tuple[World, Node]:
    world = World()
    hub = world.node("hub")
    for name, role in (("t1", "thing"), ("t2", "thing"), ("c", "controller")):
        node = world.node(name, accepts=lambda attrs: True)
        hub.ask(
            "subscription",
            wellKnown_Tx=node.wk,
            Id=name,
            Rx_role="node" if name != "t2" else "root",
            Tx_role=role,
        )
    world.settle()
    world.sent.clear()
    return world, hub


@pytest.mark.covers("P29", "P30", "P31", "P32")
@pytest.mark.parametrize(
    ("to", "reached"),
    [
        ({"subID": "t1"}, ["t1"]),
        ({"Id": "t1"}, ["t1"]),
        ({"Tx_role": "thing"}, ["t1", "t2"]),
        ({"Rx_role": "node"}, ["t1", "c"]),
        ({"subID": "c", "Tx_role": "thing", "Rx_role": "node"}, ["t1", "t2", "c"]),
    ],
)
def test_event_once_per_target(to, reached):
    """D28."""
    world, hub = fleet()
    hub.ask("send_event_on_subs", Fresh("m", ""), **to, domain="mischief", type="hat_lifted", attrs={"n": 1})
    assert [one.eci.partition(".")[0] for one in world.sent] == reached
    assert {(one.domain, one.type, one.key) for one in world.sent} == {("mischief", "hat_lifted", "")}
    assert [one.id for one in world.sent] == [f"m.{name}" for name in reached]
    world.settle()
    for name in reached:
        got = world.nodes[name].raised[-1]
        assert (got.type, got.attrs, got.eci) == ("hat_lifted", {"n": 1}, world.nodes[name].live(name).rx)


@pytest.mark.covers("P63")
@pytest.mark.parametrize(
    ("attrs", "what"),
    [
        ({"subID": "nobody", "domain": "d", "type": "t"}, "no relationship"),
        ({"domain": "d", "type": "t"}, "no relationship"),
        ({"subID": "t1", "type": "t"}, "no domain"),
        ({"subID": "t1", "domain": "d"}, "no type"),
        ({"subID": "t1", "domain": "d.e", "type": "t"}, "domain"),
        ({"subID": "t1", "domain": "d", "type": "a b"}, "type"),
        ({"subID": "t1", "domain": 7, "type": "t"}, "domain"),
        ({"subID": "t1", "domain": "d", "type": "t", "attrs": [1]}, "object"),
    ],
)
def test_what_cannot_be_sent_is_reported(attrs, what):
    """D29."""
    world, hub = fleet()
    hub.ask("send_event_on_subs", **attrs)
    assert hub.types[-1] == "failed_to_send_event_to_sub"
    assert what in hub.raised[-1].error
    assert not world.sent


def test_by_hand_needs_tx_and_tokens():
    _, a, _ = requested()
    with pytest.raises(InvalidNameError):
        event_on(a.list("outbound")[0], "d", "t", {}, "m")
    with pytest.raises(InvalidNameError):
        event_on({"Tx": "b.x"}, "d.e", "t", {}, "m")


def test_local_event_to_handlers():
    _, a, _ = two()
    a.do(Raised("door", "opened", {"n": 1}, Fresh("i", "c")))
    a.ask("child_created", name="x")
    assert [(one.domain, one.type) for one in a.raised] == [("door", "opened"), ("wrangler", "child_created")]
    with pytest.raises(InvalidNameError):
        a.do(Raised("do.or", "opened", {}, Fresh("i", "c")))


@pytest.mark.covers("P26", "P27")
def test_other_side_can_query_over_tx():
    _, a, b = related()
    tx = a.list("established")[0]["Tx"]
    assert b.query(tx, "established") == b.list("established")
    assert b.query(tx, "established", key="Rx_role", value="thing") == b.list("established")
    assert b.query(tx, "established", key="Rx_role", value="other") == []
    assert b.query(tx, "inbound") == []
    assert b.query(tx, "state", "door", n=1) == Ask("door", "state", {"n": 1})
    assert b.query(tx, "odd").refusal is Refusal.MALFORMED
    assert b.query("b.nothing", "established").refusal is Refusal.NO_CHANNEL
