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
    """The connection, timeout and ack policy that the messages of one subscription share when they send acks."""

    connection: Connection
    requests: Requests
    timeout: float  # default timeout of `ack_sync`, in seconds
    silent: bool = False  # True for ack policy "none", with which the server ignores acks
    reader: Choice = msgspec.field(default_factory=chosen)
    # The kinds of ignored acks that have already been logged.
    logged: set[AckKind] = msgspec.field(default_factory=set)

    def ignore(self, kind: AckKind, message: Message) -> None:
        """Ignore an ack, which has no effect with ack policy none.

        The first nak is logged as a warning, because the application expects a redelivery that never comes.
        """
        if kind is AckKind.NAK and kind not in self.logged:
            self.logged.add(kind)
            _log.warning(
                "nak of %r has no effect: its consumer has ack policy none (ordered readers always have it), so the "
                'server never delivers a message again; read through a consumer with ack_policy="explicit"',
                message,
            )


class Message:
    """A message that the server has delivered from a stream.

    Acknowledge the message once it has been handled. If you don't, the server delivers it again after the consumer's
    ``ack_wait``::

        async for message in subscription:
            await save(message.data)
            await message.ack()

    ``subject``, ``reply``, ``headers`` and ``metadata`` are parsed on first use. Bytes of a subject or header that
    aren't valid UTF-8 are decoded with surrogate escapes, so no information is lost.

    You can't create messages yourself. To test a handler, call `jsclient.testing.make_message`.
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
        """Payload of the message. It may be empty."""
        return self._frame[3]

    @property
    def subject(self) -> str:
        """Subject that the message was published to."""
        return self._frame[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """Reply subject of the message, exactly as the server sent it.

        Acks are published to this subject. For a JetStream message, the server encodes the sequences, the number of
        deliveries and the time of the message in the subject. `metadata` returns them.
        """
        return self._frame[1].decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> MessageHeaders:
        """Headers of the message, as a mapping. It is empty if the message has none.

        ``headers[name]`` finds one header without parsing the others, so reading a few headers is cheap.
        """
        headers = self._headers
        if headers is None:
            headers = self._headers = MessageHeaders(self._frame[2], self._channel.reader.find_header)
        return headers

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of a header, or ``default`` if the message doesn't have the header.

        This is the fastest way to read a single header. Use `headers` if a header may have several values.
        """
        if self._headers is not None:
            return self._headers.get(name, default)
        try:
            value = self._channel.reader.find_header(self._frame[2], name)
        except ValueError:
            value = find_header(self._frame[2], name)
        return default if value is None else value

    @property
    def size(self) -> int:
        """Size of the message in bytes, as the server counts it: subject, reply subject, headers and payload."""
        return frame_size(self._frame)

    @property
    def metadata(self) -> Metadata:
        """Position of the message in its stream, and number of times it has been delivered.

        Raises:
            NotJetStreamMessageError: The message didn't come from a stream, so its reply subject contains no metadata.
        """
        if self._metadata is None:
            self._metadata = self._channel.reader.read_jsack(self._frame[1])
        return self._metadata

    @property
    def attempt(self) -> int:
        """Number of this attempt to handle the message, starting at 1.

        Usually it equals ``metadata.num_delivered``. It is higher if a worker with a ``key`` has retried the message
        itself, without another delivery by the server.

        Raises:
            NotJetStreamMessageError: The message didn't come from a stream.
        """
        return self._attempt or self.metadata.num_delivered

    @property
    def acked(self) -> bool:
        """Whether the message has been settled: acknowledged with `ack`, returned with `nak`, or rejected with `term`.

        Further attempts to settle the message are ignored.
        """
        return self._state is not None and self._state.acked

    async def ack(self) -> None:
        """Acknowledge the message, so the server doesn't deliver it again.

        This method returns as soon as the ack is in the write buffer of the connection, without waiting for the server.
        Use `ack_sync` if you need the confirmation.

        `ack` does nothing if the message has already been settled (see `acked`), or if the consumer has ack policy
        "none".

        If the connection is lost right after the call, the ack may be lost too. The client sends the ack again after
        the reconnect, unless you opened the connection yourself with nats-py.

        Raises:
            DisconnectedError: There is no connection. You may call `ack` again.
            ClosedError: The connection is closed. The ack wasn't sent.
            NotJetStreamMessageError: The message didn't come from a stream.
        """
        channel, reply = self._channel, self._frame[1]
        if self._state is None and not channel.silent and channel.reader.match_jsack(reply):  # noqa: SIM102  the second test sends the ack
            if channel.connection.ack_at_once(reply):
                self._state = ACKED
                return
        await self._send_ack(AckKind.ACK, AckKind.ACK.value)

    async def nak(self, delay: float | None = None) -> None:
        """Ask the server to deliver the message again, possibly to a different client.

        Use `nak` if handling the message failed but may succeed later. It does nothing if the message has already been
        settled.

        If the connection is lost right after the call, the nak may be lost too, and isn't sent again. In this case, the
        server redelivers the message after ``ack_wait``.

        Args:
            delay: How long the server waits before the redelivery, in seconds. By default, the server redelivers the
                message immediately.

        Raises:
            DisconnectedError: There is no connection. You may call `nak` again.
            ClosedError: The connection is closed. The nak wasn't sent.
            NotJetStreamMessageError: The message didn't come from a stream.
        """
        await self._send_ack(AckKind.NAK, ack_payload(AckKind.NAK, delay=delay))

    async def term(self, reason: str | None = None) -> None:
        """Give up on the message. The server never delivers it again, although it wasn't handled.

        Use `term` for a message that can never be handled, for example because its payload is malformed. It does
        nothing if the message has already been settled.

        Args:
            reason: One line of text that the server includes in the advisory about the message. Defaults to no reason.
                Servers before 2.10.4 ignore the reason.

        Raises:
            DisconnectedError: There is no connection. You may call `term` again.
            ClosedError: The connection is closed. The message wasn't terminated.
            NotJetStreamMessageError: The message didn't come from a stream.
        """
        await self._send_ack(AckKind.TERM, ack_payload(AckKind.TERM, reason=reason))

    async def in_progress(self) -> None:
        """Tell the server that the message is still being handled, which restarts its ``ack_wait``.

        If handling a message takes longer than ``ack_wait``, call this method repeatedly to prevent a redelivery.

        Raises:
            DisconnectedError: There is no connection. You may call `in_progress` again.
            ClosedError: The connection is closed.
            NotJetStreamMessageError: The message didn't come from a stream.
        """
        await self._send_ack(AckKind.IN_PROGRESS, AckKind.IN_PROGRESS.value)

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Acknowledge the message, and wait until the server confirms that it has processed the ack.

        If the message has already been settled, for example with `ack`, or if the consumer has ack policy "none", the
        call returns immediately and confirms nothing.

        Args:
            timeout: How long to wait for the confirmation, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            RequestTimeoutError: No confirmation arrived in time, so the server may or may not have processed the ack.
                You may call `ack_sync` again.
            DisconnectedError: The connection was lost before the confirmation arrived. You may call `ack_sync` again.
            ClosedError: The connection is closed.
            NotJetStreamMessageError: The message didn't come from a stream.
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
        if kind is AckKind.ACK and self._channel.connection.ack_at_once(self._frame[1]):
            state.succeeded(kind)
            return
        try:
            await self._channel.connection.ack(self._frame[1], payload, settles=kind in _SETTLING)
        except BaseException:
            state.failed(kind)
            raise
        state.succeeded(kind)

    def _begin_ack(self, kind: AckKind) -> AckState | None:
        """Return the state to update after sending the ack, or None if the ack must not be sent."""
        if self._channel.silent:
            self._channel.ignore(kind, self)
            return None
        state = self._state
        if state is None:
            # Anyone can publish a message with any reply subject, so raise an error if this isn't an ack subject.
            sequences(self._frame[1])
            state = self._state = AckState()
        if state.begin_ack(kind):
            return state
        if kind is not AckKind.ACK:  # acking twice is normal, since a worker also acks after its handler did
            _log.debug("%s of %r ignored: it was acked, nak'ed or terminated before", kind.name.lower(), self)
        return None


