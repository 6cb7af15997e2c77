"""What a peer needs of its surroundings: a NATS system, or this process."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..protocol.events import Event
from ..protocol.peers.outbox import Send
from .options import EngineOptions
from .store import Store

__all__ = ["Answerer", "Attendance", "Backend", "Delivery", "Receiver"]


@dataclass(slots=True, frozen=True)
class Delivery:
    """An event that came for a peer. When the receiver returns it is done with, unless one of the two was called.

    Attributes:
        subject: Where it was sent.
        data: Its attributes.
        ident: What tells it from all others, the same when it is delivered again.
        attempt: How often it was delivered.
        later: Have it delivered again after so many seconds.
        refuse: Have it never delivered again, for a reason of one line.
    """

    subject: str
    data: bytes
    ident: bytes
    attempt: int
    later: Callable[[float], Awaitable[None]]
    refuse: Callable[[str], Awaitable[None]]


Receiver: TypeAlias = Callable[[Delivery], Awaitable[None]]
Answerer: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]


class Attendance(abc.ABC):
    """A peer is there: what comes for it is given to it."""

    @abc.abstractmethod
    def begin(self) -> None:
        """From now on, and not before."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """No more. What is being handled has ``grace`` seconds; what was not finished is delivered the next time."""

    @abc.abstractmethod
    async def close(self, grace: float) -> None:
        """Stop, and wait for the end."""


class Backend(abc.ABC):
    """Where peers live."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    @abc.abstractmethod
    async def open(self) -> None:
        """Make what is missing. Raises `ConfigError` where what is there does not fit, and those of any request."""

    @abc.abstractmethod
    def store(self, peer: str) -> Store:
        """What a peer has stored."""

    @abc.abstractmethod
    async def attend(self, peer: str, receiver: Receiver, answerer: Answerer) -> Attendance:
        """Be there for a peer's events and queries. Raises those of any request."""

    @abc.abstractmethod
    async def publish(self, send: Send) -> None:
        """Store an event in the inbox of the peer it is for.

        Raises:
            HostNotAllowedError: It is on a host that may not be connected to.
            ConfigError, MaxPayloadError: It can never be sent.
            JetStreamError: It could not be sent now, or this is not known.
        """

    @abc.abstractmethod
    async def ask(self, subject: str, data: bytes, host: str | None, timeout: float) -> bytes:
        """Ask a query. Raises `NoRespondersError` where the peer is not there, and those of any request."""

    @abc.abstractmethod
    async def forget(self, peer: str) -> None:
        """Delete a peer's inbox."""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Tell the user."""

    @abc.abstractmethod
    def report(self, error: BaseException) -> None:
        """Tell the user of an error that has no caller."""

    @abc.abstractmethod
    async def close(self) -> None:
        """The end."""
