"""The subscribe workflow of ADR-15, from the user's request to a bound consumer.

`check_request` normalizes and checks the arguments before any request is sent. `check_binding` checks that an
existing consumer matches them, without a change on the server.

`subscribe_workflow` is a generator. It yields the steps that need the server, receives their answers (or their
errors, by ``throw``) and returns a `Binding`. It follows the order of the ADR, does no I/O, and makes all decisions.
If it fails, the runtime removes the NATS subscription that it has created.

Source: ADR-15 §Creation.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

import msgspec

from ...errors import (
    ApiError,
    BindError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    NoMatchingStreamError,
    NoRespondersError,
    NotQueueConsumerError,
    PermissionDeniedError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    RequestTimeoutError,
    SubjectMismatchError,
)
from ..models.consumer import AckPolicy, ConsumerConfig, ConsumerInfo
from ..models.drift import config_mismatches
from .ordered import HEARTBEAT
from .subscribe_request import SERVER_MAX_ACK_PENDING, SubscribeRequest, check_request, check_room

__all__ = [
    "Binding",
    "Create",
    "FindStream",
    "Listen",
    "LookUp",
    "Step",
    "StopListening",
    "check_binding",
    "creation_config",
    "is_certainly_ours",
    "subscribe_workflow",
]


def creation_config(request: SubscribeRequest) -> ConsumerConfig:
    """Return the configuration to create: the user's configuration, completed by the workflow."""
    config = request.config
    changes: dict[str, Any] = {}
    if request.subject is not None and not config.filter_subjects:
        changes["filter_subject"] = request.subject
    if request.durable is not None:
        changes["durable_name"] = request.durable
    if config.ack_policy is None:
        changes["ack_policy"] = AckPolicy.EXPLICIT
    if not request.pull and request.queue is not None:
        changes["deliver_group"] = request.queue
    elif not request.pull and config.idle_heartbeat is None and not config.flow_control:
        changes["idle_heartbeat"] = HEARTBEAT  # only missing heartbeats show that the consumer was deleted
    acks = config.ack_policy is not AckPolicy.NONE
    limit = request.max_pending
    if (
        acks
        and not request.pull
        and config.max_ack_pending is None
        and limit
        and limit < SERVER_MAX_ACK_PENDING
    ):
        changes["max_ack_pending"] = limit  # the server then never sends more messages than the queue holds
    return _marked(request, config.replace(**changes))


_MARK = "jsclient.subscriber"  # the key in the consumer's metadata that marks a subscriber


def _marked(request: SubscribeRequest, config: ConsumerConfig) -> ConsumerConfig:
    """Make the configuration unique to this call.

    If two clients create a consumer at the same moment with the same configuration, the server answers both with
    success, and both would delete the consumer at their end. A new inbox as the deliver subject distinguishes the
    clients. Without a new inbox, a mark in the metadata does.
    """
    named = config.durable_name is not None or config.name is not None
    if not request.mark or not named or not (request.pull or config.deliver_subject):
        return config
    return config.replace(metadata={**(config.metadata or {}), _MARK: request.mark})


_Wrong: TypeAlias = tuple[type[BindError], str]


def check_binding(request: SubscribeRequest, info: ConsumerInfo) -> None:
    """Check that an existing consumer matches. Source: ADR-15 §Push Consumer active information …, §Other checks.

    Raises:
        BindError: The consumer does not match. The text describes the difference and the possible solutions.
        ConfigError: The server's flow control allows more messages than the request's limits.
    """
    config = info.config
    wrong: _Wrong | None
    if bool(config.deliver_subject) == request.pull:
        wrong = _wrong_kind(config)
    else:
        wrong = (None if request.pull else _wrong_group(request, info)) or _wrong_subject(request, config)
    if wrong is not None:
        kind, text = wrong
        raise kind(info.stream_name, info.name, text)
    if mismatches := config_mismatches(request.config, config):
        raise ConfigMismatchError(info.stream_name, info.name, mismatches)
    check_room(request, config)


def _wrong_kind(config: ConsumerConfig) -> _Wrong:
    if config.deliver_subject:
        return PushConsumerError, (
            "cannot create a pull subscription for a push consumer "
            f"(it delivers to {config.deliver_subject!r}); use subscribe()"
        )
    text = "it is a pull consumer: a pull subscription is required; use pull_subscribe()"
    return PullConsumerError, text


_OTHER = "leave out the subject to read with that filter, or use another durable name"


def _wrong_subject(request: SubscribeRequest, config: ConsumerConfig) -> _Wrong | None:
    subject, single, several = request.subject, config.filter_subject, config.filter_subjects
    if subject is None:
        return None
    if single and single != subject:
        return (
            SubjectMismatchError,
            f"subject mismatch: wanted {subject!r}, it filters on {single!r}; {_OTHER}",
        )
    if several and several != [subject] and not request.config.filter_subjects:
        return (
            SubjectMismatchError,
            f"subject mismatch: wanted {subject!r}, it filters on {several!r}; {_OTHER}",
        )
    return None


