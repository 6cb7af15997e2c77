"""Every exception that jsclient raises.

::

    JetStreamError
    ├─ ApiError(code, err_code, description)     the server answered "error"; the class follows err_code
    │   ├─ StreamNotFoundError · ConsumerNotFoundError · MessageNotFoundError
    │   ├─ StreamExistsError · ConsumerExistsError · ConsumerLimitError
    │   ├─ BatchNotEnabledError · BatchIncompleteError · BatchTooLargeError · BatchHeaderError
    │   │  · BatchDuplicateError · TooManyBatchesError
    │   ├─ BucketNotFoundError · BucketExistsError · BucketFullError · BucketSealedError
    │   └─ WrongLastSequenceError
    ├─ ConfigError (ValueError)                  invalid arguments; nothing was sent
    │   ├─ InvalidNameError                      a name, subject or header that is not allowed on the wire
    │   └─ ReadOnlyError(bucket)                 the handle of the bucket does not write
    ├─ NoMatchingStreamError                     no stream, or more than one, has the subject
    ├─ BindError                                 the consumer exists but does not fit the request
    │   ├─ DuplicateSubscriptionError · SubjectMismatchError · ConfigMismatchError
    │   ├─ PushConsumerError · PullConsumerError
    │   └─ QueueRequiredError · QueueMismatchError · NotQueueConsumerError
    │      · QueueFlowControlError · QueueHeartbeatError
    ├─ StatusError(code, description, retryable) an inline status that is an error (409, 503, unknown ...)
    │   ├─ ConsumerDeletedError · PullLimitError · BadRequestError · NoRespondersError
    │   └─ LeadershipChangeError · PushBasedError · TooManyResultsError
    ├─ RequestTimeoutError (TimeoutError)        no answer in time: for a write, the outcome is unknown
    ├─ DrainTimeoutError(remaining) (TimeoutError) the drain of a connection did not finish in time
    ├─ HeartbeatError                            a pull request fell silent
    ├─ DisconnectedError (ConnectionError)       the connection is down and is being restored
    ├─ ClosedError                               the connection or the subscription is closed
    ├─ WrongLoopError (RuntimeError)             the connection belongs to another event loop, thread or process
    ├─ NotReadyError (RuntimeError)              a value is not known before the reading has ended
    ├─ ConcurrentReadError                       another task is reading from this handle
    ├─ ConnectError (ConnectionError)            no server is reachable
    │   └─ AuthenticationError                   the server refused the credentials
    ├─ PermissionDeniedError(operation, subject) the user lacks a permission
    ├─ NotJetStreamMessageError (ValueError)     the message does not carry a JSAck
    ├─ PositionInvalidError                      a position in a stream that was recreated, or ends before it
    ├─ HistoryTruncatedError(first_available)    records after the requested position were removed
    ├─ ProducerFencedError(subject, expected, found) another producer took over
    ├─ TopicNotFoundError(topic, partitions)     the topic, or a partition of it, does not exist
    ├─ TopicMismatchError(mismatches)            the topic was created with other types
    ├─ PublisherExistsError(topic, partition)    the partition has a publisher that is alive
    ├─ EpochCompletedError(time, frontier)       the epoch is completed, or no capability allows it
    ├─ EpochsLostError(epochs)                   parts of epochs that had begun were removed
    ├─ IterationFailed(reason)                   the producer of an iteration called fail()
    ├─ NotABucketError(stream, reason)           the stream is no bucket of this kind
    ├─ KeyNotFoundError(bucket, key, deleted)    the key has no value, or its value was deleted
    ├─ KeyExistsError(bucket, key, revision)     the key has a value
    ├─ ValueInvalidError(bucket, key, revision, reason, entry) the codec cannot decode the value of the key
    ├─ RevisionMismatchError(bucket, key, expected) the key has another revision
    ├─ LeaseLostError(bucket, key, token, reason) a lock is not held any more
    ├─ ObjectNotFoundError(bucket, name, deleted) the object does not exist, or was deleted
    ├─ ObjectExistsError(bucket, name, revision) an object of this name exists
    ├─ ObjectChangedError(bucket, name, expected, current) the object was replaced or deleted meanwhile
    ├─ SourceChangedError(bucket, name, stored)  the content of a resumed upload is another one
    ├─ ObjectIncompleteError(bucket, name, ...)  parts of the object are missing
    ├─ ObjectInfoError(bucket, name, reason)     the description of the object cannot be used
    ├─ DigestMismatchError(bucket, name, expected, actual) the content is not the content that was stored
    ├─ LinkError(bucket, name, reason)           a link does not lead to an object
    ├─ ServiceError(code, description)           the handler of a service refuses a request
    ├─ ProtocolError                             the server violated the protocol
    │   └─ AnswerLostError                       a part of an answer was lost in transit
    ├─ PublishError                              a publish was refused, or its outcome is unknown
    │   ├─ BatchAbandonedError · BatchNotAtomicError
    │   ├─ IngestError(reason, sent, stored)     a fast ingest ended before all messages were stored
    │   ├─ PublishManyError(failures, sent, stored) not all messages of `publish_many` were stored
    │   ├─ PublishesFailedError(failures, reported) publishes failed and their futures were never awaited
    │   └─ MaxPayloadError                       the message exceeds the server's max_payload
    ├─ TooManyInFlightError                      the publish window is full
    └─ ServerNotFoundError · ServerStartError    no nats-server executable, or it did not start

Each error is built from its fields, which it prints and pickles. API errors are classified by ``err_code``, never by
their text. Source: ADR-7, ADR-15.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Self, dataclass_transform

__all__ = [
    "AnswerLostError", "ApiError", "AuthenticationError", "BadRequestError", "BatchAbandonedError",
    "BatchDuplicateError", "BatchHeaderError", "BatchIncompleteError", "BatchNotAtomicError",
    "BatchNotEnabledError", "BatchTooLargeError", "BindError", "BucketExistsError", "BucketFullError",
    "BucketNotFoundError", "BucketSealedError", "ClosedError", "ConcurrentReadError",
    "ConfigError", "ConfigMismatchError", "ConnectError", "ConsumerDeletedError", "ConsumerExistsError",
    "ConsumerLimitError", "ConsumerNotFoundError", "DigestMismatchError",
    "DisconnectedError", "DrainTimeoutError", "DuplicateSubscriptionError", "EpochCompletedError",
    "EpochsLostError", "FailedPublishInfo", "HeartbeatError", "HistoryTruncatedError", "IngestError",
    "InvalidNameError", "IterationFailed", "JetStreamError", "KeyExistsError", "KeyNotFoundError",
    "LeadershipChangeError", "LeaseLostError", "LinkError", "MaxPayloadError",
    "MessageNotFoundError", "NoMatchingStreamError", "NoRespondersError", "NotABucketError",
    "NotJetStreamMessageError", "NotQueueConsumerError", "NotReadyError",
    "ObjectChangedError", "ObjectExistsError", "ObjectIncompleteError", "ObjectInfoError", "ObjectNotFoundError",
    "PermissionDeniedError", "PositionInvalidError", "ProducerFencedError", "ProtocolError", "PublishError",
    "PublishManyError", "PublisherExistsError", "PublishesFailedError", "PullConsumerError", "PullLimitError",
    "PushBasedError", "PushConsumerError",
    "QueueFlowControlError", "QueueHeartbeatError", "QueueMismatchError", "QueueRequiredError", "ReadOnlyError",
    "RequestTimeoutError", "RevisionMismatchError", "ServerNotFoundError", "ServerStartError", "ServiceError",
    "SourceChangedError", "StatusError", "StreamExistsError", "StreamNotFoundError", "SubjectMismatchError",
    "TooManyBatchesError", "TooManyInFlightError", "TooManyResultsError", "TopicMismatchError", "TopicNotFoundError",
    "ValueInvalidError",
    "WrongLastSequenceError", "WrongLoopError",
]  # fmt: skip


class JetStreamError(Exception):
    """Base class of all exceptions defined by jsclient."""


_REQUIRED: Any = inspect.Parameter.empty


@dataclass_transform(eq_default=False)
class _Fields(JetStreamError):
    """Base class of errors with fields.

    The annotations of a subclass define its fields. The constructor takes them as arguments, in the same order. The
    method ``_text`` formats the message. Sequences are copied: an argument becomes a tuple if the field is annotated as
    a Sequence, and a list if it is annotated as a list.
    """

    _text: ClassVar[str] = ""
    _fields: ClassVar[dict[str, Any]] = {}  # name: default
    _arguments: ClassVar[inspect.Signature]
    _copied: ClassVar[dict[str, type[list[Any] | tuple[Any, ...]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields, copied = dict(cls._fields), dict(cls._copied)
        # Annotations are texts here: this module imports ``annotations`` from ``__future__``.
        for name, kind in inspect.get_annotations(cls).items():
            if not str(kind).startswith("ClassVar"):
                fields[name] = cls.__dict__.get(name, _REQUIRED)
                if str(kind).startswith(("list[", "Sequence[")):
                    copied[name] = list if str(kind).startswith("list[") else tuple
        cls._fields, cls._copied = fields, copied
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            for name, default in fields.items()
        ]
        cls._arguments = inspect.Signature(parameters)
        own = cls.__dict__.get("__init__")
        shown = cls._arguments if own is None else inspect.signature(own.__get__(cls))
        type.__setattr__(cls, "__signature__", shown)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = self._arguments.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        for name, kind in self._copied.items():
            values[name] = kind(values[name])
        # pickle calls the class with ``args``, so ``args`` must have a value for each field
        super().__init__(*values.values())
        self.__dict__.update(values)

    def __repr__(self) -> str:
        shown = list(self.args)
        for default in reversed(list(self._fields.values())[: len(shown)]):
            if shown[-1] != default:
                break
            shown.pop()
        return f"{type(self).__name__}({', '.join(map(repr, shown))})"

    def __str__(self) -> str:
        return self._text.format_map(vars(self))


def differences(mismatches: Sequence[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{name}: wanted {wanted!r}, found {found!r}" for name, wanted, found in mismatches)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Format a number and its words: ``counted(1, "message waits", "messages wait")`` is "1 message waits".

    ``many`` is by default ``one`` with an "s".
    """
    words = one if number == 1 else f"{one}s" if many is None else many
    return f"{number:,} {words}"


