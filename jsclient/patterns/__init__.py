"""What is built on an ordered log: notifiers and subscriptions, and events with a history."""

from __future__ import annotations

from .event_subscription import EventSubscription
from .history import CurrentEvent, EventHistory, EventSource
from .iteration import (
    IterationObserver,
    IterationSubscription,
    Notifier,
    NotifierIterator,
    NotifierKit,
    Producer,
    SubscriptionIterator,
    SubscriptionKit,
    UpdateRecord,
)
from .memory import make_notifier_kit, make_subscription_kit
from .observing import observe_iteration, observe_iterator
from .sharing import make_notifier, make_subscription

__all__ = [
    "CurrentEvent",
    "EventHistory",
    "EventSource",
    "EventSubscription",
    "IterationObserver",
    "IterationSubscription",
    "Notifier",
    "NotifierIterator",
    "NotifierKit",
    "Producer",
    "SubscriptionIterator",
    "SubscriptionKit",
    "UpdateRecord",
    "make_notifier",
    "make_notifier_kit",
    "make_subscription",
    "make_subscription_kit",
    "observe_iteration",
    "observe_iterator",
]
