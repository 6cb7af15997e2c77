"""A worker with dead letters, a crew that died with messages in hand, a stranger who forges, and the verdict."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jsclient
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.clients.foreign import flushed
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import OwnServer
from jsclient import ConsumerConfig
from jsclient.events import AdvisoryRefused, DeadLettered, DeadLetterFailed, Event
from jsclient.protocol.wire.headers import parse_headers

STREAM, CREW, DEAD = "JOBS", "crew", "DEAD"
ADVISORY = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.{CREW}"
NOT_YET = 1_000_000  # sequences from here on are not stored
STEP = 0.02  # seconds between two bursts of forgeries
WAVES = 4  # in which the dead crew took its messages
LATEST = 5.0  # seconds within which a message is handled while the flood lasts
ASKED_APART = 0.25  # seconds at least between two questions about the consumer


@dataclass(frozen=True)
class Size:
    """How much there is of each.

    Attributes:
        forged: Advisories of the stranger.
        seconds: How long the flood lasts.
        dead: Messages whose only delivery was never acked.
        acked: Messages that the worker has acked before the flood.
    """

    forged: int = 124_500
    seconds: float = 22.0
    dead: int = 200
    acked: int = 3000


class Forger:
    """Writes advisories as the server does, about messages of its choice."""

    def __init__(self, size: Size, chance: Random) -> None:
        self._size, self._chance = size, chance
        self._kinds: dict[str, tuple[int, Callable[[], bytes]]] = {
            "about acked messages": (70, lambda: told(self._acked(), 1)),
            "about messages that will be dead": (5, lambda: told(self._dead(), 1)),
            "about messages not delivered yet": (10, lambda: told(NOT_YET + chance.randrange(10_000), 1)),
            "with a wrong number of deliveries": (5, lambda: told(self._acked(), 7)),
            "about another consumer": (5, lambda: told(self._acked(), 1, consumer="nobody")),
            "without an end": (5, lambda: told(self._acked(), 1)[:-3]),
        }
        self.forged: Counter[str] = Counter()

    def _dead(self) -> int:
        return self._chance.randint(1, self._size.dead)

    def _acked(self) -> int:
        return self._size.dead + self._chance.randint(1, self._size.acked)

    @property
    def to_be_refused(self) -> int:
        return self.forged.total() - self.forged["about messages that will be dead"]

    async def run(self, oracle: Oracle) -> float:
        """Publish all, evenly over the time. Returns the seconds that it took."""
        began = time.monotonic()
        names = [*self._kinds]
        weights = [share for share, _ in self._kinds.values()]
        while (count := self.forged.total()) < self._size.forged:
            due = min(1.0, (time.monotonic() - began + STEP) / self._size.seconds)
            for name in self._chance.choices(names, weights, k=int(due * self._size.forged) - count):
                await oracle.nc.publish(ADVISORY, self._kinds[name][1]())
                self.forged[name] += 1
            await asyncio.sleep(STEP)
        await flushed(oracle.nc)
        return time.monotonic() - began


def told(seq: int, deliveries: int, consumer: str = CREW) -> bytes:
    return json.dumps(
        {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "stream": STREAM,
            "consumer": consumer,
            "stream_seq": seq,
            "deliveries": deliveries,
        }
    ).encode()


class Crew:
    """The worker that lives, and what its connection reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.handled: dict[int, float] = {}  # by number
        self.published: dict[int, float] = {}  # during the flood

    def handle(self, message: Any) -> None:
        self.handled[number_of(message.data)] = time.monotonic()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def go_on_publishing(self, oracle: Oracle, number: int) -> None:
        while True:
            number += 1
            await oracle.nc.publish("jobs.new", b"%d" % number)
            self.published[number] = time.monotonic()
            await asyncio.sleep(0.1)

    @property
    def waits(self) -> list[float]:
        """Seconds from the publish of each message to its handler. Too long if it was not handled."""
        return [self.handled.get(number, float("inf")) - at for number, at in self.published.items()]


