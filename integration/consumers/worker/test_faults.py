"""Workers that die, lose their connection or their server, or cannot store their dead letters. No message is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import OwnServer, ServerUnderTest
from jsclient import ConsumerConfig, DeadLetterFailed, Reject
from jsclient.protocol.wire.headers import parse_headers

ROOT = Path(__file__).resolve().parents[3]
COUNT = 2000
WAIT = 30.0  # seconds for what happens in a few

# Says what it has handled before it is acked. Its arguments: url, stream, handlers at a time, prefetch, and a stream
# for counters, by which it limits what was begun: without it, deliveries are limited.
PROCESS = """
import asyncio, os, signal, sys
import jsclient

url, stream, concurrency, prefetch, counters = sys.argv[1:]

async def main():
    async with jsclient.connect(url, on_event=lambda event: None) as js:
        async def handler(message):
            number = int(message.data.split()[0])
            if number == 777:
                os.kill(os.getpid(), signal.SIGKILL)
            if number % 20 == 0:
                raise ValueError(f"poison {number}")
            await asyncio.sleep(0.002)
            await js._connection.publish(f"handled.{stream}.{os.getpid()}", message.data)

        async def counted(message):
            meta = message.metadata
            if message.attempt > 1 and await begun.add(f"begun.{stream}.{meta.stream_seq}") > 2:
                raise jsclient.Reject("begun 3 times without success")
            await handler(message)

        begun = await js.counter(counters) if counters else None
        sub = await js.pull_subscribe(stream=stream, consumer="crew")
        await sub.run(
            counted if begun else handler,
            concurrency=int(concurrency),
            prefetch=int(prefetch),
            max_deliver=None if begun else 3,
            retry_delay=0.05,
            dead_letter="dead.>",
            stop_signals=[signal.SIGTERM],
            grace=5.0,
        )

