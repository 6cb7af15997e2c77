"""Ordered reading, which returns every message once and in order, even if the consumer is replaced.

An ordered reader uses a disposable consumer without acks and checks that the consumer sequence runs 1, 2, 3 …. After
a jump, silence, a reconnect or an overflow of its queue, it needs a new consumer that starts after the last message
that *entered the queue*. As a result, no message is skipped, and none is delivered twice. `OrderedCursor` is the
position of the reader in the stream. Push and pull readers share it.

`OrderedTracker` is a `PushTracker` that accepts only messages that its `OrderedCursor` confirms.

Source: ADR-17, ADR-15 §Ordered Consumers.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...errors import ConfigError, NotJetStreamMessageError
from ..events import Event, StreamReset
from ..models.back_doubt import BackwardCheck, StreamEnd
from ..models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from ..models.consumer_checks import check_filters
from ..wire.checks import check_count
from ..wire.frames import Frame
from .ack import Runs, run_of, sequences
from .monitors import FLOW_CONTROL_WINDOW, FlowControl
from .push import Command, PushTracker

__all__ = [
    "MessageMark",
    "OrderedCursor",
    "OrderedTracker",
    "Recreate",
    "Restart",
    "RestartCheck",
    "check_ordered",
    "create_timeout",
    "ephemeral_config",
    "ordered_config",
    "ordered_pull_config",
    "restart_config",
]

_LEAST_TIMEOUT: Final = 1.0  # minimum timeout, in seconds


class Recreate(msgspec.Struct, frozen=True):
    """The command to create a new consumer. ``reason`` is for the user.

    ``unconfirmed`` is true if the old consumer fell silent, or if the reader kept it waiting. The stream may then
    have been deleted, or replaced by a stream of the same name. The server creates a consumer that starts after the
    end of the new stream without an error.
    """

    reason: str
    unconfirmed: bool = False
    planned: bool = False  # true if the reset is intended and no message was lost


class MessageMark(NamedTuple):
    """Identifies a message by its sequence and its storage time in nanoseconds.

    After a restore, the stream may have another message at the same sequence.
    """

    seq: int
    time_ns: int


@dataclass(slots=True)
class OrderedCursor:
    """Tracks the sequences of consecutive consumers. Decides which messages enter the queue, and where to resume.

    Attributes:
        keeps_policy: Whether a new consumer repeats the start policy before the first message.
        last_stream_seq: Stream sequence of the last message that entered the queue, or 0.
        first_stream_seq: The stream sequence at which the first consumer started, or 0 if unknown.
        expected: The next consumer sequence.
        requested_from: The requested start of the current consumer. Earlier messages are skipped.
        wants: Why a new consumer is needed. While it is set, no message is accepted.
    """

    keeps_policy: bool = False
    last_stream_seq: int = 0
    first_stream_seq: int = 0
    expected: int = 1
    requested_from: int = 0
    wants: Recreate | None = None
    runs: Runs = Runs()  # noqa: RUF009  immutable default
    _run: bytes = b""  # expected prefix of the next message's JSAck
    _before: int = 0  # `last_stream_seq` before the newest message or run
    _last: bytes = b""  # JSAck of the last message that entered the queue

    @property
    def mark(self) -> MessageMark | None:
        """The last message that entered the queue, or None if unknown."""
        if not self._last:
            return None
        seq, _, time_ns, _ = sequences(self._last)
        return MessageMark(seq, time_ns) if seq == self.last_stream_seq else None

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence to resume from. With 0, the start policy decides."""
        return self.last_stream_seq + 1 if self.last_stream_seq else self.first_stream_seq

    def follow(self, frames: list[Frame]) -> int:
        """Check a batch at once for the ordinary case, in which all its frames are the next messages.

        Returns:
            The stream sequence of the last frame, for `took`, or 0 if each frame must be checked with `place`.
        """
        # Check the time and the pending count too, because the receiver couldn't read a message in which they are
        # malformed.
        last = self.runs.last_of_whole_run(frames, self._run, self.expected)
        if not last:
            return 0
        first = sequences(frames[0][1])[0]
        return last if first > self.last_stream_seq and first >= self.requested_from else 0

    def place(self, reply: bytes) -> int:
        """Check one message by its JSAck.

        Returns:
            The stream sequence of the message, for `took`, if it is the next message. 0 if it must be dropped,
            because it was received before or because it reveals a gap, which sets `wants`.

        Raises:
            NotJetStreamMessageError: The JSAck is malformed.
        """
        stream_seq, consumer_seq, _, _ = sequences(reply)
        if consumer_seq != self.expected:
            self.wants = Recreate(f"delivery {consumer_seq} arrived, {self.expected} was expected")
            return 0
        if self.last_stream_seq < self.requested_from:
            if stream_seq < self.requested_from:
                # The consumer starts before the requested sequence. Skip messages that were already received.
                self.expected += 1
                return 0
        elif stream_seq <= self.last_stream_seq:
            self._went_back(stream_seq)
            return 0
        self._run = run_of(reply)
        return stream_seq

    def _went_back(self, stream_seq: int) -> None:
        """Request a new consumer, because the stream sequence went back.

        A consumer delivers in the order of the stream, so one of the two sequences is wrong.
        """
        self.wants = Recreate(f"the stream sequence went back from {self.last_stream_seq} to {stream_seq}")
        if stream_seq > self._before:
            self.last_stream_seq = stream_seq - 1

    def took(self, stream_seq: int, reply: bytes, count: int = 1) -> None:
        """Record that ``count`` messages entered the queue, the last with this stream sequence and JSAck."""
        self.expected += count
        self._last = reply
        self._before = self.last_stream_seq
        self.last_stream_seq = stream_seq

    def delivered_up_to(self, consumer_seq: int) -> None:
        """Compare the last delivery that the server reported in a heartbeat with the last delivery that arrived."""
        if consumer_seq != self.expected - 1:
            self.consumer_lost(f"the server delivered up to {consumer_seq}, {self.expected - 1} arrived")

    def consumer_lost(self, reason: str) -> None:
        """Record that the current consumer can no longer be read, and why."""
        if self.wants is None or self.wants.planned:
            self.wants = Recreate(reason, unconfirmed=True)

    def is_in_place(self, delivered_stream_seq: int) -> bool:
        """Return whether a consumer that has delivered up to this sequence starts at this position, or later."""
        return delivered_stream_seq + 1 >= self.resume_stream_seq

    def recreated(self, delivered_stream_seq: int) -> bool:
        """Switch to a new consumer, which starts after ``delivered_stream_seq``. Return `is_in_place`.

        False means that it starts earlier than requested, because its replica lags. Messages received before are
        skipped. The caller must first check whether the stream was replaced, and call `stream_began_again` in that
        case.
        """
        self.expected, self.wants = 1, None
        resume = self.requested_from = self.resume_stream_seq
        if not resume and not self.keeps_policy:
            self.first_stream_seq = delivered_stream_seq + 1
        return self.is_in_place(delivered_stream_seq)

    def stream_began_again(self, stream: str, consumer: str, stream_seq: int) -> Event:
        """Restart at the start of a stream that was deleted and recreated. Return the event to emit.

        ``stream_seq`` is the last sequence of the new stream.
        """
        event = StreamReset(
            stream=stream, consumer=consumer, last_stream_seq=self.last_stream_seq, stream_seq=stream_seq
        )
        self.last_stream_seq, self.first_stream_seq = 0, 1
        self.wants = Recreate("the stream was recreated")
        return event


