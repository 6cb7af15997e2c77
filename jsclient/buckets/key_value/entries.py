"""Creates entries from the messages of a bucket, which a consumer has delivered or the stream has returned.

Watches and listings may read many thousands of entries, so the functions for several messages handle them together.
They call no Python function for an entry unless its message has headers or the bucket has a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from ..._runtime.connection.speedups import chosen
from ...protocol.buckets.entry import OPERATION, KeyValueEntry, Operation, operation_of, payload_size
from ...protocol.buckets.keys import KeySpace
from ...protocol.buckets.values import DecodedValue
from ...protocol.consumers.ack_numbers import AckNumbers
from ...protocol.models.message import StoredMessage
from ...protocol.topics.record import Record
from ...protocol.wire.frames import Frame
from ...protocol.wire.header_names import MARKER_REASON, MSG_SIZE
from ...protocol.wire.message_headers import MessageHeaders

__all__ = ["entries_of", "keys_of", "recorded_entries", "recorded_entry", "stored_entry"]

# Create entries with positional arguments, because keyword arguments cost twice as much.
_new_entry: Callable[..., KeyValueEntry[Any]] = KeyValueEntry
_OPERATION, _REASON, _SIZE = (name.encode() for name in (OPERATION, MARKER_REASON, MSG_SIZE))


def entries_of(
    keys: KeySpace, frames: list[Frame], numbers: AckNumbers, *, is_initial: bool
) -> list[KeyValueEntry[Any]]:
    """Return the entries in messages that a consumer has delivered. There must be at least one message."""
    if len(frames) == 1:  # fast path, because a change usually arrives alone
        [seq], [time_ns], [pending] = numbers
        return [_only_entry(keys, frames[0], seq, time_ns, pending, is_initial=is_initial)]
    subjects, _, blocks, values = zip(*frames, strict=True)
    operations: Iterable[Operation] = repeat("PUT")
    sizes: Iterable[int] = map(len, values)
    headers: Iterable[MessageHeaders | None] = repeat(None)
    if any(blocks):  # rarely true, because most values have no headers
        operations, sizes, headers = zip(*map(_described, blocks, values), strict=True)
    entries = map(
        _new_entry,
        repeat(keys.bucket),
        _keys_under(keys, subjects),
        values,
        numbers.stream_seqs,
        numbers.times_ns,
        operations,
        numbers.pending,
        headers,
        sizes,
        repeat(is_initial),
        _decoders(keys, len(frames)),
    )
    return list(entries)


def _only_entry(
    keys: KeySpace, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
) -> KeyValueEntry[Any]:
    """Return the entry in a message that has arrived alone. The result is the same as from `entries_of`."""
    subject, _, block, value = frame
    stored = subject[len(keys.reads) :].decode("utf-8", "surrogateescape")
    operation, size, headers = _described(block, value) if block else ("PUT", len(value), None)
    return _new_entry(
        keys.bucket,
        stored if keys.key_codec is None else keys.key(keys.reads + stored),
        value,
        revision,
        time_ns,
        operation,
        pending,
        headers,
        size,
        is_initial,
        None if keys.codec is None else keys.decoding,
    )


def _described(block: bytes, value: bytes) -> tuple[Operation, int, MessageHeaders | None]:
    """Return the operation of a message with this header block, the size of its value, and its headers."""
    if not block:
        return "PUT", len(value), None
    headers = MessageHeaders(block, chosen().find_header)
    # Search the bytes first. Usually the header is missing, and finding that out by parsing would cost more.
    operation = operation_of(headers) if _OPERATION in block or _REASON in block else "PUT"
    size = payload_size(headers) if _SIZE in block and MSG_SIZE in headers else len(value)
    return operation, size, headers


def _decoders(keys: KeySpace, count: int) -> Iterable[DecodedValue | None]:
    """Return a decoder for each of ``count`` values, or only None if values are bytes."""
    return repeat(None) if keys.codec is None else map(DecodedValue, repeat(keys.codec, count))


def _keys_under(keys: KeySpace, subjects: Sequence[bytes]) -> Sequence[str]:
    """Return the keys that are stored under these subjects."""
    # Subjects contain no spaces, so all of them can be decoded and divided at once.
    text = b" ".join([b"", *subjects]).decode("utf-8", "surrogateescape")
    stored = text.split(f" {keys.reads}")[1:]
    if len(stored) != len(subjects):
        start = len(keys.reads)
        stored = [subject[start:].decode("utf-8", "surrogateescape") for subject in subjects]
    if keys.key_codec is None:
        return stored
    return [keys.key(keys.reads + one) for one in stored]


def keys_of(
    keys: KeySpace, frames: list[Frame], numbers: AckNumbers, *, is_initial: bool
) -> list[tuple[str, bool]]:
    """Return the key in each message that a consumer has delivered, and whether the message is a deletion."""
    subjects, _, blocks, _ = zip(*frames, strict=True)
    deleted: Iterable[bool] = repeat(False)
    joined = b"".join(blocks)
    if _OPERATION in joined or _REASON in joined:
        deleted = [_described(block, b"")[0] != "PUT" for block in blocks]
    return list(zip(_keys_under(keys, subjects), deleted, strict=False))


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


def recorded_entries(
    keys: KeySpace, records: Sequence[Record], deltas: Iterable[int]
) -> list[KeyValueEntry[Any]]:
    """Return the entries in records, each of which is followed by the number of entries in ``deltas``."""
    start = len(keys.reads)
    stored: Iterable[str] = [record.subject[start:] for record in records]
    if keys.key_codec is not None:
        stored = [keys.key(record.subject) for record in records]
    headers = [record.headers or None for record in records]
    values = [record.data for record in records]
    entries = map(
        _new_entry,
        repeat(keys.bucket),
        stored,
        values,
        [record.seq for record in records],
        [record.time_ns for record in records],
        [operation_of(one) if one else "PUT" for one in headers],
        deltas,
        headers,
        map(len, values),
        repeat(False),  # is_initial
        _decoders(keys, len(records)),
    )
    return list(entries)
