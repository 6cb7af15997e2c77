"""Topics of epochs without a stream: the messages between publishers and subscribers over plain NATS.

A subscriber sends what it wants to ``<topic>.<partition>.live``, with an inbox of its own for the answers: to connect,
to say that it is still there, to leave. Each message to it has a number, the next one each time, so that it notices a
lost one. The answer to a sign of life has the last number, so that it notices the loss of the last message.

Source: Strymon's publish-subscribe protocol, "Publisher Logic".
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, Literal, TypeVar

import msgspec

from ...errors import ConfigError, ProtocolError
from ..wire.headers import Headers, encode_headers, parse_headers
from .frontier import Order
from .messages import (
    DataMessage,
    FrontierRecord,
    InitialFrontierSnapshot,
    LowerFrontierUpdate,
    Message,
)
from .records import EPOCH

__all__ = ["Asked", "LiveMessage", "Verb", "live_subject", "read_asked", "read_live", "write_live"]

T = TypeVar("T", bound=Hashable)

_WHAT: Final = "Jsc-Live"
_NUMBER: Final = "Jsc-Number"

Verb = Literal["connect", "alive", "leave"]


def live_subject(topic: str, partition: int) -> str:
    """The subject of requests to the publisher of a partition."""
    return f"{topic}.{partition}.live"


class Asked(msgspec.Struct, frozen=True):
    """A request of a subscriber, with the order and codec that it expects."""

    v: Literal[1]
    verb: Verb
    order: str
    codec: str

    def to_json(self) -> bytes:
        """As it is sent."""
        return msgspec.json.encode(self)


def read_asked(data: bytes) -> Asked:
    """Read a request of a subscriber. Raises `ProtocolError` if it is not valid."""
    try:
        return msgspec.json.decode(data, type=Asked)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request of a subscriber: {data[:80]!r}: {error}") from None


class LiveMessage(msgspec.Struct, Generic[T], frozen=True):
    """A message of a publisher.

    Attributes:
        what: "message"; "there": the answer to "alive"; "unknown": connect again; "mismatch": it has other types.
        number: Of the message; of "there", of the last one.
        message: The message, its data not decoded.
        text: Of "mismatch": the types it has.
    """

    what: Literal["message", "there", "unknown", "mismatch"]
    number: int = 0
    message: Message[T] | None = None
    text: str = ""


_KINDS: Final = {InitialFrontierSnapshot: "snapshot", LowerFrontierUpdate: "update", DataMessage: "data"}


def write_live(live: LiveMessage[T], order: Order[T]) -> tuple[bytes, bytes]:
    """Header block and payload."""
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
            except (msgspec.DecodeError, ConfigError, RecursionError) as error:
                raise ProtocolError(f"live data has no time: {error}") from None
            return LiveMessage("message", count, DataMessage(time, payload))
        case "snapshot":
            return LiveMessage("message", count, FrontierRecord.from_json(payload, order).snapshot)
        case "update":
            return LiveMessage("message", count, FrontierRecord.from_json(payload, order).update)
        case _:
            pass
    raise ProtocolError(f"a live message of an unknown kind: {what!r:.40}")
