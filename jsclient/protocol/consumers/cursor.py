"""The position of an ordered reader in its stream, common to push and pull.

An ordered reader uses a disposable consumer without acks and checks that the consumer sequence runs 1, 2, 3 …. After a
jump, silence, a reconnect or an overflow of its own queue, it wants a new consumer that starts after the last message
that *entered the queue*. So no message is skipped and none is delivered twice.
Source: ADR-17, ADR-15 §Ordered Consumers.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..events import Event, StreamReset
from ..wire.frames import Frame
from .ack import run_of, runs_on, sequences

__all__ = ["OrderedCursor", "Recreate"]


class Recreate(msgspec.Struct, frozen=True):
    """Make a new consumer; ``reason`` is for the user.

    ``doubtful``: the old one fell silent, so the stream may have been deleted, or replaced by another one of the same
    name: the server creates a consumer that starts after the end of that stream without an error.
    """

    reason: str
    doubtful: bool = False


@dataclass(slots=True)
class OrderedCursor:
    """Follows the sequences of consecutive consumers: which messages may enter the queue, and where to resume.

    Attributes:
        keeps_policy: Before the first message, a new consumer repeats the start policy itself.
        last_stream_seq: Stream sequence of the last message that entered the queue; 0: none did.
        first_stream_seq: Where the first consumer started reading; 0: unknown.
        expected: The next consumer sequence.
        asked_from: The requested start of the current consumer: earlier messages are skipped.
        wants: Why a new consumer is needed; while it is set, no message is accepted.
    """

    keeps_policy: bool = False
    last_stream_seq: int = 0
    first_stream_seq: int = 0
    expected: int = 1
    asked_from: int = 0
    wants: Recreate | None = None
    _run: bytes = b""  # the expected start of the next message's JSAck

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence to resume from; 0: the start policy decides."""
        return self.last_stream_seq + 1 if self.last_stream_seq else self.first_stream_seq

    def follow(self, frames: list[Frame]) -> int:
        """Check a whole batch at once, the ordinary case: all of it are the next messages.

        Returns: the stream sequence of the last one, for `took`; 0 if each one must be checked with `place`.
        """
        if not frames or not runs_on(frames, self._run, self.expected):
            return 0
        first, last = sequences(frames[0][1])[0], sequences(frames[-1][1])[0]
        return last if first > self.last_stream_seq and first >= self.asked_from else 0

    def place(self, reply: bytes) -> int:
        """Check one message by its JSAck.

        Returns: its stream sequence if it is the next one, for `took`; 0 if it must be dropped, because it was received
        before or because it reveals a gap, which sets `wants`.

        Raises:
            NotJetStreamMessageError: The JSAck is malformed.
        """
        stream_seq, consumer_seq = sequences(reply)
        if consumer_seq != self.expected:
            self.wants = Recreate(f"delivery {consumer_seq} arrived, {self.expected} was expected")
            return 0
        if stream_seq <= self.last_stream_seq or stream_seq < self.asked_from:
            self.expected += 1
            return 0
        self._run = run_of(reply)
        return stream_seq

    def took(self, stream_seq: int, count: int = 1) -> None:
        """``count`` messages entered the queue, the last one with this stream sequence."""
        self.expected += count
        self.last_stream_seq = stream_seq

    def delivered_up_to(self, consumer_seq: int) -> None:
        """The server reported its last delivery, in a heartbeat."""
        if consumer_seq != self.expected - 1:
            self.lost(f"the server delivered up to {consumer_seq}, {self.expected - 1} arrived")

    def lost(self, reason: str) -> None:
        """The current consumer can no longer be read."""
        if self.wants is None:
            self.wants = Recreate(reason, doubtful=True)

    def is_in_place(self, delivered_stream_seq: int) -> bool:
        """Whether a consumer that has delivered up to ``delivered_stream_seq`` starts at our position, or later."""
        return delivered_stream_seq + 1 >= self.resume_stream_seq

    def recreated(self, delivered_stream_seq: int) -> bool:
        """Switch to a new consumer, which starts after ``delivered_stream_seq``; returns `is_in_place`.

        False: it starts earlier than requested, because its replica lags; messages already received are skipped.
        The caller first checks whether the stream was replaced, and if so calls `stream_began_again` instead.
        """
        self.expected, self.wants = 1, None
        resume = self.asked_from = self.resume_stream_seq
        if not resume and not self.keeps_policy:
            self.first_stream_seq = delivered_stream_seq + 1
        return self.is_in_place(delivered_stream_seq)

    def stream_began_again(self, stream: str, consumer: str, stream_seq: int) -> Event:
        """The stream was deleted and recreated: read the new one from its start. Returns the event to emit.

        ``stream_seq``: the last sequence of the new stream.
        """
        event = StreamReset(
            stream=stream, consumer=consumer, last_stream_seq=self.last_stream_seq, stream_seq=stream_seq
        )
        self.last_stream_seq, self.first_stream_seq = 0, 1
        self.wants = Recreate("the stream was recreated")
        return event
