"""The inbox of a continuous pull reader: one wildcard subscription, a number for each request."""

from __future__ import annotations

from ..._runtime.nats.connection import Connection, Inbox
from ...protocol.wire.frames import Sink

__all__ = ["ReaderInbox"]


class ReaderInbox:
    """The inbox for the answers to the requests of one reader. Initially closed."""

    def __init__(self, connection: Connection, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink
        self._base = ""
        self.inbox: Inbox | None = None

    async def open(self) -> None:
        """Subscribe to a new subject."""
        base = f"{self._connection.new_inbox()}."
        self.inbox = await self._connection.subscribe(f"{base}*", self._sink)
        self._base = base

    def reply(self, number: int) -> str:
        """The reply subject of a request; ``number`` is its last token."""
        return f"{self._base}{number}"

    async def close(self) -> None:
        """Unsubscribe; a no-op if closed."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.unsubscribe(inbox)

    async def drain(self, timeout: float) -> None:
        """Unsubscribe once everything in flight has arrived; ``timeout`` in seconds."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.drain(inbox, timeout)
