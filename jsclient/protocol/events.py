"""Events, which report conditions that cannot be raised to a caller. Source: ADR-15, ADR-37."""

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
    "StreamReset", "Unpinned", "WorkerFailed",
]  # fmt: skip


def _message(subject: str, stream_seq: int, attempt: int) -> str:
    message = f"message {stream_seq}" if stream_seq else "a message"
    return f"{message} on {subject!r}{f', attempt {attempt}' if attempt else ''}"


class HeartbeatMissed(Event, frozen=True, kw_only=True):
    """No message or heartbeat arrived within the allowed time (by default, three times the idle heartbeat interval).

    The subscription stays open, and the event is emitted again as long as nothing arrives. ``silent_for`` is the time
    since the last message or heartbeat, in seconds. The server may be down, or the consumer may have been deleted.
    """

    _text = "no message and no heartbeat for {silent_for:g} s"

    silent_for: float


class GapDetected(Event, frozen=True, kw_only=True):
    """The consumer sequence has a gap, so some deliveries didn't arrive. The server may redeliver the messages.

    ``last_consumer_seq`` and ``last_stream_seq`` precede the gap. ``consumer_seq`` and ``stream_seq``, from a message
    or a heartbeat, follow the gap. ``missed`` is the number of missing deliveries.
    """

    last_consumer_seq: int
    consumer_seq: int
    last_stream_seq: int
    stream_seq: int
    missed: int

    @property
    def resume_stream_seq(self) -> int:
        """Stream sequence at which to resume reading, directly after the last message before the gap."""
        return self.last_stream_seq + 1

    def _says(self) -> str:
        missing = counted(self.missed, "delivery is missing", "deliveries are missing")
        return f"{missing} after stream sequence {self.last_stream_seq}"


class HistoryTruncated(Event, frozen=True, kw_only=True):
    """The reader skipped records after stream sequence ``after`` and before ``before``, because they were removed."""

    about = "topic"
    _text = "records between {after} and {before} were removed before they were read, and are skipped"

    after: int
    before: int


class PartitionsMissing(Event, frozen=True, kw_only=True):
    """An epoch subscriber is waiting for a topic, or for some of its partitions, to appear.

    Emitted after a wait of 5 s, and again each time the wait has doubled. ``waited`` is the length of the wait so far,
    in seconds, and ``reason`` explains it. ``partitions`` lists the missing partitions, or is empty if unknown. While
    the subscriber is being opened, ``may_fail`` is True. Open it with ``wait=False`` or a ``timeout`` to get an error.
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
    """The consumer was recreated, or its sequence restarted. ``reason`` explains why.

    Reading resumes at the stream sequence ``resume_stream_seq``. If ``resume_stream_seq`` is 0, reading restarts
    according to the deliver policy. ``planned`` is True if the reset was intended and no message was lost.
    """

    reason: str
    resume_stream_seq: int = 0
    planned: bool = False

    @property
    def severity(self) -> Severity:
        """The severity to log this event with: "info" if the reset was planned, otherwise "warning"."""
        return "info" if self.planned else "warning"

    def _says(self) -> str:
        where = f"; reading resumes at {self.resume_stream_seq}" if self.resume_stream_seq else ""
        return f"the consumer was recreated: {self.reason}{where}"


class ConsumerDeleted(Event, frozen=True, kw_only=True):
    """The consumer no longer exists, although this subscription didn't delete it. No more messages will arrive."""

    _text = "the consumer was deleted, not by this subscription"


class ConsumerStalled(Event, frozen=True, kw_only=True):
    """The application is waiting for messages that should have arrived by now.

    ``evidence`` describes what was observed, ``fix`` suggests what to do, and ``stood_for`` is the number of seconds
    without a message. ``reason`` is a code that programs can test: ``paused``, ``max_ack_pending``, ``pinned``,
    ``no_interest``, ``handler``, ``filter``, ``mirror``, ``consumer_limit``, ``no_leader``, ``no_answer``,
    ``no_consumer``, ``deleted``, ``stream_deleted``, ``unexplained``, or ``could_not_look`` if the user isn't allowed
    to request the state.

    The event is emitted once per ``reason``, and `ConsumerResumed` follows when the reason no longer applies. In a
    worker, the reason ``handler`` is reported once per attempt, even if other handlers make progress.
    """

    _text = "nothing came for {stood_for:.0f} s: {evidence}. What to do: {fix}"

    reason: str
    evidence: str
    fix: str
    stood_for: float = 0.0

    @property
    def severity(self) -> Severity:
        """The severity to log this event with: "info" if the cause couldn't be looked up, otherwise "warning"."""
        return "info" if self.reason == "could_not_look" else "warning"

    def _says(self) -> str:
        if self.reason == "handler":  # other handlers may go on, so don't say that nothing came
            return f"{self.evidence}. What to do: {self.fix}"
        return super()._says()


