"""The server of the demonstration, and its streams there, which are removed at the end."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...client import JetStream
from ...errors import JetStreamError, StreamNotFoundError
from ...server import NatsServer

__all__ = ["Place"]

_MAX_AGE = 3600.0  # seconds; on an existing server messages expire, in case the streams cannot be removed


class Place:
    """A server, and the names of the streams on it.

    Args:
        servers: An existing server; None starts one.

    Attributes:
        stream, prefix: The stream of the flights, and the prefix of its subjects.
        statistics, statistics_prefix: The same for the stream of Spark's results.
        ledger: The bucket of the ledger of Spark's sink.
    """

    def __init__(self, servers: list[str] | None) -> None:
        self._servers = servers
        # Unique names on an existing server.
        token = secrets.token_hex(4)
        own = servers is None
        self.stream: str = "FLIGHTS" if own else f"JSCLIENT_DEMO_{token}"
        self.prefix: str = "flights" if own else f"jsclient-demo-{token}.flights"
        self.statistics: str = "STATISTICS" if own else f"JSCLIENT_DEMO_{token}_STATISTICS"
        self.ledger: str = "jsclient_demo" if own else f"jsclient_demo_{token}"
        self.statistics_prefix: str = "statistics" if own else f"jsclient-demo-{token}.statistics"

    @asynccontextmanager
    async def server(self) -> AsyncIterator[list[str]]:
        """Start the server, unless one was given; the URLs of the server."""
        if self._servers is not None:
            yield self._servers
            return
        async with NatsServer() as server:
            yield [server.url]

    @asynccontextmanager
    async def flights_on(self, js: JetStream) -> AsyncIterator[None]:
        """Create the stream of the flights, and remove it at the end."""
        async with self._stream(js, self.stream, self.prefix):
            yield

    @asynccontextmanager
    async def statistics_on(self, js: JetStream) -> AsyncIterator[None]:
        """Create the stream of the statistics. At the end remove it, and the bucket that the sink has created."""
        async with self._stream(js, self.statistics, self.statistics_prefix):
            try:
                yield
            finally:
                if self._servers is not None:
                    await _remove(js, f"KV_{self.ledger}", report=True)

    @asynccontextmanager
    async def _stream(self, js: JetStream, name: str, prefix: str) -> AsyncIterator[None]:
        # Direct gets: Spark reads claimed messages by sequence.
        subjects, direct = [f"{prefix}.>"], {"allow_direct": True}
        if self._servers is None:
            await js.create_stream(name, subjects=subjects, **direct)
            yield
            return
        created = False
        try:
            # In the try block: a call that is cancelled may have created the stream.
            await js.create_stream(name, subjects=subjects, max_age=_MAX_AGE, **direct)
            created = True
            yield
        finally:
            await _remove(js, name, report=created)


async def _remove(js: JetStream, name: str, *, report: bool) -> None:
    """Delete a stream on an existing server; with ``report``, print a failure."""
    try:
        await js.delete_stream(name)
    except StreamNotFoundError:
        pass  # not created yet, or already deleted by another client
    except JetStreamError as error:
        if report:
            print(f"jsclient demo: stream {name} was not removed: {error}", file=sys.stderr)
