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
    """Rarely needed keyword arguments of `JetStream.ordered_consumer`, which configure its consumer on the server.

    Use it to annotate wrappers. For the meaning of the arguments, see the fields of the same names in `ConsumerConfig`.
    """

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
    """Keyword arguments of `JetStream.subscribe`, except for ``subject`` and ``ordered``.

    Use it to annotate wrappers, such as ``def subscribe_orders(**options: Unpack[SubscribeOptions])``.
    """

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
        """Subscribe to a push consumer. The consumer is created if it doesn't exist.

        ::

            async with js.subscribe("orders.>") as subscription:
                async for message in subscription:
                    ...
                    await message.ack()

        Args:
            subject: The subject to read, which becomes the consumer's filter. Wildcards are allowed. It is required
                unless ``stream`` is given.
            stream: Name of the stream. Defaults to the stream that stores ``subject``.
            consumer: Name of an existing consumer. The call fails if it doesn't exist.
            durable: Name of a durable consumer, which is created if it doesn't exist.
            queue: Name of the queue group. The server delivers each message to only one member of the group. Unless
                ``consumer`` or ``durable`` is given, the durable consumer is named after the group.
            config: Further fields for creating the consumer. An existing consumer is never modified. If its values
                differ, the call raises a `BindError`. Outside of a queue group, a new consumer sends idle heartbeats
                every 5 s by default. Set ``idle_heartbeat`` to change the interval, or to 0 to turn heartbeats off.
            callback: Called with each message, one at a time. A coroutine function runs on the event loop. A plain
                function runs in a thread, so it may block. When the callback returns, the message is acked (see
                ``auto_ack``). If it raises an exception, the event `HandlerFailed` reports that.
            ordered: Deliver every message exactly once and in order. The consumer is recreated whenever deliveries may
                be missing (ADR-17), and messages don't need acks.
            auto_ack: Ack each message after the callback has returned, unless the callback has already acked it. While
                the client is disconnected, the ack and the messages after it wait for the reconnect. Defaults to True
                if there is a callback. Pass False if the callback acks messages by itself.
            heartbeat_alarm: Number of idle heartbeats that may be missed before `HeartbeatMissed` is emitted.
            gap_alarm: Emit the event `GapDetected` if deliveries are missing. Has no effect in a queue group.
            delete_on_close: Delete the consumer at the end of the subscription, provided that this call created the
                consumer. By default, even durable consumers are deleted (ADR-15): the event `ConsumerNotKept` warns of
                this when a named consumer is created, and `DurableDeleted` reports the deletion. Pass True to delete
                the consumer without the warning. Pass False to keep a durable consumer for the next run of the
                application, or for the other members of a queue group.
            max_pending: Maximum number of buffered messages. Defaults to 524,288. If the buffer is full, messages are
                dropped and the event `SlowConsumer` is emitted. An ordered subscription reads them again later. A value
                below 1,000 also limits ``max_ack_pending``, so that the server stops before the buffer is full. With
                flow control, the server limits bytes instead of messages, so a value that it might exceed raises
                `ConfigError`.
            max_pending_bytes: Maximum number of buffered bytes. Defaults to 64 MiB. For an ordered subscription, it
                defaults to 12 MiB, unless the stream removes messages when they are delivered, or the subscription
                reads the last message per subject.
            flow_control_prefixes: Subject prefixes of flow control requests to be answered, in addition to ``$JS.FC.``.
                Requests with other subjects are ignored and reported with `FlowControlRefused`.

        Raises:
            ConfigError: An argument is invalid, and no request was sent. Or no message of ``stream`` can match the
                filter, and a consumer created by this call was deleted again.
            NoMatchingStreamError: No stream stores ``subject``, or more than one stream does.
            BindError: The consumer exists with a different configuration. There is a subclass for each difference.
            ApiError: The server refused the request. ``err_code`` identifies the reason, and ``advice`` suggests what
                to do.
            ConsumerNotFoundError: ``consumer`` doesn't exist.
            StreamNotFoundError: ``stream`` doesn't exist.
            RequestTimeoutError: The server didn't respond in time.
            DisconnectedError: The connection was lost before the server responded.

        If the call fails or is cancelled, it leaves no consumer, NATS subscription or task behind. The only exception
        is an ephemeral consumer whose creation the server didn't confirm. Such a consumer may exist until the server
        removes it after its ``inactive_threshold`` (5 s by default).

        See ADR-15 for the rules.
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
        """Subscribe to a pull consumer. The consumer is created if it doesn't exist.

        ::

            async with js.pull_subscribe("orders.>", "billing") as subscription:
                for message in await subscription.fetch(100):
                    ...
                    await message.ack()

        If neither ``durable`` nor ``consumer`` is given, an ephemeral consumer is created for this subscription.

        Args:
            subject: The subject to read, which becomes the consumer's filter. Wildcards are allowed. It is required
                unless ``stream`` is given.
            durable: Name of a durable consumer, which is created if it doesn't exist.
            stream: Name of the stream. Defaults to the stream that stores ``subject``.
            consumer: Name of an existing consumer. If the user isn't allowed to look up the consumer, or the look-up
                fails for a different reason, the subscription is opened anyway. `PullSubscription.fetch` then raises
                the error.
            config: Further fields for creating the consumer. An existing consumer is never modified. The ack policies
                "none" and "all" are refused (ADR-15). If you need them, use `Stream.create_consumer` and
                `Consumer.fetch`.
            delete_on_close: Delete the consumer at the end of the subscription, provided that this call created the
                consumer. By default, even durable consumers are deleted. See `subscribe`.

        Raises the same errors as `subscribe`. See ADR-15 for the rules.
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
        """Create an ordered consumer, which reads every message of a stream exactly once and in order.

        ::

            async with js.ordered_consumer("ORDERS") as reader:
                async for message in reader:
                    ...

        Messages are read with pull requests and don't need acks. The server keeps the consumer in memory only, and
        jsclient recreates it after a reconnect or if deliveries are missing. `subscribe` with ``ordered=True`` does the
        same with a push consumer.

        Args:
            stream: Name of the stream.
            filter_subjects: Read only messages with one of these subjects. Wildcards are allowed.
            filter_subject: Read only messages with this subject. Wildcards are allowed.
            deliver_policy: Where to start: "all" (the default), "new", "last" or "last_per_subject".
            opt_start_seq: Start at this stream sequence.
            opt_start_time: Start at the first message stored at or after this time.
            headers_only: Deliver headers without payloads.
            replay_policy: "instant" (the default), or "original" to receive messages at the rate at which they were
                stored.
            inactive_threshold: If no request arrives for this many seconds, the server removes the consumer. Defaults
                to 300. If you read again after that time, a new consumer resumes at the same position.
            name_prefix: Prefix for the names of the consumers, to which a number is appended. Random by default.
            max_reset_attempts: How many times in a row recreating the consumer may fail before the reader fails. By
                default, it retries until the stream has been missing for 5 s on a healthy connection.
            fields: Further fields of a `ConsumerConfig`, such as ``description``, ``metadata`` or ``num_replicas``.

        Raises:
            ConfigError: An argument is invalid, and no request was sent. Fields that make no sense for ordered
                consumers are invalid too. For example, an ordered consumer can't be durable and has no acks.
            StreamNotFoundError: The stream does not exist. Opening the consumer isn't retried in this case.
            ApiError: The server refused the request. ``err_code`` identifies the reason, and ``advice`` suggests what
                to do.

        If the call fails or is cancelled, the consumer is deleted again. See ADR-17 for ordered consumers.
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
