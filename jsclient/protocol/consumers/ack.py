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
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import msgspec

from ...errors import ConfigError, NotJetStreamMessageError
from ..wire.frames import Frame
from ..wire.units import seconds_to_ns

__all__ = [
    "ACKED",
    "AckKind",
    "AckState",
    "Metadata",
    "ack_payload",
    "is_jsack",
    "match_jsack",
    "parse_jsack",
    "read_jsack",
    "run_of",
    "runs_on",
    "sequences",
    "stored_at",
]

PREFIX = b"$JS.ACK."
_MAX_U64 = 2**64 - 1

# Both forms, with numbers of up to 19 digits, which fit into 64 bits; `parse_jsack` decides about all others.
_JSACK = re.compile(
    rb"\$JS\.ACK\.(?:"
    rb"T\.T\.N\.(N)\.(N)\.N\.N"
    rb"|T\.T\.T\.T\.N\.(N)\.(N)\.N\.N(?:\.T)*"
    rb")\Z".replace(b"N", rb"[0-9]{1,19}").replace(b"T", rb"[^.]+")
)

_SHORT = re.compile(
    rb"\$JS\.ACK\.[^.]+\.[^.]+\.N\.(N)\.(N)\.(N)\.(N)".replace(b"N", rb"[0-9]{1,19}")
).fullmatch

match_jsack: Callable[[bytes], re.Match[bytes] | None] = _JSACK.match
"""Whether a reply is a JSAck, in one step; for the rare ones that it does not match, use `sequences`."""


class Metadata(msgspec.Struct, frozen=True):
    """The position of a message in its stream and in its consumer.

    ``num_delivered`` includes this delivery (1 = first time); ``num_pending`` is the number of messages that the
    consumer has still to deliver after this one; ``timestamp_ns`` is when the stream stored it, nanoseconds since 1970
    UTC; ``domain`` is None if the server has none (``_`` on the wire).
    """

    stream: str
    consumer: str
    num_delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp_ns: int
    num_pending: int
    domain: str | None = None

    @property
    def timestamp(self) -> datetime:
        """When the stream stored the message, UTC, cut to microseconds (``timestamp_ns`` is exact)."""
        seconds, nanos = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)


def is_jsack(reply: bytes) -> bool:
    """Whether a reply marks its message as data. Control messages never carry such a reply."""
    return reply.startswith(PREFIX)


def _numbers(tokens: list[str], reply: str) -> list[int]:
    numbers = []
    for token in tokens:
        # int() alone would accept "+1", "1_0" and digits of other scripts.
        if not (token.isascii() and token.isdecimal() and len(token) <= 20):
            raise NotJetStreamMessageError(reply)
        number = int(token)
        if number > _MAX_U64:
            raise NotJetStreamMessageError(reply)
        numbers.append(number)
    return numbers


def parse_jsack(reply: str) -> Metadata:
    """Read a JSAck in either form.

    Raises:
        NotJetStreamMessageError: It does not start with ``$JS.ACK.``, does not have 9 or at least 11 tokens, or has an
            empty token or an invalid number.
    """
    tokens = reply.split(".")
    count = len(tokens)
    if tokens[:2] != ["$JS", "ACK"] or count < 9 or count == 10 or not all(tokens):
        raise NotJetStreamMessageError(reply)
    if count == 9:
        domain, (stream, consumer, *rest) = None, tokens[2:]
    else:
        domain, (stream, consumer, *rest) = tokens[2], tokens[4:11]
    delivered, stream_seq, consumer_seq, timestamp, pending = _numbers(rest, reply)
    return Metadata(
        stream=stream,
        consumer=consumer,
        num_delivered=delivered,
        stream_seq=stream_seq,
        consumer_seq=consumer_seq,
        timestamp_ns=timestamp,
        num_pending=pending,
        domain=None if domain == "_" else domain,
    )


def read_jsack(reply: bytes) -> Metadata:
    """As `parse_jsack`, from the bytes of the wire, and faster for the forms that the server sends."""
    if not match_jsack(reply):
        return parse_jsack(reply.decode("utf-8", "surrogateescape"))
    tokens = reply.decode("utf-8", "surrogateescape").split(".")
    if len(tokens) == 9:
        _, _, stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = tokens
        domain = None
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


