"""A fast ingest, with its flow control, and the meaning of the server's answers on the control channel.

The reply subject of each message carries the protocol, so a message needs no headers::

    <inbox>.<flow>.<gap>.<number>.<operation>.$FI

The server answers the first message with the number of messages per ack (``flow``, which it may change), and later
sends acks with the number of the last message stored. An ack covers all earlier messages, so a lost ack is replaced
by the next ack, or by the answer to a ping. With ``gap="fail"`` the first message that is missing or refused ends the
ingest, and the server reports the number of messages stored. With ``gap="ok"`` the ingest continues, and the server
reports the missing messages.

Source: ADR-50 §Fast-ingest Batch Publishing; nats-server server/stream.go (getFastBatch,
processJetStreamFastBatchMsg), server/jetstream_batching.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import (
    ApiError,
    ConfigError,
    JetStreamError,
    NoRespondersError,
    ProtocolError,
    PublishError,
)
from ..events import Event, IngestGap, IngestRefused
from ..models.publish import PubAck
from ..wire.api import read_response
from ..wire.checks import check_count
from ..wire.codec import decode, from_wire
from ..wire.frames import Frame
from ..wire.headers import inline_status

__all__ = ["INGEST_SERVER", "IngestTracker", "check_ingest"]

INGEST_SERVER: Final = (2, 14)
"""The first server version that supports fast ingest. An older server stores and acks each message."""

_COMMIT: Final = b"2"
_END: Final = b"3"
_PING: Final = b"4"
_PONG: Final = b".4.$FI"  # an answer to a ping arrives on a subject with this suffix
_ENDED: Final = b".3.$FI"  # an answer to the end of the ingest arrives on a subject with this suffix

# Codes of errors that end the ingest. The stream stores none of the ingest's further messages.
_FATAL: Final = frozenset({10205, 10206, 10207, 10211})
_UNKNOWN_ID: Final = 10208


_MAX_ACK_EVERY: Final = 65_535
_MAX_ACKS: Final = 1000


def check_ingest(gap: str, ack_every: int, max_outstanding_acks: int) -> None:
    """Check the options of a fast ingest.

    Raises:
        ConfigError: A value is out of range.
    """
    if gap not in ("fail", "ok"):
        raise ConfigError(f"gap is {gap!r:.60}: it must be 'fail' or 'ok'")
    check_count("ack_every", ack_every, 1, _MAX_ACK_EVERY)
    check_count("max_outstanding_acks", max_outstanding_acks, 1, _MAX_ACKS)


@dataclass(slots=True)
class IngestTracker:
    """One fast ingest. Messages up to the number ``limit`` may be sent, with the reply subjects returned here."""

    inbox: str  # an inbox prefix and a token, which is the id on the server, of at most 64 characters
    ack_every: int  # maximum number of messages per ack. The server sets the actual number
    max_acks: int = 2  # number of acks that may be outstanding
    gap_ok: bool = False
    sent: int = 0  # number of messages, which are numbered from 1
    acked: int = 0  # the server has processed the messages up to this number
    flow: int = 0  # messages per ack, as set by the server. 0 before it accepted the ingest
    limit: int = 1  # the highest number that may be sent
    lost: int = 0  # number of messages that did not reach the stream
    refused: int = 0  # number of messages that the stream refused
    closing: bool = False  # true if the client may only send the end
    final: PubAck | None = None
    failure: JetStreamError | None = None  # the error that has ended the ingest, or will end it
    # Set if no stream received the first message, which can then be sent again.
    no_stream: NoRespondersError | None = None
    ended: bool = False  # true if the server won't send any more answers
    complete: bool = False  # true if exactly the messages up to `acked` were stored
    _opened: int = -1  # `acked` when the limit was last raised by one
    # Numbers of messages that the server refused without counting them, and will report as missing.
    _unnumbered: list[int] = field(default_factory=list)
    reply: bytes = field(init=False)  # the beginning of every reply subject

    def __post_init__(self) -> None:
        gap = "ok" if self.gap_ok else "fail"
        self.reply = f"{self.inbox}.{self.ack_every}.{gap}.".encode()

    @property
    def id(self) -> str:
        """The id of the ingest on the server."""
        return self.inbox.rpartition(".")[2]

    @property
    def accepted(self) -> bool:
        """Whether the server has accepted the ingest."""
        return self.flow > 0

    def next_reply(self) -> bytes:
        """Return the reply subject of the next message, which counts as sent.

        The operation is start (0) or append (1).
        """
        self.sent = number = self.sent + 1
        return b"%b%d.%d.$FI" % (self.reply, number, number > 1)

    def next_replies(self, count: int) -> list[bytes]:
        """Return the reply subjects of the next messages, which count as sent. None of them may be the first."""
        reply, first = self.reply, self.sent + 1
        self.sent += count
        return [b"%b%d.1.$FI" % (reply, number) for number in range(first, first + count)]

    def commit_reply(self) -> bytes:
        """Return the reply subject of the last message, which counts as sent."""
        self.sent += 1
        return b"%b%d.%b.$FI" % (self.reply, self.sent, _COMMIT)

    def end_reply(self) -> bytes:
        """Return the reply subject of the empty message that ends the ingest. It can be sent repeatedly."""
        return b"%b%d.%b.$FI" % (self.reply, self.sent + 1, _END)

    def ping_reply(self) -> bytes:
        """Return the reply subject of a ping, which the server answers with its progress and with gaps."""
        return b"%b%d.%b.$FI" % (self.reply, self.sent, _PING)

    def close(self) -> None:
        """Accept no more messages."""
        self.closing, self.limit = True, 0

    def receive_answer(self, frame: Frame) -> Event | None:
        """Process an answer of the server. Return an event for the user, if any.

        Raises:
            ProtocolError: The answer is not valid. The state is unchanged.
        """
        if self.ended:
            return None
        # Pings and the end are sent repeatedly, so nothing has to be done if one of them is lost.
        is_repeated = frame[0].endswith((_PONG, _ENDED))
        if not frame[3] and inline_status(frame[2]) == 503:
            if is_repeated:
                return None
            return self._uncounted(_number(frame[0]), NoRespondersError(503, "no stream took the message"))
        answer = decode(frame[3])
        kind = answer.get("type")
        if kind == "ack":
            self._ack(_whole(answer, "seq"), _whole(answer, "msgs"))
            if frame[0].endswith(_PONG):
                self._all_received(_number(frame[0]))
            return None
        if kind == "gap":
            return self._gap(_whole(answer, "last_seq"), _whole(answer, "seq"))
        try:
            read_response(frame[3])
        except ApiError as error:
            if kind == "err":
                return self._refuse_message(_whole(answer, "seq"), error)
            if is_repeated and error.code == 503:
                return None
            return self._uncounted(_number(frame[0]), error, end=frame[0].endswith(_ENDED))
        self._finish_ingest(from_wire(PubAck, answer))
        return None

    def _ack(self, number: int, flow: int) -> None:
        self.acked = max(self.acked, min(number, self.sent))
        self.flow = min(max(1, flow), self.ack_every)
        if not self.closing and self.failure is None:
            self.limit = self.acked + self.flow * self.max_acks

    def _all_received(self, number: int) -> None:
        """Allow one more message if all messages up to ``number`` were received and the window is closed.

        The server checks whether an ack is due only when a message arrives, with the previous flow. If it has lowered
        the flow since, and messages were missing, only another message makes it send the ack.
        """
        closed = 0 < self.limit <= self.sent
        if closed and number == self.sent and self._opened != self.acked:
            self._opened, self.limit = self.acked, self.sent + 1

    def _gap(self, first: int, after: int) -> Event | None:
        """Process a report that the messages from ``first`` to the message before ``after`` are missing."""
        missing = max(0, min(after, self.sent + 1) - first)
        refused = sum(first <= number < after for number in self._unnumbered)
        self._unnumbered = [number for number in self._unnumbered if number >= after]
        if missing == refused:
            return None
        self.lost += missing - refused
        if self.gap_ok:
            return IngestGap(ingest=self.id, first=first, last=after - 1)
        self.fail_ingest(PublishError(f"messages {first} to {after - 1} did not reach the stream"))
        return None

    def _uncounted(self, number: int, error: JetStreamError, *, end: bool = False) -> Event | None:
        """Process a message that the server refused without counting it.

        The server will report its number as missing.
        """
        if isinstance(error, NoRespondersError) and number == 1 and not self.accepted:
            self.no_stream = error
            return None
        code = error.err_code if isinstance(error, ApiError) else 0
        if code == _UNKNOWN_ID and self.accepted and not end:
            # Either the server has lost the ingest, or a different stream received the message. Don't end the ingest
            # yet, because the answer to the end shows which of these has happened.
            self.fail_ingest(error)
            return None
        fatal = code in _FATAL or code == _UNKNOWN_ID
        if fatal or not self.accepted or (number == 1 and not self.gap_ok):
            # It is certain which messages were stored only if the ingest wasn't accepted, or its first message was
            # refused.
            self.complete = not self.accepted or number == 1
            self.ended = True
            self.fail_ingest(error)
            return None
        self._unnumbered.append(number)
        return self._refuse_message(number, error)

    def _refuse_message(self, number: int, error: JetStreamError) -> Event | None:
        self.refused += 1
        if self.gap_ok:
            return IngestRefused(ingest=self.id, number=number, error=error)
        self.fail_ingest(error)
        return None

    def _finish_ingest(self, ack: PubAck) -> None:
        self.final, self.ended, self.limit = ack, True, 0
        if ack.batch is None:
            self.acked = 1
            self.fail_ingest(
                ProtocolError("the server stored a message separately: fast ingest needs server 2.14")
            )
            return
        count = min(ack.count or 0, self.sent)
        # If the server has lost the ingest, a ping about its first message starts a new one. A count of 0 is then no
        # proof that the message wasn't stored.
        forgotten = self.accepted and self.sent == 1 and not count
        if self.gap_ok:
            self.acked = self.sent if self.closing else max(self.acked, count)
        else:
            self.acked, self.complete = max(self.acked, count), not forgotten
        if self.acked < self.sent or not self.closing:
            self.fail_ingest(PublishError(f"the stream ended the ingest after {count} messages"))

    def not_begun(self, error: JetStreamError) -> None:
        """End the ingest, because no stream received its first message."""
        self.no_stream, self.ended, self.complete = None, True, True
        self.fail_ingest(error)

    def fail_ingest(self, error: JetStreamError) -> None:
        """End the ingest with an error."""
        self.failure = self.failure or error
        self.limit = 0


def _whole(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ProtocolError(f"an answer to a fast ingest: {name} is {value!r:.40}")
    return value


def _number(subject: bytes) -> int:
    """Return the number of the answered message, from the end of its subject."""
    tokens = subject.rsplit(b".", 3)
    if len(tokens) != 4 or not tokens[1].isdigit() or len(tokens[1]) > 20:
        raise ProtocolError(f"an answer to a fast ingest came on {subject!r:.80}")
    return int(tokens[1])
