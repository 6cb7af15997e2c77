"""Grant a tenant access to a feed: the tenant requests it, the team approves it from a position on, and later ends it.

python examples/11_tenant_feed.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.peers import Engine, Peer, RaisedEvent
from jsclient.server import NatsServer


def answer_requests(team: Peer, feed: jsclient.Stream) -> None:
    @team.on("wrangler:inbound_pending_subscription_added")
    async def decide(request: RaisedEvent) -> None:
        if request["plan"] == "gold":
            newest = (await feed.info()).state.last_seq
            await team.approve(request["Id"], stream=feed.name, subject="prices.EURUSD", start=newest)
        else:
            await team.reject(request["Id"], why="the feed is for plan gold")


async def read_feed(js: jsclient.JetStream, tenant: Peer, granted: RaisedEvent) -> None:
    start = {"filter_subject": granted["subject"], "opt_start_seq": granted["start"]}
    async with js.ordered_consumer(granted["stream"], **start) as reader:
        async for msg in reader:
            print(f"{tenant.name} reads {msg.data.decode()}")
            await tenant.send("feed", "seen", {"seq": msg.metadata.stream_seq}, Id=granted["Id"])


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url))
        feed = await js.create_stream("PRICES", subjects=["prices.>"], storage="memory")
        stack.push_async_callback(js.delete_stream, feed.name)
        engine = await stack.enter_async_context(Engine(js))
        team, acme, bolt = [await engine.peer(name) for name in ("team", "acme", "bolt")]
        answer_requests(team, feed)
        for price in (1.07, 1.08, 1.09):
            await js.publish("prices.EURUSD", str(price).encode())

        well_known = await team.wellKnown_Rx()  # all that other peers need to know
        await bolt.request(well_known, Rx_role="tenant", Tx_role="feed", plan="free")
        print("bolt:", (await bolt.wait_for("wrangler:outbound_subscription_cancelled"))["why"])
        await acme.request(well_known, Rx_role="tenant", Tx_role="feed", plan="gold")
        granted = await acme.wait_for("wrangler:subscription_added")
        reading = asyncio.create_task(read_feed(js, acme, granted))
        await js.publish("prices.EURUSD", b"1.1")
        await team.wait_for("feed:seen", seq=4)
        await team.cancel(granted["Id"], why="the invoice is open")
        print("acme:", (await acme.wait_for("wrangler:subscription_removed"))["why"])
        reading.cancel()
        await asyncio.wait({reading})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
