"""The path of one operation through the library: Python calls, files entered, moves between files.

A profile function counts the calls of functions in ``jsclient`` while one operation runs against a real server. A
resumed coroutine is not a new call. A *move* is a call in another file than the call before it. The figures do not
depend on the speed of the machine, so they compare exactly between two versions. Everything that publishes for a reader
uses a plain socket, which is not counted.

    python -m benchmarks.walks                     all walks python -m benchmarks.walks push fetch-1        some of them
    python -m benchmarks.walks push --calls        and the calls in their order
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from urllib.parse import urlsplit

import jsclient

ROOT = str(Path(jsclient.__file__).parent) + "/"
ROUNDS = 5  # traces of each walk. The shortest is shown, because timers and pings may run during any of them


class Trace:
    """The calls of one walk, in order."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        # keeps the frames, because otherwise a new frame could reuse the address of an old one
        self._frames: set[FrameType] = set()

    def on_event(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function."""
        if event == "call" and frame.f_code.co_filename.startswith(ROOT) and frame not in self._frames:
            self._frames.add(frame)
            self.calls.append(frame.f_code)

    def end(self) -> None:
        """Release the frames."""
        self._frames.clear()

    @property
    def files(self) -> list[str]:
        """The files in the order of their first call."""
        return list(dict.fromkeys(code.co_filename.removeprefix(ROOT) for code in self.calls))

    @property
    def moves(self) -> int:
        """How often a call is in a different file than the previous call."""
        files = [code.co_filename for code in self.calls]
        return sum(before != after for before, after in pairwise(files))

    def lines(self) -> Iterator[str]:
        """Yield a line for each call."""
        for code in self.calls:
            yield f"    {code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno} {code.co_qualname}"


class Walks:
    """The walks, on one server. Each method prepares the operation, then traces it `ROUNDS` times."""

    def __init__(self, url: str, js: jsclient.JetStream) -> None:
        self._js = js
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.sendall(b'CONNECT {"verbose":false}\r\n')
        self.traces: list[Trace] = []
        self._expected_seq = 0  # number of messages that the stream of the walk must contain

    def close(self) -> None:
        """Close the plain socket."""
        self._socket.close()

    def store(self, subject: str, count: int = 1) -> None:
        """Publish over the plain socket."""
        self._socket.sendall(f"PUB {subject} 5\r\nhello\r\n".encode() * count)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        trace = Trace()
        self.traces.append(trace)
        sys.setprofile(trace.on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            trace.end()

    @asynccontextmanager
    async def _stream(self, name: str) -> AsyncIterator[None]:
        self._expected_seq = 0
        await self._js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")
        try:
            yield
        finally:
            await self._js.delete_stream(name)

    async def _stored(self, stream: str, more: int) -> None:
        """Wait until ``more`` messages after the messages of the last call are stored."""
        self._expected_seq += more
        handle = await self._js.stream(stream)
        async with asyncio.timeout(5):
            while (await handle.info()).state.last_seq < self._expected_seq:  # noqa: ASYNC110  the server cannot notify
                await asyncio.sleep(0.01)

    async def push(self) -> None:
        """Trace one pushed message: from the socket to the callback, and its ack on the wire."""
        handled = asyncio.Event()

        async def handle(_: jsclient.Message) -> None:
            handled.set()

        async with (
            self._stream("PUSH"),
            await self._js.subscribe("PUSH.>", callback=handle) as sub,
        ):
            for _ in range(ROUNDS + 1):
                handled.clear()
                with self._traced():
                    self.store("PUSH.a")
                    await handled.wait()
                    await asyncio.sleep(0.005)  # wait until the ack is written
            assert sub.pending == 0

    async def fetch(self, count: int) -> None:
        """Trace one fetch of stored messages, without the acks."""
        async with (
            self._stream("FETCH"),
            await self._js.pull_subscribe("FETCH.>") as sub,
        ):
            for _ in range(ROUNDS + 1):
                self.store("FETCH.a", count)
                await self._stored("FETCH", count)
                with self._traced():
                    batch = await sub.fetch(count)
                assert len(batch) == count
                await jsclient.ack_all(batch)

    async def publish(self) -> None:
        """Trace `JetStream.publish`."""
        async with self._stream("PUB"):
            for _ in range(ROUNDS + 1):
                with self._traced():
                    await self._js.publish("PUB.a", b"hello")

    async def publisher(self) -> None:
        """Trace `Publisher.publish` and its acknowledgement."""
        async with self._stream("PUBS"), self._js.publisher() as publisher:
            for _ in range(ROUNDS + 1):
                with self._traced():
                    await (await publisher.publish("PUBS.a", b"hello"))

    @asynccontextmanager
    async def _topic(self, subject: str) -> AsyncIterator[jsclient.Topic]:
        topic = self._js.topic(subject)
        log = await topic.create()
        self.store(subject, 2)
        try:
            yield topic
        finally:
            await self._js.delete_stream(log.stream)

    async def since(self) -> None:
        """Trace `Topic.since`: open a reader and read the first record."""
        async with self._topic("SINCE.a") as topic:
            async with topic.each("first") as first:
                await first.next(timeout=5)
                position = first.position
            for _ in range(ROUNDS + 1):
                with self._traced():
                    reader = await topic.since(position)
                    await reader.next(timeout=5)
                await reader.close()

    async def record(self) -> None:
        """Trace a further pushed record of a topic reader that waits for it."""
        async with self._topic("RECORD.a") as topic, topic.each("first") as reader:
            for _ in range(2):
                await reader.next(timeout=5)
            for _ in range(ROUNDS + 1):
                waiting = asyncio.create_task(reader.next(timeout=5))
                await asyncio.sleep(0.2)  # wait until the reader waits
                with self._traced():
                    self.store("RECORD.a")
                    await waiting


WALKS: dict[str, tuple[str, Callable[[Walks], Any]]] = {
    "push": ("push message → callback → ack", Walks.push),
    "fetch-1": ("fetch(1)", lambda walks: walks.fetch(1)),
    "fetch-500": ("fetch(500)", lambda walks: walks.fetch(500)),
    "publish": ("js.publish", Walks.publish),
    "publisher": ("publisher.publish", Walks.publisher),
    "since": ("topic.since, first record", Walks.since),
    "record": ("one more pushed record", Walks.record),
}


async def walk(names: Sequence[str], *, calls: bool) -> None:
    """Run the walks and print their figures."""
    async with jsclient.server.NatsServer() as server, jsclient.connect(server.url) as js:
        walks = Walks(server.url, js)
        print(f"{'walk':32} {'calls':>6} {'files':>6} {'moves':>6}")
        for name in names:
            title, run = WALKS[name]
            walks.traces.clear()
            await run(walks)
            best = min(walks.traces[1:], key=lambda trace: len(trace.calls))  # the first trace warms caches
            print(f"{title:32} {len(best.calls):6} {len(best.files):6} {best.moves:6}")
            if calls:
                print("\n".join(best.lines()))
        walks.close()


def main() -> None:
    """Run the program."""
    command = argparse.ArgumentParser(
        prog="python -m benchmarks.walks", description="Calls of one operation."
    )
    command.add_argument("walks", nargs="*", metavar="WALK", help=f"{', '.join(WALKS)} (all)")
    command.add_argument("--calls", action="store_true", help="print the calls in their order")
    options = command.parse_args()
    if unknown := set(options.walks) - set(WALKS):
        command.error(f"no such walk: {', '.join(sorted(unknown))}")
    asyncio.run(walk(options.walks or list(WALKS), calls=options.calls))


if __name__ == "__main__":
    main()
