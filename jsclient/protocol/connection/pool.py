"""The servers that a client may connect to, with the order and the times of the attempts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import ParseResult

from .server_info import ServerInfo
from .urls import parse_url

__all__ = ["Change", "PoolOptions", "Server", "ServerPool"]

_MOST_DOUBLINGS = 30  # more doublings would overflow a float after days without a server


class Server:
    """A server of the pool.

    Attributes:
        discovered: Whether the server is known only from an INFO.
        tls_name: The name in its certificate, if it differs from the host of the URL.
        failures: The number of failed attempts since the last connection.
        refusals: The number of times in a row that it refused the credentials.
        last_attempt: The start of the last attempt in monotonic seconds, or None.
    """

    __slots__ = ("discovered", "failures", "last_attempt", "refusals", "tls_name", "url")

    def __init__(self, url: ParseResult, *, discovered: bool = False, tls_name: str | None = None) -> None:
        self.url: ParseResult = url
        self.discovered: bool = discovered
        self.tls_name: str | None = tls_name
        self.failures: int = 0
        self.refusals: int = 0
        self.last_attempt: float | None = None

    @property
    def address(self) -> str:
        """The host and port from the URL, without user info."""
        return self.url.netloc.rpartition("@")[2]


class PoolOptions(NamedTuple):
    """Options for the choice of the server.

    Attributes:
        first_pause, longest_pause: The first and the longest pause between attempts at one server, in seconds.
        max_refusals: The number of times in a row that a server may refuse the credentials before the client gives
            up. None means no limit.
        ignore_discovered: Use only the given servers.
        shuffle: A function that shuffles a list, or None to keep the order.
        vary: A function that changes a pause at random, so that clients do not return at the same instant.
        spread: A function that returns the random delay in seconds, up to the first pause, of the first attempt after
            a loss.
    """

    first_pause: float = 0.25
    longest_pause: float = 1.0
    max_refusals: int | None = None
    ignore_discovered: bool = False
    shuffle: Callable[[list[Any]], None] | None = None
    vary: Callable[[float], float] = float
    spread: Callable[[float], float] = lambda _: 0.0


class Change(NamedTuple):
    """The addresses, ``host:port``, that were added to the pool and that were removed from it."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


