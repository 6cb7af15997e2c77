"""Every exception that jsclient raises.

::

    JetStreamError
    ├─ ApiError(code, err_code, description)     the server answered "error"; the class follows err_code
    │   ├─ StreamNotFoundError · ConsumerNotFoundError · MessageNotFoundError
    │   ├─ StreamExistsError · ConsumerExistsError
    │   ├─ BatchNotEnabledError · BatchIncompleteError · BatchTooLargeError · BatchHeaderError
    │   │  · BatchDuplicateError · TooManyBatchesError
    │   └─ WrongLastSequenceError
    ├─ ConfigError (ValueError)                  what the caller gave cannot work; nothing was sent
    │   └─ InvalidNameError                      a name, subject or header that may not go on the wire
    ├─ NoMatchingStreamError                     no stream, or more than one, holds the subject
    ├─ BindError                                 the consumer exists but does not fit the request
    │   ├─ DuplicateSubscriptionError · SubjectMismatchError · ConfigMismatchError
    │   ├─ PushConsumerError · PullConsumerError
    │   └─ QueueRequiredError · QueueMismatchError · NotQueueConsumerError
    │      · QueueFlowControlError · QueueHeartbeatError
    ├─ StatusError(code, description, retryable) an inline status that is an error (409, 503, unknown ...)
    │   ├─ ConsumerDeletedError · PullLimitError · BadRequestError · NoRespondersError
    │   └─ LeadershipChangeError · PushBasedError · TooManyResultsError
    ├─ RequestTimeoutError (TimeoutError)        no answer in time: for a write, the outcome is unknown
    ├─ HeartbeatError                            a pull request fell silent
    ├─ DisconnectedError (ConnectionError)       the connection is down at this moment; it is being restored
    ├─ ClosedError                               the connection or the subscription is closed
    ├─ ConcurrentReadError                       somebody else reads from this handle at the same time
    ├─ ConnectError (ConnectionError)            no server could be reached
    │   └─ AuthenticationError                   the server refused the credentials
    ├─ PermissionDeniedError(operation, subject) the server does not let this user do that
    ├─ NotJetStreamMessageError (ValueError)     the message does not carry a JSAck
    ├─ PositionInvalidError                      a place in a stream that is another one now, or ends before it
    ├─ HistoryTruncatedError(first_available)    what lay behind a position is there no more
    ├─ ProducerFencedError(subject, expected, found) somebody else writes where there is one writer
    ├─ TopicNotFoundError(topic, partitions)     a topic, or a part of it, that is not there
    ├─ TopicMismatchError(mismatches)            a topic of other types than those asked for
    ├─ EpochCompletedError(time, frontier)       an epoch that is over, or that no capability allows
    ├─ EpochsLostError(epochs)                   parts of epochs that had begun cannot be read any more
    ├─ IterationFailed(reason)                   an iteration ended with a reason that is no exception
    ├─ ProtocolError                             the server said what the protocol does not allow
    │   └─ AnswerLostError                       a part of an answer was lost on the way
    ├─ PublishError                              a publish was refused or its outcome is unknown
    │   ├─ BatchAbandonedError · BatchNotAtomicError
    │   ├─ IngestError(reason, sent, stored)     a fast ingest ended before all that was sent was stored
    │   ├─ PublishesFailedError(failures, told)  publishes of a publisher failed, and nobody looked at them
    │   └─ MaxPayloadError                       the message is larger than the server takes
    ├─ TooManyInFlightError                      the publish window is full
    └─ ServerNotFoundError · ServerStartError    the embedded nats-server is not there, or did not start

Each is made from its fields and nothing else, so it prints them and can be pickled. API errors are
classified by ``err_code`` and never by their text. Source: ADR-7, ADR-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AnswerLostError",
    "ApiError",
    "AuthenticationError",
    "BadRequestError",
    "BatchAbandonedError",
    "BatchDuplicateError",
    "BatchHeaderError",
    "BatchIncompleteError",
    "BatchNotAtomicError",
    "BatchNotEnabledError",
    "BatchTooLargeError",
    "BindError",
    "ClosedError",
    "ConcurrentReadError",
    "ConfigError",
    "ConfigMismatchError",
    "ConnectError",
    "ConsumerDeletedError",
    "ConsumerExistsError",
    "ConsumerNotFoundError",
    "DisconnectedError",
    "DuplicateSubscriptionError",
    "EpochCompletedError",
    "EpochsLostError",
    "HeartbeatError",
    "HistoryTruncatedError",
    "IngestError",
    "InvalidNameError",
    "IterationFailed",
    "JetStreamError",
    "LeadershipChangeError",
    "MaxPayloadError",
    "MessageNotFoundError",
    "NoMatchingStreamError",
    "NoRespondersError",
    "NotJetStreamMessageError",
    "NotQueueConsumerError",
    "PermissionDeniedError",
    "PositionInvalidError",
    "ProducerFencedError",
    "ProtocolError",
    "PublishError",
    "PublishesFailedError",
    "PullConsumerError",
    "PullLimitError",
    "PushBasedError",
    "PushConsumerError",
    "QueueFlowControlError",
    "QueueHeartbeatError",
    "QueueMismatchError",
    "QueueRequiredError",
    "RequestTimeoutError",
    "ServerNotFoundError",
    "ServerStartError",
    "StatusError",
    "StreamExistsError",
    "StreamNotFoundError",
    "SubjectMismatchError",
    "TooManyBatchesError",
    "TooManyInFlightError",
    "TooManyResultsError",
    "TopicMismatchError",
    "TopicNotFoundError",
    "WrongLastSequenceError",
]


class JetStreamError(Exception):
    """The root of every error that jsclient raises."""


# --- the server answered an API request with an error -------------------------------------------------


class ApiError(JetStreamError):
    """The server answered an API request with an error.

    Attributes:
        code: HTTP-like class of the error (404, 400, 503 ...).
        err_code: The server's own number: what to match on. 0 where the server sent none.
        description: Prose for people; it may change with the server.
    """

    by_err_code: ClassVar[dict[int, type[ApiError]]] = {}

    def __init_subclass__(cls, err_codes: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ApiError.by_err_code.update(dict.fromkeys(err_codes, cls))

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code}, err_code {self.err_code})"

    @classmethod
    def from_fields(cls, code: int, err_code: int, description: str) -> ApiError:
        """The error of the class that goes with ``err_code``."""
        return cls.by_err_code.get(err_code, ApiError)(code, err_code, description)


class StreamNotFoundError(ApiError, err_codes=(10059,)):
    """The stream does not exist."""


class ConsumerNotFoundError(ApiError, err_codes=(10014,)):
    """The consumer does not exist."""


class MessageNotFoundError(ApiError, err_codes=(10037,)):
    """The stream does not hold that message."""


class StreamExistsError(ApiError, err_codes=(10058,)):
    """The stream name is in use with a different configuration."""


class ConsumerExistsError(ApiError, err_codes=(10013, 10105, 10148)):
    """The consumer exists already, or its durable name is in use."""


class WrongLastSequenceError(ApiError, err_codes=(10071, 10164)):
    """A publish expected another last sequence than the stream or subject has."""


class BatchNotEnabledError(ApiError, err_codes=(10174, 10205)):
    """The stream takes no batches: it lacks ``allow_atomic``, or ``allow_batched`` for a fast ingest."""


class BatchIncompleteError(ApiError, err_codes=(10176,)):
    """The stream did not get every message of the batch, so nothing of it was stored.

    Messages were lost with a connection or left another stream's way, or the batch was idle for longer than the server
    allows (10 s), or (servers before 2.14) too many batches are open. Publishing all of it again is safe.
    """


class BatchTooLargeError(ApiError, err_codes=(10199,)):
    """The batch has more messages than the server takes, 1,000 by default. Nothing of it was stored."""


class BatchHeaderError(ApiError, err_codes=(10177,)):
    """The batch has a header that this server does not take in a batch. Nothing of it was stored."""


class BatchDuplicateError(ApiError, err_codes=(10201,)):
    """The stream holds a message with an id that is in the batch. Nothing of the batch was stored."""


class TooManyBatchesError(ApiError, err_codes=(10210, 10211)):
    """The stream, or the server, has as many open batches as it allows: try again later. Nothing was stored."""


# --- what the caller gave ------------------------------------------------------------------------------


class ConfigError(JetStreamError, ValueError):
    """What the caller gave cannot work. Raised before anything was sent."""


class InvalidNameError(ConfigError):
    """A name, subject, header or key that may not go on the wire.

    Attributes:
        kind: What it was to be: "stream", "consumer", "subject", "queue", "header" ...
        value: What was given.
        reason: What is wrong with it and what is allowed.
    """

    def __init__(self, kind: str, value: object, reason: str) -> None:
        super().__init__(kind, value, reason)
        self.kind = kind
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return f"invalid {self.kind} {shown}: {self.reason}"


# --- locating and binding (ADR-15) -----------------------------------------------------------------------


class NoMatchingStreamError(JetStreamError):
    """Not exactly one stream holds the subject, so the stream cannot be told from it.

    Attributes:
        subject: The subject given.
        streams: The streams that overlap with it: none, or more than one.
    """

    def __init__(self, subject: str, streams: Sequence[str] = ()) -> None:
        super().__init__(subject, tuple(streams))
        self.subject = subject
        self.streams = tuple(streams)

    def __str__(self) -> str:
        if not self.streams:
            return f"no matching stream: no stream holds the subject {self.subject!r}; create one, or give stream="
        names = ", ".join(self.streams)
        return f"no single matching stream: {self.subject!r} is held by {names}; say which with stream="


class BindError(JetStreamError):
    """A consumer was found but does not fit what was asked for. Nothing was changed on the server.

    Attributes:
        stream: Its stream.
        consumer: Its name.
        problem: What was wanted, what was found and what to do.
    """

    def __init__(self, stream: str, consumer: str, problem: str) -> None:
        super().__init__(stream, consumer, problem)
        self.stream = stream
        self.consumer = consumer
        self.problem = problem

    def __str__(self) -> str:
        where = f"consumer {self.consumer!r} of stream" if self.consumer else "stream"
        return f"{where} {self.stream!r}: {self.problem}"


class DuplicateSubscriptionError(BindError):
    """Another subscriber already receives from this push consumer, and it has no deliver group."""


class QueueRequiredError(BindError):
    """A plain subscription was asked for, but the consumer was created for a queue group."""


class QueueMismatchError(BindError):
    """The consumer was created for a different queue group."""


class NotQueueConsumerError(BindError):
    """A queue subscription was asked for, but the consumer was created without a deliver group."""


class SubjectMismatchError(BindError):
    """The consumer filters on another subject than the one given."""


class PushConsumerError(BindError):
    """A pull subscription was asked for, but this is a push consumer."""


class PullConsumerError(BindError):
    """A push subscription was asked for, but this is a pull consumer: a pull subscription is required."""


class QueueFlowControlError(BindError):
    """The consumer has flow control, which is not supported over queues."""


class QueueHeartbeatError(BindError):
    """The consumer has an idle heartbeat, which is not supported over queues."""


class ConfigMismatchError(BindError):
    """Fields that the caller set differ from those of the existing consumer; changes are not applied.

    Attributes:
        mismatches: ``(field, wanted, found)`` of every field that differs.
    """

    def __init__(self, stream: str, consumer: str, mismatches: Sequence[tuple[str, Any, Any]]) -> None:
        fields = "; ".join(
            f"{name}: wanted {wanted!r}, found {found!r}" for name, wanted, found in mismatches
        )
        problem = (
            f"its configuration is another than asked for ({fields}); "
            f"changes are not applied: leave the field out, or update the {'consumer' if consumer else 'stream'}"
        )
        super().__init__(stream, consumer, problem)
        self.args = (stream, consumer, list(mismatches))
        self.mismatches = list(mismatches)


# --- inline statuses -----------------------------------------------------------------------------------


class StatusError(JetStreamError):
    """The server sent an inline status that is an error. Source: ADR-15, ADR-37.

    Attributes:
        code: The status code, for example 409.
        description: The server's text.
        retryable: True where asking again later can succeed.
    """

    def __init__(self, code: int, description: str = "", retryable: bool = False) -> None:  # noqa: FBT001, FBT002  as pickled
        super().__init__(code, description, retryable)
        self.code = code
        self.description = description
        self.retryable = retryable

    def __str__(self) -> str:
        return f"status {self.code} {self.description}".rstrip()


class ConsumerDeletedError(StatusError):
    """The consumer was deleted while it was read from (409)."""


class PushBasedError(StatusError):
    """A pull was sent to a push consumer (409)."""


class PullLimitError(StatusError):
    """A pull asked for more than the consumer allows (409 Exceeded ...)."""


class LeadershipChangeError(StatusError):
    """The consumer moved to another server, or its server shuts down; ask again (409)."""


class BadRequestError(StatusError):
    """The server could not accept a pull as it was written (400)."""


class TooManyResultsError(StatusError):
    """More than 1,024 subjects match a direct get of last messages (413): use a consumer for that many."""


class NoRespondersError(StatusError):
    """Nobody listens: no stream for the subject, no such consumer, no JetStream, or no leader now (503)."""

    def __init__(self, code: int = 503, description: str = "no responders", retryable: bool = True) -> None:  # noqa: FBT001, FBT002  as pickled
        super().__init__(code, description, retryable)


# --- time, connection, the rest --------------------------------------------------------------------------


class RequestTimeoutError(JetStreamError, TimeoutError):
    """No answer came in time. For a write this means *unknown*: it may have happened.

    Attributes:
        what: What was waited for.
        timeout: How long, seconds.
    """

    def __init__(self, what: str, timeout: float | None = None) -> None:
        super().__init__(what, timeout)
        self.what = what
        self.timeout = timeout

    def __str__(self) -> str:
        return self.what if self.timeout is None else f"{self.what}: nothing within {self.timeout:g} s"


class HeartbeatError(JetStreamError):
    """A pull request fell silent: neither messages nor heartbeats came.

    Attributes:
        silent_for: Seconds without a sign of life.
    """

    def __init__(self, silent_for: float) -> None:
        super().__init__(silent_for)
        self.silent_for = silent_for

    def __str__(self) -> str:
        return f"no message and no heartbeat for {self.silent_for:g} s"


class DisconnectedError(JetStreamError, ConnectionError):
    """The connection is down at this moment and is being restored. What was in flight is unknown."""


class ClosedError(JetStreamError):
    """The connection or the subscription is closed."""


class ConcurrentReadError(JetStreamError):
    """Somebody else reads from this handle: two readers at the same time would each get a part of what is in order."""


class ConnectError(JetStreamError, ConnectionError):
    """No server could be reached, or none could be talked to as asked."""


class AuthenticationError(ConnectError):
    """The server refused the credentials."""


class PermissionDeniedError(JetStreamError):
    """The server does not let this user do that.

    Attributes:
        operation: "publish" or "subscribe".
        subject: The subject as the server names it.
    """

    def __init__(self, operation: str, subject: str) -> None:
        super().__init__(operation, subject)
        self.operation = operation
        self.subject = subject

    def __str__(self) -> str:
        return f"the server denies this user to {self.operation} to {self.subject!r}"


class NotJetStreamMessageError(JetStreamError, ValueError):
    """The message's reply is not a JSAck, so it carries no delivery information and cannot be acked.

    Attributes:
        reply: The reply subject found.
    """

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply

    def __str__(self) -> str:
        shown = self.reply if len(self.reply) <= 120 else f"{self.reply[:117]}..."
        return f"not a JetStream message: its reply {shown!r} is not a JSAck of 9 or at least 11 tokens"


class PositionInvalidError(JetStreamError):
    """A place in a stream that cannot be gone on from: the stream was made anew, or ends before it.

    Also a token that is none, and two positions that cannot be compared because they are of two streams.
    """


class HistoryTruncatedError(JetStreamError):
    """What lay behind a position is there no more: it was removed by a limit, a purge or a rollup.

    Attributes:
        first_available: The first stream sequence that can be read.
        wanted: The one that was to be read.
        stream: The stream.
    """

    def __init__(self, first_available: int, wanted: int | None = None, stream: str = "") -> None:
        super().__init__(first_available, wanted, stream)
        self.first_available = first_available
        self.wanted = wanted
        self.stream = stream

    def __str__(self) -> str:
        of = f" of stream {self.stream!r}" if self.stream else ""
        wanted = "the history" if self.wanted is None else f"sequence {self.wanted}"
        return f"{wanted}{of} is there no more: the first that can be read is {self.first_available}"


class ProducerFencedError(JetStreamError):
    """Another producer wrote to what has one producer, so this one may not go on. What was refused is not stored.

    Attributes:
        subject: Where.
        expected: The last sequence of the subject as this producer knows it; None: not known.
        found: The last sequence that is there; None: not known.
    """

    def __init__(self, subject: str, expected: int | None = None, found: int | None = None) -> None:
        super().__init__(subject, expected, found)
        self.subject = subject
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        known = "" if self.expected is None else f": the last sequence was to be {self.expected}"
        found = "" if self.found is None else f", it is {self.found}"
        return f"another producer writes to {self.subject!r}{known}{found if known else ''}"


class TopicNotFoundError(JetStreamError):
    """There is no such topic, or some of its partitions have had no producer yet.

    Attributes:
        topic: Its name.
        partitions: Those of which nothing is there; none: the topic itself is not there.
    """

    def __init__(self, topic: str, partitions: Sequence[int] = ()) -> None:
        super().__init__(topic, tuple(partitions))
        self.topic = topic
        self.partitions = tuple(partitions)

    def __str__(self) -> str:
        if not self.partitions:
            return f"there is no topic {self.topic!r}"
        return f"topic {self.topic!r} has nothing yet of partitions {', '.join(map(str, self.partitions))}"


class TopicMismatchError(JetStreamError):
    """A topic was made with other types than those asked for, or with another number of partitions.

    Attributes:
        topic: Its name.
        mismatches: ``(field, wanted, found)`` of all that differs.
    """

    def __init__(self, topic: str, mismatches: Sequence[tuple[str, Any, Any]]) -> None:
        super().__init__(topic, list(mismatches))
        self.topic = topic
        self.mismatches = list(mismatches)

    def __str__(self) -> str:
        fields = "; ".join(
            f"{name}: wanted {wanted!r}, found {found!r}" for name, wanted, found in self.mismatches
        )
        return f"topic {self.topic!r} is another than asked for: {fields}"


class EpochCompletedError(JetStreamError):
    """A time that may not be sent, or gone to: it is completed, or no capability that is held allows it.

    Raised before anything was sent; nothing has changed.

    Attributes:
        time: The time.
        frontier: The lower frontier: what may be sent is greater than or equal to one of these. Empty: nothing may.
    """

    def __init__(self, time: Any, frontier: Sequence[Any] = ()) -> None:
        super().__init__(time, tuple(frontier))
        self.time = time
        self.frontier = tuple(frontier)

    def __str__(self) -> str:
        held = f"the frontier is {', '.join(map(repr, self.frontier))}" if self.frontier else "it is closed"
        return f"epoch {self.time!r} is completed, or was never allowed: {held}"


class EpochsLostError(JetStreamError):
    """What belongs to epochs that had begun cannot be had any more. A new snapshot is needed; their parts are void.

    Attributes:
        epochs: Those of which a part was read. Others may have passed without being seen at all.
        reason: What happened.
    """

    def __init__(self, epochs: Sequence[Any], reason: str = "") -> None:
        super().__init__(tuple(epochs), reason)
        self.epochs = tuple(epochs)
        self.reason = reason

    def __str__(self) -> str:
        shown = [repr(epoch) for epoch in self.epochs[:5]]
        if (more := len(self.epochs) - len(shown)) > 0:
            shown.append(f"and {more} more")
        parts = f"parts were read of {', '.join(shown)}" if shown else "no epoch had been read in part"
        return f"epochs were lost ({self.reason or 'the history was cut'}); {parts}"


class IterationFailed(JetStreamError):
    """An iteration failed: its producer called ``fail``, in another process or with a reason that is no exception.

    Attributes:
        reason: What the producer gave.
    """

    def __init__(self, reason: Any) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the iteration failed: {self.reason}"


class ProtocolError(JetStreamError):
    """The server, or somebody in its place, said what the protocol does not allow."""


class AnswerLostError(ProtocolError):
    """A part of an answer was lost on the way: asked again, the server gives it again. What came before is whole."""


class PublishError(JetStreamError):
    """A publish was refused, or the answer to it makes no sense."""


class BatchAbandonedError(PublishError):
    """The batch ended before its commit: nothing of it was stored. What happened is the cause of this error."""


class BatchNotAtomicError(PublishError):
    """The server does not know batches and stored messages of the batch one by one: it is not all or nothing.

    Attributes:
        batch: The id of the batch, which is a header of each message stored.
        stream: Where.
        seq: The stream sequence of the message that showed it.
    """

    def __init__(self, batch: str, stream: str, seq: int) -> None:
        super().__init__(batch, stream, seq)
        self.batch = batch
        self.stream = stream
        self.seq = seq

    def __str__(self) -> str:
        return (
            f"the server stored messages of batch {self.batch} one by one (stream {self.stream!r}, at {self.seq}): "
            "it does not know batches; needed is 2.12"
        )


class IngestError(PublishError):
    """A fast ingest ended before all that was sent was stored. What happened is the cause of this error.

    Attributes:
        reason: What happened.
        sent: Messages sent.
        stored: The first so many are known to be stored; with gaps allowed some of them may be missing.
        complete: Whether that is all: none after them was stored. False: what became of the others is unknown.
    """

    def __init__(self, reason: str, sent: int, stored: int, complete: bool = False) -> None:  # noqa: FBT001, FBT002  as pickled
        super().__init__(reason, sent, stored, complete)
        self.reason = reason
        self.sent = sent
        self.stored = stored
        self.complete = complete

    def __str__(self) -> str:
        rest = "none of the others is" if self.complete else "what became of the others is unknown"
        return f"{self.reason}; of {self.sent} messages sent the first {self.stored} are stored, {rest}"


class PublishesFailedError(PublishError):
    """Publishes of a publisher failed, and nobody had looked at their futures.

    Attributes:
        failures: ``(subject, error)`` of each, in the order in which they failed. `ApiError` and `NoRespondersError`
            say that it was not stored; `RequestTimeoutError`, `DisconnectedError` and `ClosedError` that this is not
            known.
        told: How many more failed before and were told as events `PublishFailed`, because nobody could look at them any
            more, or too many waited.
    """

    def __init__(self, failures: Sequence[tuple[str, JetStreamError]], told: int = 0) -> None:
        super().__init__(list(failures), told)
        self.failures = list(failures)
        self.told = told

    def __str__(self) -> str:
        if not self.failures:
            return f"{self.told} publishes failed; they were told as events PublishFailed"
        shown = [f"{subject!r}: {error}" for subject, error in self.failures[:3]]
        if (more := len(self.failures) - len(shown)) > 0:
            shown.append(f"and {more} more")
        if self.told:
            shown.append(f"{self.told} before were told as events PublishFailed")
        return f"{len(self.failures) + self.told} publishes failed: " + "; ".join(shown)


class MaxPayloadError(PublishError):
    """Headers and payload are larger together than this server takes.

    Attributes:
        size: Bytes of headers and payload.
        limit: The server's ``max_payload``, bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.size} bytes of headers and payload; the server takes at most {self.limit}"


class TooManyInFlightError(JetStreamError):
    """The window of unanswered publishes is full."""


# --- the embedded server ---------------------------------------------------------------------------------


class ServerNotFoundError(JetStreamError, FileNotFoundError):
    """There is no nats-server executable to run."""


class ServerStartError(JetStreamError, RuntimeError):
    """The nats-server ended or did not become ready.

    Attributes:
        reason: What was seen.
        log: The last lines the server logged.
    """

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason, log)
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.reason}; its log ends with:\n{self.log}" if self.log else self.reason
