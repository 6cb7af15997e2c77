"""Notifier and subscription kits, and the logs from which readers of topics read.

::

    from jsclient.kits import make_notifier_kit, MemoryLog

A kit consists of a producer and the object from which its consumers read. `JetStream.notifier_kit` and
`JetStream.subscription_kit` create kits on a server. Every reader of a topic reads from a log. To read from a log of
your own, implement `Log`. `Topic.table` opens a `TopicTable`.
"""

from __future__ import annotations

from ._exports import set_module
from .protocol.topics.position import Extent
from .protocol.topics.record import Kind
from .topics.log import Feed, Log, Page, Receive, SequenceStart
from .topics.log_reader import LogReader
from .topics.memory_log import MemoryLog
from .topics.notifiers.iteration import (
    IterationObserver,
    IterationSubscription,
    Notifier,
    NotifierInternals,
    NotifierIterator,
    NotifierKit,
    Producer,
    SubscriptionInternals,
    SubscriptionIterator,
    SubscriptionKit,
    UpdateRecord,
    make_notifier,
    make_subscription,
)
from .topics.notifiers.kits import StreamNotifierKit, StreamSubscriptionKit
from .topics.notifiers.memory import make_notifier_kit, make_subscription_kit
from .topics.notifiers.observing import observe_iteration, observe_iterator
from .topics.stream_log import StreamLog
from .topics.table import TableChange, TableChanges, TopicTable

__all__ = [
    "Extent", "Feed", "IterationObserver", "IterationSubscription", "Kind", "Log", "LogReader", "MemoryLog",
    "Notifier", "NotifierInternals", "NotifierIterator", "NotifierKit", "Page", "Producer", "Receive",
    "SequenceStart", "StreamLog", "StreamNotifierKit", "StreamSubscriptionKit", "SubscriptionInternals",
    "SubscriptionIterator", "SubscriptionKit", "TableChange", "TableChanges", "TopicTable", "UpdateRecord",
    "make_notifier", "make_notifier_kit", "make_subscription", "make_subscription_kit", "observe_iteration",
    "observe_iterator",
]  # fmt: skip

set_module(__name__, [globals()[name] for name in __all__ if name != "Receive"])
