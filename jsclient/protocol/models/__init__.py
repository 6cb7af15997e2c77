"""Immutable data models of the JetStream API, with the same field names as on the wire. Source: ADR-1."""

from __future__ import annotations

from .account import AccountInfo, AccountLimits, AccountTier, ApiStats
from .cluster import ClusterInfo, PeerInfo
from .consumer import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    PriorityGroupState,
    PriorityPolicy,
    ReplayPolicy,
    SequenceInfo,
    user_set,
)
from .drift import config_mismatches
from .message import StoredMessage, read_direct_message, read_stored_message
from .publish import PubAck, read_pub_ack
from .stream import LostStreamData, StreamAlternate, StreamInfo, StreamSourceInfo, StreamState
from .stream_config import (
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    RePublish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConfig,
    StreamConsumerLimits,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)

__all__ = [
    "AccountInfo", "AccountLimits", "AccountTier", "AckPolicy", "ApiStats", "ClusterInfo", "ConsumerConfig",
    "ConsumerInfo", "DeliverPolicy", "DiscardPolicy", "ExternalStream", "LostStreamData", "PeerInfo",
    "PersistMode", "Placement", "PriorityGroupState", "PriorityPolicy", "PubAck", "RePublish", "ReplayPolicy",
    "RetentionPolicy", "SequenceInfo", "StorageType", "StoreCompression", "StoredMessage", "StreamAlternate",
    "StreamConfig", "StreamConsumerLimits", "StreamConsumerSource", "StreamInfo", "StreamSource",
    "StreamSourceInfo", "StreamState", "SubjectTransform", "config_mismatches", "read_direct_message",
    "read_pub_ack", "read_stored_message", "user_set",
]  # fmt: skip