asyncio.run(main())
"""


class WorkerProcesses:
    """Worker processes, and what they said they handled."""

    def __init__(self, url: str, stream: str, handled: list[Any]) -> None:
        self._url, self._stream, self._said = url, stream, handled
        self.processes: list[asyncio.subprocess.Process] = []

    async def hire(
        self, *, concurrency: int = 8, prefetch: int = 16, counters: str = ""
    ) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", "-c", PROCESS, self._url, self._stream),
            *(str(concurrency), str(prefetch), counters),
            env={**os.environ, "PYTHONPATH": path},
        )
        self.processes.append(process)
        return process

    @property
    def handled(self) -> Counter[int]:
        return Counter(number_of(message.data) for message in self._said)

    def handled_by(self, process: asyncio.subprocess.Process) -> int:
        return sum(message.subject.endswith(f".{process.pid}") for message in self._said)

    async def dismiss(self) -> list[int | None]:
        """Ask all to stop. How they ended."""
        for process in self.processes:
            if process.returncode is None:
                process.terminate()
        return [await asyncio.wait_for(process.wait(), 20) for process in self.processes]


@pytest.fixture
async def workers(
    server: ServerUnderTest, oracle: Oracle, stream: OwnStream
) -> AsyncIterator[WorkerProcesses]:
    async with oracle.listen(f"handled.{stream.name}.*") as handled:
        workers = WorkerProcesses(server.url, stream.name, handled)
        yield workers
        for process in workers.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def dead(
    oracle: Oracle, stream: OwnStream, make_stream: Callable[..., Awaitable[OwnStream]]
) -> OwnStream:
    """A stream for the dead letters of `stream`."""
    return await make_stream(subjects=[f"dead.{stream.prefix}.>"])


def poison(count: int) -> set[int]:
    return {number for number in range(1, count + 1) if number % 20 == 0}


async def letters(dead: OwnStream) -> dict[int, str]:
    """The error of each dead letter. Each is stored once."""
    messages = await dead.messages()
    errors = {number_of(one.payload): parse_headers(one.headers)[1]["Dead-Letter-Error"] for one in messages}
    assert len(errors) == len(messages)
    return errors


async def all_pull(stream: OwnStream, workers: WorkerProcesses) -> bool:
    """Whether each worker has a pull request at the server. An idle worker has one."""
    return (await stream.consumer_info("crew"))["num_waiting"] == len(workers.processes)


async def all_settled(stream: OwnStream) -> bool:
    info = await stream.consumer_info("crew")
    return not info["num_pending"] and not info["num_ack_pending"]


@pytest.mark.limit(90)
async def test_worker_killed_loses_nothing(
    stream: OwnStream, dead: OwnStream, workers: WorkerProcesses
) -> None:
    """SIGKILL in the middle of it. The other worker continues and receives the messages of the first worker."""
    # Each worker keeps its messages alive, also if it is given no time for seconds.
    await stream.create_consumer("crew", ack_wait=6 * 10**9)
    one, two = await workers.hire(), await workers.hire()
    # The first worker could handle all messages while the second one still starts.
    await eventually(lambda: all_pull(stream, workers), WAIT, "both have sent a pull request")
    await stream.publish(776)
    await stream.publish(COUNT - 776, first=778)  # without the message that kills
    await eventually(
        lambda: workers.handled_by(one) > 100 and workers.handled_by(two) > 100, WAIT, "both work"
    )
    one.kill()
    await one.wait()
    await eventually(lambda: all_settled(stream), WAIT, "all is settled")
    assert await workers.dismiss() == [-signal.SIGKILL, 0]

    bad = poison(COUNT + 1)
    assert set(workers.handled) == set(range(1, COUNT + 2)) - bad - {777}
    assert set(await letters(dead)) == bad
    # Twice was handled what the killed one had handled and not acked, or was about to.
    again = [number for number, times in workers.handled.items() if times > 1]
    assert len(again) <= 8
    assert max(workers.handled.values()) <= 2


@pytest.mark.full
@pytest.mark.limit(90)
async def test_killer_message_dead_lettered(
    stream: OwnStream, dead: OwnStream, workers: WorkerProcesses
) -> None:
    """Three workers die of it. Their other messages count deliveries too, and are handled or kept, never lost."""
    await stream.create_consumer("crew", ack_wait=300_000_000)
    await stream.publish(40, first=761)
    assert await until_settled(stream, workers, concurrency=1, prefetch=1) == [-signal.SIGKILL] * 3 + [0]
    dead_letters = await letters(dead)
    assert dead_letters[777].endswith(".DeliveriesExhaustedError")
    assert {780, 800} <= set(dead_letters)
    assert set(workers.handled) | set(dead_letters) == set(range(761, 801))
    assert len(dead_letters) <= 2 + 1 + 2  # the messages that waited with it


async def until_settled(stream: OwnStream, workers: WorkerProcesses, **options: Any) -> list[int | None]:
    """Run one worker after the other until all is settled. How they ended."""
    while True:
        process = await workers.hire(**options)
        over = asyncio.ensure_future(process.wait())
        settled = asyncio.ensure_future(eventually(lambda: all_settled(stream), WAIT, "all is settled"))
        await asyncio.wait({over, settled}, return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            over.cancel()
            await settled
            return await workers.dismiss()
        settled.cancel()


@pytest.mark.full
@pytest.mark.server(">=2.12")
@pytest.mark.limit(90)
async def test_killer_message_dies_alone(
    stream: OwnStream,
    dead: OwnStream,
    workers: WorkerProcesses,
    make_stream: Callable[..., Awaitable[OwnStream]],
) -> None:
    """The guide's limit applies to begun messages. Waiting messages are handled, however often they were delivered."""
    counters = await make_stream(subjects=[f"begun.{stream.name}.>"], allow_msg_counter=True)
    await stream.create_consumer("crew", ack_wait=300_000_000)
    await stream.publish(40, first=761)
    options = {"concurrency": 1, "prefetch": 64, "counters": counters.name}
    assert await until_settled(stream, workers, **options) == [-signal.SIGKILL] * 3 + [0]
    assert await letters(dead) == dict.fromkeys((777, 780, 800), "Reject")
    assert set(workers.handled) == set(range(761, 801)) - {777, 780, 800}


