"""The JSAck: the metadata in the reply subject of a delivered message, and the acks sent to it.

Two forms of the reply subject exist, tokens divided by dots::

    v1   $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>
    v2   $JS.ACK.<domain>.<account hash>.<stream>.<consumer>. … as v1 … [.<more tokens>]

v1 has 9 tokens, v2 11 or more. The account hash and everything past the 11th token are for the server. The reply
is used unmodified as the subject of the ack. Source: ADR-15 §JSAck, §Ack Handling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...errors import ConfigError, NotJetStreamMessageError
from ..wire.frames import Frame, total_size
from ..wire.nats_py import no_attribute
from ..wire.units import seconds_to_ns

__all__ = [
    "ACKED",
    "AckKind",
    "AckState",
    "Metadata",
    "Runs",
    "ack_payload",
    "has_whole_numbers",
    "is_jsack",
    "last_of_run",
    "last_of_whole_run",
    "match_jsack",
    "read_jsack",
    "run_of",
    "sequences",
]

PREFIX = b"$JS.ACK."
_MAX_U64 = 2**64 - 1

# The pattern matches both forms of a JSAck, without further tokens. Numbers have at most 19 digits, so that they fit
# into 64 bits, and sequences don't start with 0. `read_jsack` checks all texts that don't match. The quantifiers are
# possessive, because backtracking could never find a match and would only take time.
match_jsack: Callable[[bytes], re.Match[bytes] | None] = re.compile(
    rb"\$JS\.ACK\.(?:T\.T|T\.T\.T\.T)\.N\.(S)\.(S)\.(N)\.(N)\Z".replace(b"N", rb"[0-9]{1,19}+")
    .replace(b"(S)", rb"([1-9][0-9]{0,18}+)")
    .replace(b"T", rb"[^.]++")
).match
"""Matches a JSAck in one step. It misses some rare JSAcks, for which `is_jsack` must be used."""


class Metadata(msgspec.Struct, frozen=True):
    """The position of a message in its stream and in the deliveries of its consumer. Returned by `Message.metadata`.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        num_delivered: How many times the message has been delivered, including this time. A number greater than 1 means
            that it was redelivered.
        stream_seq: Sequence of the message in the stream. It identifies the message.
        consumer_seq: Sequence of this delivery. It increases by 1 with each delivery of the consumer.
        timestamp_ns: Time at which the stream stored the message, as Unix time in nanoseconds.
        num_pending: Number of messages that the consumer has yet to deliver after this message.
        domain: JetStream domain, or None if the server has none.
    """

    stream: str
    consumer: str
    num_delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp_ns: int
    num_pending: int
    domain: str | None = None

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute

    @property
    def timestamp(self) -> datetime:
        """Time at which the stream stored the message, in UTC, truncated to microseconds. See ``timestamp_ns``."""
        seconds, nanos = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)


def is_jsack(reply: bytes) -> bool:
    """Return whether a reply is a JSAck."""
    return match_jsack(reply) is not None or _is_jsack(reply.decode("utf-8", "surrogateescape").split("."))


def read_jsack(reply: bytes) -> Metadata:
    """Read a JSAck in either form.

    Raises:
        NotJetStreamMessageError: It does not start with ``$JS.ACK.``, does not have 9 or at least 11 tokens, or has an
            empty token, an invalid number, or a sequence of 0.
    """
    tokens = reply.decode("utf-8", "surrogateescape").split(".")
    if not match_jsack(reply) and not _is_jsack(tokens):
        raise NotJetStreamMessageError(reply.decode("utf-8", "backslashreplace"))
    domain = None
    if len(tokens) == 9:
        _, _, stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = tokens
    else:
        domain = None if tokens[2] == "_" else tokens[2]
        stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = tokens[4:11]
    return Metadata(
        stream,
        consumer,
        int(delivered),
        int(stream_seq),
        int(consumer_seq),
        int(timestamp),
        int(pending),
        domain,
    )


def _is_jsack(tokens: list[str]) -> bool:
    count = len(tokens)
    if tokens[:2] != ["$JS", "ACK"] or count < 9 or count == 10 or not all(tokens):
        return False
    numbers = tokens[4:9] if count == 9 else tokens[6:11]
    # Check the characters first, because int() would also accept "+1", "1_0" and digits of other scripts.
    return all(
        token.isascii() and token.isdecimal() and len(token) <= 20 and int(token) <= _MAX_U64
        for token in numbers
    ) and all(int(sequence) for sequence in numbers[1:3])


def sequences(reply: bytes) -> tuple[int, int, int, int]:
    """Read stream sequence, consumer sequence, storage time (ns) and pending messages from a JSAck.

    Raises:
        NotJetStreamMessageError: See `read_jsack`.
    """
    if found := match_jsack(reply):
        stream_seq, consumer_seq, timestamp, pending = found.groups()
        return int(stream_seq), int(consumer_seq), int(timestamp), int(pending)
    whole = read_jsack(reply)
    return whole.stream_seq, whole.consumer_seq, whole.timestamp_ns, whole.num_pending


class AckKind(Enum):
    """The kinds of ack, with their bodies on the wire. Source: ADR-15 §Ack Handling."""

    ACK = b"+ACK"
    NAK = b"-NAK"
    TERM = b"+TERM"
    IN_PROGRESS = b"+WPI"

    @property
    def is_terminal(self) -> bool:
        """Whether this ack is the last one for its message."""
        return self is not AckKind.IN_PROGRESS


def ack_payload(kind: AckKind, *, delay: float | None = None, reason: str | None = None) -> bytes:
    """Return the payload of an ack.

    Args:
        kind: The kind of ack.
        delay: How long until the redelivery, in seconds, 0 or more. Only for NAK.
        reason: One line of text for the server's advisory. Only for TERM. Requires nats-server 2.10.4 or later.
    """
    if kind is AckKind.NAK and delay is not None:
        return b'-NAK {"delay": %d}' % seconds_to_ns(delay, what="nak delay")
    if kind is AckKind.TERM and reason:
        if any(c in reason for c in "\r\n\0"):
            raise ConfigError("the reason of a term must be one line without CR, LF or NUL")
        try:
            return b"+TERM " + reason.encode()
        except UnicodeEncodeError:
            raise ConfigError("the reason of a term must be encodable as UTF-8") from None
    return kind.value


class AckState(msgspec.Struct, eq=False, weakref=True):
    """Whether a message can still be acked.

    At most one terminal ack is sent, and later terminal acks are ignored. The state changes only when the publish
    succeeds, so the message can still be acked after a failure. While a terminal ack is in flight, another terminal ack
    is ignored as well.
    """

    acked: bool = False
    _sending: bool = False

    def begin_ack(self, kind: AckKind) -> bool:
        """Begin an ack, and return whether to send it. After True, call `succeeded` or `failed`."""
        if self.acked or self._sending:
            return False
        self._sending = kind.is_terminal
        return True

    def succeeded(self, kind: AckKind) -> None:
        """Record that the ack was published."""
        if kind.is_terminal:
            self.acked, self._sending = True, False

    def failed(self, kind: AckKind) -> None:
        """Record that the ack could not be published. The message can still be acked."""
        if kind.is_terminal:
            self._sending = False


ACKED = AckState(acked=True)
"""The state after a terminal ack. It never changes, so all messages share this object."""


def run_of(reply: bytes) -> bytes:
    """Return the part of a JSAck before the stream sequence, which is the same in a run of first deliveries.

    Return b"" if the numbers are not the last tokens, because they can't be read quickly in that case.
    """
    return reply.rsplit(b".", 4)[0] if reply.count(b".") in {8, 10} else b""


def last_of_run(frames: Sequence[Frame], run: bytes, consumer_seq: int | None) -> int:
    """Return the last stream sequence of a run of frames, or 0 if the frames are not a run.

    In a run, the stream sequences increase and the consumer sequences are consecutive. This is a fast path for the
    ordinary case. The caller checks other frames one by one. ``consumer_seq`` is the consumer sequence of the first
    frame, or None for any. Time and pending messages are checked on use, in `Message.metadata`.
    """
    if not run:
        return 0
    if (
        consumer_seq is not None
        and len(frames) >= _MANY
        and (last := _consecutive(frames, run, consumer_seq))
    ):
        return last
    last, due = 0, consumer_seq or 0
    follows = False  # true if the last frame continued the stream sequence, as the next frame may
    try:
        for _, reply, _, _ in frames:
            # Compare with the expected text first, which costs less than reading both numbers.
            if follows and reply.startswith(b"%b.%d.%d." % (run, last + 1, due)):
                last += 1
                due += 1
                continue
            start, text, number, _, _ = reply.rsplit(b".", 4)
            if start != run or (seq := int(text)) <= last:
                return 0
            if consumer_seq is not None:
                if int(number) != due:
                    return 0
                due += 1
                follows = seq == last + 1 or not last
            last = seq
    except ValueError:
        return 0
    return last


# Matches the last four tokens of several JSAcks. A dot precedes each token, and a space follows each JSAck.
_match_ends = re.compile(
    rb"(?:\.[1-9][0-9]{0,18}+\.[1-9][0-9]{0,18}+\.[0-9]{1,19}+\.[0-9]{1,19}+ )*+\Z"
).match


def has_whole_numbers(frames: Sequence[Frame], run: bytes) -> bool:
    """Return whether all four numbers after ``run`` in each JSAck are whole numbers."""
    start = len(run)
    ends = [frame[1][start:] for frame in frames]
    ends.append(b"")
    text = b" ".join(ends)
    if len(frames) >= _TABLE and _is_table(text, ends[0] + b" ", len(frames)):
        return True
    return _match_ends(text) is not None


def _is_table(text: bytes, row: bytes, count: int) -> bool:
    """Return whether ``text`` has ``count`` rows with whole numbers in the same columns as in the first row.

    Usually messages that arrive together have numbers of the same lengths. This costs half as much as the pattern.
    """
    width = len(row)
    if len(text) != width * count or not _match_ends(row):
        return False
    if text.translate(None, _NUMERALS) != b".... " * count:
        return False
    dots = [column for column, byte in enumerate(row) if byte == _DOT]
    return (
        text[width - 1 :: width] == b" " * count
        and all(text[dot::width] == b"." * count for dot in dots)
        and not any(b"0" in text[dot + 1 :: width] for dot in dots[:2])
    )


_TABLE = 32  # with at least this many rows, checking them as a table is faster
_NUMERALS = b"0123456789"
_DOT = ord(".")


def last_of_whole_run(frames: list[Frame], run: bytes, consumer_seq: int | None) -> int:
    """Like `last_of_run`, but also return 0 if one of the numbers after ``run`` is not a whole number."""
    if consumer_seq is not None and run and (last := _last_of_table(frames, run, consumer_seq)):
        return last
    last = last_of_run(frames, run, consumer_seq)
    return last if last and has_whole_numbers(frames, run) else 0


def _last_of_table(frames: list[Frame], run: bytes, due: int) -> int:
    """Return the last stream sequence if both sequences grow by one, and all four numbers keep their lengths.

    Returns 0 if this is not so, or for few or very many frames. The JSAcks without ``run`` are the rows of a table,
    which is compared column by column. This costs half as much as `last_of_run` and `has_whole_numbers`.
    """
    count = len(frames)
    if not _TABLE <= count <= _MAX_TABLE:
        return 0
    start = b" %b." % run
    text = b" " + b" ".join([frame[1] for frame in frames])
    rows = text.replace(start, b" ")
    width = len(rows) // count
    first = rows[:width].split(b".")
    if len(first) != 4 or len(text) - len(rows) != count * (len(start) - 1) or width * count != len(rows):
        return 0
    # Each row must consist of digits, except for a space and three dots at the same columns as in the first row.
    if not _match_ends(b".%b " % rows[1:width]) or rows.translate(None, _NUMERALS) != b" ..." * count:
        return 0
    dot, middle = len(first[0]), len(first[0]) + 1 + len(first[1])
    for column, byte in ((0, b" "), (dot, b"."), (middle, b"."), (middle + 1 + len(first[2]), b".")):
        if rows[column::width] != byte * count:
            return 0
    seq = int(first[0])
    if (
        int(first[1]) != due
        or not _grows(rows, width, 1, dot, seq)
        or not _grows(rows, width, dot + 1, middle, due)
    ):
        return 0
    return seq + count - 1


def _grows(rows: bytes, width: int, start: int, end: int, first: int) -> bool:
    """Return whether the numbers in the columns from ``start`` to ``end`` grow by one from ``first`` on."""
    count = len(rows) // width
    last, offset = first + count - 1, first % 1000
    if first < 1000 or 10 ** (end - start) <= last:
        return False
    for column, digits in zip(range(end - 3, end), _COLUMNS, strict=True):
        if rows[column::width] != digits[offset : offset + count]:
            return False
    thousands = [b"%d" % number for number in range(first // 1000, last // 1000 + 1)]
    for column in range(end - start - 3):
        digits = b"".join([number[column : column + 1] * 1000 for number in thousands])
        if rows[start + column :: width] != digits[offset : offset + count]:
            return False
    return True


class Runs(NamedTuple):
    """The functions that read messages that have arrived together, either in Python or compiled."""

    last_of_whole_run: Callable[[list[Frame], bytes, int | None], int] = last_of_whole_run
    total_size: Callable[[list[Frame]], int] = total_size


_MANY = 8  # with at least this many frames, one comparison of all costs less than one per frame
_DIGITS = [b"%03d" % number for number in range(1000)]  # all texts of the last three digits of a number
_MAX_TABLE = 4000  # maximum number of rows of a table
# The last three digits of consecutive numbers that start at a multiple of 1000: one text for each digit position.
_COLUMNS = [
    b"".join([text[offset : offset + 1] for text in _DIGITS]) * (_MAX_TABLE // 1000 + 1)
    for offset in range(3)
]


def _consecutive(frames: Sequence[Frame], run: bytes, due: int) -> int:
    """Return the last stream sequence if both sequences grow by one from frame to frame.

    Returns 0 if they do not, or if this method cannot decide it. The text that the JSAcks must begin with is built
    and compared once, at less than half the cost of a comparison per frame. A piece ends where one of the numbers
    changes in more than its last three digits.
    """
    try:
        seq = int(frames[0][1].rsplit(b".", 4)[-4])
    except (IndexError, ValueError):
        return 0
    if seq < 1000 or due < 1000:
        return 0
    done = 0
    while done < len(frames):
        size = min(len(frames) - done, 1000 - seq % 1000, 1000 - due % 1000)
        start, middle = b".%b.%d" % (run, seq // 1000), b".%d" % (due // 1000)
        expected = [start, b"", middle, b""] * size
        expected[1::4] = _DIGITS[seq % 1000 :][:size]
        expected[3::4] = _DIGITS[due % 1000 :][:size]
        length = len(start) + 3 + len(middle) + 3  # without the dot at the start, and with a dot at the end
        if (
            b"." + b"".join([frame[1][:length] for frame in frames[done : done + size]])
            != b"".join(expected) + b"."
        ):
            return 0
        done, seq, due = done + size, seq + size, due + size
    return seq - 1
