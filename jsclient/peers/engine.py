"""The engine, which runs peers: the entry point of `jsclient.peers`."""

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
    """Peers on one NATS system, or in this process.

    ``Engine.connect(url)`` opens a connection of its own, ``Engine(js)`` uses yours, ``Engine.local()`` needs no
    server. Use any with ``async with``. An engine keeps its state in two streams, so another process can continue where
    one ended.

    Run a peer in one process at a time. If two overlap, as in a rolling restart, they share its events and queries, and
    each writes only over the state that it knows; lists may lag in the one that did not write.

    Args:
        js: Your connection. It stays open; when it is closed, so is the engine.
        options: See `EngineOptions`.

    Raises:
        ConfigError: An option that does not exist or cannot be.
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
            backend.js._context.attach(self)  # noqa: SLF001  as all that ends with a connection

    @classmethod
    def connect(
        cls,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        connect: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[EngineFields],
    ) -> Opening[Engine]:
        """An engine with a connection of its own: ``await`` it, or use it with ``async with``.

        Args:
            servers: As of `jsclient.connect`.
            connect: Further arguments of `jsclient.connect`, such as credentials.
            on_event: Called with every event that cannot be raised, of the engine and of its connections.
            options: See `EngineOptions`.

        Raises:
            ConfigError: An option that does not exist, or streams that exist and do not fit.
            ConnectError, AuthenticationError: The server cannot be reached, or refused. And those of any request.
        """
        settings = {**(connect or {}), "on_event": on_event}
        return Opening(partial(_connect, cls, servers, settings, _options(options)), "connect()")

    @classmethod
    def local(
        cls, hub: LocalHub | None = None, *, on_event: OnEvent | None = None, **options: Unpack[EngineFields]
    ) -> Engine:
        """An engine in this process, without a server.

        Args:
            hub: Shared with other local engines, and holds the state; by default a new one.
            on_event: Called with every event that cannot be raised.
            options: See `EngineOptions`; what is about streams and hosts has no meaning here.
        """
        return cls(LocalBackend(hub or LocalHub(), _options(options), on_event))

    @property
    def peers(self) -> dict[str, Peer]:
        """The open peers, by name."""
        return {name: peer for name, peer in self._peers.items() if not peer.is_closed}

    def __repr__(self) -> str:
        return f"<Engine of {sorted(self.peers)[:10]}>"

    async def peer(
        self, name: str, *, capability: bool = True, handlers: Mapping[str, Handler] | None = None
    ) -> Peer:
        """Open a peer of this name: the open one, the stored one, or a new one.

        Args:
            name: A token of subjects, which may name a consumer too.
            capability: Whether it can have relationships. A new one then gets its well-known channel.
            handlers: Its first handlers, as of `Peer.on`, registered before any event arrives.

        Raises:
            InvalidNameError: The name is not valid. ClosedError: The engine is closed.
            ConfigError: The streams that exist do not fit. And those of any request.
        """
        check_token(check_consumer_name(name, "peer"), "peer")
        async with self._opening.setdefault(name, asyncio.Lock()):
            self._check_open()
            if name in self.peers:
                return self._peers[name]
            await self._backend.open()
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
        """Remove a peer for good: its relationships end, its channels, its inbox and all that is stored of it go.

        Do not call it from a handler of its relationships: it waits for them.

        Args:
            peer: The peer, or the name of one.
            timeout: Seconds to inform all other sides.

        Raises:
            RequestTimeoutError: Some could not be informed yet. Its relationships are over, the others are informed as
                soon as possible, and the peer stays until it is removed again.
        Cancelled: as after an error.
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
        """Close all peers, and the connection if it is the engine's own. Relationships and waiting events stay."""
        self._state = State.CLOSED
        if isinstance(self._backend, ServerBackend):
            self._backend.js._context.detach(self)  # noqa: SLF001
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.stop()
        # One after another in this task, which may be a handler's; handlers do not wait for themselves.
        for peer in peers:
            await peer.close()
        await self._backend.close()

    async def abandon(self) -> None:
        """The connection is being closed."""
        await self.close()


async def _connect(
    kind: type[Engine], servers: str | Sequence[str], connect: dict[str, Any], options: EngineOptions
) -> Engine:
    js = await connect_to_nats(servers, **connect)
    backend = ServerBackend(js, options, owned=True)
    try:
        await backend.open()
    except BaseException:
        await js.close()
        raise
    return kind(backend)


def _options(given: EngineFields) -> EngineOptions:
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"an engine has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return EngineOptions(**given)
