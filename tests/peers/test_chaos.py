"""Two peers whose stores and network fail at random, and whose processes end: in the end both sides agree.

In this process and in virtual time: what is tested is the runtime around `PeerTracker`, whose own rules are in
tests/protocol/peers/test_tracker_model.py. A write may fail before it is done, and after it, so may a send.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient.errors import DisconnectedError, JetStreamError, RequestTimeoutError
from jsclient.peers.engine import Engine
from jsclient.peers.local_backend import LocalBackend, LocalHub, MemoryStore
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import write_value
from tests.support.virtual import virtual

IDS = ("one", "two", "three")
MOVES = ("request", "request", "approve", "approve", "reject", "revoke", "cancel", "restart", "kill")


class Weather:
    """How likely a call fails."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bad = 0.3

    async def pass_by(self) -> None:
        await asyncio.sleep(self.random.random() * 0.05)

    def strike(self, error: JetStreamError) -> None:
        if self.random.random() < self.bad / 2:
            raise error


class FlakyStore(MemoryStore):
    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self._weather = weather

    async def get(self, key):
        await self._weather.pass_by()
        self._weather.strike(DisconnectedError("nothing was read"))
        return await super().get(key)

    async def update(self, key, value, revision):
        await self._weather.pass_by()
        self._weather.strike(DisconnectedError("it was not written"))
        result = await MemoryStore.update(self, key, value, revision)
        self._weather.strike(RequestTimeoutError("it was written, and nobody knows"))
        await self._weather.pass_by()
        return result


class FlakyBackend(LocalBackend):
    def __init__(self, hub: LocalHub, weather: Weather) -> None:
        super().__init__(hub, EngineOptions(handler_delay=0.01), lambda event: None)
        self._weather = weather

    def store(self, peer):
        return self._hub.stores.setdefault(peer, FlakyStore(self._weather))

    async def publish(self, send):
        await self._weather.pass_by()
        self._weather.strike(DisconnectedError("it was not sent"))
        await super().publish(send)
        self._weather.strike(RequestTimeoutError("it was sent, and nobody knows"))


class ChaosWorld:
    def __init__(self, seed: int) -> None:
        self.weather = Weather(seed)
        self.hub = LocalHub()
        self.engines: dict[str, Engine] = {}

    async def peer(self, name: str):
        while True:
            engine = self.engines.setdefault(name, Engine(FlakyBackend(self.hub, self.weather)))
            try:
                return await engine.peer(name)
            except JetStreamError:
                await asyncio.sleep(0.1)

    async def move(self) -> None:
        chance = self.weather.random
        name, move, which = chance.choice("ab"), chance.choice(MOVES), chance.choice(IDS)
        if move in ("restart", "kill"):
            engine = self.engines.pop(name)
            if move == "kill":
                await kill(engine.peers.get(name))
            await engine.close()
            await self.peer(name)
            return
        peer, other = await self.peer(name), await self.peer("b" if name == "a" else "a")
        target = await other.wellKnown_Rx()
        call = peer.request(target, Id=which) if move == "request" else getattr(peer, move)(which)
        task = asyncio.ensure_future(call)
        # The caller may be cancelled at any instant, also after the request was sent.
        if chance.random() < 0.2:
            await asyncio.wait({task}, timeout=0.03)
            task.cancel()
        try:
            await task
        except (JetStreamError, asyncio.CancelledError):
            pass


async def kill(peer) -> None:
    """All its calls stop at the next await, as if the process were gone."""
    if peer is not None:
        peer.stop()
        await peer._tasks.cancel()
        await peer._attendance._tasks.cancel()


@pytest.mark.covers("P3", "P65")
@pytest.mark.parametrize("seed", range(60))
@virtual
async def test_both_sides_agree_whatever_fails(seed):
    world = ChaosWorld(seed)
    for name in "ab":
        await world.peer(name)
    for _ in range(25):
        await world.move()
        await asyncio.sleep(world.weather.random.random())
    # Then the faults end, and each side has time to send what it still owes the other.
    world.weather.bad = 0.0
    a, b = await world.peer("a"), await world.peer("b")
    await asyncio.sleep(300)
    for peer in (a, b):
        stored = {entry.key: entry.value for entry in await world.hub.stores[peer.name].entries()}
        for record in peer._tracker.relationships:
            assert write_value(record) == stored.pop(record.key)
            assert not record.outbox
        assert set(stored) == {"secret", "channel.wellKnown_Rx"}
    for which in IDS:
        one, other = (
            [record for record in peer._tracker.relationships if record.id == which and record.live]
            for peer in (a, b)
        )
        assert len(one) == len(other) <= 1, (which, one, other)
        if one:
            assert {one[0].state.value, other[0].state.value} in ({"established"}, {"outbound", "inbound"})
            if one[0].state.value == "established":
                assert (one[0].tx, one[0].rx) == (other[0].rx, other[0].tx)
    for engine in world.engines.values():
        await engine.close()
