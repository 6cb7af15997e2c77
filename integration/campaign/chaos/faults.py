"""The faults of the cluster, one after the other, from a seed. Each is healed before the next fault."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from random import Random

from integration.campaign.chaos.nodes import NAMES, Nodes
from integration.kit.judge.oracle import Oracle
from integration.kit.servers.monitor import connections

KINDS = (
    "kill", "freeze", "cut off silently", "cut off", "step down", "consumers step down",
    "leaf link cut", "leaf link silent", "clients cut", "clients stalled", "clients broken off", "clients corrupted",
)  # fmt: skip


@dataclass
class Fault:
    """What happened to which node, from when to when, monotonic seconds. The names of its clients before."""

    kind: str
    node: str
    began: float
    ended: float = 0.0
    clients: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.node} for {self.ended - self.began:.1f} s"


class History:
    """What happened in a run, and what could not be done."""

    def __init__(self) -> None:
        self.happened: list[Fault] = []
        self.failed: list[str] = []

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(fault.kind for fault in self.happened))


class Faults:
    """Harms the cluster until the caller ends it, then heals all faults."""

    def __init__(
        self, nodes: Nodes, chance: Random, streams: list[str], kinds: tuple[str, ...] = KINDS
    ) -> None:
        self._nodes, self._chance, self._streams, self._kinds = nodes, chance, streams, kinds
        self.history = History()

    async def run(self, until: float) -> None:
        kinds: list[str] = []
        while time.monotonic() < until:
            if not kinds:  # each kind in every round
                kinds = [*self._kinds]
                self._chance.shuffle(kinds)
            await asyncio.sleep(self._chance.uniform(0.5, 3.0))
            fault = Fault(kinds.pop(), self._chance.choice(NAMES), time.monotonic())
            self.history.happened.append(fault)
            try:
                await self._do(fault)
            except Exception as error:  # noqa: BLE001  such as: nobody leads just now
                self.history.failed.append(f"{fault.kind} {fault.node}: {error!r:.120}")
            fault.ended = time.monotonic()

    async def _do(self, fault: Fault) -> None:
        server, length = self._nodes.servers[fault.node], self._chance.uniform(1.0, 5.0)
        match fault.kind:
            case "kill":
                await server.kill()
                await asyncio.sleep(length)
                await server.start()
            case "freeze":
                actual = await connections(server.monitor)
                fault.clients = tuple(name for name, _ in actual.values())
                fault.began = time.monotonic()
                length += 2.5  # long enough for an alarm
                server.pause()
                try:
                    await asyncio.sleep(length)
                finally:
                    server.resume()
            case "cut off" | "cut off silently":
                self._nodes.cut_off(fault.node, silently="silently" in fault.kind)
                try:
                    await asyncio.sleep(length)
                finally:
                    await self._nodes.let_in(fault.node)
            case "leaf link cut" | "leaf link silent":
                await self._nodes.harm_leaf_link(length, silently=fault.kind.endswith("silent"))
            case "clients cut" | "clients stalled" | "clients broken off" | "clients corrupted":
                await self._harm_clients(fault, length)
            case _:
                await self._step_down(fault)

    async def _harm_clients(self, fault: Fault, length: float) -> None:
        """Harm the way between a node and its clients for a time. Corrupt TLS only, where a wrong byte shows."""
        transports = ("tls",) if fault.kind.endswith("corrupted") else ()
        ways = self._nodes.ways_to(fault.node, *transports)
        end = time.monotonic() + length
        # a stall lasts for the whole time, the other faults are repeated
        if fault.kind == "clients stalled":
            for way in ways:
                way.stall()
            try:
                await asyncio.sleep(length)
            finally:
                for way in ways:
                    way.unstall()
            return
        while time.monotonic() < end:
            for way in ways:
                if fault.kind == "clients cut":
                    way.cut()
                elif fault.kind == "clients broken off":
                    way.break_off()
                else:
                    way.corrupt()
            await asyncio.sleep(self._chance.uniform(0.2, 1.5))

    async def _step_down(self, fault: Fault) -> None:
        stream = self._chance.choice(self._streams)
        async with Oracle(self._nodes.servers[fault.node].url, timeout=2.0) as oracle:
            if fault.kind == "step down":
                await oracle.api(f"STREAM.LEADER.STEPDOWN.{stream}")
                return
            for name in await oracle.consumer_names(stream):
                if self._chance.random() < 0.5:
                    await oracle.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}")
