"""`connect` and `JetStream`, the entry points of the library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._runtime.context import Context
from ._runtime.event_hub import OnEvent
from ._runtime.nats.connection import Connection
from ._runtime.nats.nats_client import seam_gaps
from ._runtime.nats.own_connection import GuardedConnection
from ._runtime.nats.user_connection import ForeignConnection, open_plain
from .consumers.api import Subscribing
from .errors import ConfigError
from .protocol.wire.names import check_publish_subject
from .protocol.wire.subjects import DEFAULT_PREFIX, Api
from .publishing.api import Publishing
from .streams.api import StreamManager
from .topics.api import Topics

if TYPE_CHECKING:
    import nats.aio.client

__all__ = ["JetStream", "connect"]


class JetStream(Topics, StreamManager, Subscribing, Publishing):
    """JetStream on one connection.

    Args:
        nc: A nats-py connection of your own, used through its public API and not closed; `connect` makes a connection
            that is faster, guarded against odd input, and closed with this object.
        domain: JetStream domain.
        prefix: API prefix, for imported accounts.
        timeout: Seconds that API requests and publishes wait.
        on_event: Is called with every event (see `jsclient.events`); a function or a coroutine function. It
            never holds up reading. By default events are logged as warnings.
    """

    def __init__(
        self,
        nc: nats.aio.client.Client | Connection,
        domain: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        on_event: OnEvent | None = None,
    ) -> None:
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0 < timeout < float("inf")
        ):
            raise ConfigError(f"timeout is {timeout!r} s: it must be over 0")
        api = Api(prefix, domain)
        connection = nc if isinstance(nc, Connection) else ForeignConnection(nc, on_event)
        self._connection = connection
        self._context = Context(connection, api, timeout)
        self._closing = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected at this moment, as far as is known."""
        return self._connection.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._connection.is_closed

    @property
    def server_version(self) -> str:
        """The version of the server connected to, "" if unknown."""
        return self._connection.server_version

    async def ping(self, timeout: float = 5.0) -> float:
        """A round trip to the server, seconds. Raises `RequestTimeoutError`, `DisconnectedError`, `ClosedError`."""
        return await self._connection.ping(timeout)

    # --- ending --------------------------------------------------------------------------------------------

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
            await (
                self._abandon_all()
            )  # what was opened in the meantime: nobody else would tell those who wait for it
            await context.tasks.cancel()
            await self._connection.hub.close()

    async def _abandon_all(self) -> None:
        context = self._context
        # All at once: with a server that does not answer, each would wait its time out.
        ends = (handle.abandon() for handle in list(context.open))
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                context.report(result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_log = logging.getLogger("jsclient")


class _Connecting:
    """What `connect` returns: await it, or use it with ``async with``."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._js: JetStream | None = None

    def __await__(self) -> Generator[Any, None, JetStream]:
        return _connect(**self._arguments).__await__()

    async def __aenter__(self) -> JetStream:
        self._js = await _connect(**self._arguments)
        return self._js

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._js is not None:
            await self._js.close()


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
    **options: Any,
) -> _Connecting:
    """Connect to NATS: ``async with connect(...) as js`` or ``js = await connect(...)``.

    The first connection fails at once if no server can be reached; a connection that was made is kept up until
    `JetStream.close`.

    Args:
        servers: One URL, or several; ``tls://`` requires TLS. User info in a URL, ``user:password@`` or ``token@``,
            percent-encoded, is also used for the servers that the cluster announces. The options below win over it.
        domain, prefix, timeout, on_event: As `JetStream`.
        inbox_prefix: What reply and deliver subjects start with; one of your own keeps them apart by permissions.
        connect_timeout: Seconds for one attempt.
        reconnect_time_wait: Seconds between attempts to reconnect to the same server.
        ping_interval: Seconds between PINGs; two without answer mean a dead connection.
        options: What nats-py's ``connect`` takes for identity and TLS: ``name``, ``user``, ``password``, ``token``,
            ``user_credentials``, ``nkeys_seed``, ``nkeys_seed_str``, ``tls``, ``tls_hostname``,
            ``tls_handshake_first``, ``no_echo``, ``dont_randomize``, ``signature_cb``, ``user_jwt_cb``.

    Raises:
        ConnectError: No server could be reached, or TLS was asked for and not offered.
        AuthenticationError: The server refused the credentials.
        ConfigError: An option that does not exist.
    """
    return _Connecting(locals())


_OPTIONS = frozenset(
    {
        "dont_randomize",
        "name",
        "nkeys_seed",
        "nkeys_seed_str",
        "no_echo",
        "password",
        "signature_cb",
        "tls",
        "tls_handshake_first",
        "tls_hostname",
        "token",
        "user",
        "user_credentials",
        "user_jwt_cb",
        "ws_connection_headers",
    }
)


async def _connect(
    *,
    servers: str | Sequence[str],
    domain: str | None,
    prefix: str,
    timeout: float,
    on_event: OnEvent | None,
    inbox_prefix: str,
    connect_timeout: float,
    reconnect_time_wait: float,
    ping_interval: float,
    options: dict[str, Any],
) -> JetStream:
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ConfigError(
            f"connect() has no option {', '.join(unknown)}; it has {', '.join(sorted(_OPTIONS))}"
        )
    check_publish_subject(inbox_prefix)
    urls = [servers] if isinstance(servers, str) else list(servers)
    if not urls:
        raise ConfigError("servers is empty: give at least one URL")
    settings = {
        **options,
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
    return js
