"""An application of two stateful queries, whose driver, JVM and workers are killed repeatedly."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.recount import Recount, payloads
from integration.kit.judge.waiting import eventually
from integration.kit.spark import shop
from integration.kit.spark.program import Program

pytestmark = [pytest.mark.full, pytest.mark.limit(900), pytest.mark.server(">=2.11")]

COUNT, KILLS = 20_000, 3


@pytest.mark.fault("windows and Parquet files: driver, JVM and workers killed three times")
async def test_shop(own_server: Any, oracle_for: Any, recount: Any, tmp_path: Path) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    for name in ("EVENTS", "WINDOWS"):
        await oracle.create_stream(
            name, [f"{name.lower()}.>"], storage="file", allow_direct=True, duplicate_window=600 * 10**9
        )
    sent = [*shop.events(COUNT, seed=17)]
    for number, event in enumerate(sent, 1):
        # a broken event, which the program has to count and not to fail on
        payload = b"{broken" if event is None else json.dumps(event).encode()
        publish = oracle.publish if number % 1000 == 0 or number == len(sent) else oracle.nc.publish
        await publish("events.a", payload)
    folder = tmp_path / "shop"
    command = [str(shop.__file__), server.url, str(folder)]
    for kill in range(KILLS + 1):
        program = Program(tmp_path, command)
        try:
            if kill < KILLS:
                await eventually(
                    partial(is_past, oracle, program, folder, kill), 240, what="the middle of a batch"
                )
            else:
                await asyncio.to_thread(program.finish)
        finally:
            await asyncio.to_thread(program.kill)
    once = {event["id"]: event for event in sent if event is not None}
    sums: Counter[tuple[int, str]] = Counter()
    counts: Counter[tuple[int, str]] = Counter()
    for event in once.values():
        position = event["at"] // 60 * 60, event["category"]
        counts[position] += 1
        sums[position] += event["cents"]
    windows = {(*window, counts[window], sums[window]) for window in counts if window[1] != "end"}
    stored = [json.loads(one) for one in await asyncio.to_thread(payloads, server.url, "WINDOWS")]
    actual = [(one["start"], one["category"], one["n"], one["cents"]) for one in stored]
    recount.exact(Recount.of("WINDOWS", windows, actual))
    rows = {(event["id"], event["at"], event["category"], event["cents"]) for event in once.values()}
    recount.exact(Recount.of("Parquet", rows, files_of(folder / "events")))


async def is_past(oracle: Oracle, program: Program, folder: Path, kill: int) -> bool:
    """Whether one of the queries has planned a batch that it has not committed, two after the last kill."""
    if not program.is_running():
        raise RuntimeError(f"the program has ended:\n{program.log[-4000:]}")
    planned, committed = (numbers(folder / "windows" / log) for log in ("offsets", "commits"))
    return planned > committed and planned >= 2 * kill + 1


def numbers(log: Path) -> int:
    """The last number in a log of a checkpoint."""
    return max((int(path.name) for path in log.glob("[0-9]*") if path.name.isdecimal()), default=-1)


def files_of(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of the files that Spark has committed: others are from tasks that were killed."""
    import pyarrow.parquet as pq

    names = {
        json.loads(line)["path"]
        for log in (folder / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
    }
    tables = [pq.read_table(name.removeprefix("file://")) for name in sorted(names)]
    return [
        (row["id"], int(row["at"].timestamp()), row["category"], row["cents"])
        for table in tables
        for row in table.to_pylist()
    ]
