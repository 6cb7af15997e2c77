"""Converts between messages and records of a topic.

A record is an ordinary message. A header names its kind, except for values, so any client that publishes to the
subject publishes values. A record may name its predecessor in ``Nats-Expected-Last-Subject-Sequence``, which the
server checked before it stored the record.

Consecutive frames of a stream differ only in a few numbers. When many frames are converted, parts that equal those of
the previous frame are not parsed again. Frames of an unusual form are parsed by slower functions.

Source: ADR-28 (republish); nats-server server/stream.go (republish, getDirectRequest), server/subject_transform.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from ...errors import ProtocolError
from ..consumers.ack import sequences
from ..models.message import StoredMessage, mended_block
from ..models.stream_config import RePublish
from ..streams.direct_get import DirectBatchTracker
from ..wire import header_names as names
from ..wire.frames import Frame
from ..wire.headers import Headers, parse_headers
from ..wire.names import subject_matches
from ..wire.units import parse_time_ns
from .position import Position
from .record import NO_HEADERS, Kind, Record, RecordHeaders

__all__ = [
    "KIND",
    "KIT_IDS",
    "DeliveredRecords",
    "RepublishedRecords",
    "StoredRecords",
    "is_copy",
    "kind_headers",
    "kind_of",
    "kit_id",
    "link_of",
    "republished_record",
    "republished_subject",
    "stored_record",
]

MAX_SEQUENCE: Final = 2**64 - 1

KIND: Final = "Jsc-Kind"
KIT_IDS: Final = "jsc-"
"""The first characters of a kit's message ids."""

_KINDS: Final = {kind.value: kind for kind in Kind}
_REPUBLISHED: Final = (names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME_STAMP, names.LAST_SEQUENCE)


def kind_headers(kind: Kind) -> dict[str, str]:
    """Return the headers that mark a record of this kind."""
    return {} if kind is Kind.VALUE else {KIND: kind.value}


def is_copy(headers: Headers) -> bool:
    """Return whether a record with these headers is a stored copy of the answer to a direct get.

    NATS doesn't check reply subjects, so any client that may request a record can have the answer stored as a record.
    """
    return names.SEQUENCE in headers


def kit_id(headers: Headers) -> str:
    """Return the id that a kit's producer assigned to a record, or "" if no kit has written it or it is a copy."""
    msg_id = headers.get(names.MSG_ID, "")
    return msg_id if msg_id.startswith(KIT_IDS) and not is_copy(headers) else ""


def kind_of(headers: Headers) -> Kind:
    """Return the kind of a record by its headers. A copy of a last record does not end the topic."""
    # Treat an unknown kind from a newer version as a value, so that no record is lost.
    if KIND not in headers or is_copy(headers):
        return Kind.VALUE
    return _KINDS.get(headers[KIND], Kind.VALUE)


def link_of(headers: Headers) -> int | None:
    """Return the predecessor in the record's subject, which the server has checked, or None if no header names it."""
    text = headers.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE)
    if text is None or names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in headers:
        return None
    return int(text) if _is_number(text) else None


def _own(headers: Headers) -> RecordHeaders:
    return RecordHeaders(headers) if headers else NO_HEADERS


