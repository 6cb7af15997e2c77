"""A push subscription as a state machine, with its queued messages, events and flow control answers.

`PushTracker` combines heartbeat monitor, gap tracker, flow control and the bounded queue. Frames enter with
`PushTracker.receive`, and messages leave with `PushTracker.take_frame`. Both return commands for the runtime to carry
out. Statuses are processed and never returned.

Source: ADR-15 §Automatic Status Management, §Messages Gaps, §Flow Control.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

import msgspec

from ...errors import JetStreamError, NotJetStreamMessageError, StatusError
from ..events import (
    ErrorRaised,
    Event,
    FlowControlRefused,
    FlowControlStalled,
    ForeignMessage,
    HeartbeatMissed,
    SlowConsumer,
)
from ..wire import header_names as names
from ..wire.frames import Frame, is_control, is_data, total_size
from ..wire.headers import Headers, parse_headers
from ..wire.replies import may_answer_flow_control
from .ack import Runs, run_of, sequences
from .monitors import FlowControl, GapTracker, HeartbeatMonitor
from .status import Meaning, classify, is_idle_heartbeat

__all__ = [
    "AnswerFlowControl",
    "Command",
    "DeliveryQueue",
    "Emit",
    "PushTracker",
    "foreign_message",
    "whole_number",
]


Mark = TypeVar("Mark")


@dataclass(slots=True)
class DeliveryQueue(Generic[Mark]):
    """A bounded queue of messages, with marks at their positions among them.

    An empty queue accepts a message of any size, which could never be read otherwise. Messages that arrive together
    are counted together, so a single message costs almost no time here. Sizes are kept by run, and taken messages are
    accounted for at the next arrival or query.

    Attributes:
        front: The messages before the first mark. The reader takes them from the left.
        max_messages, max_bytes: The capacity.
    """

    max_messages: int
    max_bytes: int
    total_size: Callable[[list[Frame]], int] = total_size
    front: deque[Frame] = field(default_factory=deque)
    # The rest of the queue after `front`. Its first entry is a mark.
    _after: deque[list[Frame] | Mark] = field(default_factory=deque)
    _messages: int = 0  # number of messages in `_after`
    marks: int = 0  # number of marks in `_after`
    _runs: deque[tuple[int, int]] = field(default_factory=deque)  # messages and bytes that arrived together
    _counted: int = 0  # number of messages in the runs
    _bytes: int = 0  # number of bytes in the runs

    @property
    def messages(self) -> int:
        """The number of messages in the queue."""
        return len(self.front) + self._messages

    @property
    def bytes(self) -> int:
        """The number of bytes in the queue."""
        self._settle_exactly()
        return self._bytes

    def _settle_exactly(self) -> None:
        """Account for all messages that were taken, including the taken part of the first run."""
        taken = self._settle()
        if taken:  # a part of the first run was taken, and its remainder is at the start of `front`
            count, size = self._runs[0]
            rest = self.total_size(list(islice(self.front, count - taken)))
            self._runs[0] = (count - taken, rest)
            self._counted -= taken
            self._bytes += rest - size

    @property
    def has_space_for_mark(self) -> bool:
        """Whether messages and marks together are within the capacity in messages."""
        return self.messages + self.marks <= self.max_messages

    @property
    def is_half_empty(self) -> bool:
        """Whether half of the capacity is free. A run counts as taken when all its messages were taken."""
        self._settle()
        return self.messages <= self.max_messages // 2 and self._bytes <= self.max_bytes // 2

    def __bool__(self) -> bool:
        return bool(self.front or self._after)

    def _settle(self) -> int:
        """Drop the runs that were taken completely. Returns how many messages of the first remaining run were taken."""
        taken, runs = self._counted - self.messages, self._runs
        while runs and runs[0][0] <= taken:
            count, size = runs.popleft()
            taken -= count
            self._counted -= count
            self._bytes -= size
        return taken

    def add_frames(self, frames: list[Frame]) -> bool:
        """Add messages that arrived together, or none of them if they don't all fit. Return whether they fit."""
        count, size = len(frames), self.total_size(frames)
        waiting = len(self.front) + self._messages
        if self._counted != waiting:
            self._settle()
        # Accept a single message into an empty buffer even if it exceeds the capacity. Otherwise, the message could
        # never be received.
        if waiting or count > 1:
            if waiting + count > self.max_messages:
                return False
            # `_bytes` is an upper bound, because it may include messages of the first run that were already taken. If
            # it exceeds the limit, check `bytes`, which is exact but slower.
            if self._bytes + size > self.max_bytes and self.bytes + size > self.max_bytes:
                return False
        if self._after:
            self._after.append(frames)
            self._messages += count
        else:
            self.front.extend(frames)
        self._runs.append((count, size))
        self._counted += count
        self._bytes += size
        return True

    def mark(self, mark: Mark) -> None:
        """Append a mark after the messages in the queue."""
        self._after.append(mark)
        self.marks += 1

    def mark_first(self, mark: Mark) -> None:
        """Put a mark before all queued messages."""
        if self.front:
            # Do this before `front` is emptied, because it measures what is left of a run in `front`.
            self._settle_exactly()
            self._after.appendleft(list(self.front))
            self._messages += len(self.front)
            self.front.clear()
        self._after.appendleft(mark)
        self.marks += 1

    def next_mark(self) -> Mark | None:
        """Remove and return the next mark, or None if the queue is empty. Call it only when `front` is empty."""
        after = self._after
        if not after:
            return None
        mark = after.popleft()
        assert not isinstance(mark, list)
        self.marks -= 1
        while after and isinstance(run := after[0], list):
            self.front.extend(run)
            self._messages -= len(run)
            after.popleft()
        return mark

    def clear(self) -> list[Frame]:
        """Empty the queue, and return its messages."""
        frames = [*self.front]
        for run in self._after:
            if isinstance(run, list):
                frames += run
        self.front.clear()
        self._after.clear()
        self._runs.clear()
        self.marks = self._messages = self._counted = self._bytes = 0
        return frames


