"""A message of a stream, and its acks. Source: ADR-15 §JSAck, §Ack Handling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from .._runtime.connection.connection import Connection
from .._runtime.connection.speedups import Choice, chosen
from .._runtime.context import Requests
from ..errors import NotJetStreamMessageError
from ..protocol.consumers.ack import (
    ACKED,
    AckKind,
    AckState,
    Metadata,
    ack_payload,
    sequences,
)
from ..protocol.wire.frames import Frame, frame_size
from ..protocol.wire.headers import find_header
from ..protocol.wire.message_headers import MessageHeaders
from ..protocol.wire.nats_py import no_attribute

__all__ = [
    "AckChannel",
    "DeliveredMessage",
    "Message",
    "ack_all",
    "ack_now",
    "awaits_ack",
    "begin_attempt",
    "frames_of",
]


class AckChannel(msgspec.Struct, frozen=True):
    """Reads and acks the messages of one subscription."""

    connection: Connection
    requests: Requests
    timeout: float  # seconds, for `ack_sync`
    silent: bool = False  # the ack policy is "none", so the server ignores acks
    reader: Choice = msgspec.field(default_factory=chosen)
    logged: set[AckKind] = msgspec.field(default_factory=set)  # ignored kinds that were logged

    def ignore(self, kind: AckKind, message: Message) -> None:
        """Ignore an ack, which has no effect with ack policy none. The first nak is logged, as it expects an effect."""
        if kind is AckKind.NAK and kind not in self.logged:
            self.logged.add(kind)
            _log.warning(
                "nak of %r has no effect: its consumer has ack policy none (ordered readers always have it), so the "
                'server never delivers a message again; read through a consumer with ack_policy="explicit"',
                message,
            )


class Message:
    """One delivery of a stored message.

    ``subject``, ``reply``, ``headers`` and ``metadata`` are parsed on first use. A subject or header that is not UTF-8
    is decoded with surrogate escapes, so no byte is lost.

    Only readers create messages. To test a handler, create a message with `jsclient.testing.make_message`.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # the structs below define the fields
        __getattr__ = no_attribute  # otherwise a type checker would accept any name
    _frame: Frame
    _channel: AckChannel
    _state: AckState | None
    _headers: MessageHeaders | None
    _metadata: Metadata | None
    _attempt: int

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: it is acked on the connection that received it; pass on its "
            "subject, data, headers and metadata, and ack it here"
        )

    def __repr__(self) -> str:
        try:
            at = self.metadata
            position = f", {at.stream} {at.stream_seq}, delivery {at.num_delivered}"
        except NotJetStreamMessageError:
            position = ""
        return f"<Message {self.subject!r} {len(self.data)} bytes{position}>"

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._frame[3]

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        return self._frame[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The reply subject, unmodified. It is the JSAck."""
        return self._frame[1].decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> MessageHeaders:
        """The headers, which may be empty. ``headers[name]`` reads one header and leaves the others unread."""
        headers = self._headers
        if headers is None:
            headers = self._headers = MessageHeaders(self._frame[2], self._channel.reader.find_header)
        return headers

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of a header, like ``headers.get(name, default)``."""
        if self._headers is not None:
            return self._headers.get(name, default)
        try:
            value = self._channel.reader.find_header(self._frame[2], name)
        except ValueError:
            value = find_header(self._frame[2], name)
        return default if value is None else value

    @property
    def size(self) -> int:
        """The size in bytes as the server counts it: subject + reply + headers + payload."""
        return frame_size(self._frame)

    @property
    def metadata(self) -> Metadata:
        """The position of the message in its stream and consumer.

        Raises:
            NotJetStreamMessageError: The reply is not a JSAck.
        """
        if self._metadata is None:
            self._metadata = self._channel.reader.read_jsack(self._frame[1])
        return self._metadata

    @property
    def attempt(self) -> int:
        """The number of this attempt to handle the message, from 1: deliveries by the server plus retries by a worker.

        A worker with ``key`` retries a failed message without a delivery: ``metadata.num_delivered`` stays the same.

        Raises:
            NotJetStreamMessageError: The reply is not a JSAck.
        """
        return self._attempt or self.metadata.num_delivered

    @property
    def acked(self) -> bool:
        """Whether a terminal ack (ack, nak or term) was sent."""
        return self._state is not None and self._state.acked

    async def ack(self) -> None:
        """Acknowledge the message. Returns when the ack is written. `ack_sync` waits for the server.

        After a terminal ack, and with ack policy none, this and every other ack does nothing. The first nak with ack
        policy none is logged.

        Raises:
            DisconnectedError, ClosedError: The ack could not be sent. The message can still be acked.
            NotJetStreamMessageError: The message has no JSAck.

        Reconnect: an ack that may have been lost with a connection is sent again on the next connection, if jsclient
        opened it.
        """
        channel, reply = self._channel, self._frame[1]
        if self._state is None and not channel.silent and channel.reader.match_jsack(reply):  # noqa: SIM102  the second test sends the ack
            if channel.connection.ack_at_once(reply):
                self._state = ACKED
                return
        await self._send_ack(AckKind.ACK, AckKind.ACK.value)

    async def nak(self, delay: float | None = None) -> None:
        """Request redelivery at once, or after ``delay`` seconds. Raises the errors of `ack`."""
        await self._send_ack(AckKind.NAK, ack_payload(AckKind.NAK, delay=delay))

    async def term(self, reason: str | None = None) -> None:
        """Terminate the message: it is not redelivered. Raises the errors of `ack`.

        ``reason``, one line, appears in the server's advisory (server 2.10.4 and newer).
        """
        await self._send_ack(AckKind.TERM, ack_payload(AckKind.TERM, reason=reason))

    async def in_progress(self) -> None:
        """Report progress, so that ``ack_wait`` restarts. May be repeated. Raises the errors of `ack`."""
        await self._send_ack(AckKind.IN_PROGRESS, AckKind.IN_PROGRESS.value)

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Acknowledge the message, and wait until the server has confirmed the ack.

        Args:
            timeout: Seconds. The default is the timeout of the `JetStream`.

        Raises:
            RequestTimeoutError: No confirmation arrived. It is unknown whether the server counted the ack.
            DisconnectedError, ClosedError: The ack could not be sent, or the connection was lost meanwhile.
        """
        state = self._begin_ack(AckKind.ACK)
        if state is None:
            return
        channel = self._channel
        wait = channel.timeout if timeout is None else timeout
        try:
            await channel.requests.ask(
                self.reply, AckKind.ACK.value, timeout=wait, what=f"ack of message {self.metadata.stream_seq}"
            )
        except BaseException:
            state.failed(AckKind.ACK)
            raise
        state.succeeded(AckKind.ACK)

    async def _send_ack(self, kind: AckKind, payload: bytes) -> None:
        state = self._begin_ack(kind)
        if state is None:
            return
        try:
            await self._channel.connection.ack(self._frame[1], payload, settles=kind in _SETTLING)
        except BaseException:
            state.failed(kind)
            raise
        state.succeeded(kind)

    def _begin_ack(self, kind: AckKind) -> AckState | None:
        """Return the state if this ack should be sent, otherwise None."""
        if self._channel.silent:
            self._channel.ignore(kind, self)
            return None
        state = self._state
        if state is None:
            sequences(self._frame[1])  # an ack is only ever published to a JSAck
            state = self._state = AckState()
        if state.begin_ack(kind):
            return state
        if kind is not AckKind.ACK:  # an automatic ack may follow an ack by the handler
            _log.debug("%s of %r ignored: it was acked, nak'ed or terminated before", kind.name.lower(), self)
        return None


# A struct takes half the time of a class to create, and never joins a reference cycle.
class DeliveredMessage(Message, msgspec.Struct, eq=False, gc=False):
    """The message that a reader creates from a frame."""

    _frame: Frame
    _channel: AckChannel
    _state: AckState | None = None
    _headers: MessageHeaders | None = None
    _metadata: Metadata | None = None
    _attempt: int = 0  # set by a worker that retries the message in this process


def _refuse(_cls: type[Message], *_args: object, **_fields: object) -> NoReturn:
    raise TypeError(
        "a Message is what a server delivers, and cannot be made by hand; for the test of a handler, use "
        "jsclient.testing.make_message(subject, data)"
    )


# Set here because msgspec refuses a base that has it. A struct is created without it.
Message.__new__ = staticmethod(_refuse)  # type: ignore[assignment]


def ack_now(message: Message) -> bool:
    """Ack a message if that can be done without waiting and no ack was sent for it yet. Return whether the ack is
    written.

    `Message.ack` repeats these lines: calling this function would add a tenth of a microsecond to each ack.
    """
    channel, reply = message._channel, message._frame[1]  # noqa: SLF001  a class of this module
    if message._state is None and not channel.silent and channel.reader.match_jsack(reply):  # noqa: SIM102, SLF001  the second test sends the ack
        if channel.connection.ack_at_once(reply):
            message._state = ACKED  # noqa: SLF001
            return True
    return False


def awaits_ack(message: Message) -> bool:
    """Return whether an ack of the message would have an effect."""
    return not message._channel.silent and not message.acked  # noqa: SLF001  a class of this module


def ack_state(message: Message) -> AckState | None:
    """Return the state of a message that was not acked. It lives as long as the message, and can be referred to weakly.

    A message itself has no weak references, because it is not tracked by the garbage collector. None: no ack would have
    an effect, or the state has been replaced by that of all acked messages.
    """
    if not awaits_ack(message):
        return None
    if message._state is None:  # noqa: SLF001  a class of this module
        try:
            sequences(message._frame[1])  # noqa: SLF001  as for an ack
        except NotJetStreamMessageError:
            return None
        message._state = AckState()  # noqa: SLF001
    return message._state  # noqa: SLF001


def begin_attempt(message: Message, number: int) -> None:
    """Set the number of the attempt, when a worker handles the message again."""
    message._attempt = number  # noqa: SLF001  a class of this module


def frames_of(messages: Iterable[Message]) -> list[Frame]:
    """Return the raw frames of these messages."""
    return [message._frame for message in messages]  # noqa: SLF001  a class of this module


_log = logging.getLogger("jsclient.message")
_SETTLING = frozenset({AckKind.ACK, AckKind.TERM})


async def ack_all(messages: Iterable[Message]) -> None:
    """Ack many messages with as few writes as possible.

    Raises:
        ExceptionGroup: The errors of the acks that could not be sent. All other acks were sent.
    """
    errors: list[Exception] = []
    for number, message in enumerate(messages):
        try:
            await message.ack()
        except Exception as error:  # noqa: BLE001  raised together, below
            errors.append(error)
        if number % 1000 == 999:
            await asyncio.sleep(0)  # let the event loop flush the writes
    if errors:
        raise ExceptionGroup("some messages could not be acked", errors)