def stored_record(message: StoredMessage, *, linked: bool, origin: Position | None = None) -> Record:
    """Convert a message from the history. With ``linked``, the record may name its predecessor.

    For ``origin`` see `Record`.
    """
    return Record(
        seq=message.seq,
        time_ns=message.time_ns,
        subject=message.subject,
        data=message.data,
        headers=_own(message.headers),
        previous=link_of(message.headers) if linked else None,
        kind=kind_of(message.headers),
        origin=origin,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20


def republished_record(frame: Frame, stream: str, origin: Position | None = None) -> Record:
    """Convert a message that the server republished. It names its predecessor. For ``origin`` see `Record`.

    Raises:
        ProtocolError: The message was not republished by this stream.
    """
    headers = parse_headers(mended_block(frame[2]))[1]
    added: dict[str, str] = {}
    own: list[tuple[str, str]] = []
    for name in headers:
        values = headers.get_all(name)
        if name in _REPUBLISHED:
            added[name] = values.pop()  # the server adds its value last
        own += [(name, value) for value in values]
    seq, previous = added.get(names.SEQUENCE, ""), added.get(names.LAST_SEQUENCE, "")
    if (
        added.get(names.STREAM) != stream
        or not (_is_number(seq) and _is_number(previous))
        or not int(previous) < int(seq) <= MAX_SEQUENCE
    ):
        raise ProtocolError(f"a message on {frame[0]!r:.100} was not republished by stream {stream!r}")
    record_headers = RecordHeaders(own) if own else NO_HEADERS
    return Record(
        seq=int(seq),
        time_ns=parse_time_ns(added.get(names.TIME_STAMP, "")),
        subject=added.get(names.SUBJECT, ""),
        data=frame[3],
        headers=record_headers,
        previous=int(previous),
        kind=kind_of(record_headers),
        origin=origin,
    )


_NO_OWN: Final = b"NATS/1.0"

_SUBJECT: Final = b"Nats-Subject: "

_SEQUENCE: Final = b"Nats-Sequence: "

_TIME_STAMP: Final = b"Nats-Time-Stamp: "

_PENDING: Final = b"Nats-Num-Pending: "

_LAST: Final = b"Nats-Last-Sequence: "

_SECOND: Final = len(_TIME_STAMP) + len("2030-01-31T12:00:00")

_Own = tuple[RecordHeaders, "int | None", Kind]


class _Alike:
    """The parts of the previous frame that were parsed: subject, own headers, and the second of the time stamp."""

    __slots__ = ("head", "linked", "own", "second", "second_ns", "subject", "subject_line")

    def __init__(self, *, linked: bool) -> None:
        self.linked = linked
        self.head = _NO_OWN
        self.own: _Own = NO_HEADERS, None, Kind.VALUE
        self.subject_line = self.second = b""
        self.subject = ""
        self.second_ns = 0

    def new_own(self, head: bytes) -> _Own:
        """Parse the message's own headers."""
        headers = NO_HEADERS if head == _NO_OWN else RecordHeaders(parse_headers(head)[1])
        self.own = headers, link_of(headers) if self.linked else None, kind_of(headers)
        self.head = head
        return self.own

    def new_subject(self, line: bytes) -> str:
        """Parse a subject line. Raises `ValueError` for any other line."""
        if not line.startswith(_SUBJECT):
            raise ValueError
        self.subject = line[len(_SUBJECT) :].decode(errors="replace")
        self.subject_line = line
        return self.subject

    def new_second(self, start: bytes) -> int:
        """Parse the beginning of a time stamp line. Raises `ValueError` for any other line."""
        if not start.startswith(_TIME_STAMP):
            raise ValueError
        moment = datetime.fromisoformat(f"{start[len(_TIME_STAMP) :].decode()}+00:00")
        self.second_ns = int(moment.timestamp()) * 1_000_000_000
        self.second = start
        return self.second_ns


Split: TypeAlias = Callable[[list[Frame], int], tuple[list[tuple[bytes, bytes, int, int]], bytes]]
"""Reads the leading ordinary frames that directly follow a given sequence.

The function returns a row for each frame, with the message's own header block, its subject, sequence and time stamp
(ns). The second result is the number of pending messages according to the last row.
"""


class StoredRecords:
    """Converts the answers to one direct get of many messages.

    Args:
        tracker: The tracker of the request.
        linked: Whether records may name their predecessors.
        origin: See `Record`.
        split: A compiled function that reads the headers of most frames.
    """

    def __init__(
        self,
        tracker: DirectBatchTracker,
        *,
        linked: bool,
        origin: Position | None = None,
        split: Split | None = None,
    ) -> None:
        self._origin = origin
        self._tracker = tracker
        self._linked = linked
        self._split = split
        self._alike = _Alike(linked=linked)

    def read_frames(self, frames: Iterable[Frame]) -> list[Record]:
        """Return the records in consecutive frames. The tracker stores the end, or an error."""
        if self._split is None:
            return self._read_run(frames)
        frames = list(frames)
        records = self._read_split(self._split, frames)
        if len(records) < len(frames):
            records += self._read_run(frames[len(records) :])
        return records

    def _read_split(self, split: Split, frames: list[Frame]) -> list[Record]:
        """Return the records in the frames that the compiled function can read."""
        tracker, alike, origin = self._tracker, self._alike, self._origin
        rows, pending = split(frames, tracker.last_seq)
        records: list[Record] = []
        subject, text = b"", ""
        try:
            for (head, line, seq, time_ns), frame in zip(rows, frames, strict=False):
                headers, link, kind = alike.own if head == alike.head else alike.new_own(head)
                if line is not subject:
                    subject, text = line, line.decode(errors="replace")
                records.append(
                    Record(
                        seq=seq,
                        time_ns=time_ns,
                        subject=text,
                        data=frame[3],
                        headers=headers,
                        previous=link,
                        kind=kind,
                        origin=origin,
                    )
                )
        except ValueError:
            pass  # the message itself contains headers of these names, so leave it to the tracker
        if records:
            tracker.took(len(records), records[-1].seq, pending if len(records) == len(frames) else b"")
        return records

    def _read_run(self, frames: Iterable[Frame]) -> list[Record]:
        tracker, alike, origin = self._tracker, self._alike, self._origin
        records: list[Record] = []
        before, pending, count = b"%d" % tracker.last_seq, b"", 0
        subject, text = b"", ""
        for frame in frames:
            try:
                head, _, line, number, stamp, pending, last, _, _ = frame[2].rsplit(b"\r\n", 8)
                if number[:15] != _SEQUENCE or last[20:] != before:
                    raise ValueError
                if line != subject:
                    if line[:14] != _SUBJECT:
                        raise ValueError
                    subject, text = line, line[14:].decode(errors="replace")
                seq = int(number[15:])
                second = (
                    alike.second_ns if stamp[:_SECOND] == alike.second else alike.new_second(stamp[:_SECOND])
                )
                headers, link, kind = alike.own if head == alike.head else alike.new_own(head)
                record = Record(
                    seq=seq,
                    time_ns=second + int(stamp[_SECOND + 1 : -1].ljust(9, b"0")),
                    subject=text,
                    data=frame[3],
                    headers=headers,
                    previous=link,
                    kind=kind,
                    origin=origin,
                )
            except ValueError:
                # The frame has an unusual form, is a status, or doesn't directly follow the previous message. The
                # tracker tells which.
                tracker.took(count, int(before))
                message = tracker.read_frame(frame)
                if message is None:  # the end, or a gap
                    return records
                records.append(stored_record(message, linked=self._linked, origin=origin))
                before, count = b"%d" % message.seq, 0
                continue
            records.append(record)
            before = number[15:]
            count += 1
        tracker.took(count, int(before), pending[len(_PENDING) :] if count else b"")
        return records


def republished_subject(republish: RePublish | None, subject: str) -> str | None:
    """Return the subject to which records of ``subject``, which may have wildcards, are republished with payloads.

    The result is None if not all of them are republished, or if the destination could receive other records, too. A
    destination that keeps the remainder of the subject (``a.>`` to ``b.a.>``) and a literal subject are supported.
    """
    if republish is None or not republish.dest or republish.headers_only:
        return None
    source, dest = republish.src or ">", republish.dest
    if not subject_matches(source, subject):
        return None
    if source == subject and not _has_wildcard(source) and not _has_wildcard(dest):
        return dest
    before, after = _literal_prefix(source), _literal_prefix(dest)
    if before is None or after is None:
        return None
    return after + subject[len(before) :]


def _has_wildcard(subject: str) -> bool:
    return any(token in ("*", ">") or "{" in token or token.startswith("$") for token in subject.split("."))


def _literal_prefix(subject: str) -> str | None:
    """Return the part before a final ``>``, or None if that is not the only wildcard."""
    if not subject.endswith(">") or _has_wildcard(subject[:-1].rstrip(".") or "x"):
        return None
    return subject[:-1]


class RepublishedRecords:
    """Converts the messages that a stream republishes.

    Any client that may publish to the republished subject can forge such a message. If ``jumps`` is true, the
    predecessor that a message names is used. If not, it is used only if it directly precedes the record, and the
    history is read before any other record. For ``origin`` see `Record`.
    """

    origin: Position | None = None

    def __init__(self, stream: str, *, jumps: bool = True) -> None:
        self._stream = stream
        self._jumps = jumps
        self._line = b"Nats-Stream: " + stream.encode()
        self._alike = _Alike(linked=False)

    def read_frames(self, frames: Iterable[Frame], foreign: Callable[[Frame], None]) -> list[Record]:
        """Return the records in frames. Call ``foreign`` with each frame that this stream did not republish."""
        alike, origin = self._alike, self.origin
        records: list[Record] = []
        for frame in frames:
            try:
                head, stream, subject, number, stamp, last, _, _ = frame[2].rsplit(b"\r\n", 7)
                if stream != self._line or number[:15] != _SEQUENCE or last[:20] != _LAST:
                    raise ValueError
                seq, previous = int(number[15:]), int(last[20:])
                if not 0 <= previous < seq <= MAX_SEQUENCE:
                    raise ValueError
                second = (
                    alike.second_ns if stamp[:_SECOND] == alike.second else alike.new_second(stamp[:_SECOND])
                )
                headers, _, kind = alike.own if head == alike.head else alike.new_own(head)
                record = Record(
                    seq=seq,
                    time_ns=second + int(stamp[_SECOND + 1 : -1].ljust(9, b"0")),
                    subject=alike.subject if subject == alike.subject_line else alike.new_subject(subject),
                    data=frame[3],
                    headers=headers,
                    previous=previous if self._jumps or previous == seq - 1 else None,
                    kind=kind,
                    origin=origin,
                )
            except ValueError:
                # The fast path rejected the frame. Either its headers have an unexpected form, or this stream didn't
                # republish it. The slower function tells which.
                try:
                    record = republished_record(frame, self._stream, origin)
                    if not self._jumps and record.previous != record.seq - 1:
                        record = msgspec.structs.replace(record, previous=None)
                except ProtocolError:
                    foreign(frame)
                    continue
            records.append(record)
        return records


class DeliveredRecords:
    """Converts the deliveries of a consumer.

    With ``linked``, records may name their predecessors. For ``origin`` see `Record`.
    """

    def __init__(self, *, linked: bool, origin: Position | None = None) -> None:
        self._origin = origin
        self._alike = _Alike(linked=linked)

    def read_frames(self, frames: Iterable[Frame]) -> list[Record]:
        """Return the records in frames. A record has a predecessor only if its headers name one.

        Raises:
            NotJetStreamMessageError: A frame has no JSAck.
        """
        records = []
        for frame in frames:
            seq, _, time_ns, _ = sequences(frame[1])
            records.append(self.record(frame, seq, time_ns))
        return records

    def record(self, frame: Frame, seq: int, time_ns: int, previous: int | None = None) -> Record:
        """Return the record in a frame.

        Args:
            frame: A delivery.
            seq: The stream sequence of the record.
            time_ns: The time of storage, as Unix time in nanoseconds.
            previous: The predecessor of the record, which is used if the frame doesn't name it.
        """
        alike, (subject, _, block, data) = self._alike, frame
        if subject != alike.subject_line:
            alike.subject_line, alike.subject = subject, subject.decode(errors="replace")
        head = block or _NO_OWN
        headers, link, kind = alike.own if head == alike.head else alike.new_own(head)
        return Record(
            seq=seq,
            time_ns=time_ns,
            subject=alike.subject,
            data=data,
            headers=headers,
            previous=previous if link is None else link,
            kind=kind,
            origin=self._origin,
        )
