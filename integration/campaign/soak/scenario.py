"""Users for a time, and between two rounds of it a look at what is there: it must not grow.

Meanwhile the certificates and the credentials of everybody are replaced, and what is promised is read and handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import jsclient
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.campaign.soak.activities import ACTIVITIES, BUCKET, STREAM, SUBJECT, SUBJECTS, connection
from integration.campaign.soak.promised import STREAM as PROMISED
from integration.campaign.soak.promised import SUBJECT as PROMISED_SUBJECT
from integration.campaign.soak.promised import Promised
from integration.campaign.soak.rotating import ROTATIONS, Rotating
from integration.kit.judge.background import Background
from integration.kit.judge.leaks import describe_task, running_tasks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
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
WAITING_SHARE = 0.3  # the same for each disconnect within the longest wait: on a busy machine they take long
LONGEST_WAIT = 300.0  # seconds after which the server removes a pull consumer that nobody reads
CONSUMERS = (
    45.0  # the same for consumers that could not be deleted: the server removes them after 30 s at most
)
BACK = 15.0  # seconds within which the client is back after a rotation
STUCK = 30.0  # seconds that an activity may need to end after it was cancelled

BLOCKS = 1.0  # allocated blocks that an activity may leave
CACHES = 4000  # blocks that caches may take in a short run. For example, msgspec keeps up to 1,024 keys
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
    own: OwnServer
    rotating: Rotating
    js: Any = None
    promised: Any = None
    samples: list[Sample] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    undocumented: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    cuts: int = 0

    @property
    def options(self) -> dict[str, Any]:
        return {**OPTIONS, **self.rotating.options, "on_event": self.report}

    async def round(self, seconds: float, *, rotates: bool) -> None:
        end = time.monotonic() + seconds
        others = [asyncio.create_task(self.cut(end))]
        if rotates:
            others.append(asyncio.create_task(self.rotate(self.chance.uniform(0, seconds / 2))))
        await asyncio.gather(*(self.user(end) for _ in range(USERS)))
        await asyncio.gather(*others)

    async def rotate(self, later: float) -> None:
        """Replace the certificates and the credentials, and wait until the client is back with the new ones."""
        await asyncio.sleep(later)
        before = self.js.stats().reconnects
        self.rotating.rotate(self.own)
        try:
            await eventually(lambda: self.js.is_connected and self.js.stats().reconnects > before, BACK)
        except AssertionError:
            self.late.append(f"rotation {self.rotating.done}: {self.js._connection.problem}")

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
                connection(self.proxy.url, self.options, chance, seconds),
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
            task.add_done_callback(partial(self.note, name))
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
        actual = await connections(self.own.monitor)
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
            subscriptions=sorted(kind(subject) for subjects in ours for subject in subjects.elements()),
        )


def kind(subject: str) -> str:
    """A subject without what is random in it: an ordered reader may have been recreated, with another inbox."""
    return "inbox" if subject.startswith("_INBOX") else subject


def documented(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(documented(one) for one in error.exceptions)
    return isinstance(error, JetStreamError | TimeoutError | StopAsyncIteration)


async def run(options: Options) -> list[Outcome]:
    background = Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    folder = tempfile.TemporaryDirectory()
    rotating = Rotating(Path(folder.name))
    own = OwnServer(config=rotating.config())
    await own.start()
    try:
        url = own.url.replace("tls://", "nats://")
        async with (
            Oracle(url, user_credentials=rotating.judge) as oracle,
            Proxy(own.port, frames=False) as proxy,
        ):
            await create(oracle)
            soak = Soak(Random(options.seed), proxy, oracle, own, rotating)
            async with jsclient.connect(proxy.url, name="soak", **soak.options) as soak.js:
                await soaked(soak, options)
            return [judge(soak, options.seed, background)]
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
        await own.stop()
        folder.cleanup()


async def create(oracle: Oracle) -> None:
    features = {"allow_direct": True, "allow_atomic": True, "allow_batched": True, "storage": "memory"}
    # The server's own memory is no matter here, but it has to stay small.
    await oracle.create_stream(
        STREAM, [SUBJECTS], max_msgs=5000, republish={"src": SUBJECTS, "dest": f"live.{SUBJECTS}"}, **features
    )
    await oracle.create_stream(PROMISED, [PROMISED_SUBJECT], storage="memory")
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
    soak.promised = Promised(soak.js)
    await soak.promised.begin()
    first = await soak.sample(None)
    rounds = max(ROUNDS, round(options.seconds / 60))
    each = max((options.seconds - rounds) / rounds, 1.0)
    for number in range(rounds):
        rotates = (number + 1) * ROTATIONS // rounds > number * ROTATIONS // rounds
        await soak.round(each, rotates=rotates)
        now = await soak.sample(first)
        print(f"{now.at - first.at:.0f} s: {now.done} activities, {now.resident:.1f} MB", flush=True)
    if grown(soak, "tasks"):
        soak.left = [describe_task(task) for task in running_tasks()]
    await soak.promised.end()
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
    lasted = soak.samples[-1].at - soak.samples[0].at
    lost = soak.events["Disconnected"] * min(1.0, LONGEST_WAIT / lasted)
    most = max(WAITING, round(lost * WAITING_SHARE))
    outcome.check(f"at most {most} consumers wait to be removed", waiting <= most, waiting)
    more = (Counter(last.subscriptions) - Counter(first.subscriptions)).elements()
    outcome.none_of("no subscription stays on the server", more)
    if minutes / 60 < LONG:
        blocks = (warm[-1].blocks - warm[0].blocks - CACHES) / max(1, warm[-1].done - warm[0].done)
    outcome.check(f"at most {BLOCKS} blocks stay per activity", blocks <= BLOCKS, f"{blocks:.2f}")
    per_hour = slope([(one.at / 3600, one.resident) for one in warm])
    actual = f"{gained:.1f} MB in {minutes:.1f} min, a slope of {per_hour:.1f} MB/h"
    if minutes / 60 >= LONG:
        outcome.check(f"memory gains at most {PER_HOUR} MB per hour", per_hour <= PER_HOUR, actual)
    else:
        outcome.check(f"memory gains at most {MEGABYTES} MB", gained <= MEGABYTES, actual)
    judge_rotations(soak, outcome)
    outcome.none_of("every activity ends when it is cancelled", soak.stuck)
    outcome.none_of("every error is documented", soak.undocumented)
    outcome.none_of("no error in the background", [error[-300:] for error in background.unexpected])
    return outcome


def judge_rotations(soak: Soak, outcome: Outcome) -> None:
    """Nothing is lost that is promised, although everybody's certificates and credentials are replaced."""
    promised = soak.promised
    outcome.ran["rotations"] = soak.rotating.done
    outcome.ran["reconnects"] = soak.js.stats().reconnects
    outcome.ran["promised"] = {"confirmed": sum(promised.confirmed), "unknown": promised.unknown}
    outcome.check(f"{ROTATIONS} rotations", soak.rotating.done == ROTATIONS, soak.rotating.done)
    outcome.none_of(f"the client is back {BACK} s after a rotation", soak.late)
    outcome.none_of("what was confirmed is read", promised.missing(promised.read))
    outcome.none_of("what was confirmed is handled", promised.missing(promised.handled))
    outcome.none_of("what is read has no gap and no repetition", promised.odd)
