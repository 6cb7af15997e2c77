"""A run of the demonstration: server, stream, workers, replay and proof."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jsclient import ConsumerInfo, JetStream, connect
from jsclient.errors import JetStreamError

from .crew import Crew, WorkerProcess
from .flights import Flight, FlightSums, airline_names, read_flights
from .pipeline.pipeline import Pipeline
from .pipeline.running import without_user
from .place import DemoServer
from .proof import Killing, SequenceCounts, claims, pace, summary
from .reports import Report, ReportAnswer, WorkerSetup
from .screen import RunState, Screen, in_words

__all__ = ["Replay", "ReplayError"]

_GROUP = "workers"
_ACK_WAIT = 5.0  # seconds after which the messages of a dead worker are redelivered
_ACK_PENDING = 3000  # messages in flight to all workers together
_KILL_AT = 0.4  # of all flights
_TICK = 0.25  # seconds between two updates
_STALLED = 60.0  # seconds without progress after which the run is stopped
_STARTING = 60.0  # seconds in which the workers must start
_FLIGHTS = 336_776  # flights in the whole file, for the progress bar only
_READ_CHUNK = 2000  # flights read between two yields to the event loop


class ReplayError(Exception):
    """Raised when the run cannot continue."""


class Replay:
    """A run of the demonstration, on the given ``servers`` or on its own server. `jsclient.cli` has the options."""

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
        self._ledger = SequenceCounts(0)
        self._progress = RunState()
        self._started_at = self._counted_at = time.monotonic()
        self._place = DemoServer(servers)
        self._stream, self._prefix = self._place.stream, self._place.prefix
        self._flights: list[Flight] = []
        self._pipeline: Pipeline | None = None
        if spark:
            self._pipeline = Pipeline(
                self._place, data, screen, self._progress, begun=self._started_at, kill=kill, keep=keep
            )

    @property
    def state(self) -> str:
        """The progress in words."""
        p = self._progress
        if not p.published:
            return "no flight was published yet"
        text = f"{p.counted:,} of {p.total:,} flights were processed"
        return text if p.pipeline is None or self._pipeline is None else f"{text}; {self._pipeline.state}"

    async def run(self) -> bool:
        """Run from start to proof, and return whether every claim holds.

        If this call is cancelled, all processes are ended and the streams are removed. Errors can be in groups.
        """
        self._screen.start()
        try:
            async with (
                self._place.server() as urls,
                connect(urls, name="flights", on_event=lambda event: self._note(in_words(event))) as js,
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

    def _note(self, text: str) -> None:
        self._screen.note(f"{self._elapsed:.1f} s: {text}")

    # --- the workers -----------------------------------------------------------------------------------------

    async def _with_workers(self, js: JetStream, urls: Sequence[str]) -> tuple[list[str], bool]:
        setup = WorkerSetup(
            servers=list(urls),
            name="flights",
            stream=self._stream,
            subject=f"{self._prefix}.>",
            group=_GROUP,
            ack_wait=_ACK_WAIT,
            max_ack_pending=_ACK_PENDING,
        )
        workers = Crew(setup, self._on_report, self._on_killed)
        self._crew = workers
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = tasks.create_task(self._watch(js))
                for _ in range(self._size):
                    await self._hire()
                result = await self._replay(js)
                watching.cancel()
                await workers.dismiss()
        finally:
            await workers.dismiss()
        return result

    async def _hire(self) -> WorkerProcess:
        worker = await self._crew.hire()
        self._progress.workers.append(worker.view)
        self._tasks.create_task(self._crew.attend(worker))
        return worker

    def _on_report(self, worker: WorkerProcess, report: Report) -> ReportAnswer | None:
        ledger, progress, sequences = self._ledger, self._progress, report.sequences
        known = ledger.enter(report)
        progress.counted = ledger.count
        progress.redelivered = len(ledger.redelivered)
        progress.repeated = len(ledger.repeated)
        if known:
            return ReportAnswer(known)
        if sequences:
            self._counted_at = time.monotonic()
        worker.view.counted += len(sequences)
        worker.view.redelivered += len(report.redelivered)
        if self._kill and self._killing is None and sequences and ledger.count >= _KILL_AT * ledger.total:
            self._kill_worker(worker, sequences)
            return None
        return ReportAnswer([])

    def _kill_worker(self, worker: WorkerProcess, sequences: list[int]) -> None:
        """Kill a worker whose flights are counted but not acked, which is the worst moment."""
        worker.kill()
        self._ledger.orphaned.update(sequences)
        number = worker.view.number
        self._killing = Killing(number, self._ledger.count)
        counted = f"{len(sequences):,} flights counted, not yet acked"
        self._note(f"SIGKILL for worker {number} (pid {worker.view.pid}): {counted}")
        self._tasks.create_task(self._replace())

    def _on_killed(self, worker: WorkerProcess) -> None:
        """Replace a worker that another process killed."""
        self._note(f"worker {worker.view.number} was killed by another process")
        self._tasks.create_task(self._replace())

    async def _replace(self) -> None:
        worker = await self._hire()
        await worker.ready.wait()
        self._note(f"worker {worker.view.number} (pid {worker.view.pid}) took over")

    # --- the replay ------------------------------------------------------------------------------------------

    async def _replay(self, js: JetStream) -> tuple[list[str], bool]:
        progress = self._progress
        progress.phase = "reading the flights"
        flights, expected = await self._read()
        self._flights = flights
        progress.total = len(flights)
        self._ledger = ledger = SequenceCounts(len(flights))
        progress.phase = "waiting for the workers"
        await self._wait_ready()
        progress.phase = "replaying the flights"
        started = time.monotonic()
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
            published=published - started,
            counted=self._counted_at - started,
            acked=settled - started,
            whole=self._elapsed,
        )
        text = summary(ledger.tally, airline_names(self._data), proof, closing)
        return text, all(claim.holds for claim in proof)

    async def _read(self) -> tuple[list[Flight], FlightSums]:
        """Read the flights in order of departure, and their sums."""
        progress = self._progress
        progress.total = _FLIGHTS
        flights: list[Flight] = []
        for flight in read_flights(self._data):
            flights.append(flight)
            if len(flights) % _READ_CHUNK == 0:
                # Reading the file does not suspend this task, so let the display run.
                progress.read = len(flights)
                await asyncio.sleep(0)
        flights.sort(key=lambda flight: flight.scheduled)
        if self._limit is not None:
            del flights[self._limit :]
        if not flights:
            raise ReplayError("the data set is empty")
        expected = FlightSums()
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
        """Wait until every flight is counted and the server has received every ack."""
        while True:
            info = await self._consumer_info(js)
            if (
                info is not None
                and not info.num_pending
                and not info.num_ack_pending
                and self._ledger.is_complete
            ):
                return info
            await asyncio.sleep(_TICK)

    async def _consumer_info(self, js: JetStream) -> ConsumerInfo | None:
        """Return the state of the consumer, or None if the server does not report it."""
        try:
            info = await (await js.stream(self._stream)).consumer(_GROUP)
        except JetStreamError:
            return None  # the consumer does not exist yet, or the server is not reachable
        self._progress.pending = info.cached_info.num_pending
        self._progress.ack_pending = info.cached_info.num_ack_pending
        return info.cached_info

    # --- watching --------------------------------------------------------------------------------------------

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    async def _watch(self, js: JetStream) -> None:
        """Show the progress. Raises ReplayError if there is none for a minute."""
        progress = self._progress
        request: asyncio.Task[ConsumerInfo | None] | None = None
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
                raise ReplayError(f"no progress for {_STALLED:.0f} s: {self.state}; stopped")
            if progress.published and (request is None or request.done()):
                request = self._tasks.create_task(self._consumer_info(js))
            await asyncio.sleep(_TICK)


_CHUNK = 500  # publishes that are awaited together

_CHUNKS = 3  # chunks in flight

_TIMEOUT = 30.0  # seconds for a publish


async def publish_all(
    js: JetStream, flights: Sequence[Flight], prefix: str, on_stored: Callable[[int], None]
) -> None:
    """Publish in order, and call ``on_stored`` with the number of newly confirmed flights.

    Each publish has a message id, so that a retry after a lost publish ack is stored once.

    Raises:
        ExceptionGroup: With the errors of `JetStream.publish`.
    """
    in_flight: deque[asyncio.Task[None]] = deque()
    async with asyncio.TaskGroup() as tasks:
        for start in range(0, len(flights), _CHUNK):
            if len(in_flight) == _CHUNKS:
                await in_flight.popleft()
            chunk = flights[start : start + _CHUNK]
            in_flight.append(tasks.create_task(_publish(js, chunk, start + 1, prefix, on_stored)))


async def _publish(
    js: JetStream, chunk: Sequence[Flight], first: int, prefix: str, on_stored: Callable[[int], None]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, flight in enumerate(chunk, first):
            payload = msgspec.json.encode(flight)
            publishing = js.publish(flight.subject(prefix), payload, msg_id=str(number), timeout=_TIMEOUT)
            tasks.create_task(publishing)
    on_stored(len(chunk))
