"""The user's subscribe request: its fields, and the checks before it is sent. Source: ADR-15 §Creation."""

from __future__ import annotations

import msgspec

from ...errors import (
    ConfigError,
)
from ..models.consumer import AckPolicy, ConsumerConfig
from ..models.consumer_checks import check_filters
from ..wire.checks import check_count
from ..wire.names import (
    check_consumer_name,
    check_filter_subject,
    check_publish_subject,
    check_queue,
    check_stream_name,
)
from .monitors import FLOW_CONTROL_WINDOW
from .ordered import check_ordered, ordered_config

__all__ = ["FLOW_CONTROL_WINDOW", "SubscribeRequest", "check_request"]

SERVER_MAX_ACK_PENDING = 1000  # the server's default


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's arguments of a subscribe call."""

    subject: str | None = None
    stream: str | None = None
    consumer: str | None = None
    durable: str | None = None
    queue: str | None = None
    config: ConsumerConfig = ConsumerConfig()
    pull: bool = False
    ordered: bool = False
    max_pending: int | None = None  # capacity in messages, None for the default
    max_pending_bytes: int | None = None
    # Number of heartbeat intervals without a message or heartbeat before the alarm.
    heartbeat_alarm: float = 3.0
    gap_alarm: bool = True
    flow_control_prefixes: tuple[str, ...] = ()
    mark: str = ""  # unique to this call: see `subscribe._marked`


def _agree(what: str, argument: str | None, field: str | None) -> str | None:
    """Return the value that is given as an argument or in the config. Raises `ConfigError` if both differ."""
    argument, field = argument or None, field or None
    if argument is not None and field is not None and argument != field:
        raise ConfigError(
            f"{what} is given twice and differs: {argument!r} as argument, {field!r} in the config"
        )
    return argument or field


def _check_not_empty(request: SubscribeRequest) -> None:
    """Refuse an empty name. If it counted as None, a wrongly computed name would create an ephemeral consumer."""
    names = ("subject", "stream", "consumer", "durable", "queue")
    values = {name: getattr(request, name) for name in names}
    values["config.durable_name"] = request.config.durable_name
    if empty := sorted(name for name, value in values.items() if value == ""):
        raise ConfigError(f"{', '.join(empty)} is an empty text: leave it out, or pass None")


def check_request(request: SubscribeRequest) -> SubscribeRequest:
    """Check a request, and merge its arguments and config.

    Raises:
        ConfigError: A value is invalid, or contradicts another value.
        InvalidNameError: A name or a subject is not valid.
    """
    config = request.config
    if not isinstance(config, ConsumerConfig):
        raise ConfigError(f"config is {type(config).__name__}: it must be a ConsumerConfig")
    _check_not_empty(request)
    subject = request.subject
    if not config.filter_subjects:
        subject = _agree("the subject", subject, config.filter_subject)
    stream, consumer = request.stream, request.consumer
    durable = _agree("the durable name", request.durable, config.durable_name)
    queue = _agree("the queue group", request.queue, config.deliver_group)
    _check_names(subject, stream, consumer, durable)
    _check_config_names(config, consumer or durable)
    if request.ordered:
        if consumer is not None or durable is not None:
            raise ConfigError(
                "an ordered consumer is neither durable nor bound to: leave consumer and durable out"
            )
        check_ordered(config, queue)
        config = ordered_config(config)
    if queue is not None:
        _check_queue(queue, config, named=consumer is not None or durable is not None)
        if consumer is None and durable is None:
            durable = queue  # ADR-15: the members of a group share a durable consumer of that name
    if request.pull:
        _check_pull(config)
    else:
        _check_push(config)
    if config.deliver_subject is not None:
        check_publish_subject(config.deliver_subject)
    if config.inactive_threshold is not None and config.inactive_threshold < 0:
        raise ConfigError(f"inactive_threshold is {config.inactive_threshold} s: it must be 0 or more")
    check_room(request, config)
    for prefix in request.flow_control_prefixes:
        check_publish_subject(prefix.removesuffix("."))
    alarm = request.heartbeat_alarm
    if isinstance(alarm, bool) or not isinstance(alarm, int | float) or not alarm >= 1:
        raise ConfigError(f"heartbeat_alarm is {alarm!r} intervals: it must be 1 or more")
    return msgspec.structs.replace(
        request,
        subject=subject,
        stream=stream,
        consumer=consumer,
        durable=durable,
        queue=queue,
        config=config,
    )