class ConsumerResumed(Event, frozen=True, kw_only=True):
    """A consumer that `ConsumerStalled` reported works again: a message arrived, or the reason no longer applies.

    ``reason`` is the reason given by `ConsumerStalled`. ``stood_for`` is how long the consumer was stalled, in seconds.
    """

    _text = "the reason {reason!r} for which nothing came is gone, after {stood_for:.0f} s"
    _severity = "info"

    reason: str
    stood_for: float = 0.0


class StreamReset(Event, frozen=True, kw_only=True):
    """The stream was recreated or restored, so the reader starts again from the first message of the stream.

    The reader may return messages that it has returned before. A reader of the latest record continues with the latest
    one. The reader had read up to ``last_stream_seq``, but the stream now ends at ``stream_seq``.
    """

    _text = "the stream was recreated or restored: read up to {last_stream_seq}, it ends at {stream_seq}, is read again"

    last_stream_seq: int
    stream_seq: int


class Pinned(Event, frozen=True, kw_only=True):
    """The server has pinned this client, so only this client receives the messages of a priority group.

    Other clients may still be processing earlier messages. ``group`` is the name of the group, and ``pin_id``
    identifies this pin.
    """

    _text = "this client is pinned for group {group!r}"
    _severity = "info"

    group: str
    pin_id: str


class Unpinned(Event, frozen=True, kw_only=True):
    """This client is no longer pinned for a priority group, and is waiting to be pinned again.

    A pin ends when the client hasn't sent a request for ``priority_timeout`` seconds, when `Consumer.unpin` is called,
    or when the server restarts. Messages in the client's buffer can still be handled and acknowledged. ``group`` is the
    name of the priority group, and ``pin_id`` identifies the pin that has ended.
    """

    _text = "this client is no longer pinned for group {group!r}"

    group: str
    pin_id: str


class ForeignMessage(Event, frozen=True, kw_only=True):
    """A message that is neither a delivery nor a status was dropped. A client has probably sent it to ``subject``.

    ``count`` is the number of such messages so far. The event is emitted when ``count`` is 1, 2, 4, 8 and so on.
    """

    subject: str
    count: int

    def _says(self) -> str:
        if self.count == 1:
            return f"a message on {self.subject!r} that is neither data nor a status was dropped"
        text = f"{self.count} messages that are neither data nor a status were dropped"
        return f"{text}, the last one on {self.subject!r}"


class RecordSkipped(Event, frozen=True, kw_only=True):
    """A reader skipped a record that can't be decoded or doesn't belong to the topic.

    ``subject`` and ``stream_seq`` identify the record, and ``error`` is the reason. ``count`` is the number of records
    that this reader or handle has skipped. Most readers emit the event only when ``count`` is 1, 2, 4, 8 and so on.
    """

    about = "topic"
    _text = "record {stream_seq} on {subject!r} cannot be read and is skipped, {count} so far: {error}"

    subject: str
    stream_seq: int
    count: int
    error: JetStreamError


class ErrorRaised(Event, frozen=True, kw_only=True):
    """An error occurred that can't be raised to a caller. ``error`` is the exception.

    For example, a subscription with a callback received a 409, 503 or unknown status. A push subscription treats an
    unknown status 100 as a heartbeat, and reports it once.
    """

    about = "connection"
    _text = "{error}"

    error: JetStreamError


class ConsumerRefused(ErrorRaised, frozen=True, kw_only=True):
    """A reader couldn't create a consumer, because the limit of consumers has been reached.

    ``error`` is usually a `ConsumerLimitError`. It names the limit, if that is known, and suggests what to do.
    ``meanwhile`` describes how the reader continues without a consumer. A reader that follows the stream keeps trying
    until the server creates the consumer, and emits the event once.
    """

    about = "consumer"
    _text = "{error}. Meanwhile {meanwhile}"

    meanwhile: str


class ConsumersNearLimit(Event, frozen=True, kw_only=True):
    """The stream of a bucket has at least 90 % of the consumers that the server allows.

    Only ``create_key_value``, ``ensure_key_value`` and ``ensure_object_store`` check this. Each cache, each object
    being read and each watch with different filters needs a consumer. Delete unused consumers, or raise the limit.
    ``limit`` is the stream's ``max_consumers`` or, if that isn't set, 1,000, the default of nats-server 2.15.
    """

    about = "stream"
    _text = (
        "the stream has {consumers} consumers, and may have {limit}: delete consumers that nobody uses, or raise the "
        "limit"
    )

    consumers: int
    limit: int


class WorkerFailed(ErrorRaised, frozen=True, kw_only=True):
    """A worker ended with an error or couldn't start, and no caller is waiting for it. ``error`` is the reason."""

    about = "worker"
    _text = "the worker ended: {error}"
    _severity = "error"


