"""Runs random programs: each is struck by its fault, started again until it has read all, and recounted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import nats.errors

from integration.campaign.options import Options
from integration.campaign.programs.expected import counted, messages_of, stored_by
from integration.campaign.programs.frames import FAULT, Run, labels
from integration.campaign.programs.generate import program_of
from integration.campaign.programs.host import Host
from integration.campaign.programs.judge import Rows, Verdict, judge, reason_of
from integration.campaign.programs.program import Program
from integration.campaign.report import Outcome
from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.recount import messages
from integration.kit.servers.nats_server import OwnServer
from integration.kit.spark.sessions import missing

LIMIT = 420.0  # seconds for one run of a program: a busy machine is slow
# seconds: longer than a start of Spark on a busy machine, so that claims do not expire meanwhile
ACK_WAIT = 180.0
WINDOW = 3600.0  # seconds for which the target remembers ids
RUNS = 5  # of one program at most


async def run(options: Options) -> list[Outcome]:
    """Programs of the seeds from 1000 times the seed on, for as long as there is time."""
    outcome = Outcome("programs", "random programs", options.seed)
    if reason := missing():
        outcome.ran["not tried"] = reason
        return [outcome]
    end = time.monotonic() + options.seconds
    verdicts: dict[int, Verdict] = {}
    async with Programs.open() as programs:
        seed = options.seed * 1000
        while time.monotonic() < end:
            verdicts[seed] = await programs.one(program_of(seed))
            seed += 1
    conclude(outcome, verdicts)
    return [outcome]


async def run_seeds(seeds: Iterable[int]) -> Outcome:
    """The programs of some seeds."""
    verdicts: dict[int, Verdict] = {}
    outcome = Outcome("programs", "random programs", 0)
    async with Programs.open() as programs:
        for seed in seeds:
            verdicts[seed] = await programs.one(program_of(seed))
    conclude(outcome, verdicts)
    return outcome


def conclude(outcome: Outcome, verdicts: dict[int, Verdict]) -> None:
    """The predicates, from the verdicts by seed."""

    def seeds(*kinds: str) -> list[str]:
        return [f"seed {seed}: {one.about}" for seed, one in verdicts.items() if one.kind in kinds]

    kinds = Counter(one.kind for one in verdicts.values())
    outcome.ran = {
        "programs": len(verdicts),
        **kinds,
        "rows": sum(one.expected for one in verdicts.values()),
        "faults that struck": sum(one.struck for one in verdicts.values()),
    }
    outcome.none_of("programs that lost a row in silence: 0", seeds("lost"))
    outcome.none_of("programs that doubled a row in silence: 0", seeds("doubled"))
    outcome.none_of("programs that ended with an error that is not documented: 0", seeds("failed"))


class Programs:
    """A server and a process with a session, for one program after another."""

    def __init__(self, files: Path, server: OwnServer, host: Host) -> None:
        self._files = files
        self._server = server
        self._host = host

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Programs]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            files = Path(directory)
            server, host = OwnServer(store_dir=files / "store"), Host(files)
            await server.start()
            try:
                yield cls(files, server, host)
            finally:
                await host.kill()
                await server.stop()

    async def one(self, program: Program) -> Verdict:
        """Run a program, and print what came of it."""
        began = time.monotonic()
        print(f"program {program.seed}: {program.told()}", flush=True)
        async with Oracle(self._server.url, timeout=20.0) as oracle:
            await prepared(oracle, program)
            files = self._files / f"program-{program.seed}"
            files.mkdir()
            (files / "labels.json").write_text(labels())
            running = Running(program, self._server, self._host, oracle, files)
            try:
                error = await running.run()
                actual = await asyncio.to_thread(stored, self._server.url, program.target)
            finally:
                for name in (*program.names, program.target):
                    await oracle.delete_stream(name)
        verdict = judge(program, running.expected, actual, error)
        verdict.errors, verdict.struck = running.errors, running.struck
        verdict.seconds = time.monotonic() - began
        reports = "" if not verdict.about else f": {verdict.about}"
        struck = "struck" if verdict.struck else "not struck"
        print(
            f"  {verdict.kind}: {verdict.found} of {verdict.expected} rows, {struck}, {running.runs} runs, "
            f"{verdict.seconds:.1f} s{reports}",
            flush=True,
        )
        return verdict


class Running:
    """A program on its way to its end.

    Attributes:
        errors: The errors of its runs, except for the error that the fault caused.
        struck: Whether the fault came in time.
    """

    def __init__(self, program: Program, server: OwnServer, host: Host, oracle: Oracle, files: Path) -> None:
        self._program = program
        self._server = server
        self._host = host
        self._oracle = oracle
        self._files = files
        outs = [one for rows in stored_by(program).values() for one in rows]
        self.expected = counted(outs)
        numbers = sorted({one.n for one in outs})
        self._fails = numbers[int(program.fault.at * len(numbers))] if numbers else 0
        self.errors: list[str] = []
        self.runs = 0
        self.struck = False

    async def run(self) -> str | None:
        """Until it has read all. The error with which it ended. None if without one."""
        await self._first()
        error: str | None = None
        while self.runs < RUNS:
            error = await self._again()
            if error is None:
                return None
            self.errors.append(reason_of(error))
        return error

    async def _first(self) -> None:
        fault = self._program.fault
        if fault.kind in {"kill", "server"}:
            striking = asyncio.create_task(self._strike())
            try:
                error = await self._start(slow=True)
            finally:
                if not self.struck:
                    striking.cancel()  # it ended before its moment
                await asyncio.gather(striking, return_exceptions=True)  # a server that was killed is back
            self.errors += [reason_of(error)] if error else []
        elif fault.kind == "fail":
            sinks = [sink for sink in self._program.sinks if sink.kind == "batch"]
            if sinks and fault.delay:  # the function raises, and no row
                after = 1 + int(fault.at * max(len(sink.writes) for sink in sinks))
                error = await self._start(fails_after=after)
            else:
                error = await self._start(fails=self._fails)
            self.struck = FAULT in (error or "")
            self.errors += [reason_of(error)] if error and not self.struck else []
        else:
            error = await self._start()
            self.errors += [reason_of(error)] if error else []
            self.struck = error is None and forget_last_batch(self._files)

    async def _again(self) -> str | None:
        return await self._start(again=True)

    async def _start(
        self, *, again: bool = False, slow: bool = False, fails: int | None = None, fails_after: int = 0
    ) -> str | None:
        self.runs += 1
        run = Run(self._server.url, str(self._files), again, fails, fails_after, slow)
        try:
            return await self._host.run(self._program, run, LIMIT)
        except EOFError:
            return None if self.struck and not again else "the process with the session ended by itself"
        except TimeoutError:
            return f"TimeoutError: it did not end in {LIMIT:.0f} s"

    async def _strike(self) -> None:
        """Wait for the moment of the fault, and let it come."""
        fault = self._program.fault
        least = max(1, math.floor(fault.at * self.expected.total()))
        while await count(self._oracle, self._program.target) < least:
            await asyncio.sleep(0.02)
        if fault.kind == "kill":
            await asyncio.sleep(fault.delay)
            self.struck = True
            await self._host.kill()
        else:
            self.struck = True
            await self._server.kill()
            await asyncio.sleep(fault.delay)
            await self._server.start()


async def prepared(oracle: Oracle, program: Program) -> None:
    """Its streams, with their messages."""
    for number, name in enumerate(program.names):
        subjects = f"p{program.seed}in{number}"
        await oracle.create_stream(
            name, [f"{subjects}.>"], storage="file", allow_direct=True, retention=program.retention
        )
        if program.reads == "queue":
            await oracle.create_consumer(name, "work", ack_wait=int(ACK_WAIT * 1e9), max_ack_pending=100_000)
        arguments = messages_of(program, number)
        for message in arguments[:-1]:
            await oracle.nc.publish(f"{subjects}.{message.k % 4}", message.payload)
        seq = await oracle.publish(f"{subjects}.{arguments[-1].k % 4}", arguments[-1].payload)
        assert seq == len(arguments), f"{name} has {seq} messages, not {len(arguments)}"
    await oracle.create_stream(
        program.target,
        [f"p{program.seed}.>"],
        storage="file",
        allow_direct=True,
        duplicate_window=int(WINDOW * 1e9),
    )


async def count(oracle: Oracle, stream: str) -> int:
    try:
        return int((await oracle.state(stream))["messages"])
    except (OracleError, TimeoutError, OSError, nats.errors.Error):
        return 0  # the server is away


def stored(url: str, stream: str) -> Rows:
    """What is in a stream, by subject and payload."""
    return Counter((subject, payload.decode()) for subject, payload in messages(url, stream))


def forget_last_batch(files: Path) -> bool:
    """As if the driver had died before the end of the last batch was recorded, in each checkpoint."""
    actual = False
    for commits in files.glob("checkpoint-*/commits"):
        numbers = sorted(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        if numbers:
            actual = True
            (commits / str(numbers[-1])).unlink()
            (commits / f".{numbers[-1]}.crc").unlink(missing_ok=True)
    return actual