def _some(numbers: list[int]) -> str:
    """Format the first five numbers, and how many more there are."""
    return ", ".join(_first([*map(str, numbers)], 5))


def _first(shown: list[str], limit: int) -> list[str]:
    """Return at most ``limit`` texts, followed by a text with how many more there are."""
    return shown if len(shown) <= limit else [*shown[:limit], f"and {len(shown) - limit} more"]


class ApiError(_Fields):
    """The server answered an API request with an error.

    Attributes:
        code: Class of the error, similar to an HTTP status code (404, 400, 503 and so on).
        err_code: Number that identifies the error, or 0 if the server did not send one.
        description: Description by the server. Don't compare it, because it may change between versions.
        stream, consumer: Names of the stream and the consumer of the request, or "".
        advice: Suggestion how to solve the problem, or "".
    """

    code: int
    err_code: int
    description: str
    stream: str = ""
    consumer: str = ""
    advice: str = ""
    by_err_code: ClassVar[dict[int, type[ApiError]]] = {}

    def __init_subclass__(cls, err_codes: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ApiError.by_err_code.update(dict.fromkeys(err_codes, cls))

    @classmethod
    def from_fields(
        cls, code: int, err_code: int, description: str, stream: str = "", consumer: str = ""
    ) -> ApiError:
        """Create an error of the class registered for ``err_code``."""
        kind = cls.by_err_code.get(err_code, ApiError)
        advice = _ADVICE.get(err_code, "")
        advice = _ADVICE_OF_TEXT.get(description, advice)  # the server uses this code for other failures too
        return kind(code, err_code, description, stream, consumer, advice)

    def with_advice(self, advice: str) -> Self:
        """Return the same error with other advice."""
        fields = (self.code, self.err_code, self.description, self.stream, self.consumer)
        return type(self)(*fields, advice)

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self._what()} (code {self.code}, err_code {self.err_code}){advice}"

    def _what(self) -> str:
        return f"{self._where()}: {self.description}" if self.stream else self.description

    def _where(self) -> str:
        stream = f"stream {self.stream!r}"
        return f"consumer {self.consumer!r} of {stream}" if self.consumer else stream


