"""A push subscription as a state machine: arriving frames, queued messages, events and flow control answers.

`PushTracker` combines heartbeat monitor, gap tracker, flow control and the bounded queue. Frames enter with
`PushTracker.receive`, messages leave with `PushTracker.take`; both return commands for the runtime to carry out.
Statuses never leave it.
Source: ADR-15 §Automatic Status Management.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

import msgspec

from ...errors import JetStreamError, NotJetStreamMessageError
from ..events import (
    ErrorRaised,
    Event,
    FlowControlRefused,
    FlowControlStalled,
    ForeignMessage,
    HeartbeatMissed,
    SlowConsumer,
)
from ..wire import headers as names
from ..wire.frames import Frame, is_control, is_data
from ..wire.headers import parse_headers
from ..wire.replies import may_answer_flow_control
from .ack import run_of, runs_on, sequences
from .delivery_queue import DeliveryQueue
from .flow_control import FlowControl
from .gap import GapTracker
from .heartbeat import HeartbeatMonitor
from .status import Meaning, classify

__all__ = ["Answer", "Command", "Emit", "PushTracker", "whole_number"]

_MAX_MARKS = 1024  # entries of the queue other than messages; a server has one request at a time in flight
_UNKNOWN_INTERVAL = 5.0  # seconds between heartbeats, if the consumer is not known to send any


class Emit(msgspec.Struct, frozen=True):
    """Report an event to the user."""

    event: Event


class Answer(msgspec.Struct, frozen=True):
    """Publish an empty message to this subject (flow control)."""

    subject: bytes


Command: TypeAlias = Emit | Answer


@dataclass(frozen=True, slots=True)
class _Marker:
    """A flow control request at its position in the queue."""

    subject: bytes


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error at its position in the queue: raised instead of the next message."""

    error: JetStreamError


