"""`connect` and `JetStream`, the entry points of the library."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from ._runtime.connection.connection import Connection
from ._runtime.connection.credentials import check_credentials
from ._runtime.connection.own_connection import OwnConnection
from ._runtime.connection.tls_files import check_tls
from ._runtime.connection.websocket_options import GivenHeaders, UpgradeHeaders, proxy_for
from ._runtime.context import Context
from ._runtime.event_hub import OnEvent
from ._runtime.handle import Handle, Opening
from ._runtime.retry import varied
from ._runtime.tasks import until_done
from .buckets.api import Buckets
from .consumers.api import Subscribing
from .errors import AuthenticationError, ConfigError, ConnectError, DrainTimeoutError, JetStreamError
from .protocol.connection.connection_stats import ConnectionStats
from .protocol.connection.urls import server_urls
from .protocol.consumers.check_budget import STALL_AFTER
from .protocol.wire.api import DEFAULT_PREFIX, Api
from .protocol.wire.checks import check_count, check_seconds, no_such_name
from .protocol.wire.names import check_publish_subject
from .publishing.api import Publishing
from .streams.api import StreamManager
from .topics.api import Topics

if TYPE_CHECKING:
    import ssl

    import nats.aio.client

    from .core.api import Core

__all__ = ["JetStream", "connect"]


class JetStream(Buckets, Topics, StreamManager, Subscribing, Publishing, Handle):
    """A JetStream client. Created by `connect`.

    Its methods publish messages, manage streams, and create subscriptions, buckets and topics. `JetStream.core` gives
    access to plain NATS messages on the same connection.

    If your program already has a nats-py connection, you can create a client from it: ``JetStream(nc)``. Prefer
    `connect` otherwise, because its connection is faster and protected against malformed input.

    Args:
        nc: An open nats-py connection. It is used through its public API, and stays open when this object is closed.
        domain: JetStream domain.
        prefix: Prefix of the JetStream API. It differs from the default if JetStream is imported from another account.
        timeout: Default timeout of API requests and publishes, in seconds.
        on_event: A function or coroutine function that is called with every event (see `jsclient.events`). Messages are
            received while it runs. By default, events are logged.
        stall_after: Seconds without a message after which a reader checks its consumer. If there is a problem, the
            event `ConsumerStalled` reports it. The check is repeated at the same interval. None disables it.
    """

    def __init__(
        self,
        nc: nats.aio.client.Client | Connection,
        domain: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        on_event: OnEvent | None = None,
        *,
        stall_after: float | None = STALL_AFTER,
    ) -> None:
        check_seconds("timeout", timeout)
        if stall_after is not None:
            check_seconds("stall_after", stall_after)
        api = Api(prefix, domain)
        if not isinstance(nc, Connection):
            from ._runtime.connection.user_connection import UserConnection

            nc = UserConnection(nc, on_event)
        self._connection: Connection = nc
        self._context = Context(nc, api, timeout, stall_after)
        self._closing = asyncio.Lock()
        self._core: Core | None = None

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if self.is_closed else "connected" if self.is_connected else "reconnecting"
        url = getattr(connection, "url", "")
        return f"<JetStream {f'{url} ' if url else ''}{state}, server {self.server_version or 'unknown'}>"

    @property
    def is_connected(self) -> bool:
        """True if the client is connected to a server, as far as it knows.

        A lost connection may go unnoticed for a while. Don't check this before a call. Handle `DisconnectedError`.
        """
        return self._connection.is_connected

    @property
    def is_closed(self) -> bool:
        """True once this object or its connection was closed."""
        return self._connection.is_closed

    @property
    def server_version(self) -> str:
        """Version of the connected server, or "" if it is unknown."""
        return self._connection.server_version

    @property
    def core(self) -> Core:
        """Core NATS on this connection: plain messages, requests and services.

        It also works with a server on which JetStream is disabled.
        """
        if self._core is None:
            from .core.api import Core

            self._core = Core(self._context)
        return self._core

    async def ping(self, timeout: float = 5.0) -> float:
        """Send a ping to the server and wait for the answer. Returns the round trip time in seconds.

        Args:
            timeout: Seconds to wait for the answer.

        Raises:
            RequestTimeoutError, DisconnectedError, ClosedError: The server did not answer.
        """
        return await self._connection.ping(timeout)

    async def reconnect(self, timeout: float = 5.0) -> None:
        """Close the connection to the server and connect again, preferably to another server.

        Use it to move a program to other servers, or after its credentials have changed. Subscriptions and readers
        continue. Data that was written before is delivered to the old server first, provided that this server answers
        within half of the timeout.

        Args:
            timeout: Seconds to wait until the client is connected again.

        Raises:
            DisconnectedError: The client is not connected yet. It continues to try.
            ConfigError: You opened the connection yourself, with nats-py.
            ClosedError: The connection is closed.
        """
        await self._connection.reconnect(check_seconds("timeout", timeout))

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Change the servers that are used for the next connection.

        Servers that the cluster announces are used too. The current connection remains open until it is lost, or until
        you call `reconnect`.

        Args:
            servers: See `connect`. User info in a URL replaces the user info of earlier URLs.

        Raises:
            ConfigError: A URL is not valid, or you opened the connection yourself, with nats-py.
        """
        self._connection.set_servers(server_urls(servers))

    def stats(self) -> ConnectionStats:
        """Return statistics of the connection: bytes, messages, reconnects, and data that was not sent yet."""
        return self._connection.stats()

    async def __aenter__(self) -> Self:
        self._connection.check_open()
        return self

    async def drain(self, timeout: float = 30.0) -> None:
        """Finish the work in progress, then close the connection. Use it to shut a program down gracefully.

        1. Subscriptions, workers and services stop receiving messages. `drain` waits until their handlers have ended,
           and until messages that have arrived for a reader without a handler were read.
        2. A fetch in flight ends with the messages that have arrived, and new pulls raise `ClosedError`. `drain` waits
           until the program has acked the fetched messages that it still refers to. Then it ends the pull
           subscriptions, which may delete their consumers. A loop over a pull subscription that the program has left is
           closed after a second, and the messages that it did not read return to the server.
        3. Publishes and requests get their answers, and the server reads the acks.
        4. The connection is closed.

        Stop the tasks that publish before you call `drain`, because it waits for new publishes too. Ordered readers,
        topics and watches are simply closed, because they don't ack messages.

        Args:
            timeout: Seconds for the whole drain.

        Raises:
            DrainTimeoutError: Some work was not finished, which the error describes. The connection is closed anyway.
            ConfigError: `drain` was called by a handler of this connection, for whose end it would have to wait.

        If the call is cancelled, the connection is closed as with `close`.
        """
        from ._draining import drain_handles, is_handler_of_one

        check_seconds("timeout", timeout)
        self._connection.check_here()
        if is_handler_of_one(self._context, asyncio.current_task()):
            raise ConfigError(
                "drain() was called by a handler, whose end it would wait for: call it elsewhere"
            )
        remaining: list[str] = []
        try:
            if not self.is_closed:
                remaining = await drain_handles(self._context, timeout)
        finally:
            await self.close()
        if remaining:
            raise DrainTimeoutError(remaining, timeout)

    async def close(self) -> None:
        """End all subscriptions and close the connection.

        Ephemeral consumers that were created by subscriptions are deleted. Durable consumers are not. If you passed a
        nats-py connection to `JetStream`, it stays open.

        `close` is idempotent. It takes up to 5 s if the server does not answer.

        If the call is cancelled, the connection is closed immediately. Data that was not sent yet is lost, and the
        server removes the ephemeral consumers after their ``inactive_threshold``.
        """
        self._connection.check_here()
        async with self._closing:
            context = self._context
            context.closer = asyncio.current_task()
            ending = asyncio.ensure_future(self._abandon_all())
            try:
                if await self._end_handles(ending):
                    await context.tasks.settle(1.0)
                # Before the connection closes, so that the server removes their inboxes.
                await context.requests.close()
                await self._connection.close()
                await self._finish_close(ending)
            except asyncio.CancelledError:
                self._connection.abort()
                context.tasks.start(self._finish_close(ending), "close")
                raise

    async def _finish_close(self, ending: asyncio.Future[None]) -> None:
        """End the remaining tasks and handles after the connection was closed."""
        context = self._context
        await context.requests.close()
        await asyncio.wait({ending})
        await self._abandon_all()  # wakes up readers of handles that were opened while closing
        await context.tasks.cancel()
        await self._connection.hub.close()

    async def _end_handles(self, ending: asyncio.Future[None]) -> bool:
        """Wait until all handles have ended. Returns False if the server stops answering before that."""
        while not await until_done(ending, _PING_EVERY):
            try:
                await self._connection.ping(_PING_EVERY)
            except JetStreamError:
                return False
        return True

    async def _abandon_all(self) -> None:
        context = self._context
        # If the server does not answer, each handle waits until its timeout, so end them concurrently.
        ends = (handle.abandon() for handle in list(context.open))
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                context.report(result)