_NO_JETSTREAM = "JetStream is not enabled on this server or for this account, or domain= or prefix= is wrong"

_FULL = (
    'with discard="new" it refuses messages beyond its {0}: raise {0}, purge messages, or use discard="old"'
)
_ADVICE_OF_TEXT = {
    "rollup not permitted": "create or update the stream with allow_rollup_hdrs=True",
    "maximum bytes exceeded": _FULL.format("max_bytes"),
    "maximum messages exceeded": _FULL.format("max_msgs"),
    "maximum messages per subject exceeded": _FULL.format("max_msgs_per_subject"),
}  # by the server's description

_FEWER = "delete consumers that nobody reads, or let readers share one (a pull consumer or a queue group)"
_TAKEN = (
    "another consumer takes these messages, and a work queue gives each message to one consumer: share that consumer, "
    "or give both filter subjects that do not overlap"
)
_ACKS = (
    "a work queue removes a message when it is acked, so its consumers ack each message: use pull_subscribe or "
    'subscribe without an ack policy; ordered readers need a stream with retention="limits"'
)

_OVERTAKEN = (
    "nothing was stored, because another message came before: read the newest one, decide again, and expect its "
    "sequence"
)

# By err_code.
_ADVICE = {
    10002: "the streams of the account have as many bytes in files as its max_file allows, or in memory as its "
    "max_mem (JetStream.account_info has both): purge messages, give streams a max_bytes, or raise the limit",
    10023: "the storage of the server is full, or has reached max_file_store or max_memory_store of its configuration: "
    "purge messages, or raise the limit",
    10027: "the account has as many streams as its max_streams allows: delete streams that nobody needs, or raise it",
    10028: "no memory is left for it: lower max_bytes of the stream, purge messages, or raise max_mem of the account "
    "or max_memory_store of the server",
    10047: "no space for files is left for it: lower max_bytes of the stream, purge messages, or raise max_file of "
    "the account or max_file_store of the server",
    10049: "the log of the server says why: its disk may be full, it may have too many files open, or it cannot write "
    "to its store_dir",
    10054: "the message is larger than max_msg_size of the stream, headers included: raise it, or send less",
    10026: f"raise the limit of the stream (max_consumers), of the account or of the server, or {_FEWER}",
    10014: "check both names, or create the consumer first",
    10039: _NO_JETSTREAM,
    10059: "check the name, or create the stream first; `JetStream.stream_names` lists those that exist",
    10071: _OVERTAKEN,
    10076: _NO_JETSTREAM,
    10057: "the stream has deny_delete=True, which cannot be taken back",
    10084: _ACKS,
    10098: _ACKS,
    10099: _TAKEN,
    10100: _TAKEN,
    10101: 'a work queue delivers every message: leave deliver_policy out, or give "all"',
    10110: "the stream has deny_purge=True, which cannot be taken back",
    10164: _OVERTAKEN,
    10166: "create the stream with allow_msg_ttl=True",
    10168: "create the stream with allow_msg_counter=True",
    10174: "create the stream with allow_atomic=True",
    10188: "create the stream with allow_msg_schedules=True",
    10205: "create the stream with allow_batched=True",
}


class StreamNotFoundError(ApiError, err_codes=(10059,)):
    """The stream does not exist. Check its name, and the JetStream domain of the connection."""

    def _what(self) -> str:
        return f"stream {self.stream!r} not found" if self.stream else self.description


class ConsumerNotFoundError(ApiError, err_codes=(10014,)):
    """The consumer does not exist. It may have been deleted, or removed because nobody was reading from it."""

    def _what(self) -> str:
        return f"{self._where()} not found" if self.consumer else super()._what()


class MessageNotFoundError(ApiError, err_codes=(10037,)):
    """The stream does not have the requested message. It may have been deleted, or it may have expired."""


class StreamExistsError(ApiError, err_codes=(10058,)):
    """A stream with this name already exists, and it has a different configuration."""


class ConsumerExistsError(ApiError, err_codes=(10013, 10105, 10148)):
    """A consumer with this name already exists, and it has a different configuration."""


class ConsumerLimitError(ApiError, err_codes=(10026,)):
    """The maximum number of consumers of the stream, the account or the server is reached.

    ``limit`` is the ``max_consumers`` of the stream. It is 0 if that is unknown or is not the limit that was reached.
    nats-server 2.15 allows 1,000 consumers for a stream without ``max_consumers``.
    """

    limit: int = 0

    def with_counts(self, limit: int, count: int) -> ConsumerLimitError:
        """Return the same error with the stream's ``max_consumers`` (0 or less: not set) and its consumer count."""
        if limit > 0 and count >= limit:
            advice = f"its max_consumers is {limit}, and it has {count}: raise it, or {_FEWER}"
        else:
            limit = 0
            reason = f"it has {count}, and the limit is that of the account or the server (1,000 on nats-server 2.15)"
            advice = f"{reason}: raise that limit, or {_FEWER}"
        return type(self)(
            self.code, self.err_code, self.description, self.stream, self.consumer, advice, limit
        )


