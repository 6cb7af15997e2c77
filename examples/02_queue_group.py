"""Share work in a queue group: two workers share a consumer, and each message goes to one of them.

python examples/02_queue_group.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer

MESSAGES = 40


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url))
        await js.create_stream("QUEUE_JOBS", subjects=["queue.jobs"], storage="memory")
        stack.push_async_callback(js.delete_stream, "QUEUE_JOBS")

        seen: dict[str, list[int]] = {"one": [], "two": []}
        changed = asyncio.Event()

        async def join(name: str) -> jsclient.Subscription:
            async def handle(msg: jsclient.Message) -> None:
                await asyncio.sleep(0.01)  # work
                seen[name].append(msg.metadata.stream_seq)
                changed.set()

            # Each worker has its own connection, as two processes would. The consumer is named after the group. The
            # first member creates it; with delete_on_close=False, it remains when that member leaves.
            mine = await stack.enter_async_context(jsclient.connect(url))
            return await mine.subscribe("queue.jobs", queue="crew", callback=handle, delete_on_close=False)

        one, two = await join("one"), await join("two")
        print(f"one created the consumer: {one.created}, two: {two.created}")
        for number in range(MESSAGES):
            await js.publish("queue.jobs", b"job %d" % number)
            if number == MESSAGES // 2:
                await one.drain()
                print(f"one leaves; the group continues with {two.consumer}")
        async with asyncio.timeout(20):
            while len(seen["one"]) + len(seen["two"]) < MESSAGES:
                changed.clear()
                await changed.wait()
        both = seen["one"] + seen["two"]
        print(f"one handled {len(seen['one'])}, two handled {len(seen['two'])}")
        print(f"each job once: {sorted(both) == list(range(1, MESSAGES + 1))}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