# Messages are structs because a struct is created twice as fast as an instance of a class with slots, and because the
# garbage collector doesn't have to track it.
class DeliveredMessage(Message, msgspec.Struct, eq=False, gc=False):
    """The concrete class of the messages that readers create."""

    _frame: Frame
    _channel: AckChannel
    _state: AckState | None = None
    _headers: MessageHeaders | None = None
    _metadata: Metadata | None = None
    _attempt: int = 0  # 0 unless a worker retries the message without a redelivery


def _refuse(_cls: type[Message], *_args: object, **_fields: object) -> NoReturn:
    raise TypeError(
        "a Message is what a server delivers, and cannot be made by hand; for the test of a handler, use "
        "jsclient.testing.make_message(subject, data)"
    )


# msgspec refuses to derive a struct from a class that defines __new__, so __new__ is added after the struct has been
# defined. msgspec doesn't call it when it creates a struct.
Message.__new__ = staticmethod(_refuse)  # type: ignore[assignment]


def ack_now(message: Message) -> bool:
    """Acknowledge a message without waiting, and return whether that was possible.

    It isn't possible if an ack was already sent, or if the connection can't accept the ack at the moment.
    `Message.ack` repeats this code because a function call would add 0.1 µs to each ack.
    """
    channel, reply = message._channel, message._frame[1]  # noqa: SLF001  same module
    if message._state is None and not channel.silent and channel.reader.match_jsack(reply):  # noqa: SIM102, SLF001  the second test sends the ack
        if channel.connection.ack_at_once(reply):
            message._state = ACKED  # noqa: SLF001
            return True
    return False


