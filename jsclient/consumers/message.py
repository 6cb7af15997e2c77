"""A message of a stream, and what can be answered to it. Source: ADR-15 §JSAck, §Ack Handling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from .._runtime.nats.connection import Connection
from .._runtime.requests import Requests
from ..protocol.consumers.ack import (
    ACKED,
    AckKind,
    AckState,
    Metadata,
    ack_payload,
    match_jsack,
    read_jsack,
    sequences,
)
from ..protocol.wire.frames import Frame, frame_size
from ..protocol.wire.headers import Headers, parse_headers

__all__ = ["AckChannel", "Message", "ack_all", "frames_of"]


@dataclass(slots=True, frozen=True)
class AckChannel:
    """How the messages of one subscription are acked."""

    connection: Connection
    requests: Requests
    timeout: float  # seconds, for `ack_sync`
    silent: bool = False  # ack policy none: acks are ignored


class Message(
    msgspec.Struct, eq=False, gc=False
):  # a struct is made in half the time; it is never part of a cycle
    """One delivery of a stored message.

    ``subject``, ``reply``, ``headers`` and ``metadata`` are read from the wire's bytes on first use. A subject or
    header that is not UTF-8 comes with surrogate escapes, so nothing is lost.
    """

    _frame: Frame
    _channel: AckChannel
    _state: AckState | None = None
    _headers: Headers | None = None
    _metadata: Metadata | None = None

    def __repr__(self) -> str:
        return f"<Message {self.subject!r} {len(self.data)} bytes>"

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
        """Its headers; empty if it has none."""
        if self._headers is None:
            block = self._frame[2]
            self._headers = parse_headers(block)[1] if block else Headers()
        return self._headers

    @property
    def size(self) -> int:
        """Bytes as the server counts them: subject + reply + headers + payload."""
        return frame_size(self._frame)

    @property
    def metadata(self) -> Metadata:
        """Where it stands in its stream and consumer.

        Raises:
            NotJetStreamMessageError: The reply is not a JSAck.
        """
        if self._metadata is None:
            self._metadata = read_jsack(self._frame[1])
        return self._metadata

    # --- acks ------------------------------------------------------------------------------------------------

    @property
    def acked(self) -> bool:
        """Whether a terminal ack (ack, nak or term) was sent."""
        return self._state is not None and self._state.acked

    async def ack(self) -> None:
        """Say that it was processed. *Sent*, not counted: see `ack_sync`.

        After a terminal ack this and every other ack does nothing, as it does when the ack policy is none.

        Raises:
            DisconnectedError, ClosedError: It could not be sent; the message can still be acked.
            NotJetStreamMessageError: The message has no JSAck.

        Reconnect: an ack that may have died with a connection is sent again on the next one (connections that
        jsclient opened).
        """
        channel, reply = self._channel, self._frame[1]
        if self._state is None and not channel.silent and match_jsack(reply):  # noqa: SIM102  the act is no condition
            if channel.connection.ack_at_once(reply):
                self._state = ACKED
                return
        await self._send(AckKind.ACK, AckKind.ACK.value)

    async def nak(self, delay: float | None = None) -> None:
        """Ask for it to be delivered again: at once, or after ``delay`` seconds. Raises as `ack`."""
        await self._send(AckKind.NAK, ack_payload(AckKind.NAK, delay=delay))

    async def term(self, reason: str | None = None) -> None:
        """Say that it is never to be delivered again, though not processed. Raises as `ack`.

        ``reason``, one line, appears in the server's advisory (server 2.10.4 and newer).
        """
        await self._send(AckKind.TERM, ack_payload(AckKind.TERM, reason=reason))

    async def in_progress(self) -> None:
        """Say that it is being worked on: ``ack_wait`` begins again. May be repeated. Raises as `ack`."""
        await self._send(AckKind.IN_PROGRESS, AckKind.IN_PROGRESS.value)

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Ack, and wait until the server has counted it.

        Args:
            timeout: Seconds; by default that of the `JetStream`.

        Raises:
            RequestTimeoutError: No confirmation came: whether it was counted is unknown.
            DisconnectedError, ClosedError: It could not be sent, or the connection was lost meanwhile.
        """
        state = self._begin(AckKind.ACK)
        if state is None:
            return
        channel = self._channel
        wait = channel.timeout if timeout is None else timeout
        try:
            await channel.requests.request(
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
        """The state, if this ack is to be sent."""
        if self._channel.silent:
            return None
        state = self._state
        if state is None:
            sequences(self._frame[1])  # an ack is published to a JSAck and nowhere else
            state = self._state = AckState()
        return state if state.begin(kind) else None


def frames_of(messages: Iterable[Message]) -> list[Frame]:
    """What they came as: for who reads them in another way."""
    return [message._frame for message in messages]  # noqa: SLF001  those of its own module


_SETTLING = frozenset({AckKind.ACK, AckKind.TERM})


async def ack_all(messages: Iterable[Message]) -> None:
    """Ack many messages; they go out in as few writes as possible.

    Raises:
        ExceptionGroup: Of the errors of those that could not be sent. The others were.
    """
    errors: list[Exception] = []
    for number, message in enumerate(messages):
        try:
            await message.ack()
        except Exception as error:  # noqa: BLE001  told together, below
            errors.append(error)
        if number % 1000 == 999:
            await asyncio.sleep(0)  # let the writes go out
    if errors:
        raise ExceptionGroup("some messages could not be acked", errors)
