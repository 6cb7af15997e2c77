"""Two peers under every order of what may happen: both end with the same relationship, or with none.

The first test goes through all interleavings. A message that was sent may arrive at any time, any number of times. Each
peer may die and start again between any two steps, so that only its store counts. The commands in its outbox may be
carried out at any time, too often as well. Whenever everything has arrived at least once and no message is left to
send, both sides agree. The second test walks at random through more: conflicts in the store, messages that are late,
Ids that are used again, and a stranger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jsclient.protocol.peers.relationship import (
    Fresh,
    Raise,
    RelationshipState,
    Send,
    read_value,
    write_value,
)
from jsclient.protocol.peers.rules import Command, Install, Raised, Received, Stored, StoreValue
from jsclient.protocol.peers.tracker import PeerTracker
from tests.support.examples import examples
from tests.support.peer_world import World

NOW = 1_800_000_000.0
ID = "friends"

# --- all interleavings --------------------------------------------------------------------------------

Store = tuple[tuple[str, bytes], ...]  # the content of a peer's store


class WholeState(NamedTuple):
    """Both stores, all messages that were sent, the messages that have arrived, and the moves that were made."""

    a: Store = ()
    b: Store = ()
    sent: frozenset[bytes] = frozenset()
    arrived: frozenset[bytes] = frozenset()
    done: frozenset[str] = frozenset()

    @property
    def quiet(self) -> bool:
        """All messages have arrived, and both outboxes are empty."""
        return self.sent == self.arrived and not outbox(self.a) and not outbox(self.b)


MOVES = {
    "request": ("a", "subscription", {"Id": ID, "wellKnown_Tx": "b.wk", "Rx_role": "x", "Tx_role": "y"}),
    "approve": ("b", "pending_subscription_approval", {"Id": ID}),
    "reject": ("b", "inbound_rejection", {"Id": ID}),
    "revoke": ("a", "outbound_cancellation", {"Id": ID}),
    "cancel by a": ("a", "subscription_cancellation", {"Id": ID}),
    "cancel by b": ("b", "subscription_cancellation", {"Id": ID}),
}
DECISIONS = set(MOVES) - {"request"}


def load(name: str, store: Store) -> PeerTracker:
    """A peer that has just started: it knows the content of its store."""
    tracker = PeerTracker(name)
    (secret,) = tracker.handle(Install(Fresh("", "wk")), NOW)
    tracker.handle(Stored(secret.key, secret.value, 1), NOW)
    for key, data in store:
        tracker.handle(Stored(key, read_value(key, data), 1), NOW)
    return tracker


def after(store: Store, commands: list[Command]) -> Store:
    held = dict(store)
    for command in commands:
        if isinstance(command, StoreValue):
            assert command.value is not None
            held[command.key] = write_value(command.value)
    return tuple(sorted(held.items()))


@cache
def outbox(store: Store) -> tuple[tuple[bytes, Store], ...]:
    """Of each kind the first item: what is sent ("" for what is raised), and the store when that is noted."""
    results = []
    for key, data in store:
        record = read_value(key, data)
        for index, item in enumerate(record.outbox):
            if not any(type(one) is type(item) for one in record.outbox[:index]):
                remainder = tuple(one for one in record.outbox if one is not item)
                less = dict(store) | {key: write_value(msgspec.structs.replace(record, outbox=remainder))}
                message = msgspec.json.encode(item) if isinstance(item, Send) else b""
                results.append((message, tuple(sorted(less.items()))))
    return tuple(results)


@cache
def received(store: Store, message: bytes, fresh: Fresh) -> Store:
    """The store when a message has arrived."""
    send = msgspec.json.decode(message, type=Send)
    event = Received(send.eci, send.domain, send.type, send.attrs, fresh)
    return after(store, load(send.eci[0], store).handle(event, NOW))


@cache
def after_move(store: Store, which: str) -> Store | None:
    """The store when a move was made. None if it could not be made."""
    name, event, attrs = MOVES[which]
    commands = load(name, store).handle(Raised("wrangler", event, attrs, Fresh("n", "rx")), NOW)
    failed = any(isinstance(command, Raise) and command.error for command in commands)
    return None if failed else after(store, commands)


def steps(whole: WholeState, moves: set[str]) -> Iterator[WholeState]:
    """All that may happen next."""
    for side in ("a", "b"):
        for message, saved in outbox(getattr(whole, side)):
            sent = whole._replace(sent=whole.sent | {message} - {b""})
            yield sent  # carried out, and the process dies before that is noted
            yield sent._replace(**{side: saved})
    for message in whole.sent:
        side = msgspec.json.decode(message, type=Send).eci[0]
        arrived = whole._replace(arrived=whole.arrived | {message})
        for fresh in (Fresh("m1", "mc1"), Fresh("m2", "mc2")):  # a copy may be another message of the stream
            yield arrived._replace(**{side: received(getattr(whole, side), message, fresh)})
    for which in moves - whole.done:
        side = MOVES[which][0]
        if (saved := after_move(getattr(whole, side), which)) is not None:
            yield whole._replace(**{side: saved}, done=whole.done | {which})


@pytest.mark.covers("P3", "P47", "P55", "P65")
@pytest.mark.parametrize(
    "moves",
    [
        {"request", "approve", "revoke"},
        {"request", "approve", "reject"},
        {"request", "reject", "revoke"},
        {"request", "approve", "cancel by a", "cancel by b"},
        {"request", "approve", "revoke", "cancel by b"},
        set(MOVES),
    ],
    ids=lambda moves: "-".join(sorted(moves)),
)
def test_interleavings_converge(moves):
    seen, waiting, reached = {WholeState()}, deque([WholeState()]), set()
    while waiting:
        whole = waiting.popleft()
        if whole.quiet:
            reached.add(agreed(whole))
        for one in steps(whole, moves):
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    assert ("nothing", "nothing") in reached
    assert ("outbound", "inbound") in reached
    assert (("established", "established") in reached) is ("approve" in moves)
    assert len(seen) > 1000


def agreed(whole: WholeState) -> tuple[str, str]:
    """Both have it, or neither. Pending only if no peer has decided."""
    a, b = (read_value(*store[0]) if store else None for store in (whole.a, whole.b))
    pair = tuple("nothing" if one is None or not one.live else one.state.value for one in (a, b))
    assert pair in {("nothing", "nothing"), ("outbound", "inbound"), ("established", "established")}, pair
    if pair == ("outbound", "inbound"):
        assert not whole.done & DECISIONS
    if pair == ("established", "established"):
        assert whole.done == {"request", "approve"}, "a removal wins"
        assert (a.tx, a.rx) == (b.rx, b.tx)
        assert (a.tx_role, a.rx_role) == (b.rx_role, b.tx_role) == ("y", "x")
    return pair


# --- at random ----------------------------------------------------------------------------------------


class TwoPeers(RuleBasedStateMachine):
    """Messages are delivered once at least, within the time for which what is over is remembered."""

    @initialize()
    def begin(self):
        self.world = World()
        self.nodes = [self.world.node("a"), self.world.node("b")]

    def node(self, which: int):
        return self.nodes[which % 2]

    @rule(which=st.integers(0, 1), id=st.sampled_from(["one", "two"]))
    def request(self, which, id):
        self.node(which).ask("subscription", Id=id, wellKnown_Tx=self.node(which + 1).wk, Rx_role=str(which))

    @rule(
        which=st.integers(0, 1),
        id=st.sampled_from(["one", "two"]),
        type=st.sampled_from(
            [
                "pending_subscription_approval",
                "pending_subscription_approval",
                "inbound_rejection",
                "outbound_cancellation",
                "subscription_cancellation",
            ]
        ),
    )
    def ask(self, which, id, type):
        self.node(which).ask(type, Id=id)

    @precondition(lambda self: self.world.network)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def deliver(self, index, again):
        self.world.deliver(index, again=again)

    @precondition(lambda self: any(node.todo for node in self.nodes))
    @rule(which=st.integers(0, 1), index=st.integers(0, 10))
    def step(self, which, index):
        node = self.node(which) if self.node(which).todo else self.node(which + 1)
        node.step(index)

    @rule(which=st.integers(0, 1))
    def crash(self, which):
        self.node(which).restart()

    @rule(which=st.integers(0, 1))
    def conflict(self, which):
        """Another process of the same peer has written the same again: the revisions are new."""
        node = self.node(which)
        for key, (data, _) in list(node.store.items()):
            if data is not None:
                node.revision += 1
                node.store[key] = data, node.revision

    @rule(id=st.sampled_from(["one", "two"]), which=st.integers(0, 1))
    def stranger(self, id, which):
        """A stranger that knows only the public channel and the Id."""
        node = self.node(which)
        node.receive(node.wk, "inbound_removal", {"Id": id, "Tx": "c.guess"})

    @invariant()
    def one_state_for_each_id(self):
        for node in getattr(self, "nodes", []):
            ids = [record.id for record in node.tracker.relationships]
            assert len(ids) == len(set(ids))

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self.world.settle()
        for node in self.nodes:
            assert all(not record.outbox for record in node.tracker.relationships)
        a, b = self.nodes
        for which in ("one", "two"):
            one, other = a.live(which), b.live(which)
            assert (one is None) is (other is None), (one, other)
            if one is None or other is None:
                continue
            pair = {one.state, other.state}
            assert pair in (
                {RelationshipState.ESTABLISHED},
                {RelationshipState.OUTBOUND, RelationshipState.INBOUND},
            )
            assert other.tx == one.rx or one.tx == other.rx
            # both sides have the channels and roles of the same relationship
            if pair == {RelationshipState.ESTABLISHED}:
                assert (one.tx, one.rx) == (other.rx, other.tx)
                assert {one.rx_role, one.tx_role} == {other.rx_role, other.tx_role}


TestTwoPeers = TwoPeers.TestCase
TestTwoPeers.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestTwoPeers = pytest.mark.covers("P65")(TestTwoPeers)
