"""Where an ordered reader stands in its stream: what push and pull have in common.

It reads through a throw-away consumer without acks and checks that the consumer sequence runs 1, 2, 3 …. On a jump, on
silence, on a reconnect and when its own queue was full, it wants a new consumer that starts behind the last message
that *entered the queue*. So nothing is skipped that the user did not get, and nothing comes twice.
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

    ``doubtful``: the old one fell silent, so the stream itself may be gone, or be another one under the same name: the
    server gives a consumer that starts behind the end of that one without a word.
    """

    reason: str
    doubtful: bool = False


@dataclass(slots=True)
class OrderedCursor:
    """Follows the sequences of one consumer after the other; says what may enter the queue, and where to go on.

    Attributes:
        keeps_policy: Before the first message only the start policy itself can be repeated.
        last_stream_seq: That of the last message that entered the queue; 0: none did.
        first_stream_seq: Where the first consumer began to read; 0: not known.
        expected: The consumer sequence to come.
        asked_from: Where the present consumer was to start: what lies before it is skipped.
        wants: Why a new consumer is needed; while it is set, nothing is taken in.
    """

    keeps_policy: bool = False
    last_stream_seq: int = 0
    first_stream_seq: int = 0
    expected: int = 1
    asked_from: int = 0
    wants: Recreate | None = None
    _run: bytes = b""  # what the JSAck of the next message is expected to begin with

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence to read on from; 0: the start policy decides."""
        return self.last_stream_seq + 1 if self.last_stream_seq else self.first_stream_seq

    # --- what arrives ------------------------------------------------------------------------------------------

    def follow(self, frames: list[Frame]) -> int:
        """The ordinary case, in few steps: whether all of these are the messages to come.

        Returns: the stream sequence of the last one, for `took`; 0 if they are to be looked at with `place`.
        """
        if not runs_on(frames, self._run, self.expected):
            return 0
        first, last = sequences(frames[0][1])[0], sequences(frames[-1][1])[0]
        return last if first > self.last_stream_seq and first >= self.asked_from else 0

    def place(self, reply: bytes) -> int:
        """One message, by its JSAck: its stream sequence if it is the one to come, for `took`.

        Returns: 0 if it is not to be taken in: it was had before, or it shows a gap, and then `wants` is set.

        Raises:
            NotJetStreamMessageError: Its JSAck cannot be read.
        """
        stream_seq, consumer_seq = sequences(reply)
        if consumer_seq != self.expected:
            self.wants = Recreate(f"delivery {consumer_seq} came where {self.expected} was expected")
            return 0
        if stream_seq <= self.last_stream_seq or stream_seq < self.asked_from:
            self.expected += 1
            return 0
        self._run = run_of(reply)
        return stream_seq

    def took(self, stream_seq: int, count: int = 1) -> None:
        """So many messages entered the queue, the last one with this stream sequence."""
        self.expected += count
        self.last_stream_seq = stream_seq

    def delivered_up_to(self, consumer_seq: int) -> None:
        """The server says which delivery was its last."""
        if consumer_seq != self.expected - 1:
            self.lost(f"the server delivered up to {consumer_seq}, {self.expected - 1} arrived")

    # --- another consumer --------------------------------------------------------------------------------------

    def lost(self, reason: str) -> None:
        """The present consumer cannot be read from any more."""
        if self.wants is None:
            self.wants = Recreate(reason, doubtful=True)

    def is_in_place(self, delivered_stream_seq: int) -> bool:
        """Whether a consumer that reads on from behind ``delivered_stream_seq`` starts where we stand, or later."""
        return delivered_stream_seq + 1 >= self.resume_stream_seq

    def recreated(self, delivered_stream_seq: int) -> bool:
        """A new consumer reads on from behind ``delivered_stream_seq``; returns `is_in_place`.

        False: it starts earlier than asked, because its replica lags: what we have had is skipped. Whether the stream
        is another one under the same name is to be found out before, and said with `stream_began_again`.
        """
        self.expected, self.wants = 1, None
        resume = self.asked_from = self.resume_stream_seq
        if not resume and not self.keeps_policy:
            self.first_stream_seq = delivered_stream_seq + 1
        return self.is_in_place(delivered_stream_seq)

    def stream_began_again(self, stream: str, consumer: str, stream_seq: int) -> Event:
        """The stream was deleted and made again: read the new one from its start. What to tell the user.

        ``stream_seq``: the last one that it has now.
        """
        event = StreamReset(
            stream=stream, consumer=consumer, last_stream_seq=self.last_stream_seq, stream_seq=stream_seq
        )
        self.last_stream_seq, self.first_stream_seq = 0, 1
        self.wants = Recreate("the stream began again")
        return event
