"""The demonstration as a user runs it: a program that starts processes, and is killed and interrupted."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from integration.kit.clients.flights import Run, finished, proof, running_demos
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import NEWEST, ServerUnderTest, find_binary
from integration.kit.servers.ports import free_port
from jsclient.server import NatsServer

LIMIT = 120.0  # seconds. Ten are usual, of which five are ack_wait


@pytest.fixture
async def demo(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Run]]]:
    """Start it: `await demo("--limit", "100")`. Without Spark: that is shown in integration/spark."""
    binary = find_binary(request.config.getoption("server_version", NEWEST))
    async with running_demos(binary, tmp_path, "--no-spark", limit=LIMIT) as start:
        yield start


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_killed_worker_loses_nothing(
    demo: Callable[..., Awaitable[Run]],
) -> None:
    run = await demo("--limit", "5000", "--plain")
    assert await finished(run) == 0, run.err
    assert run.err == []
    lines = proof(run)
    assert lines[0] == "[ok] 5,000 of 5,000 flights processed, 0 lost (distinct stream sequences)"
    assert lines[1] == "[ok] the server agrees: 5,000 stored, 0 to be delivered, 0 not acked"
    redelivered = re.fullmatch(
        r"\[ok\] ([\d,]+) redelivered \(num_delivered > 1\): worker \d was killed at (\d+) %", lines[2]
    )
    twice = re.fullmatch(
        r"\[ok\] ([\d,]+) processed twice and counted once, ([\d,]+) of them because of the kill", lines[3]
    )
    assert redelivered is not None, lines
    assert twice is not None, lines
    assert 40 <= int(redelivered[2]) <= 60
    assert int(redelivered[1].replace(",", "")) >= int(twice[2].replace(",", "")) > 0
    assert lines[4] == "[ok] flights and delays by carrier and route: matches the file"
    assert re.search(r"SIGKILL for worker \d", run.text)
    assert "took over" in run.text
    await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_without_kill_one_worker_does_all(demo: Callable[..., Awaitable[Run]]) -> None:
    run = await demo("--limit", "700", "--workers", "1", "--no-kill", "--plain")
    assert await finished(run) == 0, run.err
    assert "SIGKILL" not in run.text
    assert proof(run)[0].startswith("[ok] 700 of 700")
    assert len(proof(run)) == 5
    await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_only_worker_can_be_one_killed(demo: Callable[..., Awaitable[Run]]) -> None:
    run = await demo("--limit", "1", "--workers", "1", "--plain")
    assert await finished(run) == 0, run.err
    assert proof(run)[3] == "[ok] 1 processed twice and counted once, 1 of them because of the kill"


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_foreign_server_used_and_left_as(
    demo: Callable[..., Awaitable[Run]], server: ServerUnderTest, oracle: Oracle
) -> None:
    before = await oracle.stream_names()
    run = await demo("--limit", "2000", "--plain", "--no-kill", "--servers", server.url)
    assert await finished(run) == 0, run.err
    assert server.url in run.text
    assert proof(run)[0].startswith("[ok] 2,000 of 2,000")
    assert sorted(await oracle.stream_names()) == sorted(before)
    await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_signal_cleans_up(
    demo: Callable[..., Awaitable[Run]], server: ServerUnderTest, oracle: Oracle, signum: signal.Signals
) -> None:
    before = await oracle.stream_names()
    run = await demo("--plain", "--servers", server.url)
    await eventually(lambda: "published" in run.text, LIMIT, "the replay has begun")
    assert len(run.workers()) == 3
    assert sorted(await oracle.stream_names()) != sorted(before)
    run.process.send_signal(signum)
    assert await finished(run) == 130
    assert len(run.err) == 1, run.err
    assert run.err[0].startswith("flights: interrupted; ")
    await run.nothing_left()
    assert sorted(await oracle.stream_names()) == sorted(before)


@pytest.mark.limit(LIMIT + 60)
@pytest.mark.full
async def test_signal_while_starts_ends_all_of(demo: Callable[..., Awaitable[Run]]) -> None:
    run = await demo("--plain")
    await eventually(lambda: "starting" in run.text, LIMIT, "it has begun")
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert await finished(run) == 130
    assert "Traceback" not in "".join(run.err)
    await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_nothing_remains_when_killed_itself(demo: Callable[..., Awaitable[Run]]) -> None:
    run = await demo("--plain")
    await eventually(lambda: "published" in run.text, LIMIT, "the replay has begun")
    assert any("nats-server" in command for command in run.processes().values())
    run.process.kill()
    await run.ended()
    await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_killed_worker_replaced(
    demo: Callable[..., Awaitable[Run]],
) -> None:
    run = await demo("--plain", "--no-kill")
    await eventually(lambda: "published" in run.text, LIMIT, "the replay has begun")
    os.kill(run.workers()[0], signal.SIGKILL)
    assert await finished(run) == 0, run.err
    assert "was killed by another process" in run.text
    assert proof(run)[0].startswith("[ok] 336,776 of 336,776")


@pytest.mark.limit(LIMIT + 60)
@pytest.mark.parametrize(
    "where",
    [
        "nats://127.0.0.1:{port}",
        pytest.param("nats://127.0.0.1:port", marks=pytest.mark.full),
        pytest.param("foo bar", marks=pytest.mark.full),
    ],
)
async def test_server_not_there_told_in_line(demo: Callable[..., Awaitable[Run]], where: str) -> None:
    run = await demo("--plain", "--servers", where.format(port=free_port()))
    assert await finished(run) == 1
    assert len(run.err) == 1, run.err
    assert re.match(
        r"flights: (no server could be reached at|cannot connect to|a server URL is not valid:"
        r"|the port of the server) ",
        run.err[0],
    )
    await run.nothing_left()


@pytest.mark.limit(LIMIT + 60)
@pytest.mark.full
async def test_no_jetstream_in_one_line(demo: Callable[..., Awaitable[Run]]) -> None:
    async with NatsServer(jetstream=False) as plain:
        run = await demo("--plain", "--servers", plain.url)
        assert await finished(run) == 1
        assert len(run.err) == 1, run.err
        assert run.err[0].startswith("flights: ")
        await run.nothing_left()


@pytest.mark.full
@pytest.mark.limit(LIMIT + 60)
async def test_lost_stream_is_a_failure(
    demo: Callable[..., Awaitable[Run]], server: ServerUnderTest, oracle: Oracle
) -> None:
    before = set(await oracle.stream_names())
    run = await demo("--plain", "--servers", server.url)
    await eventually(lambda: "published" in run.text, LIMIT, "the replay has begun")
    (stream,) = set(await oracle.stream_names()) - before
    await oracle.delete_stream(stream)
    assert await finished(run) == 1
    assert "Traceback" not in "".join(run.err)
    assert proof(run) == []
    await run.nothing_left()


def test_live_table_shows_queries_of_spark() -> None:
    from rich.console import Console

    from examples.flights.screen import LiveScreen, PipelineView, RunState, StageView

    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=80, height=24, force_terminal=True, color_system=None))
    stages = [
        StageView("statistics", "", 200, "running", 7, 1234.0, {0: 50, 1: 50}),
        StageView("rebooking", "", 9, "killed", 3, 0.0, {0: 3}),
        StageView("archive", ""),
    ]
    view = PipelineView({stage.name: stage for stage in stages}, driver=4711, state="restarting")
    screen.start()
    screen.show(RunState("Spark at work", "here", 3.0, 200, 200, 200, 200, pipeline=view))
    shown = out.getvalue()
    assert len(shown.splitlines()) <= 24
    assert re.search(r"statistics +running +2 +100 +50% +1,234 +7", shown)
    assert re.search(r"rebooking +killed +1 +3 +33% +3", shown)
    assert re.search(r"archive +waiting +0 +0 +0", shown)
    assert "Spark restarting, driver 4711" in shown
    screen.stop()


def test_live_table_fits() -> None:
    from rich.console import Console

    from examples.flights.screen import LiveScreen, RunState, WorkerView

    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=80, height=24, force_terminal=True, color_system=None))
    workers = [
        WorkerView(1, 101, "killed", 40),
        *(WorkerView(n, 100 + n, "working", n) for n in range(2, 12)),
    ]
    progress = RunState("replaying", "here", 3.0, 100, 100, 60, 50, 7, 8, 9, 10, workers=workers)
    for number in range(1, 5):
        screen.note(f"note-{number}")
    screen.start()
    screen.show(progress)
    shown = out.getvalue()
    height = len(shown.splitlines())
    assert height <= 24
    assert re.search(r"published .* 60 +60%", shown)
    assert re.search(r"pending 7 +ack pending 8 +redelivered 9 +processed twice 10", shown)
    assert re.search(r"1 +101 +killed +40", shown)
    assert re.search(r"11 +111 +working +11", shown)
    assert "and 5 more" in shown
    assert "note-4" in shown
    assert "note-1" not in shown
    screen.stop()
    assert out.getvalue().endswith("\x1b[1A\x1b[2K" * height), "the table is erased at the end"
    assert "\x1b[?25h" in out.getvalue(), "the cursor is back"
