"""An atomic batch, with the order and headers of its messages, and the meaning of the answers.

The last message contains the commit, but which message is the last is known only when the batch ends. So the newest
message is held back. Adding a message sends its predecessor, and the end of the batch sends the held message with the
commit. Unlike the empty message that ends a batch since server 2.14, this works with every server that supports
batches, and saves a message and, in a batch of one message, a round trip.

The server stores no message before the commit, and drops a batch in which a number is missing. So any failure before
the commit is sent means that no message was stored. For the same reason a batch can be sent again after a leader
election in which the server lost it. Its messages are buffered for that, up to `MAX_KEPT` bytes.

Source: ADR-50; nats-server server/stream.go (processJetStreamAtomicBatchMsg).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from ...errors import ApiError, BatchNotAtomicError, ClosedError, ConfigError, ProtocolError
from ..models.publish import PubAck, read_pub_ack
from ..wire.header_names import (
    BATCH_COMMIT,
    BATCH_ID,
    BATCH_SEQUENCE,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
)

__all__ = ["BATCH_SERVER", "MAX_KEPT", "BatchMessage", "BatchState", "BatchTracker", "check_batch_headers"]

BATCH_SERVER: Final = (2, 12)
"""The first server version that supports batches. An older server stores each message separately."""

MAX_KEPT: Final = 64 * 1024 * 1024
"""Maximum size in bytes of the headers and payloads that are buffered to send a batch again."""

_START: Final = b"NATS/1.0\r\n"
_COMMIT_LINE: Final = f"{BATCH_COMMIT}: 1\r\n".encode()
_OWN: Final = frozenset({BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT})
_SPECIAL: Final = _OWN | {EXPECTED_LAST_MSG_ID, EXPECTED_LAST_SEQUENCE}
_MAX_DIGITS: Final = 20  # maximum number of digits in the headers
_MAX_NUMBER: Final = 1000  # maximum number of messages in a batch, unless the server is configured otherwise
_NUMBERS: Final = [b"%d" % number for number in range(_MAX_NUMBER + 1)]


class BatchState(Enum):
    """The state of a batch."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"  # no message was stored
    UNKNOWN = "unknown"  # the commit was not answered


class BatchMessage(msgspec.Struct, gc=False):
    """A message to publish.

    If ``acked`` is true, the message requests an answer, and the handle must wait for it.
    """

    subject: str
    header: bytes
    payload: bytes
    acked: bool = False


def check_batch_headers(headers: Mapping[str, str | Sequence[str]], *, first: bool) -> None:
    """Reject headers that would make the whole batch fail at its commit.

    Raises:
        ConfigError: A header is reserved for batches, or is an expected last message id, or is an expected last
            sequence on a message other than the first.
    """
    if _SPECIAL.isdisjoint(headers):
        return
    if taken := sorted(_OWN.intersection(headers)):
        raise ConfigError(f"the header {taken[0]} is reserved for the batch itself: leave it out")
    if EXPECTED_LAST_MSG_ID in headers:
        raise ConfigError(f"the header {EXPECTED_LAST_MSG_ID} cannot be used in a batch")
    if not first and EXPECTED_LAST_SEQUENCE in headers:
        raise ConfigError("expected_last_seq needs the first message of a batch: leave it out of later ones")


class _PlainLines(dict[int, bytes]):
    """The beginnings of commands that differ only in number and payload, by the size of the payload.

    A beginning ends before the number, which has a fixed number of digits. Looking it up costs half as much as
    formatting the command.
    """

    CAPACITY = 256

    def __init__(self, subject: str, plain: bytes, digits: int) -> None:
        self.subject: str = subject
        self.digits: int = digits
        self._begin = b"HPUB %b %d " % (subject.encode(), len(plain) + digits + 4)
        self._plain = plain

    def __missing__(self, size: int) -> bytes:
        if len(self) == self.CAPACITY:
            self.clear()
        head = len(self._plain) + self.digits + 4
        line = self[size] = b"%b%d\r\n%b" % (self._begin, head + size, self._plain)
        return line


