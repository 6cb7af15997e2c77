"""A request is approved by a handler, a policy or a rule."""

from __future__ import annotations

import pytest

from jsclient.protocol.peers.channel import (
    Channel,
    Policy,
    event_subject,
)
from jsclient.protocol.peers.options import accept_roles
from jsclient.protocol.peers.relationship import Fresh, RelationshipState
from jsclient.protocol.peers.rules import (
    Ask,
    Refusal,
)
from jsclient.protocol.peers.tracker import event_on
from jsclient.protocol.wire.names import subject_matches
from tests.protocol.peers.kit import last, related, requested, two
from tests.support.peer_world import World


@pytest.mark.covers("P6", "P20", "P23", "P48", "P49", "P50")
@pytest.mark.parametrize("by", ["Id", "Rx", "Tx"])
def test_approval_establishes_on_both_sides(by):
    world, a, b = requested(note="hello")
    (pending,) = b.list("inbound")
    b.ask("pending_subscription_approval", **{by: pending[by]}, granted="all")
    assert [one["Id"] for one in b.list("established")] == ["fleet"], "stored first"
    assert not world.network
    world.settle()
    approval = world.sent[-1]
    assert (approval.eci, approval.type) == (a.live("fleet").rx, "outbound_pending_subscription_approved")
    (mine,), (theirs,) = a.list("established"), b.list("established")
    assert (mine["Tx"], mine["Rx"]) == (theirs["Rx"], theirs["Tx"])
    assert not a.list("outbound")
    assert not b.list("inbound")
    passed = {"note": "hello", "granted": "all"}
    assert last(a, "subscription_added").attrs == mine | passed
    assert last(b, "subscription_added").attrs == theirs | passed
    assert a.types.count("subscription_added") == b.types.count("subscription_added") == 1


@pytest.mark.covers("P21")
def test_pending_event_can_approve():
    world, a, b = two()
    b.handlers["inbound_pending_subscription_added"] = lambda event: b.ask(
        "pending_subscription_approval", **event.attrs
    )
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet", Rx="misleading", Tx="misleading")
    world.settle()
    assert a.live("fleet").state is b.live("fleet").state is RelationshipState.ESTABLISHED


@pytest.mark.covers("P2", "P3", "P34", "P35", "P36", "P37")
def test_mirrored_attributes():
    _, a, b = related()
    (mine,), (theirs,) = a.list("established"), b.list("established")
    assert (mine["Tx"], mine["Rx"]) == (theirs["Rx"], theirs["Tx"])
    assert mine["Tx"] in dict(b.tracker.channels)
    assert theirs["Tx"] in dict(a.tracker.channels)
    assert (mine["Rx_role"], mine["Tx_role"]) == (theirs["Tx_role"], theirs["Rx_role"]) == ("owner", "thing")
    assert len(a.tracker.channels) == len(b.tracker.channels) == 2, "the well-known one and one more"


def test_keys_known_to_other_side():
    """D27."""
    _, a, b = related()
    one, other = a.live("fleet"), b.live("fleet")
    assert one.rx_verify_key != other.rx_verify_key
    assert (one.tx_verify_key, one.tx_public_key) == (other.rx_verify_key, other.rx_public_key)
    assert (other.tx_verify_key, other.tx_public_key) == (one.rx_verify_key, one.rx_public_key)


def test_without_keys_they_are_null():
    """D27."""
    world, a, b = two()
    a.ask("subscription", Fresh("i", "c"), wellKnown_Tx=b.wk)
    world.settle()
    assert b.list("inbound")[0]["Tx_verify_key"] is None
    assert "Tx_verify_key" in world.sent[0].attrs


@pytest.mark.covers("P23", "P27", "P28")
def test_added_handler_can_send():
    world, a, b = two()
    for node, other in ((a, b), (b, a)):
        node.handlers["subscription_added"] = lambda event, node=node: node.world.send(
            event_on(event.attrs, "door", "hello", {"from": node.name}, f"hello-{node.name}")
        )
        other.handlers["hello"] = other.answers.append
    b.handlers["inbound_pending_subscription_added"] = lambda event: b.ask(
        "pending_subscription_approval", **event.attrs
    )
    a.ask("subscription", wellKnown_Tx=b.wk)
    world.settle()
    assert [one.attrs for one in a.answers] == [{"from": "b"}]
    assert [one.attrs for one in b.answers] == [{"from": "a"}]


@pytest.mark.covers("P65")
def test_to_approve_again_changes_nothing():
    world, a, b = related()
    b.ask("pending_subscription_approval", Id="fleet")
    b.ask("subscription_cancellation", Id="fleet")
    world.settle()
    b.ask("pending_subscription_approval", Id="fleet")
    assert b.live("fleet") is None
    assert a.live("fleet") is None


def test_cannot_approve_own_request():
    _, a, b = requested()
    a.ask("pending_subscription_approval", Id="fleet")
    b.ask("pending_subscription_approval", Id="nothing")
    assert a.types[-1] == b.types[-1] == "no_such_subscription_failure"
    assert "nothing" in b.raised[-1].error
    assert a.live("fleet").state is RelationshipState.OUTBOUND


def test_policy_can_be_given_on_both_sides():
    world, a, b = two()
    policy = Policy(events=("door:opened",))
    a.ask("subscription", policy=policy, wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    b.ask("pending_subscription_approval", policy=Policy(queries=("door:state",)), Id="fleet")
    world.settle()
    a.restart()
    b.restart()
    rx, other = a.live("fleet").rx, b.live("fleet").rx
    a.receive(rx, "closed", {}, "door")
    assert a.refused[-1].refusal is Refusal.POLICY
    a.receive(rx, "opened", {}, "door")
    assert a.raised[-1].type == "opened"
    assert isinstance(b.query(other, "state", "door", n=1), Ask)
    allowed = Channel(rx, (), dict(a.tracker.channels)[rx]).nats_permissions().publish
    assert any(subject_matches(one, event_subject(rx, "door", "opened")) for one in allowed)


@pytest.mark.covers("P66")
def test_requests_can_be_approved_by_roles():
    world = World()
    a, b = world.node("a"), world.node("b", accepts=accept_roles(Rx_role="thing", Tx_role=["owner", "guest"]))
    a.ask("subscription", wellKnown_Tx=b.wk, Id="yes", Rx_role="owner", Tx_role="thing")
    a.ask("subscription", wellKnown_Tx=b.wk, Id="no", Rx_role="thief", Tx_role="thing")
    world.settle()
    assert a.live("yes").state is RelationshipState.ESTABLISHED
    assert [one for one in b.types if one != "subscription_added"] == [
        "inbound_pending_subscription_added"
    ] * 2
    assert b.types.index("inbound_pending_subscription_added") < b.types.index("subscription_added")
    assert b.live("no").state is RelationshipState.INBOUND, "turned down by the rule is not rejected"
