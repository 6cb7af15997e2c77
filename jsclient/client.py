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
from ._runtime.connection.websocket.proxy import proxy_for
from ._runtime.connection.websocket.upgrade_headers import HeadersOption, UpgradeHeaders
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

    If your application already has a nats-py connection, call ``JetStream(nc)`` to create a client that uses it.
    Otherwise, prefer `connect`, because its connection is faster and is protected against malformed input.

    Args:
        nc: An open nats-py connection. The client uses only its public API, and doesn't close it.
        domain: JetStream domain. By default, the domain of the server is used.
        prefix: Prefix of the JetStream API. Change it if JetStream is imported from another account.
        timeout: Default timeout for API requests and published messages, in seconds.
        on_event: A function or coroutine function that is called with each event (see `jsclient.events`). The client
            continues to receive messages while a coroutine function runs. By default, events are logged.
        stall_after: If a reader waits this many seconds without receiving a message, it checks whether its consumer has
            a problem, and reports the problem with the event `ConsumerStalled`. The check is repeated at the same
            interval. None disables the check.
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
        """Whether the client is connected to a server, as far as it knows.

        A lost connection may go unnoticed for a while, so don't check this property before a call. Handle
        `DisconnectedError` instead.
        """
        return self._connection.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether this client or its connection has been closed. A closed client can't be reopened."""
        return self._connection.is_closed

    @property
    def server_version(self) -> str:
        """Version of the current server, or the last one while disconnected, such as ``2.11.4``. "" if unknown."""
        return self._connection.server_version

    @property
    def core(self) -> Core:
        """Core NATS on this connection: plain messages, requests and services.

        ::

            reply = await js.core.request("time.now")

        It also works with a server on which JetStream is disabled.
        """
        if self._core is None:
            from .core.api import Core

            self._core = Core(self._context)
        return self._core

    async def ping(self, timeout: float = 5.0) -> float:
        """Send a ping to the server, and return the round-trip time in seconds.

        The server reads everything sent on a connection in order, so the response also shows that it has read all data
        written before.

        Args:
            timeout: How long to wait for the response, in seconds.

        Raises:
            RequestTimeoutError: No response arrived in time.
            DisconnectedError: The connection was lost, or isn't open.
            ClosedError: The client is closed.
        """
        return await self._connection.ping(timeout)

    async def reconnect(self, timeout: float = 5.0) -> None:
        """Close the connection to the server and connect again, preferably to a different server.

        Use it to move an application to other servers, or after its credentials have changed. Subscriptions and readers
        continue on the new connection. Before disconnecting, the client makes sure that the old server has received all
        data written so far, unless that takes more than half of the timeout.

        Args:
            timeout: How long to wait until the client is connected again, in seconds.

        Raises:
            DisconnectedError: The client couldn't connect within ``timeout`` seconds. It keeps trying in the
                background.
            ConfigError: The client uses a nats-py connection, which can't be reconnected on request.
            ClosedError: The client is closed.
        """
        await self._connection.reconnect(check_seconds("timeout", timeout))

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Change the list of servers to connect to.

        The new list takes effect when the current connection is lost or `reconnect` is called. The client also keeps
        using the servers announced by the cluster.

        Args:
            servers: A URL or a sequence of URLs. User info in a URL replaces the user info of earlier URLs.

        Raises:
            ConfigError: A URL is invalid, or the client uses a nats-py connection. The list is unchanged.
        """
        self._connection.set_servers(server_urls(servers))

    def stats(self) -> ConnectionStats:
        """Return statistics of the connection, such as the numbers of messages, bytes and reconnects.

        The returned `ConnectionStats` doesn't change afterwards. Call the method again for current numbers.
        """
        return self._connection.stats()

    async def __aenter__(self) -> Self:
        self._connection.check_open()
        return self

    async def drain(self, timeout: float = 30.0) -> None:
        """Finish the work in progress and close the connection. Use it to shut an application down gracefully.

        1. Subscriptions, workers and services stop receiving messages. `drain` waits until their handlers have
           finished, and until the application has read the messages already received by readers without a handler.
        2. Fetches in flight return the messages already received, and new pulls raise `ClosedError`. `drain` waits
           until the application has acknowledged the fetched messages that it still references. It then ends the pull
           subscriptions, which may delete their consumers. If the application has left a loop over a pull subscription,
           the loop is closed after a second, and its unread messages return to the server.
        3. `drain` waits for the responses to requests and published messages, and for the server to receive the
           acknowledgements.
        4. The connection is closed.

        Before you call `drain`, stop the tasks that publish messages, because `drain` waits for new messages too.
        Ordered readers, topics and watches are closed immediately, because they don't acknowledge messages.

        Args:
            timeout: Time limit of the whole drain, in seconds.

        Raises:
            DrainTimeoutError: Some work couldn't be finished in time. The error lists it. The connection is closed
                anyway.
            ConfigError: `drain` was called by a handler of this connection, so it would have to wait for itself.

        If the call is cancelled, the connection is closed as if by `close`.
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

        Ephemeral consumers created by subscriptions are deleted, but durable consumers are not. A nats-py connection
        passed to `JetStream` stays open. To finish the work in progress first, call `drain` instead.

        Calling `close` again does nothing. If the server doesn't respond, the call returns after at most 5 s.

        If the call is cancelled, the connection is closed immediately. Unsent data is lost, and the server removes the
        ephemeral consumers after their ``inactive_threshold``.
        """
        self._connection.check_here()
        async with self._closing:
            context = self._context
            context.closer = asyncio.current_task()
            ending = asyncio.ensure_future(self._abandon_all())
            try:
                if await self._end_handles(ending):
                    await context.tasks.settle(1.0)
                # Close the requests while the connection is still open, so that the server removes their inboxes.
                await context.requests.close()
                await self._connection.close()
                await self._finish_close(ending)
            except asyncio.CancelledError:
                self._connection.abort()
                context.tasks.start(self._finish_close(ending), "close")
                raise

    async def _finish_close(self, ending: asyncio.Future[None]) -> None:
        """End the remaining tasks and handles after the connection has been closed."""
        context = self._context
        await context.requests.close()
        await asyncio.wait({ending})
        await self._abandon_all()  # ends handles opened in the meantime, whose readers would wait forever
        await context.tasks.cancel()
        await self._connection.hub.close()

    async def _end_handles(self, ending: asyncio.Future[None]) -> bool:
        """Wait until all handles have ended. Return False if the server stops responding before that."""
        while not await until_done(ending, _PING_EVERY):
            try:
                await self._connection.ping(_PING_EVERY)
            except JetStreamError:
                return False
        return True

    async def _abandon_all(self) -> None:
        context = self._context
        # End the handles concurrently. Otherwise, their timeouts would add up if the server doesn't respond.
        ends = (handle.abandon() for handle in list(context.open))
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                context.report(result)


_PING_EVERY = 1.0  # interval and timeout of the pings that are sent while closing, in seconds

_WARN_EVERY = 10.0  # interval between warnings that no server can be reached yet, in seconds

_log = logging.getLogger("jsclient.connection")


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `jsclient.connect` for authentication, TLS and the choice of servers.

    Use it to annotate wrappers, as in ``def open(**options: Unpack[ConnectOptions])``. See `jsclient.connect`.
    """

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
    ws_connection_headers: HeadersOption | None


