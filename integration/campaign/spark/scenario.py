"""Publishers, a query of Spark in a separate process, the faults of the chaos, and a recount by raw requests."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import nats.errors

import jsclient
from integration.campaign.chaos import publishers
from integration.campaign.chaos.faults import KINDS, Faults
from integration.campaign.chaos.judge import Stored, everything
from integration.campaign.chaos.nodes import Nodes
from integration.campaign.chaos.publishers import Publishing
from integration.campaign.chaos.scenario import OPTIONS
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.waiting import eventually
from integration.kit.spark.driver_process import SparkJob
from integration.kit.spark.sessions import missing

FROM, TO = "LOG", "OUT"
WINDOW = 1800.0  # seconds for which OUT remembers ids: longer than a run
START = 240.0  # seconds in which the first rows have to be there: a driver starts slowly on a busy machine
CATCH_UP = 180.0
NODES = tuple(kind for kind in KINDS if "leaf" not in kind)


class Query:
    """The query from LOG to OUT, started again from its checkpoint when it fails."""

    def __init__(self, files: Path, urls: list[str]) -> None:
        self._files = files
        servers = ",".join(urls)
        self._query = {
            "name": "copy",
            "source": {
                "servers": servers,
                "stream": FROM,
                "startingOffsets": "earliest",
                "minPartitions": "2",
            },
            "columns": [f"concat('{TO}.', substring_index(subject, '.', -1)) as subject", "data"],
            "sink": {"servers": servers},
            "trigger": {"processingTime": "500 milliseconds"},
        }
        self.failures: list[str] = []
        self.started = 0
        self._job = self._start()

    def _start(self) -> SparkJob:
        self.started += 1
        return SparkJob(self._files, [self._query])

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if self._job.process.poll() is not None:
                self.failures.append(last_error(self._job.log))
                await asyncio.to_thread(self._job.kill)
                self._job = self._start()

    async def stop(self) -> None:
        await asyncio.to_thread(self._job.kill)


def last_error(log: str) -> str:
    """The line that says why a query failed."""
    lines = [line.strip() for line in log.splitlines() if "Error" in line or "Exception" in line]
    return lines[-1][:300] if lines else log[-300:]


async def run(options: Options) -> list[Outcome]:
    outcome = Outcome("spark", "a query from stream to stream", options.seed)
    reason = missing()
    if reason is not None:
        outcome.ran["not tried"] = reason
        return [outcome]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as files:
        async with Nodes.open() as nodes, Oracle(nodes.urls[0]) as oracle:
            for name in (FROM, TO):
                await eventually(lambda name=name: made(oracle, name), 30, f"stream {name}", interval=0.3)  # type: ignore[misc]
            await copied(outcome, options, nodes, oracle, Path(files))
    return [outcome]


async def made(oracle: Oracle, name: str) -> bool:
    config = {
        "storage": "file",
        "allow_direct": True,
        "num_replicas": 3,
        "duplicate_window": int(WINDOW * 1e9),
    }
    try:
        await oracle.create_stream(name, [f"{name}.>"], **config)
    except (OracleError, TimeoutError, nats.errors.Error):
        return False  # the leader does not know every node yet
    return True


async def copied(outcome: Outcome, options: Options, nodes: Nodes, oracle: Oracle, files: Path) -> None:
    async with jsclient.connect(nodes.urls, **OPTIONS) as js:
        working = [Publishing(kind, js, FROM, f"{FROM}.{kind.replace(' ', '_')}") for kind in publishers.SURE]
        publishing = [asyncio.create_task(one.run()) for one in working]
        query = Query(files, nodes.urls)
        keeping = asyncio.create_task(query.keep())
        try:
            with contextlib.suppress(AssertionError):
                await eventually(lambda: count(oracle, TO), START, "the first rows", interval=1.0)
            faults = Faults(nodes, Random(options.seed), [FROM, TO], NODES)
            await faults.run(time.monotonic() + max(options.seconds, 30.0))
            for one in working:
                one.over.set()
            await asyncio.wait(publishing, timeout=3 * publishers.LIMIT)
            there = Stored(await everything(oracle, FROM))
            end = time.monotonic() + CATCH_UP
            while await count(oracle, TO) < len(there.messages) and time.monotonic() < end:
                await asyncio.sleep(0.5)
            await asyncio.sleep(2.0)  # for a repeated batch, whose rows would be there twice
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await query.stop()
    judge(outcome, working, there, Stored(await everything(oracle, TO)))
    outcome.ran |= {"faults": faults.history.counts, "starts": query.started, "failures": query.failures}
    outcome.check("the query never fails for good", query.started <= 3, query.failures)


async def count(oracle: Oracle, stream: str) -> int:
    try:
        return int((await oracle.state(stream))["messages"])
    except (OracleError, TimeoutError, nats.errors.Error):
        return 0  # no one leads just now


def judge(outcome: Outcome, working: list[Publishing], source: Stored, copy: Stored) -> None:
    """Each message of LOG is in OUT once, and whatever was acked is in LOG."""
    outcome.ran = {
        "published": sum(one.number for one in working),
        "in": len(source.seqs),
        "out": len(copy.seqs),
    }
    lost = [payload for one in working for payload in source.missing(one.subject, one.acked)]
    outcome.none_of("acked and lost: 0", lost)
    outcome.none_of("not stored within 30 s: 0", [text for one in working for text in one.failed])
    expected, actual = rows(source), rows(copy)
    outcome.none_of("rows lost: 0", sorted((expected - actual).elements()))
    outcome.none_of("rows doubled or made up: 0", sorted((actual - expected).elements()))
    outcome.check("something was copied during the faults", len(copy.seqs) > 100, len(copy.seqs))


def rows(stored: Stored) -> Counter[Any]:
    return Counter((one.subject.partition(".")[2], one.payload) for one in stored.messages)
