"""Configuration and state of consumers. Fields have the same names as on the wire.

Durations are in seconds (``ack_wait``, ``backoff``, ``idle_heartbeat``, ``inactive_threshold``, ``max_expires``,
``priority_timeout``). On the wire, they are integers in nanoseconds. Source: ADR-15 §Configuration; ADR-13, ADR-42,
ADR-9; nats-server server/consumer.go (ConsumerConfig, ConsumerInfo).
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
    """Which messages a client must acknowledge.

    With ``NONE``, no acknowledgements are necessary. With ``ALL``, an acknowledgement also covers all earlier messages.
    With ``EXPLICIT``, each message must be acknowledged. ``FLOW_CONTROL`` also enables flow control and heartbeats.
    """

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class DeliverPolicy(StrEnum):
    """Where in the stream a consumer starts.

    ``ALL`` starts at the first message, ``LAST`` at the last message, ``NEW`` at the next message to be stored,
    ``BY_START_SEQUENCE`` at ``opt_start_seq``, and ``BY_START_TIME`` at ``opt_start_time``. ``LAST_PER_SUBJECT`` starts
    with the last message of each subject.
    """

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class ReplayPolicy(StrEnum):
    """How fast stored messages are delivered.

    ``INSTANT`` delivers them as fast as possible, and ``ORIGINAL`` at the rate at which they were published.
    """

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """How the pull requests of a priority group share the messages.

    With ``NONE``, there are no priority groups. With ``OVERFLOW``, a request can be limited to times when enough
    messages are pending. With ``PINNED_CLIENT``, one client receives all messages. With ``PRIORITIZED``, requests with
    the lowest ``priority`` are served first.
    """

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


# The same values as literals, so that type checkers report misspelt ones.
AckPolicyText: TypeAlias = Literal["none", "all", "explicit", "flow_control"]
DeliverPolicyText: TypeAlias = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
ReplayPolicyText: TypeAlias = Literal["instant", "original"]
PriorityPolicyText: TypeAlias = Literal["none", "overflow", "pinned_client", "prioritized"]


class ConsumerFields(TypedDict, total=False):
    """Keyword arguments for the fields of a `ConsumerConfig`, which describes them."""

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
    """Configuration of a consumer. If a field is None, the server uses its default.

    If ``ack_policy``, ``deliver_policy`` or ``replay_policy`` is None, the client sends "explicit", "all" or "instant".

    Attributes:
        name: Name of the consumer. If ``durable_name`` is set too, both must be equal.
        durable_name: Name of a consumer that outlives its subscribers.
        description: Human-readable description, up to 4 KiB.
        deliver_policy: Where in the stream the consumer starts.
        opt_start_seq: Stream sequence to start at, for the policy "by_start_sequence".
        opt_start_time: Time to start at, for the policy "by_start_time", as an aware ``datetime`` or RFC 3339 string.
        ack_policy: Which messages must be acknowledged.
        ack_wait: Seconds after which an unacknowledged message is redelivered.
        max_deliver: Maximum number of deliveries of a message, or -1 for no limit.
        backoff: Seconds before each redelivery. The first value replaces ``ack_wait``.
        filter_subject: Deliver only messages of this subject, which may contain wildcards.
        filter_subjects: Deliver only messages of these subjects, which may contain wildcards.
        replay_policy: How fast stored messages are delivered.
        rate_limit_bps: Maximum delivery rate in bits per second. For push consumers.
        sample_freq: Percentage of acknowledgements to sample, as a string.
        max_waiting: Maximum number of waiting pull requests. For pull consumers.
        max_ack_pending: Maximum number of delivered but unacknowledged messages, or -1 for no limit.
        flow_control: Whether the server waits for responses from the subscriber. For push consumers. It requires
            ``idle_heartbeat``.
        headers_only: Whether to deliver headers (with an additional ``Nats-Msg-Size``) but no payloads.
        max_batch: Maximum number of messages that a pull request may ask for.
        max_expires: Maximum time that a pull request may wait, in seconds.
        max_bytes: Maximum number of bytes that a pull request may ask for.
        deliver_subject: Subject that messages are delivered to. Setting it makes the consumer a push consumer.
        deliver_group: Queue group whose members share the messages.
        idle_heartbeat: Idle seconds after which the server sends a heartbeat. For push consumers.
        inactive_threshold: Seconds without a subscriber or pull request after which the server removes the consumer.
        num_replicas: Number of replicas of the consumer's state, or 0 for as many as the stream has.
        mem_storage: Whether the consumer's state is stored in memory.
        metadata: Key-value pairs supplied by the user. Keys that start with ``_nats.`` are reserved for the server.
        pause_until: Time until which no messages are delivered.
        priority_groups: Names of the priority groups.
        priority_policy: How the pull requests of a priority group share the messages.
        priority_timeout: Seconds without a pull request after which a pinned client is unpinned.
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
        """Filter subjects as a list, from whichever field is set. Empty if messages of all subjects are delivered."""
        return self.filter_subjects or ([self.filter_subject] if self.filter_subject else [])


class SequenceInfo(Model, frozen=True, kw_only=True):
    """A position in the deliveries of a consumer.

    Attributes:
        consumer_seq: Consumer sequence of the position.
        stream_seq: Stream sequence of the position.
        last_active: Time at which the position last changed, or None if it has never changed.
    """

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Time | None = None


class PriorityGroupState(Model, frozen=True, kw_only=True):
    """State of a priority group.

    Attributes:
        group: Name of the priority group.
        pinned_client_id: ID of the current pin, or None if no client is pinned.
        pinned_ts: Time at which the client was pinned.
    """

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: Time | None = None


class ConsumerInfo(Model, frozen=True, kw_only=True):
    """Configuration and state of a consumer, as reported by the server.

    Attributes:
        stream_name: Name of the stream.
        name: Name of the consumer.
        created: Time at which the consumer was created. It changes if the consumer is deleted and recreated.
        config: Configuration of the consumer, including the server's defaults.
        delivered: Position of the last delivery.
        ack_floor: Position up to which all messages have been acknowledged.
        num_ack_pending: Number of messages delivered but not yet acknowledged.
        num_redelivered: Number of unacknowledged messages that were delivered more than once.
        num_waiting: Number of waiting pull requests.
        num_pending: Number of messages not delivered yet.
        cluster: Servers that have replicas of the consumer, or None if the server is not part of a cluster.
        push_bound: Whether there is a subscriber on the deliver subject.
        paused: Whether delivery is paused.
        pause_remaining: Seconds until a paused delivery resumes.
        priority_groups: State of each priority group.
        ts: Time at which the server collected this information.
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
        """Whether this is a push consumer, which has a deliver subject."""
        return bool(self.config.deliver_subject)

    @property
    def is_durable(self) -> bool:
        """Whether the consumer outlives its subscribers."""
        return bool(self.config.durable_name)


def user_set(config: ConsumerConfig) -> dict[str, Any]:
    """Return a mapping of the fields that are not None, including the fields in ``extra``."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "extra"}
    return {name: value for name, value in (config.extra | fields).items() if value is not None}
