"""An atomic batch: which message goes out when, with which headers, and what the answers mean.

The commit rides on the last message, and nobody knows which is the last until the batch ends. So the newest message is
kept back: each new one sends the one before it, the end sends the one kept with the commit. Against the empty message
that ends a batch since server 2.14 this works with every server that knows batches, and costs a message and, in a batch
of one, a round trip less.

Nothing is stored before the commit, and the server drops a batch in which a number is missing. So whatever fails before
the commit was sent means: nothing was stored.

Source: ADR-50; nats-server server/stream.go (processJetStreamAtomicBatchMsg).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ...errors import ApiError, BatchNotAtomicError, ClosedError, ConfigError, ProtocolError
from ..models.publish import PubAck, read_pub_ack
from ..wire.header_names import (
    BATCH_COMMIT,
    BATCH_ID,
    BATCH_SEQUENCE,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
)

__all__ = ["BATCH_SERVER", "BatchState", "BatchTracker", "Outgoing", "check_batch_headers"]

BATCH_SERVER: Final = (2, 12)
"""The first server that knows batches; an older one stores each message on its own."""

_START: Final = b"NATS/1.0\r\n"
_COMMIT_LINE: Final = f"{BATCH_COMMIT}: 1\r\n".encode()
_OWN: Final = frozenset({BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT})
_MAX_DIGITS: Final = 20  # of a number in the headers


class BatchState(Enum):
    """Where a batch stands."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"  # nothing was stored
    UNKNOWN = "unknown"  # the answer to the commit did not come


class Outgoing(NamedTuple):
    """A message to be published.

    ``acked``: it asks for an answer, which is to be waited for.
    """

    subject: str
    header: bytes
    payload: bytes
    acked: bool = False


def check_batch_headers(headers: Mapping[str, str | Sequence[str]], *, first: bool) -> None:
    """Refuse headers with which the whole batch would fail at its commit.

    Raises:
        ConfigError: One of the batch's own, the expectation of a last message id, or that of the stream's last sequence
            on a message that is not the first.
    """
    if taken := sorted(_OWN.intersection(headers)):
        raise ConfigError(f"the header {taken[0]} is the batch's own: leave it out")
    if EXPECTED_LAST_MSG_ID in headers:
        raise ConfigError(f"the header {EXPECTED_LAST_MSG_ID} cannot be used in a batch")
    if not first and EXPECTED_LAST_SEQUENCE in headers:
        raise ConfigError("expected_last_seq can be given with the first message of a batch only")


@dataclass(slots=True)
class BatchTracker:
    """One batch. The handle sends what `add` and `commit` give, in that order."""

    id: str  # at most 64 characters
    ack_every: int | None = None  # ask for an answer at each so many messages; the first asks always
    count: int = 0  # messages in the batch
    sent: int = 0  # of them, given out to be sent
    accepted: bool = False  # the server said that it knows the batch
    state: BatchState = BatchState.OPEN
    _held: Outgoing | None = None
    _subject: str = ""  # of the first message
    _id_line: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._id_line = f"{BATCH_ID}: {self.id}\r\n{BATCH_SEQUENCE}: ".encode()

    @property
    def overhead(self) -> int:
        """Bytes that the batch adds to the headers of a message, at most."""
        return len(_START) + 2 + len(self._id_line) + _MAX_DIGITS + 2 + len(_COMMIT_LINE)

    def check_open(self) -> None:
        """Raise `ClosedError` if the batch has ended."""
        if self.state is not BatchState.OPEN:
            raise ClosedError(f"batch {self.id} has ended: {self.state.value}")

    def add(self, subject: str, header: bytes, payload: bytes) -> Outgoing | None:
        """A message of the user, with its header block; what is to be sent now: the message before it."""
        self.check_open()
        self.count += 1
        before, self._held = self._held, Outgoing(subject, header, payload)
        return None if before is None else self._next(before)

    def commit(self) -> Outgoing:
        """What ends the batch: the message kept back.

        Raises:
            ConfigError: There is no message in the batch.
        """
        self.check_open()
        held, self._held = self._held, None
        if held is None:
            raise ConfigError("the batch is empty: there is nothing to commit")
        self.state = BatchState.COMMITTING
        return self._next(held, commit=True)

    def abandon(self) -> Outgoing | None:
        """The batch is over, nothing is to be stored. What to send so that the server drops it now and not in 10 s.

        That is a number out of turn: the server drops a batch with a gap, and a number that does not begin a batch that
        it does not know.
        """
        if self.state is not BatchState.OPEN:
            return None
        self.state, self._held = BatchState.ABANDONED, None
        if not self.accepted:
            return None
        return Outgoing(self._subject, self._block(b"", self.sent + 2, commit=False), b"")

    def read_answer(self, data: bytes) -> None:
        """The answer to a message before the commit: nothing, if all is well.

        Raises:
            ApiError: The server dropped the batch.
            BatchNotAtomicError: It stored the message instead.
        """
        if data:
            ack = read_pub_ack(data)
            raise BatchNotAtomicError(self.id, ack.stream, ack.seq)
        self.accepted = True

    def read_commit(self, data: bytes) -> PubAck:
        """The answer to the commit.

        Raises:
            ApiError: The server dropped the batch.
            BatchNotAtomicError: It stored messages one by one.
            ProtocolError: The answer makes no sense.
        """
        try:
            ack = read_pub_ack(data)
        except ProtocolError:
            self.state = BatchState.UNKNOWN
            raise
        except ApiError:
            self.state = BatchState.ABANDONED
            raise
        if ack.batch is None and ack.count is None:
            self.state = BatchState.UNKNOWN
            raise BatchNotAtomicError(self.id, ack.stream, ack.seq)
        if ack.batch != self.id or ack.count != self.count:
            self.state = BatchState.UNKNOWN
            raise ProtocolError(
                f"batch {self.id} of {self.count} messages: the server committed {ack.batch} of {ack.count}"
            )
        self.state = BatchState.COMMITTED
        return ack

    def _next(self, message: Outgoing, *, commit: bool = False) -> Outgoing:
        self.sent += 1
        if self.sent == 1:
            self._subject = message.subject
        acked = commit or self.sent == 1 or (self.ack_every is not None and self.sent % self.ack_every == 0)
        header = self._block(message.header, self.sent, commit=commit)
        return Outgoing(message.subject, header, message.payload, acked)

    def _block(self, header: bytes, number: int, *, commit: bool) -> bytes:
        """The user's header block with the batch's lines."""
        start = header[:-2] if header else _START  # without its last, empty line
        return b"%b%b%d\r\n%b\r\n" % (start, self._id_line, number, _COMMIT_LINE if commit else b"")
