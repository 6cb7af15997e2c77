"""Publish settings to a topic. Read all of them, the newest, those since a position, and a table of them."""

from __future__ import annotations

import asyncio
import sys

import jsclient
from jsclient import Position, Record, Topic, TopicTable


async def everything(topic: Topic, count: int) -> tuple[list[str], Position]:
    async with topic.each() as reader:
        records = [await reader.next(timeout=5) for _ in range(count)]
        return [record.data.decode() for record in records], reader.position


async def after(topic: Topic, token: str) -> Record | None:
    async for record in topic.since(token):
        return record
    return None


def is_complete(table: TopicTable) -> bool:
    return {"settings.limit", "settings.audit"} <= table.keys()


async def main(url: str) -> None:
    async with jsclient.connect(url) as js:
        settings = js.topic("settings.*", stream="SETTINGS")
        await settings.create(max_age=3600, storage="memory")
        limit = js.topic("settings.limit")
        async with limit.publisher() as pub:
            for value in (b"10", b"20"):
                await pub.publish(value)
        values, position = await everything(limit, 2)
        newest = await limit.latest().next(timeout=5)
        async with settings.table() as table:
            changes = table.changes()
            await js.publish("settings.audit", b"on")
            change = await changes.next(timeout=5)
            await table.wait_for(is_complete, timeout=5)
            state = {subject: record.data.decode() for subject, record in table.items()}
        audit = await after(settings, position.to_json())
        print(values, newest.data.decode(), change.subject, sorted(state.values()), audit and audit.seq)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
