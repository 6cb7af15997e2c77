"""Users for a time, and between two rounds of it a look at what is there: it must not grow."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import jsclient
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.campaign.soak.activities import ACTIVITIES, BUCKET, STREAM, SUBJECT, SUBJECTS, connection
from integration.kit.judge.background import Background
from integration.kit.judge.leaks import describe_task, running_tasks
from integration.kit.judge.oracle import Oracle
from integration.kit.network.proxy import Proxy
from integration.kit.servers.monitor import connections
from integration.kit.servers.nats_server import OwnServer
from jsclient.errors import JetStreamError

STREAMS = (STREAM, "E", "K", f"KV_{BUCKET}", f"OBJ_{BUCKET}")
USERS = 6
ROUNDS = 12  # at least; a longer run has one round per minute
WARM = 0.25  # the share of the rounds that do not count: caches fill
PAUSE = 0.4  # seconds at most that a user waits after an activity
SETTLE = 3.0  # seconds within which a round must have ended
WAITING = 36
"""Consumers that may wait for the server to remove them: their connection was cut before they could be deleted."""
CONSUMERS = (
    45.0  # the same for consumers that could not be deleted: the server removes them after 30 s at most
)
STUCK = 30.0  # seconds that an activity may need to end after it was cancelled

BLOCKS = 10.0  # allocated blocks that an activity may leave: caches fill, and msgspec keeps up to 1,024 keys
BLOCKS_LONG = 1.0  # the same in a long run, in which the caches are full
MEGABYTES = 8.0  # of resident memory that a run may gain after it is warm, if it is short
PER_HOUR = 10.0  # megabytes per hour that a longer one may gain: the slope of its samples
LONG = 0.2  # hours after which a slope says more than the steps in which memory is taken

OPTIONS = {"reconnect_time_wait": 0.05, "connect_timeout": 2.0, "ping_interval": 1.0, "timeout": 3.0}


@dataclass
class Sample:
    """The tasks and objects that exist while no operation is in progress."""

    at: float
    done: int
    tasks: int
    files: int
    blocks: int
    resident: float  # megabytes
    consumers: int
    endless: list[str]  # consumers that the server does not remove
    subscriptions: list[str]


@dataclass
class Soak:
    """One run."""

    chance: Random
    proxy: Proxy
    oracle: Oracle
    monitor: str
    js: Any = None
    samples: list[Sample] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    undocumented: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    cuts: int = 0

    async def round(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        cutting = asyncio.create_task(self.cut(end))
        await asyncio.gather(*(self.user(end) for _ in range(USERS)))
        await cutting

    async def cut(self, end: float) -> None:
        """Cut connections now and then."""
        while (remaining := end - time.monotonic()) > 0:
            await asyncio.sleep(min(self.chance.uniform(0.3, 2.0), remaining))
            self.chance.choice((self.proxy.cut, self.proxy.close))()
            self.cuts += 1

    async def user(self, end: float) -> None:
        while time.monotonic() < end:
            await self.activity()
            await asyncio.sleep(self.chance.uniform(0, PAUSE))

    def report(self, event: Any) -> None:
        """Take an event of a connection."""
        self.events[type(event).__name__] += 1

    async def activity(self) -> None:
        """One activity. Every other one is cancelled at some instant, some twice."""
        chance, seconds = self.chance, self.chance.uniform(0, 0.5)
        if chance.random() < 0.05:
            name, doing = (
                "connection",
                connection(self.proxy.url, {**OPTIONS, "on_event": self.report}, chance, seconds),
            )
        else:
            one = chance.choice(ACTIVITIES)
            name, doing = one.__name__, one(self.js, chance, seconds)
        task = asyncio.ensure_future(doing)
        if chance.random() < 0.5:
            await asyncio.wait([task], timeout=chance.choice((0, 0.001, 0.01, 0.1, 0.3)) * chance.random())
            for _ in range(chance.choice((1, 1, 2))):
                task.cancel()
                await asyncio.sleep(0)
        _, running = await asyncio.wait([task], timeout=STUCK)
        if running:
            self.stuck.append(f"{name}: {describe_task(task)}")
            return
        self.note(name, task)

    def note(self, name: str, task: asyncio.Future[None]) -> None:
        if task.cancelled():
            self.ended["cancelled"] += 1
            return
        error = task.exception()
        self.ended["done" if error is None else type(error).__name__] += 1
        if error is not None and not documented(error):
            self.undocumented.append(f"{name}: {error!r:.200}")

    async def sample(self, first: Sample | None) -> Sample:
        """Count, once no operation is in progress or it is clear that some object remains."""
        end = time.monotonic() + SETTLE
        while True:
            self.proxy.links[:] = self.proxy.open_links  # it keeps every link for its tests
            gc.collect()
            now = await self.look()
            if first is None or time.monotonic() > end or self.settled(now, first):
                self.samples.append(now)
                return now
            await asyncio.sleep(0.2)

    def settled(self, now: Sample, first: Sample) -> bool:
        return (
            now.tasks <= first.tasks
            and now.files <= first.files
            and len(now.subscriptions) <= len(first.subscriptions)
        )

    async def look(self) -> Sample:
        with contextlib.suppress(JetStreamError):
            await self.js.ping()
        actual = await connections(self.monitor)
        consumers = [one for stream in STREAMS for one in await self.oracle.consumers(stream)]
        ours = [subjects for name, subjects in actual.values() if name == "soak"]
        return Sample(
            at=time.monotonic(),
            done=self.ended.total(),
            tasks=len(running_tasks()),
            files=len([*Path("/proc/self/fd").iterdir()]),
            blocks=sys.getallocatedblocks(),
            resident=int(Path("/proc/self/statm").read_text().split()[1])
            * os.sysconf("SC_PAGESIZE")
            / (1 << 20),
            consumers=len(consumers),
            endless=[one["name"] for one in consumers if not one["config"].get("inactive_threshold")],
            subscriptions=sorted(subject for subjects in ours for subject in subjects.elements()),
        )


def documented(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(documented(one) for one in error.exceptions)
    return isinstance(error, JetStreamError | TimeoutError | StopAsyncIteration)


async def run(options: Options) -> list[Outcome]:
    background = Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    own = OwnServer()
    await own.start()
    try:
        async with Oracle(own.url) as oracle, Proxy(own.port, frames=False) as proxy:
            await create(oracle)
            soak = Soak(Random(options.seed), proxy, oracle, own.monitor)
            async with jsclient.connect(proxy.url, name="soak", on_event=soak.report, **OPTIONS) as soak.js:
                await soaked(soak, options)
            return [judge(soak, options.seed, background)]
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
        await own.stop()


async def create(oracle: Oracle) -> None:
    features = {"allow_direct": True, "allow_atomic": True, "allow_batched": True, "storage": "memory"}
    # The server's own memory is no matter here, but it has to stay small.
    await oracle.create_stream(
        STREAM, [SUBJECTS], max_msgs=5000, republish={"src": SUBJECTS, "dest": f"live.{SUBJECTS}"}, **features
    )
    live = {"src": "k.>", "dest": "live.k.>"}
    await oracle.create_stream("K", ["k.>"], max_msgs_per_subject=1, republish=live, **features)


async def soaked(soak: Soak, options: Options) -> None:
    """Rounds of users with traffic below, a sample after each."""
    await soak.js.epochs("E", partitions=2).create(storage="memory")
    await soak.js.create_key_value(BUCKET, storage="memory", limit_marker_ttl=60, allow_atomic=True)
    await soak.js.create_object_store(BUCKET, storage="memory", max_bytes=64_000_000)
    for partition in range(2):
        async with await soak.js.epochs("E").publisher(partition):
            pass
    stop = asyncio.Event()
    traffic = asyncio.create_task(feed(soak.oracle, stop))
    for one in ACTIVITIES:  # a connection opens inboxes at first use, and keeps them
        with contextlib.suppress(JetStreamError, TimeoutError):
            await one(soak.js, soak.chance, 0.1)
    first = await soak.sample(None)
    rounds = max(ROUNDS, round(options.seconds / 60))
    each = max((options.seconds - rounds) / rounds, 1.0)
    for _ in range(rounds):
        await soak.round(each)
        now = await soak.sample(first)
        print(f"{now.at - first.at:.0f} s: {now.done} activities, {now.resident:.1f} MB", flush=True)
    if grown(soak, "tasks"):
        soak.left = [describe_task(task) for task in running_tasks()]
    stop.set()
    await traffic


async def feed(oracle: Oracle, stop: asyncio.Event) -> None:
    while not stop.is_set():
        for _ in range(10):
            await oracle.nc.publish(SUBJECT, b"x" * 200)
        await asyncio.sleep(0.05)


def grown(soak: Soak, what: str) -> list[int]:
    """The figures of the samples that are above the figure of the first sample."""
    first = getattr(soak.samples[0], what)
    return [getattr(one, what) for one in soak.samples[1:] if getattr(one, what) > first]


def slope(points: list[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points: one odd sample does not change it."""
    return statistics.median((d - b) / (c - a) for (a, b), (c, d) in combinations(points, 2) if c > a)


