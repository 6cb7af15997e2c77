"""Two services agree on a feed: one requests it, the other approves it, answers queries and takes events."""

from __future__ import annotations

import asyncio
import sys

from jsclient.peers import Engine, Peer, RaisedEvent


def serve(team: Peer) -> None:
    """Approve paying tenants, answer their queries, and print what they report."""

    @team.on("wrangler:inbound_pending_subscription_added")
    async def decide(request: RaisedEvent) -> None:
        if request["plan"] == "gold":
            await team.approve(request["Id"], subject="prices.EURUSD")
        else:
            await team.reject(request["Id"])

    @team.answers("feed", "size")
    async def size(since: int = 0) -> int:
        return 100 - since


async def ask(tenant: Peer, channel: str) -> str:
    ask_id = await tenant.request(channel, Rx_role="tenant", Tx_role="feed", plan="gold")
    granted = await tenant.wait_for("wrangler:subscription_added", Id=ask_id)
    subject: str = granted["subject"]
    remaining: int = await tenant.query(ask_id, "feed", "size", {"since": 40})
    sent = await tenant.send("feed", "read", {"rows": 3}, Tx_role="feed")
    return f"{subject} {remaining} {sent}"


async def main(url: str) -> None:
    async with Engine.connect(url, storage="memory", max_deliver=3) as engine:
        team, tenant = await engine.peer("team"), await engine.peer("tenant")
        serve(team)
        answer = await ask(tenant, await team.wellKnown_Rx())
        usage: RaisedEvent = await team.wait_for("feed:read")
        print(answer, usage["rows"], len(team.established()))
        await engine.remove(tenant)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
