"""A queue group of workers with retries, and a report of what they could not handle."""

from __future__ import annotations

import asyncio
import sys

import jsclient
from jsclient import DeadLettered, HandlerFailed, Message, Reject, Subscription, WorkCounts, Worker
from jsclient.events import Event

stop = asyncio.Event()
done: set[bytes] = set()


def finish(data: bytes) -> None:
    done.add(data)
    if len(done) == 20:
        stop.set()


async def handle(msg: Message) -> None:
    if msg.data == b"13":
        raise Reject("no such order")
    if msg.data == b"7" and msg.attempt < 2:
        raise ConnectionError("the database is busy")
    finish(msg.data)


def on_event(event: Event) -> None:
    if isinstance(event, HandlerFailed | DeadLettered):
        print(event.severity, event, flush=True)
    if isinstance(event, DeadLettered):
        finish(b"13")


def delay(attempt: int) -> float:
    return 0.01 * attempt


def work(sub: Subscription) -> Worker:
    return sub.run(handle, concurrency=4, retry_delay=delay, max_deliver=3, dead_letter="dead.>", stop=stop)


async def main(url: str) -> None:
    async with jsclient.connect(url, on_event=on_event) as js:
        await js.create_stream("ORDERS", ["orders.*"], retention="workqueue")
        dead = await js.create_stream("DEAD", ["dead.>"])
        workers = [await js.subscribe("orders.*", queue="crew", delete_on_close=True) for _ in range(2)]
        await js.publish_many("orders.new", [b"%d" % number for number in range(20)])
        async with work(workers[0]) as one, work(workers[1]) as other:
            counts: tuple[WorkCounts, WorkCounts] = await one, await other
        letter = await dead.get_last_message("dead.>")
        print(counts[0].handled + counts[1].handled, letter.data.decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