class WrongLastSequenceError(ApiError, err_codes=(10071, 10164)):
    """The last sequence of the stream or subject is not the one that the publish expected.

    Another client has probably published a message meanwhile. The message was not stored.
    """


class BatchNotEnabledError(ApiError, err_codes=(10174, 10205)):
    """The stream does not allow batches. Set ``allow_atomic``, or ``allow_batched`` for a fast ingest."""


class BatchIncompleteError(ApiError, err_codes=(10176,)):
    """The stream did not receive all messages of the batch, so it stored none of them.

    There are several possible reasons. Messages were lost with the connection, or they belong to another stream. The
    batch was idle for more than 10 s. Before server 2.14, the reason may also be that too many batches are open.

    You can safely publish the whole batch again.
    """


class BatchTooLargeError(ApiError, err_codes=(10199,)):
    """The batch has more messages than the server allows, which is 1,000 by default. Nothing was stored."""


class BatchHeaderError(ApiError, err_codes=(10177,)):
    """A message of the batch has a header that the server does not allow in batches. Nothing was stored."""


class BatchDuplicateError(ApiError, err_codes=(10201,)):
    """The stream already has a message with the same ``msg_id`` as a message of the batch. Nothing was stored."""


class TooManyBatchesError(ApiError, err_codes=(10210, 10211)):
    """The maximum number of open batches is reached. Nothing was stored, and you can try again later."""


class ConfigError(JetStreamError, ValueError):
    """An argument or a combination of arguments is not valid. Usually, nothing was sent to the server."""


class InvalidNameError(_Fields, ConfigError):
    """A name, subject, header or key contains something that is not allowed. Nothing was sent.

    Attributes:
        kind: Kind of the name: "stream", "consumer", "subject", "queue", "header" and so on.
        value: The invalid value.
        reason: Explanation why it is not valid, and what is allowed.
    """

    kind: str
    value: object
    reason: str

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return f"invalid {self.kind} {shown}: {self.reason}"


class NoMatchingStreamError(_Fields):
    """The stream of a subject could not be determined, because no stream has the subject or several streams do.

    In the latter case, pass the name of the stream.

    Attributes:
        subject: The subject.
        streams: Names of the streams whose subjects overlap with it.
        option: Name of the option whose value is the subject, or "" if it was passed as an argument.
    """

    subject: str
    streams: Sequence[str] = ()
    option: str = ""

    def __str__(self) -> str:
        if self.option:
            return f"{self.option} is {self.subject!r}: no stream has this subject; create one, or choose another"
        if not self.streams:
            return (
                f"no matching stream: no stream has the subject {self.subject!r}; create one, or pass stream="
            )
        names = ", ".join(self.streams)
        return f"no single matching stream: {self.subject!r} is in {names}; choose one with stream="


class BindError(_Fields):
    """A consumer exists, but it does not match the request. Nothing was changed on the server.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        problem: Description of the difference, and of the possible solutions.
    """

    stream: str
    consumer: str
    problem: str

    def __str__(self) -> str:
        where = f"consumer {self.consumer!r} of stream" if self.consumer else "stream"
        return f"{where} {self.stream!r}: {self.problem}"


class DuplicateSubscriptionError(BindError):
    """The push consumer already has a subscriber. It can have several only with a queue group."""


class QueueRequiredError(BindError):
    """The consumer was created for a queue group, so ``queue`` must be given."""


class QueueMismatchError(BindError):
    """The consumer was created for another queue group."""


class NotQueueConsumerError(BindError):
    """The consumer was created without a queue group, so ``queue`` must not be given."""


class SubjectMismatchError(BindError):
    """The consumer exists, but it filters other subjects than the requested one."""


class PushConsumerError(BindError):
    """The consumer is a push consumer. Use `JetStream.subscribe` to read from it."""


class PullConsumerError(BindError):
    """The consumer is a pull consumer. Use `JetStream.pull_subscribe` to read from it."""


class QueueFlowControlError(BindError):
    """The consumer has flow control, which can't be used with a queue group."""


class QueueHeartbeatError(BindError):
    """The consumer has idle heartbeats, which can't be used with a queue group."""


class ConfigMismatchError(BindError):
    """An existing consumer or stream has other values than those requested.

    Attributes:
        mismatches: A tuple ``(field, requested value, existing value)`` for each field that differs.
        updated: False if the consumer or stream was not changed. True if it was updated, but the server ignored these
            fields.
    """

    def __init__(
        self,
        stream: str,
        consumer: str,
        mismatches: Sequence[tuple[str, Any, Any]],
        updated: bool = False,  # noqa: FBT001, FBT002  an error is unpickled from its args
    ) -> None:
        kind = "consumer" if consumer else "stream"
        problem = f"its configuration differs from the one requested ({differences(mismatches)})"
        if updated:
            problem += "; the server accepted the change, but keeps its own value: leave the field out"
        else:
            problem += (
                "; changes are not applied: leave the field out, or update the "
                f'{kind} with ensure_{kind}(..., on_drift="update")'
            )
        super().__init__(stream, consumer, problem)
        self.args: tuple[Any, ...] = (stream, consumer, list(mismatches), updated)
        self.mismatches: list[tuple[str, Any, Any]] = list(mismatches)
        self.updated: bool = updated


class StatusError(_Fields):
    """The server sent an error status instead of a message. Source: ADR-15, ADR-37.

    Attributes:
        code: Status code, for example 409.
        description: Description by the server.
        retryable: True if the same request may succeed later.
    """

    code: int
    description: str = ""
    retryable: bool = False

    def __str__(self) -> str:
        return f"status {self.code} {self.description}".rstrip()


