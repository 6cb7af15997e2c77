"""The whole scenario: a cluster, its clients, the faults, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import nats.errors

import jsclient
from integration.campaign.calls import Calls
from integration.campaign.chaos import publishers, readers
from integration.campaign.chaos.buckets import KeyValues, Objects
from integration.campaign.chaos.faults import Fault, Faults, History
from integration.campaign.chaos.judge import Stored, everything
from integration.campaign.chaos.nodes import DOMAIN, TRANSPORTS, Nodes
from integration.campaign.chaos.patterns import Epochs, NotifierKits, Pattern, Peers, SubscriptionKits
from integration.campaign.chaos.publishers import Publishing
from integration.campaign.chaos.readers import BEAT, Reading
from integration.campaign.chaos.stalls import Stalls
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.judge.background import Background
from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.waiting import eventually
from jsclient.errors import ApiError
from jsclient.events import Disconnected, HeartbeatMissed

STREAMS = {"C3": 3, "C1": 1}
"""Streams and their replicas; `<name>H` has the chains."""
ALARM = (
    3 * BEAT + 0.5 + 1.0
)  # seconds: three heartbeats, the bound of the goals for a loaded machine, and as much again
ROUND_TRIP = 0.3
END = 25.0  # seconds of a run for what comes before and after the faults
CATCH_UP = 60.0
NO_PEERS = 10005  # the error code of: no suitable peers for placement

OPTIONS = {"reconnect_time_wait": 0.1, "connect_timeout": 2.0, "ping_interval": BEAT, "timeout": 10.0}


class World:
    """All clients of the cluster."""

    def __init__(
        self, part: str, seed: int, urls: list[str], nodes: Nodes | None = None, **options: Any
    ) -> None:
        self.part, self.seed, self.urls, self.nodes = part, seed, urls, nodes
        self._user, self._options = options, {**OPTIONS, **options}
        self.publishers: list[Publishing] = []
        self.readers: list[Reading] = []
        self.patterns: list[Pattern] = []
        self.connections: dict[str, Any] = {}
        self.events: dict[str, list[tuple[float, Any]]] = {}
        self.problems: list[str] = []
        self.round_trips: dict[str, float] = {}
        self.others: dict[
            str, dict[str, Any]
        ] = {}  # options of a publisher and a reader with a separate connection
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, name: str, servers: Any = None, **options: Any) -> Any:
        events = self.events.setdefault(name, [])
        if servers is None and self.nodes is not None:
            # Each connection over another transport. Which one takes which depends on the seed.
            transport = TRANSPORTS[(self.seed + len(self.connections)) % len(TRANSPORTS)]
            way = self.nodes.reached_over(transport)
            servers, options = way.pop("servers"), {**way, **options}
        js = await jsclient.connect(
            servers or self.urls,
            name=name,
            on_event=lambda event: events.append((time.monotonic(), event)),
            **{**self._options, **options},
        )
        self.connections[name] = js
        return js

    def heard(self, js: Any) -> list[tuple[float, Any]]:
        """The events of a connection so far."""
        return next(self.events[name] for name, one in self.connections.items() if one is js)

    async def populate(self, kinds: Kinds) -> None:
        """Connect and start everybody."""
        for stream in STREAMS:
            pub, read, read2 = [await self.connect(f"{stream}-{what}") for what in ("pub", "read", "read2")]
            for kind in kinds.publishers:
                # a chain needs a stream to itself
                home = f"{stream}H" if kind == "chain" else stream
                self.publishers.append(Publishing(kind, pub, home, f"{home}.{kind.replace(' ', '_')}"))
            for number, kind in enumerate(kinds.readers):
                self.readers.append(Reading(kind, (read, read2)[number % 2], stream, f"{stream}.>"))
        if kinds.patterns:
            here, there = await self.connect("patterns-here"), await self.connect("patterns-there")
            self.patterns = [
                make(here, there, kinds.replicas)
                for make in (Epochs, SubscriptionKits, NotifierKits, KeyValues, Objects)
            ]
            self.patterns.append(Peers(here, there, self.urls, self._user))
            for pattern in self.patterns:
                await eventually(partial(opened, pattern), 30, f"opening {pattern.kind}", interval=0.5)
        if kinds.links:
            assert self.nodes is not None
            assert self.nodes.leaf is not None
            await self._link("leaf", self.nodes.leaf.url, domain=DOMAIN)
            await self._link("tls", self.nodes.urls, tls=self.nodes.tls)
            await self._link("websocket", self.nodes.websocket)
        for name, options in self.others.items():
            await self._link(name, self.urls, **options)
        for one in (*self.publishers, *self.readers, *self.patterns):
            self._tasks.append(asyncio.create_task(one.run()))
        self._tasks += [asyncio.create_task(pattern.keep_reading()) for pattern in self.patterns]

    async def _link(self, name: str, urls: str | list[str], **options: Any) -> None:
        """A publisher and a reader over another kind of connection."""
        try:
            async with asyncio.timeout(15):
                js = await self.connect(name, urls, **options)
                self.round_trips[name] = sorted([await js.ping() for _ in range(5)])[2]
                await js.stream("C3")
                await js.ping()
        except (jsclient.JetStreamError, TimeoutError) as error:
            self.problems.append(f"{name}: {error!r:.150}")
            return
        self.publishers.append(Publishing("publish with id", js, "C3", f"C3.{name}"))
        self.readers.append(Reading("ordered push", js, "C3", "C3.>", name))

    async def end_publishing(self) -> None:
        """Let each publisher finish its call."""
        for one in (*self.publishers, *self.patterns):
            one.over.set()
        everybody = (*self.publishers, *self.readers, *self.patterns)
        ends = [
            task for task, one in zip(self._tasks, everybody, strict=False) if not isinstance(one, Reading)
        ]
        await asyncio.wait(ends, timeout=3 * publishers.LIMIT)
        for task in ends:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self.problems.append(f"a publisher raised {task.exception()!r:.200}")

    async def close(self) -> Calls:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self.problems.append(f"a task raised {result!r:.200}")
        calls = Calls()
        for pattern in self.patterns:
            await calls.within(20, f"close {pattern.kind}", pattern.close())
        for name, js in self.connections.items():
            await calls.within(10, f"close {name}", js.close())
        return calls


async def opened(pattern: Pattern) -> bool:
    """Open it. False if the new cluster does not know a node as reachable yet."""
    try:
        await pattern.open()
    except ApiError as error:
        if error.err_code != NO_PEERS:
            raise
        return False
    return True


class Kinds:
    """Who takes part, and the replicas of the patterns' streams."""

    def __init__(self, *, small: bool = False, replicas: int = 3) -> None:
        self.replicas = replicas
        self.publishers = ("publish with id", "chain") if small else tuple(publishers.KINDS)
        self.readers = ("fetch", "ordered push", "since") if small else tuple(readers.KINDS)
        self.patterns = self.links = not small