def _check_names(subject: str | None, stream: str | None, consumer: str | None, durable: str | None) -> None:
    if subject is None and stream is None:
        raise ConfigError(
            "neither a subject nor a stream is given: the consumer can be neither found nor created"
        )
    if consumer is not None and durable is not None and consumer != durable:
        raise ConfigError(f"consumer {consumer!r} and durable {durable!r} are both given: give one of them")
    if subject is not None:
        check_filter_subject(subject)
    if stream is not None:
        check_stream_name(stream)
    if consumer is not None:
        check_consumer_name(consumer)
    if durable is not None:
        check_consumer_name(durable, "durable")


def _check_config_names(config: ConsumerConfig, name: str | None) -> None:
    if config.name is not None:
        check_consumer_name(config.name)
        if name is not None and config.name != name:
            raise ConfigError(f"the consumer is {name!r} and in the config {config.name!r}: give one of them")
    check_filters(config)


def _check_queue(queue: str, config: ConsumerConfig, *, named: bool) -> None:
    if named:
        check_queue(queue)
    else:
        check_consumer_name(queue, "queue")  # the queue becomes the durable name
    if config.idle_heartbeat:
        raise ConfigError("a queue group cannot have an idle heartbeat: it would reach one member at random")
    if config.flow_control:
        raise ConfigError(
            "a queue group cannot have flow control: its messages would reach one member at random"
        )


_OF_PULL_REQUESTS = ("max_batch", "max_expires", "max_bytes")


def _check_push(config: ConsumerConfig) -> None:
    for name in _OF_PULL_REQUESTS:
        if getattr(config, name):
            raise ConfigError(f"{name} limits pull requests: leave it out, or use pull_subscribe()")


def _check_pull(config: ConsumerConfig) -> None:
    if config.ack_policy in {AckPolicy.NONE, AckPolicy.ALL}:
        raise ConfigError(f"a pull subscription cannot have ack policy {config.ack_policy}: use explicit")
    if config.deliver_subject is not None:
        raise ConfigError("a pull subscription cannot have a deliver subject: leave deliver_subject out")
    if config.deliver_group is not None:
        raise ConfigError(
            "a pull subscription cannot have a deliver group: its readers share the consumer as it is"
        )


def check_room(request: SubscribeRequest, config: ConsumerConfig) -> None:
    limit = request.max_pending_bytes
    if request.max_pending is not None:
        check_count("max_pending", request.max_pending)
    if limit is not None:
        check_count("max_pending_bytes", limit)
    # Only an ordered reader can resume at its position after an overflow. Any other reader would lose messages or get
    # redeliveries.
    if limit is not None and config.flow_control and not request.ordered and limit < FLOW_CONTROL_WINDOW:
        raise ConfigError(
            f"max_pending_bytes is {limit}: with flow control the server sends up to {FLOW_CONTROL_WINDOW} bytes "
            "before it waits; allow that much, or use max_ack_pending or a pull subscription for a smaller bound"
        )
    if _may_overflow(request, config):
        raise ConfigError(
            f"max_pending is {request.max_pending}: with flow control the server sends up to {FLOW_CONTROL_WINDOW} "
            "bytes before it waits, however many messages they are; leave max_pending out, or use acks with "
            "max_ack_pending or a pull subscription for a smaller bound"
        )


def _may_overflow(request: SubscribeRequest, config: ConsumerConfig) -> bool:
    """Return whether messages may be lost under flow control, because the server sends more than ``max_pending``."""
    limit = request.max_pending
    if limit is None or not config.flow_control or request.ordered:
        return False
    if config.ack_policy == AckPolicy.NONE:
        return True
    # The server redelivers messages that were dropped, so they aren't lost. With policy ALL, however, the ack of a
    # later message covers them too, and they are not redelivered.
    unacked = config.max_ack_pending or min(SERVER_MAX_ACK_PENDING, limit)
    return config.ack_policy == AckPolicy.ALL and not 0 < unacked <= limit
