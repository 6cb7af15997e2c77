"""Two trackers whose messages are passed on step by step."""

from __future__ import annotations

from jsclient.protocol.peers.relationship import Raise
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
