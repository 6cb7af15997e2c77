"""Epochs: the cost of the filter per message, and of the whole path from the server to a subscriber's events."""

from __future__ import annotations

import gc
import time
from typing import Any

import jsclient
from benchmarks.job import Job, WorkSkippedError
from benchmarks.topics.watched import watched
from benchmarks.usage import cpu
from jsclient.epochs import Data, Int, Product
from jsclient.protocol.epochs.records import DataMessage, InitialFrontierSnapshot
from jsclient.protocol.epochs.trackers import EpochSubscriber

__all__ = ["filtering", "subscribing"]

_EPOCHS = 10
_PER_MESSAGE = 10  # items in a message

# By order: the latent times, a dropped time and a passed time.
_CASES: dict[str, tuple[Any, Any, Any, Any]] = {
    "Int": (
        Int(),
        [1000],
        [500 + number for number in range(_EPOCHS)],
        [2000 + number for number in range(_EPOCHS)],
    ),
    "Product": (
        Product(Int(), Int()),
        [(1000, 250), (750, 500), (500, 750), (250, 1000)],
        [(200, 500 + number) for number in range(_EPOCHS)],
        [(2000, number) for number in range(_EPOCHS)],
    ),
}


async def filtering(job: Job) -> dict[str, float]:
    """Call `EpochSubscriber.receive_message` without a server, with a message that it drops and one that it passes."""
    order, upper, dropped, passed = _CASES[job.client]
    figures = {}
    for name, times in (("dropped_us", dropped), ("passed_us", passed)):
        core: EpochSubscriber[Any] = EpochSubscriber(order, frozenset({0}))
        core.receive_message(0, InitialFrontierSnapshot((order.bottom,), tuple(upper)), 1)
        messages = [DataMessage(times[number % _EPOCHS], b"x" * job.size) for number in range(job.count)]
        receive, events, seq = core.receive_message, 0, 1
        gc.collect()
        began = time.process_time()
        for message in messages:
            seq += 1
            events += len(receive(0, message, seq))
        figures[name] = (time.process_time() - began) / job.count * 1e6
        if events != (job.count if times is passed else 0):
            raise WorkSkippedError(f"{events} of {job.count} messages passed")
    return figures


async def subscribing(job: Job) -> dict[str, float]:
    """Resume a subscriber, which reads ``job.count`` messages of 10 items each, with 1000 messages in an epoch."""
    async with watched() as server, jsclient.connect(server.url) as js:
        topic = js.epochs("bench")
        await topic.create(storage="memory")
        items = ["x" * (job.size // _PER_MESSAGE)] * _PER_MESSAGE
        async with await topic.publisher() as publisher:
            # The position is taken before any data exists, so that the subscriber below reads all of it.
            async with await topic.subscribe() as sub:
                position = sub.position
            for number in range(job.count):
                await publisher.send(number // 1000, items)
                if number % 1000 == 999:
                    await publisher.advance(number // 1000 + 1)
            await publisher.advance(job.count)
            async with (
                jsclient.connect(server.url) as other,
                await other.epochs("bench").subscribe(start=position) as sub,
            ):
                gc.collect()
                used, began, seen = cpu(), time.perf_counter(), 0
                async for event in sub:
                    if isinstance(event, Data):
                        seen += 1
                        if seen == job.count:
                            break
                seconds, used = time.perf_counter() - began, cpu() - used
    return {"rate": seen / seconds, "cpu_us": used / seen * 1e6}
