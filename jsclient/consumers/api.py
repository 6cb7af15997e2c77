"""The methods of `JetStream` that read messages from streams. Source: ADR-15, ADR-17, ADR-37."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from .._runtime.context import Context
from .._runtime.handle import Opening, opening
from ..errors import ConfigError
from ..protocol.models.consumer import (
    ConsumerConfig,
    DeliverPolicy,
    DeliverPolicyText,
    ReplayPolicy,
    ReplayPolicyText,
)

if TYPE_CHECKING:  # imported inside the methods, to keep `import jsclient` fast
    from .ordered.consumer import OrderedConsumer
    from .ordered.subscription import OrderedSubscription
    from .pull.subscription import PullSubscription
    from .push.subscription import Callback, Subscription

__all__ = ["Subscribing"]


class OrderedFields(TypedDict, total=False):
    """Less common fields of a `ConsumerConfig` that `JetStream.ordered_consumer` accepts as keyword arguments."""

    description: str | None
    metadata: dict[str, str] | None
    num_replicas: int | None
    mem_storage: bool | None
    max_batch: int | None
    max_bytes: int | None
    max_expires: float | timedelta | None
    max_waiting: int | None
    pause_until: datetime | str | None
    extra: dict[str, Any]


class SubscribeOptions(TypedDict, total=False):
    """Keyword arguments of `JetStream.subscribe`, except for ``subject`` and ``ordered``."""

    stream: str | None
    consumer: str | None
    durable: str | None
    queue: str | None
    config: ConsumerConfig | None
    callback: Callback | None
    auto_ack: bool | None
    heartbeat_alarm: float
    gap_alarm: bool
    flow_control_prefixes: Sequence[str]
    delete_on_close: bool | None
    max_pending: int | None
    max_pending_bytes: int | None


class Subscribing:
    """Base class of `JetStream` that provides the methods for reading messages."""

    _context: Context

    @overload
    def subscribe(
        self, subject: str | None = None, *, ordered: Literal[True], **options: Unpack[SubscribeOptions]
    ) -> Opening[OrderedSubscription]: ...
    @overload
    def subscribe(
        self, subject: str | None = None, *, ordered: bool = False, **options: Unpack[SubscribeOptions]
    ) -> Opening[Subscription]: ...
    @opening  # type: ignore[misc]  # the steps return the common class of both
    async def subscribe(
        self,
        subject: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        durable: str | None = None,
        queue: str | None = None,
        config: ConsumerConfig | None = None,
        callback: Callback | None = None,
        ordered: bool = False,
        auto_ack: bool | None = None,
        heartbeat_alarm: float = 3.0,
        gap_alarm: bool = True,
        delete_on_close: bool | None = None,
        max_pending: int | None = None,
        max_pending_bytes: int | None = None,
        flow_control_prefixes: Sequence[str] = (),
    ) -> Subscription:
        """Subscribe to a push consumer. The consumer is created unless it exists.

        ::

            async with js.subscribe("orders.>") as subscription:
                async for message in subscription:
                    ...
                    await message.ack()

        Args:
            subject: The subject to read, which becomes the consumer's filter. Wildcards are allowed. It is required
                unless ``stream`` is given.
            stream: The stream. The default is the stream that has ``subject``.
            consumer: Name of an existing consumer. The call fails if it does not exist.
            durable: Name of a durable consumer, which is created if it does not exist.
            queue: The queue group. The server delivers each message to one member of the group. Unless ``consumer`` or
                ``durable`` is given, the durable consumer has the name of the group.
            config: Further fields of the consumer. They are used to create the consumer. An existing consumer must have
                the same values and is never modified. A new consumer outside a queue group sends idle heartbeats every
                5 s, unless ``idle_heartbeat`` has another value. 0 turns heartbeats off.
            callback: Called with each message, one after the other. A coroutine function runs on the event loop, a
                plain function in a thread, so that it may block. When it returns, the message is acked (see
                ``auto_ack``). When it raises, the event `HandlerFailed` reports it.
            ordered: Deliver every message exactly once and in order. The consumer is recreated whenever deliveries may
                be missing (ADR-17), and messages need no acks.
            auto_ack: Ack each message after the callback returns, unless the callback has acked it. While the client is
                disconnected, the ack and the next messages wait for the reconnect. This is the default with a callback.
                Set it to False if the callback acks messages by itself.
            heartbeat_alarm: Number of idle heartbeats that may be missed before the event `HeartbeatMissed`.
            gap_alarm: Report missing deliveries with the event `GapDetected`. A queue group never reports them.
            delete_on_close: Delete the consumer when the subscription ends, if this call created it. This is the
                default (ADR-15), also for durable consumers: the event `ConsumerNotKept` warns when a named consumer is
                created, and `DurableDeleted` reports its deletion. True deletes the consumer without the warning.
                Set it to False to keep a durable consumer for the next run of the program, or for the other members of
                a queue group.
            max_pending: Number of messages that may be buffered, 524,288 by default. When the buffer is full, messages
                are dropped and the event `SlowConsumer` reports it. An ordered subscription reads them again. A value
                below 1,000 also limits ``max_ack_pending``, so that the server stops before the buffer is full. With
                flow control only bytes are limited, and a number that the server may exceed is refused.
            max_pending_bytes: Number of bytes that may be buffered, 64 MiB by default. For an ordered subscription the
                default is 12 MiB, unless its stream removes messages when they are delivered, or it reads the last
                message per subject.
            flow_control_prefixes: Prefixes of flow control subjects to answer besides ``$JS.FC.``, which nats-server
                uses. A flow control request with another subject is reported as `FlowControlRefused`.

        Raises:
            ConfigError: An argument is not valid, in which case no request was sent. Or no message of ``stream`` can
                match the filter, in which case a new consumer was deleted again.
            NoMatchingStreamError: No stream, or more than one, has ``subject``.
            BindError: The consumer exists but has another configuration. Each difference has its own subclass.
            ApiError: The server refused the request. ``err_code`` tells the reason.

        May also raise any error of an API request.

        If the call fails or is cancelled, it leaves no consumer, NATS subscription or task behind. There is one
        exception: if the server did not answer the creation of an ephemeral consumer, that consumer may exist until
        the server removes it after its ``inactive_threshold`` (5 s by default).

        Source: ADR-15
        """
        from ..protocol.consumers.subscribe_request import SubscribeRequest
        from .opening import open_subscription

        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            queue=queue,
            config=config if config is not None else ConsumerConfig(),
            ordered=ordered,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            heartbeat_alarm=heartbeat_alarm,
            gap_alarm=gap_alarm,
            flow_control_prefixes=tuple(flow_control_prefixes),
        )
        return await open_subscription(
            self._context, request, callback=callback, auto_ack=auto_ack, delete_on_close=delete_on_close
        )

    @opening
    async def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfig | None = None,
        delete_on_close: bool | None = None,
    ) -> PullSubscription:
        """Subscribe to a pull consumer. The consumer is created unless it exists.

        ::

            async with js.pull_subscribe("orders.>", "billing") as subscription:
                for message in await subscription.fetch(100):
                    ...
                    await message.ack()

        Without ``durable`` or ``consumer``, the new consumer exists for this subscription only.

        For the arguments and errors see `subscribe`. If ``consumer`` is given but can't be looked up, the subscription
        is opened anyway, because the user may have only the permission to pull. Any error is then raised by
        `PullSubscription.fetch`. The ack policies none and all are refused (ADR-15). If you need them, use
        `Stream.create_consumer` and `Consumer.fetch`.

        Source: ADR-15
        """
        from ..protocol.consumers.subscribe_request import SubscribeRequest
        from .opening import open_pull_subscription

        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            config=config if config is not None else ConsumerConfig(),
            pull=True,
        )
        return await open_pull_subscription(self._context, request, delete_on_close=delete_on_close)

    def ordered_consumer(
        self,
        stream: str,
        *,
        filter_subjects: Sequence[str] | None = None,
        filter_subject: str | None = None,
        deliver_policy: DeliverPolicy | DeliverPolicyText | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | str | None = None,
        headers_only: bool | None = None,
        replay_policy: ReplayPolicy | ReplayPolicyText | None = None,
        inactive_threshold: float | None = None,
        name_prefix: str | None = None,
        max_reset_attempts: int | None = None,
        **fields: Unpack[OrderedFields],
    ) -> Opening[OrderedConsumer]:
        """Read a stream in order, each message exactly once, with pull requests.

        ::

            async with js.ordered_consumer("ORDERS") as reader:
                async for message in reader:
                    ...

        Messages need no acks. The server keeps the consumer in memory only, and jsclient recreates it after a reconnect
        or when deliveries are missing. `subscribe` with ``ordered=True`` does the same with a push consumer.

        Args:
            stream: The stream.
            filter_subjects, filter_subject: Read only messages of these subjects. Wildcards are allowed.
            deliver_policy: The first message to read: "all" (the default), "new", "last" or "last_per_subject".
            opt_start_seq: Start at this stream sequence.
            opt_start_time: Start at this time.
            headers_only: Deliver headers without payloads.
            replay_policy: "instant" (the default), or "original" to receive messages at the rate at which they were
                stored.
            inactive_threshold: Seconds without a request after which the server removes the consumer, 300 by default.
                If you read again after that time, a new consumer resumes at the same position.
            name_prefix: The consumers that are created one after another are named with this prefix and a number. It is
                random by default.
            max_reset_attempts: Number of consecutive failures to recreate the consumer before the reader fails. By
                default it retries until the stream has been missing for 5 s on a healthy connection.
            fields: Further fields of a `ConsumerConfig`: ``description``, ``metadata``, ``num_replicas`` and so on.

        Raises:
            ConfigError: An argument is not valid, and no request was sent. An ordered consumer is not durable, has ack
                policy none and ``max_deliver`` 1, and has no deliver subject and no name.
            StreamNotFoundError: The stream does not exist. Opening raises this error immediately, without a retry.
            ApiError: The server refused the request. ``err_code`` tells the reason.

        May also raise any error of an API request. If the call fails or is cancelled, the consumer is deleted again.

        Source: ADR-37, ADR-17
        """
        from .ordered.consumer import ordered_consumer

        config = ConsumerConfig(
            filter_subjects=None if filter_subjects is None else _subjects(filter_subjects),
            filter_subject=filter_subject,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            headers_only=headers_only,
            replay_policy=replay_policy,
            inactive_threshold=inactive_threshold,
            **fields,
        )
        return ordered_consumer(
            self._context, stream, config, name_prefix=name_prefix, max_reset_attempts=max_reset_attempts
        )


def _subjects(value: Sequence[str]) -> list[str]:
    if isinstance(value, str):
        raise ConfigError(f"filter_subjects is the str {value!r}: give a list, or filter_subject")
    return list(value)
