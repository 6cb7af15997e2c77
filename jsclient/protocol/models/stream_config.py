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
    """When messages are removed: at the stream's limits, or when all consumers or one consumer have acked them."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class StorageType(StrEnum):
    """The storage of messages."""

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(StrEnum):
    """What happens at a limit: the oldest message is removed, or the new message is refused."""

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


# The same words as literals, so that type checkers report a misspelt word.
RetentionPolicyText: TypeAlias = Literal["limits", "interest", "workqueue"]
DiscardPolicyText: TypeAlias = Literal["old", "new"]
StorageTypeText: TypeAlias = Literal["file", "memory"]
StoreCompressionText: TypeAlias = Literal["none", "s2"]
PersistModeText: TypeAlias = Literal["default", "async"]


class Placement(Model, frozen=True, kw_only=True):
    """The servers that may store a stream, by their cluster and the tags that they all have, and a preferred leader."""

    cluster: str | None = None
    tags: list[str] | None = None
    preferred: str | None = None


class ExternalStream(Model, frozen=True, kw_only=True):
    """A stream in another account or domain, by the prefix of its API and of its deliveries."""

    api: str | None = None
    deliver: str | None = None


class SubjectTransform(Model, frozen=True, kw_only=True):
    """Changes the subject of messages from ``src`` to ``dest``."""

    src: str | None = None
    dest: str | None = None


class StreamConsumerSource(Model, frozen=True, kw_only=True):
    """An existing consumer through which a stream is sourced or mirrored."""

    name: str | None = None
    deliver_subject: str | None = None


class StreamSource(Model, frozen=True, kw_only=True):
    """A stream to copy from, with the start, the subjects, and their transforms."""

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: SettableTime | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None


class RePublish(Model, frozen=True, kw_only=True):
    """Publishes stored messages of subject ``src`` again under ``dest``, optionally without payload."""

    src: str | None = None
    dest: str | None = None
    headers_only: bool | None = None


class StreamConsumerLimits(Model, frozen=True, kw_only=True):
    """Defaults of the stream's consumers for ``inactive_threshold``, in seconds, and ``max_ack_pending``."""

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
    """Configuration of a stream. A field that is None is not set, and the server decides.

    Attributes:
        name: The stream's name. It is required to create a stream.
        description: Up to 4 KiB of text.
        subjects: The subjects that it stores. The default is its name, unless it has ``mirror`` or ``sources``.
        retention: When messages are removed.
        max_consumers: Maximum number of consumers, -1 for no limit.
        max_msgs: Maximum number of messages, -1 for no limit.
        max_bytes: Maximum number of bytes, -1 for no limit.
        max_age: Maximum age of a message in seconds, 0 for no limit.
        max_msgs_per_subject: Maximum number of messages of one subject, -1 for no limit.
        max_msg_size: Maximum size of a message in bytes, -1 for no limit.
        discard: What happens at a limit.
        discard_new_per_subject: Whether ``discard`` "new" also applies to ``max_msgs_per_subject``.
        storage: The storage of messages.
        num_replicas: Number of replicas in the cluster, 1 to 5.
        no_ack: Whether the server does not acknowledge publishing.
        duplicate_window: Seconds during which the server remembers a message id.
        placement: The servers that may store it.
        mirror: The stream of which it is a copy.
        sources: The streams from which it is filled.
        sealed: Whether no message can be added or removed any more.
        deny_delete: Whether messages cannot be deleted by request.
        deny_purge: Whether the stream cannot be purged.
        allow_rollup_hdrs: Whether a message may replace all earlier messages (``Nats-Rollup``).
        allow_direct: Whether every replica answers direct gets.
        mirror_direct: Whether the mirror answers direct gets for its origin.
        republish: How stored messages are published again.
        subject_transform: How subjects are changed before storing.
        compression: How files are compressed.
        first_seq: The sequence of the first message.
        metadata: Key-value pairs of the user. Keys that start with ``_nats.`` belong to the server.
        consumer_limits: Defaults of its consumers.
        allow_msg_ttl: Whether a message may have its own time to live (``Nats-TTL``).
        subject_delete_marker_ttl: Time to live, seconds, of the marker that the server stores when the last message of
            a subject has expired.
        allow_msg_counter: Whether messages are increments of counters (``Nats-Incr``).
        allow_atomic: Whether atomic batches may be published.
        allow_batched: Whether batches may be published by fast ingest.
        allow_msg_schedules: Whether messages may be scheduled (``Nats-Schedule``).
        persist_mode: Whether a message is written to disk before it is acknowledged.
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

    if TYPE_CHECKING:  # a duration may be set as a timedelta, and is always read as seconds

        def __init__(
            self, *, name: str = "", subjects: list[str] | None = None, **fields: Unpack[StreamFields]
        ) -> None: ...
