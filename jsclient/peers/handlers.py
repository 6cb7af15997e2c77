"""Handlers of raised events and of queries."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .._runtime.handlers import (
    Threads,
    check_function,
    check_handler,
    check_plain,
    is_coroutine_function,
)
from .._runtime.tasks import Signal
from ..errors import ClosedError, ConfigError, RequestTimeoutError
from ..protocol.peers.channel import RID, Policy
from ..protocol.peers.relationship import Attrs
from ..protocol.wire.names import check_token

__all__ = ["Answers", "Handler", "HandlerError", "Handlers", "QueryHandler", "RaisedEvent", "check_rule"]

_RELATIONSHIP: Final = "relationship"

QueryHandler: TypeAlias = Callable[..., Any]


class Answers:
    """The functions that answer the queries of a peer, by rid and name.

    A function receives the arguments of the query by name. If it has a parameter ``relationship``, it also receives the
    established relationship on whose channel the query arrived, or None for another channel. The sender of the query
    can't set this parameter.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._handlers: dict[tuple[str, str], QueryHandler] = {}

    def add_answer(self, rid: str, name: str, handler: QueryHandler) -> None:
        """Register a function. Raises `ConfigError` if it cannot answer queries, or a name is invalid or reserved."""
        key = check_token(rid, "rid"), check_token(name, "name")
        if rid == RID:
            raise ConfigError(f"the queries of {RID!r} are the peer's own")
        check_function(f"the answer to {rid}:{name}", handler, "query's arguments")
        self._handlers[key] = handler

    def find(self, rid: str, name: str) -> QueryHandler | None:
        """Return the function that answers a query, or None."""
        return self._handlers.get((rid, name))

    async def call(self, handler: QueryHandler, args: Attrs, relationship: Mapping[str, Any] | None) -> Any:
        """Call a function with a query's arguments, and return its result.

        Errors of the function are raised. `TypeError` is raised if the function doesn't accept the arguments.
        """
        if _RELATIONSHIP in inspect.signature(handler).parameters:
            args = args | {_RELATIONSHIP: relationship}
        if is_coroutine_function(handler):
            return await handler(**args)
        return await self._threads.call(handler, **args)


_RECENT: Final = 100
_AT_ONCE: Final = 8  # maximum number of a peer's plain functions that run at the same time


@dataclass(frozen=True, slots=True)
class RaisedEvent:
    """An event, as received by a handler and returned by `Peer.wait_for`.

    ``event["Id"]`` is short for ``event.attrs["Id"]``.

    Attributes:
        domain: First part of the event's name, which groups related events.
        type: Second part of the event's name.
        attrs: The attributes of the event.
        eci: The channel on which the event arrived, or None if the peer raised it itself.
        relationship: The established relationship to which the channel belongs, which tells who sent the event, in the
            form of `Peer.established`. None if the channel belongs to no relationship.
        error: The reason if the event reports a failure, or an empty string.
    """

    domain: str
    type: str
    attrs: Attrs = field(default_factory=dict)
    eci: str | None = None
    relationship: Mapping[str, Any] | None = None
    error: str = ""

    @property
    def name(self) -> str:
        """The full name of the event, as ``domain:type``."""
        return f"{self.domain}:{self.type}"

    def __getitem__(self, name: str) -> Any:
        return self.attrs[name]


Handler: TypeAlias = Callable[[RaisedEvent], Awaitable[object] | object]


def check_rule(rule: object) -> None:
    """Raise `ConfigError` unless ``rule`` is a plain function of a request's attributes."""
    check_handler("the rule of auto_accept", rule, "request's attributes")
    check_plain("the rule of auto_accept", rule)


class HandlerError(Exception):
    """Raised when an event handler failed or could not be called. Its ``__cause__`` is the reason."""


class Handlers:
    """The event handlers of a peer, and the recent events that `wait_for` can return."""

    def __init__(self) -> None:
        self.threads: Threads = Threads(_AT_ONCE)
        self._handlers: list[tuple[Policy, Handler]] = []
        self._recent: deque[RaisedEvent] = deque(maxlen=_RECENT)
        self._noted = Signal()
        self._closed = False

    def add_handler(self, event: str, handler: Handler) -> None:
        """Register a handler for ``domain:type``, with ``*`` for any. Raises `ConfigError` for an invalid name."""
        check_handler(f"the handler of {event!r:.60}", handler, "event")
        self._handlers.append((Policy(events=(event,)), handler))

    def note(self, event: RaisedEvent) -> None:
        """Keep an event for `wait_for`, and wake the calls that wait for it."""
        self._recent.append(event)
        self._noted.set()

    async def run_handlers(self, event: RaisedEvent) -> None:
        """Call the handlers of an event in the order of their registration. If the peer is closed, they are cancelled.

        Raises:
            HandlerError: A handler raised an exception, or wasn't called because the peer was closed. The remaining
                handlers aren't called.
        """
        for policy, handler in list(self._handlers):
            if policy.allows_event(event.domain, event.type):
                try:
                    if self._closed:
                        raise ClosedError("the peer is closed: a handler was not called")
                    if is_coroutine_function(handler):
                        await handler(event)  # type: ignore[misc]  # its function is a coroutine function
                    else:
                        await self.threads.call(handler, event)
                except Exception as error:
                    raise HandlerError(str(error)) from error

    async def wait_for(self, event: str, timeout: float | None, attrs: Mapping[str, Any]) -> RaisedEvent:
        """See `Peer.wait_for`."""
        policy = Policy(events=(event,))
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            for recent in self._recent:
                if policy.allows_event(recent.domain, recent.type) and _fits(recent, attrs):
                    self._recent.remove(recent)
                    return recent
            if self._closed:
                raise ClosedError("the peer is closed")
            if not await self._noted.wait_until(deadline):
                shown = f" with {dict(attrs)}"[:200] if attrs else ""
                raise RequestTimeoutError(f"waiting for the event {event}{shown}", timeout)

    def close(self) -> None:
        """End all calls of `wait_for` with `ClosedError`, and close the threads."""
        self._closed = True
        self._noted.set()
        self.threads.close()


def _fits(event: RaisedEvent, attrs: Mapping[str, Any]) -> bool:
    return all(name in event.attrs and event.attrs[name] == value for name, value in attrs.items())
