"""Plain messages, and the responses to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from .._runtime.connection.connection import Connection
from .._runtime.connection.speedups import Choice, chosen
from .._runtime.publish import check_payload
from ..errors import ConfigError, InvalidNameError, ServiceError
from ..protocol.core.services import ERROR, ERROR_CODE
from ..protocol.wire.frames import Frame, frame_size
from ..protocol.wire.headers import encode_headers, find_header, inline_status, merge_headers
from ..protocol.wire.message_headers import MessageHeaders
from ..protocol.wire.nats_py import no_attribute
from ..protocol.wire.replies import ACCOUNTS, INBOX, may_answer

__all__ = ["CoreMessage", "ReplyChannel", "header_block"]


def header_block(headers: Mapping[str, str | Sequence[str]] | None) -> bytes:
    """Return the header block of a message. Raise `ConfigError` or `InvalidNameError` if a header is invalid."""
    if not headers:
        return b""
    return encode_headers(headers if type(headers) is dict else merge_headers(headers, {}))


class ReplyChannel(msgspec.Struct, frozen=True):
    """Sends the responses to the messages of one subscription.

    Attributes:
        connection: The connection that received the messages.
        prefixes: Prefixes of the reply subjects that responses may be sent to.
        reader: The functions that parse headers.
    """

    connection: Connection
    prefixes: tuple[str, ...]
    reader: Choice = msgspec.field(default_factory=chosen)

    @classmethod
    def of(cls, connection: Connection, prefixes: Sequence[str] = ()) -> ReplyChannel:
        """Create a channel that may respond to inboxes, other accounts, and subjects with one of these prefixes."""
        own = f"{connection.inbox_prefix}."
        return cls(connection, (INBOX, ACCOUNTS, own, *prefixes))


class CoreMessage(msgspec.Struct, eq=False, gc=False):
    """A message of core NATS: a plain message, a request, or the reply to a request.

    Returned by `Core.request`, and by iterating over a `CoreSubscription` or over `Replies`. To answer a request, call
    `respond`. ``subject``, ``reply`` and ``headers`` are parsed on first use. Bytes of a subject or header that aren't
    valid UTF-8 are decoded with surrogate escapes, so no information is lost.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
    _frame: Frame
    _channel: ReplyChannel
    _headers: MessageHeaders | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: it is answered on the connection that received it; pass on its "
            "subject, data and headers, and answer it here"
        )

    def __repr__(self) -> str:
        reply = f", reply {self.reply!r}" if self._frame[1] else ""
        return f"<CoreMessage {self.subject!r} {len(self.data)} bytes{reply}>"

    @property
    def data(self) -> bytes:
        """Payload of the message, which may be empty. Its format is up to the sender."""
        return self._frame[3]

    @property
    def subject(self) -> str:
        """Subject that the message was published to.

        If the subscription's subject contains wildcards, this is the actual subject of the message.
        """
        return self._frame[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """Subject on which the sender expects a response, or "" if it doesn't expect one.

        Call `respond` to send the response.
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
    def status(self) -> int:
        """Status code, such as 503 (no responders), if the server sent a status instead of a message, otherwise 0."""
        return inline_status(self._frame[2]) if self._frame[2] and not self._frame[3] else 0

    @property
    def error(self) -> ServiceError | None:
        """Error that a service sent in response to a request, or None if this message isn't an error.

        `Core.request` doesn't raise such errors, so check this property if the responder is a service.
        """
        if not self._frame[2] or (text := self.header(ERROR)) is None:
            return None
        code = self.header(ERROR_CODE, "")
        assert code is not None
        return ServiceError(
            int(code) if code.isascii() and code.isdecimal() and len(code) < 10 else 500, text
        )

    async def respond(
        self, data: bytes = b"", *, headers: Mapping[str, str | Sequence[str]] | None = None
    ) -> None:
        """Send a response to the reply subject of the message.

        For security reasons, the reply subject must be an inbox, or start with one of the ``reply_prefixes`` of the
        subscription or service. Otherwise, a sender could make this client publish to any subject to which the client
        is allowed to publish.

        Args:
            data: Payload of the response. Empty by default.
            headers: A mapping from names to values. A value is a string or a list of strings.

        Raises:
            ConfigError: The message has no reply subject, because its sender doesn't expect a response, or ``data``
                isn't bytes.
            InvalidNameError: The reply subject isn't allowed, or a header is invalid.
            MaxPayloadError: The response exceeds the server's size limit.
            DisconnectedError: The client isn't connected. The response wasn't sent.
            ClosedError: The connection is closed. The response wasn't sent.
        """
        reply = self.reply
        if not reply:
            raise ConfigError(f"{self!r} has no reply subject: its sender expects no answer")
        if not may_answer(reply, self._channel.prefixes):
            raise InvalidNameError(
                "reply subject",
                reply,
                "its sender chose it, and it is not an inbox; to answer it, pass the start of such subjects as an item "
                "of reply_prefixes= where you subscribe",
            )
        block = header_block(headers)
        await self._channel.connection.publish(reply, check_payload(data), header=block)
