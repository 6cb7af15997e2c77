"""Configuration of a stream. Field names are the wire's.

Durations are seconds (``max_age``, ``duplicate_window``, ``subject_delete_marker_ttl`` and the inactive
threshold of ``consumer_limits``), integer nanoseconds on the wire. Source: ADR-8, ADR-31, ADR-43, ADR-49,
ADR-50, ADR-51; nats-server server/stream.go (StreamConfig).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from ..wire.codec import Model, Seconds, SettableTime

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "DiscardPolicy",
    "DiscardPolicyText",
    "ExternalStream",
    "PersistMode",
    "PersistModeText",
    "Placement",
    "RePublish",
    "RetentionPolicy",
    "RetentionPolicyText",
    "StorageType",
    "StorageTypeText",
    "StoreCompression",
    "StoreCompressionText",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamFields",
    "StreamSource",
    "SubjectTransform",
]


class RetentionPolicy(StrEnum):
    """When messages are removed: at the stream's limits, or once all consumers, or one consumer, acked them."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class StorageType(StrEnum):
    """The storage of messages."""

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(StrEnum):
    """Which message is dropped at a limit: the oldest one, or the new one, which is refused."""

    OLD = "old"
    NEW = "new"


class StoreCompression(StrEnum):
    """How files are compressed."""

    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    """Whether a message is written to disk before it is acknowledged, or later."""

    DEFAULT = "default"
    ASYNC = "async"


# The same as texts, so that type checkers see a misspelt one.
RetentionPolicyText: TypeAlias = Literal["limits", "interest", "workqueue"]
DiscardPolicyText: TypeAlias = Literal["old", "new"]
StorageTypeText: TypeAlias = Literal["file", "memory"]
StoreCompressionText: TypeAlias = Literal["none", "s2"]
PersistModeText: TypeAlias = Literal["default", "async"]


class Placement(Model, frozen=True, kw_only=True):
    """Which servers may hold a stream: a cluster, tags they all have, a preferred leader."""

    cluster: str | None = None
    tags: list[str] | None = None
    preferred: str | None = None


class ExternalStream(Model, frozen=True, kw_only=True):
    """How to reach a stream in another account or domain: the prefix of its API and of its deliveries."""

    api: str | None = None
    deliver: str | None = None


class SubjectTransform(Model, frozen=True, kw_only=True):
    """Messages of subject ``src`` get the subject ``dest``."""

    src: str | None = None
    dest: str | None = None


class StreamConsumerSource(Model, frozen=True, kw_only=True):
    """A consumer made beforehand through which a stream is sourced or mirrored."""

    name: str | None = None
    deliver_subject: str | None = None


class StreamSource(Model, frozen=True, kw_only=True):
    """A stream to copy from, with the start, the subjects, and their transformation."""

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: SettableTime | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None


class RePublish(Model, frozen=True, kw_only=True):
    """Stored messages of subject ``src`` are published again under ``dest``, on demand without payload."""

    src: str | None = None
    dest: str | None = None
    headers_only: bool | None = None


class StreamConsumerLimits(Model, frozen=True, kw_only=True):
    """Defaults of the stream's consumers: seconds inactive, messages not acknowledged."""

    inactive_threshold: Seconds | None = None
    max_ack_pending: int | None = None


class StreamFields(TypedDict, total=False):
    """The fields of a `StreamConfig`, except for ``name`` and ``subjects``."""

    description: str | None
    retention: RetentionPolicy | RetentionPolicyText | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: float | timedelta | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicy | DiscardPolicyText | None
    discard_new_per_subject: bool | None
    storage: StorageType | StorageTypeText | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: float | timedelta | None
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
    compression: StoreCompression | StoreCompressionText | None
    first_seq: int | None
    metadata: dict[str, str] | None
    consumer_limits: StreamConsumerLimits | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: float | timedelta | None
    allow_msg_counter: bool | None
    allow_atomic: bool | None
    allow_batched: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistMode | PersistModeText | None
    extra: dict[str, Any]


