"""Where the demonstration happens: a server, and streams of its own there, which are removed at the end."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...client import JetStream
from ...errors import JetStreamError, StreamNotFoundError
from ...server import NatsServer

__all__ = ["Place"]

_KEEP = (
    3600.0  # seconds after which a foreign server empties a stream itself, should nobody be left to remove it
)


class Place:
    """A server, and the names of what is made there.

    Args:
        servers: An existing server; None starts one.

    Attributes:
        stream, prefix: The stream of the flights, and what its subjects begin with.
        statistics, statistics_prefix: The stream of what Spark makes of them.
        ledger: The bucket in which Spark's sink keeps its books.
    """

    def __init__(self, servers: list[str] | None) -> None:
        self._servers = servers
        # On somebody else's server: names that nobody else has.
        token = secrets.token_hex(4)
        own = servers is None
        self.stream = "FLIGHTS" if own else f"JSCLIENT_DEMO_{token}"
        self.prefix = "flights" if own else f"jsclient-demo-{token}.flights"
        self.statistics = "STATISTICS" if own else f"JSCLIENT_DEMO_{token}_STATISTICS"
        self.ledger = "jsclient_demo" if own else f"jsclient_demo_{token}"
        self.statistics_prefix = "statistics" if own else f"jsclient-demo-{token}.statistics"

    @asynccontextmanager
    async def server(self) -> AsyncIterator[list[str]]:
        """The URLs of the server, which is there meanwhile."""
        if self._servers is not None:
            yield self._servers
            return
        async with NatsServer() as server:
            yield [server.url]

    @asynccontextmanager
    async def flights_on(self, js: JetStream) -> AsyncIterator[None]:
        """The stream of the flights is there meanwhile."""
        async with self._stream(js, self.stream, self.prefix):
            yield

    @asynccontextmanager
    async def statistics_on(self, js: JetStream) -> AsyncIterator[None]:
        """The stream of the statistics is there meanwhile; the bucket of the sink, which makes it, not afterwards."""
        async with self._stream(js, self.statistics, self.statistics_prefix):
            try:
                yield
            finally:
                if self._servers is not None:
                    await _remove(js, f"KV_{self.ledger}", told=True)

    @asynccontextmanager
    async def _stream(self, js: JetStream, name: str, prefix: str) -> AsyncIterator[None]:
        # Direct: Spark reads what it claimed by sequence.
        subjects, direct = [f"{prefix}.>"], {"allow_direct": True}
        if self._servers is None:
            await js.create_stream(name, subjects=subjects, **direct)
            yield
            return
        created = False
        try:
            # Inside the try: cancelled here, it may have been created all the same.
            await js.create_stream(name, subjects=subjects, max_age=_KEEP, **direct)
            created = True
            yield
        finally:
            await _remove(js, name, told=created)


async def _remove(js: JetStream, name: str, *, told: bool) -> None:
    """Delete a stream of ours on a foreign server; where that fails, say so if it is known to be there."""
    try:
        await js.delete_stream(name)
    except StreamNotFoundError:
        pass  # it had not been made yet, or somebody was faster
    except JetStreamError as error:
        if told:
            print(f"jsclient demo: stream {name} was not removed: {error}", file=sys.stderr)
