"""Publishing the flights, with many publishes in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ...client import JetStream
from .flights import Flight

__all__ = ["publish_all"]

_CHUNK = 500  # publishes that are awaited together
_CHUNKS = 3  # chunks in flight
_TIMEOUT = 30.0  # seconds, for one publish


async def publish_all(
    js: JetStream, flights: Sequence[Flight], prefix: str, on_stored: Callable[[int], None]
) -> None:
    """Publish in order, and call ``on_stored`` with the number of newly confirmed flights.

    Each publish has a message id, so that a retry after a lost publish ack is stored once.

    Raises:
        ExceptionGroup: With the errors of `JetStream.publish`.
    """
    in_flight: deque[asyncio.Task[None]] = deque()
    async with asyncio.TaskGroup() as tasks:
        for start in range(0, len(flights), _CHUNK):
            if len(in_flight) == _CHUNKS:
                await in_flight.popleft()
            chunk = flights[start : start + _CHUNK]
            in_flight.append(tasks.create_task(_publish(js, chunk, start + 1, prefix, on_stored)))


async def _publish(
    js: JetStream, chunk: Sequence[Flight], first: int, prefix: str, on_stored: Callable[[int], None]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, flight in enumerate(chunk, first):
            payload = msgspec.json.encode(flight)
            publishing = js.publish(flight.subject(prefix), payload, msg_id=str(number), timeout=_TIMEOUT)
            tasks.create_task(publishing)
    on_stored(len(chunk))
