"""Process messages with a push consumer: a durable, a callback and automatic acks. Failed messages are redelivered.

python examples/01_push_worker.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url, on_event=on_event))
        await js.create_stream("PUSH_ORDERS", subjects=["push.orders.>"], storage="memory")
        stack.push_async_callback(js.delete_stream, "PUSH_ORDERS")
        for number in range(1, 4):
            await js.publish("push.orders.new", b"order %d" % number)

        done = asyncio.Event()
        handled: set[int] = set()

        async def handle(msg: jsclient.Message) -> None:
            meta = msg.metadata
            print(f"{msg.data.decode()}: delivery {meta.num_delivered}", flush=True)
            if meta.stream_seq == 2 and meta.num_delivered == 1:
                raise RuntimeError("the database is busy")  # no ack: redelivered after ack_wait
            handled.add(meta.stream_seq)
            if len(handled) == 3:
                done.set()

        config = jsclient.ConsumerConfig(ack_wait=0.5)  # seconds
        sub = await js.subscribe(
            "push.orders.>", durable="worker", config=config, callback=handle, delete_on_close=False
        )
        async with asyncio.timeout(20):
            await done.wait()
        await sub.drain()  # handle and ack everything received
        print("handled:", sorted(handled))


def on_event(event: jsclient.events.Event) -> None:
    if isinstance(event, jsclient.HandlerFailed):
        print(f"event: message {event.stream_seq} failed: {event.error}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
