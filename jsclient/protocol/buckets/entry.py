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
"""The header of a message that is not a value."""

OWN: Final = "Jsc-Own"
"""The header that marks a value of a handle with ``own``, if it has no message id."""

Operation: TypeAlias = Literal["PUT", "DEL", "PURGE"]

DELETE: Final = "DEL"
PURGE: Final = "PURGE"

_REASONS: Final[Mapping[str, Operation]] = {"MaxAge": "PURGE", "Purge": "PURGE", "Remove": "DEL"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KeyValueEntry(msgspec.Struct, Generic[ValueT], frozen=True, kw_only=True, gc=False):
    """A value of a key, or the deletion of a key.

    Attributes:
        bucket: The name of the bucket.
        key: The key.
        raw: The bytes of the value. Empty for a deletion, and for a watch with ``meta_only``.
        revision: The sequence of the entry in the bucket, which increases with each change of any key.
        created_ns: The exact time of storage, in nanoseconds since 1970.
        operation: ``"PUT"`` for a value, ``"DEL"`` for a deletion, ``"PURGE"`` for a deletion of the whole history. A
            marker that the server stores when a value has expired is a ``"PURGE"``.
        delta: The number of entries that follow in the same read. 0 for `KeyValue.get`.
        headers: The headers of the message, or None without headers.
        size: The size of the value in bytes, even if ``meta_only`` omits the value.
        is_initial: Whether the entry already existed when the watch began.
        decoded: Internal.
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
        """The value: ``raw``, or the value that the codec of the bucket decodes from it when it is first read.

        With a codec it is None for a deletion, and for a watch with ``meta_only``.

        Raises:
            ValueInvalidError: The codec cannot decode ``raw``.
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
        """The time of storage in UTC, with microseconds."""
        return _EPOCH + timedelta(microseconds=self.created_ns // 1000)

    @property
    def is_deleted(self) -> bool:
        """Whether the entry is a deletion."""
        return self.operation != "PUT"


def operation_of(headers: Mapping[str, str]) -> Operation:
    """Return the operation of a message with these headers. An unknown operation counts as a deletion."""
    if (operation := headers.get(OPERATION)) is not None:
        return "PURGE" if operation == PURGE else "PUT" if operation == "PUT" else "DEL"
    if (reason := headers.get(MARKER_REASON)) is not None:
        return _REASONS.get(reason, "DEL")
    return "PUT"


def payload_size(headers: Mapping[str, str]) -> int:
    """Return the size of an omitted payload in bytes, or 0 if it is unknown."""
    text = headers.get(MSG_SIZE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
