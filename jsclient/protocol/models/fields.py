"""The fields of a stream and of a consumer as keyword arguments, for type checkers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict

from .consumer import AckPolicy, DeliverPolicy, PriorityPolicy, ReplayPolicy
from .stream_config import (
    DiscardPolicy,
    PersistMode,
    Placement,
    RePublish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)

__all__ = ["ConsumerFields", "StreamFields"]

Seconds: TypeAlias = float | timedelta
SettableTime: TypeAlias = datetime | str


class StreamFields(TypedDict, total=False):
    """The fields of a `StreamConfig`, except for ``name`` and ``subjects``."""

    description: str | None
    retention: RetentionPolicy | str | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: Seconds | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicy | str | None
    discard_new_per_subject: bool | None
    storage: StorageType | str | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: Seconds | None
    placement: Placement | None
    mirror: StreamSource | None
    sources: list[StreamSource] | None
    sealed: bool | None
    deny_delete: bool | None
    deny_purge: bool | None
    allow_rollup_hdrs: bool | None
    allow_direct: bool | None
    mirror_direct: bool | None
    republish: RePublish | None
    subject_transform: SubjectTransform | None
    compression: StoreCompression | str | None
    first_seq: int | None
    metadata: dict[str, str] | None
    consumer_limits: StreamConsumerLimits | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: Seconds | None
    allow_msg_counter: bool | None
    allow_atomic: bool | None
    allow_batched: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistMode | str | None
    extra: dict[str, Any]


class ConsumerFields(TypedDict, total=False):
    """The fields of a `ConsumerConfig`."""

    name: str | None
    durable_name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: SettableTime | None
    ack_policy: AckPolicy | str | None
    ack_wait: Seconds | None
    max_deliver: int | None
    backoff: list[Seconds] | None
    filter_subject: str | None
    filter_subjects: list[str] | None
    replay_policy: ReplayPolicy | str | None
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    flow_control: bool | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: Seconds | None
    max_bytes: int | None
    deliver_subject: str | None
    deliver_group: str | None
    idle_heartbeat: Seconds | None
    inactive_threshold: Seconds | None
    num_replicas: int | None
    mem_storage: bool | None
    metadata: dict[str, str] | None
    pause_until: SettableTime | None
    priority_groups: list[str] | None
    priority_policy: PriorityPolicy | str | None
    priority_timeout: Seconds | None
    extra: dict[str, Any]
