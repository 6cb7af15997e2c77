"""Creates entries from the messages of a bucket, which a consumer has delivered or the stream has returned."""

from __future__ import annotations

from typing import Any

from ..._runtime.connection.speedups import chosen
from ...protocol.buckets.entry import OPERATION, KeyValueEntry, Operation, operation_of, payload_size
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.message import StoredMessage
from ...protocol.topics.record import Record
from ...protocol.wire.frames import Frame
from ...protocol.wire.header_names import MARKER_REASON, MSG_SIZE
from ...protocol.wire.message_headers import MessageHeaders

__all__ = ["entry_of", "key_of", "recorded_entry", "stored_entry"]

_OPERATION, _REASON, _SIZE = (name.encode() for name in (OPERATION, MARKER_REASON, MSG_SIZE))


def _stored_key(keys: KeySpace, subject: bytes) -> str:
    stored = subject[len(keys.reads) :].decode("utf-8", "surrogateescape")
    return stored if keys.key_codec is None else keys.key(keys.reads + stored)


def entry_of(
    keys: KeySpace, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
) -> KeyValueEntry[Any]:
    """Return the entry in a message that a consumer has delivered."""
    subject, _, block, value = frame
    headers: MessageHeaders | None = None
    operation: Operation = "PUT"
    size = len(value)
    if block:  # most values have no headers
        headers = MessageHeaders(block, chosen().find_header)
        # Search the bytes first. Usually the header is missing, and finding that out by parsing would cost more.
        if _OPERATION in block or _REASON in block:
            operation = operation_of(headers)
        if _SIZE in block and MSG_SIZE in headers:
            size = payload_size(headers)
    return KeyValueEntry(
        bucket=keys.bucket,
        key=_stored_key(keys, subject),
        raw=value,
        revision=revision,
        created_ns=time_ns,
        operation=operation,
        delta=pending,
        headers=headers,
        size=size,
        is_initial=is_initial,
        decoded=None if keys.codec is None else keys.decoding,
    )


def key_of(
    keys: KeySpace, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
) -> tuple[str, bool]:
    """Return the key in a message that a consumer has delivered, and whether it is a deletion."""
    subject, _, block, _ = frame
    is_deleted = (_OPERATION in block or _REASON in block) and operation_of(
        MessageHeaders(block, chosen().find_header)
    ) != "PUT"
    return _stored_key(keys, subject), is_deleted


def stored_entry(keys: KeySpace, key: str, message: StoredMessage, delta: int = 0) -> KeyValueEntry[Any]:
    """Return the entry in a message that was requested from the stream."""
    return KeyValueEntry(
        bucket=keys.bucket,
        key=key,
        raw=message.data,
        revision=message.seq,
        created_ns=message.time_ns,
        operation=keys.operation(message.headers),
        delta=delta,
        headers=message.headers or None,
        size=len(message.data),
        decoded=None if keys.codec is None else keys.decoding,
    )


def recorded_entry(keys: KeySpace, record: Record, delta: int = 0) -> KeyValueEntry[Any]:
    """Return the entry in a record of a log or a table."""
    headers = record.headers
    return KeyValueEntry(
        bucket=keys.bucket,
        key=keys.key(record.subject),
        raw=record.data,
        revision=record.seq,
        created_ns=record.time_ns,
        operation=operation_of(headers) if headers else "PUT",
        delta=delta,
        headers=headers or None,
        size=len(record.data),
        decoded=None if keys.codec is None else keys.decoding,
    )
