"""A client with readers of each kind loses its connection thousands of times. What is there must not grow."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsclient
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.judge.background import Background
from integration.kit.judge.leaks import describe_task, running_tasks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.network.proxy import Proxy
from integration.kit.servers.monitor import connections
from integration.kit.servers.nats_server import OwnServer
from jsclient import ConsumerConfig, RequestTimeoutError

STREAM, SUBJECT = "S", "s.a"
SAMPLES = 24
WARM = 0.5  # the share of the samples that do not count: caches fill
BACK = 30.0  # seconds within which a connection must be restored
REMOVED = 90.0  # seconds within which the server removes consumers without a reader, which have 30 s
LONG = 5000  # reconnects after which caches are full
BLOCKS = 0.05  # allocated blocks that a reconnect may leave: one in 20 reconnects
BLOCKS_SHORT = 6.0  # the same in a run that is not long, in which caches fill
MEGABYTES = 4.0  # of resident memory that a run may gain after it is warm
OPTIONS = {"reconnect_time_wait": 0.002, "reconnect_max_wait": 0.1, "connect_timeout": 10.0}


@dataclass
class Sample:
    """What exists after a number of reconnects."""

    done: int
    tasks: int
    files: int
    blocks: int
    resident: float  # megabytes
    tables: tuple[int, int]  # subscriptions of the connection, and sinks of its reader
    subscriptions: Counter[str]  # on the server
    consumers: int


class Run:
    """One client and its readers."""

    def __init__(self, proxy: Proxy, oracle: Oracle, monitor: str) -> None:
        self._proxy, self._oracle, self._monitor = proxy, oracle, monitor
        self.js: Any = None
        self.readers: dict[str, Any] = {}
        self.samples: list[Sample] = []
        self.lost = self.consumers = 0
        self.silent: list[str] = []
        self.events: Counter[str] = Counter()

    def report(self, event: Any) -> None:
        self.events[type(event).__name__] += 1

    async def open(self) -> None:
        js, beat = self.js, ConsumerConfig(idle_heartbeat=5.0)
        for number in range(3):
            self.readers[f"push {number}"] = await js.subscribe(SUBJECT, durable=f"d{number}", config=beat)
            self.readers[f"ordered {number}"] = await js.subscribe(SUBJECT, ordered=True, config=beat)
            self.readers[f"plain {number}"] = await js.core.subscribe(SUBJECT)
        psub = await js.pull_subscribe(SUBJECT, durable="pull")
        self.readers["pull"] = psub.messages(max_messages=20, expires=30.0)
        await js.ping()

    async def lose(self) -> None:
        """Lose the connection, in turns by RST and by FIN, and wait until it is restored."""
        before = self.js.stats().reconnects
        (self._proxy.cut if self.lost % 2 else self._proxy.close)()
        await eventually(lambda: self.js.stats().reconnects > before, BACK, "the reconnect", interval=0.002)
        self.lost += 1
        self._proxy.links[:] = self._proxy.open_links  # it keeps every link for its tests

    async def check_readers(self) -> None:
        """Publish a message, which every reader must get, and no message twice."""
        await self.js.publish(SUBJECT, b"%d" % self.lost)
        for name, reader in self.readers.items():
            try:
                message = await reader.next(timeout=BACK)
            except RequestTimeoutError:
                self.silent.append(f"{name} after {self.lost} reconnects")
                continue
            if message.data != b"%d" % self.lost:
                self.silent.append(f"{name} after {self.lost} reconnects: {message.data!r}")
            if name.startswith(("push", "pull")):
                await message.ack_sync(timeout=BACK)

    async def has_no_old_consumers(self) -> bool:
        self.consumers = len(await self._oracle.consumers(STREAM))
        return self.consumers <= self.samples[0].consumers

    async def sample(self) -> None:
        await self.check_readers()
        connection = self.js._connection
        ours = [subjects for name, subjects in (await connections(self._monitor)).values() if name == "many"]
        gc.collect()
        for name, reader in self.readers.items():
            if name.startswith(("push", "ordered")):
                reader._buffer.log._events.clear()  # they are bounded, but a run is too short to fill them
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.samples.append(
            Sample(
                done=self.lost,
                tasks=len(running_tasks()),
                files=len([*Path("/proc/self/fd").iterdir()]),
                blocks=sys.getallocatedblocks(),
                resident=pages * os.sysconf("SC_PAGESIZE") / (1 << 20),
                tables=(len(connection.subscriptions), len(connection.reader.sinks)),
                # An ordered reader may have been recreated, with another inbox.
                subscriptions=Counter(
                    _kinds(subject for subjects in ours for subject in subjects.elements())
                ),
                consumers=len(await self._oracle.consumers(STREAM)),
            )
        )


def _kinds(subjects: Iterable[str]) -> list[str]:
    return ["inbox" if subject.startswith("_INBOX") else subject for subject in subjects]


async def run(options: Options) -> list[Outcome]:
    background = Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    own = OwnServer()
    await own.start()
    try:
        async with Oracle(own.url) as oracle, Proxy(own.port, frames=False) as proxy:
            await oracle.create_stream(STREAM, ["s.>"], storage="memory", max_msgs=1000)
            one = Run(proxy, oracle, own.monitor)
            started = time.monotonic()
            async with jsclient.connect(proxy.url, name="many", on_event=one.report, **OPTIONS) as one.js:
                await one.open()
                await one.sample()
                for number in range(1, options.reconnects + 1):
                    await one.lose()
                    if number * SAMPLES // options.reconnects > (number - 1) * SAMPLES // options.reconnects:
                        await one.sample()
                        print(f"{number} reconnects, {time.monotonic() - started:.0f} s", flush=True)
                # A consumer whose reader was cut off while it replaced it is removed by the server.
                seconds = time.monotonic() - started
                with contextlib.suppress(AssertionError):  # the verdict says it
                    await eventually(one.has_no_old_consumers, REMOVED, "the end of old ones", interval=1.0)
                left = [describe_task(task) for task in running_tasks()]
                return [judge(one, left, options, background, seconds)]
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
        await own.stop()


def judge(one: Run, left: list[str], options: Options, background: Background, seconds: float) -> Outcome:
    outcome = Outcome("reconnects", f"{one.lost} reconnects", options.seed)
    first, last = one.samples[0], one.samples[-1]
    warm = one.samples[max(1, round(len(one.samples) * WARM)) :]
    blocks = statistics.linear_regression([s.done for s in warm], [s.blocks for s in warm]).slope
    gained = warm[-1].resident - warm[0].resident
    outcome.ran = {
        "seconds": round(seconds),
        "milliseconds of each": round(seconds / one.lost * 1000, 1),
        "events": dict(one.events),
        "tasks": [sample.tasks for sample in one.samples],
        "files": [sample.files for sample in one.samples],
        "blocks": [sample.blocks for sample in one.samples],
        "resident MB": [round(sample.resident, 1) for sample in one.samples],
        "consumers": [sample.consumers for sample in one.samples],
    }
    outcome.check("each loss is restored", one.lost == options.reconnects, one.lost)
    outcome.none_of("every reader goes on", one.silent)
    outcome.none_of("no task stays", left if last.tasks > first.tasks else [])
    outcome.check("no socket or file stays", last.files <= first.files, (first.files, last.files))
    outcome.check("the tables of the connection do not grow", last.tables == first.tables, last.tables)
    grown = last.subscriptions - first.subscriptions
    outcome.none_of("no subscription stays on the server", grown.elements())
    outcome.check("no consumer stays", one.consumers <= first.consumers, (first.consumers, one.consumers))
    most = BLOCKS if one.lost >= LONG else BLOCKS_SHORT
    outcome.check(f"at most {most} blocks stay per reconnect", blocks <= most, f"{blocks:.4f}")
    outcome.check(f"memory gains at most {MEGABYTES} MB", gained <= MEGABYTES, f"{gained:.1f} MB")
    outcome.none_of("no error in the background", [error[-300:] for error in background.unexpected])
    return outcome
