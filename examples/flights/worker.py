"""A worker process, which receives flights from the queue group, reports their sums, and acks them.

`examples.flights.crew` starts it, with pipes. It ends when its standard input is closed, so that it never outlives its
parent process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

import msgspec

from jsclient import ConsumerConfig, Message, ack_all, connect
from jsclient.errors import JetStreamError

from .reports import Ready, Report, ReportAnswer, ToWorker, WorkerSetup, digest, frame, read_frame

__all__ = ["main"]

_BATCH = 500  # messages in one report
_GRACE = 3.0  # seconds after which the process exits without cleanup

_decode = msgspec.msgpack.Decoder[ToWorker](ToWorker).decode


def main() -> int:
    """Work until the parent process closes the input, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this process
    # Other output must not be mixed with the reports.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_work(sys.stdin.buffer, os.fdopen(out, "wb", buffering=0)))
    except (JetStreamError, OSError, msgspec.MsgspecError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


async def _work(stdin: BinaryIO, stdout: BinaryIO) -> None:
    async with _pipes(stdin, stdout) as (pipe, out):
        first = await read_frame(pipe)
        if first is None:
            return
        setup = _decode(first)
        assert isinstance(setup, WorkerSetup)
        verdicts: asyncio.Queue[ReportAnswer] = asyncio.Queue()
        listening = asyncio.create_task(_listen(pipe, verdicts))
        working = asyncio.create_task(_consume(setup, out, verdicts))
        await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().call_later(_GRACE, os._exit, 1)
        listening.cancel()
        if working.done():
            working.result()
        working.cancel()
        await asyncio.wait({working})


@asynccontextmanager
async def _pipes(
    stdin: BinaryIO, stdout: BinaryIO
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    outgoing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, stdout)
    try:
        yield reader, asyncio.StreamWriter(outgoing, protocol, None, loop)
    finally:
        incoming.close()
        outgoing.close()


async def _listen(pipe: asyncio.StreamReader, verdicts: asyncio.Queue[ReportAnswer]) -> None:
    while (body := await read_frame(pipe)) is not None:
        verdict = _decode(body)
        assert isinstance(verdict, ReportAnswer)
        verdicts.put_nowait(verdict)


async def _consume(
    setup: WorkerSetup, out: asyncio.StreamWriter, verdicts: asyncio.Queue[ReportAnswer]
) -> None:
    async def report(message: Ready | Report) -> None:
        out.write(frame(message))
        await out.drain()

    async with connect(setup.servers, name=setup.name) as js:
        # The first worker creates the consumer, the others bind to it, and none of them deletes it.
        group = await js.subscribe(
            setup.subject,
            stream=setup.stream,
            queue=setup.group,
            config=ConsumerConfig(ack_wait=setup.ack_wait, max_ack_pending=setup.max_ack_pending),
            delete_on_close=False,
        )
        async with group:
            await report(Ready())
            async for batch in group.batches(_BATCH):
                await _have_counted(batch, report, verdicts)
                await ack_all(batch)


async def _have_counted(
    batch: list[Message], report: Callable[[Report], Awaitable[None]], verdicts: asyncio.Queue[ReportAnswer]
) -> None:
    """Return when every message of the batch is counted, through this report or an earlier one."""
    deliveries = [(m.metadata.stream_seq, m.metadata.num_delivered, m.data) for m in batch]
    known: set[int] = set()
    while True:
        digested = digest(deliveries, known)
        await report(digested)
        refused = (await verdicts.get()).known
        if not refused:
            return
        known.update(refused)


if __name__ == "__main__":
    sys.exit(main())
