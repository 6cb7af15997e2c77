"""The server, its streams and its consumers: what the runs find, and what they are checked against afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import jsclient
from benchmarks.job import Job, WorkSkippedError
from benchmarks.wire import Wire, publish_many
from benchmarks.works import Work

__all__ = ["Stage", "steps"]

_OUT = "OUT"
_WARM = 2_000  # messages at most
_WAIT = 5.0  # seconds for acks that are under way


def steps(work: Work, count: int, scale: float) -> tuple[int, int]:
    """Messages to warm up with, and to measure: full fetches, and as many for each subscription."""
    step = max(work.batch, work.subscriptions, 1)
    measured = max(step * 2, int(count * scale) // step * step)
    return max(step, min(_WARM, measured // 10) // step * step), measured


class Stage:
    """A server with a stream to read from."""

    def __init__(self, js: jsclient.JetStream, host: str, port: int, storage: str) -> None:
        self._js = js
        self._host = host
        self._port = port
        self._storage = storage
        self._stream = ""
        self._stored = 0

    async def fill(self, size: int, *, headers: bool, count: int) -> None:
        """Make the stream that is read, with ``count`` messages. One that was there goes."""
        if self._stream:
            await self._js.delete_stream(self._stream)
        self._stream, self._stored = "BENCH", count
        await self._js.create_stream(
            "BENCH", subjects=["bench.data"], storage=self._storage, allow_direct=True
        )
        job = Job(
            "raw", "", count, 0, "BENCH", "bench.data", self._host, self._port, size, headers, window=2000
        )
        await asyncio.to_thread(_publish, job)
        state = (await (await self._js.stream("BENCH")).info()).state
        if state.messages != count:
            raise WorkSkippedError(f"the stream holds {state.messages} messages, not {count}")

    @asynccontextmanager
    async def job(
        self, work: Work, client: str, scale: float, *, size: int, headers: bool, loop: str
    ) -> AsyncIterator[Job]:
        """Prepare a run, and check what it has done when the block is left."""
        warm, count = steps(work, work.counts[client], scale)
        job = Job(
            client,
            work.kind,
            count,
            warm,
            stream="BENCH" if work.reads else _OUT,
            subject="bench.data" if work.reads else "bench.out",
            host=self._host,
            port=self._port,
            size=size,
            headers=headers,
            last=self._stored if work.reads else 0,
            batch=work.batch,
            window=work.window,
            subscriptions=work.subscriptions,
            loop=loop,
        )
        if not work.reads:
            await self._js.create_stream(
                _OUT,
                subjects=["bench.out"],
                storage=self._storage,
                allow_atomic=True if work.kind == "batches" else None,
            )
            try:
                yield job
                state = (await (await self._js.stream(_OUT)).info()).state
                expected = (warm + count) // work.subscriptions
                if (state.messages, state.last_seq) != (expected, expected):
                    raise WorkSkippedError(f"{state.messages} messages were stored, not {expected}")
            finally:
                await self._js.delete_stream(_OUT)
        elif work.pulls:
            async with self._consumers(job, work) as prepared:
                yield prepared
        else:
            yield job

    @asynccontextmanager
    async def _consumers(self, job: Job, work: Work) -> AsyncIterator[Job]:
        stream = await self._js.stream(job.stream)
        names = ("warm", "measured")
        for name, count in zip(names, (job.warm, job.count), strict=True):
            await stream.create_consumer(
                durable_name=name,
                deliver_policy="by_start_sequence",
                opt_start_seq=job.last - count + 1,
                ack_policy=work.pulls,
                ack_wait=300.0,
                max_ack_pending=100_000 if work.pulls == "explicit" else None,
            )
        try:
            yield replace(job, consumers=names)
            await self._check(stream, job, work)
        finally:
            for name in names:
                await stream.delete_consumer(name)

    async def _check(self, stream: jsclient.Stream, job: Job, work: Work) -> None:
        """Each message was delivered once, and acked where that is the work."""
        acked = work.pulls == "explicit"
        end = asyncio.get_running_loop().time() + _WAIT
        while True:
            info = await (await stream.consumer("measured")).info()
            floor = info.ack_floor.stream_seq if acked else info.delivered.stream_seq
            if floor == job.last and info.delivered.consumer_seq == job.count:
                return
            if asyncio.get_running_loop().time() > end:
                raise WorkSkippedError(
                    f"the server delivered {info.delivered.consumer_seq} messages of {job.count}, "
                    f"and has {'acks' if acked else 'deliveries'} up to {floor} of {job.last}"
                )
            await asyncio.sleep(0.02)


def _publish(job: Job) -> None:
    with Wire(job.host, job.port) as wire:
        wire.send(b"SUB acks 1\r\n")
        publish_many(wire, job, job.count)
