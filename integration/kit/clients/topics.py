"""Topics of tests: a stream that republishes, numbers published and read, and every feed."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within

FEEDS = pytest.mark.parametrize("push", ["consumer", "republish", None])


def live(subjects: str) -> dict[str, str]:
    return {"src": subjects, "dest": f"live.{subjects}"}


async def republishing(oracle: Any, make_stream: Any) -> OwnStream:
    """Create a stream that republishes and allows direct gets."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish=live(stream.all))
    return stream


async def publish(topic: Any, first: int, end: int) -> None:
    async with topic.publisher() as pub:
        for number in range(first, end):
            await pub.publish(b"%d" % number)


async def read(reader: Any, count: int) -> list[int]:
    async def some() -> list[int]:
        return [int((await reader.next()).data) for _ in range(count)]

    return await within(25, some(), f"{count} records")  # sooner than the timer of a reader asks


async def has_push(reader: Any) -> None:
    await eventually(lambda: reader._reader.tracker.is_subscribed, what="it is pushed to")
