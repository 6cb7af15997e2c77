"""The interface between peers and the system that they live in: a NATS system, or this process."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from .._runtime.tasks import Signal
from ..errors import ConfigError, JetStreamError, ProtocolError
from ..protocol.events import ErrorRaised, Event
from ..protocol.peers.options import EngineOptions
from ..protocol.peers.relationship import Attrs, Send
from .errors import QueryRefusedError

if TYPE_CHECKING:
    from ..buckets.state import StateEntry

__all__ = [
    "Answerer",
    "Attendance",
    "Backend",
    "Delivery",
    "Receiver",
    "Stopping",
    "Store",
    "backoff",
    "pack",
    "read_answer",
    "read_attrs",
    "refusal",
    "reply",
    "unpack",
    "with_id",
]


@dataclass(slots=True, frozen=True)
class Delivery:
    """An event delivered to a peer. When the receiver returns, the event counts as handled, unless the receiver has
    called ``later`` or ``refuse``.

    Attributes:
        data: The attributes of the event.
        ident: Identifies the event, and is the same in every delivery.
        attempt: How often the event has been delivered, including this delivery.
        later: Requests a redelivery after the given number of seconds.
        refuse: Prevents further deliveries. The argument is a one-line reason.
    """

    subject: str
    data: bytes
    ident: bytes
    attempt: int
    later: Callable[[float], Awaitable[None]]
    refuse: Callable[[str], Awaitable[None]]


Receiver: TypeAlias = Callable[[Delivery], Awaitable[None]]
Answerer: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]


class Store(Protocol):
    """The stored state of a peer: a few entries by key. `jsclient.buckets.state.StoredState` is an implementation."""

    async def get(self, key: str) -> StateEntry: ...

    async def update(self, key: str, value: bytes | None, revision: int) -> int: ...

    async def entries(self, after: int = 0) -> list[StateEntry]: ...

    async def purge(self) -> None: ...


class Attendance(abc.ABC):
    """Delivers events and queries to one peer while it is open."""

    @abc.abstractmethod
    def begin_delivery(self) -> None:
        """Start delivering."""

    @abc.abstractmethod
    def stop_delivery(self, grace: float) -> None:
        """Stop delivering.

        Running handlers have ``grace`` seconds to finish. Unfinished events are redelivered later.
        """

    @abc.abstractmethod
    async def close(self, grace: float) -> None:
        """Stop delivering, and wait until the running handlers have ended."""


class Backend(abc.ABC):
    """The environment of peers: a NATS system, or this process."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    @abc.abstractmethod
    async def open_streams(self) -> None:
        """Create missing streams.

        Raises `ConfigError` if an existing stream is unsuitable. May raise any error common to API requests.
        """

    @abc.abstractmethod
    def store(self, peer: str) -> Store:
        """Return the store of a peer."""

    @abc.abstractmethod
    async def attend(self, peer: str, receiver: Receiver, answerer: Answerer) -> Attendance:
        """Connect a peer to its events and queries, which arrive after `Attendance.begin_delivery`.

        May raise any error that a request can raise.
        """

    @abc.abstractmethod
    async def publish(self, send: Send) -> None:
        """Store an event in the inbox of the peer that receives it.

        Raises:
            HostNotAllowedError: The peer's host is not allowed.
            ConfigError, MaxPayloadError: The event can never be sent.
            JetStreamError: The event could not be sent now, or the outcome is unknown.
        """

    @abc.abstractmethod
    async def ask(self, subject: str, data: bytes, host: str | None, timeout: float) -> bytes:
        """Send a query, and return the encoded answer.

        Raises `NoRespondersError` if the peer isn't open. May raise any other error that a request can raise.
        """

    @abc.abstractmethod
    async def forget_peer(self, peer: str) -> None:
        """Delete a peer's inbox, including the events that wait in it."""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the user."""

    def report_error(self, error: BaseException) -> None:
        """Report an error that cannot be raised to a caller."""
        if not isinstance(error, JetStreamError):
            wrapped = ProtocolError(f"a background task failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.emit(ErrorRaised(error=error))

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the connections and stop all background tasks. A cancelled call may be repeated."""

    @abc.abstractmethod
    def abort(self, end: Coroutine[Any, Any, None]) -> None:
        """Close the connections at once, and run ``end``, which closes the peers and the backend, in the background."""


_LONGEST: Final = 30.0


def backoff(attempt: int, first: float = 0.1, longest: float = _LONGEST) -> float:
    """Return the delay in seconds after a failed attempt.

    The first attempt is 1. Each delay doubles the previous one.
    """
    return float(min(longest, first * 2 ** min(attempt - 1, 20)))


class Stopping:
    """A flag that is set when closing begins, which wakes all tasks that are pausing."""

    def __init__(self) -> None:
        self._signal = Signal()
        self.begun: bool = False

    def begin_closing(self) -> None:
        """Begin to close, and wake all pausing tasks."""
        self.begun = True
        self._signal.set()

    async def pause(self, seconds: float) -> bool:
        """Wait for ``seconds``, or until closing begins. Return False if closing has begun."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.begun and await self._signal.wait_until(deadline):
            pass
        return not self.begun


def pack(attrs: Mapping[str, Any]) -> bytes:
    """Encode attributes as JSON. Raises `ConfigError` if that is not possible."""
    try:
        data = msgspec.json.encode(dict(attrs))
        if all(isinstance(name, str) for name in attrs):
            return data
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the attributes are not a JSON object: {error}") from None
    raise ConfigError("the attributes are not a JSON object: a name is not a str")


def read_attrs(attrs: Mapping[str, Any], limit: int) -> Attrs:
    """Return a JSON copy of attributes. Raises `ConfigError` if they are not JSON, or exceed ``limit`` bytes."""
    data = pack(attrs)
    if len(data) > limit:
        raise ConfigError(f"the attributes have {len(data)} bytes; max_event_size is {limit}")
    return unpack(data) or {}


def with_id(id: str | None, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes, with ``Id`` added if it is given."""
    return attrs if id is None else {**attrs, "Id": id}


def unpack(data: bytes) -> Attrs | None:
    """Decode attributes. Returns None if they are not a JSON object. An empty payload is an empty object."""
    if not data:
        return {}
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def reply(value: Any) -> bytes:
    """Encode the answer to a query. Raises `ConfigError` if the value is not JSON."""
    return pack({"value": value})


def refusal(which: str, detail: str = "") -> bytes:
    """Encode the refusal of a query."""
    return pack({"refusal": which, "detail": detail})


def read_answer(data: bytes) -> Any:
    """Return the value of an answer. Raises `QueryRefusedError` for a refusal, `ProtocolError` for other data."""
    answer = unpack(data) or {}
    if "value" in answer:
        return answer["value"]
    if isinstance(answer.get("refusal"), str):
        raise QueryRefusedError(answer["refusal"], str(answer.get("detail", "")))
    raise ProtocolError(f"not an answer to a query: {data[:60]!r}")
