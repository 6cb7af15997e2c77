"""Two peers, for their tests."""

from __future__ import annotations

from typing import Any

from jsclient.peers import (
    Peer,
)

INBOUND = "wrangler:inbound_pending_subscription_added"
OUTBOUND = "wrangler:outbound_pending_subscription_added"
ADDED = "wrangler:subscription_added"
REMOVED = "wrangler:subscription_removed"


def lists(peer: Peer) -> tuple[int, int, int]:
    return len(peer.outbound()), len(peer.inbound()), len(peer.established())


def names(events: list[Any]) -> list[str]:
    return [event.type for event in events]


async def requested(a: Peer, b: Peer, **attrs: Any) -> str:
    which = await a.request(await b.wellKnown_Rx(), **attrs)
    await b.wait_for(INBOUND, Id=which)
    await a.wait_for(OUTBOUND, Id=which)
    return which
