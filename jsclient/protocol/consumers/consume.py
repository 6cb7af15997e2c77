"""The continuous pull reader as a state machine, with its requests, its queued messages, and its end.

`ConsumeTracker` combines the accounting of `PullBuffer`, the heartbeat monitor and the queue. Frames enter it with
`ConsumeTracker.receive`, and messages are taken from its ``front``. The methods return commands for the runtime.

Source: ADR-37 §Consume, §Status handling.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

import msgspec

from ...errors import ConsumerDeletedError, JetStreamError, NoRespondersError, PullLimitError
from ..events import ConsumerDeleted, ErrorRaised, Event, HeartbeatMissed
from ..wire import header_names as names
from ..wire.checks import check_count
from ..wire.frames import Frame, frame_size, is_control, is_data
from ..wire.header_names import PENDING_BYTES, PENDING_MESSAGES
from ..wire.headers import Headers, Status, parse_headers
from .ack import PREFIX, Runs
from .fetch import HEARTBEATS_ALLOWED, Pull, check_pull, default_heartbeat
from .monitors import HeartbeatMonitor
from .priority import GroupRequest, Pin, ShownPins
from .push import Emit, foreign_message, whole_number
from .status import Ending, Meaning, classify

__all__ = [
    "CheckConsumer",
    "Command",
    "ConsumeTracker",
    "NotAnswered",
    "PullBuffer",
    "SendPull",
    "reader_window",
]


@dataclass(slots=True)
class PullBuffer:
    """Decides what a continuous reader requests, so that ``owed + buffered`` never exceeds the limits.

    Messages requested but not delivered (*owed*) and messages delivered but not taken (*buffered*) are counted
    separately, because a lost connection loses the owed messages, but not the buffered messages.
    """

    max_messages: int
    threshold: int  # send a request when at most this many messages are owed or buffered
    # Limit in bytes, or None. Requests contain ``max_bytes`` only if there is a limit.
    max_bytes: int | None = None
    owed: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    owed_bytes: int = 0
    online: bool = False
    paused_until: float | None = None  # when a request may be sent after a refusal, in monotonic seconds
    refusals: int = 0  # number of refusals in a row
    _requested_bytes: int = 0  # bytes of the last request, if max_bytes is set
    _received_any: bool = False  # true if a message has arrived since the last request

    def next_amount(self) -> tuple[int, int | None] | None:
        """Return the messages and bytes to request now, and count them as owed. None means no request."""
        if not self.online or self.paused_until is not None:
            return None
        if self.max_bytes is None:
            missing = self.max_messages - self.owed - self.buffered
            if missing <= 0 or self.owed + self.buffered > self.threshold:
                return None
            self.owed += missing
            return missing, None
        free = self.max_bytes - self.owed_bytes - self.buffered_bytes
        missing = self.max_messages - self.owed - self.buffered
        # With a limit in bytes, one request is in flight at a time, so that its bytes can be accounted for.
        if self.owed > 0 or missing <= 0 or free < max(1, self.max_bytes // 2):
            return None
        self.owed, self.owed_bytes = missing, free
        self._requested_bytes, self._received_any = free, False
        return missing, free

    def connected(self) -> None:
        """Record a new connection, on which no request is in flight."""
        self.online, self.owed, self.owed_bytes = True, 0, 0
        self.paused_until, self.refusals = None, 0

    def disconnected(self) -> None:
        """Record that the connection was lost, together with all owed messages."""
        self.online, self.owed, self.owed_bytes = False, 0, 0

    def delivered(self, size: int, count: int = 1) -> None:
        """Record that ``count`` messages arrived, ``size`` bytes in total."""
        self.owed = max(0, self.owed - count)
        self.owed_bytes = max(0, self.owed_bytes - size) if self.owed else 0
        if self.max_bytes is not None and not self.owed_bytes:
            self.owed = 0  # the bytes are used up exactly, so the server ends the request without a status
        self.buffered += count
        self.buffered_bytes += size
        self.refusals, self._received_any = 0, True

    def taken(self, size: int, count: int = 1) -> None:
        """Record that the user took ``count`` messages, ``size`` bytes in total."""
        self.buffered -= count
        self.buffered_bytes -= size

    def ended(self, meaning: Meaning, ending: Ending, fields: Headers, now: float) -> bool:
        """Record that a request ended before it was filled. The status contains the amount that was not served.

        If the status has no amount, no message counts as owed. A repeated request may be refused again at once, so
        the pause before a new request doubles with each refusal, up to 5 s.

        Returns:
            Whether the next message is larger than the limit in bytes, so that no request can be served.
        """
        unserved = whole_number(fields.get(names.PENDING_MESSAGES))
        unserved_bytes = whole_number(fields.get(names.PENDING_BYTES))
        self.owed = 0 if unserved is None else max(0, self.owed - unserved)
        self.owed_bytes = (
            0 if unserved_bytes is None or not self.owed else max(0, self.owed_bytes - unserved_bytes)
        )
        too_large = ending is Ending.MAX_BYTES and not self._received_any
        if meaning is not Meaning.ENDED or too_large:
            self.refusals += 1
            self.paused_until = now + min(5.0, 0.05 * 2 ** min(self.refusals - 1, 10))
        return too_large and self._requested_bytes == self.max_bytes

    def silent(self) -> None:
        """Record that the heartbeats stopped. Owed messages are requested again."""
        self.owed = self.owed_bytes = 0

    def end_pause(self, now: float) -> None:
        """End the pause if it has lasted long enough."""
        if self.paused_until is not None and now >= self.paused_until:
            self.paused_until = None


# How long to repeat requests that found no responders before the consumer is looked up, in seconds.
_BELIEVED_AFTER = 5.0
_REMEMBERED = 64  # number of requests whose size is remembered for a group with a pin


class SendPull(msgspec.Struct, frozen=True):
    """Send this request. The last token of its reply subject is ``number``."""

    pull: Pull
    number: int


class CheckConsumer(msgspec.Struct, frozen=True):
    """Look up the consumer, and call `ConsumeTracker.consumer_is_gone` if it does not exist."""


class NotAnswered(msgspec.Struct, frozen=True):
    """Report that no server answers the requests, which are repeated."""


Command: TypeAlias = SendPull | Emit | CheckConsumer | NotAnswered


def reader_window(
    *,
    max_messages: int | None,
    max_bytes: int | None,
    threshold_messages: int | None,
    expires: float,
    idle_heartbeat: float | None,
    group: GroupRequest | None = None,
) -> tuple[Pull, int]:
    """Return the request of a continuous reader with an empty buffer, and its threshold.

    Arguments that are None get their defaults.

    Raises:
        ConfigError: A value is out of range (see `check_pull`), or the threshold is not 0 to ``max_messages``.
    """
    if max_messages is None:
        max_messages = 500 if max_bytes is None else 1_000_000
    if idle_heartbeat is None:
        idle_heartbeat = default_heartbeat(expires)
    check_pull(max_messages, expires, max_bytes, idle_heartbeat)
    threshold = max_messages // 2 if threshold_messages is None else threshold_messages
    check_count("threshold_messages", threshold, 0, max_messages)
    return Pull(max_messages, expires, max_bytes, idle_heartbeat=idle_heartbeat, group=group), threshold


@dataclass(slots=True)
class ConsumeTracker:
    """The state of a continuous pull reader. Messages queued and requested together never exceed ``pull``.

    Attributes:
        pull: The request when the buffer is empty.
        threshold: The next request is sent when this many or fewer messages are requested or queued.
        error: Why the reader can't continue, or None if it can. Queued messages can still be taken.
        pin: The pin of the priority group, if the consumer pins clients. Other readers may share it.
        front: The queued messages.
        low: While more messages than this are queued, one message may be popped from ``front`` without `take_frame`.
    """

    stream: str
    consumer: str
    pull: Pull
    threshold: InitVar[int]
    pin: Pin | None = None
    buffer: PullBuffer = field(init=False)
    front: deque[Frame] = field(default_factory=deque)
    monitor: HeartbeatMonitor | None = field(init=False)
    error: JetStreamError | None = None
    low: int = 0
    foreign: int = 0
    asked: int = 0  # number of requests so far
    runs: Runs = Runs()  # noqa: RUF009  immutable default
    _shown: ShownPins | None = None
    _last: deque[tuple[int, Pull]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _refused_since: float | None = None
    _reported_stuck: bool = False  # true once it was reported that the next message exceeds max_bytes

    def __post_init__(self, threshold: int) -> None:
        pull = self.pull
        self.buffer = PullBuffer(pull.batch, min(threshold, pull.batch - 1), pull.max_bytes)
        self._shown = None if self.pin is None else ShownPins(self.pin)
        beat = pull.idle_heartbeat
        self.monitor = None if beat is None else HeartbeatMonitor(beat, HEARTBEATS_ALLOWED)

    @property
    def deadline(self) -> float | None:
        """The time to call `tick`, in monotonic seconds, or None if no call is needed."""
        return self._deadline()

    def _deadline(self) -> float | None:
        if self.error is not None:
            return None
        moments = [self.buffer.paused_until] if self.buffer.paused_until is not None else []
        if self.monitor is not None and self.buffer.online:
            moments.append(self.monitor.deadline)
        return min(moments, default=None)

    def connected(self, now: float) -> list[Command]:
        """Record that the connection is up and the inbox is subscribed. Return the first requests."""
        self.buffer.connected()
        if self.monitor is not None:
            self.monitor.heard(now)
        return self.next_requests()

    def disconnected(self) -> None:
        """Record that the connection was lost."""
        self.buffer.disconnected()

    def next_requests(self) -> list[Command]:
        """Return the requests to send now."""
        self._settle()
        amount = self.buffer.next_amount() if self.error is None else None
        # With a limit in bytes, any message taken may free enough capacity for a request, so check after each one.
        self.low = self.buffer.threshold - self.buffer.owed + 1 if self.pull.max_bytes is None else 2**63
        if amount is None:
            return []
        pull = msgspec.structs.replace(self.pull, batch=amount[0], max_bytes=amount[1])
        self.asked += 1
        if self._shown is not None:
            pull = msgspec.structs.replace(pull, pin=self._shown.shows(self.asked))
            self._last.append((self.asked, pull))
        return [SendPull(pull, self.asked)]

    def take_frame(self) -> tuple[Frame, list[Command]]:
        """Take the next message, and return it with the commands to carry out. The queue must not be empty."""
        frame = self.front.popleft()
        if self.pull.max_bytes is not None:
            self.buffer.taken(frame_size(frame))
        return frame, self.next_requests()

    def take_many(self, most: int) -> tuple[list[Frame], list[Command]]:
        """Take up to ``most`` queued messages, and return them with the commands to carry out."""
        front = self.front
        frames = [front.popleft() for _ in range(min(most, len(front)))]
        if self.pull.max_bytes is not None:
            self.buffer.taken(self.runs.total_size(frames), len(frames))
        return frames, self.next_requests() if len(front) < self.low else []

    def resize(self, max_messages: int) -> None:
        """Change the limit to ``max_messages``. The next request is sent when half of them remain."""
        self.buffer.max_messages = max_messages
        self.buffer.threshold = min(max_messages // 2, max_messages - 1)

    def _settle(self) -> None:
        """Count messages that were popped from ``front``.

        With a limit in bytes, `take_frame` has already counted them.
        """
        self.buffer.taken(0, self.buffer.buffered - len(self.front))

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Process frames that arrived together, in order. Return the commands to carry out."""
        if self.monitor is not None:
            self.monitor.heard(now)
        commands: list[Command] = []
        # The fast path. If all frames are messages, process them in one call.
        if not [frame for frame in frames if not frame[1].startswith(PREFIX)]:
            self._messages(frames, commands)
            return commands
        for frame in frames:
            if is_data(frame):
                self._messages([frame], commands)
            elif is_control(frame):
                status, fields = parse_headers(frame[2])
                if status is not None and not self._unpinned(frame[0], status, fields, now, commands):
                    self._status(status, fields, now, commands)
            else:
                self._foreign(frame, commands)
        return commands

    def _messages(self, frames: list[Frame], commands: list[Command]) -> None:
        self._refused_since, self._reported_stuck = None, False
        self._settle()
        self.front.extend(frames)
        self.buffer.delivered(0 if self.pull.max_bytes is None else self.runs.total_size(frames), len(frames))
        if self.pin is not None and (event := self.pin.message(frames[-1][2])) is not None:
            commands.append(Emit(event))

    def _unpinned(
        self, subject: bytes, status: Status, fields: Headers, now: float, commands: list[Command]
    ) -> bool:
        """Return whether a request was refused because of its pin. If so, its messages are requested again at once."""
        if self._shown is None or classify(status.code, status.description).ending is not Ending.UNPINNED:
            return False
        token = subject.rpartition(b".")[2]
        number = int(token) if token.isdigit() and len(token) < 20 else 0
        if number > self.asked:
            return False
        had_one, event = self._shown.refused(status.code, number)
        if not had_one:
            return False
        if event is not None:
            commands.append(Emit(event))
        # If the status doesn't say how many messages are pending, the server refused the request before serving any
        # part of it, so all of it is pending.
        if PENDING_MESSAGES not in fields:
            for pull in (pull for recent, pull in self._last if recent == number):
                fields = Headers({PENDING_MESSAGES: str(pull.batch), PENDING_BYTES: str(pull.max_bytes or 0)})
        self.buffer.ended(Meaning.ENDED, Ending.UNPINNED, fields, now)
        return True

    def _foreign(self, frame: Frame, commands: list[Command]) -> None:
        self.foreign += 1
        commands += foreign_message(self.stream, self.consumer, frame, self.foreign)

    def _status(self, status: Status, fields: Headers, now: float, commands: list[Command]) -> None:
        verdict = classify(status.code, status.description)
        if verdict.ending is None:
            return  # a heartbeat, so the request continues
        stuck = self.buffer.ended(verdict.meaning, verdict.ending, fields, now)
        if verdict.error is None:
            self._refused_since = None
            if stuck and not self._reported_stuck:
                self._reported_stuck = True
                commands.append(self._raised(PullLimitError(status.code, status.description)))
            return
        error = verdict.error(status.code, status.description, verdict.retryable)
        if isinstance(error, ConsumerDeletedError):
            error = self._deleted()
        if verdict.meaning is not Meaning.RETRY:
            self.fail(error)
        elif isinstance(error, NoRespondersError):
            if self._refused_since is None:
                # The consumer may have been deleted, or its leader is being elected. Repeat the request for a while.
                self._refused_since = now
                commands.append(NotAnswered())
            elif now - self._refused_since >= _BELIEVED_AFTER:
                self._refused_since = now
                commands.append(CheckConsumer())
        else:
            commands.append(self._raised(error))

    def _raised(self, error: JetStreamError) -> Emit:
        return Emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))

    def tick(self, now: float) -> list[Command]:
        """End a pause, and check the heartbeats. Call this when the deadline was reached."""
        self.buffer.end_pause(now)
        commands: list[Command] = []
        monitor = self.monitor
        if monitor is not None and self.buffer.online and now >= monitor.deadline:
            if not self.buffer.owed:
                monitor.heard(now)  # no request is in flight, so silence is expected
            elif (silent := monitor.check_silence(now)) is not None:
                commands.append(self._missed(silent))
                commands += self._silent()
        return commands

    def _missed(self, silent: float) -> Emit:
        return Emit(HeartbeatMissed(stream=self.stream, consumer=self.consumer, silent_for=silent))

    def _silent(self) -> list[Command]:
        self.buffer.silent()
        return [CheckConsumer()]

    def consumer_is_gone(self) -> Event:
        """End the reader because the consumer does not exist. Return the event to emit."""
        self.fail(self._deleted())
        return ConsumerDeleted(stream=self.stream, consumer=self.consumer)

    def _deleted(self) -> ConsumerDeletedError:
        return ConsumerDeletedError(409, "Consumer Deleted", False, self.stream, self.consumer)

    def fail(self, error: JetStreamError) -> None:
        """End with an error. Only the first error counts."""
        if self.error is None:
            self.error = error
