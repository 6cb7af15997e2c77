"""Topics of epochs: of what has one time, a subscriber sees all or nothing.

========================  ======================================================================
`topic`                   `EpochTopic`: making it, finding it, publishers and subscriptions of it
`schema`                  its types, as they are written down
`home`                    where it is: in a stream, or in this process
`opening`                 how a publisher takes a partition
`publisher`, `outlet`     how it writes
`repeats`                 what it sent again
`joining`, `patience`     how a subscriber begins
`subscription`            how it reads
`reading`, `completed`    events and whole epochs, of stored and of live topics
`live_publisher`          a publisher that keeps nothing
`live_subscription`       and its subscribers
========================  ======================================================================

The rules are in `jsclient.protocol.epochs.trackers`, what lies in the stream in `jsclient.protocol.epochs.records`.
"""

from __future__ import annotations

from .completed import CompletedEpoch, CompletedEpochs
from .home import StreamHome
from .live_publisher import LivePublisher
from .live_subscription import LiveSubscription
from .publisher import PartitionPublisher
from .schema import check_topic
from .subscription import EpochSubscription
from .topic import EpochTopic, memory_epochs

__all__ = [
    "CompletedEpoch",
    "CompletedEpochs",
    "EpochSubscription",
    "EpochTopic",
    "LivePublisher",
    "LiveSubscription",
    "PartitionPublisher",
    "StreamHome",
    "check_topic",
    "memory_epochs",
]