Restart: TypeAlias = Literal["read on", "ask again", "read from the start"]
"""What an ordered reader does after it has requested the end of its stream."""


@dataclass(slots=True)
class RestartCheck:
    """Decides whether the stream of an ordered reader was replaced or restored. Times are monotonic seconds.

    A different creation time shows a different stream. The same time with an end before the reader's position has two
    possible causes. Either the stream was restored to an earlier state, or a former leader without the newest
    messages has answered. After a wrong decision the reader would receive all messages twice, so `BackwardCheck`
    distinguishes the two. Meanwhile the reader continues, because a message after its position comes from a leader
    that has all earlier messages.

    Attributes:
        position: The reader's position when the check began.
    """

    position: int
    _back: BackwardCheck = field(default_factory=BackwardCheck)

    def check_end(self, position: int, end: StreamEnd, now: float, *, incarnation: str) -> Restart:
        """Compare the end of the stream with the position of the reader.

        Args:
            position: The current position of the reader.
            incarnation: The creation time of the stream that was read, or "" if unknown.
        """
        if incarnation and end.incarnation != incarnation:
            return "read from the start"
        if position != self.position or end.last_seq >= position:
            return "read on"
        verdict = self._back.check_end(position, end, now)
        return "ask again" if verdict == "ask again" else "read from the start"

    def interrupted(self) -> None:
        """Record that a request failed or the connection was lost."""
        self._back.start_again()