class Handler:
    """Poison raises. The rest takes a moment."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()

    async def __call__(self, message: Any) -> None:
        number = number_of(message.data)
        if number % 20 == 0:
            raise (Reject if number % 40 else ValueError)(f"poison {number}")
        await asyncio.sleep(0.001)
        self.handled[number] += 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_broken_connection_loses_none(
    kind: str, stream: OwnStream, dead: OwnStream, proxy: Any, connect: Any
) -> None:
    tap = await proxy()
    js = await connect(tap, reconnect_time_wait=0.05)
    config = ConsumerConfig(ack_wait=1.0, max_ack_pending=200)
    subscribe = js.subscribe if kind == "push" else js.pull_subscribe
    sub = await subscribe(stream.all, durable="crew", config=config)
    handler = Handler()
    worker = sub.run(
        handler,
        concurrency=8,
        key=lambda m: m.data[-1],
        max_deliver=3,
        retry_delay=0.01,
        dead_letter="dead.>",
    )
    await stream.publish(COUNT)
    for cut in range(1, 6):
        await eventually(lambda cut=cut: len(handler.handled) > cut * COUNT // 8, WAIT, "it goes on")
        tap.cut()
        await tap.wait_links(cut + 1)
    await eventually(lambda: all_settled(stream), WAIT, "all is settled")
    assert set(handler.handled) == set(range(1, COUNT + 1)) - poison(COUNT)
    assert set(await letters(dead)) == poison(COUNT)
    worker.stop()
    counts = await worker
    assert (counts.running, counts.waiting) == (0, 0)


async def test_server_restarts_waited_for(
    own_server: Callable[..., Awaitable[OwnServer]],
    oracle_for: Callable[..., Awaitable[Oracle]],
    connect: Any,
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    js = await connect(server, reconnect_time_wait=0.05)
    await js.create_stream("S", subjects=["s"])
    await js.create_stream("DEAD", subjects=["dead.>"])
    await oracle.publish_many("s", COUNT)
    sub = await js.pull_subscribe("s", durable="crew", config=ConsumerConfig(ack_wait=1.0))
    handler = Handler()
    worker = sub.run(handler, concurrency=8, max_deliver=5, retry_delay=0.01, dead_letter="dead.>")
    await eventually(lambda: len(handler.handled) > COUNT // 4, WAIT, "it works")
    await server.restart()  # in good order: killed, 2.10 forgets what it confirmed in its last moment

    async def done() -> bool:
        info = await oracle.consumer_info("S", "crew")
        return not info["num_pending"] and not info["num_ack_pending"]

    await eventually(done, WAIT, "all is settled")
    worker.stop()
    await worker
    assert set(handler.handled) == set(range(1, COUNT + 1)) - poison(COUNT)
    dead = [number_of(one.payload) for one in await oracle.messages("DEAD")]
    assert sorted(dead) == sorted(poison(COUNT))


async def test_unstorable_holds_nobody_up(
    stream: OwnStream,
    oracle: Oracle,
    make_stream: Callable[..., Awaitable[OwnStream]],
    js: Any,
    events: list[Any],
) -> None:
    """The stream for dead letters is full. Poison is kept until it has room, the rest is handled."""
    dead = await make_stream(subjects=[f"dead.{stream.prefix}.>"], max_msgs=3, discard="new")
    await stream.publish(200)
    sub = await js.pull_subscribe(
        stream.all, durable="crew", config=ConsumerConfig(ack_wait=1.0, max_deliver=2)
    )
    handler = Handler()
    worker = sub.run(handler, concurrency=4, prefetch=40, retry_delay=0.01, dead_letter="dead.>")
    await eventually(lambda: len(handler.handled) == 190, WAIT, "the good ones are handled")
    await eventually(lambda: [event for event in events if isinstance(event, DeadLetterFailed)])
    assert worker.counts.dead_lettered == 3
    await oracle.update_stream(dead.name, max_msgs=-1)
    await eventually(lambda: all_settled(stream), WAIT, "all is settled")
    assert set(await letters(dead)) == poison(200)
    worker.stop()
    await worker
