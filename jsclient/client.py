"""`connect` and `JetStream`, the entry points of the library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ._runtime.context import Context
from ._runtime.event_hub import OnEvent
from ._runtime.handle import Handle, Opening
from ._runtime.nats.connection import Connection
from ._runtime.nats.nats_client import seam_gaps
from ._runtime.nats.own_connection import GuardedConnection
from ._runtime.nats.urls import shown
from ._runtime.nats.user_connection import ForeignConnection, open_plain
from .consumers.api import Subscribing
from .errors import ConfigError
from .protocol.wire.checks import check_seconds, no_such_name
from .protocol.wire.names import check_publish_subject
from .protocol.wire.subjects import DEFAULT_PREFIX, Api
from .publishing.api import Publishing
from .streams.api import StreamManager
from .topics.api import Topics

if TYPE_CHECKING:
    import ssl

    import nats.aio.client

__all__ = ["JetStream", "connect"]


class JetStream(Topics, StreamManager, Subscribing, Publishing, Handle):
    """JetStream on one connection.

    Args:
        nc: A nats-py connection of your own, used through its public API and not closed. `connect` opens a connection
            that is faster, guarded against malformed input, and closed with this object.
        domain: JetStream domain.
        prefix: API prefix, for imported accounts.
        timeout: Seconds for API requests and publishes.
        on_event: Called with every event (see `jsclient.events`); a function or a coroutine function. It never
            blocks reading. By default events are logged, see `jsclient.events`.
    """

    def __init__(
        self,
        nc: nats.aio.client.Client | Connection,
        domain: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        on_event: OnEvent | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        api = Api(prefix, domain)
        connection = nc if isinstance(nc, Connection) else ForeignConnection(nc, on_event)
        self._connection = connection
        self._context = Context(connection, api, timeout)
        self._closing = asyncio.Lock()

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if self.is_closed else "connected" if self.is_connected else "reconnecting"
        url = getattr(connection, "url", "")
        return f"<JetStream {f'{url} ' if url else ''}{state}, server {self.server_version or 'unknown'}>"

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected, as far as is known."""
        return self._connection.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether this object or its connection is closed."""
        return self._connection.is_closed

    @property
    def server_version(self) -> str:
        """The version of the current server, "" if unknown."""
        return self._connection.server_version

    async def ping(self, timeout: float = 5.0) -> float:
        """Seconds of a round trip to the server. Raises `RequestTimeoutError`, `DisconnectedError`, `ClosedError`."""
        return await self._connection.ping(timeout)

    async def close(self) -> None:
        """End all subscriptions and close the connection (a connection of your own stays open).

        Ephemeral consumers that subscriptions created are deleted; durable ones stay.
        """
        async with self._closing:
            context = self._context
            context.closer = asyncio.current_task()
            await self._abandon_all()
            await context.tasks.settle(1.0)
            await context.requests.close()
            await self._connection.close()
            await self._abandon_all()  # handles that were opened meanwhile: their readers must wake up
            await context.tasks.cancel()
            await self._connection.hub.close()

    async def _abandon_all(self) -> None:
        context = self._context
        # Concurrently: if the server does not answer, each waits until its timeout.
        ends = (handle.abandon() for handle in list(context.open))
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                context.report(result)


_log = logging.getLogger("jsclient.connection")


class ConnectOptions(TypedDict, total=False):
    """Options of nats-py's ``connect`` for identity and TLS."""

    dont_randomize: bool
    name: str | None
    nkeys_seed: str | None
    nkeys_seed_str: str | None
    no_echo: bool
    password: str | None
    signature_cb: Callable[[str], bytes] | None
    tls: ssl.SSLContext | None
    tls_handshake_first: bool
    tls_hostname: str | None
    token: str | Callable[[], str] | None
    user: str | None
    user_credentials: Any
    user_jwt_cb: Callable[[], bytearray | bytes] | None
    ws_connection_headers: dict[str, list[str]] | None


def connect(
    servers: str | Sequence[str] = "nats://127.0.0.1:4222",
    *,
    domain: str | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeout: float = 5.0,
    on_event: OnEvent | None = None,
    inbox_prefix: str = "_INBOX",
    connect_timeout: float = 5.0,
    reconnect_time_wait: float = 0.25,
    ping_interval: float = 20.0,
    **options: Unpack[ConnectOptions],
) -> Opening[JetStream]:
    """Connect to NATS: ``async with connect(...) as js`` or ``js = await connect(...)``.

    The first connection fails at once if no server can be reached; an established connection is restored until
    `JetStream.close`.

    Args:
        servers: One URL, or several; ``tls://`` requires TLS. User info in a URL, ``user:password@`` or ``token@``,
            percent-encoded, is also used for the servers that the cluster announces. The options below win over it.
        domain, prefix, timeout, on_event: As `JetStream`.
        inbox_prefix: The first token of reply and deliver subjects; permissions can separate users by their own prefix.
        connect_timeout: Seconds per attempt.
        reconnect_time_wait: Seconds between attempts to reconnect to the same server.
        ping_interval: Seconds between PINGs; after two without a reply the client reconnects.
        options: Options of nats-py's ``connect`` for identity and TLS: ``name``, ``user``, ``password``, ``token``,
            ``user_credentials``, ``nkeys_seed``, ``nkeys_seed_str``, ``tls``, ``tls_hostname``,
            ``tls_handshake_first``, ``no_echo``, ``dont_randomize``, ``signature_cb``, ``user_jwt_cb``.

    Raises:
        ConnectError: No server could be reached, or TLS was requested and not offered.
        AuthenticationError: The server refused the credentials.
        ConfigError: An option does not exist.
    """

    async def opened() -> JetStream:
        urls = [servers] if isinstance(servers, str) else list(servers)
        settings = {
            **_checked(urls, inbox_prefix, options),
            "connect_timeout": connect_timeout,
            "ping_interval": ping_interval,
            "max_outstanding_pings": 2,
        }
        if gaps := seam_gaps():
            _log.warning(
                "this version of nats-py is not known to jsclient (%s): its public API is used, which is slower, "
                "and odd input from a server can end the connection",
                ", ".join(gaps),
            )
            plain = await open_plain(
                urls, on_event, inbox_prefix, reconnect_time_wait=reconnect_time_wait, options=settings
            )
            return JetStream(plain, domain, prefix, timeout)
        connection = GuardedConnection(on_event, inbox_prefix)
        js = JetStream(connection, domain, prefix, timeout)
        await connection.open(urls, reconnect_time_wait=reconnect_time_wait, options=settings)
        _log.info("connected to %s, nats-server %s", connection.url, connection.server_version)
        return js

    return Opening(opened, "connect()")


_OPTIONS = ConnectOptions.__annotations__.keys()


_SCHEMES = frozenset({"nats", "tls", "ws", "wss"})


def _checked(urls: list[str], inbox_prefix: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for nats-py. Raises `ConfigError`."""
    if unknown := sorted(set(options) - _OPTIONS):
        known = (connect.__kwdefaults__ or {}).keys() | _OPTIONS
        raise ConfigError(". ".join(no_such_name("connect()", "option", name, known) for name in unknown))
    check_publish_subject(inbox_prefix)
    for url in urls:
        scheme, given, _ = str(url).partition("://")
        if given and scheme.lower() not in _SCHEMES:
            raise ConfigError(
                f"unknown scheme {scheme!r} in {shown(url)!r}: use nats://, tls://, ws:// or wss://"
            )
    if not urls:
        raise ConfigError("servers is empty: give at least one URL")
    return dict(options)
