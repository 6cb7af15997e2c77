"""The Spark part of the demonstration as a user runs it: its driver is killed, it is interrupted, killed, and fails."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from integration.kit.clients.flights import Run, finished, proof, running_demos
from integration.kit.judge.oracle import Oracle
from integration.kit.servers.nats_server import NEWEST, ServerUnderTest, find_binary

LIMIT = 300.0  # seconds. Spark is started twice, and half a minute is usual

pytestmark = pytest.mark.full


@pytest.fixture
async def demo(
    java: None, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Run]]]:
    """Start it: `await demo("--limit", "100")`. Its temporary files are in `tmp_path`."""
    binary = find_binary(request.config.getoption("server_version", NEWEST))
    async with running_demos(binary, tmp_path, "--plain", limit=LIMIT) as start:
        yield start


@pytest.mark.limit(LIMIT + 60)
async def test_killed_driver_same_result(demo: Callable[..., Awaitable[Run]], tmp_path: Path) -> None:
    saved = tmp_path / "progress.json"
    run = await demo("--limit", "6000", "--spark-progress", str(saved))
    assert await finished(run) == 0, (run.err, run.text)
    assert run.err == []
    lines = proof(run)[5:]
    stream, parquet, work, late, killed = lines
    rows = re.fullmatch(r"\[ok\] stream: ([\d,]+) rows of 10 columns, each equal to the recount", stream)
    assert rows is not None, lines
    assert int(rows[1].replace(",", "")) > 300
    assert parquet == stream.replace("stream", "Parquet")
    assert re.fullmatch(
        r"\[ok\] work list: \d+ cancelled flights rebooked once, those of the file; "
        r"0 to be delivered, 0 not acked",
        work,
    )
    assert late == "[ok] 0 flights came too late for their hour"
    assert re.fullmatch(
        r"\[ok\] driver and JVM were killed at [4-9]\d %, and resumed from the checkpoints", killed
    )
    assert "SIGKILL for the Spark driver" in run.text
    assert re.search(r"Spark 4\.\d+\.\d+ is up again on Java", run.text)
    resumed = re.search(r"statistics resumed with batch (\d+)", run.text)
    assert resumed is not None
    assert int(resumed[1]) >= 5, "it did not begin anew"
    log = json.loads(saved.read_text())["log"]
    events = [entry["event"] for entry in log if "event" in entry]
    # On a busy machine a query can be started again: Spark gives its Python process ten seconds to start.
    assert [event for event in events if event != "again"] == ["start", "up", "killed", "restart", "up"]
    await run.nothing_left()
    assert list(tmp_path.iterdir()) == [saved], "no file is left"


@pytest.mark.limit(LIMIT + 60)
async def test_signal_in_restart_cleans_up(
    demo: Callable[..., Awaitable[Run]], server: ServerUnderTest, oracle: Oracle, tmp_path: Path
) -> None:
    before = await oracle.stream_names()
    run = await demo("--limit", "1000", "--servers", server.url)
    await run.says("SIGKILL for the Spark driver")
    assert len(await oracle.stream_names()) == len(before) + 3
    run.process.send_signal(signal.SIGINT)
    assert await finished(run) == 130
    assert len(run.err) == 1, run.err
    assert re.match(
        r"flights: interrupted; 1,000 of 1,000 flights were processed; Spark had read \d+", run.err[0]
    )
    await run.nothing_left()
    assert sorted(await oracle.stream_names()) == sorted(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.limit(LIMIT + 60)
async def test_killed_leaves_no_jvm(demo: Callable[..., Awaitable[Run]], tmp_path: Path) -> None:
    run = await demo("--limit", "1000")
    await run.says("is up on Java")
    assert any("java" in command for command in run.processes().values())
    run.process.kill()
    await run.ended()
    await run.nothing_left()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.limit(LIMIT + 60)
async def test_query_fails_told_in_line(
    demo: Callable[..., Awaitable[Run]], server: ServerUnderTest, oracle: Oracle
) -> None:
    before = set(await oracle.stream_names())
    run = await demo("--limit", "1000", "--no-kill", "--servers", server.url)
    await run.says("is up on Java")
    for stream in set(await oracle.stream_names()) - before:
        await oracle.delete_stream(stream)
    assert await finished(run) == 1
    assert "Traceback" not in "".join(run.err)
    assert run.err[0].startswith("flights: ")
    assert proof(run) == []
    await run.nothing_left()
