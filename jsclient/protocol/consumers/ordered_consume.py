"""The ordered pull reader as a state machine. It returns every message once and in order, even if consumers change.

`OrderedConsume` is a `ConsumeTracker` that accepts only messages that its `OrderedCursor` confirms, and that needs a
new consumer when a plain reader would end. It supports two ways of reading, one at a time: continuously
(`OrderedConsume.read_continuously`), or by single requests (`OrderedConsume.fetch`). Buffered messages are kept
between the two.

Source: ADR-37 §Consume, §Fetch; ADR-17.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from ...errors import JetStreamError, NotJetStreamMessageError
from ..wire.frames import Frame, frame_size, is_control, is_data
from ..wire.header_names import LAST_CONSUMER
from ..wire.headers import parse_headers
from .ack import sequences
from .consume import Command, ConsumeTracker, SendPull
from .fetch import Pull, PullRequest
from .ordered import OrderedCursor
from .push import whole_number
from .status import Ending, Meaning, classify

__all__ = ["OrderedConsume"]

# How long to wait for the answer to a request with no_wait, in seconds. After that, the consumer is replaced, and the
# new consumer may answer.
_ANSWERED = 2.0
# Share of the inactive threshold after which the consumer is assumed to be removed. It is less than 1, because the
# server's clock may be ahead of ours.
_SOONER = 0.9


@dataclass(slots=True)
class OrderedConsume(ConsumeTracker):
    """A `ConsumeTracker` whose queue has neither gaps nor repeats.

    Attributes:
        cursor: The position in the stream, and the reason if a new consumer is needed.
        reading: Whether the buffer is kept filled.
        request: The request of the fetch in flight.
        inactive_threshold: Without a request for this many seconds, the server removes the consumer.
    """

    keeps_policy: InitVar[bool] = False
    inactive_threshold: float = float("inf")
    cursor: OrderedCursor = field(init=False)
    reading: bool = False
    request: PullRequest | None = None
    may_recreate: bool = True  # always true, because the requests never exceed the capacity
    _number: bytes = b""  # the number of the request: the last token of the subject of its statuses
    _active_at: float = 0.0  # when the consumer was last active, in monotonic seconds

    def __post_init__(self, threshold: int, keeps_policy: bool) -> None:
        ConsumeTracker.__post_init__(self, threshold)
        self.cursor = OrderedCursor(keeps_policy, runs=self.runs)

    @property
    def position(self) -> int:
        """The stream sequence up to which every message was taken, or 0."""
        if self.front:
            return sequences(self.front[0][1])[0] - 1
        cursor = self.cursor
        return cursor.last_stream_seq or max(cursor.first_stream_seq - 1, 0)

    @property
    def deadline(self) -> float | None:
        """The time to call `tick`, in monotonic seconds, or None for never."""
        return self._deadline() if self.reading and self.cursor.wants is None else None

    def read_continuously(self, pull: Pull, threshold: int, now: float) -> list[Command]:
        """Start to read continuously. ``pull`` limits the messages owed and buffered, including those from before."""
        before = self.buffer
        self.pull: Pull = pull
        self.error: JetStreamError | None = None
        self.reading = True
        ConsumeTracker.__post_init__(self, threshold)
        self.buffer.online, self.buffer.owed = before.online, before.owed
        self._recount()
        if self.monitor is not None:
            self.monitor.heard(now)
        return self.next_requests()

    def rest(self) -> None:
        """Stop sending requests. Messages already requested may still arrive."""
        self.reading, self.low = False, 0

    def fetch(self, pull: Pull, now: float) -> SendPull:
        """Return a single request to send. `request` then tracks it."""
        self.asked: int = self.asked + 1
        self.request, self._number = PullRequest(pull, now, _ANSWERED), b"%d" % self.asked
        self.buffer.owed += pull.batch
        return SendPull(pull, self.asked)

    def tick_request(self, now: float) -> list[Command]:
        request = self.request
        if request is None:
            return []
        request.check_deadline(now)
        if not request.ended or request.settled:
            return []
        self.cursor.consumer_lost("the end of a request was not reported by the server")
        return [self._missed(now - request.sent_at)] if request.ending is Ending.SILENT else []

    def _recount(self) -> None:
        self.buffer.buffered = len(self.front)
        bounded = self.pull.max_bytes is not None
        self.buffer.buffered_bytes = self.runs.total_size([*self.front]) if bounded else 0

    def next_requests(self) -> list[Command]:
        """Return the requests to send now."""
        if not self.reading or self.cursor.wants is not None:
            self.low: int = 0
            return []
        commands = ConsumeTracker.next_requests(self)
        self.low = max(self.low, 0)
        return commands

    def is_forgotten(self, now: float) -> bool:
        """Return whether the server has removed the consumer, because it was inactive for too long."""
        if now - self._active_at >= self.inactive_threshold * _SOONER:
            self.cursor.consumer_lost("nothing was read for the inactive threshold of the consumer")
        return self.cursor.wants is not None

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Process frames of the current consumer that arrived together, in order. Return the commands to carry out."""
        commands: list[Command] = []
        if self.cursor.wants is not None:
            return commands
        self._active_at = now
        if self.monitor is not None:
            self.monitor.heard(now)
        if not self._whole_run(frames, now, commands):
            # Process the first delivery alone. It shows what the consumer's JSAcks have in common, and the remaining
            # frames can then be checked in one call.
            self._one_by_one(frames[:1], now, commands)
            if self.cursor.wants is None and not self._whole_run(frames[1:], now, commands):
                self._one_by_one(frames[1:], now, commands)
        return commands + self.next_requests()

    def _whole_run(self, frames: list[Frame], now: float, commands: list[Command]) -> bool:
        last = self.cursor.follow(frames)
        if last:
            self._arrived(frames, now, commands)
            self.cursor.took(last, frames[-1][1], len(frames))
        return last > 0

    def _one_by_one(self, frames: Iterable[Frame], now: float, commands: list[Command]) -> None:
        for frame in frames:
            if is_data(frame):
                self._data(frame, now, commands)
            elif is_control(frame):
                self._control(frame, now, commands)
            else:
                self._foreign(frame, commands)
            if self.cursor.wants is not None:
                return

    def _arrived(self, frames: list[Frame], now: float, commands: list[Command]) -> None:
        self._messages(frames, commands)
        if self.request is not None:
            bounded = self.request.pull.max_bytes is not None
            self.request.data(now, self.runs.total_size(frames) if bounded else 0, len(frames))

    def _data(self, frame: Frame, now: float, commands: list[Command]) -> None:
        try:
            stream_seq = self.cursor.place(frame[1])
        except NotJetStreamMessageError as error:
            commands.append(self._raised(error))
            return
        if stream_seq:
            self._arrived([frame], now, commands)
            self.cursor.took(stream_seq, frame[1])
        elif self.cursor.wants is None:  # received before, so it counts as delivered but isn't kept
            size = frame_size(frame)
            self.buffer.delivered(size)
            self.buffer.taken(size)
            if self.request is not None:
                self.request.data(now, size)

    def _control(self, frame: Frame, now: float, commands: list[Command]) -> None:
        status, fields = parse_headers(frame[2])
        if status is None:
            return
        verdict = classify(status.code, status.description)
        # A status may belong to an earlier request. The last token of its subject is the number of the request.
        own = self.request is not None and frame[0].rpartition(b".")[2] == self._number
        if self.request is not None and own:
            self.request.status(status.code, status.description, now)
        if verdict.meaning is Meaning.HEARTBEAT:
            last = whole_number(fields.get(LAST_CONSUMER))
            if last is not None:
                self.cursor.delivered_up_to(last)
        elif verdict.meaning is Meaning.GONE or verdict.ending is Ending.NO_RESPONDERS:
            self.cursor.consumer_lost(f"status {status.code} {status.description}".rstrip())
        elif self.reading:
            self._status(status, fields, now, commands)
        elif verdict.ending is not None:
            self.buffer.ended(verdict.meaning, verdict.ending, fields, now)

    def connected(self, now: float) -> list[Command]:
        """Record that a new consumer accepts requests."""
        self._active_at = now
        return ConsumeTracker.connected(self, now)

    def disconnected(self) -> None:
        """Record that the connection was lost, together with all messages owed."""
        ConsumeTracker.disconnected(self)
        if self.request is not None:
            self.request.connection_lost()

    def tick(self, now: float) -> list[Command]:
        """Handle the deadline. Either a pause has ended, or a silent server requires a new consumer."""
        return ConsumeTracker.tick(self, now) + self.next_requests()

    def _silent(self) -> list[Command]:
        self.cursor.consumer_lost("no message and no heartbeat")
        return []

    def recreated(self, consumer: str, delivered_stream_seq: int, now: float) -> list[Command]:
        """Switch to a new consumer whose inbox is subscribed. See `OrderedCursor.recreated`."""
        self.consumer: str = consumer
        self.request = None
        self.cursor.recreated(delivered_stream_seq)
        return self.connected(now)
