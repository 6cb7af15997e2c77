"""Epochs under stress: publishers die and come back, subscribers come, go and resume, servers restart.

At all times, a subscriber must receive all data of an epoch or none. `completed` gives each epoch once, whole, in
order, when it is completed, and no data of it follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import OracleError
from integration.kit.judge.waiting import within
from integration.kit.servers.cluster import OwnCluster
from jsclient.epochs import Data

PARTITIONS = 3
EPOCHS = 60
PASSING = (
    jsclient.DisconnectedError,
    jsclient.RequestTimeoutError,
    jsclient.NoRespondersError,
    jsclient.PublishesFailedError,
    jsclient.ProducerFencedError,
    jsclient.TopicNotFoundError,
)


def batches_of(partition: int, epoch: int) -> list[list[str]]:
    """The items that a partition sends in an epoch: always the same, some epochs are skipped."""
    count = (partition * 7 + epoch * 3) % 5
    return [[f"{partition}/{epoch}/{number}"] for number in range(count)]


def all_of(epoch: int) -> list[str]:
    return sorted(item for p in range(PARTITIONS) for batch in batches_of(p, epoch) for item in batch)


class World:
    def __init__(self, connect: Any, url: Any, name: str, chance: random.Random) -> None:
        self.connect, self.url, self.name, self.chance = connect, url, name, chance
        self.counts: Counter[str] = Counter()
        self.done = asyncio.Event()

    async def topic(self) -> Any:
        js = await self.connect(self.url, timeout=10.0)
        return js.epochs(self.name, partitions=PARTITIONS)

    async def produce(self, partition: int, topic: Any) -> None:
        """One life of a publisher: from the position of the partition to its end."""
        pub = await topic.publisher(partition, max_in_flight=20, takeover=True)
        try:
            for epoch in range(max(pub.frontier, default=EPOCHS), EPOCHS):
                batches = batches_of(partition, epoch)
                if epoch % 4 == 3:
                    await pub.commit_epoch(epoch, *batches)
                    continue
                for number, batch in enumerate(batches):
                    await pub.send(epoch, batch, msg_id=str(number))
                    if self.chance.random() < 0.3:
                        await asyncio.sleep(0)
                await pub.advance(epoch + 1)
                await asyncio.sleep(self.chance.random() * 0.02)
            if pub.frontier:
                await pub.close()
        finally:
            if self.chance.random() < 0.5:  # else it lingers, and what is in progress continues
                await pub.release()

    async def keep_producing(self, partition: int) -> None:
        """Publishers that are killed in the middle of an epoch, at any await, and followed by others."""
        topic, rivals, lives = await self.topic(), [], 0
        while True:
            life = asyncio.ensure_future(self.produce(partition, topic))
            lives += 1
            if lives < 6 or self.chance.random() < 0.7:
                await asyncio.wait([life], timeout=self.chance.random() * 0.1)
            else:
                await asyncio.wait([life])
            if life.done() and not life.exception():
                await self.end_of(rivals)
                return
            if not life.done() and self.chance.random() < 0.4:
                rivals.append(life)  # it continues, and does not know that it has been replaced
                self.counts["rivals"] += 1
                continue
            life.cancel()
            await self.end_of([life])
            self.counts["killed"] += 1

    async def end_of(self, lives: list[Any]) -> None:
        for ending in await asyncio.gather(*lives, return_exceptions=True):
            if ending is not None and not isinstance(ending, (*PASSING, asyncio.CancelledError)):
                raise ending

    async def follow(self, delay: float) -> None:
        """A subscriber of events that came at any moment: of each epoch all or nothing."""
        topic = await self.topic()
        await asyncio.sleep(delay)
        got: dict[int, list[str]] = {}
        async with await topic.subscribe() as sub:
            async for event in sub:
                if isinstance(event, Data):
                    assert not sub.is_completed(event.time)
                    got.setdefault(event.time, []).extend(event.items)
        for epoch, items in got.items():
            assert sorted(items) == all_of(epoch), epoch
        self.counts["followed"] += len(got)

    async def collect(self) -> dict[int, list[str]]:
        """Whole epochs, over many lives that have nothing but a token."""
        topic = await self.topic()
        got: dict[int, list[str]] = {}
        token: Any = "now"
        while True:
            async with await topic.subscribe(start=token) as sub:
                token = sub.position
                over = True
                async for epoch in sub.completed(max_bytes=self.chance.choice([1, 100, 10**6])):
                    items = [item async for batch in epoch for item in batch]
                    assert epoch.time not in got
                    assert sorted(items) == all_of(epoch.time), epoch
                    assert epoch.time > max(got, default=-1)
                    got[epoch.time] = items
                    token = sub.position
                    if self.chance.random() < 0.15:
                        over = False
                        break
                self.counts["refused"] += sub.refused
            if over:
                return got
            self.counts["lives"] += 1


async def run(world: World, disturb: Any = None) -> dict[int, list[str]]:
    async with asyncio.TaskGroup() as group:
        collecting = group.create_task(world.collect())  # waits for the topic
        for partition in range(PARTITIONS):
            group.create_task(world.keep_producing(partition))
        for number in range(6):
            group.create_task(world.follow(number * 0.15))
        if disturb is not None:
            group.create_task(disturb())
    return collecting.result()


@pytest.mark.core_cases(1)
@pytest.mark.limit(240)
@pytest.mark.covers("S2", "S4", "S12", "S13", "S34", "S38", "S39", "S45", "S46", "S47", "S52", "S53")
@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=pytest.mark.server(">=2.12"))])
async def test_random_deaths_and_joins(
    server: Any, connect: Any, js: Any, request: Any, atomic: bool
) -> None:
    name = f"stress{atomic}"
    await js.epochs(name, partitions=PARTITIONS).create(**{"allow_atomic": True} if atomic else {})
    try:
        world = World(connect, server, name, random.Random(11))
        got = await within(180, run(world), "all epochs")
        assert world.counts["killed"] > 1
        assert world.counts["rivals"] > 1
        assert world.counts["followed"] > 30
        assert world.counts["lives"] >= 1
        assert got[EPOCHS - 1] if all_of(EPOCHS - 1) else got
        print(world.counts, len(got))
    finally:
        await js.delete_stream(name)


@pytest.mark.limit(240)
async def test_server_restarts_in_middle(own_server: Any, connect: Any) -> None:
    server = await own_server()
    world = World(connect, server, "stress", random.Random(5))
    topic = await world.topic()

    async def disturb() -> None:
        for _ in range(2):
            await asyncio.sleep(0.5)
            await server.stop()
            await server.start()
            with contextlib.suppress(jsclient.JetStreamError):
                await topic.partitions()
            world.counts["restarts"] += 1

    got = await within(180, run(world, disturb), "all epochs")
    assert world.counts["restarts"] == 2
    assert len(got) > 5
    print(world.counts, len(got))


@pytest.mark.full
@pytest.mark.limit(150)
async def test_leaders_change_in_a_cluster(own_server: Any, connect: Any, oracle_for: Any) -> None:
    """Three replicas: a reader may lag behind the leader."""
    cluster = await OwnCluster.start(own_server)
    js = await connect(cluster.urls, timeout=15.0)
    await js.epochs("stress", partitions=PARTITIONS).create(num_replicas=3)
    oracle = await oracle_for(cluster.servers["n1"])
    world = World(connect, cluster.urls, "stress", random.Random(2))

    async def disturb() -> None:
        for _ in range(3):
            await asyncio.sleep(0.7)
            with contextlib.suppress(OracleError):
                await cluster.step_down(oracle, "stress")
                world.counts["elections"] += 1

    got = await within(90, run(world, disturb), "all epochs")
    assert world.counts["elections"] > 0
    assert len(got) > 5
    print(world.counts, len(got))
