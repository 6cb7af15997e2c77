"""Write one file per hour, as soon as all four producers have completed the hour.

python examples/10_hourly_partitions.py [url]
"""

import asyncio
import contextlib
import json
import pathlib
import sys
import tempfile

import jsclient
from jsclient.epochs import EpochPosition
from jsclient.server import NatsServer

PRODUCERS, HOURS, BATCHES = 4, 6, 3


async def produce(topic, producer: int, crash_in: int | None = None) -> None:
    """Continue this producer's partition, to the end of the day or to a crash in the middle of an hour."""
    async with topic.publisher(producer) as pub:
        for hour in range(min(pub.frontier), HOURS):
            for batch in range(2 if hour == crash_in else BATCHES):
                rows = [{"hour": hour, "by": producer, "row": 10 * batch + n} for n in range(10)]
                await pub.send(hour, rows, msg_id=f"batch {batch}")  # stored once, even if sent again
            if hour == crash_in:
                return
            await pub.advance(hour + 1)
        await pub.close()


async def write_hours(topic, folder: pathlib.Path, until: int, token: str | None = None) -> str:
    """Write complete hours up to ``until``, and return the token from which the next process resumes."""
    start = "first" if token is None else EpochPosition.from_json(token, topic.order)
    async with topic.subscribe(start=start) as sub:
        async for hour in sub.completed():
            (folder / f"hour={hour.time}.json").write_text(json.dumps(hour.items))  # idempotent
            print(f"hour {hour.time}: {len(hour.items)} rows, from {sorted({r['by'] for r in hour.items})}")
            if hour.time == until:
                break
        return sub.position.to_json()


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = url or (await stack.enter_async_context(NatsServer())).url
        topic = (await stack.enter_async_context(jsclient.connect(url))).epochs("hours", partitions=PRODUCERS)
        writing = asyncio.create_task(write_hours(topic, folder, until=1))  # waits for the producers
        await asyncio.gather(*(produce(topic, n, crash_in=2 if n == 3 else None) for n in range(PRODUCERS)))
        token = await writing
        print("producer 3 crashed in the middle of hour 2; the others finished, and hours 2 to 5 wait for it")
        await asyncio.gather(write_hours(topic, folder, HOURS - 1, token), produce(topic, 3))
        rows = [len(json.loads((folder / f"hour={n}.json").read_text())) for n in range(HOURS)]
        print(f"producer 3 resumed, and no row is stored twice: {rows}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
