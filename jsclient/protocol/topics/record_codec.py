"""Conversion between messages and records of a topic.

A record is an ordinary message. Its kind is a header, omitted for a value, so that any publisher to the subject
publishes values. A record may name its predecessor in ``Nats-Expected-Last-Subject-Sequence``, which the server checked
before it stored the record.

Source: nats-server server/stream.go (republish, getDirectRequest).
"""

from __future__ import annotations

from typing import Final

from ...errors import ProtocolError
from ..consumers.ack import Metadata
from ..models.message import StoredMessage, mended_block
from ..wire import header_names as names
from ..wire.frames import Frame
from ..wire.headers import Headers, parse_headers
from ..wire.units import parse_time_ns
from .record import NO_HEADERS, Kind, Record, RecordHeaders

__all__ = [
    "KIND",
    "delivered_record",
    "kind_headers",
    "kind_of",
    "link_of",
    "republished_record",
    "stored_record",
]

KIND: Final = "Jsc-Kind"

_KINDS: Final = {kind.value: kind for kind in Kind}
_REPUBLISHED: Final = (names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME_STAMP, names.LAST_SEQUENCE)


def kind_headers(kind: Kind) -> dict[str, str]:
    """The headers that mark a record of this kind."""
    return {} if kind is Kind.VALUE else {KIND: kind.value}


def kind_of(headers: Headers) -> Kind:
    """The kind of a record with these headers."""
    # An unknown kind of a newer version is a value: no record is lost.
    return _KINDS.get(headers[KIND], Kind.VALUE) if KIND in headers else Kind.VALUE


def link_of(headers: Headers) -> int | None:
    """The predecessor in its own subject, as the server checked it; None: not given."""
    text = headers.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE)
    if text is None or names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in headers:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _own(headers: Headers) -> RecordHeaders:
    return RecordHeaders(headers) if headers else NO_HEADERS


def stored_record(message: StoredMessage, *, linked: bool) -> Record:
    """A record read from the history. ``linked``: it may name its predecessor."""
    return Record(
        seq=message.seq,
        time_ns=message.time_ns,
        subject=message.subject,
        data=message.data,
        headers=_own(message.headers),
        previous=link_of(message.headers) if linked else None,
        kind=kind_of(message.headers),
    )


def delivered_record(
    subject: str, headers: Headers, data: bytes, metadata: Metadata, *, linked: bool, previous: int | None
) -> Record:
    """A record that a consumer delivered. ``previous``: its predecessor, if it does not name one."""
    link = link_of(headers) if linked else None
    return Record(
        seq=metadata.stream_seq,
        time_ns=metadata.timestamp_ns,
        subject=subject,
        data=data,
        headers=_own(headers),
        previous=previous if link is None else link,
        kind=kind_of(headers),
    )


def republished_record(frame: Frame, stream: str) -> Record:
    """A record that the server republished, which names its predecessor in its subject.

    Raises:
        ProtocolError: This stream did not republish it.
    """
    headers = parse_headers(mended_block(frame[2]))[1]
    said: dict[str, str] = {}
    own: list[tuple[str, str]] = []
    for name in headers:
        values = headers.get_all(name)
        if name in _REPUBLISHED:
            said[name] = values.pop()  # the server adds its own last
        own += [(name, value) for value in values]
    seq, previous = said.get(names.SEQUENCE, ""), said.get(names.LAST_SEQUENCE, "")
    if said.get(names.STREAM) != stream or not seq.isdecimal() or not previous.isdecimal():
        raise ProtocolError(f"a message on {frame[0]!r:.100} was not republished by stream {stream!r}")
    return Record(
        seq=int(seq),
        time_ns=parse_time_ns(said.get(names.TIME_STAMP, "")),
        subject=said.get(names.SUBJECT, ""),
        data=frame[3],
        headers=RecordHeaders(own) if own else NO_HEADERS,
        previous=int(previous),
        kind=kind_of(headers),
    )