class ConsumerDeletedError(StatusError):
    """The consumer was deleted while it was being read (409).

    Attributes:
        stream, consumer: Names of the stream and the consumer, or "" if they are unknown.
    """

    stream: str = ""
    consumer: str = ""

    def __str__(self) -> str:
        if not self.consumer:
            return super().__str__()
        where = f"consumer {self.consumer!r} of stream {self.stream!r}"
        return f"{where} was deleted: to go on, create it again and open a new reader"


class PushBasedError(StatusError):
    """A pull request was sent to a push consumer (409). Use `JetStream.subscribe` to read from it."""


class PullLimitError(StatusError):
    """A pull request exceeds a limit of the consumer (409), for example ``max_batch`` or ``max_waiting``."""


class LeadershipChangeError(StatusError):
    """The consumer has moved to another server, or its server is shutting down (409). Repeat the request."""


class BadRequestError(StatusError):
    """The server rejected a pull request as malformed (400)."""


class TooManyResultsError(StatusError):
    """More than 1,024 subjects match in `Stream.get_last_messages` (413). Use a consumer instead."""


class NoRespondersError(StatusError):
    """No server or client has responded to a message or request (503).

    There are several possible reasons. No stream has the subject, the consumer does not exist, JetStream is disabled,
    or a leader is being elected at the moment.

    Attributes:
        stream, consumer: Names of the stream and the consumer for a pull request, otherwise "".
    """

    code: int = 503
    description: str = "no responders"
    retryable: bool = True
    stream: str = ""
    consumer: str = ""

    def __str__(self) -> str:
        text = self.description or "no responders"
        if self.consumer:
            text = (
                f"no server answered the pull request of consumer {self.consumer!r} of stream {self.stream!r}: the "
                "consumer does not exist, or it has no leader at the moment; check both names"
            )
        return f"{text} (status {self.code})"

    @classmethod
    def of_api(cls, subject: str) -> NoRespondersError:
        """Create the error for a request on an API subject."""
        return cls(503, f"no responders on {subject!r}: {_NO_JETSTREAM}, or it has no leader at the moment")

    @classmethod
    def of_publish(cls, subject: str) -> NoRespondersError:
        """Create the error for a publish."""
        return cls(
            503,
            f"no stream took the message on {subject!r}: create a stream with this subject, or check the subject; "
            "or JetStream is not enabled on this server or account",
        )


_SAYS_NO = re.compile(r"\b(no|not) ")


class RequestTimeoutError(_Fields, TimeoutError):
    """No answer or message arrived within the timeout.

    If the request was to change something, the change may or may not have taken place.

    Attributes:
        what: Description of the operation.
        timeout: Timeout of the operation, in seconds.
        why: Known reason for the delay, or "".
    """

    what: str
    timeout: float | None = None
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        if self.timeout is None:
            return f"{self.what}{why}"
        needs_verb = not _SAYS_NO.search(self.what)
        return f"{self.what}{': nothing' if needs_verb else ''} within {self.timeout:g} s{why}"


class DrainTimeoutError(_Fields, TimeoutError):
    """`JetStream.drain` did not finish within the timeout. The connection was closed anyway.

    Attributes:
        remaining: Descriptions of unfinished work, such as handlers that have not ended, messages that were not read,
            and publishes and requests in flight.
        timeout: Timeout of the drain, in seconds.
    """

    remaining: Sequence[str]
    timeout: float

    def __str__(self) -> str:
        return f"the drain did not finish within {self.timeout:g} s: {'; '.join(_first(list(self.remaining), 5))}"


class HeartbeatError(_Fields):
    """Neither messages nor heartbeats arrived for a pull request, so the server has probably lost it.

    Attributes:
        silent_for: Seconds since the last message or heartbeat.
    """

    silent_for: float
    _text = "no message and no heartbeat for {silent_for:g} s"


class DisconnectedError(JetStreamError, ConnectionError):
    """The connection was lost, and the client is reconnecting.

    If a request was in flight, the server may or may not have carried it out.
    """


class ClosedError(JetStreamError):
    """The connection, the subscription or another handle was closed, so it can't be used any more."""


class WrongLoopError(JetStreamError, RuntimeError):
    """The connection was opened in another event loop, thread or process. Nothing was sent.

    Open a connection in each event loop that needs one.
    """


class NotReadyError(JetStreamError, RuntimeError):
    """A value is not available, or not available yet. The message explains the reason."""


class ConcurrentReadError(JetStreamError):
    """Another task is already reading from this handle. Two readers would each receive only some of the messages."""


class ConnectError(JetStreamError, ConnectionError):
    """No server could be reached, or no server accepted the connection."""


class AuthenticationError(ConnectError):
    """The server refused the credentials. Another attempt with the same credentials would fail too."""


class PermissionDeniedError(_Fields):
    """The user does not have the permission to publish or subscribe to a subject.

    Attributes:
        operation: "publish" or "subscribe".
        subject: The subject, as reported by the server.
    """

    operation: str
    subject: str
    _text = "the server denies this user to {operation} to {subject!r}"


class NotJetStreamMessageError(_Fields, ValueError):
    """The message does not come from a stream, so it has no metadata and can't be acked.

    Attributes:
        reply: Reply subject of the message, which would contain the metadata.
    """

    reply: str

    def __str__(self) -> str:
        shown = self.reply if len(self.reply) <= 120 else f"{self.reply[:117]}..."
        return f"not a JetStream message: its reply {shown!r} is not a JSAck of 9 or at least 11 tokens"


class PositionInvalidError(JetStreamError):
    """Reading cannot continue from a position, because the stream was recreated or ends before the position.

    Also raised for a malformed position token, and for a comparison of positions in different streams.
    """


