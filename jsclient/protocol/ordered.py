"""The ordered reader: every message once, in order, whatever happens to its consumer.

It reads through a throw-away consumer without acks and checks that the consumer sequence runs 1, 2, 3 …. On a jump, on
silence, on a reconnect and when its own queue was full, it makes a new consumer that starts behind the last message
that *entered the queue*. So nothing is skipped that the user did not get, and nothing comes twice.
Source: ADR-17, ADR-15 §Ordered Consumers.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..errors import ConfigError, NotJetStreamMessageError
from .ack import run_of, runs_on, sequences
from .events import Event, StreamReset
from .flow_control import FlowControl
from .frames import Frame
from .models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from .push import Command, PushTracker

__all__ = ["OrderedTracker", "Recreate", "check_ordered", "ordered_config", "restart_config"]

HEARTBEAT = 5.0  # seconds, the default of ADR-17
INACTIVE_THRESHOLD = 300.0  # seconds a consumer outlives its reader


class Recreate(msgspec.Struct, frozen=True):
    """Make a new consumer; ``reason`` is for the user.

    ``doubtful``: the old one fell silent, so the stream itself may be gone, or be another one under the same name: the
    server gives a consumer that starts behind the end of that one without a word.
    """

    reason: str
    doubtful: bool = False


@dataclass(slots=True)
class OrderedTracker(PushTracker):
    """A `PushTracker` that never lets a hole or a repeat into its queue."""

    keeps_policy: bool = False  # before the first message only the start policy itself can be repeated
    last_stream_seq: int = 0  # of the last message that entered the queue
    first_stream_seq: int = 0  # where the first consumer began to read; 0: not known
    expected: int = 1  # the consumer sequence to come
    wants: Recreate | None = None  # while set, nothing is taken in
    asked_from: int = 0  # where the present consumer was to start: what lies before it is skipped

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence to read on from; 0: the start policy decides."""
        return self.last_stream_seq + 1 if self.last_stream_seq else self.first_stream_seq

    @property
    def may_recreate(self) -> bool:
        """Whether there is room again: after an overflow the queue is emptied by half first."""
        return self._queue.is_half_empty

    def receive(self, frames: list[Frame], now: float) -> list[Command]:
        """Frames of the present consumer arrived together, in order."""
        if self.wants is None:
            return PushTracker.receive(self, frames, now)
        if self.heartbeat is not None:
            self.heartbeat.heard(now)  # not taken in, but it was not silent either
        return []

    def tick(self, now: float) -> list[Command]:
        """The deadline was reached: silence asks for a new consumer."""
        commands = PushTracker.tick(self, now)
        if commands:
            self.lost("no message and no heartbeat")
        return commands

    def lost(self, reason: str) -> None:
        """The present consumer cannot be read from any more."""
        if self.wants is None:
            self.wants = Recreate(reason, doubtful=True)

    def recreated(self, consumer: str, delivered_stream_seq: int, now: float) -> bool:
        """A new consumer reads on from behind ``delivered_stream_seq``; returns `is_in_place`.

        False: it starts earlier than asked, because its replica lags: what we have had is skipped. Whether the stream
        is another one under the same name is to be found out before, and said with `stream_began_again`.
        """
        self.consumer = consumer
        self.expected, self.wants = 1, None
        self.flow = FlowControl()
        if self.heartbeat is not None:
            self.heartbeat.heard(now)
        resume = self.asked_from = self.resume_stream_seq
        if not resume and not self.keeps_policy:
            self.first_stream_seq = delivered_stream_seq + 1
        return self.is_in_place(delivered_stream_seq)

    def is_in_place(self, delivered_stream_seq: int) -> bool:
        """Whether a consumer that reads on from behind ``delivered_stream_seq`` starts where we stand, or later."""
        return delivered_stream_seq + 1 >= self.resume_stream_seq

    def stream_began_again(self, stream_seq: int) -> Event:
        """The stream was deleted and made again: read the new one from its start. What to tell the user."""
        event = StreamReset(
            stream=self.stream,
            consumer=self.consumer,
            last_stream_seq=self.last_stream_seq,
            stream_seq=stream_seq,
        )
        self.last_stream_seq, self.first_stream_seq = 0, 1
        self.wants = Recreate("the stream began again")
        return event

    def _data(self, frame: Frame, commands: list[Command]) -> None:
        if self.wants is not None:
            return
        try:
            stream_seq, consumer_seq = sequences(frame[1])
        except NotJetStreamMessageError as error:
            self._fail(error, commands)
            return
        if consumer_seq != self.expected:
            self.wants = Recreate(f"delivery {consumer_seq} came where {self.expected} was expected")
            return
        if stream_seq <= self.last_stream_seq or stream_seq < self.asked_from:
            self.expected += 1
            return
        if not self._queue.add([frame]):
            self._drop(stream_seq, commands)
            self.wants = Recreate("the queue was full")
            return
        self._run = run_of(frame[1])
        self._overflow = None
        self.expected += 1
        self.received += 1
        self.last_stream_seq = stream_seq

    def _whole_run(self, frames: list[Frame]) -> bool:
        if not runs_on(frames, self._run, self.expected):
            return False
        first, last = sequences(frames[0][1])[0], sequences(frames[-1][1])[0]
        if first <= self.last_stream_seq or first < self.asked_from or not self._queue.add(frames):
            return False
        self._overflow = None
        self.expected += len(frames)
        self.received += len(frames)
        self.last_stream_seq = last
        return True

    def _compare(self, last_stream: int, last_consumer: int, commands: list[Command]) -> None:
        if last_consumer != self.expected - 1:
            self.lost(f"the server delivered up to {last_consumer}, {self.expected - 1} arrived")


_FORBIDDEN = {
    "name": "the server names the consumers of an ordered reader",
    "durable_name": "an ordered consumer is never durable",
    "deliver_subject": "the library chooses the deliver subject of an ordered consumer",
    "deliver_group": "an ordered consumer cannot have a deliver group",
}


def check_ordered(config: ConsumerConfig, queue: str | None) -> None:
    """Refuse what an ordered consumer cannot have.

    Raises:
        ConfigError: Queue, durable, deliver subject, an ack policy other than none, ``max_deliver`` other than 1,
            flow control off.
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


def ordered_config(config: ConsumerConfig) -> ConsumerConfig:
    """What the user gave, made that of an ordered push consumer. Source: ADR-17."""
    return config.replace(
        ack_policy=AckPolicy.NONE,
        max_deliver=1,
        flow_control=True,
        idle_heartbeat=config.idle_heartbeat or HEARTBEAT,
        mem_storage=True if config.mem_storage is None else config.mem_storage,
        num_replicas=config.num_replicas or 1,
        inactive_threshold=config.inactive_threshold or INACTIVE_THRESHOLD,
    )


def restart_config(config: ConsumerConfig, resume_stream_seq: int) -> ConsumerConfig:
    """The configuration of the next consumer: as before, but starting at ``resume_stream_seq`` (0: as before)."""
    if not resume_stream_seq:
        return config
    return config.replace(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=resume_stream_seq,
        opt_start_time=None,
    )