class ServerPool:
    """The servers in the order of their next attempts.

    Attributes:
        servers: The servers. The current server is last after it was tried.
        current: The server of the newest attempt, or None.
    """

    def __init__(self, urls: Sequence[ParseResult], options: PoolOptions | None = None) -> None:
        self._options = options or PoolOptions()
        self.servers: list[Server] = [Server(url) for url in urls]
        self.current: Server | None = None
        self._peer = ""  # the address at the other end of the current connection
        self._not_before = 0.0  # earliest time of the first attempt after a loss, in monotonic seconds
        self._shuffle(self.servers)

    def _shuffle(self, servers: list[Server]) -> None:
        if self._options.shuffle is not None:
            self._options.shuffle(servers)

    # --- attempts ------------------------------------------------------------------------------------------

    def take_untried(self, now: float) -> Server | None:
        """Return a server that was never tried, or None. Used for the first connect. Its attempt begins ``now``."""
        server = next((server for server in self.servers if server.last_attempt is None), None)
        if server is not None:
            self._take(server, now)
        return server

    def next_attempt(self, now: float) -> tuple[Server, float]:
        """Return the server to try next, and the seconds to wait before that. Call `begin` when the attempt begins."""
        server = self.servers[0]
        return server, max(self._pause(server, now), self._not_before - now)

    def record_loss(self, now: float) -> None:
        """Record the loss of a connection.

        The next attempt is delayed, because all clients of the server lose it together.
        """
        self._not_before = now + self._options.spread(self._options.first_pause)

    def forget_pauses(self) -> None:
        """Allow the next attempt at each server without a pause. Later pauses continue to grow."""
        self._not_before = 0.0
        for server in self.servers:
            server.last_attempt = None

    def begin(self, server: Server, now: float) -> None:
        """Record that an attempt begins, unless the server was removed in the meantime."""
        self._take(server, now)

    def _take(self, server: Server, now: float) -> None:
        server.last_attempt = now
        self.current, self._peer = server, ""
        if server in self.servers:
            self.servers.remove(server)
            self.servers.append(server)

    def _pause(self, server: Server, now: float) -> float:
        if server.last_attempt is None:
            return 0.0
        first, longest = self._options.first_pause, self._options.longest_pause
        pause = min(first * 2.0 ** min(server.failures, _MOST_DOUBLINGS), max(longest, first))
        return max(0.0, server.last_attempt + self._options.vary(pause) - now)

    def connected(self, server: Server, peer: str = "") -> None:
        """Record a complete handshake. ``peer`` is the address of the server, ``host:port``."""
        server.failures = server.refusals = 0
        self._peer = peer

    def failed(self, server: Server, *, refused: bool) -> bool:
        """Record a failed attempt. Return whether the client must give up, because it was refused too often."""
        server.failures += 1
        server.refusals = server.refusals + 1 if refused else 0
        limit = self._options.max_refusals
        return limit is not None and server.refusals >= limit

    # --- changing the servers --------------------------------------------------------------------------------

    def others(self) -> int:
        """Return the number of servers other than the current one and its numeric address, if that is in the pool."""
        return sum(server is not self.current and server.address != self._peer for server in self.servers)

    def announce(self, info: ServerInfo) -> Change:
        """Add the servers that INFO announces, and remove servers that only an earlier INFO announced."""
        current = self.current
        if self._options.ignore_discovered or current is None or not info.connect_urls:
            return Change((), ())
        kept = [server for server in self.servers if not server.discovered and server is not current]
        last = [current] if current in self.servers else []  # after a loss, the current server is tried last
        new = self._new(info, current, {server.address for server in kept + last})
        self._shuffle(new)
        return self._set(kept + new + last)

    def replace(self, urls: Sequence[ParseResult]) -> Change:
        """Replace the servers.

        Other servers are used only after an INFO announces them. The current connection remains.
        """
        before = {server.address: server for server in self.servers}
        servers = []
        for url in urls:
            server = before.get(url.netloc.rpartition("@")[2]) or Server(url)
            server.url, server.discovered = url, False
            servers.append(server)
        current = self.current
        # Change the user info of the current server even if it isn't in the new pool, because the servers that it
        # announces inherit the user info.
        if current is not None and current not in servers:
            current.url = current.url._replace(netloc=current.address)
        self._shuffle(servers)
        return self._set(servers)

    def _set(self, servers: list[Server]) -> Change:
        before = {server.address for server in self.servers}
        self.servers[:] = servers
        after = {server.address for server in servers}
        return Change(tuple(sorted(after - before)), tuple(sorted(before - after)))

    def _new(self, info: ServerInfo, current: Server, taken: set[str]) -> list[Server]:
        known = {server.address: server for server in self.servers}
        new = []
        user_info = current.url.netloc.removesuffix(current.address)  # the user info, including the @
        for text in info.connect_urls or ():
            url = _announced_url(text, current)
            if url is None or url.netloc in taken:
                continue
            address = url.netloc
            taken.add(address)
            # Certificates rarely include IP addresses. Verify the certificate of a discovered address against the host
            # name that the user gave for the cluster.
            named = info.tls_required and _is_address(url.hostname)
            name = (current.tls_name or current.url.hostname) if named else None
            server = known.get(address) or Server(url, discovered=True, tls_name=name)
            server.url = url._replace(netloc=f"{user_info}{address}")
            new.append(server)
        return new


def _announced_url(text: str, current: Server) -> ParseResult | None:
    try:
        url = parse_url(f"{current.url.scheme or 'nats'}://{text}")
        usable = url.hostname and (url.port is None or url.port) and "@" not in url.netloc
    except ValueError:  # the port is not a number, or the address has one bracket
        return None
    return url if usable else None


def _is_address(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True