def sequences(reply: bytes) -> tuple[int, int]:
    """The stream and the consumer sequence of a JSAck, for gap checking.

    Raises:
        NotJetStreamMessageError: As `parse_jsack`.
    """
    found = _JSACK.match(reply)
    if found is None:
        whole = parse_jsack(reply.decode("utf-8", "backslashreplace"))
        return whole.stream_seq, whole.consumer_seq
    v1_stream, v1_consumer, v2_stream, v2_consumer = found.groups()
    return (int(v1_stream), int(v1_consumer)) if v1_stream else (int(v2_stream), int(v2_consumer))


def stored_at(reply: bytes) -> tuple[int, int, int, int]:
    """Read stream sequence, consumer sequence, storage time (ns) and pending messages from a JSAck.

    Raises:
        NotJetStreamMessageError: As `parse_jsack`.
    """
    if found := _SHORT(reply):
        stream_seq, consumer_seq, timestamp, pending = found.groups()
        return int(stream_seq), int(consumer_seq), int(timestamp), int(pending)
    whole = read_jsack(reply)
    return whole.stream_seq, whole.consumer_seq, whole.timestamp_ns, whole.num_pending


def run_of(reply: bytes) -> bytes:
    """The common start of the JSAcks of a run of first deliveries: everything before the stream sequence.

    b"" if the numbers are not the last tokens, so that they cannot be read quickly.
    """
    return reply.rsplit(b".", 4)[0] if reply.count(b".") in {8, 10} else b""


def runs_on(frames: Sequence[Frame], run: bytes, consumer_seq: int | None) -> bool:
    """Whether all frames belong to a run, with consecutive consumer sequences from ``consumer_seq`` on.

    A fast path for the ordinary case: it reads nothing else of them. None: the sequences are not checked.
    """
    try:
        if consumer_seq is None:
            return bool(run) and all(frame[1].rsplit(b".", 4)[0] == run for frame in frames)
        for _, reply, _, _ in frames:
            start, _, number, _, _ = reply.rsplit(b".", 4)
            if start != run or int(number) != consumer_seq:
                return False
            consumer_seq += 1
    except ValueError:
        return False
    return bool(run)


class AckKind(Enum):
    """The kinds of ack, with their bodies on the wire. Source: ADR-15 §Ack Handling."""

    ACK = b"+ACK"
    NAK = b"-NAK"
    TERM = b"+TERM"
    IN_PROGRESS = b"+WPI"

    @property
    def is_terminal(self) -> bool:
        """Whether no other ack can follow."""
        return self is not AckKind.IN_PROGRESS


def ack_payload(kind: AckKind, *, delay: float | None = None, reason: str | None = None) -> bytes:
    """The body of an ack.

    Args:
        kind: The kind of ack.
        delay: With NAK: seconds before redelivery, 0 or more.
        reason: With TERM: the reason, for the server's advisory; one line (server 2.10.4 and newer).
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


@dataclass(slots=True)
class AckState:
    """Whether a message can still be acked.

    At most one terminal ack is sent; later ones are ignored. The state changes only when the publish succeeded, so a
    failed one leaves the message ackable; while one is in flight, another terminal ack is ignored as well.
    """

    acked: bool = False
    _sending: bool = False

    def begin(self, kind: AckKind) -> bool:
        """Whether this ack should be sent. After True, call `succeeded` or `failed`."""
        if self.acked or self._sending:
            return False
        self._sending = kind.is_terminal
        return True

    def succeeded(self, kind: AckKind) -> None:
        """The ack was published."""
        if kind.is_terminal:
            self.acked, self._sending = True, False

    def failed(self, kind: AckKind) -> None:
        """The ack could not be published: the message stays ackable."""
        if kind.is_terminal:
            self._sending = False


ACKED = AckState(acked=True)
"""The state after a terminal ack: it is final, so all messages share it."""