class HistoryTruncatedError(_Fields):
    """Records after the requested position were removed by a limit, a purge or a rollup.

    Attributes:
        first_available: The first stream sequence that can be read.
        wanted: The requested stream sequence, or None if no single sequence was requested.
        stream: The name of the stream.
    """

    first_available: int
    wanted: int | None = None
    stream: str = ""

    def __str__(self) -> str:
        of = f" of stream {self.stream!r}" if self.stream else ""
        wanted = "the history" if self.wanted is None else f"sequence {self.wanted}"
        return f"{wanted}{of} was removed: the first sequence that can be read is {self.first_available}"


class ProducerFencedError(_Fields):
    """Another producer took over, so this producer cannot continue. The refused record was not stored.

    Attributes:
        subject: The subject of the record.
        expected: The last sequence of the subject that this producer knows, or None if it is unknown.
        found: The last sequence of the subject in the stream, or None if it is unknown.
    """

    subject: str
    expected: int | None = None
    found: int | None = None

    def __str__(self) -> str:
        text = f"another producer writes to {self.subject!r}"
        if self.expected is None:
            return text
        found = "" if self.found is None else f", found {self.found}"
        return f"{text}: expected last sequence {self.expected}{found}"


class TopicNotFoundError(_Fields):
    """The topic does not exist, or some of its partitions have had no producer yet.

    Attributes:
        topic: The name of the topic.
        partitions: The partitions without any record. Empty if the topic itself does not exist.
    """

    topic: str
    partitions: Sequence[int] = ()

    def __str__(self) -> str:
        if not self.partitions:
            return f"no such topic: {self.topic!r}"
        return f"topic {self.topic!r} has no records in partitions {', '.join(map(str, self.partitions))}"


class TopicMismatchError(_Fields):
    """The topic was created with types or a number of partitions that differ from the request.

    Attributes:
        topic: The name of the topic.
        mismatches: ``(field, requested value, existing value)`` for everything that differs.
    """

    topic: str
    mismatches: list[tuple[str, Any, Any]]

    def __str__(self) -> str:
        return f"topic {self.topic!r} differs from the one requested: {differences(self.mismatches)}"


