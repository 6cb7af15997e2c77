"""A record of a topic: what a reader gets, wherever it came from."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from ..wire.headers import Headers

__all__ = ["NO_HEADERS", "Kind", "Record", "RecordHeaders", "total_size"]


class Kind(enum.Enum):
    """What a record is to the topic."""

    VALUE = "value"
    FINISH = "finish"
    """The last one: the topic ended well."""
    FAIL = "fail"
    """The last one: the topic ended, and the record says why."""
    FRONTIER = "frontier"
    """Which epochs are over; see `jsclient.protocol.epochs.trackers`."""


class RecordHeaders(Headers):
    """The headers of a record: they cannot be changed, for records may share them. ``copy()`` gives some that can."""

    __slots__ = ("size",)

    size: int
    """Bytes of names and values, about."""

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        own = headers if type(headers) is Headers else Headers(headers)
        dict.update(self, own)
        self._repeated = {name: list(values) for name, values in own._repeated.items()}  # noqa: SLF001  a Headers, too
        self.size = sum(map(len, own)) + sum(map(len, own.values()))
        for values in self._repeated.values():
            self.size += sum(map(len, values))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the headers of a record cannot be changed: copy() gives some that can")

    add = __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


NO_HEADERS: Final = RecordHeaders()


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # it is never part of a cycle
    """A record of a topic.

    Attributes:
        seq: Stream sequence.
        time_ns: When it was stored, nanoseconds since 1970; 0: not known.
        subject: Its subject.
        data: The payload.
        headers: Its headers. They cannot be changed.
        previous: Stream sequence of the record directly before it, 0 if it is the first. Of which records that is, is
            the feed's matter: of those the reader gets, or of those of its subject. None: not known.
        kind: What it is to the topic.
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
        """Whether the topic ends with it."""
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
