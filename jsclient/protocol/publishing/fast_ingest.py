"""A fast ingest: how much may be sent, and what the server's answers on the control channel mean.

The reply subject of each message carries the protocol, so a message needs no headers::

    <inbox>.<flow>.<gap>.<number>.<operation>.$FI

The server answers the first message with how often it will ack (``flow``, which it changes as it likes), and then every
so many messages with the number up to which they are stored. One such ack stands for all before it, so a lost one is
made good by the next, or by the answer to a ping. With gaps refused, the first message that is missing or refused ends
the ingest, and the server says how many it has stored; with gaps allowed it goes on, and says what is missing.

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
from ..wire.codec import decode, from_wire
from ..wire.frames import Frame
from ..wire.headers import inline_status

__all__ = ["INGEST_SERVER", "IngestTracker", "check_ingest"]

INGEST_SERVER: Final = (2, 14)
"""The first server that knows fast ingest; an older one stores each message and acks each."""

_COMMIT: Final = b"2"
_END: Final = b"3"
_PING: Final = b"4"
_PONG: Final = b".4.$FI"  # how the subject of an answer to a ping ends
_ENDED: Final = b".3.$FI"  # and of one to the end

# The stream takes no ingest: whatever is sent, it stores nothing more of it.
_FATAL: Final = frozenset({10205, 10206, 10207, 10211})
_UNKNOWN_ID: Final = 10208


_MAX_ACK_EVERY: Final = 65_535
_MAX_ACKS: Final = 1000


def check_ingest(gap: str, ack_every: int, max_outstanding_acks: int) -> None:
    """Refuse what no server takes.

    Raises:
        ConfigError: A value out of range.
    """
    if gap not in ("fail", "ok"):
        raise ConfigError(f"gap is {gap!r:.60}: it must be 'fail' or 'ok'")
    for what, value, most in (
        ("ack_every", ack_every, _MAX_ACK_EVERY),
        ("max_outstanding_acks", max_outstanding_acks, _MAX_ACKS),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(f"{what} is {value!r:.60}: it must be a whole number from 1 to {most:,}")


@dataclass(slots=True)
class IngestTracker:
    """One fast ingest. ``limit`` says up to which number messages may be sent; their replies come from here."""

    inbox: str  # the prefix and one more token, which is the id on the server: at most 64 characters
    ack_every: int  # messages for an ack, at most: the server decides
    max_acks: int = 2  # acks that may be due
    gap_ok: bool = False
    sent: int = 0  # messages; each has its number
    acked: int = 0  # the server has dealt with the messages up to this one
    flow: int = 0  # messages for an ack, as the server wants it now; 0 before it accepted the ingest
    limit: int = 1  # the highest number that may be sent
    lost: int = 0  # messages that did not reach the stream, as it said
    refused: int = 0  # messages that it did not take
    closing: bool = False  # nothing more is to be sent but the end
    final: PubAck | None = None
    failure: JetStreamError | None = None  # what ended it, or is about to
    no_stream: NoRespondersError | None = None  # the first message was not received: it can be sent again
    ended: bool = False  # the server has nothing more to say
    complete: bool = False  # none but the messages up to `acked` was stored
    _opened: int = -1  # what was acked when one more message was let go
    _unnumbered: list[int] = field(
        default_factory=list
    )  # refused before they were counted: they will be missed
    reply: bytes = field(init=False)  # what the reply of every message starts with

    def __post_init__(self) -> None:
        gap = "ok" if self.gap_ok else "fail"
        self.reply = f"{self.inbox}.{self.ack_every}.{gap}.".encode()

    # --- what goes out -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its name on the server."""
        return self.inbox.rpartition(".")[2]

    @property
    def accepted(self) -> bool:
        """Whether the server has taken the ingest on."""
        return self.flow > 0

    def next_reply(self) -> bytes:
        """The reply of the next message, which counts as sent. It starts (0) or appends (1)."""
        self.sent = number = self.sent + 1
        return b"%b%d.%d.$FI" % (self.reply, number, number > 1)

    def next_replies(self, count: int) -> list[bytes]:
        """The replies of the next messages, which are not the first ones; they count as sent."""
        reply, first = self.reply, self.sent + 1
        self.sent += count
        return [b"%b%d.1.$FI" % (reply, number) for number in range(first, first + count)]

    def commit_reply(self) -> bytes:
        """The reply of the next message where it is the last one."""
        self.sent += 1
        return b"%b%d.%b.$FI" % (self.reply, self.sent, _COMMIT)

    def end_reply(self) -> bytes:
        """The reply of the empty message that ends the ingest. It can be sent again when no answer comes."""
        return b"%b%d.%b.$FI" % (self.reply, self.sent + 1, _END)

    def ping_reply(self) -> bytes:
        """The reply of a ping: the server says how far it is, and what is missing up to the last message sent."""
        return b"%b%d.%b.$FI" % (self.reply, self.sent, _PING)

    def close(self) -> None:
        """No more messages."""
        self.closing, self.limit = True, 0

    # --- what comes in -----------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> Event | None:
        """An answer of the server. What the user is to be told, if anything.

        Raises:
            ProtocolError: It makes no sense. Nothing was changed.
        """
        if self.ended:
            return None
        asked = frame[0].endswith((_PONG, _ENDED))  # whether it answers no message: it is asked again
        if not frame[3] and inline_status(frame[2]) == 503:
            if asked:
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
                return self._refuse(_whole(answer, "seq"), error)
            if asked and error.code == 503:
                return None
            return self._uncounted(_number(frame[0]), error, end=frame[0].endswith(_ENDED))
        self._finish(from_wire(PubAck, answer))
        return None

    def _ack(self, number: int, flow: int) -> None:
        self.acked = max(self.acked, min(number, self.sent))
        self.flow = min(max(1, flow), self.ack_every)
        if not self.closing and self.failure is None:
            self.limit = self.acked + self.flow * self.max_acks

    def _all_received(self, number: int) -> None:
        """The server has received all up to ``number``. Let one more message go, once, where the window is closed.

        The server looks whether an ack is due when a message comes, by the flow of before. Where it has lowered the
        flow since, and messages were missing, an ack is due that only another message brings.
        """
        closed = 0 < self.limit <= self.sent
        if closed and number == self.sent and self._opened != self.acked:
            self._opened, self.limit = self.acked, self.sent + 1

    def _gap(self, first: int, after: int) -> Event | None:
        """Messages from ``first`` up to, not including, ``after`` are missing."""
        missing = max(0, min(after, self.sent + 1) - first)
        told = sum(first <= number < after for number in self._unnumbered)
        self._unnumbered = [number for number in self._unnumbered if number >= after]
        if missing == told:
            return None
        self.lost += missing - told
        if self.gap_ok:
            return IngestGap(ingest=self.id, first=first, last=after - 1)
        self.fail(PublishError(f"messages {first} to {after - 1} did not reach the stream"))
        return None

    def _uncounted(self, number: int, error: JetStreamError, *, end: bool = False) -> Event | None:
        """The server did not take a message, and will miss its number later."""
        if isinstance(error, NoRespondersError) and number == 1 and not self.accepted:
            self.no_stream = error
            return None
        code = error.err_code if isinstance(error, ApiError) else 0
        if code == _UNKNOWN_ID and self.accepted and not end:
            # Forgotten, or this message was for another stream: the answer to the end will tell.
            self.fail(error)
            return None
        fatal = code in _FATAL or code == _UNKNOWN_ID
        if fatal or not self.accepted or (number == 1 and not self.gap_ok):
            # After a failure it only says that the ingest is over, and that was known.
            self.complete = not self.accepted or number == 1
            self.ended = True
            self.fail(error)
            return None
        self._unnumbered.append(number)
        return self._refuse(number, error)

    def _refuse(self, number: int, error: JetStreamError) -> Event | None:
        self.refused += 1
        if self.gap_ok:
            return IngestRefused(ingest=self.id, number=number, error=error)
        self.fail(error)
        return None

    def _finish(self, ack: PubAck) -> None:
        self.final, self.ended, self.limit = ack, True, 0
        if ack.batch is None:
            self.acked = 1
            self.fail(ProtocolError("the server stored a message on its own: it does not know fast ingest"))
            return
        count = min(ack.count or 0, self.sent)
        # A ping about the first message alone looks like a first message to a server that has forgotten the ingest.
        forgotten = self.accepted and self.sent == 1 and not count
        if self.gap_ok:
            self.acked = self.sent if self.closing else max(self.acked, count)
        else:
            self.acked, self.complete = max(self.acked, count), not forgotten
        if self.acked < self.sent or not self.closing:
            self.fail(PublishError(f"the stream ended the ingest after {count} messages"))

    def not_begun(self, error: JetStreamError) -> None:
        """End the ingest because no stream took its first message."""
        self.no_stream, self.ended, self.complete = None, True, True
        self.fail(error)

    def fail(self, error: JetStreamError) -> None:
        """It goes no further."""
        self.failure = self.failure or error
        self.limit = 0


def _whole(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ProtocolError(f"an answer to a fast ingest: {name} is {value!r:.40}")
    return value


def _number(subject: bytes) -> int:
    """The number of the message that an answer is about, from the end of its subject."""
    tokens = subject.rsplit(b".", 3)
    if len(tokens) != 4 or not tokens[1].isdigit() or len(tokens[1]) > 20:
        raise ProtocolError(f"an answer to a fast ingest came on {subject!r:.80}")
    return int(tokens[1])
