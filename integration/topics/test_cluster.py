"""Topics, kits and peers in a cluster whose leaders change and whose nodes die: no record is lost or repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.clients.log_traffic import Producer, check, keep_reading
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import noting
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.cluster import OwnCluster
from jsclient import JetStreamError, RequestTimeoutError
from jsclient.peers import Engine
from jsclient.topics.log_reader import open_reader
from jsclient.topics.stream_log import find_log

FAST = {"reconnect_time_wait": 0.05, "connect_timeout": 1.0, "ping_interval": 0.5, "timeout": 10.0}

pytestmark = [pytest.mark.limit(240)]


@pytest.fixture
async def near(cluster: OwnCluster, connect: Any) -> Any:
    """A connection that continues at another node when its own dies."""
    return await connect(cluster.urls, **FAST)


@contextlib.asynccontextmanager
async def elections(cluster: OwnCluster, stream: str) -> AsyncIterator[list[str]]:
    """During the block the stream's leader steps down repeatedly. The list has an entry for each time."""
    done, reports = asyncio.Event(), list[str]()

    async def disturb() -> None:
        while not done.is_set():
            with contextlib.suppress(Exception):  # no one leads just now, or this node is down
                async with Oracle(cluster.urls[len(reports) % 3], timeout=1.0) as oracle:
                    await cluster.step_down(oracle, stream)
                    reports.append("step down")
            await asyncio.sleep(0.5)

    disturbing = asyncio.create_task(disturb())
    try:
        yield reports
    finally:
        done.set()
        await disturbing


async def each_node_dies(cluster: OwnCluster, stream: str, between: Any) -> None:
    """One node after the other, each when the previous node has returned and has all data."""
    for server in cluster.servers.values():
        await between()
        await server.kill()
        await between()
        await server.start()
        async with Oracle(server.url) as oracle:
            await cluster.places(oracle, stream)


@pytest.mark.full
@pytest.mark.covers("T1", "T2", "T22", "T24", "T25")
@pytest.mark.parametrize(
    ("push", "direct"),
    [
        pytest.param("consumer", True, marks=pytest.mark.full),
        ("republish", True),
        pytest.param(None, True, marks=pytest.mark.full),
        pytest.param(None, False, marks=pytest.mark.full),
    ],
)
async def test_reader_every_record_once(
    cluster: OwnCluster, near: Any, connect: Any, push: Any, direct: bool
) -> None:
    await near.create_stream(
        "S",
        subjects=["s.>"],
        num_replicas=3,
        republish={"src": ">", "dest": "pushed.>"},
        allow_direct=direct,
    )
    writer = await connect(cluster.urls, **FAST)
    producer = Producer(await find_log(writer._context, "s.a"))
    log = await find_log(near._context, "s.a")
    got: list[int] = []
    reader = await open_reader(log, push=push, quiet=0.2)
    reading = asyncio.create_task(keep_reading(reader, got))

    async def between() -> None:
        await producer.more(40)

    async with elections(cluster, "S") as reports:
        await between()
        await eventually(lambda: len(reports) > 2, 20.0, "elections")
        await between()
    await each_node_dies(cluster, "S", between)
    await check(reader, producer, got, reading)


@pytest.mark.full
@pytest.mark.parametrize("push", ["consumer", "republish"])
async def test_table_current_after_the_leader_died(
    cluster: OwnCluster, near: Any, connect: Any, push: Any
) -> None:
    """Updates and a removal without a leader, while the next leader has died too."""
    republish = {"src": ">", "dest": "pushed.>"}
    writer = await connect(cluster.urls, **FAST)
    handle = await writer.create_stream(
        "S", subjects=["s.>"], num_replicas=3, republish=republish, allow_direct=True
    )
    expected: dict[str, int] = {}

    def newest(records: Any) -> dict[str, int]:
        return {subject: int(record.data) for subject, record in records.items()}

    async def update(first: int, without: str) -> None:
        futures: dict[int, Any] = {}
        async with writer.publisher(timeout=60) as pub:
            for number in range(first, first + 60):
                futures[number] = await pub.publish(f"s.s{number % 20}", b"%d" % number, msg_id=str(number))
        # A message that was refused or lost during the election is stored after messages that were published later.
        for number in sorted(futures, key=lambda number: futures[number].result().seq):
            expected[f"s.s{number % 20}"] = number

        async def purged() -> bool:
            with contextlib.suppress(JetStreamError):
                return await handle.purge(subject=without) is not None
            return False

        await eventually(purged, what="the purge")
        del expected[without]

    await update(0, "s.s0")
    async with near.topic("s.*").table(push=push, quiet=0.3, check=0.2) as table:
        for first in (60, 120):
            async with Oracle(writer._connection.url) as oracle:
                leader, _ = await cluster.places(oracle, "S")
            server = cluster.servers[leader]
            await server.kill()
            await update(first, f"s.s{first // 60}")
            with contextlib.suppress(RequestTimeoutError):
                await table.wait_for(lambda records: newest(records) == expected, 60)
            assert newest(table) == expected
            await server.start()


