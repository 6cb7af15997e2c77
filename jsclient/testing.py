"""Messages for unit tests of handlers, without a server.

::

    message = jsclient.testing.make_message("orders.new", b"42")
    await handle(message)
    assert message.acks == [SentAck("nak", delay=5.0)]

For tests with a real server, see `jsclient.server.NatsServer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, cast

import msgspec

from ._exports import set_module
from ._runtime.connection.connection import Connection
from ._runtime.context import Requests
from ._runtime.publish import check_payload
from .consumers.message import AckChannel, Message
from .errors import ConfigError
from .protocol.consumers.ack import AckKind
from .protocol.wire.checks import check_count
from .protocol.wire.frames import Frame
from .protocol.wire.headers import encode_headers, merge_headers
from .protocol.wire.names import check_consumer_name, check_publish_subject, check_stream_name
from .protocol.wire.units import ns_to_seconds

__all__ = ["RecordedMessage", "SentAck", "make_message"]


class SentAck(msgspec.Struct, frozen=True):
    """An ack that a handler has sent for a message created by `make_message`.

    Attributes:
        kind: Method that the handler has called. "ack" stands for both ``ack`` and ``ack_sync``.
        delay: Delay passed to ``nak``, in seconds, or None.
        reason: Reason passed to ``term``, or None.
        sync: True if the handler has called ``ack_sync``.
    """

    kind: Literal["ack", "nak", "term", "in_progress"]
    delay: float | None = None
    reason: str | None = None
    sync: bool = False


class RecordedMessage(Message):
    """A `jsclient.Message` that records acks instead of sending them. Created by `make_message`.

    Attributes:
        acks: The acks, in order. As with any message, calls after an ack, nak or term have no effect and aren't listed.
    """

    __slots__ = ("_attempt", "_channel", "_frame", "_headers", "_metadata", "_state", "acks")
    acks: list[SentAck]

    def __new__(cls, frame: Frame) -> Self:
        """Don't call this directly. Use `make_message`."""
        made = object.__new__(cls)
        recorder = _Recorder()
        made._frame, made.acks = frame, recorder.acks
        made._channel = AckChannel(cast("Connection", recorder), cast("Requests", recorder), 5.0)
        made._state = made._headers = made._metadata = None
        made._attempt = 0
        return made


def make_message(
    subject: str,
    data: bytes = b"",
    *,
    headers: Mapping[str, str | Sequence[str]] | None = None,
    stream: str = "STREAM",
    consumer: str = "CONSUMER",
    stream_seq: int = 1,
    consumer_seq: int = 1,
    num_delivered: int = 1,
    num_pending: int = 0,
    timestamp: datetime | None = None,
) -> RecordedMessage:
    """Create a message for the unit test of a handler, without a server.

    Args:
        subject: The subject that the message was published to.
        data: The payload.
        headers: A mapping from names to values. A value is a string or a list of strings.
        stream: Name of the stream in the message's metadata.
        consumer: Name of the consumer in the message's metadata.
        stream_seq: Stream sequence of the message, 1 or more.
        consumer_seq: Consumer sequence of the delivery, 1 or more.
        num_delivered: Number of deliveries, which is also the value of ``attempt``. Pass 2 or more to test how a
            redelivered message is handled.
        num_pending: Number of messages that the consumer has yet to deliver after this one.
        timestamp: The time at which the message was stored, with a time zone. Defaults to the current time.

    Raises:
        ConfigError: A number or the time is out of range, or ``data`` isn't bytes.
        InvalidNameError: The subject, a name or a header isn't valid.
    """
    check_publish_subject(subject)
    check_stream_name(stream)
    check_consumer_name(consumer)
    numbers = [
        check_count("num_delivered", num_delivered),
        check_count("stream_seq", stream_seq),
        check_count("consumer_seq", consumer_seq),
        _stored_at(timestamp),
        check_count("num_pending", num_pending, 0),
    ]
    reply = ".".join(["$JS.ACK", stream, consumer, *map(str, numbers)])
    block = encode_headers(merge_headers(headers, {})) if headers else b""
    frame: Frame = (subject.encode(), reply.encode(), block, check_payload(data))
    return RecordedMessage(frame)


def _stored_at(timestamp: datetime | None) -> int:
    """Return the timestamp, or the current time, in nanoseconds since 1970."""
    moment = datetime.now(UTC) if timestamp is None else timestamp
    if moment.tzinfo is None:
        raise ConfigError(
            f"timestamp: {moment.isoformat()} has no time zone; set one, for example tzinfo=timezone.utc"
        )
    return max(0, (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000)


class _Recorder:
    """A replacement for the connection and the requests of a message, which records acks."""

    def __init__(self) -> None:
        self.acks: list[SentAck] = []

    def ack_at_once(self, reply: bytes) -> bool:
        self._note(AckKind.ACK.value)
        return True

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool = False) -> None:
        self._note(payload)

    async def ask(self, subject: str, payload: bytes, **_options: Any) -> None:
        self._note(payload, sync=True)

    def _note(self, payload: bytes, *, sync: bool = False) -> None:
        body, _, rest = payload.partition(b" ")
        match AckKind(body):
            case AckKind.ACK:
                self.acks.append(SentAck("ack", sync=sync))
            case AckKind.NAK:
                delay = ns_to_seconds(msgspec.json.decode(rest)["delay"]) if rest else None
                self.acks.append(SentAck("nak", delay=delay))
            case AckKind.TERM:
                self.acks.append(SentAck("term", reason=rest.decode() or None))
            case AckKind.IN_PROGRESS:
                self.acks.append(SentAck("in_progress"))


set_module(__name__, (SentAck, RecordedMessage, make_message))
