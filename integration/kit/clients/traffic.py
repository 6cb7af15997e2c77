"""Live traffic during a fault, and the count of what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import nats.errors

from integration.kit.judge.oracle import Oracle, numbered

_TOGETHER = 25
_PAUSE = 0.01
_TRY = 1.0


@dataclass
class Tally:
    """The result of one reader: stream sequences in the order of hand-over, and the errors it met."""

    name: str = ""
    seqs: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    """Sequences that came with a delivery count over one: a repeat the server announced."""
    errors: list[BaseException] = field(default_factory=list)

    def take(self, message: Any) -> None:
        metadata = message.metadata
        self.seqs.append(metadata.stream_seq)
        if metadata.num_delivered > 1:
            self.again.add(metadata.stream_seq)

    def lost(self, last: int, first: int = 1) -> list[int]:
        return sorted(set(range(first, last + 1)) - set(self.seqs))

    @property
    def repeated(self) -> list[int]:
        return sorted(seq for seq, count in Counter(self.seqs).items() if count > 1)

    @property
    def disordered(self) -> list[int]:
        """First arrivals that came after a later one."""
        seen: set[int] = set()
        highest, actual = 0, []
        for seq in self.seqs:
            if seq < highest and seq not in seen:
                actual.append(seq)
            highest = max(highest, seq)
            seen.add(seq)
        return actual

    @property
    def untold(self) -> list[int]:
        """Repeats whose delivery count did not say so."""
        return [seq for seq in self.repeated if seq not in self.again]

    def counts(self, last: int) -> dict[str, int]:
        return {
            "lost": len(self.lost(last)),
            "repeated": len(self.repeated),
            "disordered": len(self.disordered),
            "untold": len(self.untold),
        }


class Feed:
    """Publishes numbered messages, each until it is known to be stored, on the judge's connection."""

    def __init__(self, oracle: Oracle, subject: str) -> None:
        self._oracle = oracle
        self._subject = subject
        self.published = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with asyncio.TaskGroup() as group:
                for _ in range(_TOGETHER):
                    self.published += 1
                    group.create_task(self._store(self.published))
            await asyncio.sleep(_PAUSE)

    async def _store(self, number: int) -> None:
        headers = {"Nats-Msg-Id": f"n{number}"}
        while True:
            try:
                await self._oracle.nc.request(self._subject, numbered(number), timeout=_TRY, headers=headers)
                return
            except (nats.errors.Error, OSError):
                # The server is down or frozen: the id keeps a repeat from being stored twice.
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def live(oracle: Oracle, subject: str) -> AsyncIterator[Feed]:
    """Have messages published during the block. All of them are stored when it ends."""
    feed = Feed(oracle, subject)
    stop = asyncio.Event()

    task = asyncio.create_task(feed.run(stop), name="live-traffic")
    try:
        yield feed
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
