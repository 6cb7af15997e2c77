"""Every kind of reader of one stream: each keeps the sequences it was given, in order, and the errors it met."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from integration.campaign.report import Outcome
from integration.kit.clients.traffic import Tally
from jsclient import ConsumerConfig
from jsclient.errors import JetStreamError

BEAT = 0.5
ACKED = ConsumerConfig(ack_wait=5.0)
PUSHED = ConsumerConfig(idle_heartbeat=BEAT, flow_control=True, ack_wait=5.0, max_ack_pending=1000)


class Reading:
    """One reader."""

    def __init__(self, kind: str, js: Any, stream: str, subjects: str, link: str = "") -> None:
        self.name = f"{kind} over {link}" if link else kind
        self.kind, self.js, self.stream, self.subjects = kind, js, stream, subjects
        self.tally = Tally(kind)
        self.position: str | None = None
        self.opened = 0
        self.highest = 0
        self.is_opening = False  # or closed, within a call that has its own deadline
        self.took_at = time.monotonic()

    def take(self, message: Any) -> None:
        self.tally.take(message)
        self._note(message.metadata.stream_seq)

    def take_record(self, seq: int) -> None:
        self.tally.seqs.append(seq)
        self._note(seq)

    def _note(self, seq: int) -> None:
        self.highest = max(self.highest, seq)
        self.took_at = time.monotonic()

    async def ack(self, message: Any) -> None:
        try:
            await message.ack()
        except JetStreamError as error:
            self.tally.errors.append(error)

    async def run(self) -> None:
        """Read for ever. A reader that ends with an error is opened again, if it continues where it was."""
        while True:
            self.opened += 1
            try:
                await KINDS[self.kind](self)
            except JetStreamError as error:
                self.tally.errors.append(error)
            await asyncio.sleep(0.1)


async def push(one: Reading) -> None:
    sub = await one.js.subscribe(
        one.subjects, stream=one.stream, durable="push", config=PUSHED, delete_on_close=False
    )
    async with sub:
        async for message in sub:
            one.take(message)
            await one.ack(message)


async def queue(one: Reading) -> None:
    async def handle(message: Any) -> None:
        one.take(message)
        await one.ack(message)

    options = {
        "stream": one.stream,
        "queue": "q",
        "config": ACKED,
        "delete_on_close": False,
        "callback": handle,
    }
    async with (
        await one.js.subscribe(one.subjects, **options),
        await one.js.subscribe(one.subjects, **options),
    ):
        await asyncio.Event().wait()


async def fetch(one: Reading) -> None:
    options = {"stream": one.stream, "durable": "fetch", "config": ACKED, "delete_on_close": False}
    async with await one.js.pull_subscribe(one.subjects, **options) as psub:
        while True:
            try:
                for message in await psub.fetch(50, expires=2.0):
                    one.take(message)
                    await one.ack(message)
            except JetStreamError as error:
                one.tally.errors.append(error)
                await asyncio.sleep(0.05)


async def messages(one: Reading) -> None:
    options = {"stream": one.stream, "durable": "messages", "config": ACKED, "delete_on_close": False}
    async with (
        await one.js.pull_subscribe(one.subjects, **options) as psub,
        psub.messages(max_messages=100, expires=10.0, idle_heartbeat=BEAT) as reader,
    ):
        async for message in reader:
            one.take(message)
            await one.ack(message)


async def work(one: Reading) -> None:
    async def handle(message: Any) -> None:
        one.take(message)

    options = {"stream": one.stream, "durable": "work", "config": ACKED, "delete_on_close": False}
    async with await one.js.pull_subscribe(one.subjects, **options) as psub, psub.run(handle, concurrency=4):
        await asyncio.Event().wait()


async def ordered_push(one: Reading) -> None:
    config = ConsumerConfig(idle_heartbeat=BEAT)
    async with await one.js.subscribe(one.subjects, stream=one.stream, ordered=True, config=config) as sub:
        async for message in sub:
            one.take(message)


async def ordered_pull(one: Reading) -> None:
    async with (
        one.js.ordered_consumer(one.stream) as consumer,
        consumer.messages(max_messages=100, expires=10.0, idle_heartbeat=BEAT) as reader,
    ):
        async for message in reader:
            one.take(message)


async def ordered_fetch(one: Reading) -> None:
    async with one.js.ordered_consumer(one.stream) as consumer:
        while True:
            try:
                for message in await consumer.fetch(50, expires=2.0, idle_heartbeat=BEAT):
                    one.take(message)
            except JetStreamError as error:
                one.tally.errors.append(error)
                await asyncio.sleep(0.05)


def each(push_by: str | None) -> Callable[[Reading], Awaitable[None]]:
    async def read(one: Reading) -> None:
        async with await one.js.topic(one.subjects, stream=one.stream).each(
            push=push_by, quiet=1.0
        ) as reader:
            async for record in reader:
                one.take_record(record.seq)

    return read


async def since(one: Reading) -> None:
    """A process that ends now and then, and continues from the position that it saved."""
    topic = one.js.topic(one.subjects, stream=one.stream)
    opening = topic.since(one.position, quiet=1.0) if one.position else topic.each(quiet=1.0, push="consumer")
    one.is_opening = True
    try:
        async with await opening as reader:
            one.is_opening, one.took_at = False, time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(8.0):
                    async for record in reader:
                        one.take_record(record.seq)
                        one.position = reader.position.to_json()
            one.is_opening = True
    finally:
        one.is_opening = False


async def latest(one: Reading) -> None:
    subject = one.subjects.replace(">", "publish_with_id")
    async with one.js.topic(subject, stream=one.stream).latest(quiet=1.0) as reader:
        async for record in reader:
            one.take_record(record.seq)


KINDS: dict[str, Callable[[Reading], Awaitable[None]]] = {
    "push": push,
    "queue": queue,
    "fetch": fetch,
    "messages": messages,
    "worker": work,
    "ordered push": ordered_push,
    "ordered pull": ordered_pull,
    "ordered fetch": ordered_fetch,
    "each, pushed by a consumer": each("consumer"),
    "each, without pushes": each(None),
    "since": since,
    "latest": latest,
}
ONCE = (
    "ordered push",
    "ordered pull",
    "ordered fetch",
    "each, pushed by a consumer",
    "each, without pushes",
    "since",
)
"""They give each message once, in order."""


def complete(one: Reading, seqs: list[int], newest: int) -> bool:
    """Whether a reader has all it can have."""
    if one.kind == "latest":
        return bool(one.tally.seqs) and one.tally.seqs[-1] == newest
    return set(seqs) <= set(one.tally.seqs)


def judge(one: Reading, seqs: list[int], newest: int, outcome: Outcome) -> None:
    """The guarantees of a reader. A stored sequence that it was not given is a hole."""
    tally = one.tally
    errors = sorted({type(error).__name__ for error in tally.errors})
    outcome.ran = {"taken": len(tally.seqs), "stored": len(seqs), "opened": one.opened, "errors": errors}
    if one.kind == "latest":
        outcome.check("the newest record was read", complete(one, seqs, newest), (tally.seqs[-1:], newest))
        outcome.none_of("goes back: 0", [(a, b) for a, b in pairwise(tally.seqs) if b <= a])
    else:
        outcome.none_of("gaps: 0", sorted(set(seqs) - set(tally.seqs)))
    if one.kind in ONCE:
        outcome.none_of("doubled: 0", tally.repeated)
        outcome.none_of("out of order: 0", tally.disordered)
        outcome.check("it never had to be opened again", one.opened == 1 or one.kind == "since", one.opened)
    elif one.kind != "latest":
        outcome.ran["repeated"] = len(tally.repeated)
    outcome.none_of(
        "every error is documented",
        [error for error in tally.errors if not isinstance(error, JetStreamError)],
    )
