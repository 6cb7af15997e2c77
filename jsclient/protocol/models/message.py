"""Stored messages, as returned by a stream on request.

Source: ADR-1, ADR-31 (direct get); nats-server server/stream.go (StoredMsg, getDirectRequest).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ...errors import ProtocolError
from ..wire import header_names as names
from ..wire.headers import Headers, parse_headers
from ..wire.units import parse_both_times

__all__ = ["StoredMessage", "mended_block", "read_direct_message", "read_stored_message"]

_ADDED = (
    names.STREAM,
    names.SUBJECT,
    names.SEQUENCE,
    names.TIME_STAMP,
    names.NUM_PENDING,
    names.LAST_SEQUENCE,
    names.UP_TO_SEQUENCE,
)

_FIRST_ADDED = b"Nats-Stream: "
_MAX_DIGITS = 20  # digits of a 64 bit number


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as stored in a stream. Returned by `Stream.get_message` and similar methods.

    It wasn't delivered by a consumer, so it can't be acknowledged.

    Attributes:
        subject: Subject that the message was published to.
        seq: Stream sequence of the message.
        data: Payload of the message.
        headers: Headers of the message, without those that the server adds to a response.
        time: Time at which the message was stored, in UTC, with microsecond precision.
        time_ns: Time at which the message was stored, as Unix time in nanoseconds.
        num_pending: Number of further messages that match the request, if the message is part of a batch, otherwise
            None.
    """

    subject: str
    seq: int
    data: bytes
    headers: Headers
    time: datetime
    time_ns: int
    num_pending: int | None = None


def read_stored_message(answer: Mapping[str, Any]) -> StoredMessage:
    """Return the message in the answer to ``STREAM.MSG.GET``, which has headers and payload in base64.

    Raises:
        ProtocolError: The answer does not contain a valid message.
    """
    message = answer.get("message")
    if not isinstance(message, Mapping):
        raise ProtocolError("the answer holds no message")
    seq, time = message.get("seq"), _text(message, "time")
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise ProtocolError("message.seq: an integer is needed")
    moment, time_ns = parse_both_times(time)
    return StoredMessage(
        subject=_text(message, "subject"),
        seq=seq,
        data=_base64(message, "data"),
        headers=parse_headers(_base64(message, "hdrs"))[1],
        time=moment,
        time_ns=time_ns,
    )


def mended_block(block: bytes) -> bytes:
    """Return the header block of a message to which the server has added headers, in a form for `parse_headers`.

    A client may store any bytes as a header block. The server assumes that the last two bytes are the empty line,
    replaces them by its headers, and so may overwrite the version or half a line: ``NATS/1Nats-Stream: S``. The
    message's own headers are in the complete lines that remain. A block of another form has no headers.
    """
    start = block.rfind(_FIRST_ADDED)
    if start < 0:
        return block
    own = block[:start]
    end = own.find(b"\r\n\r\n")
    own = own[: (own.rfind(b"\r\n") if end < 0 else end) + 2]
    lines = own[own.find(b"\r\n") + 2 :] if own.startswith(b"NATS/1.0") else b""
    return b"NATS/1.0\r\n" + lines + block[start:]


def read_direct_message(headers: Headers, data: bytes) -> StoredMessage:
    """Return the message in the answer to a direct get, which describes it in headers.

    The server adds these headers after the message's own, so the last value of a repeated header is the server's.

    Raises:
        ProtocolError: A header is missing or malformed.
    """
    added: dict[str, str] = {}
    own: list[tuple[str, str]] = []
    for name in headers:
        values = headers.get_all(name)
        if name in _ADDED:
            added[name] = values.pop()
        own += [(name, value) for value in values]
    moment, time_ns = parse_both_times(added.get(names.TIME_STAMP, ""))
    return StoredMessage(
        subject=_added_subject(added),
        seq=_number(added, names.SEQUENCE),
        data=data,
        headers=Headers(own),
        time=moment,
        time_ns=time_ns,
        num_pending=_number(added, names.NUM_PENDING) if names.NUM_PENDING in added else None,
    )


def _text(message: Mapping[str, Any], field: str) -> str:
    value = message.get(field)
    if not isinstance(value, str):
        raise ProtocolError(f"message.{field}: a str is needed")
    return value


def _base64(message: Mapping[str, Any], field: str) -> bytes:
    value = message.get(field)
    if value is None:
        return b""
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ProtocolError(f"message.{field}: base64 is needed") from None


def _added_subject(added: Mapping[str, str]) -> str:
    if not added.get(names.SUBJECT):
        raise ProtocolError(f"the answer to a direct get has no {names.SUBJECT}")
    return added[names.SUBJECT]


def _number(added: Mapping[str, str], name: str) -> int:
    text = added.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ProtocolError(f"the answer to a direct get has no usable {name}: {text!r:.40}")
    return int(text)