def _wrong_group(request: SubscribeRequest, info: ConsumerInfo) -> _Wrong | None:
    config, queue, group = info.config, request.queue, info.config.deliver_group or None
    if queue is None and group is not None:
        return QueueRequiredError, (
            "cannot create a non queue subscription for a consumer created for a queue group: "
            f"its group is {group!r}; give queue={group!r}"
        )
    if queue is None and info.push_bound:
        # Refuse a second subscriber. Without a group, both would receive every message.
        return DuplicateSubscriptionError, (
            "duplicate subscription: another subscriber receives from it already; "
            "use another durable, or a queue group"
        )
    if queue is None:
        return None
    if group is None:
        return NotQueueConsumerError, (
            "cannot create a queue subscription for a consumer created without a deliver group: "
            f"queue {queue!r} was requested; leave queue out, or use another consumer"
        )
    if group != queue:
        return QueueMismatchError, (
            "cannot create a queue subscription for a consumer created for a different queue group: "
            f"wanted {queue!r}, found {group!r}"
        )
    if config.flow_control:
        return QueueFlowControlError, "flow control is not supported over queues: make it without"
    if config.idle_heartbeat:
        text = "heartbeats are not supported over queues: make it without idle_heartbeat"
        return QueueHeartbeatError, text
    return None


class FindStream(msgspec.Struct, frozen=True):
    """Request the names of the streams with a subject. The answer is a list of names."""

    subject: str


class LookUp(msgspec.Struct, frozen=True):
    """Request the info of a consumer. The answer is its `ConsumerInfo`, or the error."""

    stream: str
    consumer: str


class Listen(msgspec.Struct, frozen=True):
    """Create the NATS subscription, to a new inbox if ``subject`` is None. The answer is the subject."""

    subject: str | None
    queue: str | None


class StopListening(msgspec.Struct, frozen=True):
    """Remove the NATS subscription. There is no answer."""


class Create(msgspec.Struct, frozen=True):
    """Create the consumer. The answer is its `ConsumerInfo`, or the error."""

    stream: str
    config: ConsumerConfig


Step: TypeAlias = FindStream | LookUp | Listen | StopListening | Create


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer of a subscription. ``info`` is None if it could not be looked up (pull by name).

    ``is_named`` is true if the user has named the consumer with ``consumer``, ``durable``, ``queue`` or the config.
    """

    stream: str
    consumer: str
    info: ConsumerInfo | None
    created: bool
    deliver_subject: str | None = None
    queue: str | None = None
    is_named: bool = False

    @property
    def config(self) -> ConsumerConfig | None:
        """The configuration of the consumer, or None if it is unknown."""
        return None if self.info is None else self.info.config

    @property
    def is_durable(self) -> bool:
        """Whether the consumer outlives its readers."""
        return self.config is not None and bool(self.config.durable_name)


def subscribe_workflow(request: SubscribeRequest) -> Generator[Step, Any, Binding]:  # noqa: C901  the ADR's steps
    """Find the stream, and bind to the consumer or create it.

    Raises:
        ConfigError: The request is invalid. It is raised before the first step.
        NoMatchingStreamError: No stream, or more than one, has the subject.
        BindError: The consumer exists but does not match.
        ApiError: The server refused a step.
    """
    request = check_request(request)
    stream = request.stream
    if stream is None:
        subject = request.subject or ""
        names: list[str] = yield FindStream(subject)
        if len(names) != 1:
            raise NoMatchingStreamError(subject, names)
        stream = names[0]

    name = request.consumer or request.durable or request.config.name
    if name is not None:
        try:
            info: ConsumerInfo = yield LookUp(stream, name)
        except (ApiError, RequestTimeoutError, NoRespondersError, PermissionDeniedError) as error:
            if request.consumer is not None:
                if not request.pull:
                    raise
                # Pulling works without the consumer's info, which this user may not be allowed to request, so ignore
                # the error.
                return Binding(stream=stream, consumer=name, info=None, created=False)
            if not isinstance(error, ConsumerNotFoundError):
                raise
        else:
            check_binding(request, info)
            if not request.pull:
                yield Listen(info.config.deliver_subject, request.queue)
            return _bound(request, info)

    config = creation_config(request)
    if not request.pull:
        # Subscribe before creating the consumer. The server considers a durable to be in use only while there is
        # interest in its deliver subject, so another client could otherwise bind to it right after the creation.
        deliver_subject: str = yield Listen(config.deliver_subject, request.queue)
        config = config.replace(deliver_subject=deliver_subject)
    try:
        info = yield Create(stream, config)
    except ConsumerExistsError:
        if name is None:
            raise
        return (yield from _lost_race(request, stream, name))
    return _bound(request, info, created=True)


def _lost_race(request: SubscribeRequest, stream: str, name: str) -> Generator[Step, Any, Binding]:
    """Bind to a consumer that another client created after the look-up and before the create."""
    if not request.pull:
        yield StopListening()
    info: ConsumerInfo = yield LookUp(stream, name)
    check_binding(request, info)
    if not request.pull:
        if request.queue is None:
            raise DuplicateSubscriptionError(
                stream,
                name,
                "another subscriber created it at the same moment; use another durable, or a queue",
            )
        yield Listen(info.config.deliver_subject, request.queue)
    return _bound(request, info)


def _bound(request: SubscribeRequest, info: ConsumerInfo, *, created: bool = False) -> Binding:
    return Binding(
        stream=info.stream_name,
        consumer=info.name,
        info=info,
        created=created,
        deliver_subject=info.config.deliver_subject,
        queue=request.queue,
        is_named=bool(request.consumer or request.durable or request.config.name),
    )


def is_certainly_ours(request: SubscribeRequest, step: Create, info: ConsumerInfo) -> bool:
    """Return whether ``step`` certainly created the consumer, as its new deliver subject or its mark shows."""
    chosen = not request.pull and request.config.deliver_subject is None
    if chosen:
        return info.config.deliver_subject == step.config.deliver_subject
    return bool(request.mark) and (info.config.metadata or {}).get(_MARK) == request.mark