async def run(options: Options) -> list[Outcome]:
    return await chaos(options, Kinds())


async def chaos(options: Options, kinds: Kinds) -> list[Outcome]:
    background = Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    try:
        async with Nodes.open() as nodes, Oracle(nodes.urls[0]) as oracle:
            await create_streams(oracle, STREAMS)
            world = World("chaos", options.seed, nodes.urls, nodes)
            await world.populate(kinds)
            await asyncio.sleep(2.0)
            faults = Faults(nodes, Random(options.seed), [*STREAMS, *(f"{name}H" for name in STREAMS)])
            async with Stalls.watched(world.readers, world.heard, nodes) as stalls:
                await faults.run(time.monotonic() + max(options.seconds - END, 15.0))
            outcomes = await verdict(world, faults.history, oracle)
            stalls.judge(outcomes[0], faults.history)
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
    outcomes[0].none_of("no error in the background", [e[-300:] for e in background.unexpected])
    return outcomes


async def create_streams(oracle: Oracle, streams: Mapping[str, int]) -> None:
    features = {"allow_direct": True, "allow_atomic": True, "allow_batched": True, "storage": "file"}

    async def made(stream: str, replicas: int) -> bool:
        try:
            await oracle.create_stream(stream, [f"{stream}.>"], num_replicas=replicas, **features)
        except (OracleError, TimeoutError, nats.errors.Error):
            return False  # the leader does not know every node yet
        return True

    for name, replicas in streams.items():
        for stream in (name, f"{name}H"):
            await eventually(partial(made, stream, replicas), 30, f"stream {stream}", interval=0.3)


