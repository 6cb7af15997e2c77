"""Patterns that have both sides: epochs, kits of notifiers and subscriptions, peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

from integration.campaign.calls import Calls
from integration.campaign.chaos.publishers import LIMIT, PAUSE, TIMEOUT
from integration.campaign.report import Outcome
from integration.kit.judge.oracle import Oracle
from jsclient.errors import JetStreamError
from jsclient.peers import Engine

CATCH_UP = 60.0


class Pattern:
    """Someone who produces numbered things and someone who reads them.

    Attributes:
        sent: What was acked as stored.
        maybe: What ended as unknown.
        got: What the reader was given, in order.
    """

    kind = ""

    def __init__(self, here: Any, there: Any, replicas: int) -> None:
        self.here, self.there, self.replicas = here, there, replicas
        self.calls = Calls()
        self.sent: list[int] = []
        self.maybe: list[int] = []
        self.got: list[int] = []
        self.errors: list[str] = []
        self.number = 0
        self.over = asyncio.Event()

    async def open(self) -> None: ...

    async def produce(self) -> None:
        """One more."""
        raise NotImplementedError

    async def read(self) -> None:
        """Read for ever."""
        raise NotImplementedError

    async def run(self) -> None:
        while not self.over.is_set():
            self.number += 1
            await self.produce()
            await asyncio.sleep(3 * PAUSE)

    async def keep_reading(self) -> None:
        while True:
            try:
                await self.read()
            except JetStreamError as error:
                self.errors.append(f"{type(error).__name__}: {error!s:.100}")
            await asyncio.sleep(0.2)

    async def call(self, call: Awaitable[Any], limit: float = LIMIT) -> bool:
        """Whether it was acked. Noted as `sent` or `maybe`."""
        result = await self.calls.within(limit, self.kind, call)
        acked = result is None or not isinstance(result, Exception)
        (self.sent if acked else self.maybe).append(self.number)
        return acked

    def figures(self) -> dict[str, Any]:
        sent = {"sent": len(self.sent), "unknown": len(self.maybe), "read": len(self.got)}
        return {**sent, "errors": self.errors[:5]}

    def has_all(self) -> bool:
        return set(self.sent) <= set(self.got)

    async def recount(self, oracle: Oracle) -> None:
        """Read what is stored, by raw requests. Called when nothing is sent any more."""

    def judge(self, outcome: Outcome) -> None:
        outcome.ran = self.figures()
        outcome.none_of("acked and not read: 0", sorted(set(self.sent) - set(self.got)))
        outcome.none_of("read and never sent: 0", sorted(set(self.got) - set(self.sent) - set(self.maybe)))
        outcome.check("read once and in order", self.got == sorted(set(self.got)), "")
        outcome.check("something was sent during the faults", len(self.sent) > 5, len(self.sent))
        self.calls.judge(outcome)

    async def close(self) -> None: ...


class Epochs(Pattern):
    """An epoch of three items at a time: whole or not at all."""

    kind = "epochs"
    publisher: Any = None

    async def open(self) -> None:
        self.torn: list[int] = []
        await self.here.epochs("EP", partitions=1).create(num_replicas=self.replicas)

    async def produce(self) -> None:
        async def send() -> None:
            if self.publisher is None:
                self.publisher = await self.here.epochs("EP").publisher(timeout=TIMEOUT)
            for item in range(3):
                await self.publisher.send(self.number, [f"{self.number}.{item}"])
            await self.publisher.advance(self.number + 1)
            await self.publisher.flush()

        if not await self.call(send(), 3 * LIMIT) and self.publisher is not None:
            publisher, self.publisher = self.publisher, None
            with contextlib.suppress(JetStreamError):
                await publisher.release()

    async def read(self) -> None:
        async with await self.there.epochs("EP").subscribe(start="first", quiet=1.0) as sub:
            async for epoch in sub.completed():
                if sorted(epoch.items) != [f"{epoch.time}.{item}" for item in range(3)]:
                    self.torn.append(epoch.time)
                if not self.got or epoch.time > self.got[-1]:  # opened again, it reads from the first on
                    self.got.append(epoch.time)

    def judge(self, outcome: Outcome) -> None:
        super().judge(outcome)
        empty = [error for error in self.errors if error.startswith("ConfigError: seq is 0")]
        outcome.none_of("start='first' waits on an empty topic", empty)
        outcome.none_of("epochs read in part: 0", [time for time in self.torn if time in self.sent])

    async def close(self) -> None:
        if self.publisher is not None:
            with contextlib.suppress(JetStreamError):
                await self.publisher.release()


class SubscriptionKits(Pattern):
    """A lossless iteration."""

    kind = "subscription kit"

    async def open(self) -> None:
        self.kit = await self.here.subscription_kit("kits.all", num_replicas=self.replicas, timeout=TIMEOUT)
        self.shared = await self.kit.subscription.get_sharable_subscription_internals()

    async def produce(self) -> None:
        await self.call(awaited(self.kit.publication.update_state(self.number)))

    async def read(self) -> None:
        async for value in self.there.make_subscription(self.shared, quiet=1.0):
            if not self.got or value > self.got[-1]:
                self.got.append(value)


class NotifierKits(Pattern):
    """A lossy iteration: the newest state is read, and states never go back."""

    kind = "notifier kit"

    async def open(self) -> None:
        self.kit = await self.here.notifier_kit("kits.newest", num_replicas=self.replicas, timeout=TIMEOUT)
        self.shared = await self.kit.notifier.get_sharable_notifier_internals()

    async def produce(self) -> None:
        await self.call(awaited(self.kit.updater.update_state(self.number)))

    async def read(self) -> None:
        async for value in self.there.make_notifier(self.shared, quiet=1.0):
            self.got.append(value)

    def has_all(self) -> bool:
        return bool(self.got) and bool(self.sent) and self.got[-1] >= self.sent[-1]

    def judge(self, outcome: Outcome) -> None:
        outcome.ran = self.figures()
        outcome.check("the newest state is read", self.has_all(), (self.got[-1:], self.sent[-1:]))
        falls = [(a, b) for a, b in pairwise(self.got) if b < a]
        outcome.none_of("states go back: 0", falls)
        self.calls.judge(outcome)


async def awaited(future: Any) -> Any:
    return await future


class Peers(Pattern):
    """Two peers with a relationship. One sends events to the other, which handles each at least once."""

    kind = "peers"

    def __init__(self, here: Any, there: Any, servers: list[str], user: dict[str, Any]) -> None:
        super().__init__(here, there, 0)  # an engine chooses the replicas
        self._servers, self._user = servers, user
        self.engines: list[Any] = []

    async def open(self) -> None:
        self.told: list[Any] = []
        for _ in range(2):
            self.engines.append(
                await Engine.connect(self._servers, on_event=self.told.append, connect=self._user)
            )
        self.ann, self.bob = await self.engines[0].peer("ann"), await self.engines[1].peer("bob")
        self.bob.auto_accept(lambda attrs: True)

        @self.bob.on("number:came")
        async def came(event: Any) -> None:
            self.got.append(event.attrs["n"])

        self.which = await self.ann.request(await self.bob.wellKnown_Rx())
        await self.ann.wait_for("wrangler:subscription_added", 15, Id=self.which)

    async def produce(self) -> None:
        await self.call(self.ann.send("number", "came", {"n": self.number}, Id=self.which))

    async def read(self) -> None:
        await asyncio.Event().wait()

    def judge(self, outcome: Outcome) -> None:
        outcome.ran = {"sent": len(self.sent), "unknown": len(self.maybe), "handled": len(self.got)}
        outcome.none_of("sent and not handled: 0", sorted(set(self.sent) - set(self.got)))
        outcome.none_of("handled and never sent: 0", sorted(set(self.got) - set(self.sent) - set(self.maybe)))
        self.calls.judge(outcome)

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()
