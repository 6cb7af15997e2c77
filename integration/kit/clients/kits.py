"""Kits on a server, as the suites of tests/patterns want them made."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from integration.kit.judge.waiting import eventually
from jsclient import NotifierKit, SubscriptionKit

_QUIET_TURNS = 3


class Kits:
    """Makes kits on a server, each with a separate subject.

    `here` produces, `there` consumes. If they are two connections, the consumed value was made of a descriptor that
    has passed as JSON. `stream` is the stream of all kits. Without it each creates a separate stream, which `clear`
    deletes.
    """

    def __init__(self, here: Any, there: Any = None, stream: Any = None, **options: Any) -> None:
        self.here = here
        self.there = here if there is None else there
        self.stream = stream
        self.options = options
        self.made: list[str] = []

    def subject(self) -> str:
        unique = f"kit.{secrets.token_hex(6)}"
        return unique if self.stream is None else self.stream.subject(unique)

    def _where(self) -> dict[str, Any]:
        where = {"storage": "memory"} if self.stream is None else {"stream": self.stream.name}
        return {**where, **self.options}

    async def notifier_kit(self, *initial: Any, subject: str | None = None) -> Any:
        first = {"initial": initial[0]} if initial else {}
        kit = await self.here.notifier_kit(subject or self.subject(), **first, **self._where())
        internals = await kit.notifier.get_sharable_notifier_internals()
        self._note(internals)
        if self.there is self.here:
            return kit
        return NotifierKit(kit.updater, self.there.make_notifier(json.loads(json.dumps(internals))))

    async def subscription_kit(self, subject: str | None = None) -> Any:
        kit = await self.here.subscription_kit(subject or self.subject(), **self._where())
        internals = await kit.subscription.get_sharable_subscription_internals()
        self._note(internals)
        if self.there is self.here:
            return kit
        return SubscriptionKit(
            kit.publication, self.there.make_subscription(json.loads(json.dumps(internals)))
        )

    def _note(self, internals: dict[str, Any]) -> None:
        if self.stream is None:
            self.made.append(internals["stream"])

    def make_notifier(self, internals: Any) -> Any:
        return self.there.make_notifier(internals)

    def make_subscription(self, internals: Any) -> Any:
        return self.there.make_subscription(internals)

    async def settle(self) -> None:
        """Let everything continue until no connection waits for an answer. Pushes may still be in flight."""
        quiet = 0

        async def is_quiet() -> bool:
            nonlocal quiet
            busy = False
            for js in (self.here, self.there):
                await js.ping()
                busy |= bool(js._context.requests._waiting)
            quiet = 0 if busy else quiet + 1
            return quiet >= _QUIET_TURNS

        await eventually(is_quiet, 10, "a quiet connection", interval=0.002)

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition, 10, "what was waited for", interval=0.002)

    async def clear(self) -> None:
        for name in self.made:
            await self.here.delete_stream(name)
