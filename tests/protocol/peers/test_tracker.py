"""The flow of events between two peers, step by step as the seed has it; refusals; what is sent; crashes."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.peers.channel import (
    API_EVENTS,
    WELL_KNOWN,
    Channel,
    Policy,
    event_subject,
    open_policy,
)
from jsclient.protocol.peers.options import EngineOptions, accept_roles
from jsclient.protocol.peers.relationship import MAX_DEAD, Fresh, Raise, RelationshipState, Send
from jsclient.protocol.peers.rules import (
    Ask,
    CloseChannel,
    Done,
    Install,
    OpenChannel,
    Raised,
    Received,
    Redeliver,
    Refusal,
    RemovePeer,
    Stored,
    StoreValue,
    Tick,
)
from jsclient.protocol.peers.tracker import PeerTracker, event_on
from jsclient.protocol.wire.names import subject_matches
from tests.support.peer_world import Node, World

DAY = 86_400.0


def two(**options) -> tuple[World, Node, Node]:
    world = World()
    return world, world.node("a", **options), world.node("b", **options)


def requested(**attrs) -> tuple[World, Node, Node]:
    """A has asked, all has arrived."""
    world, a, b = two()
    a.ask(
        "subscription",
        **({"wellKnown_Tx": b.wk, "Id": "fleet", "Rx_role": "owner", "Tx_role": "thing"} | attrs),
    )
    world.settle()
    return world, a, b


def related(**attrs) -> tuple[World, Node, Node]:
    world, a, b = requested(**attrs)
    b.ask("pending_subscription_approval", Id="fleet")
    world.settle()
    a.raised.clear()
    b.raised.clear()
    world.sent.clear()
    return world, a, b


def last(node: Node, type: str) -> Raise:
    return [one for one in node.raised if one.type == type][-1]


# --- the well-known channel ---------------------------------------------------------------------------


@pytest.mark.covers("P7", "P13", "P14")
def test_well_known_with_capability():
    _, a, _ = two()
    channel = a.tracker._channels[f"channel.{WELL_KNOWN}"][0]
    assert channel.tags == ("wellKnown_Rx", "Tx_Rx")
    assert a.query(a.wk, "wellKnown_Rx") == a.wk == channel.eci


@pytest.mark.covers("P15")
def test_it_is_made_once():
    _, a, _ = two()
    before = a.wk
    a.install()
    a.restart()
    a.install()
    assert a.wk == before
    assert len(a.kept) == 1


def test_concurrent_install_makes_one():
    world = World()
    a = world.node("a")
    rival = Node(world, "a")
    rival.kept = a.kept
    rival.install()
    assert rival.wk == a.wk


def test_policy_follows_options():
    world, a, _ = two()
    assert (
        not Channel(a.wk, (), dict(a.tracker.channels)[a.wk])
        .nats_permissions()
        .publish[-1]
        .endswith("subscription")
    )
    a.options = EngineOptions(requests=True)
    a.restart()
    before = a.wk
    a.install()
    assert a.wk == before
    assert dict(a.tracker.channels)[a.wk].allows_event("wrangler", "subscription")
    world.settle()


@pytest.mark.covers("P5")
def test_without_capability_no_part():
    world, a, _ = two()
    c = Node(world, "c")
    world.nodes["c"] = c
    c.do(OpenChannel(("any",), open_policy(), Fresh("i", "open")))
    a.ask("subscription", wellKnown_Tx="c.open")
    world.settle()
    assert [one.refusal for one in c.refused] == [Refusal.NOT_INSTALLED]
    c.receive("c.open", "subscription", {"wellKnown_Tx": a.wk})
    assert c.refused[-1].refusal is Refusal.NOT_INSTALLED
    assert c.query("c.open", "established").refusal is Refusal.NOT_INSTALLED
    with pytest.raises(ConfigError, match="capability"):
        c.ask("subscription", wellKnown_Tx=a.wk)
    assert c.tracker.well_known_rx is None


@pytest.mark.covers("P10", "P11")
def test_other_events_and_queries_on_refused():
    _, a, b = related()
    for event in (*API_EVENTS, "wrangler:established_removal", "door:opened"):
        domain, type = event.split(":")  # noqa: A001
        b.receive(b.wk, type, {"Id": "fleet", "wellKnown_Tx": a.wk}, domain)
        assert b.refused[-1].refusal is Refusal.POLICY
    assert b.query(b.wk, "established").refusal is Refusal.POLICY
    assert b.query(b.wk, "state", "door").refusal is Refusal.POLICY
    assert len(b.list("established")) == 1
    assert not b.todo


@pytest.mark.covers("P12")
def test_request_on_open_channel():
    world, a, b = two()
    b.do(OpenChannel(("child",), open_policy(), Fresh("i", "open")))
    a.ask("subscription", wellKnown_Tx="b.open", Id="child")
    world.settle()
    b.ask("pending_subscription_approval", Id="child")
    world.settle()
    assert a.live("child").state is RelationshipState.ESTABLISHED
    assert b.live("child").state is RelationshipState.ESTABLISHED


def test_channel_can_be_made_and_removed():
    _, a, _ = two()
    a.do(OpenChannel(("door",), Policy(events=("door:opened",)), Fresh("i", "door")))
    a.receive("a.door", "opened", {"n": 1}, "door")
    assert (a.raised[-1].domain, a.raised[-1].type, a.raised[-1].attrs, a.raised[-1].eci) == (
        "door",
        "opened",
        {"n": 1},
        "a.door",
    )
    a.receive("a.door", "closed", {}, "door")
    assert a.refused[-1].refusal is Refusal.POLICY
    a.restart()
    assert "a.door" in dict(a.tracker.channels)
    a.do(CloseChannel("a.door"))
    a.receive("a.door", "opened", {}, "door")
    assert a.refused[-1].refusal is Refusal.NO_CHANNEL
    a.restart()
    assert "a.door" not in dict(a.tracker.channels)


def test_used_channels_stay():
    _, a, _ = related()
    for eci in (a.wk, a.live("fleet").rx, "a.nothing"):
        with pytest.raises(ConfigError):
            a.do(CloseChannel(eci))


# --- requesting ---------------------------------------------------------------------------------------


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
    told = b.raised[0].attrs
    assert told == theirs | {"note": "hello", "wellKnown_Tx": b.wk}
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
def test_request_without_tx_told():
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
    assert len(b.kept) == 1


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


# --- accepting ----------------------------------------------------------------------------------------


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


def test_the_rule_by_attributes():
    rule = accept_roles(Rx_role="thing", guest=None)
    assert rule({"Rx_role": "thing"})
    assert not rule({"Rx_role": "thing", "guest": "x"})
    assert not rule({"Rx_role": ["thing"]})
    assert not accept_roles(Rx_role=["thing"])({"Rx_role": 7})
    with pytest.raises(ConfigError):
        accept_roles()


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
    count, kept = len(world.sent), dict(node.kept)
    node.raised.clear()
    node.ask(type, **name)
    assert (len(world.sent), node.kept, node.types) == (count, kept, [])


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


def test_told_of_request_revoked_at_once():
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


def test_id_can_be_used_again_when_end_told():
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
    """D25: the Id alone is no proof."""
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
def test_what_cannot_be_sent_is_told(attrs, what):
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


# --- what is stored, crashes --------------------------------------------------------------------------


@pytest.mark.covers("P48")
def test_stored_before_told():
    world, _, b = requested()
    commands = b.tell(Raised("wrangler", "pending_subscription_approval", {"Id": "fleet"}, world.fresh()))
    assert [type(one) for one in commands] == [StoreValue]
    assert b.live("fleet").state is RelationshipState.INBOUND, "until it is stored"


def test_after_crash_not_told_told():
    world, a, b = requested()
    b.ask("pending_subscription_approval", Id="fleet")
    b.restart()
    assert {type(one) for one in b.todo} == {Send, Raise}
    world.settle()
    assert a.live("fleet").state is RelationshipState.ESTABLISHED
    assert b.types[-1] == "subscription_added"
    b.restart()
    assert b.todo == [], "told is told"


def test_crash_repeats_same_id():
    world, a, b = requested()
    b.ask("pending_subscription_approval", Id="fleet")
    sent = next(one for one in b.todo if isinstance(one, Send))
    world.send(sent)
    b.restart()
    world.settle()
    assert [one.id for one in world.sent[-2:]] == [sent.id] * 2
    assert a.types.count("subscription_added") == 1


def test_outbox_kinds_in_order():
    _, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    a.ask("outbound_cancellation", Id="fleet")
    assert [one.type for one in a.todo] == ["new_subscription_request", "subscription_request_needed"] or [
        one.type for one in a.todo
    ] == ["subscription_request_needed", "new_subscription_request"]
    send = next(one for one in a.todo if isinstance(one, Send))
    a.todo.remove(send)
    a.queue(a.tell(Done(send.key, send.id)))
    assert [one.type for one in a.todo] == ["subscription_request_needed", "inbound_removal"]
    assert a.tell(Done(send.key, send.id)) == [], "said twice"
    assert a.tell(Done("relationship.odd", "x")) == []
    a.restart()
    assert [one.type for one in a.todo] == ["new_subscription_request", "subscription_request_needed"]


def test_failed_send_not_blocking():
    _, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    while raises := [index for index, one in enumerate(a.todo) if isinstance(one, Raise)]:
        a.step(raises[0])
    assert a.types == ["subscription_request_needed", "outbound_pending_subscription_added"]
    assert [type(one) for one in a.todo] == [Send]


def test_somebody_else_was_faster():
    """Two processes of one peer: each decision is made on what the store holds."""
    world, a, b = requested()
    rival = Node(world, "b")
    rival.kept = b.kept
    rival.revision = 100
    rival.restart()
    rival.ask("inbound_rejection", Id="fleet")
    b.ask("pending_subscription_approval", Id="fleet")
    assert b.live("fleet") is None
    world.nodes["rival"] = rival
    world.settle()
    assert a.live("fleet") is None


def test_over_forgotten_after_while():
    world, a, b = related()
    assert a.tracker.deadline is None
    a.ask("subscription_cancellation", Id="fleet")
    assert a.tracker.deadline is None, "not before its end is told"
    world.settle()
    for node in (a, b):
        assert node.tracker.deadline == world.now + 7 * DAY
        assert node.tell(Tick()) == []
    world.now += 7 * DAY
    for node in (a, b):
        node.do(Tick())
        assert node.record("fleet") is None
        assert node.tracker.deadline is None
        assert len(node.tracker._keys) == 1
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    assert b.live("fleet").state is RelationshipState.INBOUND


def test_noted_of_outbox_goes_with():
    world, a, b = related()
    for node in (a, b):
        assert not any(node.tracker._started.values())
        assert not any(node.tracker._done.values())
    world.settle()


def test_unsent_goes_with_next():
    world, a, b = requested()
    a.ask("outbound_cancellation", Id="fleet")
    while a.todo:
        a.step()
    world.deliver()
    assert [one.type for one in b.todo] == ["inbound_removal"]
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    while a.todo:
        a.step()
    world.deliver()
    assert b.live("fleet").state is RelationshipState.INBOUND
    b.restart()
    world.settle()
    assert b.types[-3:] == [
        "inbound_removal",
        "inbound_subscription_cancelled",
        "inbound_pending_subscription_added",
    ]


def test_request_waits_for_former():
    world, _, b = requested()
    b.ask("inbound_rejection", Id="fleet")
    b.receive(b.wk, "new_subscription_request", {"Id": "fleet", "Tx": "c.x"})
    assert "being sent" in b.retried[-1].reason
    assert b.live("fleet") is None
    world.settle()
    b.receive(b.wk, "new_subscription_request", {"Id": "fleet", "Tx": "c.x"})
    assert b.live("fleet").tx == "c.x"


@pytest.mark.parametrize("asks", [0, 1])
def test_ended_request_stays_ended(asks):
    """Whoever asks next, the one or the other: the record knows all channels that are dead."""
    world, a, b = two()
    a.ask("subscription", wellKnown_Tx=b.wk, Id="fleet")
    world.settle()
    old = world.sent[0]
    a.ask("outbound_cancellation", Id="fleet")
    world.settle()
    one, other = (a, b) if asks == 0 else (b, a)
    one.ask("subscription", wellKnown_Tx=other.wk, Id="fleet")
    world.settle()
    one.ask("outbound_cancellation", Id="fleet")
    world.settle()
    b.receive(b.wk, "new_subscription_request", old.attrs)
    assert b.live("fleet") is None


def test_message_for_channel_gone():
    world, a, b = related()
    channel = b.live("fleet").rx
    a.ask("subscription_cancellation", Id="fleet")
    world.settle()
    b.receive(channel, "opened", {}, "door")
    assert b.refused[-1].refusal is Refusal.CHANNEL_GONE
    b.receive("b.unknown", "opened", {}, "door")
    assert b.refused[-1].refusal is Refusal.NO_CHANNEL


def test_nothing_changes_until_stored():
    tracker = PeerTracker("a")
    (store,) = tracker.handle(Install(Fresh("i", "c")), 0.0)
    assert not tracker.installed
    assert tracker.handle(Stored(store.key, store.value, 1), 0.0) == []
    assert tracker.installed
    received = Received(
        "a.c", "wrangler", "new_subscription_request", {"Id": "x", "Tx": "b.x"}, Fresh("j", "d")
    )
    assert tracker.handle(received, 0.0) == tracker.handle(received, 0.0)
    assert tracker.relationships == []
