"""Direct gets, which read messages from any replica of a stream, many with one request.

The server sends the messages one by one, with headers that describe them, and an end of batch with the number of
further messages. It does not use flow control, so all requested messages may have to be buffered. Each message names
its predecessor, so that a lost message is detected.

Source: ADR-31; nats-server server/stream.go (processDirectGetRequest, getDirectRequest, getDirectMulti).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from ...errors import (
    AnswerLostError,
    BadRequestError,
    ConfigError,
    JetStreamError,
    MessageNotFoundError,
    NoRespondersError,
    ProtocolError,
    StatusError,
    TooManyResultsError,
)
from ..consumers.status import Ending
from ..models.message import StoredMessage, mended_block, read_direct_message
from ..wire import header_names as names
from ..wire.checks import check_count
from ..wire.frames import Frame
from ..wire.headers import Headers, inline_status, parse_headers
from ..wire.names import check_filter_subject, check_filter_subjects
from ..wire.units import format_time

__all__ = [
    "BATCH_GET_SERVER",
    "MAX_SUBJECTS",
    "DirectBatchTracker",
    "batch_request",
    "direct_sequence",
    "last_request",
    "read_direct_answer",
]

BATCH_GET_SERVER: Final = (2, 11)
"""The first server version that supports batches."""

MAX_SUBJECTS: Final = 1024
"""The maximum number of subjects that a request for the last messages may match (the server's limit)."""

_NO_MESSAGE: Final = 10037
_MAX_SEQUENCE: Final = 2**64 - 1

_FIRST_ADDED: Final = b"Nats-Stream: "
_FIRST_LINE: Final = len(b"NATS/1.0\r\n")
_SEQUENCE: Final = b"Nats-Sequence: "
_LAST: Final = b"Nats-Last-Sequence: "
_AFTER_SEQUENCE, _AFTER_LAST, _AFTER_PENDING = len(_SEQUENCE), len(_LAST), len(b"Nats-Num-Pending: ")

# The headers that the server adds after the headers of the message.
_ADDED = re.compile(
    rb"Nats-Stream: [^\r\n]+\r\n"
    rb"Nats-Subject: ([^\r\n]+)\r\n"
    rb"Nats-Sequence: ([0-9]{1,20})\r\n"
    rb"Nats-Time-Stamp: ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z\r\n"
    rb"(?:Nats-Num-Pending: ([0-9]{1,20})\r\nNats-Last-Sequence: ([0-9]{1,20})\r\n)?\r\n"  # in batches
)


def batch_request(
    batch: int,
    *,
    seq: int | None = None,
    start_time: datetime | str | None = None,
    subject: str | None = None,
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the request for up to ``batch`` messages from a position on.

    Raises:
        ConfigError: A value is out of range, or both positions are set.
    """
    if seq is not None and start_time is not None:
        raise ConfigError("seq and start_time are both given: give one of them")
    body: dict[str, Any] = {"batch": check_count("batch", batch, 1, _MAX_SEQUENCE)}
    if start_time is not None:
        body["start_time"] = format_time(start_time)
    else:
        body["seq"] = 1 if seq is None else check_count("seq", seq, 1, _MAX_SEQUENCE)
    if subject is not None:
        body["next_by_subj"] = check_filter_subject(subject)
    if max_bytes is not None:
        body["max_bytes"] = check_count("max_bytes", max_bytes, 1, _MAX_SEQUENCE)
    return body


def last_request(
    subjects: str | Sequence[str],
    *,
    batch: int | None = None,
    seq: int | None = None,
    up_to_seq: int | None = None,
    up_to_time: datetime | str | None = None,
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the request for the last message of each subject that matches any of ``subjects``.

    Raises:
        ConfigError: A value is out of range, or both ends are set.
    """
    if up_to_seq is not None and up_to_time is not None:
        raise ConfigError("up_to_seq and up_to_time are both given: give one of them")
    patterns = [subjects] if isinstance(subjects, str) else list(subjects)
    if not patterns:
        raise ConfigError("subjects is empty: give one at least")
    body: dict[str, Any] = {"multi_last": check_filter_subjects(patterns)}
    for name, value in (("batch", batch), ("seq", seq), ("up_to_seq", up_to_seq), ("max_bytes", max_bytes)):
        if value is not None:
            body[name] = check_count(name, value, 1, _MAX_SEQUENCE)
    if up_to_time is not None:
        body["up_to_time"] = format_time(up_to_time)
    return body


def read_direct_answer(frame: Frame) -> StoredMessage:
    """Return the message in the answer to a direct get of one message.

    Raises:
        MessageNotFoundError: The message does not exist.
        StatusError: The server refused the request.
        ProtocolError: The answer is not valid.
    """
    message, _ = _read_plain(frame)
    if message is not None:
        return message
    status, headers = parse_headers(mended_block(frame[2]))
    if status is None:
        return read_direct_message(headers, frame[3])
    if status.code == 404:
        raise MessageNotFoundError(404, _NO_MESSAGE, "no message found")
    raise _error(status.code, status.description)


def _read_plain(frame: Frame) -> tuple[StoredMessage | None, bytes | None]:
    """Return the message in an answer of the ordinary form, and the text of its predecessor's sequence in a batch.

    The message is None if the answer has another form. `read_direct_message` then finds out more, and costs more.
    """
    block = frame[2]
    # Search from the end, because a message may itself have a header of this name, before those of the server.
    start = block.rfind(b"\r\nNats-Stream: ") + 2
    match = _ADDED.fullmatch(block, start) if block.startswith(b"NATS/1.0\r\n") else None
    if match is None:
        return None, None
    subject, seq, second, fraction, pending, last = match.groups()
    moment, seconds = _read_second(second)
    ns = int(fraction.ljust(9, b"0")) if fraction else 0
    message = StoredMessage(
        subject=subject.decode(errors="replace"),
        seq=int(seq),
        data=frame[3],
        headers=Headers() if start == _FIRST_LINE else parse_headers(block[:start] + b"\r\n")[1],
        time=moment.replace(microsecond=ns // 1000),
        time_ns=seconds * 1_000_000_000 + ns,
        num_pending=int(pending) if pending else None,
    )
    return message, last


@lru_cache(maxsize=64)  # messages stored in the same second often arrive together
def _read_second(text: bytes) -> tuple[datetime, int]:
    """Return a time stamp without its fraction, as a `datetime` and in seconds since 1970. Raises `ProtocolError`."""
    try:
        moment = datetime.fromisoformat(f"{text.decode()}+00:00")
    except ValueError as error:
        raise ProtocolError(f"a time stamp of {text!r}") from error
    return moment, int(moment.timestamp())


def direct_sequence(frame: Frame) -> int:
    """Return the stream sequence of a message returned by `DirectBatchTracker.take_frames`."""
    return int(frame[2].rsplit(b"\r\n", 6)[1][_AFTER_SEQUENCE:])


@dataclass(slots=True)
class DirectBatchTracker:
    """Tracks the answer to one request for many messages."""

    batch: int | None = None  # number of messages requested
    count: int = 0  # number of messages so far
    ending: Ending | None = None
    error: JetStreamError | None = None
    num_pending: int = 0  # number of further messages that match
    last_seq: int = 0  # stream sequence of the last message
    # In a request for the last messages of subjects, the sequence after which messages are ignored.
    up_to_seq: int | None = None

    def read_frame(self, frame: Frame) -> StoredMessage | None:
        """Return the message in a frame, or None at the end or after an error. See ``ending`` and ``error``."""
        if inline_status(frame[2]) and _FIRST_ADDED not in frame[2]:
            self._status(frame)
            return None
        try:
            message, previous = self._message(frame)
        except ProtocolError as error:
            self._end_batch(Ending.REFUSED, error)
            return None
        if not self._follows(previous):
            return None
        self.count += 1
        self.last_seq, self.num_pending = message.seq, message.num_pending or 0
        return message

    def take_frames(self, frames: Iterable[Frame]) -> list[Frame]:
        """Return the leading frames that are messages without a gap. See ``ending`` and ``error`` afterwards."""
        taken: list[Frame] = []
        seq, pending = self.last_seq, b""
        for frame in frames:
            lines = frame[2].rsplit(b"\r\n", 6)
            try:
                _, sequence, _, pending, last, _, _ = lines
                if sequence[:_AFTER_SEQUENCE] != _SEQUENCE or int(last[_AFTER_LAST:]) != seq:
                    raise ValueError
                seq = int(sequence[_AFTER_SEQUENCE:])
            except ValueError:
                self.took(len(taken), seq)
                if self.read_frame(frame) is None:  # the end, or a gap
                    return taken
                raise ProtocolError(f"a message of an unknown form: {frame[2][-200:]!r}") from None
            taken.append(frame)
        self.took(len(taken), seq, pending[_AFTER_PENDING:])
        return taken

    def took(self, count: int, seq: int, pending: bytes = b"") -> None:
        """Count messages that the caller has read. Each of them must have named its predecessor.

        Args:
            count: The number of messages.
            seq: The stream sequence of the last message.
            pending: The number of further messages according to the last message.

        Raises:
            ProtocolError: ``pending`` is not a number.
        """
        if count:
            self.count += count
            self.last_seq = seq
            if pending:
                self.num_pending = _number(pending.decode(errors="replace"))

    def _message(self, frame: Frame) -> tuple[StoredMessage, int]:
        """Return a message and the sequence of its predecessor."""
        message, last = _read_plain(frame)
        if message is not None and last:
            return message, int(last)
        headers = parse_headers(mended_block(frame[2]))[1]
        message = read_direct_message(headers, frame[3])
        previous = headers.get_all(names.LAST_SEQUENCE)
        if message.num_pending is None or not previous:
            raise ProtocolError("the server answers one message at a time: batches need 2.11")
        return message, _number(previous[-1])

    def _follows(self, previous: int) -> bool:
        """Return whether the last message received is ``previous``, the message that the server sent last.

        If it isn't, messages were lost, so end the batch with an error.
        """
        if previous == self.last_seq:
            return True
        self._end_batch(
            Ending.REFUSED,
            AnswerLostError(
                f"messages were lost in transit: {previous} was sent, {self.last_seq} was the last one received"
            ),
        )
        return False

    def _status(self, frame: Frame) -> None:
        status, headers = parse_headers(frame[2])
        assert status is not None
        if status.code == 404:
            self.num_pending = 0
            self.ending = Ending.NO_MESSAGES
        elif status.code != 204:  # 204 is the end of batch
            error = _error(status.code, status.description)
            self._end_batch(Ending.NO_RESPONDERS if status.code == 503 else Ending.REFUSED, error)
        else:
            try:
                pending, previous = (
                    _number(headers.get(n, "")) for n in (names.NUM_PENDING, names.LAST_SEQUENCE)
                )
                if names.UP_TO_SEQUENCE in headers:
                    self.up_to_seq = _number(headers[names.UP_TO_SEQUENCE])
            except ProtocolError as error:
                self._end_batch(Ending.REFUSED, error)
                return
            if self._follows(previous):
                self.num_pending = pending
                self.ending = self._why()

    def _why(self) -> Ending:
        if self.batch is not None and self.count >= self.batch:
            return Ending.FULL
        return Ending.MAX_BYTES if self.num_pending else Ending.NO_MESSAGES

    def _end_batch(self, ending: Ending, error: JetStreamError) -> None:
        self.ending, self.error = ending, error


def _error(code: int, description: str) -> StatusError:
    if code in (408, 412):
        return BadRequestError(code, description)
    if code == 413:
        return TooManyResultsError(code, description)
    if code == 503:
        return NoRespondersError(503, "no server answers direct gets of this stream")
    return StatusError(code, description, code == 429)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise ProtocolError(f"the answer to a direct get has {text!r:.40} instead of a number")
    return int(text)
