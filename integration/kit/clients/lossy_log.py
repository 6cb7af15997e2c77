"""A log whose pushes are thrown away, repeated, reordered and late, by a seed. Its history is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any


class LossyLog:
    """Another log, but for what its feeds push.

    Attributes:
        loss, repeat, reorder: How likely it is that a record is thrown away, that it comes twice, and that what was
            pushed together waits and comes later, shuffled, even after its feed was closed. 1.0: at `release` only.
        passed, dropped, repeated, late: Records so far.
        open_ids: Feeds that are open, by id.
        opened, closed: The ids of all that were, in order.
    """

    def __init__(
        self, log: Any, seed: int = 0, *, loss: float = 0.0, repeat: float = 0.0, reorder: float = 0.0
    ) -> None:
        self._log = log
        self._chance = random.Random(seed)
        self.loss, self.repeat, self.reorder = loss, repeat, reorder
        self.passed = self.dropped = self.repeated = self.late = 0
        self.open_ids: set[str] = set()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self._held: list[tuple[Callable[[list[Any]], None], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def feed(self, kind: Any) -> Any:
        return LossyFeed(self, self._log.feed(kind))

    def push(self, receive: Callable[[list[Any]], None], records: list[Any]) -> None:
        """Pass on the records of a feed, but drop, repeat and delay some of them."""
        chance = self._chance
        passing: list[Any] = []
        for record in records:
            if chance.random() < self.loss:
                self.dropped += 1
                continue
            again = chance.random() < self.repeat
            self.repeated += again
            passing += [record] * (1 + again)
        # Records that wait here come later and shuffled, so that others overtake them.
        if chance.random() < self.reorder:
            self._held += [(receive, record) for record in passing]
        elif passing:
            self.passed += len(passing)
            receive(passing)
        # With a reorder of 1.0 the test decides when the waiting records come.
        if self._held and self.reorder < 1.0 and chance.random() < 0.3:
            self.release()

    def release(self) -> None:
        """Deliver the waiting records now, shuffled."""
        held, self._held = self._held, []
        self._chance.shuffle(held)
        for receive, record in held:
            self.late += 1
            receive([record])


class LossyFeed:
    """One feed of it."""

    def __init__(self, log: LossyLog, feed: Any) -> None:
        self._log = log
        self._feed = feed
        self.by_subject = feed.by_subject

    async def open(self, id: str, receive: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        self._log.opened.append(id)
        await self._feed.open(id, partial(self._log.push, receive), lost)
        self._log.open_ids.add(id)

    def has_read(self, id: str, count: int) -> None:
        self._feed.has_read(id, count)

    async def close(self, id: str) -> None:
        self._log.closed.append(id)
        await self._feed.close(id)
        self._log.open_ids.discard(id)
