"""jsclient: NATS JetStream for asyncio. The public surface: imports and ``__all__``, nothing else."""

from __future__ import annotations

from . import errors, server
from ._version import __version__
from .client import JetStream, connect
from .consumers.consumer import Consumer
from .consumers.message import Message, ack_all
from .consumers.ordered.consumer import OrderedConsumer
from .consumers.ordered.messages import OrderedMessages
from .consumers.ordered.subscription import OrderedSubscription
from .consumers.pull.fetch import Batch
from .consumers.pull.messages import Messages
from .consumers.pull_subscription import PullSubscription
from .consumers.subscription import Subscription
from .consumers.worker.worker import Worker
from .errors import *  # noqa: F403
from .protocol import events
from .protocol.consumers.ack import Metadata
from .protocol.consumers.status import Ending
from .protocol.consumers.worker.work import DeliveriesExhaustedError, Reject, WorkCounts
from .protocol.events import *  # noqa: F403
from .protocol.models import *  # noqa: F403
from .protocol.streams.counter import CounterEntry
from .protocol.topics.position import Position
from .protocol.topics.record import Record
from .protocol.wire.headers import Headers
from .publishing.batch import AtomicBatch
from .publishing.fast_ingest import FastIngest
from .publishing.publisher import Publisher
from .streams.counter import Counter
from .streams.direct_get import DirectBatch
from .streams.stream import Stream
from .topics.event_history import CurrentEvent, EventHistory, EventSource
from .topics.event_subscription import EventSubscription
from .topics.memory_log import MemoryLog
from .topics.notifiers.iteration import (
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
from .topics.notifiers.memory import make_notifier_kit, make_subscription_kit
from .topics.notifiers.observing import observe_iteration, observe_iterator
from .topics.notifiers.sharing import make_notifier, make_subscription
from .topics.publisher import TopicPublisher
from .topics.readers import LatestReader, TopicReader
from .topics.topic import Topic

__all__ = [
    "AtomicBatch",
    "Batch",
    "Consumer",
    "Counter",
    "CounterEntry",
    "CurrentEvent",
    "DeliveriesExhaustedError",
    "DirectBatch",
    "Ending",
    "EventHistory",
    "EventSource",
    "EventSubscription",
    "FastIngest",
    "Headers",
    "IterationObserver",
    "IterationSubscription",
    "JetStream",
    "LatestReader",
    "MemoryLog",
    "Message",
    "Messages",
    "Metadata",
    "Notifier",
    "NotifierIterator",
    "NotifierKit",
    "OrderedConsumer",
    "OrderedMessages",
    "OrderedSubscription",
    "Position",
    "Producer",
    "Publisher",
    "PullSubscription",
    "Record",
    "Reject",
    "Stream",
    "Subscription",
    "SubscriptionIterator",
    "SubscriptionKit",
    "Topic",
    "TopicPublisher",
    "TopicReader",
    "UpdateRecord",
    "WorkCounts",
    "Worker",
    "__version__",
    "ack_all",
    "connect",
    "errors",
    "events",
    "make_notifier",
    "make_notifier_kit",
    "make_subscription",
    "make_subscription_kit",
    "observe_iteration",
    "observe_iterator",
    "server",
]
