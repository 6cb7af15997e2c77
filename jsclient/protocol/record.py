"""A record of a topic: what a reader gets, wherever it came from."""

from __future__ import annotations

import enum

import msgspec

from .headers import Headers

__all__ = ["Kind", "Record"]


class Kind(enum.Enum):
    """What a record is to the topic."""

    VALUE = "value"
    FINISH = "finish"
    """The last one: the topic ended well."""
    FAIL = "fail"
    """The last one: the topic ended, and the record says why."""
    FRONTIER = "frontier"
    """Which epochs are over; see `jsclient.protocol.epochs`."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a topic.

    Attributes:
        seq: Stream sequence.
        time_ns: When it was stored, nanoseconds since 1970; 0: not known.
        subject: Its subject.
        data: The payload.
        headers: Its headers.
        previous: Stream sequence of the record directly before it, 0 if it is the first. Of which records that is, is
            the feed's matter: of those the reader gets, or of those of its subject. None: not known.
        kind: What it is to the topic.
    """

    seq: int
    time_ns: int = 0
    subject: str = ""
    data: bytes = b""
    headers: Headers = msgspec.field(default_factory=Headers)
    previous: int | None = None
    kind: Kind = Kind.VALUE

    @property
    def is_last(self) -> bool:
        """Whether the topic ends with it."""
        return self.kind is Kind.FINISH or self.kind is Kind.FAIL

    @property
    def size(self) -> int:
        """Bytes of subject, payload and headers, about."""
        size = len(self.subject) + len(self.data)
        if self.headers:
            size += sum(
                len(name) + len(value) for name in self.headers for value in self.headers.get_all(name)
            )
        return size
