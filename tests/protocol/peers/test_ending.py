"""A relationship is rejected, revoked or cancelled, and who may do that."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.peers.channel import (
    open_policy,
)
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import Fresh, RelationshipState
from jsclient.protocol.peers.rules import (
    OpenChannel,
    Refusal,
    RemovePeer,
)
from jsclient.protocol.peers.tracker import PeerTracker
from tests.protocol.peers.kit import related, requested, two

# --- rejecting, revoking, cancelling ------------------------------------------------------------------


@pytest.mark.covers("P22", "P51", "P52", "P64")
def test_a_rejection():
    world, a, b = requested()
    rx = b.live("fleet").rx
    b.ask("inbound_rejection", Rx=rx, reason="no room")
    world.settle()
    assert (world.sent[-1].type, world.sent[-1].eci) == ("outbound_removal", a.record("fleet").rx)
    assert b.types[-2:] == ["inbound_removal", "inbound_subscription_cancelled"]
    assert a.types[-1] == "outbound_subscription_cancelled"
    assert a.raised[-1].attrs["reason"] == "no room"
    assert a.raised[-1].attrs["Rx_role"] == "owner"
    assert not a.list("outbound")
    assert not b.list("inbound")
    assert len(a.tracker.channels) == len(b.tracker.channels) == 1


@pytest.mark.covers("P53", "P54", "P64")
def test_a_revocation():
    world, a, b = requested()
    a.ask("outbound_cancellation", Rx=a.live("fleet").rx)
    world.settle()
    sent = world.sent[-1]
    assert (sent.type, sent.eci) == ("inbound_removal", b.wk)
    assert (sent.attrs["Id"], sent.attrs["Tx"]) == ("fleet", a.record("fleet").rx), (
        "proof of being the requester"
    )
    assert a.types[-2:] == ["outbound_removal", "outbound_subscription_cancelled"]
    assert b.types[-1] == "inbound_subscription_cancelled"
    assert not a.list("outbound")
    assert not b.list("inbound")
    assert len(a.tracker.channels) == len(b.tracker.channels) == 1


@pytest.mark.covers("P24", "P25", "P55", "P56", "P57", "P58")
@pytest.mark.parametrize("by", ["Id", "Rx", "Tx"])
@pytest.mark.parametrize("first", [0, 1])
def test_cancellation_from_either_side(by, first):
    world, *nodes = related()
    one, other = nodes[first], nodes[1 - first]
    (known,), channel = one.list("established"), other.live("fleet").rx
    one.ask("subscription_cancellation", **{by: known[by]})
    world.settle()
    (sent,) = world.sent
    assert (sent.type, sent.eci) == ("established_removal", channel)
    for node in nodes:
        assert node.types == ["established_removal", "subscription_removed"]
        assert node.raised[-1].attrs["Id"] == "fleet"
        assert node.raised[-1].attrs["Rx_role"] in ("owner", "thing")
        assert not node.list("established")
        assert len(node.tracker.channels) == 1


def test_both_cancel_at_once():
    world, a, b = related()
    for node in (a, b):
        node.ask("subscription_cancellation", Id="fleet")
    world.settle()
    assert a.types == b.types == ["established_removal", "subscription_removed"]
    assert [one.refusal for one in (*a.refused, *b.refused)] == [Refusal.CHANNEL_GONE] * 2


def test_approval_by_channel():
    world, a, b = requested()
    b.ask("pending_subscription_approval", policy=open_policy(), Id="fleet")
    world.settle()
    b.receive(b.live("fleet").rx, "subscription_cancellation", {})
    world.settle()
    assert b.live("fleet") is None
    assert a.live("fleet") is None


@pytest.mark.covers("P65")
@pytest.mark.parametrize("by", ["Id", "Rx"])
@pytest.mark.parametrize("type", ["inbound_rejection", "outbound_cancellation", "subscription_cancellation"])
def test_to_end_again_changes_nothing(type, by):
    world, a, b = requested()
    node = b if type == "inbound_rejection" else a
    name = {by: getattr(node.live("fleet"), by.lower())}
    node.ask(type, **name)
    world.settle()
    count, saved = len(world.sent), dict(node.store)
    node.raised.clear()
    node.ask(type, **name)
    assert (len(world.sent), node.store, node.types) == (count, saved, [])


def test_who_may_reject_and_who_may_revoke():
    _, a, b = requested()
    a.ask("inbound_rejection", Id="fleet")
    b.ask("outbound_cancellation", Id="fleet")
    assert a.types[-1] == b.types[-1] == "no_such_subscription_failure"
    assert a.live("fleet")
    assert b.live("fleet")


def test_revocation_crosses_approval_wins():
    world, a, b = requested()
    b.ask("pending_subscription_approval", Id="fleet")
    while b.todo:
        b.step()
    a.ask("outbound_cancellation", Id="fleet")
    world.settle()
    assert a.live("fleet") is None
    assert b.live("fleet") is None
    assert b.types[-1] == "subscription_removed", "to b it was established"
    assert a.types[-1] == "outbound_subscription_cancelled", "to a it was pending"


@pytest.mark.parametrize(("type", "node"), [("outbound_cancellation", 0), ("inbound_rejection", 1)])
def test_revoke_established_ends(type, node):
    world, *nodes = related()
    nodes[node].ask(type, Id="fleet")
    world.settle()
    assert [one.types[-1] for one in nodes] == ["subscription_removed"] * 2


def test_revocation_faster_than_request():
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    a.ask("outbound_cancellation", Id="fleet")
    while a.todo:
        a.step()
    assert [one.send.type for one in world.network] == ["new_subscription_request", "inbound_removal"]
    world.deliver(1)
    world.deliver(0)
    world.settle()
    assert b.live("fleet") is None
    assert b.types == []
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    assert b.live("fleet").state is RelationshipState.INBOUND, "a new request with the same Id is another one"


def test_request_revoked_at_once_is_reported():
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    a.ask("outbound_cancellation", Id="fleet")
    world.settle()
    assert a.types == [
        "subscription_request_needed",
        "outbound_pending_subscription_added",
        "outbound_removal",
        "outbound_subscription_cancelled",
    ]
    assert b.types == [
        "inbound_pending_subscription_added",
        "inbound_removal",
        "inbound_subscription_cancelled",
    ]


def test_id_can_be_used_again_when_end_reported():
    world, a, b = related()
    a.ask("subscription_cancellation", Id="fleet")
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    assert a.types[-1] == "duplicate_id_failure", "its end is not told yet"
    world.settle()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    b.ask("pending_subscription_approval", Id="fleet")
    world.settle()
    assert a.live("fleet").tx == b.live("fleet").rx
    ids = [one.id for one in world.sent]
    assert len(ids) == len(set(ids)), "the stream would drop a message id that it has seen"


def test_late_request_stays_dead():
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    while a.todo:
        a.step()
    world.deliver(again=True)
    (copy,) = world.network
    world.network.clear()
    b.ask("inbound_rejection", Id="fleet")
    world.settle()
    world.network.append(copy)
    world.settle()
    assert b.live("fleet") is None


@pytest.mark.covers("P67")
def test_peer_removed_ends_all_three_kinds():
    world, a, b = two()
    for which in ("pending", "established"):
        a.ask("subscription", wellKnown_Tx=b.wk, Id=which)
    b.ask("subscription", wellKnown_Tx=a.wk, Id="inbound")
    world.settle()
    b.ask("pending_subscription_approval", Id="established")
    world.settle()
    a.do(RemovePeer())
    world.settle()
    assert [len(b.list(state)) for state in ("inbound", "outbound", "established")] == [0, 0, 0]
    assert {
        "inbound_subscription_cancelled",
        "outbound_subscription_cancelled",
        "subscription_removed",
    } <= set(b.types)
    assert not [one for one in a.tracker.relationships if one.live]


# --- who may not --------------------------------------------------------------------------------------


def test_a_stranger_cannot_revoke():
    """D25: the Id alone is not a proof."""
    _, _, b = requested()
    for attrs in ({"Id": "fleet"}, {"Id": "fleet", "Tx": "c"}, {"Tx": "c.x"}, {"Id": 7, "Tx": "c.x"}):
        b.receive(b.wk, "inbound_removal", attrs)
        assert b.refused[-1].refusal is Refusal.MALFORMED
    b.receive(b.wk, "inbound_removal", {"Id": "fleet", "Tx": "c.guess"})
    assert b.live("fleet").state is RelationshipState.INBOUND


def test_accepter_not_revoked_by_own_channel():
    _, a, _ = related()
    a.receive(a.wk, "inbound_removal", {"Id": "fleet", "Tx": a.live("fleet").tx})
    assert a.live("fleet").state is RelationshipState.ESTABLISHED


def test_channels_are_separate():
    world, a, b = related()
    c = world.node("c")
    c.ask("subscription", wellKnown_Tx=a.wk, Id="other")
    world.settle()
    a.ask("pending_subscription_approval", Id="other")
    world.settle()
    channel = a.live("other").rx
    for type in ("established_removal", "outbound_removal", "outbound_pending_subscription_approved"):  # noqa: A001
        a.receive(channel, type, {"Id": "fleet", "Tx": "c.x"})
        assert a.refused[-1].refusal is Refusal.FOREIGN
    assert a.live("fleet").tx == b.live("fleet").rx


def test_approval_needs_request():
    world, a, b = requested()
    a.receive(a.live("fleet").rx, "outbound_pending_subscription_approved", {"Id": "fleet"})
    assert a.refused[-1].refusal is Refusal.MALFORMED
    b.receive(b.live("fleet").rx, "outbound_pending_subscription_approved", {"Id": "fleet", "Tx": "c.x"})
    assert b.refused[-1].refusal is Refusal.FOREIGN
    b.ask("pending_subscription_approval", Id="fleet")
    world.settle()
    a.receive(a.live("fleet").rx, "outbound_pending_subscription_approved", {"Id": "fleet", "Tx": "c.x"})
    assert a.refused[-1].refusal is Refusal.FOREIGN
    a.receive(a.live("fleet").rx, "outbound_removal", {"Id": "fleet"})
    assert a.refused[-1].refusal is Refusal.FOREIGN
    assert a.live("fleet").tx == b.live("fleet").rx


def test_flow_on_channel_of_no_relationship():
    _, a, _ = two()
    a.do(OpenChannel((), open_policy(), Fresh("i", "open")))
    a.receive("a.open", "established_removal", {})
    assert a.refused[-1].refusal is Refusal.FOREIGN


def test_relationship_with_oneself_refused():
    world, a, _ = two()
    a.ask("subscription", wellKnown_Tx=a.wk, Id="self")
    world.settle()
    assert a.live("self") is None
    assert "duplicate_id_failure" in a.types


def test_both_ask_each_other_with_same_id():
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="same")
    b.ask("subscription", wellKnown_Tx=a.wk, Id="same")
    world.settle()
    assert a.live("same") is None
    assert b.live("same") is None


def test_a_peers_name_is_a_token():
    with pytest.raises(InvalidNameError):
        PeerTracker("a.b")


@pytest.mark.parametrize("odd", [{"max_inbound": 0}, {"remember": 0}, {"retry_delay": -1}])
def test_options_that_cannot_work(odd):
    with pytest.raises(ConfigError):
        EngineOptions(**odd)
