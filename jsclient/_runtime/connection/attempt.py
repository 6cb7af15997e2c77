"""One attempt to connect to one server, and the reason if it fails."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...protocol.connection.handshake import (
    ConnectSettings,
    Handshake,
    HandshakeEndedError,
    HandshakeError,
    Identify,
    Ready,
    StartTls,
    Step,
    Write,
    refusal_in,
)
from ...protocol.connection.pool import Server
from ...protocol.connection.server_info import ServerInfo
from ...protocol.connection.urls import is_websocket
from .certificates import (
    alert,
    begins_with_info,
    begins_with_tls,
    certificate_error,
    is_unfinished,
    late_alert,
    received_before_tls,
    rejection,
)
from .identity import Identity
from .tcp_transport import TcpTransport
from .tls_files import TlsFiles
from .transport import Transport
from .websocket.proxy import Proxy
from .websocket.transport import WebSocketTransport
from .websocket.upgrade_headers import UpgradeHeaders

__all__ = ["Attempt", "AttemptSettings", "ServerLink"]


class ServerLink(NamedTuple):
    """A connection whose handshake is complete. ``rest`` contains the bytes that arrived after the handshake."""

    transport: Transport
    server: Server
    info: ServerInfo
    rest: bytes


class AttemptSettings:
    """The settings that all attempts of a connection share, from the options of `connect`."""

    def __init__(self, connect: ConnectSettings, identity: Identity, options: Mapping[str, Any]) -> None:
        self.connect = connect
        self.identity = identity
        self.timeout = float(options["connect_timeout"])
        self.headers: UpgradeHeaders = options["ws_connection_headers"]
        self.proxy: Proxy | None = options["proxy"]
        self.tls_first = bool(options.get("tls_handshake_first"))
        self.wants_tls = self.tls_first or options.get("tls") is not None
        self.tls_name: str | None = options.get("tls_hostname")
        self._tls: ssl.SSLContext | TlsFiles = options.get("tls") or TlsFiles()

    @property
    def context(self) -> ssl.SSLContext:
        """The given context, or a context with the current content of the given files."""
        return self._tls.context() if isinstance(self._tls, TlsFiles) else self._tls


class Attempt:
    """An attempt to connect to a server.

    If ``first`` is True, the attempt belongs to the first connect, and its failure is examined more closely.
    """

    def __init__(self, server: Server, settings: AttemptSettings, *, first: bool) -> None:
        self._server = server
        self._settings = settings
        self._first = first
        url = server.url
        tcp = TcpTransport()
        self._transport: TcpTransport | WebSocketTransport = (
            WebSocketTransport(tcp, settings.headers, settings.proxy) if is_websocket(url) else tcp
        )
        self._shake: Handshake | None = None

    async def run(self) -> ServerLink:
        """Connect and complete the handshake, within ``connect_timeout``. Any exception may be raised."""
        limit = self._settings.timeout
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                return await self._connect()
        except BaseException as error:
            self._transport.abort()
            if isinstance(error, TimeoutError) and timeout.expired():
                raise await self._on_wrong_foot() or TimeoutError(f"no answer within {limit:g} s") from error
            if isinstance(error, OSError | HandshakeError):
                explained = await self._explained(error)
                if explained is not None:
                    raise explained from error
            raise

    def abort(self) -> None:
        """Close the connection of the attempt."""
        self._transport.abort()

    @property
    def info(self) -> ServerInfo | None:
        """The INFO of the server, if it has arrived."""
        return self._shake.info if self._shake is not None else None

    @property
    def _name(self) -> str:
        """The name that the server's certificate must have."""
        server = self._server
        return self._settings.tls_name or server.tls_name or server.url.hostname or ""

    async def _connect(self) -> ServerLink:
        server, settings, transport = self._server, self._settings, self._transport
        secure_url = server.url.scheme in {"tls", "wss"}
        # Create the context only when it is needed, because loading the system's CA certificates is slow.
        if isinstance(transport, WebSocketTransport):
            context = settings.context if server.url.scheme == "wss" else None
            await transport.open_websocket(server.url, context, self._name)
        else:
            await transport.connect(server.url)
        self._shake = shake = Handshake(
            settings.connect,
            wants_tls=settings.wants_tls or secure_url,
            tls_first=settings.tls_first,
            secure=transport.is_secure(),
            upgradable=transport.upgradable,
        )
        steps = deque(shake.begin())
        while True:
            while steps:
                step = steps.popleft()
                if isinstance(step, Ready):
                    return ServerLink(transport, server, step.info, step.rest)
                steps.extend(await self._take(step, shake))
            data = await transport.receive()
            if not data:
                raise shake.ended()
            steps.extend(shake.receive(data))

    async def _take(self, step: Step, shake: Handshake) -> list[Step]:
        """Carry out a step, and return the steps that follow from it."""
        match step:
            case StartTls():
                await self._transport.start_tls(self._settings.context, self._name)
                return shake.tls_started()
            case Identify(info):
                return shake.identified(self._settings.identity.fields(info, self._server.url))
            case Write(data):
                self._transport.write(data)
            case Ready():
                pass  # never happens, because `_connect` returns at this step
        return []

    # --- explaining a failure --------------------------------------------------------------------------------

    async def _explained(self, error: Exception) -> Exception | None:
        """Return an error that explains more than the failed handshake, or None.

        The server's answer is checked first, because the server closes the connection during the handshake. The answer
        may be in the bytes that were not read, on a second connection if it refuses before TLS, or in a TLS alert.
        """
        transport, url, first = self._transport, self._server.url, self._settings.tls_first
        if (rejected := rejection(error)) is not None:
            may_dial = self._settings.proxy is None
            return await certificate_error(rejected, url, self._name, tls_first=first, may_dial=may_dial)
        if not isinstance(error, OSError):
            return await self._on_wrong_foot() if isinstance(error, HandshakeEndedError) else None
        unread = self._shake.unread if self._shake is not None else b""
        if (refused := refusal_in(unread + await transport.last_words())) is not None:
            return refused
        # The server may have reset the connection because it didn't expect data from the client. The reset discards a
        # refusal that the server had sent before, so open a new connection and read the refusal there.
        lost = self._first and transport.is_open and not transport.is_secure()
        if transport.upgradable and (transport.failed_before_tls or lost) and is_unfinished(error):
            refused = refusal_in(await received_before_tls(url))
        if refused is not None:
            return refused
        return await self._alert(error) or await self._on_wrong_foot()

    async def _alert(self, error: OSError) -> Exception | None:
        """Return the server's TLS alert if it caused ``error``. A connection that was reset may have lost the alert."""
        transport, first, url = self._transport, self._settings.tls_first, self._server.url
        wants = self.info is not None and self.info.tls_verify
        alert_of = functools.partial(alert, wants_ours=wants, scheme=url.scheme, tls_first=first)
        if (alert_error := alert_of(error) or alert_of(transport.failure())) is not None:
            return alert_error
        if not wants or not isinstance(error, ConnectionError) or not transport.upgradable:
            return None
        late = await late_alert(url, self._settings.context, self._name, tls_first=first)
        return alert_of(late)

    async def _on_wrong_foot(self) -> Exception | None:
        """Return an error with a hint if the server accepted the first connection and sent no INFO, otherwise None."""
        began = self._shake is not None and (self._shake.info is not None or bool(self._shake.unread))
        transport = self._transport
        if began or not self._first or not transport.is_open or not transport.upgradable:
            return None
        # The server has sent nothing, so the client and the server may each be waiting for the other to begin. Find out
        # whether the server begins with INFO or expects TLS first.
        check = begins_with_info if self._settings.tls_first else begins_with_tls
        return await check(self._server.url)
