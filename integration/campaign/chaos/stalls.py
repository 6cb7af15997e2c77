"""Readers that stand still in silence although their stream has records for them and a leader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats.errors

from integration.campaign.chaos.faults import History
from integration.campaign.chaos.nodes import Nodes
from integration.campaign.chaos.readers import Reading
from integration.campaign.report import Outcome
from integration.kit.judge.oracle import Oracle, OracleError

SILENT = 5.0  # seconds for which a reader may stand still before it tells
TOLD = 15.0  # seconds for which it may stand still after it told
LOOK = 1.0

CONSUMERS = {"push": "push", "queue": "q", "fetch": "fetch", "messages": "messages", "work": "work"}
"""The kinds of readers of a named consumer, which is not made again when it has no leader."""

UNREACHABLE = (OracleError, AssertionError, nats.errors.Error, OSError, RuntimeError)
"""No leader, or the node is down or cut off. nats-py passes on what the transport raises: uvloop's a RuntimeError."""

Heard = Callable[[Any], list[tuple[float, Any]]]
"""The events of a connection so far, with the moment of each."""


class Stalls:
    """Compares, once a second, what each reader has with what the leader of its stream has."""

    def __init__(self, readers: list[Reading], received: Heard, nodes: Nodes) -> None:
        self._readers = [one for one in readers if one.kind != "latest"]  # it reads one subject of many
        self._heard, self._nodes = received, nodes
        self._behind_since: dict[int, float] = {}
        self.longest: dict[tuple[int, bool], tuple[float, float]] = {}
        """For each reader, before and after it told: its longest stand-still, and the moment at which it began."""

    @classmethod
    @contextlib.asynccontextmanager
    async def watched(cls, readers: list[Reading], received: Heard, nodes: Nodes) -> AsyncIterator[Stalls]:
        stalls = cls(readers, received, nodes)
        task = asyncio.create_task(stalls._run())
        try:
            yield stalls
        finally:
            task.cancel()
            (error,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(error, asyncio.CancelledError):
                raise error

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            oracles = [await stack.enter_async_context(Oracle(url, timeout=1.0)) for url in self._nodes.urls]
            while True:
                await asyncio.sleep(LOOK)
                last = await self._last({one.stream for one in self._readers}, oracles)
                led = await self._led({(one.stream, CONSUMERS[one.kind]) for one in self._named()}, oracles)
                for number, one in enumerate(self._readers):
                    has_leader = one.kind not in CONSUMERS or (one.stream, CONSUMERS[one.kind]) in led
                    self._look(number, one, last.get(one.stream) if has_leader else None)

    def _named(self) -> list[Reading]:
        return [one for one in self._readers if one.kind in CONSUMERS]

    async def _led(self, consumers: set[tuple[str, str]], oracles: list[Oracle]) -> set[tuple[str, str]]:
        """The named consumers that have a leader: no one else can deliver, and its members can do nothing about it."""

        async def ask(oracle: Oracle, stream: str, name: str) -> tuple[str, str] | None:
            try:
                info = await oracle.api(f"CONSUMER.INFO.{stream}.{name}")
            except UNREACHABLE:
                return None
            return (stream, name) if info.get("cluster", {}).get("leader") else None

        answers = await asyncio.gather(*(ask(one, *consumer) for one in oracles for consumer in consumers))
        return {one for one in answers if one is not None}

    def _look(self, number: int, one: Reading, last: int | None) -> None:
        """Note how long a reader has been behind a leader that answers, with nothing taken."""
        now = time.monotonic()
        if last is None or last <= one.highest or one.is_opening:
            self._behind_since.pop(number, None)
            return
        behind, reports = self._behind_since.setdefault(number, now), self._told(one)
        since = max(behind, one.took_at, reports)
        key = (number, reports > one.took_at)
        if now - since > self.longest.get(key, (0.0, 0.0))[0]:
            self.longest[key] = (now - since, since)

    def _told(self, one: Reading) -> float:
        """The moment of the last event of its connection."""
        events = self._heard(one.js)
        return events[-1][0] if events else 0.0

    async def _last(self, streams: set[str], oracles: list[Oracle]) -> dict[str, int]:
        """The last sequence of each stream that has a leader, asked through every node."""

        async def ask(oracle: Oracle, stream: str) -> tuple[str, int]:
            try:
                return stream, int((await oracle.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
            except UNREACHABLE:
                return stream, 0

        last: dict[str, int] = {}
        for stream, seq in await asyncio.gather(*(ask(one, stream) for one in oracles for stream in streams)):
            if seq:
                last[stream] = max(seq, last.get(stream, 0))
        return last

    def judge(self, outcome: Outcome, history: History) -> None:
        late = []
        for (number, reports), (length, since) in self.longest.items():
            if length > (TOLD if reports else SILENT):
                during = [
                    str(fault)
                    for fault in history.happened
                    if fault.began <= since + length and fault.ended >= since - SILENT
                ]
                one = self._readers[number]
                late.append(f"{one.stream} {one.name}: {length:.1f} s during {during}, {reports = }")
        for reports, name in ((False, "longest silence"), (True, "longest stand-still that was told")):
            lengths = [length for (_, with_told), (length, _) in self.longest.items() if with_told is reports]
            outcome.ran[name] = f"{max(lengths, default=0.0):.1f} s"
        outcome.none_of(f"no reader stands still for over {SILENT} s in silence", late)
