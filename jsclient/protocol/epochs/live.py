"""The messages between publishers and subscribers of a topic without a stream, over plain NATS.

A subscriber sends requests to ``<topic>.<partition>.live``, with its inbox as the reply subject. It requests to
connect, reports that it is alive, and leaves. The messages to a subscriber are numbered consecutively, so that it
notices a lost message. The answer to "alive" contains the last number, so that the subscriber also notices the loss
of the last message.

Source: Strymon's publish-subscribe protocol, "Publisher Logic".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from ...errors import ConfigError, ProtocolError
from ..consumers.monitors import HeartbeatMonitor
from ..wire.headers import Headers, encode_headers, parse_headers
from .frontier import Changes, Order
from .records import EPOCH, DataMessage, FrontierRecord, InitialFrontierSnapshot, LowerFrontierUpdate, Message
from .trackers import EpochPublisher

__all__ = [
    "EpochBroadcast",
    "LiveMessage",
    "LiveRequest",
    "Verb",
    "beat_monitor",
    "live_subject",
    "read_live",
    "read_live_request",
    "write_live",
]

T = TypeVar("T", bound=Hashable)

_WHAT: Final = "Jsc-Live"
_NUMBER: Final = "Jsc-Number"

Verb = Literal["connect", "alive", "leave"]


def live_subject(topic: str, partition: int) -> str:
    """Return the subject of requests to the publisher of a partition."""
    return f"{topic}.{partition}.live"


def beat_monitor(beat: float, now: float) -> HeartbeatMonitor:
    """Return a monitor whose alarm means that the other side was silent for three beats.

    A program that was suspended, or whose event loop was blocked, has sent no heartbeats in the meantime, so it can't
    expect their answers. The second check of the monitor therefore follows a whole beat after the first. That is long
    enough to send a heartbeat and to receive the answer.
    """
    return HeartbeatMonitor(beat, factor=2.0, grace=beat, last_activity=now)


class LiveRequest(msgspec.Struct, frozen=True):
    """A request of a subscriber, with the order and codec that it expects."""

    v: Literal[1]
    verb: Verb
    order: str
    codec: str

    def to_json(self) -> bytes:
        """Encode the request."""
        return msgspec.json.encode(self)


def read_live_request(data: bytes) -> LiveRequest:
    """Read a request of a subscriber. Raises `ProtocolError` if it is not valid."""
    try:
        return msgspec.json.decode(data, type=LiveRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"not a request of a subscriber: {data[:80]!r}: {error}") from None


class LiveMessage(msgspec.Struct, Generic[T], frozen=True):
    """A message of a publisher.

    Attributes:
        what: "message", "there" (the answer to "alive"), "unknown" (the subscriber must connect again) or "mismatch"
            (the publisher has other types).
        number: The number of the message. With "there", the number of the last message.
        message: The message. Its data is not decoded.
        text: With "mismatch", the types of the publisher.
    """

    what: Literal["message", "there", "unknown", "mismatch"]
    number: int = 0
    message: Message[T] | None = None
    text: str = ""


_KINDS: Final = {InitialFrontierSnapshot: "snapshot", LowerFrontierUpdate: "update", DataMessage: "data"}


def write_live(live: LiveMessage[T], order: Order[T]) -> tuple[bytes, bytes]:
    """Encode a message. Return its header block and its payload."""
    headers, payload = {_WHAT: live.what, _NUMBER: str(live.number)}, live.text.encode()
    message = live.message
    if message is not None:
        headers[_WHAT] = _KINDS[type(message)]
    if isinstance(message, DataMessage):
        headers[EPOCH] = msgspec.json.encode(order.encode(message.time)).decode()
        payload = message.data
    elif isinstance(message, InitialFrontierSnapshot):
        payload = FrontierRecord((), message.lower, message.upper).to_json(order)
    elif isinstance(message, LowerFrontierUpdate):
        payload = FrontierRecord(message.updates, (), ()).to_json(order)
    return encode_headers(headers), payload


def read_live(block: bytes, payload: bytes, order: Order[T]) -> LiveMessage[T]:
    """Read a message of a publisher. Raises `ProtocolError` if it is not valid."""
    headers = parse_headers(block)[1] if block else Headers()
    what, number = headers.get(_WHAT, ""), headers.get(_NUMBER, "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 20):
        raise ProtocolError(f"a live message has no number: {block[:80]!r}")
    count = int(number)
    match what:
        case "there" | "unknown":
            return LiveMessage(what, count)
        case "mismatch":
            return LiveMessage("mismatch", count, None, payload.decode(errors="replace"))
        case "data":
            try:
                time = order.decode(msgspec.json.decode(headers.get(EPOCH, "")))
            except (msgspec.DecodeError, ConfigError, UnicodeError, RecursionError) as error:
                raise ProtocolError(f"live data has no time: {error}") from None
            return LiveMessage("message", count, DataMessage(time, payload))
        case "snapshot":
            return LiveMessage("message", count, FrontierRecord.from_json(payload, order).snapshot)
        case "update":
            return LiveMessage("message", count, FrontierRecord.from_json(payload, order).update)
        case _:
            pass
    raise ProtocolError(f"a live message of an unknown kind: {what!r:.40}")


@dataclass(slots=True)
class _Queue(Generic[T]):
    messages: deque[tuple[int, Message[T]]] = field(default_factory=deque)
    count: int = 0  # number of messages so far


@dataclass(slots=True)
class EpochBroadcast(Generic[T]):
    """Sends one partition to its subscribers, each of which has a queue of up to ``max_pending`` messages.

    ``put_out`` is the number of subscribers that were disconnected because their queue was full.
    """

    publisher: EpochPublisher[T]
    max_pending: int = 10_000
    put_out: int = 0
    _queues: dict[Hashable, _Queue[T]] = field(default_factory=dict)

    @property
    def subscribers(self) -> list[Hashable]:
        """The connected subscribers."""
        return [*self._queues]

    @property
    def longest(self) -> int:
        """The length of the longest queue."""
        return max((len(queue.messages) for queue in self._queues.values()), default=0)

    @property
    def is_over(self) -> bool:
        """Whether all epochs are completed and all queues are empty."""
        return not self.publisher.lower and not any(queue.messages for queue in self._queues.values())

    def connect(self, subscriber: Hashable) -> None:
        """Connect or reconnect a subscriber. Its first message is the current snapshot."""
        self._queues.pop(subscriber, None)
        queue: _Queue[T] = _Queue()
        self._append(queue, self.publisher.snapshot)
        self._queues[subscriber] = queue

    def disconnect(self, subscriber: Hashable) -> None:
        """Disconnect a subscriber."""
        self._queues.pop(subscriber, None)

    def send(self, time: T, data: Any) -> None:
        """Send a batch of one time to all subscribers. If `EpochPublisher.send` raises an error, no data was sent."""
        self.publisher.send(time)
        self._broadcast(DataMessage(time, data))

    def update(self, changes: Changes[T]) -> None:
        """Drop and add capabilities, and send the change to all subscribers. See `EpochPublisher.update`."""
        self._publish(self.publisher.update(changes))

    def advance(self, to: T) -> None:
        """Complete the times before ``to``. See `EpochPublisher.advance`."""
        self._publish(self.publisher.advance(to))

    def close(self) -> None:
        """Complete all epochs."""
        self._publish(self.publisher.close())

    def take_messages(self, subscriber: Hashable, limit: int = 1) -> list[tuple[int, Message[T]]]:
        """Take up to ``limit`` messages of a subscriber, with their numbers 1, 2, 3 …. Empty if it is not connected."""
        queue = self._queues.get(subscriber)
        if queue is None:
            return []
        return [queue.messages.popleft() for _ in range(min(limit, len(queue.messages)))]

    def _publish(self, record: FrontierRecord[T] | None) -> None:
        if record is not None:
            self._broadcast(record.update)

    def _broadcast(self, message: Message[T]) -> None:
        for subscriber, queue in [*self._queues.items()]:
            if len(queue.messages) >= self.max_pending:
                del self._queues[subscriber]
                self.put_out += 1
            else:
                self._append(queue, message)

    @staticmethod
    def _append(queue: _Queue[T], message: Message[T]) -> None:
        queue.count += 1
        queue.messages.append((queue.count, message))
