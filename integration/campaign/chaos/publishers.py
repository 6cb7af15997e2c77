"""Every kind of publisher: each publishes 1, 2, 3 … under a separate subject and records the acked numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from integration.campaign.calls import Calls
from integration.campaign.chaos.judge import Stored
from integration.campaign.report import Outcome
from jsclient.errors import JetStreamError

PAUSE = 0.03  # seconds between two publishes
TIMEOUT = 30.0  # of a publish: longer than any outage
LIMIT = TIMEOUT + 2.0


class Publishing:
    """One publisher, and the answers that it received.

    Attributes:
        acked: The payloads of acked messages.
        failed: Those that failed, with the error.
        groups: Of batches: the payloads of each, and whether the commit was acked.
    """

    def __init__(self, kind: str, js: Any, stream: str, subject: str) -> None:
        self.kind, self.js, self.stream, self.subject = kind, js, stream, subject
        self.calls = Calls()
        self.number = 0
        self.acked: list[str] = []
        self.failed: list[str] = []
        self.groups: list[tuple[list[str], bool]] = []
        self.over = asyncio.Event()

    def next(self) -> str:
        self.number += 1
        return str(self.number)

    async def call(self, what: str, call: Awaitable[Any], *, limit: float = LIMIT) -> Any:
        return await self.calls.within(limit, f"{self.kind}: {what}", call)

    def note(self, payload: str, result: object) -> None:
        if isinstance(result, Exception) or result is None:
            self.failed.append(f"{payload}: {type(result).__name__}: {result!s:.100}")
        else:
            self.acked.append(payload)

    async def run(self) -> None:
        while not self.over.is_set():
            await KINDS[self.kind](self)
            await asyncio.sleep(PAUSE)


async def publish(one: Publishing) -> None:
    """Without an id: an answer that is lost leaves it unknown."""
    payload = one.next()
    one.note(
        payload, await one.call("publish", one.js.publish(one.subject, payload.encode(), timeout=TIMEOUT))
    )


async def publish_with_id(one: Publishing) -> None:
    payload = one.next()
    sending = one.js.publish(
        one.subject, payload.encode(), msg_id=f"{one.subject}:{payload}", timeout=TIMEOUT
    )
    one.note(payload, await one.call("publish", sending))


async def publisher(one: Publishing) -> None:
    """Fifty messages in flight, with ids."""

    async def some() -> None:
        async with one.js.publisher(timeout=TIMEOUT) as pub:
            futures = {}
            for _ in range(50):
                payload = one.next()
                futures[payload] = await pub.publish(
                    one.subject, payload.encode(), msg_id=f"{one.subject}:{payload}"
                )
                await asyncio.sleep(PAUSE / 2)
            done = await asyncio.gather(*futures.values(), return_exceptions=True)
            for payload, result in zip(futures, done, strict=True):
                one.note(payload, result)

    await one.call("50 publishes", some(), limit=2 * LIMIT)


async def batch(one: Publishing) -> None:
    """Five messages, all or none."""
    payloads = [one.next() for _ in range(5)]

    async def some() -> Any:
        async with one.js.batch(timeout=TIMEOUT) as pub:
            for payload in payloads:
                await pub.publish(one.subject, payload.encode())
        return pub.ack

    ack = await one.call("a batch", some(), limit=6 * LIMIT)
    acked = ack is not None and not isinstance(ack, Exception)
    one.groups.append((payloads, acked))
    for payload in payloads:
        one.note(payload, ack)


async def ingest(one: Publishing) -> None:
    """A hundred messages at a time, each time under a new subject: nothing follows a lost one."""
    count = len(one.groups)
    payloads = [one.next() for _ in range(100)]

    async def some() -> int:
        pub = one.js.fast_ingest(timeout=TIMEOUT)
        try:
            async with pub:
                for payload in payloads:
                    await pub.publish(f"{one.subject}.{count}", payload.encode())
                    await asyncio.sleep(PAUSE / 10)
        except JetStreamError as error:
            one.failed.append(f"{count}: {error!r:.100}")
        return int(pub.acked)

    acked = await one.call("an ingest", some(), limit=3 * LIMIT)
    known = acked if isinstance(acked, int) else 0
    one.groups.append((payloads, known == len(payloads)))
    one.acked += payloads[:known]


async def chain(one: Publishing) -> None:
    """Records that name their predecessor, twenty in a chain."""

    async def some() -> None:
        topic = one.js.topic(one.subject, stream=one.stream)
        async with topic.publisher(chained=True, max_in_flight=1, timeout=TIMEOUT) as pub:
            for _ in range(20):
                payload = one.next()
                try:
                    future = await pub.publish(payload.encode())
                    await future
                except JetStreamError as error:
                    one.note(payload, error)
                    return
                one.acked.append(payload)
                await asyncio.sleep(PAUSE)

    await one.call("a chain", some(), limit=4 * LIMIT)


KINDS: dict[str, Callable[[Publishing], Awaitable[None]]] = {
    "publish": publish,
    "publish with id": publish_with_id,
    "publisher": publisher,
    "batch": batch,
    "ingest": ingest,
    "chain": chain,
}
SURE = ("publish with id", "publisher")
"""Those whose publishes all end as stored, in outages shorter than their timeout."""


def judge(one: Publishing, stored: Stored, outcome: Outcome, *, replicated: bool) -> None:
    """The guarantees of a publisher."""
    subjects = [one.subject]
    if one.kind == "ingest":
        subjects = [f"{one.subject}.{count}" for count in range(len(one.groups))]
    there = [payload for subject in subjects for payload in stored.payloads[subject]]
    outcome.ran = {
        "published": one.number,
        "acked": len(one.acked),
        "failed": len(one.failed),
        "stored": len(there),
    }
    outcome.none_of("acked and lost: 0", sorted(set(one.acked) - set(there)))
    outcome.none_of("doubled: 0", [d for subject in subjects for d in stored.doubled(subject)])
    if one.kind == "batch":
        parts = [group for group, _ in one.groups if 0 < len(set(group) & set(there)) < len(group)]
        outcome.none_of("batches stored in part: 0", parts)
    if one.kind == "ingest":
        holes = [g for g, _ in one.groups if [p for p in g if p in there] != g[: len(set(g) & set(there))]]
        outcome.none_of("ingests with a gap: 0", holes)
    if one.kind in ("chain", "publish", "ingest"):
        # What ended as unknown may be stored late.
        acked = set(one.acked)
        outcome.none_of(
            "out of order: 0", [o for subject in subjects for o in stored.out_of_order(subject, acked)]
        )
    if one.kind in SURE and replicated:
        outcome.none_of("not stored within 30 s: 0", one.failed)
    outcome.check("something was published during the faults", len(one.acked) > 10, len(one.acked))
    one.calls.judge(outcome)