def whole_number(text: str | None) -> int | None:
    """Parse a header value as a sequence; None if it is not one."""
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
    raises: bool = True  # errors enter the queue (else they become events)
    api_prefix: bytes = b"$JS.API"  # flow control is never answered under it
    flow: FlowControl = field(default_factory=FlowControl)
    received: int = 0
    dropped: int = 0
    foreign: int = 0
    front: deque[Frame] = field(init=False)  # messages that can be taken from its left without calling `take`
    _queue: DeliveryQueue[_Marker | _Failure] = field(init=False)
    _run: bytes = b""  # the expected start of the next message's JSAck
    _overflow: SlowConsumer | None = None  # the current episode

    def __post_init__(self, max_pending: int, max_pending_bytes: int) -> None:
        self._queue = DeliveryQueue(max_pending, max_pending_bytes)
        self.front = self._queue.front

    @property
    def pending(self) -> int:
        """Messages in the queue."""
        return self._queue.messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes, as the server counts them."""
        return self._queue.bytes

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Frames arrived together, in order."""
        if self.heartbeat is not None:
            self.heartbeat.heard(now)
        commands: list[Command] = []
        if self._whole_run(frames):
            return commands
        # The first delivery shows what the JSAcks have in common; the rest can then be checked at once.
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
        """The deadline was reached."""
        if self.heartbeat is None or (silent := self.heartbeat.tick(now)) is None:
            return []
        return [Emit(HeartbeatMissed(stream=self.stream, consumer=self.consumer, silent_for=silent))]

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, monotonic seconds; None: never."""
        return None if self.heartbeat is None else self.heartbeat.deadline

    def _data(self, frame: Frame, commands: list[Command]) -> None:
        try:
            stream_seq, consumer_seq = sequences(frame[1])
        except NotJetStreamMessageError as error:
            self._fail(error, commands)
            return
        self._run = run_of(frame[1])
        self.received += 1
        if self.gaps is not None and (event := self.gaps.message(stream_seq, consumer_seq)) is not None:
            commands.append(Emit(event))
        if self._queue.add([frame]):
            self._overflow = None
        else:
            self._drop(stream_seq, commands)

    def _whole_run(self, frames: list[Frame]) -> bool:
        """Take a whole batch at once, the ordinary case: messages only, no gap, capacity for all. Else do nothing."""
        gaps = self.gaps
        if gaps is not None and gaps.consumer_seq is None:
            return False
        expected = None if gaps is None or gaps.consumer_seq is None else gaps.consumer_seq + 1
        if not runs_on(frames, self._run, expected) or not self._queue.add(frames):
            return False
        if gaps is not None and gaps.consumer_seq is not None:
            gaps.consumer_seq += len(frames)
            gaps.stream_seq = sequences(frames[-1][1])[0]
        self.received += len(frames)
        self._overflow = None
        return True

    def _drop(self, stream_seq: int, commands: list[Command]) -> None:
        """The queue is full. One event per episode, at its start; `dropped` counts every message."""
        self.dropped += 1
        first = self._overflow is None
        begun = stream_seq if self._overflow is None else self._overflow.first_stream_seq
        count = 1 if self._overflow is None else self._overflow.dropped + 1
        self._overflow = SlowConsumer(
            stream=self.stream,
            consumer=self.consumer,
            dropped=count,
            first_stream_seq=begun,
            last_stream_seq=stream_seq,
        )
        if first:
            commands.append(Emit(self._overflow))

    def _foreign(self, frame: Frame, commands: list[Command]) -> None:
        self.foreign += 1
        if self.foreign & (self.foreign - 1) == 0:  # 1, 2, 4, 8 …: reported without flooding
            subject = frame[0].decode("utf-8", "backslashreplace")
            event = ForeignMessage(
                stream=self.stream, consumer=self.consumer, subject=subject, count=self.foreign
            )
            commands.append(Emit(event))

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
        elif verdict.error is not None:
            self._fail(verdict.error(status.code, status.description, verdict.retryable), commands)
        # The remaining statuses end pull requests and mean nothing to a push subscription.

    def _heartbeat(self, fields: names.Headers, commands: list[Command], now: float) -> None:
        last_consumer = whole_number(fields.get(names.LAST_CONSUMER))
        last_stream = whole_number(fields.get(names.LAST_STREAM))
        if last_consumer is not None and last_stream is not None:
            self._compare(last_stream, last_consumer, commands)
        stalled = fields.get(names.CONSUMER_STALLED)
        if stalled:
            subject = stalled.encode("utf-8", "surrogateescape")
            if self._flow_control(subject, commands, stalled_at=now):
                text = subject.decode("utf-8", "backslashreplace")
                commands.append(
                    Emit(FlowControlStalled(stream=self.stream, consumer=self.consumer, subject=text))
                )

    def _compare(self, last_stream: int, last_consumer: int, commands: list[Command]) -> None:
        """Compare the server's last delivery with the last one that arrived."""
        if self.gaps is not None and (event := self.gaps.heartbeat(last_stream, last_consumer)) is not None:
            commands.append(Emit(event))

    def _flow_control(self, subject: bytes, commands: list[Command], stalled_at: float | None = None) -> bool:
        if not may_answer_flow_control(subject, self.api_prefix):
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
        self._queue.mark(_Marker(subject))
        return True

    def _fail(self, error: JetStreamError, commands: list[Command]) -> None:
        if self.raises and self._queue.has_room_for_mark:
            self._queue.mark(_Failure(error))
        else:
            commands.append(Emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error)))

    def fail(self, error: JetStreamError) -> None:
        """End with ``error``, raised after the last queued message."""
        self._queue.mark(_Failure(error))

    def take(self) -> tuple[Frame | None, list[Command]]:
        """The next message, or None if the queue is empty. Flow control requests are answered when they are reached.

        Raises:
            JetStreamError: An error precedes the next message. The next call continues after it.
        """
        commands: list[Command] = []
        while not self.front:
            mark = self._queue.advance()
            if mark is None:
                return None, commands
            if isinstance(mark, _Failure):
                if commands:  # the answers go out first; the error keeps its position
                    self._queue.mark_first(mark)
                    return None, commands
                raise mark.error
            if self.flow.reached(mark.subject):
                commands.append(Answer(mark.subject))
        return self.front.popleft(), commands

    def put_back(self, error: JetStreamError) -> None:
        """Return an error that `take` raised: the next call raises it again."""
        self._queue.mark_first(_Failure(error))

    @property
    def waits(self) -> bool:
        """Whether `take` has something to do."""
        return bool(self._queue)

    def clear(self) -> list[Frame]:
        """Empty the queue; returns its messages."""
        return self._queue.clear()
