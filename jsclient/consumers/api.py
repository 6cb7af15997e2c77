"""Subscribing: the methods of `JetStream` that read messages. Source: ADR-15, ADR-17, ADR-37."""

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

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from .ordered.consumer import OrderedConsumer
    from .ordered.subscription import OrderedSubscription
    from .pull_subscription import PullSubscription
    from .subscription import Callback, Subscription

__all__ = ["Subscribing"]


class OrderedFields(TypedDict, total=False):
    """The fields of a `ConsumerConfig` that an ordered consumer may have and is seldom given."""

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
    """The arguments of `JetStream.subscribe`, except for ``subject`` and ``ordered``."""

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
    """Methods of `JetStream` that read messages."""

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
        """Subscribe to a push consumer: bind to an existing one, or create it.

        Args:
            subject: The subject to read; wildcards allowed. Required without a stream; becomes the consumer's filter.
            stream: The stream; by default the one that holds ``subject``.
            consumer: Bind to this existing consumer; nothing is created.
            durable: Bind to this durable consumer, or create it.
            queue: Queue group: each message goes to one member. Without ``consumer`` and ``durable`` it is the durable
                name as well.
            config: Further fields of the consumer. It is not modified; its fields must match an existing consumer.
                A consumer created here has an ``idle_heartbeat`` of 5 s outside queue groups; 0 is none.
            callback: Called with each message, one after the other: a coroutine function on the event loop, a plain
                function in a thread, so that it may block. When it returns, the message is acked (see ``auto_ack``);
                when it raises, the event `HandlerFailed` reports it.
            ordered: Every message once, in order, from a consumer that is recreated when needed (ADR-17). No acks.
            auto_ack: Ack after the callback returns, unless it acked itself; True with a callback. False: never.
            heartbeat_alarm: Idle heartbeats that may be missed before the event `HeartbeatMissed`.
            gap_alarm: Report missing deliveries with the event `GapDetected`. Never in a queue group.
            delete_on_close: Delete the consumer at `Subscription.unsubscribe` and `Subscription.drain` if this call
                created it. It does so by default (ADR-15), for durable ones too: `ConsumerNotKept` warns at the
                creation of a named one, and `DurableDeleted` reports its deletion. True deletes without the warning;
                False keeps a durable for the next run, and for the other members of a queue group.
            max_pending: Messages that may wait here, 524,288 by default. When full, messages are dropped and the event
                `SlowConsumer` reports it; an ordered subscription reads them again. Below 1,000 it also bounds
                ``max_ack_pending``, so that nothing is dropped. With flow control only bytes are limited, and a number
                that the server may exceed is refused.
            max_pending_bytes: Bytes that may wait here, 64 MiB by default; 12 MiB for an ordered subscription, unless
                its stream removes messages when they are delivered, or it reads the last message per subject.
            flow_control_prefixes: Starts of flow control subjects to answer besides ``$JS.FC.``, which nats-server
                uses; others are reported as `FlowControlRefused`.

        Raises:
            ConfigError: Invalid arguments; nothing was sent. Or the filter can match no message of ``stream``: a new
                consumer is deleted again.
            NoMatchingStreamError: Not exactly one stream holds ``subject``.
            BindError: The consumer exists but does not match; its class says how.
            ApiError: The server refused; ``err_code`` gives the reason. RequestTimeoutError and others of any request.

        After an error no consumer, NATS subscription or task is left; an ephemeral consumer whose creation was not
        answered is removed by the server after its ``inactive_threshold`` (5 s by default).

        Cancelled: as after an error.

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
        """Subscribe to a pull consumer: bind to an existing one, or create it (durable, or for this subscription only).

        Arguments and errors as `subscribe`. A ``consumer`` that cannot be looked up is bound to anyway, because the
        user may have only the permission to pull; errors are then raised by `PullSubscription.fetch`. An ack policy of
        none or all is refused here (ADR-15); `Stream.create_consumer` and `Consumer.fetch` accept it.

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
        """Read a stream in order by pulling: ``oc = await js.ordered_consumer(...)``, or ``async with`` it.

        Every message comes exactly once. The consumer has no acks, is kept in memory, and is recreated when necessary.
        `subscribe` with ``ordered=True`` is the same by push.

        Args:
            stream: The stream.
            filter_subjects, filter_subject: Only messages of these subjects; wildcards allowed.
            deliver_policy: The start: "all" by default, "new", "last", "last_per_subject".
            opt_start_seq: Start at this stream sequence.
            opt_start_time: Start at this time.
            headers_only: Deliver headers without payloads.
            replay_policy: "instant" by default, or "original": at the speed of their storing.
            inactive_threshold: Seconds without a request after which the server removes the consumer; 300 by default.
                A reader that returns later resumes at its position.
            name_prefix: The prefix of the names of the consumers; a number follows. Random by default.
            max_reset_attempts: Consecutive failures to recreate the consumer before the reader fails. By default it
                retries until the stream has been missing for 5 s on a healthy connection.
            fields: Further fields of a `ConsumerConfig`: ``description``, ``metadata``, ``num_replicas`` and so on.

        Raises:
            ConfigError: Invalid arguments; nothing was sent. An ordered consumer is not durable, has ack policy none
                and ``max_deliver`` 1, no deliver subject and no name of its own.
            StreamNotFoundError: The stream does not exist; raised at once, when it is opened.
            ApiError: The server refused; ``err_code`` gives the reason. RequestTimeoutError and others of any request.

        After an error, or when cancelled, no consumer is left.

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


def _subjects(given: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise ConfigError(f"filter_subjects is the str {given!r}: give a list, or filter_subject")
    return list(given)
