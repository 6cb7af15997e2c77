"""A run of the Spark part: work list, driver, kill, restart and comparison."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from jsclient import ConsumerConfig, JetStream
from jsclient.errors import JetStreamError

from ..flights import Flight
from ..place import DemoServer
from ..proof import Claim
from ..screen import PipelineView, RunState, Screen, StageView
from . import results
from .running import Driver, PipelineError, spark_access
from .words import (
    BatchDone,
    DriverJob,
    Finished,
    FromDriver,
    QueryBegins,
    QueryEnded,
    QueryStartsAgain,
    SparkIsUp,
)

__all__ = ["Pipeline"]

_CONSUMER = "rebooking"
_ACK_WAIT = 10.0  # seconds after which claims that a killed driver has not recorded are redelivered
_CLAIMS = 20_000  # maximum number of messages of the work list in flight
_KILL_AT = 0.4  # share of all flights
_BATCHES = 12  # batches of the flights, so that the kill falls between the first and the last
_WORK_BATCHES = 12
_PARTITIONS = 2
_TICK = 0.25  # seconds between two updates


class Pipeline:
    """One run of the Spark part, on the stream that the first part has filled.

    ``begun`` is the start of the demonstration, in monotonic seconds. ``kill`` kills the driver in the middle. The
    progress of the queries is written to the file ``keep``, as JSON.
    """

    def __init__(
        self,
        server: DemoServer,
        data: Path,
        screen: Screen,
        progress: RunState,
        *,
        begun: float,
        kill: bool,
        keep: Path | None,
    ) -> None:
        self._server = server
        self._weather = data / "weather.csv"
        self._screen = screen
        self._progress = progress
        self._demo_started_at = self._started_at = begun
        self._kill = kill
        self._keep = keep
        self._killed_at: float | None = None  # share of the flights read before the kill
        self._resumed: set[str] = set()
        self._versions = SparkIsUp("", "")
        stages = {
            "statistics": "flights → delays by hour, with the weather → stream",
            "rebooking": "cancelled flights, by claim and ack → Parquet",
            "archive": "stream of the statistics → Parquet",
        }
        self._view = PipelineView({name: StageView(name, does) for name, does in stages.items()})

    async def run(
        self, js: JetStream, urls: Sequence[str], flights: Sequence[Flight]
    ) -> tuple[list[str], bool]:
        """Run from start to proof. Returns the summary, and whether every claim holds.

        If this call is cancelled, driver and JVM are killed and their files are removed.
        """
        self._started_at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="jsclient-demo-", ignore_cleanup_errors=True) as directory:
            async with self._server.statistics_on(js):
                self._progress.phase = "starting Spark"
                self._progress.pipeline = self._view
                showing = asyncio.create_task(self._keep_showing(js))
                try:
                    return await self._run(js, urls, flights, Path(directory))
                finally:
                    showing.cancel()
                    await asyncio.wait({showing})

    async def _run(
        self, js: JetStream, urls: Sequence[str], flights: Sequence[Flight], directory: Path
    ) -> tuple[list[str], bool]:
        setup = await self._prepare(js, urls, flights, directory)
        counting = asyncio.create_task(asyncio.to_thread(self._recount, flights))
        try:
            await self._drive(setup)
            self._view.state = "ended"
            ran = time.monotonic() - self._started_at
            self._progress.phase = "comparing with a recount of the file"
            expected, cancelled = await counting
        finally:
            counting.cancel()
        stored = await results.read_stream(js, self._server.statistics)
        archived = await asyncio.to_thread(results.read_archive, directory / "archive")
        rebooked = await asyncio.to_thread(results.read_rebooked, directory / "rebooking")
        info = (await (await js.stream(self._server.stream)).consumer(_CONSUMER)).cached_info
        counts = {"pending": info.num_pending, "unacked": info.num_ack_pending}
        claims = [
            results.check_statistics("stream", stored, expected),
            results.check_statistics("Parquet", archived, expected),
            results.check_rebooked(rebooked, cancelled, **counts),
            Claim(not self._view.late, f"{self._view.late:,} flights came too late for their hour"),
        ]
        if self._killed_at is not None:
            text = f"driver and JVM were killed at {100 * self._killed_at:.0f} %, and resumed from the checkpoints"
            claims.append(Claim(True, text))
        if self._keep is not None:
            about = {"flights": len(flights), "spark": self._versions.spark, "java": self._versions.java}
            text = json.dumps(kept(self._view, about), indent=1) + "\n"
            await asyncio.to_thread(self._keep.write_text, text, encoding="utf-8")
        lines = [
            *results.weather_table(stored),
            "",
            *map(str, claims),
            "",
            *closing(self._view, self._versions, ran=ran, whole=time.monotonic() - self._demo_started_at),
        ]
        return lines, all(claim.holds for claim in claims)

    def _recount(self, flights: Sequence[Flight]) -> tuple[results.Statistics, Counter[results.Cancelled]]:
        weather = results.read_weather(self._weather)
        return results.recount(flights, weather), results.cancelled_flights(flights)

    async def _prepare(
        self, js: JetStream, urls: Sequence[str], flights: Sequence[Flight], directory: Path
    ) -> DriverJob:
        """Publish the end of the flights and create the work list. Returns the setup of the driver."""
        server, stages = self._server, self._view.stages
        end = msgspec.json.encode(results.end_of_flights(flights[-1]))
        await js.publish(f"{server.prefix}.end", end, msg_id="end")
        config = ConsumerConfig(
            durable_name=_CONSUMER,
            filter_subject=f"{server.prefix}.*.*.cancelled",
            ack_wait=_ACK_WAIT,
            max_ack_pending=_CLAIMS,
        )
        await (await js.stream(server.stream)).create_consumer(config)
        total = stages["statistics"].total = len(flights) + 1
        items = stages["rebooking"].total = sum(flight.dep_delay is None for flight in flights)
        options, environment = spark_access(urls)
        return DriverJob(
            options=options,
            environment=environment,
            directory=str(directory),
            weather=str(self._weather),
            stream=server.stream,
            consumer=_CONSUMER,
            statistics=server.statistics,
            prefix=server.statistics_prefix,
            ledger=server.ledger,
            rows_per_batch=math.ceil(total / _BATCHES),
            items_per_batch=max(1, math.ceil(items / _WORK_BATCHES)),
            partitions=_PARTITIONS,
        )

    # --- the driver ------------------------------------------------------------------------------------------

    async def _drive(self, setup: DriverJob) -> None:
        """Run the driver to its end, and after the kill a second driver."""
        self._view.happened("start", self._elapsed)
        driver = await Driver.start(setup)
        self._view.driver = driver.pid
        try:
            while not isinstance(message := await driver.read(), Finished):
                self._handle(message)
                if self._is_the_middle(message):
                    driver = await self._kill_and_restart(driver, setup)
            await driver.end()
        finally:
            await driver.kill()
            self._view.driver = 0

    def _is_the_middle(self, message: FromDriver) -> bool:
        """Return whether to kill the driver now: during the statistics, or before the archive at the latest."""
        stages = self._view.stages
        if not self._kill or self._killed_at is not None:
            return False
        read = stages["statistics"].rows >= _KILL_AT * stages["statistics"].total
        return (isinstance(message, BatchDone) and read) or (
            isinstance(message, QueryBegins) and message.query == "archive"
        )

    async def _kill_and_restart(self, driver: Driver, setup: DriverJob) -> Driver:
        """Kill the driver while the next batch is in flight, and start another driver."""
        view, statistics = self._view, self._view.stages["statistics"]
        await driver.kill()
        self._killed_at = statistics.rows / statistics.total
        view.happened("killed", self._elapsed)
        for stage in view.stages.values():
            if stage.state == "running":
                stage.state, stage.rate = "killed", 0.0
        self._note(
            f"SIGKILL for the Spark driver (pid {driver.pid}) and its JVM: {statistics.rows:,} rows read, "
            f"{statistics.batches} batches committed"
        )
        view.state = "killed"
        self._progress.phase = "starting Spark again, from its checkpoints"
        started = await Driver.start(setup)
        view.happened("restart", self._elapsed)
        view.driver, view.state = started.pid, "restarting"
        return started

    def _handle(self, message: FromDriver) -> None:
        view = self._view
        match message:
            case SparkIsUp():
                again = "again " if self._killed_at is not None else ""
                self._versions = message
                view.state = "running"
                view.happened("up", self._elapsed)
                self._note(f"Spark {message.spark} is up {again}on Java {message.java} (pid {view.driver})")
                self._progress.phase = "Spark at work"
            case QueryBegins():
                view.stages[message.query].state = "running"
                if message.query == "archive":
                    view.stages[message.query].total = view.stages["statistics"].out
            case BatchDone():
                if message.query not in self._resumed and self._killed_at is not None:
                    self._resumed.add(message.query)
                    if message.batch:
                        self._note(f"{message.query} resumed with batch {message.batch}")
                view.enter(message, self._elapsed)
                if message.query != "statistics":  # the server reports the number of results of that query
                    view.stages[message.query].out = view.stages[message.query].rows
            case QueryEnded():
                stage = view.stages[message.query]
                stage.end()
                stage.out = stage.out if message.query == "statistics" else stage.rows
            case QueryStartsAgain():
                view.happened("again", self._elapsed, query=message.query, reason=message.reason)
                self._note(f"{message.query} failed and is started again: {message.reason}")
            case _:
                raise PipelineError(f"unexpected message from the Spark driver: {type(message).__name__}")

    # --- what is seen ----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The progress in words."""
        statistics = self._view.stages["statistics"]
        return f"Spark had read {statistics.rows:,} of {statistics.total:,}"

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def _note(self, text: str) -> None:
        self._screen.note(f"{time.monotonic() - self._demo_started_at:.1f} s: {text}")

    async def _keep_showing(self, js: JetStream) -> None:
        """Redraw, with the number of results on the server."""
        while True:
            with suppress(JetStreamError):  # if the server is unreachable, Spark waits, and so does this task
                info = await (await js.stream(self._server.statistics)).info()
                self._view.stages["statistics"].out = info.state.messages
            self._progress.elapsed = time.monotonic() - self._demo_started_at
            self._progress.tick(time.monotonic())
            self._screen.show(self._progress)
            await asyncio.sleep(_TICK)


def closing(view: PipelineView, versions: SparkIsUp, *, ran: float, whole: float) -> list[str]:
    """Describe the duration in seconds, ``ran`` of the Spark part and ``whole`` of the demonstration."""
    rows = sum(stage.rows for stage in view.stages.values())
    batches = sum(stage.batches for stage in view.stages.values())
    starts = sum(entry.get("event") == "up" for entry in view.log)
    times = "one start" if starts == 1 else f"{starts} starts"
    return [
        f"Spark {versions.spark}: {rows:,} rows in {batches} batches in {ran:.1f} s, including {times};",
        f"{whole:.1f} s in all.",
    ]


def kept(view: PipelineView, about: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of the queries for a chart. Times are seconds since the Spark part began."""
    stages = {
        stage.name: {"does": stage.does, "rows": stage.rows, "total": stage.total}
        for stage in view.stages.values()
    }
    return {"about": about, "queries": stages, "log": view.log}
