"""How the records of a topic travel: what kind a stored message is, and where it says which one it follows.

A record is a message like any other. Its kind is a header, left out for a value, so that whatever publishes to the
subject publishes values. Which record it follows it may say itself: with ``Nats-Expected-Last-Subject-Sequence`` the
server has checked that, and has stored it.

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
    """The header that says so, none for a value."""
    return {} if kind is Kind.VALUE else {KIND: kind.value}


def kind_of(headers: Headers) -> Kind:
    """What a record with these headers is."""
    # What a newer version may say is a value to this one: nothing is lost by it.
    return _KINDS.get(headers[KIND], Kind.VALUE) if KIND in headers else Kind.VALUE


def link_of(headers: Headers) -> int | None:
    """The record of its own subject that it follows, as the server has checked it; None: it does not say."""
    text = headers.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE)
    if text is None or names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in headers:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _own(headers: Headers) -> RecordHeaders:
    return RecordHeaders(headers) if headers else NO_HEADERS


def stored_record(message: StoredMessage, *, linked: bool) -> Record:
    """A record that was read from the history. ``linked``: it may say which one it follows."""
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
    """A record that a consumer delivered. ``previous``: which one it follows, if it does not say itself."""
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
    """A record that the server republished; it says which record of its subject it follows.

    Raises:
        ProtocolError: It was not republished by this stream.
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
