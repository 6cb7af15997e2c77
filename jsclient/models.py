"""Data models of the JetStream API, such as configurations and state. They are immutable.

::

    from jsclient.models import Placement, StreamSource

Fields have the same names as in the JSON messages of the API. The most common models, such as `StreamConfig` and
`ConsumerConfig`, are documented with the top-level module.
"""

from __future__ import annotations

from ._exports import set_module
from .protocol.models import (
    AccountInfo,
    AccountLimits,
    AccountTier,
    AckPolicy,
    ApiStats,
    ClusterInfo,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    ExternalStream,
    LostStreamData,
    PeerInfo,
    PersistMode,
    Placement,
    PriorityGroupState,
    PriorityPolicy,
    PubAck,
    ReplayPolicy,
    RePublish,
    RetentionPolicy,
    SequenceInfo,
    StorageType,
    StoreCompression,
    StoredMessage,
    StreamAlternate,
    StreamConfig,
    StreamConsumerLimits,
    StreamConsumerSource,
    StreamInfo,
    StreamSource,
    StreamSourceInfo,
    StreamState,
    SubjectTransform,
    config_mismatches,
)

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckPolicy",
    "ApiStats",
    "ClusterInfo",
    "ConsumerConfig",
    "ConsumerInfo",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "LostStreamData",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "PubAck",
    "RePublish",
    "ReplayPolicy",
    "RetentionPolicy",
    "SequenceInfo",
    "StorageType",
    "StoreCompression",
    "StoredMessage",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "config_mismatches",
]

set_module(__name__, map(globals().__getitem__, __all__))
