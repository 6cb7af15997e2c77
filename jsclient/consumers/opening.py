"""Opens subscriptions. The workflow in ``protocol.consumers.subscribe`` decides which requests are needed."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from .._runtime.calls import check_known, create_consumer, find_streams
from .._runtime.connection.connection import HoldingSink, Inbox
from .._runtime.connection.speedups import chosen
from .._runtime.context import Context
from .._runtime.handlers import check_handler
from .._runtime.matching import check_match
from ..errors import (
    ConfigError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    RequestTimeoutError,
)
from ..protocol.consumers.monitors import GapTracker, HeartbeatMonitor
from ..protocol.consumers.ordered import OrderedTracker, ordered_config
from ..protocol.consumers.push import PushTracker
from ..protocol.consumers.subscribe import (
    Binding,
    Create,
    FindStream,
    Listen,
    LookUp,
    Step,
    StopListening,
    is_certainly_ours,
    subscribe_workflow,
)
from ..protocol.consumers.subscribe_request import SubscribeRequest, check_request
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo, DeliverPolicy
from ..protocol.wire.codec import from_wire
from .ordered.subscription import OrderedSubscription
from .pull.subscription import PullSubscription
from .push.subscription import Callback, Subscription

__all__ = ["Binder", "open_pull_subscription", "open_subscription"]

MAX_PENDING = 512 * 1024  # default capacity in messages
MAX_PENDING_BYTES = 64 * 1024 * 1024


async def open_subscription(
    context: Context,
    request: SubscribeRequest,
    *,
    callback: Callback | None,
    auto_ack: bool | None,
    delete_on_close: bool | None,
) -> Subscription:
    """See `JetStream.subscribe`."""
    if callback is not None:
        check_handler("callback", callback)
    context.connection.check_open()
    binder = Binder(context, request)
    binding = await binder.bind()
    context.connection.check_open()  # if the connection was closed in the meantime, readers would wait forever
    info, inbox = binding.info, binder.inbox
    assert info is not None
    assert inbox is not None
    if request.ordered:
        reader = _ordered(context, request, binding, _monitor(info, request.heartbeat_alarm), callback)
        reader.begin_reading(inbox, binder.intake, info)
        return reader
    gaps = None
    if request.gap_alarm and binding.queue is None and not info.config.deliver_group:
        gaps = GapTracker(binding.stream, binding.consumer, 0 if binding.created else None)
    tracker = PushTracker(
        binding.stream,
        binding.consumer,
        *_limits(request, info),
        heartbeat=_monitor(info, request.heartbeat_alarm),
        gaps=gaps,
        raises=callback is None,
        api_prefix=context.api.prefix.encode(),
        flow_prefixes=_flow_prefixes(request),
        runs=chosen().runs,
    )
    subscription = Subscription(
        context,
        tracker,
        binding,
        callback=callback,
        auto_ack=callback is not None and auto_ack is not False,
        delete_on_close=delete_on_close,
    )
    subscription.start_reading(inbox, binder.intake)
    return subscription


def _monitor(info: ConsumerInfo, alarm: float) -> HeartbeatMonitor | None:
    interval = info.config.idle_heartbeat
    return HeartbeatMonitor(interval, alarm) if interval else None


def _limits(request: SubscribeRequest, info: ConsumerInfo) -> tuple[int, int]:
    # With flow control, the server limits the bytes in flight, not the messages. Many small messages could exceed the
    # default limit and be dropped, although the server respects its window.
    default = MAX_PENDING_BYTES if info.config.flow_control else MAX_PENDING
    return request.max_pending or default, request.max_pending_bytes or MAX_PENDING_BYTES


def _flow_prefixes(request: SubscribeRequest) -> tuple[bytes, ...]:
    return tuple(prefix.encode() for prefix in request.flow_control_prefixes)


def _ordered(
    context: Context,
    request: SubscribeRequest,
    binding: Binding,
    monitor: HeartbeatMonitor | None,
    callback: Callback | None,
) -> OrderedSubscription:
    assert binding.info is not None
    config = ordered_config(request.config)
    if not config.filter_subjects:
        config = config.replace(filter_subject=binding.info.config.filter_subject)
    tracker = OrderedTracker(
        binding.stream,
        binding.consumer,
        *_limits(request, binding.info),
        heartbeat=monitor,
        raises=callback is None,
        api_prefix=context.api.prefix.encode(),
        flow_prefixes=_flow_prefixes(request),
        runs=chosen().runs,
        keeps_policy=config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT,
    )
    return OrderedSubscription(
        context, tracker, binding, config, callback=callback, max_bytes=request.max_pending_bytes
    )


async def open_pull_subscription(
    context: Context, request: SubscribeRequest, *, delete_on_close: bool | None
) -> PullSubscription:
    """See `JetStream.pull_subscribe`."""
    context.connection.check_open()
    binding = await Binder(context, request).bind()
    return PullSubscription(context, binding, delete_on_close=delete_on_close)


class Binder:
    """Carries out the workflow that finds or creates the consumer of a subscription.

    After `bind`, a push subscription takes over the attributes ``inbox`` and ``intake``. ``intake`` retains the
    messages that arrive before the subscription is ready.
    """

    def __init__(self, context: Context, request: SubscribeRequest) -> None:
        self._context = context
        self._request = msgspec.structs.replace(request, mark=secrets.token_hex(8))
        self.inbox: Inbox | None = None
        self.intake: HoldingSink = HoldingSink()

    async def bind(self) -> Binding:
        """Find or create the consumer.

        Raises:
            ConfigError: The server is too old for a field of the configuration. No request was sent.

        Any error of `subscribe_workflow` may also be raised.

        If the call fails or is cancelled, it unsubscribes and deletes any consumer that it has created. If the
        request to create the consumer is still in flight, a background task waits for the answer before it deletes
        the consumer.
        """
        check_known(self._context, check_request(self._request).config)
        try:
            return await self._run_workflow()
        except BaseException:
            await self._stop_listening()
            raise

    async def _run_workflow(self) -> Binding:
        steps = subscribe_workflow(self._request)
        answer: Any = None
        error: JetStreamError | None = None
        # The workflow does no I/O. It is a generator that yields each step, and expects the answer or error in return.
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                binding: Binding = done.value
                if not binding.created:
                    await self._verify_listening()
                return binding
            answer = error = None
            try:
                answer = await self._carry_out(step)
            except JetStreamError as caught:
                error = caught

    async def _carry_out(self, step: Step) -> Any:
        context = self._context
        match step:
            case FindStream(subject=subject):
                return await find_streams(context, subject)
            case LookUp(stream=stream, consumer=consumer):
                subject = context.api.consumer_info(stream, consumer)
                return from_wire(
                    ConsumerInfo, await context.call(subject, what=f"look up consumer {consumer!r}")
                )
            case Listen(subject=requested, queue=queue):
                subject = requested or context.connection.new_inbox()
                self.inbox = await context.connection.subscribe(subject, self.intake, queue or "")
                return subject
            case StopListening():
                await self._stop_listening()
                self.intake = HoldingSink()
                return None
            case Create():
                return await self._create_consumer(step)

    async def _verify_listening(self) -> None:
        """Check that the server accepted the NATS subscription.

        The server reports a missing permission asynchronously. When a consumer is created, the error arrives before the
        answer to that request. For an existing consumer there is no such request, so this method sends a ping.
        """
        if self.inbox is not None:
            await self._context.connection.ping(self._context.timeout)
            if self.inbox.denied is not None:
                raise self.inbox.denied

    async def _create_consumer(self, step: Create) -> ConsumerInfo:
        """Create the consumer. If the call is cancelled or not answered, delete the consumer in the background."""
        creating = self._context.tasks.start(
            create_consumer(self._context, step.stream, step.config), "create consumer", awaited=True
        )
        try:
            info: ConsumerInfo = await asyncio.shield(creating)
            if self.inbox is not None and self.inbox.denied is not None:
                await self._delete(info)
                raise self.inbox.denied
            await self._check_match(step.config, info)
        except (asyncio.CancelledError, RequestTimeoutError, DisconnectedError):
            self._context.tasks.start(self._undo(step, creating), "undo create consumer")
            raise
        return info

    async def _check_match(self, config: ConsumerConfig, info: ConsumerInfo) -> None:
        """Delete the new consumer and raise an error if its filter can't match any subject of the stream.

        The check is skipped if a message matches already, or if the stream was found by the subject.
        """
        if info.num_pending or self._request.stream is None:
            return
        try:
            await check_match(self._context, info.stream_name, config.filters)
        except ConfigError:
            await self._delete(info)
            raise

    async def _undo(self, step: Create, creating: asyncio.Task[ConsumerInfo]) -> None:
        try:
            info = await creating
        except (RequestTimeoutError, DisconnectedError):
            await self._undo_unknown(step)
        except JetStreamError:
            return
        else:
            await self._delete(info)

    async def _undo_unknown(self, step: Create) -> None:
        """Delete the consumer if the answer was lost and it is certain that the lost request has created it."""
        name = step.config.durable_name or step.config.name
        if name is None:
            return  # the name is unknown, but the server removes an ephemeral consumer that has no subscriber
        api = self._context.api
        try:
            info = from_wire(ConsumerInfo, await self._context.call(api.consumer_info(step.stream, name)))
        except JetStreamError:
            return
        if is_certainly_ours(self._request, step, info):
            await self._delete(info)

    async def _delete(self, info: ConsumerInfo) -> None:
        try:
            await self._context.call(self._context.api.consumer_delete(info.stream_name, info.name))
        except ConsumerNotFoundError:
            pass  # already deleted
        except JetStreamError as error:
            self._context.report(error)

    async def _stop_listening(self) -> None:
        inbox, self.inbox = self.inbox, None
        self.intake.close()
        if inbox is not None:
            await self._context.connection.unsubscribe(inbox)
