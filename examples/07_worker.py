"""Run a worker with concurrent handlers, retries, dead letters, order by key and a graceful stop.

python examples/07_worker.py [url]
"""

import asyncio
import contextlib
import signal
import sys

import jsclient
from jsclient.server import NatsServer

remaining = set(range(1, 31))  # order numbers
failed: set[int] = set()
stop = asyncio.Event()


def finish(order: int) -> None:
    remaining.discard(order)
    if not remaining:
        stop.set()


async def handle(msg: jsclient.Message) -> None:
    order = int(msg.data)
    if order == 5:
        raise jsclient.Reject("no such customer")  # do not retry
    if order == 7 or (order == 9 and order not in failed):
        failed.add(order)
        raise ConnectionError("the database is busy")
    await asyncio.sleep(0.01)
    finish(order)


def on_event(event: jsclient.Event) -> None:
    if isinstance(event, jsclient.DeadLettered):
        print(f"dead letter {event.stream_seq}, attempt {event.attempt}: {event.error}")
        finish(event.stream_seq)


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url, on_event=on_event))
        for name, subject in (("WORK_ORDERS", "work.orders.*"), ("WORK_DEAD", "work.dead.>")):
            await js.create_stream(name, subjects=[subject], storage="memory")
            stack.push_async_callback(js.delete_stream, name)
        for order in sorted(remaining):
            await js.publish(f"work.orders.{order % 3}", b"%d" % order)

        sub = await stack.enter_async_context(await js.pull_subscribe("work.orders.*"))
        options = {"concurrency": 8, "retry_delay": 0.05, "max_deliver": 3, "dead_letter": "work.dead.>"}
        stops = {"stop": stop, "stop_signals": [signal.SIGTERM, signal.SIGINT]}
        counts = await sub.run(handle, key=lambda msg: msg.subject, **options, **stops)
        print(f"handled {counts.handled}, failed {counts.failed}, retried {counts.retried}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
