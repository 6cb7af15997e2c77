"""Members of an iteration as records of a log, and back."""

from __future__ import annotations

from typing import Any, Final

from ...protocol.topics.record import Kind as RecordKind
from ...protocol.topics.record import Record
from ...protocol.topics.value_codec import Codec
from .iteration import Entry, Kind

__all__ = ["encode_entry", "entry_of", "passable_reason", "record_kind"]

_RECORD_KINDS: Final = {
    Kind.VALUE: RecordKind.VALUE,
    Kind.FINISH: RecordKind.FINISH,
    Kind.FAIL: RecordKind.FAIL,
}
_KINDS: Final = {RecordKind.FINISH: Kind.FINISH, RecordKind.FAIL: Kind.FAIL}


def record_kind(kind: Kind) -> RecordKind:
    """What a member is as a record."""
    return _RECORD_KINDS[kind]


def passable_reason(reason: Any) -> Any:
    """A reason that may pass to another process: of an exception its class and text."""
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason


def encode_entry(kind: Kind, value: Any, codec: Codec) -> bytes:
    """The payload of a member's record.

    Raises:
        ConfigError: The value cannot be passed on.
    """
    return codec.encode(passable_reason(value) if kind is Kind.FAIL else value)


def entry_of(record: Record, codec: Codec) -> Entry:
    """The member in a record.

    Raises:
        ProtocolError: Its payload is none that the codec knows.
    """
    return Entry(_KINDS.get(record.kind, Kind.VALUE), codec.decode(record.data), record.seq)
