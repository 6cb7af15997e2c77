"""Handle events: conditions that no call can raise are reported to `on_event` and to `events()` of the subscription.

python examples/06_events.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer


def on_event(event: jsclient.events.Event) -> None:
    match event:
        case jsclient.HandlerFailed(stream_seq=seq, error=error):
            print(f"handler failed on message {seq}: {error}", flush=True)
        case jsclient.SlowConsumer(first_stream_seq=first):
            print(f"too slow: messages dropped, starting at {first}", flush=True)
        case jsclient.HeartbeatMissed(consumer=name):
            print(f"alarm: {name} is silent", flush=True)
        case _:
            print(f"{type(event).__name__}: {event.stream}/{event.consumer}", flush=True)


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url, on_event=on_event))
        stream = await js.create_stream("EVENT_LOG", subjects=["event.>"], storage="memory")
        stack.push_async_callback(js.delete_stream, "EVENT_LOG")

        async def careless(msg: jsclient.Message) -> None:
            raise ValueError("no such column")

        config = jsclient.ConsumerConfig(max_deliver=1)
        failing = await js.subscribe("event.odd", config=config, callback=careless)
        # Without acks, the server does not wait for the client, so a small queue overflows.
        unacked = jsclient.ConsumerConfig(ack_policy="none")
        slow = await js.subscribe("event.log", config=unacked, max_pending=10)
        watched = await js.subscribe("event.log", config=jsclient.ConsumerConfig(idle_heartbeat=1))
        for sub in (failing, slow, watched):
            await stack.enter_async_context(sub)

        await js.publish("event.odd", b"line")
        await asyncio.gather(*(js.publish("event.log", b"line") for _ in range(30)))
        await failing.drain()
        print(f"slow: {slow.pending} pending, {slow.dropped} dropped")

        await stream.delete_consumer(watched.consumer)  # simulates another client
        async with asyncio.timeout(20):
            async for event in watched.events():  # only the events of this subscription
                if isinstance(event, jsclient.HeartbeatMissed):  # after ConsumerDeleted
                    break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
