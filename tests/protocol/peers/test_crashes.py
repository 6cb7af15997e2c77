"""Decisions are stored before they are sent, so that a crash loses nothing and repeats nothing."""

from __future__ import annotations

import pytest

from jsclient.protocol.peers.relationship import Fresh, Raise, RelationshipState, Send
from jsclient.protocol.peers.rules import (
    Done,
    Install,
    Raised,
    Received,
    Refusal,
    Stored,
    StoreValue,
    Tick,
)
from jsclient.protocol.peers.tracker import PeerTracker
from tests.protocol.peers.kit import DAY, related, requested, two
from tests.support.peer_world import Node


@pytest.mark.covers("P48")
def test_stored_before_reported():
    world, _, b = requested()
    commands = b.tell(Raised("wrangler", "pending_subscription_approval", {"Id": "fleet"}, world.fresh()))
    assert [type(one) for one in commands] == [StoreValue]
    assert b.live("fleet").state is RelationshipState.INBOUND, "until it is stored"


def test_unreported_event_is_reported_after_crash():
    world, a, b = requested()
    b.ask("pending_subscription_approval", Id="fleet")
    b.restart()
    assert {type(one) for one in b.todo} == {Send, Raise}
    world.settle()
    assert a.live("fleet").state is RelationshipState.ESTABLISHED
    assert b.types[-1] == "subscription_added"
    b.restart()
    assert b.todo == [], "it is reported once"


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
    """Two processes of one peer: each decision is made on the content of the store."""
    world, a, b = requested()
    rival = Node(world, "b")
    rival.store = b.store
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
    """Whichever peer asks next, the record has all channels that are dead."""
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


def test_message_for_channel_deleted():
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