async def verdict(world: World, history: History, oracle: Oracle) -> list[Outcome]:
    """End the publishers, let the readers catch up, and recount."""
    await world.end_publishing()
    stored = {}
    for name in STREAMS:
        for stream in (name, f"{name}H"):
            stored[stream] = Stored(await everything(oracle, stream))
    for pattern in world.patterns:
        await pattern.recount(oracle)
    await caught_up(world, stored)
    calls = await world.close()

    part, seed = world.part, world.seed
    whole = Outcome(part, "the cluster", seed)
    whole.ran = {"faults": history.counts, "stored": {name: len(one.seqs) for name, one in stored.items()}}
    whole.ran |= {"faults that were refused": len(history.failed), "reconnects": reconnects(world)}
    whole.none_of("every task and link works", world.problems)
    for name, seconds in world.round_trips.items():
        fast = seconds <= ROUND_TRIP
        whole.check(f"a round trip over {name} takes at most {ROUND_TRIP} s", fast, f"{seconds:.2f} s")
    calls.judge(whole)
    alarms(world, history, whole)
    outcomes = [whole]
    for one in world.publishers:
        outcomes.append(Outcome(part, f"{one.stream} publisher: {one.subject.partition('.')[2]}", seed))
        publishers.judge(one, stored[one.stream], outcomes[-1], replicated=one.stream.startswith("C3"))
    for one in world.readers:
        outcomes.append(Outcome(part, f"{one.stream} reader: {one.name}", seed))
        readers.judge(one, stored[one.stream].seqs, newest(stored[one.stream], one.stream), outcomes[-1])
    for pattern in world.patterns:
        outcomes.append(Outcome(part, pattern.kind, seed))
        pattern.judge(outcomes[-1])
    return outcomes


def newest(stored: Stored, stream: str) -> int:
    """The last sequence of the subject that `latest` reads."""
    return max((m.seq for m in stored.messages if m.subject == f"{stream}.publish_with_id"), default=0)


async def caught_up(world: World, stored: dict[str, Stored]) -> None:
    """Wait until every reader has all, or none has had anything new for a while."""

    def missing() -> list[str]:
        late = [
            one.kind
            for one in world.readers
            if not readers.complete(one, stored[one.stream].seqs, newest(stored[one.stream], one.stream))
        ]
        return late + [pattern.kind for pattern in world.patterns if not pattern.has_all()]

    end = time.monotonic() + CATCH_UP
    while missing() and time.monotonic() < end:
        await asyncio.sleep(0.2)


def reconnects(world: World) -> int:
    return sum(isinstance(event, Disconnected) for events in world.events.values() for _, event in events)


def alarms(world: World, history: History, outcome: Outcome) -> None:
    """Clients of a frozen node notice it by a missed heartbeat, or because the connection is given up."""
    late, count = [], 0
    for fault in history.happened:
        if fault.kind != "freeze" or fault.ended - fault.began < ALARM:
            continue
        for name in fault.clients:
            if name in world.events:
                count += 1
                late += [] if told(world.events[name], fault) else [f"{name}: {fault}"]
    outcome.ran["alarms due"] = count
    outcome.none_of(f"an alarm within {ALARM} s", late)


def told(events: list[tuple[float, Any]], fault: Fault) -> bool:
    alarms = [moment for moment, event in events if isinstance(event, HeartbeatMissed | Disconnected)]
    return any(fault.began <= moment <= fault.began + ALARM for moment in alarms)
