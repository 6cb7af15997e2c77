"""Advisories about exhausted deliveries: forged ones make no dead letters, real ones are never dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.clients.foreign import flushed
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.servers.cluster import OwnCluster
from jsclient import AdvisoryRefused, ConsumerConfig, DeadLettered
from jsclient.consumers.worker import advisories
from jsclient.protocol.wire.headers import parse_headers

INFO = "$JS.API.CONSUMER.INFO.>"
MARK = "Dead-Letter-Unverified"


@pytest.fixture
async def dead(
    oracle: Oracle, stream: OwnStream, make_stream: Callable[..., Awaitable[OwnStream]]
) -> OwnStream:
    """A stream for the dead letters of `stream`."""
    return await make_stream(subjects=[f"dead.{stream.prefix}.>"])


async def forge(
    oracle: Oracle, stream: str, *which: tuple[int, int], consumer: str = "crew", named: str = ""
) -> None:
    """Publish advisories about these sequences and deliveries, as any user with that right can."""
    for seq, deliveries in which:
        reports = {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "stream": stream,
            "consumer": named or consumer,
            "stream_seq": seq,
            "deliveries": deliveries,
        }
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"
        await oracle.nc.publish(subject, json.dumps(reports).encode())
    await flushed(oracle.nc)


async def abandon(connect: Any, server: Any, stream: OwnStream, count: int) -> None:
    """A worker takes `count` messages and dies. Its consumer allows one delivery, which ends with `expire`."""
    config = ConsumerConfig(ack_wait=300, max_deliver=1)
    lost = await connect(server)
    sub = await lost.pull_subscribe(stream.subject("job"), durable="crew", config=config)

    async def handler(_: Any) -> None:
        await asyncio.sleep(60)

    worker = sub.run(handler, concurrency=count, dead_letter="dead.>")
    await eventually(lambda: worker.counts.running == count, what="all are being handled")
    await lost._connection.close()
    worker.stop(0)
    await worker
    # Until the server has noticed, what is published goes to the dead worker, and to no one else after that.
    await eventually(lambda: _nobody_waits(stream), what="the server has forgotten its pull requests")


async def expire(js: Any, oracle: Oracle, stream: str) -> None:
    """End the deliveries that were not acked now.

    The server sends each advisory only once. If a short ``ack_wait`` ended the deliveries, the advisories would be
    missed on a slow machine, because no worker listens yet.
    """
    await js.ping(60)  # the server has the worker's subscription to advisories
    config = (await oracle.consumer_info(stream, "crew"))["config"]
    config.pop("name", None)
    await oracle.create_consumer(stream, "crew", **{**config, "ack_wait": 100_000_000})


async def _nobody_waits(stream: OwnStream) -> bool:
    return (await stream.consumer_info("crew"))["num_waiting"] == 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contradiction is final after a moment."""
    monkeypatch.setattr(advisories, "CERTAIN", 1.0)
    monkeypatch.setattr(advisories, "_AGAIN", 0.3)


