"""State of streams. Fields have the same names as on the wire.

Source: ADR-1; nats-server server/stream.go (StreamInfo), server/store.go (StreamState).
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from ..wire.codec import Model, Seconds, Time
from .cluster import ClusterInfo
from .stream_config import ExternalStream, StreamConfig, SubjectTransform

__all__ = ["LostStreamData", "StreamAlternate", "StreamInfo", "StreamSourceInfo", "StreamState"]


class LostStreamData(Model, frozen=True, kw_only=True):
    """Messages that a stream has lost because a file was damaged. It is part of `StreamState`.

    ``msgs`` contains the stream sequences of the lost messages, or is None if the server doesn't report them. ``bytes``
    is their total size in bytes.
    """

    msgs: list[int] | None = None
    bytes: int = 0


class StreamState(Model, frozen=True, kw_only=True):
    """Summary of the messages in a stream. It is part of `StreamInfo`.

    Attributes:
        messages: Number of messages.
        bytes: Total size of the messages, in bytes.
        first_seq: Stream sequence of the oldest message. ``last_seq + 1`` if all messages have been removed. May be 0
            if no message was ever stored.
        first_ts: Time at which the oldest message was stored, or None if the stream is empty.
        last_seq: The last sequence that was assigned. It doesn't change when messages are removed.
        last_ts: Time at which the last message was stored, or None if no message was ever stored.
        consumer_count: Number of consumers.
        num_subjects: Number of different subjects of the stored messages.
        num_deleted: Number of messages between the first and the last sequence that have been removed.
        deleted: Stream sequences of the removed messages, if requested by `Stream.info`. Otherwise None.
        lost: Messages that were lost because a file was damaged, or None if there are none.
        subjects: Maps each subject to its number of messages, if requested by `Stream.info`. Otherwise None.
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: Time | None = None
    last_seq: int = 0
    last_ts: Time | None = None
    consumer_count: int = 0
    num_subjects: int = 0
    num_deleted: int = 0
    deleted: list[int] | None = None
    lost: LostStreamData | None = None
    subjects: dict[str, int] | None = None


class StreamSourceInfo(Model, frozen=True, kw_only=True):
    """How far a stream has caught up with the stream that it mirrors or sources. It is part of `StreamInfo`.

    Attributes:
        name: Name of the stream that is copied.
        external: Account or domain of the copied stream, or None if it is in the same account and domain.
        lag: Number of messages not copied yet.
        active: How long ago the server last heard from the copied stream, in seconds. Negative if it never has. None if
            the server doesn't report it.
        error: The server's description of a failure, or None if there is none.
        filter_subject: Subject of the messages that are copied, or None if all messages are copied.
        subject_transforms: Transforms that are applied to the subjects of copied messages, or None if there are none.
    """

    name: str = ""
    external: ExternalStream | None = None
    lag: int = 0
    active: Seconds | None = None
    error: dict[str, Any] | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None


class StreamAlternate(Model, frozen=True, kw_only=True):
    """A stream or one of its mirrors, which contain the same messages. Found in ``alternates`` of `StreamInfo`.

    Attributes:
        name: Name of the stream or mirror.
        domain: JetStream domain of the stream or mirror, or None if there is none.
        cluster: Name of the cluster that stores the stream or mirror.
    """

    name: str = ""
    domain: str | None = None
    cluster: str | None = None


class StreamInfo(Model, frozen=True, kw_only=True):
    """Configuration and state of a stream, as reported by the server. Returned by `Stream.info`.

    Attributes:
        config: Configuration of the stream, including the server's defaults.
        created: Time at which the stream was created. It changes if the stream is deleted and recreated.
        state: Summary of the stored messages.
        domain: JetStream domain of the stream, or None if there is none.
        cluster: Servers that have replicas of the stream, or None if the server isn't part of a cluster.
        mirror: How far the stream has caught up, if it is a mirror. Otherwise None.
        sources: How far the stream has caught up with each source, or None if it has none.
        alternates: The stream itself and its mirrors, sorted by the distance of their clusters, nearest first. None if
            the stream has no mirrors, or if the server isn't part of a cluster.
        did_create: True in the response to a create request. The stream isn't necessarily new, because the server also
            sets it if the same stream already existed. False in all other responses.
        ts: Time at which the server collected this information, or None if the server doesn't report it.
    """

    required: ClassVar[frozenset[str]] = frozenset({"config"})
    envelope: ClassVar[frozenset[str]] = frozenset({"type", "total", "offset", "limit"})

    config: StreamConfig = field(default_factory=StreamConfig)
    created: Time | None = None
    state: StreamState = field(default_factory=StreamState)
    domain: str | None = None
    cluster: ClusterInfo | None = None
    mirror: StreamSourceInfo | None = None
    sources: list[StreamSourceInfo] | None = None
    alternates: list[StreamAlternate] | None = None
    did_create: bool = False
    ts: Time | None = None

    @property
    def name(self) -> str:
        """Name of the stream, which is part of its configuration."""
        return self.config.name
