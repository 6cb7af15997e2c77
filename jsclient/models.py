"""Models of the JetStream API: configurations, infos and their words. Frozen, with the field names of the wire.

::

    from jsclient.models import Placement, StreamSource

Those that most programs need, such as `StreamConfig` and `ConsumerConfig`, are documented at the top level.
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
