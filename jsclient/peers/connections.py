"""Connections to other NATS systems: one to each host that is allowed, made when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from .._runtime.event_hub import OnEvent
from ..client import JetStream, connect
from ..errors import ClosedError
from .errors import HostNotAllowedError
from .options import EngineOptions

__all__ = ["Hosts"]


class Hosts:
    """The pool.

    Args:
        options: Say which hosts are allowed, and how to connect to them.
        on_event: Of these connections.
    """

    def __init__(self, options: EngineOptions, on_event: OnEvent) -> None:
        allowed = options.allowed_hosts
        how: Mapping[str, Mapping[str, Any]] = allowed if isinstance(allowed, Mapping) else {}
        self._options = {host: how.get(host, {}) for host in allowed}
        self._on_event = on_event
        self._dialed: dict[str, asyncio.Task[JetStream]] = {}
        self._closed = False

    async def connection(self, host: str) -> JetStream:
        """A connection to a host. Concurrent calls wait for the same attempt.

        Raises:
            HostNotAllowedError: Nothing was dialed.
            ConnectError, AuthenticationError: It cannot be reached now.
        """
        if host not in self._options:
            raise HostNotAllowedError(host)
        if self._closed:
            raise ClosedError("the engine is closed")
        dialed = self._dialed.get(host)
        if dialed is None or (dialed.done() and _is_over(dialed)):
            dialed = self._dialed[host] = asyncio.create_task(self._dial(host), name=f"jsclient:dial {host}")
        return await asyncio.shield(dialed)

    async def _dial(self, host: str) -> JetStream:
        return await connect(host, **{"on_event": self._on_event, **self._options[host]})

    async def close(self) -> None:
        """Close them all."""
        self._closed = True
        tasks, self._dialed = list(self._dialed.values()), {}
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, JetStream):
                await result.close()


def _is_over(dialed: asyncio.Task[JetStream]) -> bool:
    return dialed.cancelled() or dialed.exception() is not None or dialed.result().is_closed
