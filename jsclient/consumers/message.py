"""A message of a stream, and its acks. Source: ADR-15 §JSAck, §Ack Handling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from .._runtime.context import Requests
from .._runtime.nats.connection import Connection
from .._runtime.nats.speedups import Choice, chosen
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
from ..protocol.wire.headers import Headers, find_header, parse_headers
from ..protocol.wire.nats_py import no_attribute

__all__ = ["AckChannel", "DeliveredMessage", "Message", "ack_all", "begin_attempt", "frames_of"]


class AckChannel(msgspec.Struct, frozen=True):
    """The way to read and to ack the messages of one subscription."""

    connection: Connection
    requests: Requests
    timeout: float  # seconds, for `ack_sync`
    silent: bool = False  # ack policy none: acks are ignored
    reader: Choice = msgspec.field(default_factory=chosen)
    told: set[AckKind] = msgspec.field(default_factory=set)  # that these acks are ignored was logged

    def ignore(self, kind: AckKind, message: Message) -> None:
        """An ack that has no effect with ack policy none. A nak expects one: the first is logged."""
        if kind is AckKind.NAK and kind not in self.told:
            self.told.add(kind)
            _log.warning(
                "nak of %r has no effect: its consumer has ack policy none (ordered readers always have it), so the "
                'server never delivers a message again; read through a consumer with ack_policy="explicit"',
                message,
            )


class Message:
    """One delivery of a stored message.

    ``subject``, ``reply``, ``headers`` and ``metadata`` are read from the wire's bytes on first use. A subject or
    header that is not UTF-8 is decoded with surrogate escapes, so nothing is lost.

    Only readers make messages. The test of a handler makes one with `jsclient.testing.make_message`.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # the structs below have the fields
        __getattr__ = no_attribute  # else a type checker would accept any name
    _frame: Frame
    _channel: AckChannel
    _state: AckState | None
    _headers: Headers | None
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
            place = f", {at.stream} {at.stream_seq}, delivery {at.num_delivered}"
        except NotJetStreamMessageError:
            place = ""
        return f"<Message {self.subject!r} {len(self.data)} bytes{place}>"

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._frame[3]

    @property
    def subject(self) -> str:
        """The subject it was published to."""
        return self._frame[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The JSAck, unmodified."""
        return self._frame[1].decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> Headers:
        """The headers; empty if it has none."""
        if self._headers is None:
            block = self._frame[2]
            self._headers = parse_headers(block)[1] if block else Headers()
        return self._headers

    def header(self, name: str, default: str | None = None) -> str | None:
        """The first value of one header: as ``headers.get(name, default)``, but the other headers are not read."""
        if self._headers is not None:
            return self._headers.get(name, default)
        try:
            value = self._channel.reader.find_header(self._frame[2], name)
        except ValueError:
            value = find_header(self._frame[2], name)
        return default if value is None else value

    @property
    def size(self) -> int:
        """Bytes as the server counts them: subject + reply + headers + payload."""
        return frame_size(self._frame)

    @property
    def metadata(self) -> Metadata:
        """Its position in its stream and consumer.

        Raises:
            NotJetStreamMessageError: The reply is not a JSAck.
        """
        if self._metadata is None:
            self._metadata = self._channel.reader.read_jsack(self._frame[1])
        return self._metadata

    @property
    def attempt(self) -> int:
        """The number of this attempt to handle it, from 1: deliveries by the server plus retries by the worker.

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
        """Acknowledge. Returns when the ack is written; `ack_sync` waits for the server.

        After a terminal ack, and with ack policy none, this and every other ack does nothing; the first nak with ack
        policy none is logged.

        Raises:
            DisconnectedError, ClosedError: It could not be sent; the message can still be acked.
            NotJetStreamMessageError: The message has no JSAck.

        Reconnect: an ack that may have been lost with a connection is sent again on the next one (connections opened
        by jsclient).
        """
        channel, reply = self._channel, self._frame[1]
        if self._state is None and not channel.silent and channel.reader.match_jsack(reply):  # noqa: SIM102  the second test sends the ack
            if channel.connection.ack_at_once(reply):
                self._state = ACKED
                return
        await self._send(AckKind.ACK, AckKind.ACK.value)

    async def nak(self, delay: float | None = None) -> None:
        """Request redelivery: at once, or after ``delay`` seconds. Raises as `ack`."""
        await self._send(AckKind.NAK, ack_payload(AckKind.NAK, delay=delay))

    async def term(self, reason: str | None = None) -> None:
        """Terminate: stop redelivery of this message. Raises as `ack`.

        ``reason``, one line, appears in the server's advisory (server 2.10.4 and newer).
        """
        await self._send(AckKind.TERM, ack_payload(AckKind.TERM, reason=reason))

    async def in_progress(self) -> None:
        """Report progress: ``ack_wait`` restarts. May be repeated. Raises as `ack`."""
        await self._send(AckKind.IN_PROGRESS, AckKind.IN_PROGRESS.value)

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Ack, and wait until the server has confirmed it.

        Args:
            timeout: Seconds; by default that of the `JetStream`.

        Raises:
            RequestTimeoutError: No confirmation came: whether the server counted the ack is unknown.
            DisconnectedError, ClosedError: It could not be sent, or the connection was lost meanwhile.
        """
        state = self._begin(AckKind.ACK)
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

    async def _send(self, kind: AckKind, payload: bytes) -> None:
        state = self._begin(kind)
        if state is None:
            return
        try:
            await self._channel.connection.ack(self._frame[1], payload, settles=kind in _SETTLING)
        except BaseException:
            state.failed(kind)
            raise
        state.succeeded(kind)

    def _begin(self, kind: AckKind) -> AckState | None:
        """The state, if this ack should be sent."""
        if self._channel.silent:
            self._channel.ignore(kind, self)
            return None
        state = self._state
        if state is None:
            sequences(self._frame[1])  # an ack is only ever published to a JSAck
            state = self._state = AckState()
        if state.begin(kind):
            return state
        if kind is not AckKind.ACK:  # automatic acks come after one of the handler's own
            _log.debug("%s of %r ignored: it was acked, nak'ed or terminated before", kind.name.lower(), self)
        return None


# A struct is created in half the time of a class; it is never part of a reference cycle.
class DeliveredMessage(Message, msgspec.Struct, eq=False, gc=False):
    """What a reader makes of a frame."""

    _frame: Frame
    _channel: AckChannel
    _state: AckState | None = None
    _headers: Headers | None = None
    _metadata: Metadata | None = None
    _attempt: int = 0  # set by a worker that retries it here


def _refuse(_cls: type[Message], *_args: object, **_fields: object) -> NoReturn:
    raise TypeError(
        "a Message is what a server delivers, and cannot be made by hand; for the test of a handler, use "
        "jsclient.testing.make_message(subject, data)"
    )


# Set here because msgspec refuses a base that has it; a struct is created without it.
Message.__new__ = staticmethod(_refuse)  # type: ignore[assignment]


def begin_attempt(message: Message, number: int) -> None:
    """A worker handles the message again."""
    message._attempt = number  # noqa: SLF001  a class of this module


def frames_of(messages: Iterable[Message]) -> list[Frame]:
    """The raw frames of these messages."""
    return [message._frame for message in messages]  # noqa: SLF001  a class of this module


_log = logging.getLogger("jsclient.message")
_SETTLING = frozenset({AckKind.ACK, AckKind.TERM})


async def ack_all(messages: Iterable[Message]) -> None:
    """Ack many messages, in as few writes as possible.

    Raises:
        ExceptionGroup: The errors of the acks that could not be sent. All others were sent.
    """
    errors: list[Exception] = []
    for number, message in enumerate(messages):
        try:
            await message.ack()
        except Exception as error:  # noqa: BLE001  raised together, below
            errors.append(error)
        if number % 1000 == 999:
            await asyncio.sleep(0)  # flush the writes
    if errors:
        raise ExceptionGroup("some messages could not be acked", errors)
