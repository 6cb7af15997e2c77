"""Publishing the flights, many at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ...client import JetStream
from .flights import Flight

__all__ = ["publish_all"]

_CHUNK = 500  # publishes that are waited for together
_CHUNKS = 3  # chunks under way
_TIMEOUT = 30.0  # seconds, for one publish


async def publish_all(
    js: JetStream, flights: Sequence[Flight], prefix: str, on_stored: Callable[[int], None]
) -> None:
    """Publish in order; ``on_stored`` is told how many more the stream has confirmed.

    Each has a message id, so a publish whose answer is lost is tried again and stored once.

    Raises:
        What `JetStream.publish` raises, in an `ExceptionGroup`.
    """
    under_way: deque[asyncio.Task[None]] = deque()
    async with asyncio.TaskGroup() as tasks:
        for start in range(0, len(flights), _CHUNK):
            if len(under_way) == _CHUNKS:
                await under_way.popleft()
            chunk = flights[start : start + _CHUNK]
            under_way.append(tasks.create_task(_publish(js, chunk, start + 1, prefix, on_stored)))


async def _publish(
    js: JetStream, chunk: Sequence[Flight], first: int, prefix: str, on_stored: Callable[[int], None]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, flight in enumerate(chunk, first):
            payload = msgspec.json.encode(flight)
            publishing = js.publish(flight.subject(prefix), payload, msg_id=str(number), timeout=_TIMEOUT)
            tasks.create_task(publishing)
    on_stored(len(chunk))