HEARTBEAT = 5.0  # default interval of heartbeats in ADR-17, in seconds
INACTIVE_THRESHOLD = 300.0  # how long a pull consumer outlives its reader, in seconds
# How long a push consumer outlives its reader, in seconds. It is shorter, because no reader returns to a push consumer.
PUSH_INACTIVE_THRESHOLD = 30.0


@dataclass(slots=True)
class OrderedTracker(PushTracker):
    """A `PushTracker` whose queue has neither gaps nor repeats."""

    keeps_policy: InitVar[bool] = False
    cursor: OrderedCursor = field(init=False)
    _renews: bool = False  # true if the consumer of a slow reader is replaced early

    def __post_init__(self, max_pending: int, max_pending_bytes: int, keeps_policy: bool) -> None:
        PushTracker.__post_init__(self, max_pending, max_pending_bytes)
        self.cursor = OrderedCursor(keeps_policy, runs=self.runs)

    def bound(self, max_bytes: int) -> None:
        """Set the capacity in bytes, for a stream that can be read again from any position.

        A slow reader gets a new consumer before the flow control window of the old consumer exceeds the capacity.
        Unlike an overflow, this drops no message. The window of the new consumer starts small.
        """
        if not self.cursor.keeps_policy:
            self._queue.max_bytes = max_bytes
            self._renews = True

    def _may_send_on(self) -> bool:
        # At a flow control request, half of the window is pending, and the answer doubles the window. So the server may
        # soon have four times the pending bytes in flight. If that exceeds the capacity, replace the consumer instead
        # of answering.
        if self._renews and min(4 * self.pending_bytes, FLOW_CONTROL_WINDOW) > self._queue.max_bytes:
            if self.cursor.wants is None:
                self.cursor.wants = Recreate(
                    "the reader is slow, so the server is to send less", unconfirmed=True, planned=True
                )
            return False
        return True

    @property
    def may_recreate(self) -> bool:
        """Whether the queue has capacity for a new consumer. After an overflow, it must first become half empty."""
        return self._queue.is_half_empty

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Process frames of the current consumer that arrived together, in order. Return the commands to carry out."""
        if self.cursor.wants is None:
            return PushTracker.receive(self, frames, now)
        if self.heartbeat is not None:
            self.heartbeat.heard(now)  # the frames are not accepted, but they show that the consumer is alive
        return []

    def tick(self, now: float) -> list[Command]:
        """Handle the deadline. A silent server requires a new consumer."""
        commands = PushTracker.tick(self, now)
        if commands:
            self.cursor.consumer_lost("no message and no heartbeat")
        return commands

    def recreated(self, consumer: str, delivered_stream_seq: int, now: float) -> bool:
        """Switch to a new consumer. See `OrderedCursor.recreated`."""
        self.consumer = consumer
        self.flow: FlowControl = FlowControl()
        if self.heartbeat is not None:
            self.heartbeat.heard(now)
        return self.cursor.recreated(delivered_stream_seq)

    def _data(self, frame: Frame, commands: list[Command]) -> None:
        cursor = self.cursor
        if cursor.wants is not None:
            return
        try:
            stream_seq = cursor.place(frame[1])
        except NotJetStreamMessageError as error:
            self._mark_error(error, commands)
            return
        if not stream_seq:
            return
        if not self._queue.add_frames([frame]):
            self._drop(stream_seq, commands)
            cursor.wants = Recreate("the queue was full", unconfirmed=True)
            return
        self._has_room(commands)
        self.received += 1
        cursor.took(stream_seq, frame[1])

    def _whole_run(self, frames: list[Frame]) -> bool:
        last = self.cursor.follow(frames)
        if not last or not self._queue.add_frames(frames):
            return False
        self._overflow = None
        self.received: int = self.received + len(frames)
        self.cursor.took(last, frames[-1][1], len(frames))
        return True

    def _compare(self, last_stream: int, last_consumer: int, commands: list[Command]) -> None:
        self.cursor.delivered_up_to(last_consumer)


_FORBIDDEN = {
    "name": "the server names the consumers of an ordered reader",
    "durable_name": "an ordered consumer is never durable",
    "deliver_subject": "the library chooses the deliver subject of an ordered consumer",
    "deliver_group": "an ordered consumer cannot have a deliver group",
}


def check_ordered(config: ConsumerConfig, queue: str | None) -> None:
    """Raise an error for options that an ordered consumer cannot have.

    Raises:
        ConfigError: The options include a queue, a durable name, a deliver subject, an ack policy other than none, a
            ``max_deliver`` other than 1, or flow control off.
    """
    if queue is not None:
        raise ConfigError("an ordered subscription cannot be in a queue group: leave queue out")
    for name, why in _FORBIDDEN.items():
        if getattr(config, name) is not None:
            raise ConfigError(f"{why}: leave {name} out")
    if config.ack_policy not in {None, AckPolicy.NONE}:
        raise ConfigError(f"an ordered consumer has ack policy none, not {config.ack_policy}")
    if config.max_deliver not in {None, 1}:
        raise ConfigError(f"an ordered consumer delivers once: max_deliver is 1, not {config.max_deliver}")
    if config.flow_control is False:
        raise ConfigError("an ordered consumer needs flow control")


def ephemeral_config(config: ConsumerConfig, inactive_threshold: float) -> ConsumerConfig:
    """Return the configuration for a consumer of a single reader: without acks, in memory, on one server.

    ``inactive_threshold`` is the number of seconds after its last use until the server removes it.
    """
    return config.replace(
        ack_policy=AckPolicy.NONE,
        mem_storage=True if config.mem_storage is None else config.mem_storage,
        num_replicas=config.num_replicas or 1,
        inactive_threshold=config.inactive_threshold or inactive_threshold,
    )


def ordered_config(config: ConsumerConfig) -> ConsumerConfig:
    """Return the user's configuration, completed for an ordered push consumer. Source: ADR-17."""
    heartbeat = config.idle_heartbeat or HEARTBEAT
    config = config.replace(max_deliver=1, flow_control=True, idle_heartbeat=heartbeat)
    return ephemeral_config(config, PUSH_INACTIVE_THRESHOLD)


