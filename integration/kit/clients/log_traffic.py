"""A task that appends to a log while servers come and go, and a task that reads it."""

from __future__ import annotations

import asyncio

from integration.kit.judge.waiting import eventually
from jsclient import JetStreamError
from jsclient.topics.log import Log
from jsclient.topics.log_reader import LogReader


class Producer:
    """Appends numbers until it is stopped, each until it is stored. Faults are nothing to it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self.stored = 0

    async def _run(self) -> None:
        while not self._stop.is_set():
            number = self.stored + 1
            try:
                await self._log.append(b"%d" % number, msg_id=f"n{number}")
            except JetStreamError:
                await asyncio.sleep(0.02)
            else:
                self.stored = number
                await asyncio.sleep(0.002)

    async def more(self, count: int) -> None:
        """Return when this many more are stored."""
        goal = self.stored + count
        await eventually(lambda: self.stored >= goal, 60.0, "records that are stored")

    async def stop(self) -> int:
        """How many there are."""
        self._stop.set()
        await self._task
        return self.stored


async def keep_reading(reader: LogReader, got: list[int]) -> None:
    async for record in reader:
        got.append(int(record.data))  # noqa: PERF401  others look at it meanwhile


async def check(reader: LogReader, producer: Producer, got: list[int], reading: asyncio.Task[None]) -> None:
    """The reader, of which ``reading`` keeps what it gave, reads on to the end of what was stored: all of it, once."""
    stored = await producer.stop()
    await eventually(lambda: reading.done() or len(got) >= stored, 60.0, "reading to the end")
    if reading.done():
        await reading
    assert got == [*range(1, stored + 1)]
    await reader.close()
    await reading