# Recognized by its identity, because servers that the caller passes, even this one, override a saved context.
_LOCAL = ("nats://127.0.0.1:4222",)


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

    You can also write ``js = await connect(...)``, and call `JetStream.close` at the end. The connection belongs to the
    running event loop. Using it in another event loop, thread or forked process raises `WrongLoopError`.

    The client tries the servers in turn until one of them completes the handshake. If all of them fail, it raises an
    error. Pass ``wait`` to keep trying for some time instead. If an established connection is lost, the client
    reconnects automatically.

    Args:
        servers: One URL or several, in a list or separated by commas. ``nats://`` is a plain connection, ``tls://``
            requires TLS, and ``ws://`` and ``wss://`` are WebSockets. Percent-encode user info in a URL
            (``user:password@`` or ``token@``). URLs without user info use the first user info in the list. Servers
            announced by the cluster use the user info of the server that announced them. Options such as ``user`` and
            ``token`` take precedence over user info. Defaults to ``nats://127.0.0.1:4222``, or to the servers of the
            context.
        context: The name of a context of the ``nats`` command-line tool, or True for the selected context. Its fields
            supply the options that you don't pass. Related options are never mixed: if you pass any option for
            identity, for TLS (``tls``, ``tls_cert``, ``tls_key``), or any of ``domain`` and ``prefix``, the context's
            fields for that group are ignored. If the context has a field that jsclient doesn't support, `ConfigError`
            is raised. The file is read once, when connecting.
        domain: JetStream domain. By default, the domain of the server is used.
        prefix: Prefix of the JetStream API. Change it if JetStream is imported from another account.
        timeout: Default timeout for API requests and published messages, in seconds.
        on_event: A function or coroutine function to call with each event. By default, events are logged.
        stall_after: How long a reader waits for a message before it looks for a problem, in seconds. See `JetStream`.
        inbox_prefix: Prefix of reply and deliver subjects. Defaults to ``_INBOX``. If users must not be able to read
            each other's responses, give them different prefixes and restrict their permissions accordingly.
        connect_timeout: Time limit of one attempt to connect, including the handshake, in seconds.
        reconnect_time_wait: Initial pause between attempts to reconnect, in seconds. The first attempt takes place at a
            random time within this interval. The pause doubles after each failure, with a random variation of a
            quarter, so that many clients don't reconnect at the same time.
        reconnect_max_wait: Maximum pause between attempts to reconnect, in seconds.
        ping_interval: How often the client pings the server, in seconds. If two pings remain unanswered, the client
            reconnects.
        wait: How long to keep trying to connect, in seconds, for example while the server starts. A warning is logged
            every 10 s. Rejected credentials raise an error immediately. By default, each server is tried once.
        options: Options for identity, TLS and the choice of servers. Most have the same names as in nats-py.

            - ``name``: Name of the connection, shown in the server's monitoring.
            - ``user``, ``password``: Name and password of the user.
            - ``token``: A token, or a function that returns one.
            - ``user_credentials``: Path of a credentials file, which is read at each attempt to connect. If its JWT has
              expired according to the local clock, a warning is logged, but the JWT is still sent, because the server
              decides.
            - ``nkeys_seed``, ``nkeys_seed_str``: Path of the file with an nkey's seed, or the seed itself.
            - ``user_jwt_cb``, ``signature_cb``: Functions that return the user's JWT, and sign the server's nonce.
            - ``max_refusals``: Number of consecutive rejections of the credentials by one server after which the client
              stops reconnecting and closes. Unlimited by default.
            - ``tls``: True to trust the system's certificate authorities, the path of a file with other authorities, or
              an ``ssl.SSLContext``, which is used unchanged.
            - ``tls_cert``, ``tls_key``: Paths of the client's certificate, and of its key unless the certificate's file
              contains it. If a file has been replaced, it is read again at the next attempt to connect.
            - ``tls_hostname``: Name in the server's certificate. Defaults to the host of the URL.
            - ``tls_handshake_first``: Begin with TLS, for a server with ``handshake_first``.
            - ``dont_randomize``: Keep the order of the servers.
            - ``ignore_discovered``: Ignore servers announced by the cluster.
            - ``no_echo``: Don't receive the messages that this connection publishes.
            - ``proxy``: URL of an HTTP proxy for WebSockets, ``http://user:password@host:port``.
            - ``ws_connection_headers``: HTTP headers for WebSockets. A mapping from names to values or lists of values,
              or a function or coroutine function that returns one and is called at each attempt.

            The functions for ``token``, ``user_jwt_cb`` and ``signature_cb`` are called on the event loop at each
            attempt. They must not block, so let another task or thread refresh the value that they return. If a
            function raises an exception or returns the wrong type, the attempt fails with `ConnectError`. While
            reconnecting, the event `ErrorRaised` reports this once, and the client keeps trying.

    Raises:
        ConnectError: No server could be reached, or no server offered the requested TLS.
        AuthenticationError: The server rejected the credentials. If their JWT has expired, the error states the date.
        ConfigError: An option is unknown or invalid, or a file named by an option is unreadable or malformed. Files are
            read at each attempt, so this error can also be raised during ``wait``.
    """

    async def opened() -> JetStream:
        _check_names(options)
        more = {"domain": domain, "prefix": prefix, "inbox_prefix": inbox_prefix, **options}
        chosen: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        if servers is not _LOCAL:
            chosen["servers"] = server_urls(servers)
        # Read the saved context only now. connect() may have been called long before, and the file may have changed.
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
    """Try to connect for up to ``wait`` seconds. If all attempts fail, raise the error of the last one."""
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
    """Check the options and return them, with the credentials converted to callbacks. May raise `ConfigError`."""
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