def judge(soak: Soak, seed: int, background: Background) -> Outcome:
    outcome = Outcome("soak", "users, reconnects, cancellations", seed)
    warm = soak.samples[round(len(soak.samples) * WARM) :]
    minutes = (warm[-1].at - warm[0].at) / 60
    blocks = slope([(one.done, one.blocks) for one in warm])
    gained = warm[-1].resident - warm[0].resident
    outcome.ran = {
        "activities": soak.ended.total(),
        "ended": dict(soak.ended.most_common()),
        "cuts": soak.cuts,
        "events": dict(soak.events),
        "minutes": [round((one.at - soak.samples[0].at) / 60, 1) for one in soak.samples],
        "blocks": [one.blocks for one in soak.samples],
        "resident MB": [round(one.resident, 1) for one in soak.samples],
    }
    outcome.none_of("no task stays", soak.left or grown(soak, "tasks"))
    outcome.none_of("no socket or file stays", grown(soak, "files"))
    first, last = soak.samples[0], soak.samples[-1]
    outcome.ran["consumers"] = [one.consumers for one in soak.samples]
    outcome.ran["subscriptions"] = [len(one.subscriptions) for one in soak.samples]
    outcome.none_of("no consumer stays that the server does not remove", last.endless)
    waiting = max(one.consumers for one in soak.samples)
    outcome.check(f"at most {WAITING} consumers wait to be removed", waiting <= WAITING, waiting)
    more = (Counter(last.subscriptions) - Counter(first.subscriptions)).elements()
    outcome.none_of("no subscription stays on the server", more)
    allowed = BLOCKS if minutes / 60 < LONG else BLOCKS_LONG
    outcome.check(f"at most {allowed} blocks stay per activity", blocks <= allowed, f"{blocks:.2f}")
    per_hour = slope([(one.at / 3600, one.resident) for one in warm])
    actual = f"{gained:.1f} MB in {minutes:.1f} min, a slope of {per_hour:.1f} MB/h"
    if minutes / 60 >= LONG:
        outcome.check(f"memory gains at most {PER_HOUR} MB per hour", per_hour <= PER_HOUR, actual)
    else:
        outcome.check(f"memory gains at most {MEGABYTES} MB", gained <= MEGABYTES, actual)
    outcome.none_of("every activity ends when it is cancelled", soak.stuck)
    outcome.none_of("every error is documented", soak.undocumented)
    outcome.none_of("no error in the background", [error[-300:] for error in background.unexpected])
    return outcome
