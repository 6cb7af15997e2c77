"""Two producers complete hours. A reader takes whole hours and resumes at a saved position."""

from __future__ import annotations

import asyncio
import sys
from typing import TypedDict

import jsclient
from jsclient.epochs import CompletedEpoch, EpochPosition, EpochTopic


class Row(TypedDict):
    by: int
    amount: int


async def produce(topic: EpochTopic[int], producer: int) -> None:
    async with topic.publisher(producer) as pub:
        for hour in range(3):
            rows: list[Row] = [{"by": producer, "amount": hour}, {"by": producer, "amount": 1}]
            await pub.send(hour, rows, msg_id="all")
            await pub.advance(hour + 1)
        await pub.close()


def total(epoch: CompletedEpoch[int]) -> int:
    rows: list[Row] = epoch.items
    return sum(row["amount"] for row in rows)


async def read(topic: EpochTopic[int], until: int, token: str | None = None) -> tuple[list[int], str]:
    resume = EpochPosition.from_json(token, topic.order) if token else None
    totals: list[int] = []
    async with topic.subscribe(start=resume or "first", timeout=10) as sub:
        async for epoch in sub.completed():
            totals.append(total(epoch))
            if epoch.time == until:
                break
        return totals, sub.position.to_json()


async def main(url: str) -> None:
    async with jsclient.connect(url) as js:
        topic = js.epochs("hours", partitions=2)
        await topic.create(storage="memory")
        await asyncio.gather(produce(topic, 0), produce(topic, 1))
        totals, token = await read(topic, until=0)
        remainder, _ = await read(topic, 2, token)
        print(totals, remainder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