@dataclass(slots=True)
class BatchTracker:
    """One atomic batch. The handle sends the messages that `add_message`, `commit` and `restart` return, in order."""

    id: str  # at most 64 characters
    ack_every: int | None = None  # request an answer every n messages. The first message is always answered
    count: int = 0  # number of messages in the batch
    sent: int = 0  # number of messages returned for sending
    accepted: bool = False  # true once the server has confirmed the batch
    state: BatchState = BatchState.OPEN
    _held: BatchMessage | None = None
    # All messages that were sent, in case the batch must be sent again. None if they are too large to keep.
    _buffered: list[BatchMessage] | None = field(default_factory=list)
    _buffered_size: int = 0
    first_subject: str = ""  # subject of the first message that was sent
    _id_line: bytes = field(init=False)
    # For messages without user headers, the header block up to the batch sequence.
    _plain: bytes = field(init=False)
    # Cached beginnings of publish commands. They are valid for one subject and for batch sequences with the same number
    # of digits, which together determine the sizes in a command.
    _lines: _PlainLines | None = field(default=None, init=False, compare=False)
    # Maximum number of bytes that the batch adds to the headers of a message.
    overhead: int = field(init=False)

    def __post_init__(self) -> None:
        self._id_line = f"{BATCH_ID}: {self.id}\r\n{BATCH_SEQUENCE}: ".encode()
        self._plain = _START + self._id_line
        self.overhead = len(_START) + 2 + len(self._id_line) + _MAX_DIGITS + 2 + len(_COMMIT_LINE)

    def check_open(self) -> None:
        """Raise `ClosedError` if the batch has ended."""
        if self.state is not BatchState.OPEN:
            raise ClosedError(f"batch {self.id} has ended: {self.state.value}")

    def add_message(self, subject: str, header: bytes, payload: bytes) -> BatchMessage | None:
        """Add a message with its header block. Return its predecessor, which is the message to send now."""
        if self.state is not BatchState.OPEN:
            self.check_open()
        predecessor = self._held
        self._held = BatchMessage(subject, header, payload)
        self.count += 1
        return None if predecessor is None else self._next(predecessor)

    def add_plain(self, subject: str, payload: bytes, commands: list[bytes]) -> int:
        """Add a message without headers. Append the command that publishes its predecessor to ``commands``, in parts.

        This is `add_message` for the ordinary case, in one call. Return the size of the command, or 0 if nothing was
        added, because the predecessor does not exist, has headers, or is answered.
        """
        held, number = self._held, self.sent + 1
        if (held is None or held.header or number == 1) or (
            self.ack_every is not None or self.state is not BatchState.OPEN
        ):
            return 0
        self._held = BatchMessage(subject, b"", payload)
        self.count += 1
        self.sent = number
        data = held.payload
        # The code of `_next` is repeated here, because a call would cost as much as the remaining work.
        if (buffered := self._buffered) is not None:
            buffered.append(held)
            self._buffered_size += len(data)
            if self._buffered_size > MAX_KEPT:
                self._buffered = None
        digits = _NUMBERS[number] if number <= _MAX_NUMBER else b"%d" % number
        lines = self._lines
        if lines is None or lines.subject != held.subject or lines.digits != len(digits):
            lines = self._lines = _PlainLines(held.subject, self._plain, len(digits))
        line = lines[len(data)]
        commands += (line, digits, b"\r\n\r\n", data, b"\r\n")
        return len(line) + len(digits) + len(data) + 6

    def commit(self) -> BatchMessage:
        """Close the batch. Return the message that was held back, with the commit.

        Raises:
            ConfigError: The batch is empty.
        """
        self.check_open()
        held, self._held = self._held, None
        if held is None:
            raise ConfigError("the batch is empty: add a message before the commit")
        self.state = BatchState.COMMITTING
        return self._next(held, commit=True)

    def abandon_batch(self) -> BatchMessage | None:
        """End the batch without storing any message.

        Return a message that makes the server drop the batch at once instead of after 10 s, or None if none is
        needed.

        The message skips a number, and a server drops a batch with a gap. If the server does not know the batch, it
        ignores the message, because its number is above 1.
        """
        if self.state is not BatchState.OPEN:
            return None
        self.state, self._held, self._buffered = BatchState.ABANDONED, None, None
        if not self.accepted:
            return None
        return BatchMessage(
            self.first_subject, b"%b%b%d\r\n\r\n" % (_START, self._id_line, self.sent + 2), b""
        )

    def read_answer(self, data: bytes) -> None:
        """Process the answer to a message before the commit. An empty answer confirms the batch.

        Raises:
            ApiError: The server dropped the batch.
            BatchNotAtomicError: The server stored the message at once.
        """
        if data:
            ack = read_pub_ack(data)
            raise BatchNotAtomicError(self.id, ack.stream, ack.seq)
        self.accepted = True

    def read_commit(self, data: bytes) -> PubAck:
        """Process the answer to the commit.

        Raises:
            ApiError: The server dropped the batch.
            BatchNotAtomicError: The server stored the messages separately.
            ProtocolError: The answer is not a valid ack of this batch.
        """
        try:
            ack = read_pub_ack(data)
        except ProtocolError:
            self.state = BatchState.UNKNOWN
            raise
        except ApiError:
            self.state = BatchState.ABANDONED
            raise
        # An ack with neither batch nor count comes from a server that doesn't support batches. It has stored each
        # message individually.
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

    def _next(self, message: BatchMessage, *, commit: bool = False) -> BatchMessage:
        self.sent = number = self.sent + 1
        if number == 1:
            self.first_subject = message.subject
        acked = commit or number == 1 or (self.ack_every is not None and number % self.ack_every == 0)
        header, payload = message.header, message.payload
        if self._buffered is not None:
            self._buffered.append(message)
            self._buffered_size += len(header) + len(payload)
            if self._buffered_size > MAX_KEPT:
                self._buffered = None
        start, end = header[:-2] if header else _START, _COMMIT_LINE if commit else b""
        # `start` doesn't include the empty line at the end of the block.
        block = b"%b%b%d\r\n%b\r\n" % (start, self._id_line, number, end)
        return BatchMessage(message.subject, block, payload, acked)

    @property
    def can_restart(self) -> bool:
        """Whether all messages are still buffered, so that the batch can be sent again."""
        return self._buffered is not None

    def restart(self, *, commit: bool) -> list[BatchMessage]:
        """Return all messages sent so far, to be sent again after the server lost the batch without storing it.

        With ``commit`` the last message contains the commit. The state is OPEN until the handle sends it.
        """
        assert self._buffered is not None
        messages, self._buffered, self._buffered_size = self._buffered, [], 0
        self.state, self.sent, self.accepted = BatchState.OPEN, 0, False
        return [
            self._next(message, commit=commit and number == len(messages))
            for number, message in enumerate(messages, 1)
        ]