@pytest.mark.full
@pytest.mark.covers("A10", "A19", "A21", "A23", "A66")
@pytest.mark.parametrize("kind", ["notifier_kit", "subscription_kit"])
async def test_kit_each_state_and_loses_none(cluster: OwnCluster, near: Any, connect: Any, kind: str) -> None:
    producer, _ = kit = await getattr(near, kind)("kit.a", num_replicas=3)
    there = await connect(cluster.urls, **FAST)
    if kind == "notifier_kit":
        consumed = there.make_notifier(await kit.notifier.get_sharable_notifier_internals())
    else:
        consumed = there.make_subscription(await kit.subscription.get_sharable_subscription_internals())
    got: list[int] = []

    async def collect() -> None:
        async for state in consumed:
            got.append(state)  # noqa: PERF401  others look at it meanwhile

    collecting = asyncio.create_task(collect())
    states = 0

    async def between() -> None:
        nonlocal states
        for _ in range(20):
            await producer.update_state(states)
            states += 1

    [stream] = await near.stream_name_by_subject("kit.a")
    async with elections(cluster, stream) as reports:
        await between()
        await eventually(lambda: len(reports) > 2, 20.0, "elections")
        await between()
    await each_node_dies(cluster, stream, between)
    await producer.finish("done")
    await within(20, collecting, "the end of the iteration")
    if kind == "subscription_kit":
        assert got == [*range(states)]
    else:
        assert got == sorted(set(got))
        assert got[-1] == states - 1
        assert set(got) <= set(range(states))


@pytest.mark.full
async def test_peers_agree_whoever_leads(cluster: OwnCluster, near: Any, connect: Any) -> None:
    """Of each relationship that was asked for both sides have the same, and each event is handled."""
    engine = Engine(near, replicas=3, retry_delay=0.1)
    other = Engine(await connect(cluster.urls, **FAST), replicas=3, retry_delay=0.1)
    asking, requests = await engine.peer("asking"), await other.peer("asked")
    requests.auto_accept(Rx_role="store")
    received: list[int] = []
    requests.on("door:opened", noting(received, lambda event: event.attrs["number"]))
    requested: list[str] = []
    sent = 0

    async def between() -> None:
        nonlocal sent
        requested.append(await asking.request(await requests.wellKnown_Rx(), Rx_role="shop", Tx_role="store"))
        await eventually(lambda: asking.established("Id", requested[-1]), 20.0, "the relationship")
        for _ in range(5):
            sent += 1
            await asking.send("door", "opened", {"number": sent}, Id=requested[0])

    async with elections(cluster, "PICO_EVENTS") as reports:
        await between()
        await eventually(lambda: len(reports) > 2, 20.0, "elections")
        await between()
    await each_node_dies(cluster, "PICO_STATE", between)
    # A message on its way to a node that died comes again when its time for an ack is over: late, and out of order.
    await eventually(lambda: set(received) >= {*range(1, sent + 1)}, 60.0, "all events")
    assert set(received) == {*range(1, sent + 1)}
    mine, theirs = asking.established(), requests.established()
    assert {one["Id"]: (one["Tx"], one["Rx"]) for one in mine} == {
        one["Id"]: (one["Rx"], one["Tx"]) for one in theirs
    }
    assert {one["Id"] for one in mine} == set(requested)
    await engine.close()
    await other.close()
