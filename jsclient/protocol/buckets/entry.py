"""An entry of a key-value bucket, and the operation of a message. Source: ADR-8, ADR-48."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

import msgspec

from ...errors import ValueInvalidError
from ..wire.header_names import MARKER_REASON, MSG_SIZE
from .values import DecodedValue

if TYPE_CHECKING:  # type checkers know defaults of type variables, which Python 3.11 does not have
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

__all__ = [
    "DELETE",
    "OPERATION",
    "OWN",
    "PURGE",
    "KeyValueEntry",
    "Operation",
    "operation_of",
    "payload_size",
]

OPERATION: Final = "KV-Operation"
"""Header of a message that is not a value. It tells whether the key was deleted or purged."""

OWN: Final = "Jsc-Own"
"""Header that marks a value written by a handle with ``own`` if the value has no message id."""

Operation: TypeAlias = Literal["PUT", "DEL", "PURGE"]

DELETE: Final = "DEL"
PURGE: Final = "PURGE"

_REASONS: Final[Mapping[str, Operation]] = {"MaxAge": "PURGE", "Purge": "PURGE", "Remove": "DEL"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KeyValueEntry(msgspec.Struct, Generic[ValueT], frozen=True, gc=False):
    """An entry of a key-value bucket: a value of a key, or its deletion. Returned by `KeyValue.get` and by watches.

    Attributes:
        bucket: Name of the bucket.
        key: The key.
        raw: The value as bytes. Empty for a deletion, or if the entry comes from a watch with ``meta_only``.
        revision: Stream sequence of the entry. It increases with each change of any key in the bucket. Pass it to
            `KeyValue.update` to change the value only if nobody else has changed it.
        created_ns: Time when the entry was stored, as Unix time in nanoseconds.
        operation: ``"PUT"`` for a value, ``"DEL"`` for a deletion, or ``"PURGE"`` if the history was deleted too. If a
            value expires, the server stores a marker, whose operation is ``"PURGE"``.
        delta: Number of entries that follow in the same read. Always 0 for `KeyValue.get`.
        headers: Headers of the message, or None if it has none.
        size: Size of the value in bytes. Also available if ``meta_only`` omits the value.
        is_initial: True if the entry already existed when the watch was opened, and false if it is a later change.
        decoded: For internal use. Read the decoded value from `value`.
    """

    bucket: str
    key: str
    raw: bytes
    revision: int
    created_ns: int
    operation: Operation = "PUT"
    delta: int = 0
    headers: Mapping[str, str] | None = None
    size: int = 0
    is_initial: bool = False
    decoded: DecodedValue | None = None

    @property
    def value(self) -> ValueT:
        """The value of the key.

        Without a codec, it is the same as ``raw``. With a codec, ``raw`` is decoded on first access. The value is None
        for a deletion, or if the entry comes from a watch with ``meta_only``.

        Raises:
            ValueInvalidError: The codec can't decode ``raw``.
        """
        value: Any = self.raw
        if self.decoded is None:
            return value  # type: ignore[no-any-return]
        if not self.raw and (self.is_deleted or self.size or MSG_SIZE in (self.headers or ())):
            return None  # type: ignore[return-value]
        try:
            return self.decoded.decode_once(self.raw)  # type: ignore[no-any-return]
        except Exception as error:
            raise ValueInvalidError(self.bucket, self.key, self.revision, str(error), self) from error

    @property
    def created(self) -> datetime:
        """Time when the entry was stored, in UTC and truncated to microseconds. ``created_ns`` is exact."""
        return _EPOCH + timedelta(microseconds=self.created_ns // 1000)

    @property
    def is_deleted(self) -> bool:
        """True if this entry left the key without a value, because the key was deleted or purged, or has expired."""
        return self.operation != "PUT"


def operation_of(headers: Mapping[str, str]) -> Operation:
    """Return the operation of a message with these headers. An unknown operation is treated as a deletion."""
    if (operation := headers.get(OPERATION)) is not None:
        return "PURGE" if operation == PURGE else "PUT" if operation == "PUT" else "DEL"
    if (reason := headers.get(MARKER_REASON)) is not None:
        return _REASONS.get(reason, "DEL")
    return "PUT"


def payload_size(headers: Mapping[str, str]) -> int:
    """Return the size of an omitted payload in bytes, or 0 if it is unknown."""
    text = headers.get(MSG_SIZE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
