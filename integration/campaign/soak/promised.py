"""What is promised through all reconnects: what was confirmed as stored is read once in order, and handled."""

from __future__ import annotations

import asyncio
from typing import Any

from integration.kit.judge.waiting import eventually
from jsclient import ConsumerConfig, JetStreamError

STREAM, SUBJECT = "P", "p.a"
_EVERY = 0.05  # seconds between publishes
_MOST = 1_000_000  # publishes of a run
_END = 60.0  # seconds within which readers must have reached the end


class Promised:
    """A publisher, an ordered reader and a worker on one stream. The figures take the same memory all the time."""

    def __init__(self, js: Any) -> None:
        self._js = js
        self.confirmed, self.read, self.handled = (bytearray(_MOST) for _ in range(3))
        self.sent = self.unknown = self.last_seq = 0
        self.odd: list[str] = []
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sub: Any = None
        self._worker: Any = None

    async def begin(self) -> None:
        self._sub = await self._js.subscribe(SUBJECT, ordered=True, config=ConsumerConfig(idle_heartbeat=1.0))
        config = ConsumerConfig(ack_wait=5.0)
        psub = await self._js.pull_subscribe(SUBJECT, durable="worker", config=config)
        self._worker = psub.run(self._handle)
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._read())]

    async def _publish(self) -> None:
        while not self._stop.is_set() and self.sent < _MOST - 1:
            self.sent += 1
            try:
                await self._js.publish(SUBJECT, b"%d" % self.sent, msg_id=str(self.sent))
                self.confirmed[self.sent] = 1
            except JetStreamError:
                self.unknown += 1
            await asyncio.sleep(_EVERY)

    async def _read(self) -> None:
        async for message in self._sub:
            seq, number = message.metadata.stream_seq, int(message.data)
            if seq != self.last_seq + 1 or self.read[number]:
                self.odd.append(f"sequence {seq} after {self.last_seq}, number {number}")
            self.last_seq, self.read[number] = seq, 1

    async def _handle(self, message: Any) -> None:
        self.handled[int(message.data)] = 1

    async def end(self) -> None:
        """Stop publishing, and wait until everything was read and handled."""
        self._stop.set()
        await self._tasks[0]
        try:
            await eventually(lambda: not self.missing(self.read) and not self.missing(self.handled), _END)
        except AssertionError:
            pass  # the verdict says it
        self._worker.stop()
        await self._worker
        await self._sub.unsubscribe()
        await self._tasks[1]

    def missing(self, what: bytearray) -> list[int]:
        """The numbers that were confirmed, and are not in ``what``."""
        return [number for number in range(1, self.sent + 1) if self.confirmed[number] and not what[number]]