_PING_EVERY = 1.0  # interval and timeout of the pings that are sent while closing, in seconds

_WARN_EVERY = 10.0  # interval of the warnings that no server can be reached yet, in seconds

_log = logging.getLogger("jsclient.connection")


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `jsclient.connect` that concern authentication, TLS and the choice of the server."""

    dont_randomize: bool
    ignore_discovered: bool
    max_refusals: int | None
    name: str | None
    nkeys_seed: str | None
    nkeys_seed_str: str | None
    no_echo: bool
    password: str | None
    proxy: str | None
    signature_cb: Callable[[str], bytes] | None
    tls: ssl.SSLContext | bool | str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_handshake_first: bool
    tls_hostname: str | None
    tls_key: str | os.PathLike[str] | None
    token: str | Callable[[], str] | None
    user: str | None
    user_credentials: Any
    user_jwt_cb: Callable[[], bytearray | bytes] | None
    ws_connection_headers: GivenHeaders | None


_LOCAL = ("nats://127.0.0.1:4222",)  # compared by identity: the same URL may also be given


def connect(
    servers: str | Sequence[str] = _LOCAL,
    *,
    context: str | bool | None = None,
    domain: str | None = None,
    prefix: str | None = None,
    timeout: float = 5.0,
    on_event: OnEvent | None = None,
    inbox_prefix: str | None = None,
    connect_timeout: float = 5.0,
    reconnect_time_wait: float = 0.25,
    reconnect_max_wait: float = 1.0,
    ping_interval: float = 20.0,
    wait: float = 0.0,
    stall_after: float | None = STALL_AFTER,
    **options: Unpack[ConnectOptions],
) -> Opening[JetStream]:
    """Connect to a NATS server.

    ::

        async with jsclient.connect("nats://127.0.0.1:4222") as js:
            await js.publish("orders.new", b"...")

    You can also write ``js = await connect(...)``, and call `JetStream.close` at the end.

    The servers are tried one after another, until one of them completes the handshake. If all of them fail, an error is
    raised, either immediately or after ``wait`` seconds. When an established connection is lost, the client reconnects
    automatically.

    The connection belongs to the running event loop. Using it in another event loop, thread or forked process raises
    `WrongLoopError`.

    Args:
        servers: One URL or several, in a list or separated by commas. ``nats://`` is a plain connection. ``tls://``
            requires TLS. ``ws://`` and ``wss://`` are WebSockets. User info in a URL, ``user:password@`` or ``token@``,
            must be percent-encoded. It is also used for the servers that this server announces. A URL without user info
            uses the user info of the first URL that has it. The options below take precedence over user info. The
            default is ``nats://127.0.0.1:4222``, or the servers of the context.
        context: The name of a context of the command line tool ``nats``, or True for the selected context. Its fields
            are used for options that are not given. If you give an option of the identity, of ``tls``, ``tls_cert`` and
            ``tls_key``, or of ``domain`` and ``prefix``, the context is not used for the others of this group. A field
            that jsclient cannot use raises `ConfigError`. The file is read once, when connecting.
        domain, prefix, timeout, on_event, stall_after: See `JetStream`.
        inbox_prefix: The first token of reply and deliver subjects, by default ``_INBOX``. Give users different
            prefixes if their permissions should prevent them from reading each other's answers.
        connect_timeout: Seconds for one attempt to connect, including the handshake.
        reconnect_time_wait: Seconds between the first attempts to reconnect. The very first attempt takes place at a
            random time within this interval. The pause doubles after each failure, and it is varied by a quarter, so
            that not all clients reconnect at the same time.
        reconnect_max_wait: The maximum pause between attempts to reconnect, in seconds.
        ping_interval: Seconds between pings. The client reconnects when two pings are not answered.
        wait: Seconds during which attempts to connect are repeated. This is useful if the server starts at the same
            time as this program. A warning is logged every 10 s. If the server refuses the credentials, the error is
            raised immediately.
        options: For identity and TLS, with the names of nats-py: ``name``, ``user``, ``password``, ``token``,
            ``user_credentials``, ``nkeys_seed``, ``nkeys_seed_str``, ``tls``, ``tls_hostname``,
            ``tls_handshake_first``, ``no_echo``, ``signature_cb``, ``user_jwt_cb``, ``ws_connection_headers``.
            ``proxy`` is the URL of an HTTP proxy for WebSockets, ``http://user:password@host:port``.
            ``ws_connection_headers`` has HTTP headers for WebSockets: a mapping of names to values or lists of values,
            or a function or coroutine function that returns one. It is called at each attempt to connect.
            ``dont_randomize`` keeps the order of the servers. ``ignore_discovered`` uses only the servers of the list.
            ``max_refusals`` is the number of refusals of the credentials, in a row by one server, after which a lost
            connection is closed instead of restored. The default, None, always restores it. ``user_credentials`` is the
            path of a credentials file, which is read at each attempt to connect. A JWT that has expired by the clock of
            this machine is logged as a warning, and sent: the server decides. ``tls`` is an ``ssl.SSLContext``, True
            for the authorities that this machine trusts, or the path of a file with another authority, as in
            ``tls="ca.pem"``. ``tls_cert`` and ``tls_key`` are the paths of the client's certificate and of its key, if
            the file of the certificate has none. Files are read again at an attempt to connect after they were
            replaced. An ``ssl.SSLContext`` is used as it is. ``token``, ``signature_cb`` and ``user_jwt_cb`` may be
            plain functions, not coroutine functions. They are called on the event loop at each attempt to connect and
            must not block: return a value that another task or thread keeps current. If a function raises, or returns
            another type, the attempt fails with `ConnectError`. While reconnecting, the event `ErrorRaised` reports
            this once, and the attempts continue.

    Raises:
        ConnectError: No server could be reached, or no server offered the requested TLS.
        AuthenticationError: The server refused the credentials. If their JWT has expired, the error tells the date.
        ConfigError: An option does not exist or has a value that cannot be used, or a file that it names cannot be read
            or is malformed. A file is read at each attempt, so this can also be raised during ``wait``.
    """

    async def opened() -> JetStream:
        _check_names(options)
        more = {"domain": domain, "prefix": prefix, "inbox_prefix": inbox_prefix, **options}
        chosen: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        if servers is not _LOCAL:
            chosen["servers"] = server_urls(servers)
        # The context is read here, so that an object that was made earlier connects with the newest file.
        if context is not None and context is not False:
            from ._runtime.saved_contexts import with_context

            chosen = with_context(context, chosen)
        urls = server_urls(chosen.pop("servers", _LOCAL))
        inboxes = chosen.pop("inbox_prefix", "_INBOX")
        api_domain, api_prefix = chosen.pop("domain", None), chosen.pop("prefix", DEFAULT_PREFIX)
        settings = _checked(urls, inboxes, chosen)
        times = {"connect_timeout": connect_timeout, "ping_interval": ping_interval}
        pauses = {"reconnect_time_wait": reconnect_time_wait, "reconnect_max_wait": reconnect_max_wait}
        for what, seconds in {**times, **pauses}.items():
            check_seconds(what, seconds)
        if wait:
            check_seconds("wait", wait)
        settings |= {**times, "version": sys.modules["jsclient"].__version__}

        async def attempt() -> JetStream:
            connection = OwnConnection(on_event, inboxes)
            js = JetStream(connection, api_domain, api_prefix, timeout, stall_after=stall_after)
            await connection.open(urls, **pauses, options=settings)
            _log.info("connected to %s, nats-server %s", connection.url, connection.server_version)
            return js

        return await _until_up(attempt, wait, pauses["reconnect_time_wait"])

    return Opening(opened, "connect()")


async def _until_up(attempt: Callable[[], Awaitable[JetStream]], wait: float, pause: float) -> JetStream:
    """Try to connect for ``wait`` seconds. Raises the error of the last attempt."""
    warn_at = time.monotonic()
    deadline = warn_at + wait
    while True:
        try:
            return await attempt()
        except AuthenticationError:  # another attempt with the same credentials would fail again
            raise
        except ConnectError as error:
            now = time.monotonic()
            if now + pause > deadline:
                raise
            if now >= warn_at:
                warn_at = now + _WARN_EVERY
                _log.warning("%s; connecting is repeated for another %.0f s", error, deadline - now)
        await asyncio.sleep(varied(pause))


_OPTIONS = ConnectOptions.__annotations__.keys()


def _check_names(options: Mapping[str, Any]) -> None:
    if unknown := sorted(set(options) - _OPTIONS):
        known = (connect.__kwdefaults__ or {}).keys() | _OPTIONS | {"servers"}
        raise ConfigError(". ".join(no_such_name("connect()", "option", name, known) for name in unknown))


def _checked(urls: list[str], inbox_prefix: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the given options and return them with the credentials as callbacks. Raises `ConfigError`."""
    check_publish_subject(inbox_prefix)
    if empty := sorted(name for name, value in options.items() if value == ""):
        raise ConfigError(f"{', '.join(empty)} is an empty text: leave it out, or pass None")
    if "max_refusals" in options:
        check_count("max_refusals", options["max_refusals"])
    return {
        **options,
        **check_credentials(options),
        "tls": check_tls(options),
        "proxy": proxy_for(urls, options.get("proxy")),
        "ws_connection_headers": UpgradeHeaders(options.get("ws_connection_headers")),
    }
