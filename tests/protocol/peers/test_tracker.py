"""The flow of events between two peers, step by step as the seed has it: the channels of a peer."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.peers.channel import (
    API_EVENTS,
    WELL_KNOWN,
    Channel,
    Policy,
    open_policy,
)
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import Fresh, RelationshipState
from jsclient.protocol.peers.rules import (
    CloseChannel,
    OpenChannel,
    Refusal,
)
from tests.protocol.peers.kit import related, two
from tests.support.peer_world import Node, World

# --- the well-known channel ---------------------------------------------------------------------------


@pytest.mark.covers("P7", "P13", "P14")
def test_well_known_with_capability():
    _, a, _ = two()
    channel = a.tracker._channels[f"channel.{WELL_KNOWN}"][0]
    assert channel.tags == ("wellKnown_Rx", "Tx_Rx")
    assert a.query(a.wk, "wellKnown_Rx") == a.wk == channel.eci


@pytest.mark.covers("P15")
def test_it_is_created_once():
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
