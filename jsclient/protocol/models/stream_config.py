"""Configuration of streams. Fields have the same names as on the wire.

Durations are in seconds (``max_age``, ``duplicate_window``, ``subject_delete_marker_ttl`` and the inactive threshold of
``consumer_limits``). On the wire, they are integers in nanoseconds. Source: ADR-8, ADR-31, ADR-43, ADR-49, ADR-50,
ADR-51; nats-server server/stream.go (StreamConfig).
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
    """When a stream removes messages.

    * ``LIMITS``: Only when the stream reaches a limit, such as ``max_age`` or ``max_bytes``. This is the default.
    * ``INTEREST``: At a limit, and also once every consumer whose filters match a message has acknowledged it. A
      message that matches no consumer isn't stored at all.
    * ``WORKQUEUE``: At a limit, and also once a consumer has acknowledged a message. The filters of the consumers must
      not overlap, so each message belongs to only one consumer.
    """

    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class StorageType(StrEnum):
    """Where a stream stores its messages.

    * ``FILE``: In files, so messages survive a restart of the server. This is the default.
    * ``MEMORY``: In memory, which is faster. Messages are lost when all servers with a replica stop.
    """

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(StrEnum):
    """What happens when a stream reaches a limit.

    * ``OLD``: The oldest messages are removed. This is the default.
    * ``NEW``: New messages are rejected, so publishing them raises an `ApiError`.
    """

    OLD = "old"
    NEW = "new"


class StoreCompression(StrEnum):
    """How the files of a stream are compressed.

    * ``NONE``: Not at all. This is the default.
    * ``S2``: With the S2 algorithm, which saves disk space at the cost of CPU time.
    """

    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    """Whether a stream writes messages to disk before it acknowledges them.

    * ``DEFAULT``: A message is written before it is acknowledged.
    * ``ASYNC``: A message may be written later. Publishing is faster, but a crash can lose acknowledged messages.
    """

    DEFAULT = "default"
    ASYNC = "async"


# The same values as literals, so that type checkers report misspelt ones.
RetentionPolicyText: TypeAlias = Literal["limits", "interest", "workqueue"]
DiscardPolicyText: TypeAlias = Literal["old", "new"]
StorageTypeText: TypeAlias = Literal["file", "memory"]
StoreCompressionText: TypeAlias = Literal["none", "s2"]
PersistModeText: TypeAlias = Literal["default", "async"]


class Placement(Model, frozen=True, kw_only=True):
    """Restricts which servers of a cluster may store a stream.

    Attributes:
        cluster: Name of the cluster, or None for any cluster.
        tags: Tags that all of the servers must have. They are set in the configuration of the servers.
        preferred: Name of the server that should become the leader, or None if any server may.
    """

    cluster: str | None = None
    tags: list[str] | None = None
    preferred: str | None = None


class ExternalStream(Model, frozen=True, kw_only=True):
    """How to reach a stream in a different account or domain, for `StreamSource`.

    Attributes:
        api: Prefix of the JetStream API of that account or domain, such as "$JS.hub.API".
        deliver: Prefix of the subjects to which messages are delivered. By default, the server chooses them.
    """

    api: str | None = None
    deliver: str | None = None


class SubjectTransform(Model, frozen=True, kw_only=True):
    """A rule that changes the subjects of messages before they are stored.

    Attributes:
        src: Subject of the messages to change. It may contain wildcards.
        dest: The new subject. It can refer to the wildcards of ``src``, as in ``archive.{{wildcard(1)}}``.
    """

    src: str | None = None
    dest: str | None = None


class StreamConsumerSource(Model, frozen=True, kw_only=True):
    """An existing consumer through which a stream is sourced or mirrored, for `StreamSource`.

    Attributes:
        name: Name of the consumer.
        deliver_subject: Subject to which the consumer delivers messages.
    """

    name: str | None = None
    deliver_subject: str | None = None


class StreamSource(Model, frozen=True, kw_only=True):
    """A stream from which messages are copied, for ``mirror`` and ``sources`` of a `StreamConfig`.

    Attributes:
        name: Name of the stream to copy from.
        opt_start_seq: Stream sequence to start at. By default, copying starts at the first message.
        opt_start_time: Time to start at, as an aware ``datetime`` or an RFC 3339 string.
        filter_subject: Copy only messages of this subject, which may contain wildcards. Defaults to all messages.
        subject_transforms: Rules that select messages and change their subjects. Can't be combined with
            ``filter_subject``.
        external: Account or domain of the stream, or None if the stream is in the same account and domain.
        consumer: An existing consumer to read from. By default, the server creates one.
    """

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: SettableTime | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None


class RePublish(Model, frozen=True, kw_only=True):
    """A rule that makes the server republish each stored message, so that plain NATS subscribers receive it.

    Attributes:
        src: Subject of the messages to publish again. It may contain wildcards.
        dest: Subject to publish to. It must not be stored by the same stream.
        headers_only: Whether to publish only the headers, with the size of the payload in ``Nats-Msg-Size``. Defaults
            to False.
    """

    src: str | None = None
    dest: str | None = None
    headers_only: bool | None = None


class StreamConsumerLimits(Model, frozen=True, kw_only=True):
    """Defaults for consumers of a stream that don't set these fields themselves.

    Attributes:
        inactive_threshold: Default ``inactive_threshold`` of the consumers, in seconds.
        max_ack_pending: Default ``max_ack_pending`` of the consumers.
    """

    inactive_threshold: Seconds | None = None
    max_ack_pending: int | None = None


class StreamFields(TypedDict, total=False):
    """Keyword arguments of `JetStream.create_stream` and similar methods, for annotating wrappers.

    For example: ``def ensure(**fields: Unpack[StreamFields])``. For the meaning of the arguments, see the fields of the
    same names in `StreamConfig`.
    """

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
    """Configuration of a stream. If a field is None, the server uses its default.

    Attributes:
        name: Name of the stream. It is required to create a stream.
        description: Human-readable description, up to 4 KiB.
        subjects: Subjects of the messages to store. Defaults to the name of the stream, unless it has a ``mirror`` or
            ``sources``.
        retention: When messages are removed.
        max_consumers: Maximum number of consumers, or -1 for no limit.
        max_msgs: Maximum number of messages, or -1 for no limit.
        max_bytes: Maximum total size of the messages in bytes, or -1 for no limit.
        max_age: Maximum age of a message in seconds, or 0 for no limit.
        max_msgs_per_subject: Maximum number of messages per subject, or -1 for no limit.
        max_msg_size: Maximum size of a message in bytes, or -1 for no limit.
        discard: What happens when the stream reaches a limit.
        discard_new_per_subject: Whether the policy "new" of ``discard`` also applies to ``max_msgs_per_subject``.
        storage: Whether messages are stored in files or in memory.
        num_replicas: Number of replicas in the cluster, from 1 (the default) to 5.
        no_ack: If true, the server doesn't acknowledge published messages, so `JetStream.publish` times out.
        duplicate_window: How long the server remembers message IDs to detect duplicates, in seconds. Usually defaults
            to 120, or to ``max_age`` if that is less.
        placement: Which servers may store the stream.
        mirror: The stream of which this stream is a copy. A mirror has no subjects of its own.
        sources: Streams whose messages are copied to this stream.
        sealed: If true, messages can no longer be added or removed. This can't be undone.
        deny_delete: Whether to reject requests to delete single messages.
        deny_purge: Whether to reject requests to purge the stream.
        allow_rollup_hdrs: Whether a message may replace all earlier messages (``Nats-Rollup``).
        allow_direct: Whether all replicas respond to direct gets, which are needed for `Stream.get_batch`.
        mirror_direct: Whether a mirror responds to direct gets on behalf of its origin.
        republish: How stored messages are published again. By default, they aren't.
        subject_transform: How subjects are changed before messages are stored. By default, they aren't.
        compression: How files are compressed.
        first_seq: Stream sequence that the first message gets. Defaults to 1.
        metadata: Key-value pairs supplied by the user. Keys that start with ``_nats.`` are reserved for the server.
        consumer_limits: Defaults for the consumers of the stream.
        allow_msg_ttl: Whether a message may have its own time to live (``Nats-TTL``).
        subject_delete_marker_ttl: Time to live, in seconds, of the marker that the server stores when the last message
            of a subject has expired.
        allow_msg_counter: Whether the subjects of the stream are counters, to which messages add (``Nats-Incr``).
        allow_atomic: Whether the stream accepts atomic batches. See `JetStream.batch`.
        allow_batched: Whether the stream accepts fast ingests. See `JetStream.fast_ingest`.
        allow_msg_schedules: Whether the stream accepts schedules. See `JetStream.schedule`.
        persist_mode: Whether messages are written to disk before they are acknowledged.
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
