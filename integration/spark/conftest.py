"""Fixtures of the tests with Spark. The fixtures of `integration/conftest.py` (server, oracle, ...) are here too.

spark          the classic session of the whole run: local[2,4], the data source registered
connect_spark  runs Python in a process with a Spark Connect session: `connect_spark("result = spark.range(5).count()")`
checkpoint     a directory for a query's checkpoint, of this test alone
drain          runs a streaming DataFrame until nothing is left: `drain(frame).rows`
database       conninfo of a new PostgreSQL database. Without PostgreSQL the test is skipped, or fails if marked `full`
in_thread      runs what blocks in a thread in which the session is the active one: `await in_thread(drain, frame)`
jobs           starts drivers in processes of their own, to be killed: `jobs(queries, master="local[2,4]")`
standalone     a standalone cluster of Spark of the whole run: a master and two workers
recount        compares a stream with the numbers that it should have: `await recount(server, "OUT", 20_000)`

Calls of Spark block, so a test that is `async` makes them in a thread. Spark knows data sources that were registered by
the active session of a thread, which `asyncio.to_thread` gives it not: writing then fails with DATA_SOURCE_NOT_FOUND.
Functions that executors run are pickled: they find this checkout, but are best made inside the test.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.recount import Recount, payloads
from integration.kit.judge.streams import OwnStream
from integration.kit.servers import postgres
from integration.kit.spark.driver_process import SparkJob
from integration.kit.spark.sessions import (
    PASSWORD,
    PASSWORD_VARIABLE,
    ConnectSession,
    Drained,
    make_active,
    missing,
    running_spark,
)
from integration.kit.spark.sessions import drain as run_to_end
from integration.kit.spark.standalone import StandaloneCluster

# Warnings of pyspark and py4j about open files and deprecated calls. None of them is ours to mend.
_NOT_OURS = (
    r"ignore:unclosed <socket\.socket .*127\.0\.0\.1:ResourceWarning",
    r"ignore:unclosed file <_io\.BufferedWriter:ResourceWarning",
)

# On two slow or busy cores a minute passes before a driver, its JVM and its Python processes have started.
LIMIT = 300.0


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups when its own hook runs
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for warning in _NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            if item.get_closest_marker("limit") is None:
                item.add_marker(pytest.mark.limit(LIMIT))
            # In a parallel run each kind of session exists once anyway. Tests without a session go to any process.
            for session in ("spark", "connect_spark"):
                if session in getattr(item, "fixturenames", ()):
                    item.add_marker(pytest.mark.xdist_group(session))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups that pytest-xdist does not see cost a JVM in each process, and nothing would say so."""
    if getattr(session.config.option, "loadgroup", False):
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group") is not None]
        if any("@" not in item.nodeid for item in grouped):
            raise pytest.UsageError("this pytest-xdist does not group tests with this pytest")


class _NoSpark(pytest.Module):
    """A file of tests, if Spark cannot run: skipped with the reason, which in CI is a failure."""

    def collect(self) -> list[pytest.Item]:
        reason = missing()
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, so Spark has to run: {reason}", pytrace=False)
        pytest.skip(f"no Spark here: {reason}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if missing() is None else _NoSpark.from_parent(parent, path=module_path)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A table of all recounts of the run, also when its tests ran side by side."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    rows = [
        (report.nodeid, *json.loads(value).values())
        for report in sorted(reports, key=lambda report: report.nodeid)
        for name, value in report.user_properties
        if name == "recount" and report.when == "call"
    ]
    # no test with a recount was run
    if not rows:
        return
    terminalreporter.section("recounts, by a plain socket or SQL")
    head = ("fault", "where", "expected", "found", "missing", "twice", "foreign", "ended with")
    reported = [
        (fault, where, *("" if error else f"{number:,}" for number in numbers), error)
        for _, fault, where, *numbers, _, error in rows
    ]
    widths = [max(len(row[at]) for row in (head, *reported)) for at in range(len(head))]
    for row in (head, *reported):
        cells = (f"{cell:{'>' if 2 <= at < 7 else '<'}{widths[at]}}" for at, cell in enumerate(row))
        terminalreporter.write_line("  ".join(cells).rstrip())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """If all files are skipped, the run does not fail, although no test was collected."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and missing() is not None:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def java() -> None:
    """For tests that start Spark themselves. If it cannot run, they end here."""


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from jsclient.spark import register

    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        register(session)
        yield session


@pytest.fixture(scope="session")
def connect_spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectSession]:
    env = {PASSWORD_VARIABLE: PASSWORD}
    session = ConnectSession(tmp_path_factory.mktemp("connect"), "info", **env)
    yield session
    session.close()


@pytest.fixture
async def make_stream(oracle: Oracle, make_stream: Callable[..., Awaitable[OwnStream]]) -> Any:
    """The fixture of all tests. It requires `oracle`, so that the judge is made before the test, not in its middle."""
    return make_stream


@pytest.fixture
def in_thread(spark: Any) -> Callable[..., Awaitable[Any]]:
    async def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def active() -> Any:
            make_active(spark)
            return function(*args, **kwargs)

        return await asyncio.to_thread(active)

    return run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def drain(checkpoint: Path) -> Callable[..., Drained]:
    """`drain(frame)`. Again with the same checkpoint it continues. See `integration.kit.spark.sessions.drain`."""
    return partial(run_to_end, checkpoint=checkpoint)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., SparkJob]]:
    """Starts jobs: `jobs(queries, master=…)`. Again with the same queries a job continues from their checkpoints."""
    started: list[SparkJob] = []

    def start(queries: list[dict[str, Any]], **options: Any) -> SparkJob:
        started.append(SparkJob(tmp_path, queries, **options))
        return started[-1]

    yield start
    for job in started:
        job.kill()  # ended processes, too, because it closes their open resources
        print(job.log[-4000:])  # shown if the test failed


class Recounts:
    """The recounts of a test, which are added to the table at the end of the run."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        marker = node.get_closest_marker("fault")
        self._fault = node.name if marker is None else marker.args[0]

    async def __call__(self, server: Any, stream: str, count: int, **rights: Any) -> None:
        """Assert that a stream has each of the numbers from 1 to ``count`` once, and no other number."""
        actual = await asyncio.to_thread(payloads, server.url, stream, **rights)
        self.exact(Recount.of(stream, range(1, count + 1), map(number_of, actual)))

    def exact(self, recount: Recount) -> None:
        self.add(recount)
        assert recount.is_exact, recount

    def add(self, recount: Recount, error: str = "") -> None:
        figures = json.dumps({"fault": self._fault, **asdict(recount), "error": error})
        self._node.user_properties.append(("recount", figures))

    @contextmanager
    def refused(self, where: str, error: str, match: str) -> Iterator[None]:
        """Assert that the block ends with this error of jsclient, and with its text. The table names it."""
        with pytest.raises(Exception, match=f"(?s){error}.*{match}"):
            yield
        self.add(Recount.of(where, (), ()), error)


@pytest.fixture
def recount(request: pytest.FixtureRequest) -> Recounts:
    return Recounts(request.node)


@pytest.fixture(scope="session")
def standalone(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("standalone"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    server = postgres.Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    if reason := postgres.missing():
        if os.environ.get("CI") or request.node.get_closest_marker("full"):
            pytest.fail(f"in CI, and if marked full, this needs PostgreSQL: {reason}", pytrace=False)
        pytest.skip(f"no PostgreSQL here: {reason}")
    with request.getfixturevalue("postgres_server").database() as conninfo:
        yield conninfo