class StreamConfig(Model, frozen=True, kw_only=True):
    """Configuration of a stream. A field that is None is not set: the server decides.

    Attributes:
        name: The stream's name; needed to create one.
        description: Up to 4 KiB of text.
        subjects: The subjects it stores; without, and without ``mirror`` or ``sources``, its name.
        retention: When messages leave it.
        max_consumers: Consumers at most; -1 without limit.
        max_msgs: Messages at most; -1 without limit.
        max_bytes: Bytes at most; -1 without limit.
        max_age: Seconds that a message is kept; 0 for ever.
        max_msgs_per_subject: Messages of one subject at most; -1 without limit.
        max_msg_size: Bytes of one message at most; -1 without limit.
        discard: Which message is dropped at a limit.
        discard_new_per_subject: ``discard`` "new" also for ``max_msgs_per_subject``.
        storage: The storage of messages.
        num_replicas: Copies in the cluster, 1 to 5.
        no_ack: Publishing is not acknowledged.
        duplicate_window: Seconds within which a message id is remembered.
        placement: Which servers may hold it.
        mirror: The stream of which it is a copy.
        sources: The streams from which it is filled.
        sealed: Nothing can be added or removed any more.
        deny_delete: No message can be deleted by request.
        deny_purge: It cannot be purged.
        allow_rollup_hdrs: A message may replace all earlier ones (``Nats-Rollup``).
        allow_direct: Every replica answers direct gets.
        mirror_direct: The mirror answers direct gets for its origin.
        republish: Stored messages are published again.
        subject_transform: Subjects are changed before storing.
        compression: How files are compressed.
        first_seq: The sequence of the first message.
        metadata: The user's own texts; keys that start with ``_nats.`` are the server's.
        consumer_limits: Defaults of its consumers.
        allow_msg_ttl: A message may have its own time to live (``Nats-TTL``).
        subject_delete_marker_ttl: Seconds that the server keeps a marker when the last message of a subject
            ended.
        allow_msg_counter: Messages are increments of counters (``Nats-Incr``).
        allow_atomic: Batches may be published all or nothing.
        allow_batched: Batches may be published fast.
        allow_msg_schedules: Messages may be scheduled (``Nats-Schedule``).
        persist_mode: Whether writing to disk comes before the acknowledgement.
    """

    name: str = ""
    description: str | None = None
    subjects: list[str] | None = None
    retention: RetentionPolicy | str | None = None
    max_consumers: int | None = None
    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age: Seconds | None = None
    max_msgs_per_subject: int | None = None
    max_msg_size: int | None = None
    discard: DiscardPolicy | str | None = None
    discard_new_per_subject: bool | None = None
    storage: StorageType | str | None = None
    num_replicas: int | None = None
    no_ack: bool | None = None
    duplicate_window: Seconds | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] | None = None
    sealed: bool | None = None
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    allow_rollup_hdrs: bool | None = None
    allow_direct: bool | None = None
    mirror_direct: bool | None = None
    republish: RePublish | None = None
    subject_transform: SubjectTransform | None = None
    compression: StoreCompression | str | None = None
    first_seq: int | None = None
    metadata: dict[str, str] | None = None
    consumer_limits: StreamConsumerLimits | None = None
    allow_msg_ttl: bool | None = None
    subject_delete_marker_ttl: Seconds | None = None
    allow_msg_counter: bool | None = None
    allow_atomic: bool | None = None
    allow_batched: bool | None = None
    allow_msg_schedules: bool | None = None
    persist_mode: PersistMode | str | None = None

    if TYPE_CHECKING:  # durations may be given as timedelta, and are read as seconds

        def __init__(
            self, *, name: str = "", subjects: list[str] | None = None, **fields: Unpack[StreamFields]
        ) -> None: ...
