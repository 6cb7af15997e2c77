"""Events, which report conditions that cannot be raised to a caller.

They go to ``on_event`` of the connection and to ``events()`` of the subscription concerned. An event names its
``stream`` and ``consumer``, which are empty if it has none.

Source: ADR-15 (asynchronous error callback), ADR-37.
"""

from __future__ import annotations

from ..errors import JetStreamError, counted
from .connection_events import Disconnected, LameDuck, PermissionDenied, Reconnected, ServersChanged
from .ending_events import AcksUnsent, ConsumerNotKept, DeleteFailed, DurableDeleted
from .event_base import Event, Severity
from .flow_events import FlowControlRefused, FlowControlStalled, SlowConsumer

__all__ = [
    "AcksLost", "AcksUnsent", "AdvisoryRefused", "ClaimsGone", "ClaimsLapsed", "ConsumerDeleted",
    "ConsumerNotKept", "ConsumerRefused", "ConsumerReset", "ConsumerResumed", "ConsumerStalled", "ConsumersNearLimit",
    "DeadLetterFailed", "DeadLettered", "DeleteFailed", "Disconnected", "DurableDeleted", "ErrorRaised", "Event",
    "FlowControlRefused", "FlowControlStalled", "ForeignMessage", "GapDetected", "HandlerFailed", "HandlerSlow",
    "HeartbeatMissed", "HistoryTruncated", "IngestGap", "IngestRefused", "LameDuck", "PartitionsMissing",
    "PermissionDenied", "Pinned", "PublishFailed", "Reconnected", "RecordSkipped", "ServersChanged", "SlowConsumer",
    "StreamReset",
    "Unpinned", "WorkerFailed",
]  # fmt: skip


def _message(subject: str, stream_seq: int, attempt: int) -> str:
    message = f"message {stream_seq}" if stream_seq else "a message"
    return f"{message} on {subject!r}{f', attempt {attempt}' if attempt else ''}"


class HeartbeatMissed(Event, frozen=True, kw_only=True):
    """Neither a message nor a status arrived within the time allowed (3 × the idle heartbeat by default).

    ``silent_for`` is in seconds. The subscription continues, and the event is repeated while the silence lasts.
    """

    _text = "no message and no heartbeat for {silent_for:g} s"

    silent_for: float