@pytest.mark.smoke
@pytest.mark.usefixtures("soon")
async def test_forged_make_no_dead_letter(
    oracle: Oracle, stream: OwnStream, dead: OwnStream, js: Any, events: list[Any]
) -> None:
    await stream.publish(1, "other")
    await stream.publish(20, "job", first=2)
    config = ConsumerConfig(ack_wait=30, max_deliver=3)
    sub = await js.pull_subscribe(stream.subject("job"), durable="crew", config=config)
    go_on = asyncio.Event()

    async def handler(message: Any) -> None:
        if number_of(message.data) == 6:
            await go_on.wait()

    async with sub.run(handler, concurrency=1, prefetch=1, dead_letter="dead.>") as worker:
        await eventually(lambda: worker.counts.handled == 4, what="the first four are handled")
        await forge(oracle, stream.name, (3, 3), named="nobody")
        await forge(oracle, stream.name, (20, 3))  # not delivered yet
        await forge(oracle, stream.name, (4, 7))  # more deliveries than there are
        await oracle.nc.publish(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream.name}.crew", b"{")
        await wait_for_event(AdvisoryRefused, events, lambda event: event.count == 4)
        go_on.set()
        await eventually(lambda: worker.counts.handled == 20, what="all are handled")
    assert not await dead.messages()
    assert not of(DeadLettered, events)


@pytest.mark.usefixtures("soon")
async def test_forged_about_acked_of_work_queue(
    oracle: Oracle, make_stream: Any, js: Any, events: list[Any]
) -> None:
    """Acked messages are gone: the server shows it."""
    stream = await make_stream(retention="workqueue")
    dead = await make_stream(subjects=[f"dead.{stream.prefix}.>"])
    await stream.publish(3)
    config = ConsumerConfig(ack_wait=30, max_deliver=3)
    sub = await js.pull_subscribe(stream.all, durable="crew", config=config)
    stays = asyncio.Event()

    async def handler(message: Any) -> None:
        if number_of(message.data) == 3:
            await stays.wait()

    for message in await sub.fetch(2):  # not by the worker, which remembers what it acked
        await message.ack()
    async with sub.run(handler, dead_letter="dead.>") as worker:
        await eventually(lambda: worker.counts.running == 1, what="the third is handled")
        # acks are counted asynchronously
        await eventually(lambda: _holds(stream, 1), what="the acked ones are gone")
        await forge(oracle, stream.name, (1, 3), (2, 3), (9, 3))
        event = await wait_for_event(AdvisoryRefused, events)
        assert "up to 3 only" in str(event)
        stays.set()
        await eventually(lambda: worker.counts.handled == 1, what="the third is acked")
    assert not await dead.messages()


async def test_real_one_of_an_earlier_filter(
    oracle: Oracle, stream: OwnStream, dead: OwnStream, connect: Any, server: Any, js: Any
) -> None:
    """The consumer's filter was changed after the delivery: ``max_deliver`` applies to the message anyway."""
    await stream.publish(2, "job")
    await abandon(connect, server, stream, 2)
    handle = await js.stream(stream.name)
    config = (await (await handle.consumer("crew")).info()).config
    await handle.update_consumer(config.replace(filter_subject=stream.subject("other")))
    sub = await js.pull_subscribe(stream=stream.name, consumer="crew")
    async with sub.run(lambda _: None, dead_letter="dead.>"):
        await expire(js, oracle, stream.name)
        await eventually(lambda: _stored(dead, 2), what="both are stored")
    for letter in await dead.messages():
        assert "filters exclude" in parse_headers(letter.headers)[1][MARK]


async def _holds(stream: OwnStream, count: int) -> bool:
    return (await stream.state())["messages"] == count


@pytest.mark.limit(120)
async def test_real_ones_among_forged(
    oracle: Oracle,
    stream: OwnStream,
    dead: OwnStream,
    connect: Any,
    server: Any,
    proxy: Any,
    events: list[Any],
) -> None:
    """One request answers for a burst."""
    await stream.publish(50, "job")
    await abandon(connect, server, stream, 50)
    await stream.publish(2000, "other")
    tap = await proxy()
    js = await connect(tap, on_event=events.append)
    sub = await js.pull_subscribe(stream=stream.name, consumer="crew")
    before = len(tap.sent(INFO))
    async with sub.run(lambda _: None, dead_letter="dead.>") as worker, worker:
        await expire(js, oracle, stream.name)
        await forge(oracle, stream.name, *((seq, 1) for seq in range(1000, 2000)))
        await eventually(lambda: _unmarked(dead, 50), 60, "all are found")
        assert len(tap.sent(INFO)) - before < 100  # one every 0.25 s at most, and 1,050 advisories
    assert sorted(await _unmarked(dead, 50)) == [*range(1, 51)]
    if server.version >= "2.11":  # an older server counts messages that filters exclude as delivered
        assert len(await dead.messages()) == 50


@pytest.mark.limit(90)
async def test_flood_hides_no_real_one(
    oracle: Oracle,
    stream: OwnStream,
    dead: OwnStream,
    connect: Any,
    server: Any,
    js: Any,
    events: list[Any],
) -> None:
    """Complete forgeries about acked messages, each many times, while the real advisories come: 20 dead letters."""
    await stream.publish(20, "job")
    await abandon(connect, server, stream, 20)
    await stream.publish(300, "job", first=21)
    sub = await js.pull_subscribe(stream=stream.name, consumer="crew")
    async with sub.run(lambda _: None, dead_letter="dead.>") as worker:
        await eventually(lambda: worker.counts.handled == 300, what="the others are acked")
        await expire(js, oracle, stream.name)
        for _ in range(60):
            await forge(oracle, stream.name, *((seq, 1) for seq in range(21, 321)))
        await eventually(lambda: _unmarked(dead, 20), what="all real ones are found")
        refused = (await wait_for_event(AdvisoryRefused, events, lambda event: event.count == 16384)).reason
    assert "acked the message" in refused
    assert sorted(await _unmarked(dead, 20)) == [*range(1, 21)]
    assert len(of(DeadLettered, events)) == 20
    assert len(of(AdvisoryRefused, events)) == 15  # the first refusal and each doubling


async def test_many_mentions_one_dead_letter(
    oracle: Oracle, stream: OwnStream, dead: OwnStream, connect: Any, server: Any, js: Any, events: list[Any]
) -> None:
    """An advisory that comes repeatedly is one piece of work."""
    await stream.publish(5, "job")
    await abandon(connect, server, stream, 5)
    sub = await js.pull_subscribe(stream=stream.name, consumer="crew")
    async with sub.run(lambda _: None, dead_letter="dead.>"):
        await forge(oracle, stream.name, *((seq, 1) for _ in range(500) for seq in range(1, 6)))
        await expire(js, oracle, stream.name)
        await eventually(lambda: _unmarked(dead, 5), what="all are stored")
        await wait_for_event(AdvisoryRefused, events, lambda event: event.count >= 2048)
    assert len(of(DeadLettered, events)) == 5


async def _unmarked(dead: OwnStream, count: int) -> list[int]:
    """The numbers of the dead letters without a mark, if there are that many."""
    messages = await dead.messages()
    numbers = [number_of(one.payload) for one in messages if MARK not in parse_headers(one.headers)[1]]
    return numbers if len(numbers) >= count else []


async def _stored(stream: OwnStream, count: int) -> bool:
    return (await stream.state())["messages"] >= count


async def test_unverified_without_the_right_to_ask(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    """A dead letter too many is a copy. One too few is a loss."""
    rights = {"publish": {"deny": ["$JS.API.CONSUMER.INFO.>"], "allow": [">"]}}
    users = [
        {"user": "judge", "password": "judge"},
        {"user": "limited", "password": "limited", "permissions": rights},
    ]
    own = await own_server(config={"authorization": {"users": users}})
    oracle = await oracle_for(own, user="judge", password="judge")
    stream = await make_stream(oracle=oracle)
    dead = await make_stream(oracle=oracle, subjects=[f"dead.{stream.prefix}.>"])
    await stream.publish(3)
    events: list[Any] = []
    js = await connect(own, user="limited", password="limited", timeout=2.0, on_event=events.append)
    config = ConsumerConfig(ack_wait=30, max_deliver=2)
    sub = await js.pull_subscribe(stream.all, config=config)
    for message in await sub.fetch(3):  # not by the worker, which remembers what it acked
        await message.ack()
    async with sub.run(lambda _: None, dead_letter="dead.>"):
        await js.ping(60)  # the server has its subscription to advisories
        await forge(oracle, stream.name, (2, 2), consumer=sub.consumer)
        event = await wait_for_event(DeadLettered, events)
    (letter,) = await dead.messages()
    assert parse_headers(letter.headers)[1][MARK].startswith("PermissionDeniedError")
    assert "unverified" in str(event)


@pytest.mark.server(">=2.11")
@pytest.mark.limit(120)
async def test_real_ones_arrive_over_an_election(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """Its leader steps down repeatedly while the advisories come."""
    cluster = await OwnCluster.start(own_server)
    oracle = await oracle_for(cluster.servers["n1"])
    await oracle.create_stream("JOBS", ["jobs.>"], num_replicas=3)
    await oracle.create_stream("DEAD", ["dead.>"], num_replicas=3)
    await oracle.publish_many("jobs.x", 30)
    js = await connect(cluster.servers["n1"], on_event=events.append)
    config = ConsumerConfig(ack_wait=300, max_deliver=1)
    sub = await js.pull_subscribe("jobs.>", durable="crew", config=config)
    assert len(await sub.fetch(30)) == 30

    async def all_stored() -> bool:
        await oracle.nc.publish("$JS.API.CONSUMER.LEADER.STEPDOWN.JOBS.crew", b"")
        return int((await oracle.state("DEAD"))["messages"]) == 30

    async with sub.run(lambda _: None, dead_letter="dead.>"):
        await expire(js, oracle, "JOBS")
        await eventually(all_stored, 60, "all are found", interval=0.5)
    # A new leader may send an advisory again: it is not decided twice.
    assert {event.reason for event in of(AdvisoryRefused, events)} <= {
        "this worker has acked the message or stored its dead letter",
        "the message is being decided already",
    }
