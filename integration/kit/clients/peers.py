"""Engines that meet on a server, each with a separate connection, or in this process."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import jsclient
from jsclient.peers import Engine, LocalHub, Peer, RaisedEvent

__all__ = ["FAST", "Ground", "LocalGround", "ServerGround", "received_events", "related"]

FAST = {"handler_delay": 0.01, "retry_delay": 0.05, "max_deliver": 3}
"""Options of an engine that tries again at once, and not for long."""


class Ground:
    """The place at which the engines of one test meet. `events` has the events that they reported out of band."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._engines: list[Engine] = []

    async def engine(self, **options: Any) -> Engine:
        """One more engine, as in another process."""
        engine = await self._make(on_event=self.events.append, **{**FAST, **options})
        self._engines.append(engine)
        return engine

    async def _make(self, **options: Any) -> Engine:
        raise NotImplementedError

    def reports(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


class LocalGround(Ground):
    def __init__(self) -> None:
        super().__init__()
        self._hub = LocalHub()

    async def _make(self, **options: Any) -> Engine:
        return Engine.local(self._hub, **options)


class ServerGround(Ground):
    """On a server, with separate streams."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.prefix = f"pico{secrets.token_hex(4)}"
        self.streams = [f"{self.prefix.upper()}_{kind}" for kind in ("EVENTS", "STATE")]

    async def _make(self, **options: Any) -> Engine:
        return await Engine.connect(self.url, **{"prefix": self.prefix, **options})

    async def close(self) -> None:
        await super().close()
        async with jsclient.connect(self.url) as js:
            for stream in self.streams:
                with contextlib.suppress(jsclient.StreamNotFoundError):
                    await js.delete_stream(stream)


def received_events(peer: Peer, *patterns: str) -> list[RaisedEvent]:
    """The events that a peer receives from now on, in order."""
    events: list[RaisedEvent] = []

    async def note(event: RaisedEvent) -> None:  # on the event loop: noted when `wait_for` returns
        events.append(event)

    for pattern in patterns or ("*:*",):
        peer.on(pattern, note)
    return events


async def related(a: Peer, b: Peer, **attrs: Any) -> str:
    """Have `a` ask and `b` approve. The Id."""
    which = await a.request(await b.wellKnown_Rx(), **attrs)
    await b.wait_for("wrangler:inbound_pending_subscription_added", Id=which)
    await b.approve(which)
    for peer in (a, b):
        await peer.wait_for("wrangler:subscription_added", Id=which)
    return which