class HandlerFailed(Event, frozen=True, kw_only=True):
    """A callback or handler raised the exception ``error``, so its message wasn't acknowledged.

    If a worker's handler failed, the message is retried after ``retry_in`` seconds, or not at all if ``retry_in`` is
    None, because this was the last attempt (see `DeadLettered`) or the handler had settled the message. For callbacks,
    ``retry_in`` is None. If the message needs an ack, the server redelivers it after ``ack_wait``. Otherwise, it isn't
    handled again. ``attempt`` starts at 1 (see `Message.attempt`). ``attempt`` and ``stream_seq`` are 0 if unknown.
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
    """A handler blocked the event loop, so messages, acknowledgements and heartbeats couldn't be processed.

    Typical causes are long computations and calls to blocking functions. Run them with ``asyncio.to_thread``, or make
    the handler a plain function, which runs in a thread. ``blocked`` is the duration in seconds. ``count`` says how
    often handlers of this worker or subscription have blocked the loop for at least a second. The event is emitted when
    ``count`` is 1, 2, 4, 8 and so on. ``subject`` and ``stream_seq`` identify the message, or are "" and 0 if unknown.
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
    """A worker gave up on a message because of ``error``. The message won't be redelivered.

    ``dead_letter`` is the subject to which the worker published a copy of the message, or "" if the worker has no
    dead-letter subject. Without a copy, the message is lost once its stream removes it. ``attempt`` is the number of
    the last attempt or delivery.
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
    """A worker couldn't store the dead letter of a message. ``error`` is the cause.

    The worker tries again, unless it has stopped or too many messages are already waiting. ``subject`` is the subject
    of the message, or "" if it isn't known. ``stream_seq`` is the message's stream sequence. ``dead_letter`` is the
    argument ``dead_letter`` of the worker.
    """

    about = "worker"
    _text = "message {stream_seq} on {subject!r} could not be stored as dead letter {dead_letter!r}, retrying: {error}"
    _severity = "error"

    error: JetStreamError
    subject: str = ""
    stream_seq: int = 0
    dead_letter: str = ""


class AdvisoryRefused(Event, frozen=True, kw_only=True):
    """A worker ignored an advisory that a message has reached its maximum number of deliveries.

    No dead letter was stored, because a client has forged or repeated the advisory. ``reason`` gives details: the
    advisory contradicts the state of the consumer, or the worker has already acknowledged the message or received the
    advisory. ``stream_seq`` is 0 if the advisory is malformed. ``count`` is the number of advisories that this worker
    has ignored. The event is emitted when ``count`` is 1, 2, 4, 8 and so on.
    """

    about = "worker"
    _text = "the advisory that message {stream_seq} ran out of deliveries is refused ({count}): {reason}"

    reason: str
    stream_seq: int = 0
    count: int = 1


class AcksLost(Event, frozen=True, kw_only=True):
    """The connection was lost before the server confirmed some of the acknowledgements.

    ``count`` is the number of unconfirmed acks, naks and terms. After the reconnect, the client sent ``resent`` acks
    and terms again, but no naks. The server redelivers the other messages after ``ack_wait``.
    """

    about = "connection"
    count: int
    resent: int

    def _says(self) -> str:
        again = counted(self.resent, "of them was sent again", "of them were sent again")
        return f"{counted(self.count, 'ack')} may have been lost with the connection, {again}"

    @property
    def severity(self) -> Severity:
        """The severity to log this event with: "info" if all acks were sent again, otherwise "warning"."""
        return "info" if self.resent == self.count else "warning"


class ClaimsLapsed(Event, frozen=True, kw_only=True):
    """A Spark query didn't renew its claims on messages within ``ack_wait``, so the server may have redelivered them.

    Judging by the consumer's state, up to ``count`` messages may be processed twice. ``reason`` says what happened.
    """

    about = "spark"
    count: int
    reason: str

    def _says(self) -> str:
        twice = counted(self.count, "message is processed twice", "messages are processed twice")
        return f"claims lapsed: up to {twice}: {self.reason}"


class ClaimsGone(Event, frozen=True, kw_only=True):
    """Messages that a Spark query had claimed were removed from the stream before they were read.

    ``count`` messages between ``first_stream_seq`` and ``last_stream_seq``, inclusive, were deleted, were purged or
    expired. If ``lapsed`` is True, a different client may have acknowledged the messages in a work queue after the
    claims had lapsed.
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
    """A message couldn't be published, and no caller is waiting for the result.

    A `Publisher` emits the event if the error hasn't been retrieved from the future of the message within 10 s, or when
    the publisher is closed. ``count`` messages failed for the same reason, the first one on ``subject`` with ``error``.
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
    """Some messages of a fast ingest with ``gap="ok"`` didn't reach the stream. Send them again, or they are lost.

    ``ingest`` is the ID of the ingest. The messages from number ``first`` to number ``last`` of the ingest are missing.
    """

    about = "publisher"
    _text = "messages {first} to {last} of ingest {ingest!r} did not reach the stream"

    ingest: str
    first: int
    last: int


class IngestRefused(Event, frozen=True, kw_only=True):
    """The stream rejected a message of a fast ingest with ``gap="ok"``. The other messages are stored.

    ``ingest`` is the ID of the ingest, ``number`` is the number of the message, and ``error`` is the reason.
    """

    about = "publisher"
    _text = "message {number} of ingest {ingest!r} was refused: {error}"
    _severity = "error"

    ingest: str
    number: int
    error: JetStreamError
