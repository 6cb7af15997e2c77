"""What is needed for topics of epochs (`JetStream.epochs`): orders of times, frontiers, events.

::

    from jsclient.epochs import Data, FrontierUpdate, Int

Whole numbers are `Int`, tuples `Product`. Any object is an order that has ``bottom``, ``less_equal``, ``encode`` and
``decode`` as `Order` describes them, and perhaps ``name``, by which schemas tell it from others, and ``successor``.
"""

from __future__ import annotations

from .patterns.epochs import (
    CompletedEpoch,
    CompletedEpochs,
    EpochSubscription,
    EpochTopic,
    LivePublisher,
    LiveSubscription,
    PartitionPublisher,
    memory_epochs,
)
from .protocol.epochs.frontier import Antichain, Int, MutableAntichain, Order, Product
from .protocol.epochs.trackers import Data, EpochState, FrontierUpdate

__all__ = [
    "Antichain",
    "CompletedEpoch",
    "CompletedEpochs",
    "Data",
    "EpochState",
    "EpochSubscription",
    "EpochTopic",
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
