"""jsclient, a NATS JetStream client for asyncio. This module defines the public names and the version.

Many names are imported on first use (PEP 562), so that an application loads only the parts of the library it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from . import errors, events, models
from ._exports import set_module
from .client import JetStream, connect
from .consumers.message import Message, ack_all
from .errors import *  # noqa: F403
from .events import *  # noqa: F403
from .models import *  # noqa: F403
from .protocol.consumers.ack import Metadata
from .protocol.wire.headers import Headers
from .protocol.wire.message_headers import MessageHeaders

if TYPE_CHECKING:
    from . import buckets, doctor, epochs, kits, peers, server, spark, testing, typing
    from ._runtime.handle import Opening
    from .buckets import KeyValue, KeyValueEntry, ObjectInfo, ObjectStore
    from .consumers.ordered.consumer import OrderedConsumer, OrderedMessages
    from .consumers.ordered.subscription import OrderedSubscription
    from .consumers.pull.batch import Batch
    from .consumers.pull.consumer import Consumer
    from .consumers.pull.messages import Messages
    from .consumers.pull.subscription import PullSubscription
    from .consumers.push.subscription import Subscription
    from .consumers.worker.worker import Worker
    from .core.api import Core
    from .core.message import CoreMessage
    from .core.replies import Replies
    from .core.services.endpoint import Endpoint
    from .core.services.service import EndpointGroup, Service
    from .core.subscription import CoreSubscription
    from .kits import (
        IterationObserver,
        IterationSubscription,
        MemoryLog,
        Notifier,
        NotifierInternals,
        NotifierIterator,
        NotifierKit,
        Producer,
        StreamNotifierKit,
        StreamSubscriptionKit,
        SubscriptionInternals,
        SubscriptionIterator,
        SubscriptionKit,
        TableChange,
        TableChanges,
        TopicTable,
        UpdateRecord,
        make_notifier,
        make_notifier_kit,
        make_subscription,
        make_subscription_kit,
        observe_iteration,
        observe_iterator,
    )
    from .protocol.connection.connection_stats import ConnectionStats
    from .protocol.consumers.status import Ending
    from .protocol.consumers.worker.reasons import DeliveriesExhaustedError, Reject
    from .protocol.consumers.worker.worker import WorkCounts
    from .protocol.core.services import EndpointInfo, EndpointStats, ServiceInfo, ServiceStats
    from .protocol.streams.counter import CounterEntry
    from .protocol.topics.position import Position
    from .protocol.topics.quiet_timer import QuietTimer
    from .protocol.topics.record import Record
    from .protocol.topics.value_codec import Codec, JsonCodec
    from .publishing.batch import AtomicBatch
    from .publishing.fast_ingest import FastIngest
    from .publishing.publish_many import PublishedMany
    from .publishing.publisher import Publisher
    from .streams.counter import Counter
    from .streams.direct_get import DirectBatch
    from .streams.stream import Stream
    from .topics.event_history import CurrentEvent, EventHistory, EventSource, EventSubscription
    from .topics.latest import LatestReader
    from .topics.publisher import TopicPublisher
    from .topics.topic import ReaderOpening, Topic
    from .topics.topic_reader import TopicReader

__version__ = "0.1.0.dev0"  # the only definition of the version

__all__ = [
    "AtomicBatch", "Batch", "Codec", "ConnectionStats", "Consumer", "Core", "CoreMessage", "CoreSubscription",
    "Counter", "CounterEntry", "CurrentEvent", "DeliveriesExhaustedError", "DirectBatch", "Ending", "Endpoint",
    "EndpointGroup", "EndpointInfo", "EndpointStats", "EventHistory", "EventSource", "EventSubscription", "FastIngest",
    "Headers", "IterationObserver", "IterationSubscription", "JetStream", "JsonCodec", "KeyValue", "KeyValueEntry",
    "LatestReader", "MemoryLog", "Message", "MessageHeaders", "Messages", "Metadata", "Notifier", "NotifierInternals",
    "NotifierIterator", "NotifierKit", "ObjectInfo", "ObjectStore", "Opening", "OrderedConsumer", "OrderedMessages",
    "OrderedSubscription", "Position", "Producer", "PublishedMany", "Publisher", "PullSubscription", "QuietTimer",
    "ReaderOpening", "Record", "Reject", "Replies", "Service", "ServiceInfo", "ServiceStats", "Stream",
    "StreamNotifierKit", "StreamSubscriptionKit", "Subscription", "SubscriptionInternals", "SubscriptionIterator",
    "SubscriptionKit", "TableChange", "TableChanges", "Topic", "TopicPublisher", "TopicReader", "TopicTable",
    "UpdateRecord", "WorkCounts", "Worker", "__version__", "ack_all", "buckets", "connect", "doctor", "epochs",
    "errors", "events", "kits", "make_notifier", "make_notifier_kit", "make_subscription", "make_subscription_kit",
    "models", "observe_iteration", "observe_iterator", "peers", "server", "spark", "testing", "typing",
]  # fmt: skip
__all__ += errors.__all__
__all__ += events.__all__
__all__ += models.__all__

set_module(__name__, (JetStream, connect, Message, ack_all, Metadata, Headers, MessageHeaders))
_EVERYDAY = (
    "AckPolicy", "ConsumerConfig", "ConsumerInfo", "DeliverPolicy", "PubAck", "RetentionPolicy", "StorageType",
    "StreamConfig", "StreamInfo",
)  # fmt: skip
set_module(__name__, map(models.__dict__.__getitem__, _EVERYDAY))

_MODULES = frozenset({"buckets", "doctor", "epochs", "kits", "peers", "server", "spark", "testing", "typing"})
_LAZY = {
    name: module
    for module, names in {
        "_runtime.handle": "Opening",
        "buckets": "KeyValue KeyValueEntry ObjectInfo ObjectStore",
        "consumers.ordered.consumer": "OrderedConsumer OrderedMessages",
        "consumers.ordered.subscription": "OrderedSubscription",
        "consumers.pull.batch": "Batch",
        "consumers.pull.consumer": "Consumer",
        "consumers.pull.messages": "Messages",
        "consumers.pull.subscription": "PullSubscription",
        "consumers.push.subscription": "Subscription",
        "consumers.worker.worker": "Worker",
        "core.api": "Core",
        "core.message": "CoreMessage",
        "core.replies": "Replies",
        "core.services.endpoint": "Endpoint",
        "core.services.service": "EndpointGroup Service",
        "core.subscription": "CoreSubscription",
        "kits": """
            IterationObserver IterationSubscription MemoryLog Notifier NotifierInternals
            NotifierIterator NotifierKit Producer StreamNotifierKit StreamSubscriptionKit
            SubscriptionInternals SubscriptionIterator SubscriptionKit TableChange TableChanges
            TopicTable UpdateRecord make_notifier make_notifier_kit make_subscription
            make_subscription_kit observe_iteration observe_iterator
        """,
        "protocol.connection.connection_stats": "ConnectionStats",
        "protocol.consumers.status": "Ending",
        "protocol.consumers.worker.reasons": "DeliveriesExhaustedError Reject",
        "protocol.consumers.worker.worker": "WorkCounts",
        "protocol.core.services": "EndpointInfo EndpointStats ServiceInfo ServiceStats",
        "protocol.streams.counter": "CounterEntry",
        "protocol.topics.position": "Position",
        "protocol.topics.quiet_timer": "QuietTimer",
        "protocol.topics.record": "Record",
        "protocol.topics.value_codec": "Codec JsonCodec",
        "publishing.batch": "AtomicBatch",
        "publishing.fast_ingest": "FastIngest",
        "publishing.publish_many": "PublishedMany",
        "publishing.publisher": "Publisher",
        "streams.counter": "Counter",
        "streams.direct_get": "DirectBatch",
        "streams.stream": "Stream",
        "topics.event_history": "CurrentEvent EventHistory EventSource EventSubscription",
        "topics.latest": "LatestReader",
        "topics.publisher": "TopicPublisher",
        "topics.topic": "ReaderOpening Topic",
        "topics.topic_reader": "TopicReader",
    }.items()
    for name in names.split()
}
"""Maps each name that is imported on first use to its module."""

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if (module := _LAZY.get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
        if module not in _MODULES:  # these modules set `__module__` themselves
            set_module(__name__, (value,))
        return value


def __dir__() -> list[str]:
    """Return all public names, including the names that are imported on first use."""
    return sorted(__all__)