async def lose_a_crew(url: str, size: Size) -> None:
    """Someone takes messages in waves, and dies with them."""
    js = await jsclient.connect(url)
    config = ConsumerConfig(ack_wait=max(4.0, size.seconds / 2), max_deliver=1)
    sub = await js.pull_subscribe("jobs.>", durable=CREW, config=config, delete_on_close=False)
    for _ in range(WAVES):
        messages = await sub.fetch(size.dead // WAVES)
        assert len(messages) == size.dead // WAVES
        await asyncio.sleep(size.seconds / 20)
    await js._connection.close()


async def flood(options: Options, size: Size | None = None) -> Outcome:
    size = size or Size()
    own, workers, forger = OwnServer(), Crew(), Forger(size, Random(options.seed))
    await own.start()
    try:
        async with Oracle(own.url) as oracle, Oracle(own.url) as stranger:
            await oracle.create_stream(STREAM, ["jobs.>"])
            await oracle.create_stream(DEAD, ["dead.>"])
            await oracle.publish_many("jobs.old", size.dead)
            await lose_a_crew(own.url, size)
            await oracle.publish_many("jobs.old", size.acked, first=size.dead + 1)
            return await watched(own.url, oracle, stranger, workers, forger, options.seed, size)
    finally:
        await own.stop()


async def watched(
    url: str, oracle: Oracle, stranger: Oracle, crew: Crew, forger: Forger, seed: int, size: Size
) -> Outcome:
    async with jsclient.connect(url, on_event=crew.events.append) as js:
        sub = await js.pull_subscribe(stream=STREAM, consumer=CREW)
        requests = oracle.listen(f"$JS.API.CONSUMER.INFO.{STREAM}.>")
        got = oracle.listen(f"$JS.API.STREAM.MSG.GET.{STREAM}")
        async with sub.run(crew.handle, dead_letter="dead.>"), requests as asks, got as gets:
            await eventually(lambda: len(crew.handled) == size.acked, 60, "the others are acked")
            began, asks_before = time.monotonic(), len(asks)
            going_on = asyncio.create_task(crew.go_on_publishing(oracle, size.dead + size.acked))
            took = await forger.run(stranger)
            going_on.cancel()
            await settled(oracle, crew, forger, size)
            work = len(asks) - asks_before, len(gets), time.monotonic() - began
            outcome = await judged(oracle, crew, forger, seed, size, work)
    outcome.ran["seconds"] = round(took, 1)
    return outcome


async def settled(oracle: Oracle, crew: Crew, forger: Forger, size: Size, timeout: float = 60.0) -> None:
    """Wait until all is decided, or the time is over."""

    async def over() -> bool:
        stored = (await oracle.state(DEAD))["messages"]
        return (
            stored >= size.dead and 2 * passed_over(crew) > forger.to_be_refused and max(crew.waits) < LATEST
        )

    try:
        await eventually(over, timeout, "all is decided", interval=0.25)
    except AssertionError:
        pass  # the verdict says what is missing


def passed_over(crew: Crew) -> int:
    """The count that was reported last."""
    return max((event.count for event in crew.of(AdvisoryRefused)), default=0)


async def judged(
    oracle: Oracle, crew: Crew, forger: Forger, seed: int, size: Size, work: tuple[int, int, float]
) -> Outcome:
    asks, gets, seconds = work
    letters = await oracle.messages(DEAD)
    copies = Counter(number_of(letter.payload) for letter in letters)
    marked = sum("Dead-Letter-Unverified" in parse_headers(letter.headers)[1] for letter in letters)
    outcome = Outcome("flood", "forged advisories", seed)
    outcome.ran = {
        "forged": dict(forger.forged),
        "dead letters": len(letters),
        "passed over, as last reported": passed_over(crew),
        "questions about the consumer": asks,
        "messages read": gets,
        "longest wait for a handler": round(max(crew.waits), 2),
    }
    outcome.check("the flood has its size", forger.forged.total() == size.forged, forger.forged.total())
    outcome.none_of("missing dead letters: 0", set(range(1, size.dead + 1)) - set(copies))
    outcome.none_of("false copies: 0", (number for number in copies if number > size.dead))
    outcome.none_of("doubled dead letters: 0", (number for number, count in copies.items() if count > 1))
    outcome.check("each is verified", not marked, marked)
    outcome.check("each is told once", len(crew.of(DeadLettered)) == size.dead, len(crew.of(DeadLettered)))
    outcome.none_of("nothing fails", crew.of(DeadLetterFailed))
    counts = [event.count for event in crew.of(AdvisoryRefused)]
    outcome.check(
        "what was passed over is counted: told first, and at each doubling",
        counts == [1 << at for at in range(len(counts))] and 2 * passed_over(crew) > forger.to_be_refused,
        counts,
    )
    limit = seconds / ASKED_APART + 5
    outcome.check(
        "questions about the consumer are bounded by the time", 0 < asks <= limit, f"{asks} of {limit:.0f}"
    )
    outcome.check("only what is dead is read", gets <= 2 * size.dead, gets)
    outcome.check(
        f"messages are handled within {LATEST} s", max(crew.waits) < LATEST, f"{max(crew.waits):.2f} s"
    )
    return outcome


async def run(options: Options) -> list[Outcome]:
    return [await flood(options)]
