"""The run itself: server, stream, workers, replay, proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from ... import connect
from ...client import JetStream
from ...errors import JetStreamError
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerInfo
from .crew import Crew, WorkerProcess
from .flights import Flight, airline_names, read_flights
from .ledger import Ledger
from .pipeline.access import without_user
from .pipeline.pipeline import Pipeline
from .place import Place
from .progress import Progress, in_words
from .proof import Killing, claims
from .publishing import publish_all
from .reports import Report, Setup, Verdict
from .screen import Screen
from .summary import pace, summary
from .tally import Tally

__all__ = ["Replay", "ReplayError"]

_GROUP = "workers"
_ACK_WAIT = 5.0  # seconds after which what a dead worker held is delivered to another
_ACK_PENDING = 3000  # messages under way to all workers together
_KILL_AT = 0.4  # of all flights
_TICK = 0.25  # seconds between two looks
_STALLED = 60.0  # seconds without any progress after which it is given up
_STARTING = 60.0  # seconds that the workers may take to start
_FLIGHTS = 336_776  # in the whole file; only for the bar while it is read
_READ_CHUNK = 2000  # flights read before the event loop gets its turn


class ReplayError(Exception):
    """It could not go on."""


class Replay:
    """One run.

    Args:
        data: The directory of the data set.
        screen: Where it is shown.
        servers: An existing server; None starts one.
        limit: Only so many flights.
        workers: How many worker processes.
        kill: Whether one of them is killed, and later Spark's driver.
        spark: Whether the Spark part follows.
        keep: A file for the course of its queries, as JSON.
    """

    def __init__(
        self,
        data: Path,
        screen: Screen,
        *,
        servers: list[str] | None,
        limit: int | None,
        workers: int,
        kill: bool,
        spark: bool = False,
        keep: Path | None = None,
    ) -> None:
        self._data = data
        self._screen = screen
        self._limit = limit
        self._size = workers
        self._kill = kill
        self._killing: Killing | None = None
        self._ledger = Ledger(0)
        self._progress = Progress()
        self._begun = self._counted_at = time.monotonic()
        self._place = Place(servers)
        self._stream, self._prefix = self._place.stream, self._place.prefix
        self._flights: list[Flight] = []
        self._pipeline = (
            Pipeline(self._place, data, screen, self._progress, begun=self._begun, kill=kill, keep=keep)
            if spark
            else None
        )

    @property
    def state(self) -> str:
        """How far it came, in words."""
        p = self._progress
        if not p.published:
            return "no flight was published yet"
        told = f"{p.counted:,} of {p.total:,} flights were processed"
        return told if p.pipeline is None or self._pipeline is None else f"{told}; {self._pipeline.state}"

    async def run(self) -> bool:
        """From start to proof; whether that holds.

        Raises:
            ReplayError, WorkerError, PipelineError, FlightsError, JetStreamError: It came to no end; possibly in
                exception groups.

        Cancelled: all that was started is ended, and the streams removed.
        """
        self._screen.start()
        try:
            async with (
                self._place.server() as urls,
                connect(urls, name="jsclient demo", on_event=self._on_event) as js,
            ):
                where = ", ".join(without_user(url) for url in urls)
                self._progress.where = f"nats-server {js.server_version} at {where}, stream {self._stream}"
                async with self._place.flights_on(js):
                    text, holds = await self._with_workers(js, urls)
                    if self._pipeline is not None:
                        more, good = await self._pipeline.run(js, urls, self._flights)
                        text, holds = [*text, "", *more], holds and good
        finally:
            self._screen.stop()
        print("\n".join(text), flush=True)
        return holds

    def _on_event(self, event: Event) -> None:
        self._screen.note(f"{self._elapsed:.1f} s: {in_words(event)}")

    # --- the workers -----------------------------------------------------------------------------------------

    async def _with_workers(self, js: JetStream, urls: Sequence[str]) -> tuple[list[str], bool]:
        setup = Setup(
            servers=list(urls),
            name="jsclient demo",
            stream=self._stream,
            subject=f"{self._prefix}.>",
            group=_GROUP,
            ack_wait=_ACK_WAIT,
            max_ack_pending=_ACK_PENDING,
        )
        crew = Crew(setup, self._on_report, self._on_killed)
        self._crew = crew
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = tasks.create_task(self._watch(js))
                for _ in range(self._size):
                    await self._hire()
                result = await self._replay(js)
                watching.cancel()
                await crew.dismiss()
        finally:
            await crew.dismiss()
        return result

    async def _hire(self) -> WorkerProcess:
        worker = await self._crew.hire()
        self._progress.workers.append(worker.view)
        self._tasks.create_task(self._crew.attend(worker))
        return worker

    def _on_report(self, worker: WorkerProcess, report: Report) -> Verdict | None:
        ledger, progress, sequences = self._ledger, self._progress, report.sequences
        known = ledger.enter(report)
        progress.counted = ledger.count
        progress.redelivered = len(ledger.redelivered)
        progress.repeated = len(ledger.repeated)
        if known:
            return Verdict(known)
        if sequences:
            self._counted_at = time.monotonic()
        worker.view.counted += len(sequences)
        worker.view.redelivered += len(report.redelivered)
        if self._kill and self._killing is None and sequences and ledger.count >= _KILL_AT * ledger.total:
            self._kill_worker(worker, sequences)
            return None
        return Verdict([])

    def _kill_worker(self, worker: WorkerProcess, sequences: list[int]) -> None:
        """At the worst moment: these flights are counted, and not acked."""
        worker.kill()
        self._ledger.orphan(sequences)
        number = worker.view.number
        self._killing = Killing(number, self._ledger.count)
        self._screen.note(
            f"{self._elapsed:.1f} s: SIGKILL for worker {number} (pid {worker.view.pid}): "
            f"{len(sequences):,} flights counted, not yet acked"
        )
        self._tasks.create_task(self._replace())

    def _on_killed(self, worker: WorkerProcess) -> None:
        """Not by us."""
        self._screen.note(f"{self._elapsed:.1f} s: somebody killed worker {worker.view.number}")
        self._tasks.create_task(self._replace())

    async def _replace(self) -> None:
        worker = await self._hire()
        await worker.ready.wait()
        self._screen.note(
            f"{self._elapsed:.1f} s: worker {worker.view.number} (pid {worker.view.pid}) took over"
        )

    # --- the replay ------------------------------------------------------------------------------------------

    async def _replay(self, js: JetStream) -> tuple[list[str], bool]:
        progress = self._progress
        progress.phase = "reading the flights"
        flights, expected = await self._read()
        self._flights = flights
        progress.total = len(flights)
        self._ledger = ledger = Ledger(len(flights))
        progress.phase = "waiting for the workers"
        await self._wait_ready()
        progress.phase = "replaying the flights"
        begun = time.monotonic()
        await publish_all(js, flights, self._prefix, self._on_stored)
        published = time.monotonic()
        progress.phase = "waiting until all is processed and acked"
        info = await self._settled(js)
        settled = time.monotonic()
        state = (await (await js.stream(self._stream)).info()).state
        proof = claims(
            ledger,
            expected,
            stored=state.messages,
            pending=info.num_pending,
            ack_pending=info.num_ack_pending,
            killing=self._killing,
        )
        closing = pace(
            len(flights),
            self._size,
            published=published - begun,
            counted=self._counted_at - begun,
            acked=settled - begun,
            whole=self._elapsed,
        )
        text = summary(ledger.tally, airline_names(self._data), proof, closing)
        return text, all(claim.holds for claim in proof)

    async def _read(self) -> tuple[list[Flight], Tally]:
        """The flights in the order of time, and what they come to."""
        progress = self._progress
        progress.total = _FLIGHTS
        flights: list[Flight] = []
        for flight in read_flights(self._data):
            flights.append(flight)
            if len(flights) % _READ_CHUNK == 0:
                progress.read = len(flights)
                await asyncio.sleep(0)
        flights.sort(key=_when)
        if self._limit is not None:
            del flights[self._limit :]
        if not flights:
            raise ReplayError("the data set is empty")
        expected = Tally()
        for flight in flights:
            expected.add(flight)
        return flights, expected

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(_STARTING):
                for worker in self._crew.workers:
                    await worker.ready.wait()
        except TimeoutError:
            raise ReplayError(f"the workers did not start in {_STARTING:.0f} s") from None

    def _on_stored(self, count: int) -> None:
        self._progress.published += count

    async def _settled(self, js: JetStream) -> ConsumerInfo:
        """Wait until every flight was counted and the server has every ack."""
        while True:
            info = await self._look(js)
            if (
                info is not None
                and self._ledger.is_complete
                and not info.num_pending
                and not info.num_ack_pending
            ):
                return info
            await asyncio.sleep(_TICK)

    async def _look(self, js: JetStream) -> ConsumerInfo | None:
        """How the consumer stands; None if that is not to be known now."""
        try:
            info = await (await js.stream(self._stream)).consumer(_GROUP)
        except JetStreamError:
            return None  # before the first worker has created it, or while the server is away
        self._progress.pending = info.cached_info.num_pending
        self._progress.ack_pending = info.cached_info.num_ack_pending
        return info.cached_info

    # --- watching --------------------------------------------------------------------------------------------

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    async def _watch(self, js: JetStream) -> None:
        """Show how it goes, and give up when it does not go on."""
        progress = self._progress
        looked: asyncio.Task[ConsumerInfo | None] | None = None
        before: object = None
        moved = time.monotonic()
        while True:
            progress.elapsed = self._elapsed
            progress.tick(time.monotonic())
            self._screen.show(progress)
            now = (progress.phase, progress.read, progress.published, progress.counted, progress.ack_pending)
            if now != before:
                before, moved = now, time.monotonic()
            elif time.monotonic() - moved > _STALLED:
                raise ReplayError(f"no progress for {_STALLED:.0f} s: {self.state}; given up")
            if progress.published and (looked is None or looked.done()):
                looked = self._tasks.create_task(self._look(js))
            await asyncio.sleep(_TICK)


def _when(flight: Flight) -> str:
    return flight.scheduled