def awaits_ack(message: Message) -> bool:
    """Return whether an ack of the message would have an effect."""
    return not message._channel.silent and not message.acked  # noqa: SLF001  same module


def ack_state(message: Message) -> AckState | None:
    """Return the ack state of a message, which lives as long as the message and supports weak references.

    A message itself doesn't support weak references, because the garbage collector doesn't track it. Return None if the
    message has already been acked, or if an ack would have no effect.
    """
    if not awaits_ack(message):
        return None
    if message._state is None:  # noqa: SLF001  same module
        try:
            sequences(message._frame[1])  # noqa: SLF001  the same check as for an ack
        except NotJetStreamMessageError:
            return None
        message._state = AckState()  # noqa: SLF001
    return message._state  # noqa: SLF001


def begin_attempt(message: Message, number: int) -> None:
    """Set `Message.attempt` before a worker passes the message to its handler again."""
    message._attempt = number  # noqa: SLF001  same module


def frames_of(messages: Iterable[Message]) -> list[Frame]:
    """Return the raw frames of these messages."""
    return [message._frame for message in messages]  # noqa: SLF001  same module


_log = logging.getLogger("jsclient.message")
_SETTLING = frozenset({AckKind.ACK, AckKind.TERM})


async def ack_all(messages: Iterable[Message]) -> None:
    """Acknowledge several messages, combining the acks into as few writes as possible.

    This is faster than awaiting `Message.ack` in many tasks, and it tries every message even if an ack fails.

    Args:
        messages: The messages to acknowledge, such as the `Batch` returned by a fetch.

    Raises:
        ExceptionGroup: Some acks couldn't be sent. The group contains one error for each of them. The other acks were
            sent.
    """
    errors: list[Exception] = []
    for number, message in enumerate(messages):
        try:
            await message.ack()
        except Exception as error:  # noqa: BLE001  one failed ack must not prevent the others
            errors.append(error)
        if number % 1000 == 999:
            await asyncio.sleep(0)  # let the event loop flush the writes
    if errors:
        raise ExceptionGroup("some messages could not be acked", errors)
