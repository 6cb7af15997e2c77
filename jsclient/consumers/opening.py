"""Opens subscriptions: runs the workflow, then builds tracker and handle."""

from __future__ import annotations

from .._runtime.context import Context
from ..errors import ConfigError
from ..protocol.consumers.monitors import GapTracker, HeartbeatMonitor
from ..protocol.consumers.ordered import OrderedTracker, ordered_config
from ..protocol.consumers.push import PushTracker
from ..protocol.consumers.subscribe import Binding, SubscribeRequest
from ..protocol.models.consumer import ConsumerInfo, DeliverPolicy
from .ordered.subscription import OrderedSubscription
from .pull_subscription import PullSubscription
from .push.binder import Binder
from .subscription import Callback, Subscription

__all__ = ["open_pull_subscription", "open_subscription"]

MAX_PENDING = 512 * 1024  # messages
MAX_PENDING_BYTES = 64 * 1024 * 1024


async def open_subscription(
    context: Context,
    request: SubscribeRequest,
    *,
    callback: Callback | None,
    auto_ack: bool | None,
    heartbeat_alarm: float,
    gap_alarm: bool,
    delete_on_close: bool | None,
) -> Subscription:
    """See `JetStream.subscribe`."""
    if callback is not None and not callable(callback):
        raise ConfigError(
            f"callback is {type(callback).__name__}: it must be a function or a coroutine function"
        )
    if (
        isinstance(heartbeat_alarm, bool)
        or not isinstance(heartbeat_alarm, int | float)
        or not heartbeat_alarm >= 1
    ):
        raise ConfigError(f"heartbeat_alarm is {heartbeat_alarm!r} intervals: it must be 1 or more")
    context.connection.check_open()
    binder = Binder(context, request)
    binding = await binder.bind()
    context.connection.check_open()  # closed meanwhile: readers would wait forever
    info, inbox = binding.info, binder.inbox
    assert info is not None
    assert inbox is not None
    if request.ordered:
        reader = _ordered(context, request, binding, _monitor(info, heartbeat_alarm), callback)
        reader.begin(inbox, binder.intake, info)
        return reader
    gaps = None
    if gap_alarm and binding.queue is None and not info.config.deliver_group:
        gaps = GapTracker(binding.stream, binding.consumer, 0 if binding.created else None)
    tracker = PushTracker(
        binding.stream,
        binding.consumer,
        *_limits(request),
        heartbeat=_monitor(info, heartbeat_alarm),
        gaps=gaps,
        raises=callback is None,
        api_prefix=context.api.prefix.encode(),
    )
    subscription = Subscription(
        context,
        tracker,
        binding,
        callback=callback,
        auto_ack=callback is not None and auto_ack is not False,
        delete_on_close=delete_on_close is not False,
    )
    subscription.start(inbox, binder.intake)
    return subscription


def _monitor(info: ConsumerInfo, alarm: float) -> HeartbeatMonitor | None:
    interval = info.config.idle_heartbeat
    return HeartbeatMonitor(interval, alarm) if interval else None


def _limits(request: SubscribeRequest) -> tuple[int, int]:
    return request.max_pending or MAX_PENDING, request.max_pending_bytes or MAX_PENDING_BYTES


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
        *_limits(request),
        heartbeat=monitor,
        raises=callback is None,
        api_prefix=context.api.prefix.encode(),
        keeps_policy=config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT,
    )
    return OrderedSubscription(context, tracker, binding, config, callback=callback)


async def open_pull_subscription(
    context: Context, request: SubscribeRequest, *, delete_on_close: bool | None
) -> PullSubscription:
    """See `JetStream.pull_subscribe`."""
    context.connection.check_open()
    binding = await Binder(context, request).bind()
    return PullSubscription(context, binding, delete_on_close=delete_on_close is not False)
