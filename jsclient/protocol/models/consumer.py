"""Consumers: their configuration and state. Field names are the wire's.

Durations are seconds (``ack_wait``, ``backoff``, ``idle_heartbeat``, ``inactive_threshold``, ``max_expires``,
``priority_timeout``), integer nanoseconds on the wire. Source: ADR-15 §Configuration; ADR-13, ADR-42, ADR-9;
nats-server server/consumer.go (ConsumerConfig, ConsumerInfo).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypedDict, Unpack

from msgspec import field

from ..wire.codec import Model, Seconds, SettableTime, Time
from .cluster import ClusterInfo

if TYPE_CHECKING:
    from datetime import datetime, timedelta

__all__ = [
    "AckPolicy",
    "AckPolicyText",
    "ConsumerConfig",
    "ConsumerFields",
    "ConsumerInfo",
    "DeliverPolicy",
    "DeliverPolicyText",
    "PriorityGroupState",
    "PriorityPolicy",
    "PriorityPolicyText",
    "ReplayPolicy",
    "ReplayPolicyText",
    "SequenceInfo",
    "user_set",
]


class AckPolicy(StrEnum):
    """The messages that have to be acknowledged."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class DeliverPolicy(StrEnum):
    """The position in the stream at which a consumer starts."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class ReplayPolicy(StrEnum):
    """How fast stored messages are delivered: at once, or at the speed at which they were published."""

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """How pull requests of a priority group share the messages."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


# The same words as literals, so that type checkers report a misspelt word.
AckPolicyText: TypeAlias = Literal["none", "all", "explicit", "flow_control"]
DeliverPolicyText: TypeAlias = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
ReplayPolicyText: TypeAlias = Literal["instant", "original"]
PriorityPolicyText: TypeAlias = Literal["none", "overflow", "pinned_client", "prioritized"]


class ConsumerFields(TypedDict, total=False):
    """The fields of a `ConsumerConfig`."""

    name: str | None
    durable_name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | DeliverPolicyText | None
    opt_start_seq: int | None
    opt_start_time: datetime | str | None
    ack_policy: AckPolicy | AckPolicyText | None
    ack_wait: float | timedelta | None
    max_deliver: int | None
    backoff: list[float | timedelta] | None
    filter_subject: str | None
    filter_subjects: list[str] | None
    replay_policy: ReplayPolicy | ReplayPolicyText | None
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    flow_control: bool | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: float | timedelta | None
    max_bytes: int | None
    deliver_subject: str | None
    deliver_group: str | None
    idle_heartbeat: float | timedelta | None
    inactive_threshold: float | timedelta | None
    num_replicas: int | None
    mem_storage: bool | None
    metadata: dict[str, str] | None
    pause_until: datetime | str | None
    priority_groups: list[str] | None
    priority_policy: PriorityPolicy | PriorityPolicyText | None
    priority_timeout: float | timedelta | None
    extra: dict[str, Any]


