"""Checks that an existing consumer matches a subscription. Nothing is changed on the server.

Source: ADR-15 §Push Consumer active information and queue group binding, §Other checks.
"""

from __future__ import annotations

from typing import Protocol

from ...errors import (
    ConfigMismatchError,
    DuplicateSubscriptionError,
    NotQueueConsumerError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    SubjectMismatchError,
)
from ..models.consumer import ConsumerConfig, ConsumerInfo
from ..models.mismatch import config_mismatches

__all__ = ["Wanted", "check_binding"]


class Wanted(Protocol):
    """The requirements of a subscription on its consumer."""

    @property
    def subject(self) -> str | None: ...
    @property
    def queue(self) -> str | None: ...
    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def pull(self) -> bool: ...


def check_binding(request: Wanted, info: ConsumerInfo) -> None:
    """Check that an existing consumer matches.

    Raises:
        BindError: It does not match; the text says how, and what to do.
    """
    stream, name, found = info.stream_name, info.name, info.config
    is_push = bool(found.deliver_subject)
    if request.pull and is_push:
        raise PushConsumerError(
            stream,
            name,
            "cannot create a pull subscription for a push consumer "
            f"(it delivers to {found.deliver_subject!r}); use subscribe()",
        )
    if not request.pull:
        if not is_push:
            raise PullConsumerError(
                stream, name, "it is a pull consumer: a pull subscription is required; use pull_subscribe()"
            )
        _check_group(request, info)
    filter_subject = found.filter_subject
    if filter_subject and request.subject is not None and filter_subject != request.subject:
        raise SubjectMismatchError(
            stream, name, f"subject mismatch: wanted {request.subject!r}, it filters on {filter_subject!r}"
        )
    several = found.filter_subjects
    if (
        several
        and request.subject is not None
        and several != [request.subject]
        and not request.config.filter_subjects
    ):
        raise SubjectMismatchError(
            stream, name, f"subject mismatch: wanted {request.subject!r}, it filters on {several!r}"
        )
    mismatches = config_mismatches(request.config, found)
    if mismatches:
        raise ConfigMismatchError(stream, name, mismatches)


def _check_group(request: Wanted, info: ConsumerInfo) -> None:
    stream, name, found, queue = info.stream_name, info.name, info.config, request.queue
    group = found.deliver_group or None
    if queue is None:
        if group is not None:
            raise QueueRequiredError(
                stream,
                name,
                "cannot create a non queue subscription for a consumer created for a queue group: "
                f"its group is {group!r}; give queue={group!r}",
            )
        if info.push_bound:
            raise DuplicateSubscriptionError(
                stream,
                name,
                "duplicate subscription: another subscriber receives from it already; "
                "use another durable, or a queue group",
            )
        return
    if group is None:
        raise NotQueueConsumerError(
            stream,
            name,
            "cannot create a queue subscription for a consumer created without a deliver group: "
            f"queue {queue!r} was requested; leave queue out, or use another consumer",
        )
    if group != queue:
        raise QueueMismatchError(
            stream,
            name,
            "cannot create a queue subscription for a consumer created for a different queue group: "
            f"wanted {queue!r}, found {group!r}",
        )
    if found.flow_control:
        raise QueueFlowControlError(
            stream, name, "flow control is not supported over queues: make it without"
        )
    if found.idle_heartbeat:
        raise QueueHeartbeatError(
            stream, name, "heartbeats are not supported over queues: make it without idle_heartbeat"
        )
