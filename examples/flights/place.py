"""The server of the demonstration, and its streams there, which are removed at the end."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from jsclient import JetStream
from jsclient.errors import JetStreamError, StreamNotFoundError
from jsclient.server import NatsServer

__all__ = ["DemoServer"]

_MAX_AGE = 3600.0  # seconds after which messages on an existing server expire, if streams cannot be removed


class DemoServer:
    """The given server or a new server, and the names of the streams on it.

    ``stream`` and ``prefix`` are the stream of the flights and the prefix of its subjects. ``statistics`` and
    ``statistics_prefix`` are the same for Spark's results. ``ledger`` is the bucket of Spark's sink.
    """

    def __init__(self, servers: list[str] | None) -> None:
        self._servers = servers
        self.stream: str = "FLIGHTS"
        self.prefix: str = "flights"
        self.ledger: str = "jsclient_demo"
        self.statistics: str = "STATISTICS"
        self.statistics_prefix: str = "statistics"
        if servers is not None:  # names that no other demonstration has
            token = secrets.token_hex(4)
            self.stream, self.prefix = f"JSCLIENT_DEMO_{token}", f"jsclient-demo-{token}.flights"
            self.ledger = f"jsclient_demo_{token}"
            self.statistics = f"JSCLIENT_DEMO_{token}_STATISTICS"
            self.statistics_prefix = f"jsclient-demo-{token}.statistics"

    @asynccontextmanager
    async def server(self) -> AsyncIterator[list[str]]:
        """Start a server, unless it was given, and yield its URLs."""
        if self._servers is not None:
            yield self._servers
            return
        async with NatsServer() as server:
            yield [server.url]

    def flights_on(self, js: JetStream) -> AbstractAsyncContextManager[None]:
        """Create the stream of the flights, and remove it at the end."""
        return self._stream(js, self.stream, self.prefix)

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
        subjects = [f"{prefix}.>"]
        # Spark reads claimed messages by sequence, with direct gets.
        if self._servers is None:
            await js.create_stream(name, subjects=subjects, allow_direct=True)
            yield
            return
        created = False
        try:
            # The call is in the try block, since a cancelled call may have created the stream.
            await js.create_stream(name, subjects=subjects, max_age=_MAX_AGE, allow_direct=True)
            created = True
            yield
        finally:
            await _remove(js, name, report=created)


async def _remove(js: JetStream, name: str, *, report: bool) -> None:
    """Delete a stream on an existing server. With ``report``, print a failure."""
    try:
        await js.delete_stream(name)
    except StreamNotFoundError:
        pass  # the stream was not created, or another client has deleted it
    except JetStreamError as error:
        if report:
            print(f"flights: stream {name} was not removed: {error}", file=sys.stderr)
