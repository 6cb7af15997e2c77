"""The state of streams. Field names are the wire's.

Source: ADR-1; nats-server server/stream.go (StreamInfo), server/store.go (StreamState).
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..wire.codec import Model, Seconds, Time
from .cluster import ClusterInfo
from .stream_config import ExternalStream, StreamConfig, SubjectTransform

__all__ = ["LostStreamData", "StreamAlternate", "StreamInfo", "StreamSourceInfo", "StreamState"]


class LostStreamData(Model, frozen=True, kw_only=True):
    """Messages that a damaged file has cost: their sequences and their bytes."""

    msgs: list[int] | None = None
    bytes: int = 0


class StreamState(Model, frozen=True, kw_only=True):
    """Contents of a stream.

    Attributes:
        messages: How many messages.
        bytes: How many bytes.
        first_seq: Sequence of the oldest message; ``last_seq`` + 1 if the stream is empty.
        first_ts: Its time; None if the stream is empty.
        last_seq: The last sequence given; it stays when messages are removed.
        last_ts: Its time.
        consumer_count: How many consumers.
        num_subjects: How many subjects.
        num_deleted: Gaps between first and last.
        deleted: Their sequences, if requested.
        lost: Messages lost with a damaged file.
        subjects: Messages by subject, if requested.
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
    """How far a mirror or source got.

    Attributes:
        name: The stream copied from.
        lag: Messages not copied yet.
        active: Seconds since it was last heard of; negative: never yet.
        error: Why it fails, the error object as the server sends it.
    """

    name: str = ""
    external: ExternalStream | None = None
    lag: int = 0
    active: Seconds | None = None
    error: dict[str, Any] | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None


class StreamAlternate(Model, frozen=True, kw_only=True):
    """A mirror that can be read instead, nearest first."""

    name: str = ""
    domain: str | None = None
    cluster: str | None = None


class StreamInfo(Model, frozen=True, kw_only=True):
    """State of a stream.

    Attributes:
        config: Its configuration with the server's defaults.
        created: When it was made: another value under the same name is another stream.
        state: Its contents.
        domain: Its JetStream domain.
        cluster: Its placement.
        mirror: How far it got as a copy.
        sources: How far it got with each source.
        alternates: Mirrors that can be read instead.
        did_create: In the answer to a create: it did not exist before.
        ts: When this was gathered.
    """

    required: ClassVar[frozenset[str]] = frozenset({"config"})
    envelope: ClassVar[frozenset[str]] = frozenset({"type", "total", "offset", "limit"})

    config: StreamConfig = StreamConfig()
    created: Time | None = None
    state: StreamState = StreamState()
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
