"""The entry in a message: delivered by a consumer, or requested from the stream."""

from __future__ import annotations

from typing import Any

from ...consumers.message import Message
from ...protocol.buckets.entry import KeyValueEntry, operation_of, payload_size
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.message import StoredMessage
from ...protocol.topics.record import Record
from ...protocol.wire.header_names import MSG_SIZE

__all__ = ["entry_of", "recorded_entry", "stored_entry"]


def entry_of(keys: KeySpace, message: Message, is_initial: bool) -> KeyValueEntry[Any]:  # noqa: FBT001  a decoder
    """Return the entry in a message that a consumer has delivered."""
    metadata, headers = message.metadata, message.headers
    data = message.data
    if not message._frame[2]:  # noqa: SLF001  most values have no headers
        return KeyValueEntry(
            bucket=keys.bucket,
            key=keys.key(message.subject),
            raw=data,
            revision=metadata.stream_seq,
            created_ns=metadata.timestamp_ns,
            delta=metadata.num_pending,
            size=len(data),
            is_initial=is_initial,
            decoded=keys.decoding,
        )
    return KeyValueEntry(
        bucket=keys.bucket,
        key=keys.key(message.subject),
        raw=data,
        revision=metadata.stream_seq,
        created_ns=metadata.timestamp_ns,
        operation=operation_of(headers),
        delta=metadata.num_pending,
        headers=headers,
        size=payload_size(headers) if MSG_SIZE in headers else len(data),
        is_initial=is_initial,
        decoded=keys.decoding,
    )


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
        decoded=keys.decoding,
    )


def recorded_entry(keys: KeySpace, record: Record) -> KeyValueEntry[Any]:
    """Return the value in a record of a table, which has no deletions."""
    return KeyValueEntry(
        bucket=keys.bucket,
        key=keys.key(record.subject),
        raw=record.data,
        revision=record.seq,
        created_ns=record.time_ns,
        headers=record.headers or None,
        size=len(record.data),
        decoded=keys.decoding,
    )
