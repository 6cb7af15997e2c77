"""The state of streams. Field names are the wire's.

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
    """Messages that were lost with a damaged file: their sequences and their size in bytes."""

    msgs: list[int] | None = None
    bytes: int = 0


class StreamState(Model, frozen=True, kw_only=True):
    """Contents of a stream.

    Attributes:
        messages: Number of messages.
        bytes: Size of the messages in bytes.
        first_seq: Sequence of the oldest message, or ``last_seq`` + 1 if the stream is empty.
        first_ts: Time of the oldest message, None if the stream is empty.
        last_seq: The last sequence assigned. It remains when messages are removed.
        last_ts: Time of the last message.
        consumer_count: Number of consumers.
        num_subjects: Number of subjects.
        num_deleted: Number of messages removed between the first and the last sequence.
        deleted: Sequences of the removed messages, if requested.
        lost: Messages lost with a damaged file.
        subjects: Number of messages by subject, if requested.
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
    """The replication state of a mirror or source.

    Attributes:
        name: The stream that is copied.
        lag: Number of messages not copied yet.
        active: Seconds since the last contact. Negative if there was no contact.
        error: The reason for a failure, as the server's error object.
    """

    name: str = ""
    external: ExternalStream | None = None
    lag: int = 0
    active: Seconds | None = None
    error: dict[str, Any] | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None


class StreamAlternate(Model, frozen=True, kw_only=True):
    """A mirror that can be read instead of the stream."""

    name: str = ""
    domain: str | None = None
    cluster: str | None = None


class StreamInfo(Model, frozen=True, kw_only=True):
    """State of a stream.

    Attributes:
        config: Its configuration with the server's defaults.
        created: Creation time. It changes when a stream of the same name is created again.
        state: Its contents.
        domain: Its JetStream domain.
        cluster: Its placement.
        mirror: Replication state, if the stream is a mirror.
        sources: Replication state of each source.
        alternates: Mirrors that can be read instead, nearest first.
        did_create: In the answer to a create, whether the stream did not exist before.
        ts: The time at which the server collected this state.
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
        """The stream's name."""
        return self.config.name