# Maximum number of marks, in case a faulty server adds many of them. A real server waits for the answer to each flow
# control request.
_MAX_MARKS = 1024
_UNKNOWN_INTERVAL = 5.0  # assumed interval of heartbeats if it is unknown, in seconds


class Emit(msgspec.Struct, frozen=True):
    """Report an event to the user."""

    event: Event


class AnswerFlowControl(msgspec.Struct, frozen=True):
    """Publish an empty message to this subject (flow control)."""

    subject: bytes


Command: TypeAlias = Emit | AnswerFlowControl


def foreign_message(stream: str, consumer: str, frame: Frame, count: int) -> list[Emit]:
    """Report a message that the server did not send.

    To avoid a flood, only the 1st, 2nd, 4th, 8th message and so on are reported.
    """
    if count & (count - 1):
        return []
    subject = frame[0].decode("utf-8", "backslashreplace")
    return [Emit(ForeignMessage(stream=stream, consumer=consumer, subject=subject, count=count))]


def whole_number(text: str | None) -> int | None:
    """Parse a header value as a sequence. Return None if it is not a whole number."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 20):
        return None
    return int(text)


@dataclass(slots=True)
class PushTracker:
    """The queue of a push subscription, with its heartbeat, gap and flow control state."""

    stream: str
    consumer: str
    max_pending: InitVar[int]  # capacity in messages
    max_pending_bytes: InitVar[int]  # capacity in bytes, as the server counts them
    heartbeat: HeartbeatMonitor | None = None
    gaps: GapTracker | None = None
    raises: bool = True  # true if errors enter the queue. Otherwise, they become events
    api_prefix: bytes = b"$JS.API"  # subjects under this prefix are never answered as flow control
    flow_prefixes: tuple[bytes, ...] = ()  # prefixes of subjects to answer, in addition to nats-server's
    flow: FlowControl = field(default_factory=FlowControl)
    runs: Runs = Runs()  # noqa: RUF009  immutable default
    received: int = 0
    dropped: int = 0
    foreign: int = 0
    # Messages that can be taken from the left without calling `take_frame`.
    front: deque[Frame] = field(init=False)
    # The queue of messages. It also contains a mark for each flow control request to answer and for each error to
    # raise, at the place where the request or the error arrived.
    _queue: DeliveryQueue[bytes | JetStreamError] = field(init=False)
    _run: bytes = b""  # expected prefix of the next message's JSAck
    _overflow: SlowConsumer | None = None  # the event that reported the current overflow, or None
    _odd: bool = False  # true once an unknown status 100 has been reported

    def __post_init__(self, max_pending: int, max_pending_bytes: int) -> None:
        self._queue = DeliveryQueue(max_pending, max_pending_bytes, self.runs.total_size)
        self.front = self._queue.front

    @property
    def pending(self) -> int:
        """The number of messages in the queue."""
        return self._queue.messages

    @property
    def pending_bytes(self) -> int:
        """The number of bytes in the queue, as the server counts them."""
        return self._queue.bytes

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Process frames that arrived together, in order. Return the commands to carry out."""
        if self.heartbeat is not None:
            self.heartbeat.heard(now)
        commands: list[Command] = []
        if self._whole_run(frames):
            return commands
        # Process the first delivery alone. It shows what the JSAcks have in common, so the rest can be checked in one
        # call.
        self._one_by_one(frames[:1], now, commands)
        if len(frames) > 1 and not self._whole_run(frames[1:]):
            self._one_by_one(frames[1:], now, commands)
        return commands

    def _one_by_one(self, frames: list[Frame], now: float, commands: list[Command]) -> None:
        for frame in frames:
            if is_data(frame):
                self._data(frame, commands)
            elif is_control(frame):
                self._control(frame, commands, now)
            else:
                self._foreign(frame, commands)

    def tick(self, now: float) -> list[Command]:
        """Handle the deadline, and return the commands to carry out."""
        if self.heartbeat is None or (silent := self.heartbeat.check_silence(now)) is None:
            return []
        return [Emit(HeartbeatMissed(stream=self.stream, consumer=self.consumer, silent_for=silent))]

    @property
    def deadline(self) -> float | None:
        """The time to call `tick`, in monotonic seconds, or None for never."""
        return None if self.heartbeat is None else self.heartbeat.deadline

    def _data(self, frame: Frame, commands: list[Command]) -> None:
        try:
            stream_seq, consumer_seq, _, _ = sequences(frame[1])
        except NotJetStreamMessageError as error:
            self._mark_error(error, commands)
            return
        self._run = run_of(frame[1])
        self.received += 1
        if self.gaps is not None and (event := self.gaps.message(stream_seq, consumer_seq)) is not None:
            commands.append(Emit(event))
        if self._queue.add_frames([frame]):
            self._has_room(commands)
        else:
            self._drop(stream_seq, commands)

    def _whole_run(self, frames: list[Frame]) -> bool:
        """Queue a whole batch in the ordinary case: only messages, without a gap, that all fit. Else do nothing."""
        if self._overflow is not None:
            return False
        gaps, expected = self.gaps, None
        if gaps is not None:
            if gaps.consumer_seq is None:
                return False
            expected = gaps.consumer_seq + 1
        last = self.runs.last_of_whole_run(frames, self._run, expected)
        if not last or not self._queue.add_frames(frames):
            return False
        if gaps is not None and expected is not None:
            gaps.consumer_seq, gaps.stream_seq = expected + len(frames) - 1, last
        self.received += len(frames)
        return True

    def _has_room(self, commands: list[Command]) -> None:
        """Record that a message was queued, which ends an episode of drops."""
        overflow, self._overflow = self._overflow, None
        if overflow is not None and overflow.dropped > 1:
            commands.append(Emit(msgspec.structs.replace(overflow, ended=True)))

    def end_queue(self) -> list[Command]:
        """End the queue because the subscription ends. Return the event for drops that were not reported yet."""
        overflow, self._overflow = self._overflow, None
        if overflow is None or not overflow.dropped & (overflow.dropped - 1):
            return []
        return [Emit(msgspec.structs.replace(overflow, ended=True))]

    def _drop(self, stream_seq: int, commands: list[Command]) -> None:
        """Count a message that was dropped because the queue is full.

        An event reports the first drop of an episode, then each time the number has doubled. `dropped` counts all
        episodes.
        """
        self.dropped += 1
        begun = stream_seq if self._overflow is None else self._overflow.first_stream_seq
        count = 1 if self._overflow is None else self._overflow.dropped + 1
        self._overflow = SlowConsumer(
            stream=self.stream,
            consumer=self.consumer,
            dropped=count,
            first_stream_seq=begun,
            last_stream_seq=stream_seq,
        )
        if not count & (count - 1):
            commands.append(Emit(self._overflow))

    def _foreign(self, frame: Frame, commands: list[Command]) -> None:
        self.foreign += 1
        commands += foreign_message(self.stream, self.consumer, frame, self.foreign)

    def _control(self, frame: Frame, commands: list[Command], now: float) -> None:
        status, fields = parse_headers(frame[2])
        if status is None:
            self._foreign(frame, commands)
            return
        verdict = classify(status.code, status.description)
        if verdict.meaning is Meaning.FLOW_CONTROL:
            self._flow_control(frame[1], commands)
        elif verdict.meaning is Meaning.HEARTBEAT:
            self._heartbeat(fields, commands, now)
            # Report an unexpected description only once, because every heartbeat would repeat it.
            if not (self._odd or is_idle_heartbeat(status.description)):
                self._odd = True
                error = StatusError(status.code, status.description)
                commands.append(Emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error)))
        elif verdict.error is not None:
            self._mark_error(verdict.error(status.code, status.description, verdict.retryable), commands)
        # The remaining statuses end pull requests and mean nothing to a push subscription.

    def _heartbeat(self, fields: Headers, commands: list[Command], now: float) -> None:
        last_consumer = whole_number(fields.get(names.LAST_CONSUMER))
        last_stream = whole_number(fields.get(names.LAST_STREAM))
        if last_consumer is not None and last_stream is not None:
            self._compare(last_stream, last_consumer, commands)
        stalled = fields.get(names.CONSUMER_STALLED)
        if stalled:
            subject = stalled.encode("utf-8", "surrogateescape")
            again = subject == self.flow.answered
            if self._flow_control(subject, commands, stalled_at=now):
                text = subject.decode("utf-8", "backslashreplace")
                event = FlowControlStalled(
                    stream=self.stream, consumer=self.consumer, subject=text, again=again
                )
                commands.append(Emit(event))

    def _compare(self, last_stream: int, last_consumer: int, commands: list[Command]) -> None:
        """Compare the server's last delivery with the last delivery that arrived."""
        if self.gaps is not None and (event := self.gaps.heartbeat(last_stream, last_consumer)) is not None:
            commands.append(Emit(event))

    def _flow_control(self, subject: bytes, commands: list[Command], stalled_at: float | None = None) -> bool:
        if not may_answer_flow_control(subject, self.api_prefix, self.flow_prefixes):
            text = subject.decode("utf-8", "backslashreplace")
            commands.append(
                Emit(FlowControlRefused(stream=self.stream, consumer=self.consumer, subject=text))
            )
            return False
        if self._queue.marks >= _MAX_MARKS:
            return False
        if stalled_at is None:
            placed = self.flow.requested(subject)
        else:
            interval = self.heartbeat.interval if self.heartbeat is not None else _UNKNOWN_INTERVAL
            placed = self.flow.stalled(subject, stalled_at, interval)
        if not placed:
            return False
        self._queue.mark(subject)
        return True

    def _mark_error(self, error: JetStreamError, commands: list[Command]) -> None:
        if self.raises and self._queue.has_space_for_mark:
            self._queue.mark(error)
        else:
            commands.append(Emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error)))

    def fail(self, error: JetStreamError) -> None:
        """End the subscription with an error, which is raised after the last queued message."""
        self._queue.mark(error)

    def take_frame(self) -> tuple[Frame | None, list[Command]]:
        """Return the next message, or None if the queue is empty, and the commands to carry out.

        Flow control requests before the message are answered.

        Raises:
            JetStreamError: An error precedes the next message. The next call continues after it.
        """
        commands = self.reach_frames()
        return self.front.popleft() if self.front else None, commands

    def reach_frames(self) -> list[Command]:
        """Process the marks before the next message, which is then in ``front``. Return the commands to carry out.

        Call it again after the commands, because an error may follow them.

        Raises:
            JetStreamError: An error precedes the next message. The next call continues after it.
        """
        commands: list[Command] = []
        while not self.front and (mark := self._queue.next_mark()) is not None:
            if isinstance(mark, JetStreamError):
                if commands:  # return the answers first, and leave the error to the next call
                    self._queue.mark_first(mark)
                    break
                raise mark
            if self.flow.reached(mark) and self._may_send_on():
                commands.append(AnswerFlowControl(mark))
        return commands

    def _may_send_on(self) -> bool:
        """Return whether to answer the flow control request that was reached, so that the server continues to send."""
        return True

    def put_back(self, error: JetStreamError) -> None:
        """Put back an error that `take_frame` raised, so that the next call raises it again."""
        self._queue.mark_first(error)

    @property
    def waits(self) -> bool:
        """Whether the queue contains a message, a flow control request or an error."""
        return bool(self._queue)

    def clear(self) -> list[Frame]:
        """Empty the queue, and return its messages."""
        return self._queue.clear()
