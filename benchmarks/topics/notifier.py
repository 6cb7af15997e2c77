"""A notifier: the traffic to a client that reads from time to time, and the delay of a read that waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import nats

import jsclient
from benchmarks.figures import quantile
from benchmarks.job import Job, WorkSkippedError
from benchmarks.topics.watched import Watched, watched

__all__ = ["notifier", "notifier_turns"]

_ASKS = 42
_WAITS = 300
_WARM = 50  # number of waiting reads that warm up
_PAUSE = 0.005  # seconds within which a read has started to wait


async def notifier(job: Job) -> dict[str, float]:
    """Send ``job.count`` updates with 42 reads from another connection, then measure reads that wait for an update."""
    async with watched() as server:
        return await _CLIENTS[job.client](server, job)


async def _jsclient(server: Watched, job: Job) -> dict[str, float]:
    async with jsclient.connect(server.url) as js, jsclient.connect(server.url) as other:
        connection = await server.newest()
        updater, own = await js.notifier_kit("state.x", initial=0, storage="memory")
        asker = other.make_notifier(await own.get_sharable_notifier_internals())
        last = await asker.get_update_since()
        sent, consumers = await server.sent_to(connection), 0
        for ask in range(_ASKS):
            for number in range(ask * job.count // _ASKS, (ask + 1) * job.count // _ASKS):
                await updater.update_state(number + 1)
            last = await asker.get_update_since(last.update_count)
            consumers = max(consumers, await server.consumers())
        received = await server.sent_to(connection) - sent
        if last.value != job.count:
            raise WorkSkippedError(f"the last ask gave {last.value} after {job.count} updates")

        async def wait() -> None:
            nonlocal last
            last = await asker.get_update_since(last.update_count)

        late = await _latencies(updater.update_state, wait, job)
    return {"messages": received, "per_ask": received / _ASKS, "consumers": consumers, **late}


async def _natspy(server: Watched, job: Job) -> dict[str, float]:
    """Measure nats-py, whose watcher receives all updates. A read takes the updates that have arrived."""
    nc, other = await nats.connect(server.url), await nats.connect(server.url)
    connection = await server.newest()
    bucket = await nc.jetstream().create_key_value(bucket="state", storage=nats.js.api.StorageType.MEMORY)
    await bucket.put("x", b"0")
    watcher = await (await other.jetstream().key_value("state")).watch("x")
    while await watcher.updates(timeout=5.0) is not None:
        pass
    sent, value = await server.sent_to(connection), 0
    for ask in range(_ASKS):
        for number in range(ask * job.count // _ASKS, (ask + 1) * job.count // _ASKS):
            await bucket.put("x", b"%d" % (number + 1))
        while value < (ask + 1) * job.count // _ASKS:
            value = int((await watcher.updates(timeout=5.0)).value)
    received, consumers = await server.sent_to(connection) - sent, await server.consumers()

    async def wait() -> None:
        await watcher.updates(timeout=5.0)

    late = await _latencies(lambda number: bucket.put("x", b"%d" % number), wait, job)
    await nc.close()
    await other.close()
    return {"messages": received, "per_ask": received / _ASKS, "consumers": consumers, **late}


async def notifier_turns(job: Job) -> dict[str, float]:
    """Send ``job.count`` updates with each client, in turns in one process, and measure the delay of waiting reads."""
    async with (
        watched() as server,
        jsclient.connect(server.url) as js,
        jsclient.connect(server.url) as other,
        await nats.connect(server.url) as nc,
        await nats.connect(server.url) as other_nc,
    ):
        updater, own = await js.notifier_kit("state.x", initial=0, storage="memory")
        asker = other.make_notifier(await own.get_sharable_notifier_internals())
        bucket = await nc.jetstream().create_key_value(bucket="state", storage=nats.js.api.StorageType.MEMORY)
        watcher = await (await other_nc.jetstream().key_value("state")).watch("x")
        await watcher.updates(timeout=5.0)
        last = await asker.get_update_since()

        async def wait() -> None:
            nonlocal last
            last = await asker.get_update_since(last.update_count)

        async def wait_natspy() -> None:
            while await watcher.updates(timeout=5.0) is None:
                pass

        turns = [
            ("", updater.update_state, wait),
            ("natspy_", lambda number: bucket.put("x", b"%d" % number), wait_natspy),
        ]
        late: dict[str, list[int]] = {name: [] for name, _, _ in turns}
        cpu: dict[str, list[int]] = {name: [] for name, _, _ in turns}
        for number in range(_WARM + job.count):
            for name, update, waits in turns:
                began = time.process_time_ns()
                late[name].append(await _latency(update, waits, number + 1))
                cpu[name].append(time.process_time_ns() - began)
            turns.reverse()  # reverse the order, so that no client is always first
        return _quantiles(late) | {
            f"{name}cpu_us": quantile(sorted(used[_WARM:]), 0.5) / 1000 for name, used in cpu.items()
        }


def _quantiles(late: dict[str, list[int]]) -> dict[str, float]:
    figures = {}
    for name, measured in late.items():
        times = sorted(measured[_WARM:])
        figures |= {f"{name}p{q}_us": quantile(times, q / 100) / 1000 for q in (50, 99)}
    for q in (50, 99):
        figures[f"p{q}_ratio"] = figures[f"p{q}_us"] / figures[f"natspy_p{q}_us"]
    return figures


async def _latency(
    update: Callable[[int], Awaitable[object]], wait: Callable[[], Awaitable[None]], number: int
) -> int:
    """Return the nanoseconds from an update until a waiting read returns it."""
    waiting = asyncio.create_task(_timed(wait))
    await asyncio.sleep(_PAUSE)
    began = time.perf_counter_ns()
    await update(number)
    return await waiting - began


async def _latencies(
    update: Callable[[int], Awaitable[object]], wait: Callable[[], Awaitable[None]], job: Job
) -> dict[str, float]:
    """Measure from an update until a waiting read returns it. Both are in this process."""
    count = max(_WARM + 10, min(_WAITS, job.count // 10))
    late = [await _latency(update, wait, job.count + number + 1) for number in range(count)]
    late = sorted(late[_WARM:])
    return {"p50_us": quantile(late, 0.5) / 1000, "p99_us": quantile(late, 0.99) / 1000}


async def _timed(wait: Callable[[], Awaitable[None]]) -> int:
    await wait()
    return time.perf_counter_ns()


_CLIENTS = {"jsclient": _jsclient, "nats-py": _natspy}