_PUSH_ONLY = ("flow_control", "idle_heartbeat", "rate_limit_bps")
_START_OF = {"opt_start_seq": DeliverPolicy.BY_START_SEQUENCE, "opt_start_time": DeliverPolicy.BY_START_TIME}


def ordered_pull_config(config: ConsumerConfig) -> ConsumerConfig:
    """Return the user's configuration, completed for an ordered pull consumer. Source: ADR-17, ADR-37.

    A start sequence or a start time implies its deliver policy.

    Raises:
        ConfigError: See `check_ordered`. Also raised for fields of push consumers or priority groups, a start that
            does not fit its policy, and filters that contradict each other.
        InvalidNameError: A filter is not a valid subject.
    """
    check_ordered(config, None)
    for name in _PUSH_ONLY:
        if getattr(config, name) is not None:
            raise ConfigError(f"{name} is for push consumers: leave it out")
    if config.priority_groups or config.priority_policy:
        raise ConfigError("an ordered consumer has one reader: leave the priority groups out")
    check_filters(config)
    filters = config.filters
    policy = _start_policy(config)
    if policy == DeliverPolicy.LAST_PER_SUBJECT and not filters:
        filters = [">"]  # the server requires a filter
    config = config.replace(
        max_deliver=1,
        deliver_policy=policy,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=filters if len(filters) > 1 else None,
    )
    return ephemeral_config(config, INACTIVE_THRESHOLD)


def _start_policy(config: ConsumerConfig) -> DeliverPolicy | str | None:
    given = [start for start in _START_OF if getattr(config, start) is not None]
    if len(given) > 1:
        raise ConfigError("opt_start_seq and opt_start_time are both given: give one of them")
    policy = config.deliver_policy
    for start, needed in _START_OF.items():
        if start in given and policy not in {None, needed}:
            raise ConfigError(f"{start} goes with the deliver policy {needed}, not {policy}")
        if policy == needed and start not in given:
            raise ConfigError(f"the deliver policy {needed} needs {start}")
    if config.opt_start_seq is not None:
        check_count("opt_start_seq", config.opt_start_seq)
    return _START_OF[given[0]] if given else policy


def restart_config(config: ConsumerConfig, resume_stream_seq: int) -> ConsumerConfig:
    """Return the configuration of the next consumer, which starts at ``resume_stream_seq``. 0 changes nothing."""
    if not resume_stream_seq:
        return config
    return config.replace(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=resume_stream_seq, opt_start_time=None
    )


def create_timeout(failures: int, timeout: float) -> float:
    """Return the seconds to wait for the next consumer: a quarter of the timeout at first, doubled by each failure.

    The answer may be lost with a leader, or the consumer may be placed on an unavailable server. The next attempt
    creates another consumer, perhaps on another server. In the end, a slow server gets the whole timeout.
    """
    return min(timeout, max(timeout / 4, _LEAST_TIMEOUT) * (1 << min(failures, 8)))