class GapDetected(Event, frozen=True, kw_only=True):
    """Deliveries are missing, because the consumer sequence has jumped.

    ``last_consumer_seq`` and ``last_stream_seq`` come before the gap. ``consumer_seq`` and ``stream_seq`` come after
    it, from a message or a heartbeat. ``missed`` is the number of missing deliveries.
    """

    last_consumer_seq: int
    consumer_seq: int
    last_stream_seq: int
    stream_seq: int
    missed: int

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence of the first missing message. If it is unknown, the sequence after the last message."""
        return self.last_stream_seq + 1

    def _says(self) -> str:
        missing = counted(self.missed, "delivery is missing", "deliveries are missing")
        return f"{missing} after stream sequence {self.last_stream_seq}"


class HistoryTruncated(Event, frozen=True, kw_only=True):
    """Records between the sequences ``after`` and ``before`` were removed before they were read, and are skipped."""

    about = "topic"
    _text = "records between {after} and {before} were removed before they were read, and are skipped"

    after: int
    before: int


class PartitionsMissing(Event, frozen=True, kw_only=True):
    """A subscriber of epochs waits for a topic, or for some of its ``partitions``, which are empty while unknown.

    ``waited`` is in seconds. The event is reported after 5 s, and whenever that time has doubled. ``reason`` says
    why. ``may_fail`` is true while the subscriber is being opened, because other options would then raise an error
    instead.
    """

    about = "topic"

    topic: str
    waited: float
    reason: str
    partitions: tuple[int, ...] = ()
    may_fail: bool = True

    def _says(self) -> str:
        hint = "; opening with wait=False or timeout= raises an error instead" if self.may_fail else ""
        which = f"partitions {[*self.partitions]} of topic" if self.partitions else "topic"
        return f"a subscriber has waited {self.waited:.0f} s for {which} {self.topic!r}: {self.reason}{hint}"


class ConsumerReset(Event, frozen=True, kw_only=True):
    """The consumer was recreated, or its sequence restarted. ``reason`` says why.

    Reading resumes at ``resume_stream_seq``. If that is 0, the start policy decides. ``planned`` means that no
    message was lost.
    """

    reason: str
    resume_stream_seq: int = 0
    planned: bool = False

    @property
    def severity(self) -> Severity:
        """The severity: "info" if the reset was planned, otherwise "warning"."""
        return "info" if self.planned else "warning"

    def _says(self) -> str:
        where = f"; reading resumes at {self.resume_stream_seq}" if self.resume_stream_seq else ""
        return f"the consumer was recreated: {self.reason}{where}"


class ConsumerDeleted(Event, frozen=True, kw_only=True):
    """The consumer no longer exists, and this subscription did not delete it."""

    _text = "the consumer was deleted, not by this subscription"


class ConsumerStalled(Event, frozen=True, kw_only=True):
    """The program waits for messages and none arrived for a while, although there should be some.

    The event is reported once for each ``reason``, and `ConsumerResumed` follows when the reason no longer applies.
    ``consumer`` is empty for a reader of a topic. ``reason`` is ``paused``, ``max_ack_pending``, ``pinned``,
    ``no_interest``, ``handler``, ``filter``, ``mirror``, ``consumer_limit``, ``no_leader``, ``no_answer``,
    ``no_consumer``, ``deleted``, ``stream_deleted``, ``unexplained``, or ``could_not_look`` if this user may not
    request the state. ``evidence`` describes what was observed, ``fix`` what to do, and ``stood_for`` for how many
    seconds nothing arrived. The reason ``handler`` of ``run`` is reported once for each attempt, even while other
    handlers continue.
    """

    _text = "nothing came for {stood_for:.0f} s: {evidence}. What to do: {fix}"

    reason: str
    evidence: str
    fix: str
    stood_for: float = 0.0

    @property
    def severity(self) -> Severity:
        """The severity: "info" if the user may not request the state, so perhaps all is well, otherwise "warning"."""
        return "info" if self.reason == "could_not_look" else "warning"

    def _says(self) -> str:
        if self.reason == "handler":  # other handlers may continue
            return f"{self.evidence}. What to do: {self.fix}"
        return super()._says()


class ConsumerResumed(Event, frozen=True, kw_only=True):
    """A message arrived after `ConsumerStalled`, or its ``reason`` no longer applies, after ``stood_for`` seconds."""

    _text = "the reason {reason!r} for which nothing came is gone, after {stood_for:.0f} s"
    _severity = "info"

    reason: str
    stood_for: float = 0.0


class StreamReset(Event, frozen=True, kw_only=True):
    """The stream was recreated or restored. It was read up to ``last_stream_seq`` and now ends at ``stream_seq``."""

    _text = "the stream was recreated or restored: read up to {last_stream_seq}, it ends at {stream_seq}, is read again"

    last_stream_seq: int
    stream_seq: int


class Pinned(Event, frozen=True, kw_only=True):
    """The server pinned this client, which alone receives a priority group's messages (policy ``pinned_client``).

    Other clients may still process earlier messages. ``pin_id`` identifies this pin.
    """

    _text = "this client is pinned for group {group!r}"
    _severity = "info"

    group: str
    pin_id: str


class Unpinned(Event, frozen=True, kw_only=True):
    """This client is no longer pinned for a priority group, and waits to be pinned again.

    It sent no request for ``priority_timeout``, or `Consumer.unpin` was called, or the server restarted. Messages in
    its buffer can still be handled and acked. ``pin_id`` identifies the pin that ended.
    """

    _text = "this client is no longer pinned for group {group!r}"

    group: str
    pin_id: str


class ForeignMessage(Event, frozen=True, kw_only=True):
    """A message on the deliver or pull inbox that is neither data nor a status was dropped.

    ``count`` is the number of such messages so far. The event is reported for the first and whenever it has doubled.
    """

    subject: str
    count: int

    def _says(self) -> str:
        if self.count == 1:
            return f"a message on {self.subject!r} that is neither data nor a status was dropped"
        text = f"{self.count} messages that are neither data nor a status were dropped"
        return f"{text}, the last one on {self.subject!r}"


class RecordSkipped(Event, frozen=True, kw_only=True):
    """A reader skipped a record, because its payload cannot be decoded or the record does not belong to the topic.

    ``count`` is the number of skipped records so far. The event is reported for the first and whenever the number has
    doubled.
    """

    about = "topic"
    _text = "record {stream_seq} on {subject!r} cannot be read and is skipped, {count} so far: {error}"

    subject: str
    stream_seq: int
    count: int
    error: JetStreamError


class ErrorRaised(Event, frozen=True, kw_only=True):
    """An error that has no caller, for example a 409, 503 or unknown status on a callback subscription.

    A push subscription reports an unknown status 100 once, and counts it as a heartbeat.
    """

    about = "connection"
    _text = "{error}"

    error: JetStreamError


class ConsumerRefused(ErrorRaised, frozen=True, kw_only=True):
    """A reader needs a new consumer, but the limit of consumers is reached. See `ConsumerLimitError`.

    ``error`` names the limit, if it is known, and says what to do. ``meanwhile`` says how the reader continues
    without a consumer. A reader that follows the stream tries again until the server creates the consumer, and
    reports the event once.
    """

    about = "consumer"
    _text = "{error}. Meanwhile {meanwhile}"

    meanwhile: str


class ConsumersNearLimit(Event, frozen=True, kw_only=True):
    """A bucket was created or verified whose stream has almost as many consumers as it may have.

    ``limit`` is the ``max_consumers`` of the stream, or else the default of nats-server 2.15. Each watch with other
    filters needs a consumer, each cache, and each object that is read.
    """

    about = "stream"
    _text = (
        "the stream has {consumers} consumers, and may have {limit}: delete consumers that nobody uses, or raise the "
        "limit"
    )

    consumers: int
    limit: int


class WorkerFailed(ErrorRaised, frozen=True, kw_only=True):
    """A worker ended with an error or could not start, and no caller awaits it."""

    about = "worker"
    _text = "the worker ended: {error}"
    _severity = "error"


class HandlerFailed(Event, frozen=True, kw_only=True):
    """A user's callback or handler raised an exception. The message was not acked.

    The server redelivers a callback's message after ``ack_wait``. A worker retries after ``retry_in`` seconds, which is
    None if this was the last attempt (see `DeadLettered`) or the handler had settled the message itself. ``attempt``
    counts from 1, see `Message.attempt`.
    """

    about = "worker"

    error: BaseException
    subject: str = ""
    stream_seq: int = 0
    attempt: int = 0
    retry_in: float | None = None

    def _says(self) -> str:
        then = "" if self.retry_in is None else f"; retry in {self.retry_in:g} s"
        return f"the handler failed {_message(self.subject, self.stream_seq, self.attempt)}: {self.error!r}{then}"


class HandlerSlow(Event, frozen=True, kw_only=True):
    """The event loop was blocked while handlers ran, so no message, ack, heartbeat or keep-alive was processed.

    Usually a handler computes, or calls a function that blocks. Call it in a thread (``asyncio.to_thread``), or make
    the handler a plain function. ``blocked`` is in seconds. Blocks of a second and longer count, and the event is
    reported whenever their ``count`` has doubled. ``subject`` and ``stream_seq`` identify the message that was
    handled. They are empty and 0 if several messages are possible.
    """

    about = "worker"

    blocked: float
    count: int = 1
    subject: str = ""
    stream_seq: int = 0

    def _says(self) -> str:
        of = f"the handler of {_message(self.subject, self.stream_seq, 0)}" if self.subject else "a handler"
        times = f" (block number {self.count})" if self.count > 1 else ""
        return f"{of} blocked the event loop for about {self.blocked:.1f} s{times}: move the work to a thread"


class DeadLettered(Event, frozen=True, kw_only=True):
    """A worker dead-lettered a message, which will not be delivered again. ``error`` says why.

    ``dead_letter`` is the subject of the stored copy. It is empty if the worker has no dead letter subject. The message
    then remains only in its stream, as long as the stream's limits allow.
    """

    about = "worker"
    _severity = "error"

    error: BaseException
    subject: str = ""
    stream_seq: int = 0
    attempt: int = 0
    dead_letter: str = ""

    def _says(self) -> str:
        message = f"{_message(self.subject, self.stream_seq, self.attempt)}: {self.error!r}"
        if self.dead_letter:
            return f"dead-lettered to {self.dead_letter!r} {message}"
        return f"terminated {message}; it will not be delivered again, and dead_letter= would store a copy"


class DeadLetterFailed(Event, frozen=True, kw_only=True):
    """The dead letter of a message could not be stored because of ``error``. The worker retries."""

    about = "worker"
    _text = "message {stream_seq} on {subject!r} could not be stored as dead letter {dead_letter!r}, retrying: {error}"
    _severity = "error"

    error: JetStreamError
    subject: str = ""
    stream_seq: int = 0
    dead_letter: str = ""


class AdvisoryRefused(Event, frozen=True, kw_only=True):
    """An advisory that a message ran out of deliveries was ignored, so no dead letter was written because of it.

    ``reason`` says why. The advisory contradicts the consumer's state, or this worker acked the message or already
    knows of it. A client forged or repeated the advisory. ``stream_seq`` is 0 if it is malformed. ``count`` is the
    number of such advisories so far. The event is reported for the first and whenever the number has doubled.
    """

    about = "worker"
    _text = "the advisory that message {stream_seq} ran out of deliveries is refused ({count}): {reason}"

    reason: str
    stream_seq: int = 0
    count: int = 1


class AcksLost(Event, frozen=True, kw_only=True):
    """Acks were written to a connection that failed before the server confirmed them.

    ``count`` is the number of acks, naks and terms. ``resent`` of them, never a nak, were sent again after the
    reconnect. The server redelivers the other messages after ``ack_wait``.
    """

    about = "connection"
    count: int
    resent: int

    def _says(self) -> str:
        again = counted(self.resent, "of them was sent again", "of them were sent again")
        return f"{counted(self.count, 'ack')} may have been lost with the connection, {again}"

    @property
    def severity(self) -> Severity:
        """The severity: "info" if all acks were sent again, otherwise "warning"."""
        return "info" if self.resent == self.count else "warning"


class ClaimsLapsed(Event, frozen=True, kw_only=True):
    """Claims of a Spark query were not extended within ``ack_wait``, so others may have received the messages too.

    Up to ``count`` messages, according to the consumer's state, are processed twice. ``reason`` says what happened.
    """

    about = "spark"
    count: int
    reason: str

    def _says(self) -> str:
        twice = counted(self.count, "message is processed twice", "messages are processed twice")
        return f"claims lapsed: up to {twice}: {self.reason}"


class ClaimsGone(Event, frozen=True, kw_only=True):
    """Messages that a Spark query had claimed were removed from the stream before they were read.

    ``count`` messages between ``first_stream_seq`` and ``last_stream_seq`` were deleted, purged or expired, or, in a
    work queue, acked by another client. ``lapsed`` says whether the latter is possible.
    """

    about = "spark"
    count: int
    first_stream_seq: int
    last_stream_seq: int
    lapsed: bool = False

    def _says(self) -> str:
        removed = counted(
            self.count,
            f"claimed message, {self.first_stream_seq}, was removed before it was read",
            f"claimed messages from {self.first_stream_seq} to {self.last_stream_seq} "
            "were removed before they were read",
        )
        return f"{removed}, or acked by another client after the claims lapsed" if self.lapsed else removed


class PublishFailed(Event, frozen=True, kw_only=True):
    """A publish failed and no caller awaits it.

    ``count`` publishes failed at this time in the same way. ``subject`` and ``error`` belong to the first.
    """

    about = "publisher"
    _severity = "error"

    subject: str
    error: BaseException
    count: int = 1

    def _says(self) -> str:
        if self.count == 1:
            return f"a publish on {self.subject!r} failed: {self.error}"
        return f"{self.count:,} publishes failed, the first one on {self.subject!r}: {self.error}"


class IngestGap(Event, frozen=True, kw_only=True):
    """The messages ``first`` to ``last`` of the fast ingest ``ingest``, which allows gaps, did not reach the stream."""

    about = "publisher"
    _text = "messages {first} to {last} of ingest {ingest!r} did not reach the stream"

    ingest: str
    first: int
    last: int


class IngestRefused(Event, frozen=True, kw_only=True):
    """The stream refused message ``number`` of the fast ingest ``ingest``, which allows gaps."""

    about = "publisher"
    _text = "message {number} of ingest {ingest!r} was refused: {error}"
    _severity = "error"

    ingest: str
    number: int
    error: JetStreamError