class ConsumerConfig(Model, frozen=True, kw_only=True):
    """Configuration of a consumer. A field that is None is not set, and the server decides.

    ``ack_policy``, ``deliver_policy`` and ``replay_policy`` are always sent (explicit, all, instant).

    Attributes:
        name: The consumer's name. It must be equal to ``durable_name`` if both are set.
        durable_name: The name of a consumer that outlives its subscribers.
        description: Up to 4 KiB of text.
        deliver_policy: The start position.
        opt_start_seq: First stream sequence, with ``by_start_sequence``.
        opt_start_time: Start time, with ``by_start_time``: an aware ``datetime`` or RFC 3339 text.
        ack_policy: The messages that have to be acknowledged.
        ack_wait: Seconds after which a message that was not acknowledged is delivered again.
        max_deliver: Maximum number of deliveries of a message, -1 for no limit.
        backoff: Seconds before each redelivery. The first replaces ``ack_wait``.
        filter_subject: Deliver only messages of this subject.
        filter_subjects: Deliver only messages of these subjects.
        replay_policy: How fast stored messages are delivered.
        rate_limit_bps: Maximum bits per second, push only.
        sample_freq: Percentage of acknowledgements to be sampled, as text.
        max_waiting: Maximum number of waiting pull requests, pull only.
        max_ack_pending: Maximum number of messages delivered and not acknowledged, -1 for no limit.
        flow_control: Whether the server waits for answers of the subscriber, push only. Needs ``idle_heartbeat``.
        headers_only: Deliver headers without payloads, plus ``Nats-Msg-Size``.
        max_batch: Maximum number of messages of one pull request.
        max_expires: Maximum wait of one pull request in seconds.
        max_bytes: Maximum number of bytes of one pull request.
        deliver_subject: The subject to deliver to, which makes this a push consumer.
        deliver_group: The queue group that shares the messages.
        idle_heartbeat: Seconds of silence after which the server sends a heartbeat, push only.
        inactive_threshold: Seconds without subscriber or request after which the server removes the consumer.
        num_replicas: Number of replicas of its state, 0 for as many as the stream has.
        mem_storage: Whether its state is stored in memory.
        metadata: Key-value pairs of the user. Keys that start with ``_nats.`` belong to the server.
        pause_until: The time before which no message is delivered.
        priority_groups: The groups of pull requests.
        priority_policy: How the pull requests of a group share the messages.
        priority_timeout: Seconds without a request after which a client is unpinned.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {
        "ack_policy": AckPolicy.EXPLICIT,
        "deliver_policy": DeliverPolicy.ALL,
        "replay_policy": ReplayPolicy.INSTANT,
    }

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy | str | None = None
    opt_start_seq: int | None = None
    opt_start_time: SettableTime | None = None
    ack_policy: AckPolicy | str | None = None
    ack_wait: Seconds | None = None
    max_deliver: int | None = None
    backoff: list[Seconds] | None = None
    filter_subject: str | None = None
    filter_subjects: list[str] | None = None
    replay_policy: ReplayPolicy | str | None = None
    rate_limit_bps: int | None = None
    sample_freq: str | None = None
    max_waiting: int | None = None
    max_ack_pending: int | None = None
    flow_control: bool | None = None
    headers_only: bool | None = None
    max_batch: int | None = None
    max_expires: Seconds | None = None
    max_bytes: int | None = None
    deliver_subject: str | None = None
    deliver_group: str | None = None
    idle_heartbeat: Seconds | None = None
    inactive_threshold: Seconds | None = None
    num_replicas: int | None = None
    mem_storage: bool | None = None
    metadata: dict[str, str] | None = None
    pause_until: SettableTime | None = None
    priority_groups: list[str] | None = None
    priority_policy: PriorityPolicy | str | None = None
    priority_timeout: Seconds | None = None

    if TYPE_CHECKING:  # a duration may be set as a timedelta, and is always read as seconds

        def __init__(self, **fields: Unpack[ConsumerFields]) -> None: ...

    @property
    def filters(self) -> list[str]:
        """The filter subjects of both fields, empty if every subject is delivered."""
        return self.filter_subjects or ([self.filter_subject] if self.filter_subject else [])


class SequenceInfo(Model, frozen=True, kw_only=True):
    """A position in a consumer and in its stream. ``last_active`` is the time of its last change."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Time | None = None


class PriorityGroupState(Model, frozen=True, kw_only=True):
    """The pinned client of a priority group."""

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: Time | None = None


class ConsumerInfo(Model, frozen=True, kw_only=True):
    """State of a consumer.

    Attributes:
        stream_name: Its stream.
        name: Its name.
        created: Creation time. It changes when a consumer of the same name is created again.
        config: Its configuration with the server's defaults.
        delivered: The position of the last delivery.
        ack_floor: The position up to which all messages are acknowledged.
        num_ack_pending: Number of messages delivered and not acknowledged yet.
        num_redelivered: Number of these that were delivered more than once.
        num_waiting: Number of waiting pull requests.
        num_pending: Number of messages not delivered yet.
        push_bound: Whether a subscriber listens on the deliver subject.
        paused: Whether delivery is paused, for ``pause_remaining`` seconds.
        ts: The time at which the server collected this state.
    """

    required: ClassVar[frozenset[str]] = frozenset({"stream_name", "name", "config"})
    envelope: ClassVar[frozenset[str]] = frozenset({"type"})

    stream_name: str = ""
    name: str = ""
    created: Time | None = None
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    delivered: SequenceInfo = field(default_factory=SequenceInfo)
    ack_floor: SequenceInfo = field(default_factory=SequenceInfo)
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: Seconds | None = None
    priority_groups: list[PriorityGroupState] | None = None
    ts: Time | None = None

    @property
    def is_push(self) -> bool:
        """Whether messages are pushed to a deliver subject instead of pulled."""
        return bool(self.config.deliver_subject)

    @property
    def is_durable(self) -> bool:
        """Whether the consumer outlives its subscribers."""
        return bool(self.config.durable_name)


def user_set(config: ConsumerConfig) -> dict[str, Any]:
    """Return the fields that are not None, by name, including the fields of ``extra``."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "extra"}
    return {name: value for name, value in (config.extra | fields).items() if value is not None}
