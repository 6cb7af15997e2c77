"""The subscribe workflow of ADR-15, from the user's request to a bound consumer.

`subscribe_workflow` is a generator: it yields the steps that need the server, is sent their answers (or has their
errors thrown in) and returns a `Binding`. It reads top to bottom like the ADR, does no I/O, and makes all decisions.
If it fails, the runtime removes a NATS subscription it has made. Source: ADR-15 §Creation.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

import msgspec

from ...errors import (
    ApiError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    NoMatchingStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..models.consumer import ConsumerConfig, ConsumerInfo
from .binding import check_binding
from .subscribe_request import SubscribeRequest, check_request, creation_config

__all__ = [
    "Binding",
    "Create",
    "FindStream",
    "Listen",
    "LookUp",
    "Step",
    "StopListening",
    "is_certainly_ours",
    "subscribe_workflow",
]


class FindStream(msgspec.Struct, frozen=True):
    """Ask for the names of the streams that hold a subject. Answer: list of names."""

    subject: str


class LookUp(msgspec.Struct, frozen=True):
    """Ask for a consumer. Answer: its `ConsumerInfo`, or the error."""

    stream: str
    consumer: str


class Listen(msgspec.Struct, frozen=True):
    """Make the NATS subscription. ``subject`` None: on a new inbox. Answer: the subject."""

    subject: str | None
    queue: str | None


class StopListening(msgspec.Struct, frozen=True):
    """Remove the NATS subscription. No answer."""


class Create(msgspec.Struct, frozen=True):
    """Create the consumer. Answer: its `ConsumerInfo`, or the error."""

    stream: str
    config: ConsumerConfig


Step: TypeAlias = FindStream | LookUp | Listen | StopListening | Create


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription's consumer. ``info`` is None if it could not be looked up (pull by name)."""

    stream: str
    consumer: str
    info: ConsumerInfo | None
    created: bool
    deliver_subject: str | None = None
    queue: str | None = None

    @property
    def is_durable(self) -> bool:
        """Whether the consumer outlives its readers."""
        return self.info is not None and bool(self.info.config.durable_name)


def subscribe_workflow(request: SubscribeRequest) -> Generator[Step, Any, Binding]:  # noqa: C901  the ADR's own order
    """Find the stream, bind to the consumer or create it.

    Raises:
        ConfigError: Before the first step: the request is invalid.
        NoMatchingStreamError: Not exactly one stream holds the subject.
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
        # Before the create: the server recognizes a durable in use by its interest.
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
    """Another client created the consumer between our look-up and our create."""
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
    )


def is_certainly_ours(request: SubscribeRequest, step: Create, found: ConsumerInfo) -> bool:
    """Whether ``found`` was created by ``step``: only a deliver subject chosen by us proves it."""
    chosen = not request.pull and request.config.deliver_subject is None
    return chosen and found.config.deliver_subject == step.config.deliver_subject
