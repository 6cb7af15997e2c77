"""Connects to one of several servers, at first and again after each loss."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigError, ConnectError
from ...protocol.connection.handshake import ConnectSettings, RefusedError
from ...protocol.connection.pool import Change, PoolOptions, Server, ServerPool
from ...protocol.connection.urls import is_websocket, parse_url, server_urls
from ..retry import varied
from ..tasks import Signal
from .attempt import Attempt, AttemptSettings, ServerLink
from .connect_errors import FailedAttempt, is_refusal
from .identity import Identity

__all__ = ["Connector"]

_random = random.Random()  # noqa: S311  not a secret; the application may have seeded the shared generator

OnFailure = Callable[[Server, Exception], None]


class Connector:
    """Chooses the servers of a connection, and makes the attempts to connect to them.

    Attributes:
        pool: The servers.
        identity: The identity of the user.
        failures: The failed attempts of the first connect.
    """

    def __init__(self, servers: Sequence[str], pauses: tuple[float, float], options: dict[str, Any]) -> None:
        """Create a connector.

        ``pauses`` are the first and the longest pause between attempts at one server, in seconds.
        """
        first, longest = pauses
        self.identity = Identity(servers, options)
        self.pool = ServerPool(
            [parse_url(server) for server in servers],
            PoolOptions(
                first,
                longest,
                max_refusals=options.get("max_refusals"),
                ignore_discovered=bool(options.get("ignore_discovered")),
                shuffle=None if options.get("dont_randomize") else _random.shuffle,
                vary=varied,
                spread=lambda longest: _random.uniform(0.0, longest),
            ),
        )
        connect = ConnectSettings(options["version"], options.get("name"), options.get("no_echo"))
        self._settings = AttemptSettings(connect, self.identity, options)
        self.failures: list[FailedAttempt] = []
        self._attempt: Attempt | None = None
        self._hurried = Signal()
        self._over = False

    async def first(self) -> ServerLink:
        """Try each server once, without pauses.

        Raises:
            ConnectError: No server completed the handshake. `failures` contains the reasons.
        """
        now = asyncio.get_running_loop().time
        while (server := self.pool.take_untried(now())) is not None:
            try:
                return await self._try(server, first=True)
            except Exception as error:  # noqa: BLE001  a transport, a callback or a file may raise anything
                self.pool.failed(server, refused=is_refusal(error))
                self._end_if_over()
                self.failures.append(FailedAttempt(server.url, error))
        raise ConnectError("no server could be reached")

    def begin_outage(self) -> None:
        """Record the loss of the connection. Call `again` afterwards."""
        self.pool.record_loss(asyncio.get_running_loop().time())

    async def again(self, failed: OnFailure) -> ServerLink | None:
        """Try the servers in turn until one completes the handshake. Call ``failed`` after each failed attempt.

        Return None if the credentials were refused too often.
        """
        now = asyncio.get_running_loop().time
        while True:
            server, pause = self.pool.next_attempt(now())
            if await self._hurried.wait_until(now() + pause):
                continue
            self.pool.begin(server, now())
            try:
                return await self._try(server, first=False)
            except Exception as error:  # noqa: BLE001  a transport, a callback or a file may raise anything
                self._end_if_over()  # the attempt may have failed because the connection was closed
                if self.attempt_failed(server, error, failed):
                    return None

    def attempt_failed(self, server: Server, error: Exception, failed: OnFailure) -> bool:
        """Record a failed attempt, call ``failed``, and return whether the client must give up."""
        gives_up = self.pool.failed(server, refused=is_refusal(error))
        failed(server, error)
        return gives_up

    def confirmed(self, link: ServerLink) -> None:
        """Record that a connection is in use."""
        self.pool.connected(link.server, link.transport.peer())

    async def _try(self, server: Server, *, first: bool) -> ServerLink:
        self._end_if_over()
        self._attempt = attempt = Attempt(server, self._settings, first=first)
        try:
            link = await attempt.run()
            self._end_if_over()
        except BaseException as error:
            attempt.abort()
            if first and attempt.info is not None and _is_full(error):
                self.pool.announce(attempt.info)  # another server of the cluster may have space
            raise
        finally:
            self._attempt = None
        if first:
            self.confirmed(link)
            self.pool.announce(link.info)
        return link

    def set_servers(self, servers: Sequence[str]) -> Change:
        """Use these servers for the next attempts.

        Raises:
            ConfigError: A URL is not valid, or WebSocket URLs are mixed with other URLs.
        """
        urls = server_urls(servers)
        parsed = [parse_url(url) for url in urls]
        current = self.pool.current
        if current is not None and is_websocket(current.url) != is_websocket(parsed[0]):
            raise ConfigError(
                "servers has WebSocket URLs and the connection is none, or the reverse: connect anew"
            )
        self.identity.use(urls)
        change = self.pool.replace(parsed)
        if change.added or change.removed:
            self.hurry()
        return change

    def hurry(self) -> None:
        """Make the next attempt at once, if the client is not connected."""
        self.pool.forget_pauses()
        self._hurried.set()

    def _end_if_over(self) -> None:
        """End a cancelled reconnect, even if an awaited function has swallowed the cancellation."""
        if self._over:
            raise asyncio.CancelledError

    def end(self) -> None:
        """Stop connecting, and close the connection of the current attempt."""
        self._over = True
        if self._attempt is not None:
            self._attempt.abort()


def _is_full(error: BaseException) -> bool:
    return isinstance(error, RefusedError) and not is_refusal(error)
