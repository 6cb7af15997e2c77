"""A stream that is published to in bursts, readers that are quick, slow, idle and failing, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import jsclient
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.servers.nats_server import OwnServer
from jsclient.events import ConsumerResumed, ConsumerStalled, Event

STREAM, SUBJECTS = "S", "s.>"
BURSTS = (1, 5, 50, 300)  # messages
PAUSES = (0.01, 0.5, 2.0, 10.0, 45.0)  # seconds; the longest is beyond the time until a reader is looked at
STALL_AFTER = 5.0  # seconds, in place of 25: more looks in a short run

Reading = Callable[[Any], Awaitable[None]]


class Load:
    """A connection with its readers, what each has read, and the events that were told.

    Attributes:
        read: Messages by reader.
        stalls: Reports of a stand-still, with the seconds since the start.
        told: Events by class.
        published: Messages that are stored.
        is_over: Whether all are published: the readers catch up.
    """

    def __init__(self, options: Options) -> None:
        self._chance = Random(options.seed)
        self._began = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[Any] = []
        self.read: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.stalls: list[str] = []
        self.published = 0
        self.is_over = False

    def on_event(self, event: Event) -> None:
        self.told[type(event).__name__] += 1
        if isinstance(event, ConsumerStalled | ConsumerResumed):
            self.stalls.append(f"{time.monotonic() - self._began:.0f} s: {event}")

    async def publish(self, js: Any, until: float) -> None:
        """In bursts, with pauses between them."""
        while time.monotonic() < until:
            for _ in range(self._chance.choice(BURSTS)):
                await js.publish(f"s.{self._chance.choice('abcd')}", b"%d" % self.published)
                self.published += 1
            remaining = until - time.monotonic()
            await asyncio.sleep(max(0.0, min(self._chance.choice(PAUSES), remaining)))
        self.is_over = True

    async def start(self, js: Any) -> None:
        """Start a reader of each kind."""
        stream = await js.stream(STREAM)
        await self._start_workers(stream)
        for name, pause in (("messages", 12.0), ("messages quick", 0.0)):
            consumer = await stream.create_consumer(durable_name=name.replace(" ", "-"))
            self._spawn(name, self._loop(consumer.messages(), name, pause, acks=True))
        consumer = await stream.create_consumer(durable_name="fetch")
        self._spawn("fetch", self._fetch(consumer))
        push = await js.subscribe(SUBJECTS, durable="push", delete_on_close=False)
        self._spawn("push", self._loop(push, "push", 8.0, acks=True))
        for number in (1, 2):
            member = await js.subscribe(SUBJECTS, queue="queue", delete_on_close=False)
            self._spawn(f"queue {number}", self._loop(member, "queue", 0.0, acks=True))
        ordered = await js.subscribe(SUBJECTS, ordered=True)
        self._spawn("ordered push", self._loop(ordered, "ordered push", 10.0))
        pulled = await js.ordered_consumer(STREAM)
        self._spawn("ordered pull", self._loop(pulled.messages(), "ordered pull", 10.0))
        topic = js.topic(SUBJECTS, stream=STREAM)
        self._spawn("each", self._loop(topic.each(), "each", 0.0))

    async def _start_workers(self, stream: Any) -> None:
        async def quick(_: Any) -> None:
            self.read["worker"] += 1

        async def slow(_: Any) -> None:
            self.read["slow worker"] += 1
            await asyncio.sleep(
                self._chance.choice((0.0, 0.01, 0.05)) if self._chance.random() > 0.001 else 8.0
            )

        async def fails(_: Any) -> None:
            if self._chance.random() < 0.02:
                raise ValueError("now and then")
            self.read["failing worker"] += 1

        for name, handler, options in (
            ("worker", quick, {}),
            ("slow", slow, {"concurrency": 20}),
            ("fails", fails, {"concurrency": 5, "key": lambda message: message.subject}),
        ):
            consumer = await stream.create_consumer(durable_name=name)
            self._workers.append(consumer.run(handler, **options))

    def _spawn(self, name: str, reading: Any) -> None:
        self._tasks.append(asyncio.create_task(reading, name=name))

    async def _loop(
        self, messages: AsyncIterator[Any], name: str, pause: float, *, acks: bool = False
    ) -> None:
        """Read, and now and then do something else for ``pause`` seconds."""
        async for message in messages:
            self.read[name] += 1
            if acks:
                await message.ack()
            if pause and not self.is_over and self._chance.random() < 0.01:
                await asyncio.sleep(pause)

    async def _fetch(self, consumer: Any) -> None:
        while True:
            for message in await consumer.fetch(100, expires=20):
                self.read["fetch"] += 1
                await message.ack()
            if self._chance.random() < 0.1:
                await asyncio.sleep(15)

    async def finish(self) -> list[str]:
        """Stop all readers. Returns the errors of the readers that had ended before."""
        errors = [f"{task.get_name()}: {task.exception()}" for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.stop(grace=1.0)
        await asyncio.gather(*self._tasks, *self._workers, return_exceptions=True)
        return errors


async def run(options: Options) -> list[Outcome]:
    own = OwnServer()
    await own.start()
    load = Load(options)
    try:
        connecting = jsclient.connect(own.url, on_event=load.on_event, stall_after=STALL_AFTER)
        async with connecting as js, jsclient.connect(own.url) as publisher:
            await js.create_stream(STREAM, subjects=[SUBJECTS])
            await load.start(js)
            await load.publish(publisher, time.monotonic() + options.seconds)
            await caught_up(load)
            errors = await load.finish()
    finally:
        await own.stop()
    return [judged(load, errors, options)]


async def caught_up(load: Load, timeout: float = 60.0) -> None:
    """Wait until every reader has read all, or the time is over."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and any(count < load.published for count in load.read.values()):
        await asyncio.sleep(0.2)


def judged(load: Load, errors: list[str], options: Options) -> Outcome:
    outcome = Outcome("healthy", "every reader", options.seed)
    outcome.ran = {"published": load.published, "read": dict(load.read), "events": dict(load.told)}
    outcome.check("messages were published", load.published, load.published)
    outcome.none_of("no stand-still is told", load.stalls)
    outcome.none_of("no reader ends", errors)
    behind = {name: count for name, count in load.read.items() if count < load.published}
    outcome.none_of("every reader reads all", behind.items())
    return outcome
