"""The interface of peers to their surroundings: a NATS system, or this process."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
    from ..streams.buckets import Entry

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
    """An event for a peer. It is done when the receiver returns, unless ``later`` or ``refuse`` was called.

    Attributes:
        data: Its attributes.
        ident: Identifies it, the same in every delivery.
        attempt: The number of deliveries.
        later: Redeliver it after a number of seconds.
        refuse: Never redeliver it, with a reason of one line.
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
    """The stored state of a peer: a few entries by key. See `jsclient.streams.buckets.Bucket`, which is one."""

    async def get(self, key: str) -> Entry: ...

    async def update(self, key: str, value: bytes | None, revision: int) -> int: ...

    async def entries(self, after: int = 0) -> list[Entry]: ...

    async def purge(self) -> None: ...


class Attendance(abc.ABC):
    """Delivers events and queries to one peer while it is open."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Start to deliver."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """Stop delivering. Running handlers have ``grace`` seconds; unfinished events are redelivered the next time."""

    @abc.abstractmethod
    async def close(self, grace: float) -> None:
        """Stop, and wait for the end."""


class Backend(abc.ABC):
    """The NATS system or process that peers live in."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    @abc.abstractmethod
    async def open(self) -> None:
        """Create missing streams. Raises `ConfigError` if an existing one does not fit, and those of any request."""

    @abc.abstractmethod
    def store(self, peer: str) -> Store:
        """The store of a peer."""

    @abc.abstractmethod
    async def attend(self, peer: str, receiver: Receiver, answerer: Answerer) -> Attendance:
        """Receive a peer's events and queries. Raises those of any request."""

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
        """Send a query. Raises `NoRespondersError` if the peer is not open, and those of any request."""

    @abc.abstractmethod
    async def forget(self, peer: str) -> None:
        """Delete a peer's inbox."""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the user."""

    def report(self, error: BaseException) -> None:
        """Report an error that cannot be raised to a caller."""
        if not isinstance(error, JetStreamError):
            wrapped = ProtocolError(f"a background task failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.emit(ErrorRaised(error=error))

    @abc.abstractmethod
    async def close(self) -> None:
        """Release everything."""


_LONGEST: Final = 30.0


def backoff(attempt: int, first: float = 0.1, longest: float = _LONGEST) -> float:
    """Seconds after a failed attempt, counted from 1: doubled each time."""
    return float(min(longest, first * 2 ** min(attempt - 1, 20)))


class Stopping:
    """Whether an end has begun."""

    def __init__(self) -> None:
        self._signal = Signal()
        self.begun: bool = False

    def begin(self) -> None:
        """Wake all who pause."""
        self.begun = True
        self._signal.set()

    async def pause(self, seconds: float) -> bool:
        """Wait. False: the end has begun."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.begun and await self._signal.wait_until(deadline):
            pass
        return not self.begun


def pack(attrs: Mapping[str, Any]) -> bytes:
    """Encode attributes. Raises `ConfigError` if they are not JSON."""
    try:
        data = msgspec.json.encode(dict(attrs))
        if all(isinstance(name, str) for name in attrs):
            return data
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the attributes are not a JSON object: {error}") from None
    raise ConfigError("the attributes are not a JSON object: a name is not a str")


def read_attrs(attrs: Mapping[str, Any], limit: int) -> Attrs:
    """A JSON copy of attributes. Raises `ConfigError` if they are not JSON, or more than ``limit`` bytes."""
    data = pack(attrs)
    if len(data) > limit:
        raise ConfigError(f"the attributes have {len(data)} bytes; max_event_size is {limit}")
    return unpack(data) or {}


def with_id(id: str | None, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes, with ``Id`` if one is given."""
    return attrs if id is None else {**attrs, "Id": id}


def unpack(data: bytes) -> Attrs | None:
    """Decode attributes; None: not a JSON object. An empty payload is an empty object."""
    if not data:
        return {}
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def reply(value: Any) -> bytes:
    """The answer to a query. Raises `ConfigError` if the value is not JSON."""
    return pack({"value": value})


def refusal(which: str, detail: str = "") -> bytes:
    """The refusal of a query."""
    return pack({"refusal": which, "detail": detail})


def read_answer(data: bytes) -> Any:
    """The value of an answer. Raises `QueryRefusedError` for a refusal, `ProtocolError` if it is not an answer."""
    answer = unpack(data) or {}
    if "value" in answer:
        return answer["value"]
    if isinstance(answer.get("refusal"), str):
        raise QueryRefusedError(answer["refusal"], str(answer.get("detail", "")))
    raise ProtocolError(f"not an answer to a query: {data[:60]!r}")
