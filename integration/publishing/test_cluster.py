"""Publishing to replicated streams: expectations that fail, and publishes during a leader election."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.cluster import OwnCluster
from jsclient.protocol.publishing.in_flight import question_about
from jsclient.protocol.wire.codec import decode
from jsclient.protocol.wire.headers import parse_headers

NEVER_STORED = question_about("no id of these tests", "never an id")

pytestmark = [pytest.mark.limit(240)]


@pytest.fixture
async def oracle_there(cluster: OwnCluster, oracle_for: Any) -> Oracle:
    """The judge. Its stream OUT is replicated."""
    oracle: Oracle = await oracle_for(cluster.servers["n1"])
    await oracle.create_stream("OUT", ["out.>"], num_replicas=3, storage="file", allow_direct=True)
    return oracle


async def everything(js: Any, count: int) -> list[bytes]:
    async with js.ordered_consumer("OUT") as reader:
        got: list[bytes] = []
        while len(got) < count:
            got += [message.data for message in await reader.fetch(5000, expires=2)]
        return got


async def test_duplicate_check_is_harmless(cluster: OwnCluster, oracle_there: Oracle, connect: Any) -> None:
    """From 2.14 on a failed check of a last id breaks such a stream on all its servers, so that is not asked for."""
    js = await connect(cluster.servers["n1"])
    assert (await js.publish("out.x", b"1", msg_id="a")).seq == 1

    async def ask(msg_id: str) -> Any:
        headers = dict(parse_headers(question_about(msg_id, "never an id"))[1])
        return decode((await oracle_there.nc.request("out.x", headers=headers, timeout=5)).data)

    assert (await ask("a"))["seq"] == 1
    for number in range(2):
        assert (await ask(f"not there {number}"))["error"]["err_code"] in (10070, 10111)
        await js.publish("out.x", b"2")
    state = await oracle_there.state("OUT")
    assert state["messages"] == 3


@pytest.mark.full
async def test_chain_over_elections(cluster: OwnCluster, oracle_there: Oracle, connect: Any) -> None:
    js = await connect(cluster.urls, timeout=20.0, reconnect_time_wait=0.05)
    done, count = asyncio.Event(), 0

    async def disturb() -> None:
        for name in ("n2", "n3"):
            for _ in range(2):
                await asyncio.sleep(0.7)
                with contextlib.suppress(Exception):  # no one leads just now
                    async with Oracle(cluster.servers["n1"].url, timeout=2.0) as oracle:
                        await cluster.step_down(oracle, "OUT")
            await cluster.servers[name].kill()
            await asyncio.sleep(1.0)
            await cluster.servers[name].start()
            async with Oracle(cluster.servers["n1"].url) as oracle:
                await cluster.places(oracle, "OUT")
        done.set()

    disturbing = asyncio.create_task(disturb())
    topic = js.topic("out.x")
    try:
        async with topic.publisher(chained=True, timeout=90.0) as pub:
            futures = []
            while not done.is_set():
                count += 1
                futures.append(await within(90, pub.publish(b"%d" % count), "a record"))
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
    assert [future.result().seq for future in futures] == [*range(1, count + 1)]
    assert await within(60, everything(js, count), "reading") == [b"%d" % n for n in range(1, count + 1)]


async def publish_singly(js: Any, until: asyncio.Event, *, with_id: bool) -> int:
    number = 0
    while not until.is_set():
        number += 1
        await js.publish("out.x", b"%d" % number, msg_id=f"one-{number}" if with_id else None)
    return number


async def publish_through_a_window(js: Any, until: asyncio.Event, *, with_id: bool) -> int:
    number = 0
    async with js.publisher() as pub:
        while not until.is_set():
            number += 1
            await pub.publish("out.x", b"%d" % number, msg_id=f"many-{number}" if with_id else None)
            await asyncio.sleep(0.002)
    return number


async def publish_in_batches(js: Any, until: asyncio.Event) -> int:
    number = 0
    while not until.is_set():
        async with js.batch() as batch:
            for _ in range(3):
                number += 1
                await batch.publish("out.x", b"%d" % number)
    return number


async def publish_by_ingests(js: Any, until: asyncio.Event) -> int:
    number = 0
    while not until.is_set():
        async with js.fast_ingest() as ingest:
            for _ in range(3):
                number += 1
                await ingest.publish("out.x", b"%d" % number)
    return number


async def publish_in_a_chain(js: Any, until: asyncio.Event) -> int:
    futures = []
    async with js.topic("out.x").publisher(chained=True) as pub:
        while not until.is_set() and not (futures and futures[-1].done() and futures[-1].exception()):
            futures.append(await pub.publish(b"%d" % (len(futures) + 1)))
    return len([future.result() for future in futures])


OUTAGES: dict[str, tuple[Any, bool]] = {
    # the way to publish, and whether the leader may die with messages in flight, because each has an id
    "publish": (functools.partial(publish_singly, with_id=False), False),
    "publish with id": (functools.partial(publish_singly, with_id=True), True),
    "publisher": (functools.partial(publish_through_a_window, with_id=False), False),
    "publisher with id": (functools.partial(publish_through_a_window, with_id=True), True),
    "batch": (publish_in_batches, False),
    "ingest": (publish_by_ingests, False),
    "chain": (publish_in_a_chain, True),
}


NEEDS = {"batch": ">=2.12", "ingest": ">=2.14"}


def outages() -> list[Any]:
    """The ways to publish. `check` runs one of them."""
    marks = {way: [pytest.mark.full] for way in OUTAGES if way != "publisher with id"}
    for way, version in NEEDS.items():
        marks[way].append(pytest.mark.server(version))
    return [pytest.param(way, marks=marks.get(way, ())) for way in OUTAGES]


@pytest.mark.parametrize("way", outages())
async def test_publish_outlasts_death_of_leader(
    way: str, cluster: OwnCluster, oracle_for: Any, connect: Any
) -> None:
    """None fails, none that was acked is lost, none is doubled."""
    publish, at_any_time = OUTAGES[way]
    oracle: Oracle = await oracle_for(cluster.servers["n1"])
    extra = {"batch": {"allow_atomic": True}, "ingest": {"allow_batched": True}}.get(way, {})
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OracleError):  # a peer has just been seen offline
                await oracle.create_stream("OUT", ["out.>"], num_replicas=3, storage="file", **extra)
                break
            await asyncio.sleep(0.2)
    leader, (near, _) = await cluster.places(oracle, "OUT")
    js = await connect(cluster.servers[near], timeout=20.0)
    if way != "chain":
        await js.publish("out.x", b"0")
    over = asyncio.Event()
    publishing = asyncio.create_task(publish(js, over)) if at_any_time else None
    if publishing:
        await eventually(lambda: holds_messages(oracle, 10), what="messages of this publisher")
    await cluster.servers[leader].kill()
    outage = await no_stream_answers(js)
    publishing = publishing or asyncio.create_task(publish(js, over))
    began = asyncio.get_running_loop().time()
    async with Oracle(cluster.servers[near].url) as probe:
        await eventually(lambda: leads(probe), 60, what="a new leader")
    outage += asyncio.get_running_loop().time() - began
    await asyncio.sleep(1.0)  # publishes under the new leader
    over.set()
    count = await within(40, publishing, way)
    assert outage > 1.0, "too short to show anything"
    expected = {b"%d" % number for number in range(way == "chain", count + 1)}
    # Older servers may place the reader's consumer on the dead node, and then do not answer.
    await cluster.servers[leader].start()
    got = await within(60, everything(js, len(expected)), "reading")
    assert len(got) == len(expected)
    assert set(got) == expected


async def holds_messages(oracle: Oracle, count: int) -> bool:
    return bool((await oracle.state("OUT"))["messages"] >= count)


async def no_stream_answers(js: Any) -> float:
    """Wait until a publish finds no leader. How long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            await js._context.requests.ask("out.x", b"", header=NEVER_STORED, timeout=0.5)
        except jsclient.NoRespondersError:
            return loop.time() - began
        except jsclient.RequestTimeoutError:
            pass
        await asyncio.sleep(0.02)


async def leads(oracle: Oracle) -> bool:
    try:
        return bool((await oracle.stream_info("OUT"))["cluster"].get("leader"))
    except (OracleError, TimeoutError):
        return False


async def test_chain_gives_way_to_another_producer(
    cluster: OwnCluster, oracle_there: Oracle, connect: Any
) -> None:
    js = await connect(cluster.servers["n1"])

    async def publish() -> None:
        async with js.topic("out.x").publisher(chained=True) as pub:
            for number in range(1, 100):
                await pub.publish(b"%d" % number)
                if number == 50:
                    await pub.flush()
                    await js.publish("out.x", b"rival")

    with pytest.raises(jsclient.ProducerFencedError):
        await publish()
    assert await everything(js, 51) == [*(b"%d" % n for n in range(1, 51)), b"rival"]
    await js.publish("out.x", b"still alive")
