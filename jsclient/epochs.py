"""Classes for topics of epochs, which `JetStream.epochs` creates: orders of times, frontiers and events.

::

    from jsclient.epochs import Data, FrontierUpdate, Int

`Int` orders integers, and `Product` orders tuples. To use a different type of time, pass any object with the members
``bottom``, ``less_equal``, ``encode`` and ``decode``, which are described in `jsclient.epochs.Order`. Two further
members are optional. ``name`` identifies the order in the schema of a topic, and ``successor`` returns the next time.
"""

from __future__ import annotations

from ._exports import set_module
from .protocol.epochs.frontier import Antichain, Changes, Int, MutableAntichain, Order, Product
from .protocol.epochs.records import EpochPosition
from .protocol.epochs.trackers import Data, EpochState, FrontierUpdate
from .topics.epochs.events import CompletedEpoch, CompletedEpochs, Filter
from .topics.epochs.history import EpochStart
from .topics.epochs.live_publisher import LivePublisher
from .topics.epochs.live_subscription import LiveSubscription
from .topics.epochs.publisher import PartitionPublisher
from .topics.epochs.subscription import EpochSubscription
from .topics.epochs.topic import EpochTopic, memory_epochs

__all__ = [
    "Antichain",
    "Changes",
    "CompletedEpoch",
    "CompletedEpochs",
    "Data",
    "EpochPosition",
    "EpochStart",
    "EpochState",
    "EpochSubscription",
    "EpochTopic",
    "Filter",
    "FrontierUpdate",
    "Int",
    "LivePublisher",
    "LiveSubscription",
    "MutableAntichain",
    "Order",
    "PartitionPublisher",
    "Product",
    "memory_epochs",
]

_ALIASES = {"Changes", "EpochStart", "Filter"}
set_module(__name__, [globals()[name] for name in __all__ if name not in _ALIASES])
