"""Monitors of a subscription: silence, missing deliveries, and flow control. Source: ADR-15, ADR-37."""

from __future__ import annotations

from dataclasses import dataclass

from ..events import ConsumerReset, Event, GapDetected

__all__ = ["FLOW_CONTROL_WINDOW", "FlowControl", "GapTracker", "HeartbeatMonitor"]

# How many bytes nats-server may have in flight to a push consumer while it waits for a flow control answer. The server
# starts with a sixteenth of this window. It requests an answer after half of the current window, and doubles the window
# with each answer.
FLOW_CONTROL_WINDOW = 32 * 1024 * 1024


_LATE = 1.25  # a heartbeat counts as missing after this many intervals


@dataclass(slots=True)
class HeartbeatMonitor:
    """Detects a silent server. It raises an alarm if no message and no status arrives for ``factor`` intervals.

    The alarm repeats while the silence lasts. ``factor`` is 3 for push (ADR-15 §Heartbeats), 2 for pull (ADR-37 §Idle
    Heartbeats).

    When the deadline passes, a second check follows ``grace`` seconds later. A client that was suspended, or whose
    event loop was blocked, thus first reads everything that has arrived meanwhile. If the second check is late, the
    event loop was blocked again, and the check is repeated.
    """

    interval: float  # interval between heartbeats, in seconds
    factor: float = 3.0
    grace: float = 0.1  # time until the second check, in seconds
    last_activity: float = 0.0  # when the server was last heard, in monotonic seconds
    # Time of the second check or of the next alarm. While it is set, it replaces the regular deadline.
    _due: float | None = None
    _is_second: bool = False  # true if the next check is the second one

    @property
    def allowed(self) -> float:
        """How long the server may be silent before an alarm, in seconds."""
        return self.interval * self.factor

    @property
    def deadline(self) -> float:
        """The time to call `check_silence`, in monotonic seconds. It moves with every message and status."""
        return self._due if self._due is not None else self.last_activity + self.interval * self.factor

    def check_heartbeat(self, now: float) -> tuple[bool, float]:
        """Return whether a heartbeat is missing, which may mean that the consumer is gone, and when to call this again.

        This check comes long before the alarm. It costs only a request for the consumer's info, and it detects a
        deleted consumer although the server is not silent.
        """
        due = self.last_activity + self.interval * _LATE
        return now >= due, due if now < due else now + self.interval

    def was_late(self, now: float) -> bool:
        """Return whether `check_silence` is called half an interval or more too late, because the loop was blocked."""
        return now - self.deadline >= max(self.interval / 2, self.grace)

    def heard(self, now: float) -> None:
        """Record that a message or a status arrived."""
        self.last_activity = now
        self._due = None
        self._is_second = False

    def check_silence(self, now: float) -> float | None:
        """Check for silence at the deadline. Return its length in seconds if there is an alarm, else None."""
        if now < self.deadline:
            return None
        if not self._is_second:
            self._is_second = True
            self._due = now + self.grace
            return None
        if self.was_late(now):
            self._due = now + self.grace
            return None
        self._is_second = False
        self._due = now + self.allowed - self.grace
        return now - self.last_activity


@dataclass(slots=True)
class FlowControl:
    """Flow control: the server pauses until the reader has processed everything sent so far.

    A request enters the reader's queue and is answered, with an empty message to its reply subject, when the reader
    reaches it. So the answer is accurate, and the server never has more in flight than its window. Each distinct
    request is answered once. If the request or the answer was lost, heartbeats repeat the subject in
    ``Nats-Consumer-Stalled``. ``protocol.wire.replies.may_answer_flow_control`` decides which subjects are answered.
    """

    answered: bytes = b""  # the subject of the last request that was answered
    waiting: bytes = b""  # the subject of the last request in the queue that the reader hasn't reached yet
    repeated_at: float | None = None  # when a heartbeat repeated an answered request, in monotonic seconds

    def requested(self, subject: bytes) -> bool:
        """Return whether to queue a flow control request, or a stalled heartbeat that repeats the request."""
        if subject in {self.answered, self.waiting}:
            return False
        self.waiting = subject
        return True

    def stalled(self, subject: bytes, now: float, interval: float) -> bool:
        """Return whether to queue the request that a heartbeat repeats because its answer is missing.

        Heartbeats arrive every ``interval`` seconds. The first heartbeat that repeats an answered subject may have
        been in flight when the answer was sent. The next heartbeat proves that the answer was lost.
        """
        if subject == self.answered and subject != self.waiting:
            if self.repeated_at is None or now - self.repeated_at < interval / 2:
                self.repeated_at = now if self.repeated_at is None else self.repeated_at
                return False
            self.not_sent(subject)
        return self.requested(subject)

    def not_sent(self, subject: bytes) -> None:
        """Record that an answer was not sent or was lost, so that the next request for it is answered again."""
        if subject == self.answered:
            self.answered, self.repeated_at = b"", None

    def reached(self, subject: bytes) -> bool:
        """Return whether to answer a request that the reader has reached now."""
        if subject == self.waiting:
            self.waiting = b""
        if subject == self.answered:
            return False
        self.answered, self.repeated_at = subject, None
        return True


@dataclass(slots=True)
class GapTracker:
    """Tracks the consumer sequence of one consumer, in order to detect missing deliveries.

    A consumer numbers its deliveries 1, 2, 3 …, including redeliveries. A message contains the number in the JSAck, and
    a heartbeat contains the last number in ``Nats-Last-Consumer``. A jump means that deliveries were lost. Do not use
    it for queue groups, because each member receives only a part of the deliveries.
    """

    stream: str = ""
    consumer: str = ""
    consumer_seq: int | None = None  # the last consumer sequence. None accepts any first sequence
    stream_seq: int = 0  # the stream sequence of the message with `consumer_seq`

    def message(self, stream_seq: int, consumer_seq: int, arrived: int = 1) -> Event | None:
        """Process the sequences of a message that arrived. Return the event to emit, if any."""
        last, last_stream = self.consumer_seq, self.stream_seq
        self.consumer_seq, self.stream_seq = consumer_seq, stream_seq
        missed = 0 if last is None else consumer_seq - last - arrived
        if last is None or not missed:
            return None
        if missed < 0:
            return ConsumerReset(
                stream=self.stream,
                consumer=self.consumer,
                reason=f"the consumer sequence went back from {last} to {consumer_seq}",
                resume_stream_seq=stream_seq,
            )
        return GapDetected(
            stream=self.stream,
            consumer=self.consumer,
            last_consumer_seq=last,
            consumer_seq=consumer_seq,
            last_stream_seq=last_stream,
            stream_seq=stream_seq,
            missed=missed,
        )

    def heartbeat(self, last_stream: int, last_consumer: int) -> Event | None:
        """Process the last delivery according to a heartbeat. Return the event to emit, if any."""
        return self.message(last_stream, last_consumer, arrived=0)
