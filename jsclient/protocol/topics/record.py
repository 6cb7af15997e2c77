"""A record of a topic, and its headers."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from ..wire.headers import Headers

__all__ = ["NO_HEADERS", "Kind", "Record", "RecordHeaders", "total_size"]


class Kind(enum.Enum):
    """The kind of a record."""

    VALUE = "value"
    FINISH = "finish"
    """The last record: the topic is complete."""
    FAIL = "fail"
    """The last record: the topic failed, for the reason in the record."""
    FRONTIER = "frontier"
    """Lists completed epochs; see `jsclient.protocol.epochs.trackers`."""


class RecordHeaders(Headers):
    """The headers of a record. Immutable, because records may share them; ``copy()`` returns mutable ones."""

    __slots__ = ("size",)

    size: int
    """Approximate bytes of names and values."""

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        own = headers if type(headers) is Headers else Headers(headers)
        dict.update(self, own)
        self._repeated = {name: list(values) for name, values in own._repeated.items()}  # noqa: SLF001  a Headers, too
        self.size = sum(map(len, own)) + sum(map(len, own.values()))
        for values in self._repeated.values():
            self.size += sum(map(len, values))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the headers of a record are immutable: change the result of copy()")


for _name in (
    *("__setitem__", "__delitem__", "__ior__", "add", "update", "setdefault"),
    *("pop", "popitem", "clear"),
):
    setattr(RecordHeaders, _name, RecordHeaders._refuse)  # noqa: SLF001  the class is still being made


NO_HEADERS: Final = RecordHeaders()


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # it is never part of a cycle
    """A record of a topic.

    Attributes:
        seq: Stream sequence.
        time_ns: When it was stored, nanoseconds since 1970; 0: unknown.
        subject: Its subject.
        data: The payload.
        headers: Its headers. They are immutable.
        previous: Stream sequence of the record directly before it; 0: it is the first; None: unknown. It is the
            predecessor among the records of the reader, or among those of the subject; the feed decides.
        kind: Its kind.
    """

    seq: int
    time_ns: int = 0
    subject: str = ""
    data: bytes = b""
    headers: Headers = msgspec.field(default_factory=lambda: NO_HEADERS)
    previous: int | None = None
    kind: Kind = Kind.VALUE

    @property
    def is_last(self) -> bool:
        """Whether it ends the topic."""
        return self.kind is Kind.FINISH or self.kind is Kind.FAIL

    @property
    def size(self) -> int:
        """Bytes of subject, payload and headers."""
        size = len(self.subject) + len(self.data)
        if headers := self.headers:
            size += headers.size if isinstance(headers, RecordHeaders) else RecordHeaders(headers).size
        return size


def total_size(records: Sequence[Record]) -> int:
    """Bytes of subjects, payloads and headers."""
    size = sum([len(record.subject) + len(record.data) for record in records if not record.headers])
    return size + sum([record.size for record in records if record.headers])
