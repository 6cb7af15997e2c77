"""A push subscription as a state machine: what arrives, what waits, what is told and answered.

`PushTracker` puts together heartbeat monitor, gap tracker, flow control and the bounded queue. Frames go in with
`PushTracker.receive`, messages come out with `PushTracker.take`; both return commands for the runtime to carry out.
Statuses never come out.
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
from .ack import run_of, runs_on, sequences
from .delivery_queue import DeliveryQueue
from .flow_control import FlowControl, may_answer
from .gap import GapTracker
from .heartbeat import HeartbeatMonitor
from .status import Meaning, classify

__all__ = ["Answer", "Command", "Emit", "PushTracker", "whole_number"]


_MAX_MARKS = 1024  # places in the queue that are no messages; a server has one request at a time under way


_UNKNOWN_INTERVAL = 5.0  # seconds between heartbeats, where the consumer is not known to send any


class Emit(msgspec.Struct, frozen=True):
    """Tell the user."""

    event: Event


class Answer(msgspec.Struct, frozen=True):
    """Publish an empty message to this subject (flow control)."""

    subject: bytes


Command: TypeAlias = Emit | Answer


@dataclass(frozen=True, slots=True)
class _Marker:
    """The place of a flow control request in the queue."""

    subject: bytes


@dataclass(frozen=True, slots=True)
class _Failure:
    """The place of an error in the queue: raised to whoever asks for the next message."""

    error: JetStreamError


def whole_number(text: str | None) -> int | None:
    """A header value that is to be a sequence, or None if it is not one."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 20):
        return None
    return int(text)


@dataclass(slots=True)
class PushTracker:
    """The queue of a push subscription and all that watches it."""

    stream: str
    consumer: str
    max_pending: InitVar[int]  # messages that may wait
    max_pending_bytes: InitVar[int]  # bytes, as the server counts them
    heartbeat: HeartbeatMonitor | None = None
    gaps: GapTracker | None = None
    raises: bool = True  # errors take their place in the queue (else they are events)
    api_prefix: bytes = b"$JS.API"  # under which nothing is answered
    flow: FlowControl = field(default_factory=FlowControl)
    received: int = 0
    dropped: int = 0
    foreign: int = 0
    front: deque[Frame] = field(
        init=False
    )  # messages that can be taken from its left, without a call of `take`
    _queue: DeliveryQueue[_Marker | _Failure] = field(init=False)
    _run: bytes = b""  # what the JSAck of the next message is expected to begin with
    _overflow: SlowConsumer | None = None  # the episode under way

    def __post_init__(self, max_pending: int, max_pending_bytes: int) -> None:
        self._queue = DeliveryQueue(max_pending, max_pending_bytes)
        self.front = self._queue.front

    @property
    def pending(self) -> int:
        """Messages that wait."""
        return self._queue.messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes, as the server counts them."""
        return self._queue.bytes

    # --- what arrives --------------------------------------------------------------------------------------

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Frames arrived together, in order."""
        if self.heartbeat is not None:
            self.heartbeat.heard(now)
        commands: list[Command] = []
        if self._whole_run(frames):
            return commands
        for frame in frames:
            if is_data(frame):
                self._data(frame, commands)
            elif is_control(frame):
                self._control(frame, commands, now)
            else:
                self._foreign(frame, commands)
        return commands

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
        """The ordinary case, in few steps: messages only, without a gap, and room for all. Else nothing is done."""
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
        """No room. Told once an episode, at its start; `dropped` goes on counting."""
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
        if self.foreign & (self.foreign - 1) == 0:  # 1, 2, 4, 8 …: told, but not a flood
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
        # What is left is the ordinary end of a pull, which says nothing to a push subscription.

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
        """Hold what the server delivered last against what arrived."""
        if self.gaps is not None and (event := self.gaps.heartbeat(last_stream, last_consumer)) is not None:
            commands.append(Emit(event))

    def _flow_control(self, subject: bytes, commands: list[Command], stalled_at: float | None = None) -> bool:
        if not may_answer(subject, self.api_prefix):
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
        """The end: ``error`` is raised behind the last message that waits."""
        self._queue.mark(_Failure(error))

    # --- what is taken -------------------------------------------------------------------------------------

    def take(self) -> tuple[Frame | None, list[Command]]:
        """The next message, or None if none waits. Flow control is answered on the way, at its place.

        Raises:
            JetStreamError: An error has its place before the next message. Asking again goes on behind it.
        """
        commands: list[Command] = []
        while not self.front:
            mark = self._queue.advance()
            if mark is None:
                return None, commands
            if isinstance(mark, _Failure):
                if commands:  # the answers first; the error keeps its place
                    self._queue.mark_first(mark)
                    return None, commands
                raise mark.error
            if self.flow.reached(mark.subject):
                commands.append(Answer(mark.subject))
        return self.front.popleft(), commands

    def put_back(self, error: JetStreamError) -> None:
        """An error that `take` raised is to be raised again by the next one."""
        self._queue.mark_first(_Failure(error))

    @property
    def waits(self) -> bool:
        """Whether `take` has something to do."""
        return bool(self._queue)

    def clear(self) -> list[Frame]:
        """Forget everything that waits; the messages among it."""
        return self._queue.clear()
