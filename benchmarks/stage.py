"""The server, its streams and its consumers: they are prepared before a run, and checked after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import jsclient
from benchmarks.job import Job, WorkSkippedError
from benchmarks.partner import partner
from benchmarks.servers import Target
from benchmarks.wire import Wire, publish_many
from benchmarks.works import Work

__all__ = ["Stage", "steps"]

_OUT = "OUT"
_WARM = 2_000  # maximum number of messages
_IN_FLIGHT = 64 * 1024 * 1024  # bytes that are published at once to fill a stream
_WAIT = 5.0  # seconds to wait for acks in flight


def steps(work: Work, count: int, scale: float) -> tuple[int, int]:
    """Return how many messages warm up and how many are measured: full fetches, the same for each subscription."""
    step = max(work.batch, work.subscriptions, 1)
    measured = max(step * 2, int(count * scale) // step * step)
    return max(step, min(_WARM, measured // 10) // step * step), measured


class Stage:
    """A server with a stream to read from."""

    def __init__(self, js: jsclient.JetStream, target: Target, storage: str) -> None:
        self._js = js
        self._target = target
        self._storage = storage
        self._stream = ""
        self._stored = 0

    async def fill(self, size: int, *, headers: bool, count: int) -> None:
        """Create the stream to read, with ``count`` messages. An existing stream is replaced."""
        await self.clear()
        self._stream, self._stored = "BENCH", count
        await self._js.create_stream(
            "BENCH", subjects=["bench.data"], storage=self._storage, allow_direct=True
        )
        job = Job(
            client="raw",
            kind="",
            count=count,
            warm=0,
            stream="BENCH",
            subject="bench.data",
            size=size,
            headers=headers,
            window=max(2, min(2000, _IN_FLIGHT // size)),
            **self._address(),
        )
        await asyncio.to_thread(_publish, job)
        state = (await (await self._js.stream("BENCH")).info()).state
        if state.messages != count:
            raise WorkSkippedError(f"the stream holds {state.messages} messages, not {count}")

    async def clear(self) -> None:
        """Delete the stream that was read."""
        if self._stream:
            await self._js.delete_stream(self._stream)
            self._stream = ""

    def _address(self) -> dict[str, Any]:
        """Return the fields of a job that contain the address of the server."""
        server = self._target.server
        return {
            "host": "127.0.0.1",
            "port": server.port,
            "server": server.pid or 0,
            "ca": self._target.ca,
        }

    @asynccontextmanager
    async def job(
        self, work: Work, client: str, scale: float, *, size: int, headers: bool, loop: str
    ) -> AsyncIterator[Job]:
        """Prepare a run. When the block ends, check its result."""
        warm, count = steps(work, work.counts[client], scale)
        job = Job(
            client,
            work.kind,
            count,
            warm,
            stream="BENCH" if work.reads else _OUT,
            subject="bench.core" if work.core else "bench.data" if work.reads else "bench.out",
            size=size,
            headers=headers,
            last=self._stored if work.reads else 0,
            batch=work.batch,
            window=work.window,
            subscriptions=work.subscriptions,
            handlers=work.handlers,
            pause=work.pause,
            asks=work.asks,
            loop=loop,
            **self._address(),
        )
        async with AsyncExitStack() as stack:
            # The consumers must be deleted before the stream is checked, so it is entered first.
            if work.core:
                await asyncio.to_thread(stack.enter_context, partner(job))
            elif not work.reads:
                await stack.enter_async_context(self._out(job, work))
            if work.pulls:
                job = await stack.enter_async_context(self._consumers(job, work))
            yield job

    @asynccontextmanager
    async def _out(self, job: Job, work: Work) -> AsyncIterator[None]:
        """Yield the stream that a run publishes to, or has published to. Check and delete it at the end."""
        await self._js.create_stream(
            _OUT,
            subjects=["bench.out"],
            storage=self._storage,
            allow_atomic=True if work.kind == "batches" else None,
        )
        try:
            yield
            state = (await (await self._js.stream(_OUT)).info()).state
            expected = (job.warm + job.count) // work.subscriptions
            if (state.messages, state.last_seq) != (expected, expected):
                raise WorkSkippedError(f"{state.messages} messages were stored, not {expected}")
        finally:
            await self._js.delete_stream(_OUT)

    @asynccontextmanager
    async def _consumers(self, job: Job, work: Work) -> AsyncIterator[Job]:
        stream = await self._js.stream(job.stream)
        # The names and the messages of both parts: their number, and the sequence of the last one.
        parts = {
            "warm": (job.warm, job.last or job.warm),
            "measured": (job.count, job.last or job.warm + job.count),
        }
        for name, (count, last) in parts.items():
            await stream.create_consumer(
                durable_name=name,
                deliver_policy="by_start_sequence",
                opt_start_seq=last - count + 1,
                ack_policy=work.pulls,
                ack_wait=300.0,
                max_ack_pending=100_000 if work.pulls == "explicit" else None,
            )
        try:
            yield replace(job, consumers=("warm", "measured"))
            await self._check(stream, job, work, parts["measured"][1])
        finally:
            for name in parts:
                await stream.delete_consumer(name)

    async def _check(self, stream: jsclient.Stream, job: Job, work: Work, last: int) -> None:
        """Check that each message up to ``last`` was delivered once, and acked if the work acks."""
        acked = work.pulls == "explicit"
        end = asyncio.get_running_loop().time() + _WAIT
        while True:
            info = await (await stream.consumer("measured")).info()
            floor = info.ack_floor.stream_seq if acked else info.delivered.stream_seq
            if floor == last and info.delivered.consumer_seq == job.count:
                return
            if asyncio.get_running_loop().time() > end:
                raise WorkSkippedError(
                    f"the server delivered {info.delivered.consumer_seq} messages of {job.count}, "
                    f"and has {'acks' if acked else 'deliveries'} up to {floor} of {last}"
                )
            await asyncio.sleep(0.02)


def _publish(job: Job) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB acks 1\r\n")
        publish_many(wire, job, job.count)
