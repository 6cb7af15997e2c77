"""Read every message once and in order, even if the consumer is deleted.

python examples/04_ordered_reader.py [url]
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
        stream = await js.create_stream("ORDERED_PRICES", subjects=["ordered.prices"], storage="memory")
        stack.push_async_callback(js.delete_stream, "ORDERED_PRICES")
        for price in range(5):
            await js.publish("ordered.prices", b"%d" % price)

        # After 3 missed heartbeats, the reader creates a new consumer. The default interval is 5 s.
        config = jsclient.ConsumerConfig(idle_heartbeat=0.25)
        reader = await js.subscribe("ordered.prices", ordered=True, config=config)
        await stack.enter_async_context(reader)

        prices = []
        async with asyncio.timeout(20):
            async for msg in reader:
                prices.append(int(msg.data))
                if len(prices) == 5:
                    await stream.delete_consumer(reader.consumer)  # simulates an administrator's mistake
                    for price in range(5, 10):
                        await js.publish("ordered.prices", b"%d" % price)
                if len(prices) == 10:
                    break
        print(f"read: {prices}")


def on_event(event: jsclient.events.Event) -> None:
    if isinstance(event, jsclient.ConsumerReset):
        print(f"event: new consumer, resumes at {event.resume_stream_seq}: {event.reason}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
