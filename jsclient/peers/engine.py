"""The engine, which runs peers. It is the entry point of `jsclient.peers`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from .._runtime.event_hub import OnEvent
from .._runtime.handle import Handle, Opening, State
from ..client import JetStream
from ..client import connect as connect_to_nats
from ..errors import ClosedError, ConfigError
from ..protocol.peers.options import EngineFields, EngineOptions
from ..protocol.wire.names import check_consumer_name, check_token
from .backend import Backend
from .handlers import Handler
from .local_backend import LocalBackend, LocalHub
from .nats_backend import ServerBackend
from .peer import Peer

__all__ = ["Engine"]


class Engine(Handle):
    """Runs peers on a NATS system, or entirely in this process. It is the entry point of ``jsclient.peers``.

    A peer is an independent party, such as a tenant or a device, that exchanges events and queries with other peers.
    Before two peers can communicate, they must establish a relationship, to which both agree::

        async with Engine.connect() as engine:
            door = await engine.peer("door")
            owner = await engine.peer("owner")
            door.auto_accept(Rx_role="door")
            await owner.request(await door.wellKnown_Rx(), Rx_role="owner", Tx_role="door")

    ``Engine.connect(url)`` opens a connection, ``Engine(js)`` uses your connection, and ``Engine.local()`` needs no
    server. On a NATS system, an engine keeps its state in two streams, so a different process can continue where the
    engine stopped.

    Run each peer in one process at a time. If two processes overlap, as in a rolling restart, they share the events and
    queries of the peer, and a process never overwrites a change that it hasn't seen. If one process has changed a
    relationship, the other may still list the relationship as it was before.

    Args:
        js: Your connection. The engine doesn't close it. When the connection is closed, the engine is closed too. A
            ``Backend`` is accepted as well, and `close` closes it.
        options: The fields of `EngineOptions`, as keyword arguments.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    def __init__(self, js: JetStream | Backend, **options: Unpack[EngineFields]) -> None:
        if isinstance(js, Backend):
            backend = js
        elif isinstance(js, JetStream):
            backend = ServerBackend(js, _options(options), owned=False)
        else:
            raise ConfigError(
                f"{type(js).__name__} is not a connection: Engine(js) needs an open one, Engine.connect(url) opens one"
            )
        self._backend = backend
        self._peers: dict[str, Peer] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        if isinstance(backend, ServerBackend):
            backend.js._context.attach(self)  # noqa: SLF001  the engine closes with the connection

    @classmethod
    def connect(
        cls,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        connect: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[EngineFields],
    ) -> Opening[Engine]:
        """Open an engine with its own connection. The result can be awaited or used in ``async with``.

        Args:
            servers: The URLs of the servers. See `jsclient.connect`.
            connect: Further arguments of `jsclient.connect`, such as credentials.
            on_event: A function to call with every event of the engine and its connections. By default, events are
                logged.
            options: The fields of `EngineOptions`, as keyword arguments.

        Raises:
            ConfigError: An option is unknown or invalid, or an existing stream has an unsuitable configuration.
            ConnectError: No server can be reached.
            AuthenticationError: The server refused the credentials.

        May also raise any request error.
        """
        settings = {**(connect or {}), "on_event": on_event}
        return Opening(partial(_connect, cls, servers, settings, _options(options)), "connect()")

    @classmethod
    def local(
        cls, hub: LocalHub | None = None, *, on_event: OnEvent | None = None, **options: Unpack[EngineFields]
    ) -> Engine:
        """Create an engine that keeps its peers in this process and needs no server, mainly for tests.

        Args:
            hub: The hub that keeps the state of the peers. Engines that share a hub can reach each other's peers.
                Defaults to a new hub.
            on_event: A function to call with every event. By default, events are logged.
            options: The fields of `EngineOptions`, as keyword arguments. Fields that configure streams and hosts are
                ignored.
        """
        return cls(LocalBackend(hub or LocalHub(), _options(options), on_event))

    @property
    def peers(self) -> dict[str, Peer]:
        """The peers of this engine that are open, by name."""
        return {name: peer for name, peer in self._peers.items() if not peer.is_closed}

    def __repr__(self) -> str:
        return f"<Engine of {sorted(self.peers)[:10]}>"

    async def peer(
        self, name: str, *, capability: bool = True, handlers: Mapping[str, Handler] | None = None
    ) -> Peer:
        """Return the peer with this name. Open the peer if necessary, and create it if it doesn't exist.

        Args:
            name: Name of the peer. It must be valid both as a subject token and as the name of a consumer.
            capability: If true, the peer can have relationships, and a new peer gets a well-known channel, on which
                other peers can request relationships.
            handlers: Handlers to register before any event arrives, by ``domain:type``. See `Peer.on`.

        If this engine has already opened the peer, ``capability`` and ``handlers`` are ignored.

        Raises:
            InvalidNameError: The name is invalid.
            ClosedError: The engine is closed.
            ConfigError: An existing stream has an unsuitable configuration.

        May also raise any request error.
        """
        check_token(check_consumer_name(name, "peer"), "peer")
        async with self._opening.setdefault(name, asyncio.Lock()):
            self._check_open()
            if name in self.peers:
                return self._peers[name]
            await self._backend.open_streams()
            peer = Peer(self._backend, name, capability=capability)
            for event, handler in (handlers or {}).items():
                peer.on(event, handler)
            await peer.open()
            self._peers[name] = peer
            if self.is_closed:
                await peer.close()
                self._check_open()
            return peer

    async def remove(self, peer: Peer | str, timeout: float = 30.0) -> None:
        """Remove a peer permanently. Its relationships end, and its channels, waiting events and state are deleted.

        Don't call this method from a handler of the peer's relationships, because it waits for those handlers.

        Even if the call fails or is cancelled, the relationships have ended, and the other sides are informed as soon
        as possible. The peer itself remains until you call the method again.

        Args:
            peer: The peer or its name.
            timeout: How long to wait until all other sides have been informed, in seconds.

        Raises:
            RequestTimeoutError: Some of the other sides couldn't be informed yet.
            ClosedError: The engine is closed.

        May also raise any other request error.
        """
        self._check_open()
        if isinstance(peer, str) or peer.is_closed:
            peer = await self.peer(peer if isinstance(peer, str) else peer.name)
        await peer.retire(timeout)
        self._peers.pop(peer.name, None)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the engine is closed")

    async def close(self) -> None:
        """Close all peers. If the engine opened the connection, close it too.

        Relationships and unhandled events stay stored. When an engine opens the peers again, it handles these events,
        and any events sent while the peers were closed. If the call is cancelled, the connections are closed
        immediately.
        """
        self._state = State.CLOSED
        if isinstance(self._backend, ServerBackend):
            self._backend.js._context.detach(self)  # noqa: SLF001
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.stop()
        try:
            await self._close_peers(peers)
        except asyncio.CancelledError:
            self._backend.abort(self._close_peers(peers))
            raise

    async def _close_peers(self, peers: Sequence[Peer]) -> None:
        # Close the peers one after another, in this task. Closing a peer waits for the tasks of its handlers, except
        # for the current task. If a handler closes the engine, a different task would therefore wait for that handler
        # forever.
        for peer in peers:
            await peer.close()
        await self._backend.close()

    async def abandon(self) -> None:
        """Close the engine because its connection is being closed. For internal use."""
        await self.close()


async def _connect(
    kind: type[Engine], servers: str | Sequence[str], connect: dict[str, Any], options: EngineOptions
) -> Engine:
    js = await connect_to_nats(servers, **connect)
    backend = ServerBackend(js, options, owned=True)
    try:
        await backend.open_streams()
    except BaseException:
        await js.close()
        raise
    return kind(backend)


def _options(fields: EngineFields) -> EngineOptions:
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    if unknown := sorted(set(fields) - known):
        raise ConfigError(f"an engine has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return EngineOptions(**fields)