class PublisherExistsError(_Fields):
    """The partition already has a live publisher. Nothing was changed.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of topic {self.topic!r} has a publisher: close that one, or give "
            "takeover=True to replace it"
        )


class EpochCompletedError(_Fields):
    """A time cannot be sent or advanced to, because it is completed or no capability allows it.

    The check is made before anything is sent, so nothing was changed.

    Attributes:
        time: The time.
        frontier: The lower frontier. A time can be sent if it is greater than or equal to one of these times. Empty
            if no time can be sent.
    """

    time: Any
    frontier: Sequence[Any] = ()

    def __str__(self) -> str:
        held = f"the frontier is {', '.join(map(repr, self.frontier))}" if self.frontier else "it is closed"
        return f"epoch {self.time!r} is completed, or was never allowed: {held}"


class EpochsLostError(_Fields):
    """Records of epochs that had begun were lost. Discard the received data of these epochs and take a new snapshot.

    Attributes:
        epochs: The epochs that were read in part. Other epochs may have been lost completely.
        reason: What happened.
    """

    epochs: Sequence[Any]
    reason: str = ""

    def __str__(self) -> str:
        shown = ", ".join(_first([repr(epoch) for epoch in self.epochs], 5))
        parts = f"parts were read of {shown}" if shown else "no epoch had been read in part"
        return f"epochs were lost ({self.reason or 'the history was cut'}); {parts}"


class IterationFailed(_Fields):
    """The producer of an iteration called ``fail``, and its reason cannot be raised itself.

    A reason can be raised only if it is an exception and was passed on within the same process.

    Attributes:
        reason: The reason given by the producer.
    """

    reason: Any
    _text = "the iteration failed: {reason}"


class BucketNotFoundError(ApiError):
    """The bucket does not exist."""

    def _what(self) -> str:
        return f"no bucket: {super()._what()}"


class BucketExistsError(ApiError):
    """A bucket with this name already exists, and it has a different configuration."""


class BucketFullError(ApiError):
    """The bucket has reached its limit of bytes, so it cannot store more data."""

    def _what(self) -> str:
        return f"the bucket is full: {super()._what()}"


class BucketSealedError(ApiError):
    """The bucket is sealed, so it cannot be changed any more."""

    def _what(self) -> str:
        return f"the bucket is sealed: {super()._what()}"


class NotABucketError(_Fields):
    """The stream is named like a bucket, but it lacks what a bucket of this kind needs.

    Attributes:
        stream: The name of the stream.
        reason: What the stream lacks.
    """

    stream: str
    reason: str

    def __str__(self) -> str:
        return f"stream {self.stream!r} is not a bucket: {self.reason}"


class ReadOnlyError(_Fields, ConfigError):
    """The handle of the bucket is read-only. Nothing was sent.

    Attributes:
        bucket: The name of the bucket.
    """

    bucket: str
    _text = "this handle of bucket {bucket!r} reads only: key_value(bucket) returns one that writes"


class KeyNotFoundError(_Fields):
    """The key has no value, or its value was deleted.

    Attributes:
        bucket, key: The bucket and the key.
        deleted: The `KeyValueEntry` of the deletion, or None if the bucket has no entry for the key.
    """

    bucket: str
    key: str
    deleted: Any = None

    def __str__(self) -> str:
        text = f"bucket {self.bucket!r} has no key {self.key!r}"
        if self.deleted is None:
            return text
        how = "purged" if getattr(self.deleted, "operation", "") == "PURGE" else "deleted"
        return f"{text}: its value was {how} at revision {getattr(self.deleted, 'revision', 0)}"


class ValueInvalidError(_Fields):
    """The codec of the bucket cannot decode the value of the key. The key can still be put, deleted and read.

    Attributes:
        bucket, key: The bucket and the key.
        revision: The revision of the value.
        reason: What is wrong with the value.
        entry: The `KeyValueEntry`. Its ``raw`` attribute has the bytes.
    """

    bucket: str
    key: str
    revision: int
    reason: str
    entry: Any = None
    _text = "the value of key {key!r} of bucket {bucket!r} at revision {revision} cannot be decoded: {reason}"


class KeyExistsError(_Fields):
    """The key already has a value, so `KeyValue.create` stored nothing.

    Attributes:
        bucket, key: The bucket and the key.
        revision: The revision of the value, or 0 if it is not known.
    """

    bucket: str
    key: str
    revision: int = 0

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"bucket {self.bucket!r} has a value of key {self.key!r}{at}: update it, or put it"


class RevisionMismatchError(_Fields):
    """The newest revision of the key is not the expected revision. Nothing was stored.

    Attributes:
        bucket, key: The bucket and the key.
        expected: The revision that the call expected.
    """

    bucket: str
    key: str
    expected: int

    def __str__(self) -> str:
        return (
            f"key {self.key!r} of bucket {self.bucket!r} is not at revision {self.expected}: get it, decide again, and "
            "update it at its new revision"
        )


class LeaseLostError(_Fields):
    """A lock is no longer held, or it is uncertain whether it is still held.

    Attributes:
        bucket, key: The bucket and the key.
        token: The fencing token of the lock.
        reason: How the lock was lost.
    """

    bucket: str
    key: str
    token: int
    reason: str
    _text = "the lock of key {key!r} of bucket {bucket!r} with token {token} is lost: {reason}"


class ObjectNotFoundError(_Fields):
    """The object does not exist, or it was deleted.

    Attributes:
        bucket, name: The bucket and the name of the object.
        deleted: The `ObjectInfo` of the deletion, or None if the bucket has no entry for the name.
        link: The requested name, if it is a link to this object. Otherwise "".
    """

    bucket: str
    name: str
    deleted: Any = None
    link: str = ""

    def __str__(self) -> str:
        text = f"bucket {self.bucket!r} has no object {self.name!r}"
        if self.link:
            text += f", to which {self.link!r} is a link"
        if self.deleted is None:
            return text
        return f"{text}: it was deleted at revision {getattr(self.deleted, 'revision', 0)}"


class ObjectExistsError(_Fields):
    """An object with this name already exists. Nothing was stored.

    Attributes:
        bucket, name: The bucket and the name of the object.
        revision: The revision of the object, or 0 if it is not known.
    """

    bucket: str
    name: str
    revision: int = 0

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"bucket {self.bucket!r} has an object {self.name!r}{at}"


class ObjectChangedError(_Fields):
    """The object was replaced or deleted while it was read, or before a change to it was stored.

    Attributes:
        bucket, name: The bucket and the name of the object.
        expected: The revision that was read or expected.
        current: The current revision of the object, 0 if it was deleted, or None if other clients keep changing it.
    """

    bucket: str
    name: str
    expected: int
    current: int | None = 0

    def __str__(self) -> str:
        now = f"it is at revision {self.current} now" if self.current else "it is gone now"
        if self.current is None:
            now = "other clients change it again and again"
        return f"object {self.name!r} of bucket {self.bucket!r} is not at revision {self.expected} any more: {now}"


class SourceChangedError(_Fields):
    """The content differs from the content that an earlier attempt at this upload has stored. Nothing was sent.

    Attributes:
        bucket, name: The bucket and the name of the object.
        stored: The number of bytes that the earlier attempt has stored.
    """

    bucket: str
    name: str
    stored: int

    def __str__(self) -> str:
        return (
            f"the content of object {self.name!r} of bucket {self.bucket!r} differs from the {self.stored} bytes that "
            "an earlier attempt has stored: upload it with a new token"
        )


class ObjectIncompleteError(_Fields):
    """The bucket lacks parts of the object, or has too many parts.

    Attributes:
        bucket, name: The bucket and the name of the object.
        size: The size of the object in bytes, according to its description.
        received: The number of bytes that were read before the error.
    """

    bucket: str
    name: str
    size: int
    received: int

    def __str__(self) -> str:
        return (
            f"object {self.name!r} of bucket {self.bucket!r} has a size of {self.size} bytes, and {self.received} "
            "bytes were read: the chunks in the bucket are not those of the object"
        )


class ObjectInfoError(_Fields):
    """The description of the object is not valid.

    Attributes:
        bucket, name: The bucket and the name of the object. The name is "" if it cannot be read.
        reason: What is wrong with the description.
    """

    bucket: str
    name: str
    reason: str
    _text = "the description of object {name!r} in bucket {bucket!r} is not valid: {reason}"


class DigestMismatchError(_Fields):
    """The content of the object is not the content that was stored, because its SHA-256 digest is different.

    Attributes:
        bucket, name: The bucket and the name of the object.
        expected: The digest in the description of the object.
        found: The digest of the content that was read.
    """

    bucket: str
    name: str
    expected: str
    found: str
    _text = (
        "object {name!r} of bucket {bucket!r} has digest {found!r}, not {expected!r}: its content was changed"
    )


class LinkError(_Fields):
    """A link in an object store does not lead to an object.

    Attributes:
        bucket, name: The bucket and the name of the link.
        reason: Why the link cannot be followed.
    """

    bucket: str
    name: str
    reason: str
    _text = "{name!r} in bucket {bucket!r}: {reason}"


class ServiceError(_Fields):
    """An error that a service returns instead of a result. The handler of an endpoint raises it.

    Attributes:
        code: A number, by convention an HTTP status code.
        description: A line of text for people.
        data: The payload of the answer.
    """

    code: int
    description: str
    data: bytes = b""

    def __str__(self) -> str:
        return f"{self.description} (code {self.code})"


class ProtocolError(JetStreamError):
    """The server, or a client that impersonates it, violated the protocol."""


class AnswerLostError(ProtocolError):
    """A part of an answer was lost in transit. The part that arrived is valid, and the request can be repeated."""


class PublishError(JetStreamError):
    """A publish was refused, or its answer is invalid."""


class BatchAbandonedError(PublishError):
    """The batch ended before its commit, so nothing was stored. ``__cause__`` is the reason."""


class BatchNotAtomicError(_Fields, PublishError):
    """The server does not support batches, so it stored messages of the batch one by one.

    Attributes:
        batch: The id of the batch, which is in a header of each stored message.
        stream: The stream that stored the messages.
        seq: The stream sequence of the message that revealed it.
    """

    batch: str
    stream: str
    seq: int
    _text = (
        "the server stored messages of batch {batch} one by one (stream {stream!r}, at {seq}): "
        "it does not support batches; 2.12 is needed"
    )


class IngestError(_Fields, PublishError):
    """A fast ingest ended before all messages were stored. ``__cause__`` is the reason.

    Attributes:
        reason: What happened.
        sent: Number of messages sent.
        stored: Number of messages, counted from the first, that are known to be stored. If gaps are allowed, some of
            them may be missing.
        complete: True if no later message was stored. False if the outcome of the later messages is unknown.
    """

    reason: str
    sent: int
    stored: int
    complete: bool = False

    def __str__(self) -> str:
        rest = "none of the others is" if self.complete else "the outcome of the others is unknown"
        return f"{self.reason}; of {self.sent} messages sent the first {self.stored} are stored, {rest}"


class FailedPublishInfo(tuple[str, JetStreamError]):
    """A failed publish in `PublishesFailedError`: the tuple ``(subject, error)`` with further attributes.

    Attributes:
        number: The number of the message, from 1, in the order in which the publisher sent its messages, as
            `Publisher.published` counts. 0 if unknown.
        msg_id: The id of the message, if it has an id.
    """

    number: int
    msg_id: str | None

    def __new__(cls, subject: str, error: JetStreamError, number: int = 0, msg_id: str | None = None) -> Self:
        info = super().__new__(cls, (subject, error))
        info.number, info.msg_id = number, msg_id
        return info

    def __getnewargs__(self) -> tuple[Any, ...]:
        return *self, self.number, self.msg_id

    @property
    def subject(self) -> str:
        """The subject of the message."""
        return self[0]

    @property
    def error(self) -> JetStreamError:
        """Why the publish failed, or why its outcome is unknown."""
        return self[1]

    def __repr__(self) -> str:
        return f"FailedPublishInfo({self[0]!r}, {self[1]!r}, number={self.number}, msg_id={self.msg_id!r})"


class PublishesFailedError(_Fields, PublishError):
    """Publishes failed and their futures were never awaited.

    Attributes:
        failures: A `FailedPublishInfo`, a tuple ``(subject, error)``, for each failure, in order. `ApiError` and
            `NoRespondersError` mean that the message was not stored. After `RequestTimeoutError`, `DisconnectedError`
            and `ClosedError` the outcome is unknown.
        reported: Number of earlier failures that were reported as `PublishFailed` events.
    """

    failures: list[FailedPublishInfo]
    reported: int = 0

    @property
    def told(self) -> int:
        """An older name of ``reported``."""
        return self.reported

    def __str__(self) -> str:
        if not self.failures:
            failed = counted(self.reported, "publish failed", "publishes failed")
            return f"{failed}, which PublishFailed events have reported"
        shown = _first([f"{subject!r}: {error}" for subject, error in self.failures], 3)
        if self.reported:
            earlier = counted(self.reported, "earlier one was", "earlier ones were")
            shown.append(f"{earlier} reported as PublishFailed events")
        count = len(self.failures) + self.reported
        return counted(count, "publish failed: ", "publishes failed: ") + "; ".join(shown)


class PublishManyError(_Fields, PublishError):
    """`JetStream.publish_many` did not store all messages. It stops sending after the first failure.

    Attributes:
        failures: ``(index, error)`` for each message that failed, in the order of the payloads. If a message was
            sent, its outcome is unknown after `RequestTimeoutError`, `DisconnectedError` and `ClosedError`. After any
            other error the message was not stored.
        sent: Number of messages that were sent. Messages with an index below it that are not in ``failures`` are
            stored. Messages with this index or a higher index were not sent.
        stored: Number of messages that are stored.
    """

    failures: list[tuple[int, JetStreamError]]
    sent: int
    stored: int

    def __str__(self) -> str:
        indexes: dict[str, list[int]] = {}  # indexes of the messages that failed for the same reason
        for index, error in self.failures:
            indexes.setdefault(str(error), []).append(index)
        shown = _first([f"{_some(failed)}: {why}" for why, failed in indexes.items()], 3)
        stored = counted(self.sent, "sent message is stored", "sent messages are stored")
        return f"{self.stored:,} of {stored}; failures by index: " + "; ".join(shown)


class MaxPayloadError(_Fields, PublishError):
    """The headers and payload together are larger than the server accepts.

    Attributes:
        size: Bytes of headers and payload.
        limit: The server's ``max_payload``, in bytes.
    """

    size: int
    limit: int
    _text = (
        "{size} bytes of headers and payload; the server accepts at most {limit}: send less, in several messages for "
        "instance, or raise max_payload of the server"
    )


class TooManyInFlightError(JetStreamError):
    """The publish window is full, because too many publishes wait for their acks."""


class ServerNotFoundError(JetStreamError, FileNotFoundError):
    """No nats-server executable was found."""


class ServerStartError(_Fields, RuntimeError):
    """The nats-server exited or did not become ready.

    Attributes:
        reason: What happened.
        log: The last lines of the server's log.
    """

    reason: str
    log: str

    def __str__(self) -> str:
        return f"{self.reason}; its log ends with:\n{self.log}" if self.log else self.reason
