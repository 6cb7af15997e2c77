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

    * ``NONE``: No acknowledgements are necessary. The server delivers each message once, and never again.
    * ``ALL``: An acknowledgement also covers all earlier messages.
    * ``EXPLICIT``: Each message must be acknowledged. This is the default of jsclient.
    * ``FLOW_CONTROL``: Like ``ALL``, but responses to flow control requests acknowledge the messages. For push
      consumers. This policy also enables flow control and heartbeats.
    """

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class DeliverPolicy(StrEnum):
    """Where in the stream a consumer starts.

    * ``ALL``: At the first message. This is the default.
    * ``LAST``: At the last message.
    * ``NEW``: At the next message to be stored.
    * ``BY_START_SEQUENCE``: At the stream sequence ``opt_start_seq``.
    * ``BY_START_TIME``: At the first message stored at or after ``opt_start_time``.
    * ``LAST_PER_SUBJECT``: At the last message of each subject.
    """

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class ReplayPolicy(StrEnum):
    """How fast a consumer delivers messages that are already stored.

    * ``INSTANT``: As fast as possible. This is the default.
    * ``ORIGINAL``: At the rate at which they were published, for example for a simulation.
    """

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """How the pull requests of a priority group share the messages.

    * ``NONE``: The consumer has no priority groups.
    * ``OVERFLOW``: A request can wait until a minimum number of messages are pending, so that a client helps only when
      the others are overloaded.
    * ``PINNED_CLIENT``: One client receives all messages. The other clients stand by.
    * ``PRIORITIZED``: Requests with the lowest ``priority`` are served first.
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
    """Keyword arguments of `Stream.create_consumer` and similar methods, for type annotations.

    For the meaning of an argument, see the field of `ConsumerConfig` with the same name.
    """

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
        durable_name: Name of a durable consumer, which the server keeps even while it has no readers, unless
            ``inactive_threshold`` is set.
        description: Human-readable description, up to 4 KiB.
        deliver_policy: Where in the stream the consumer starts.
        opt_start_seq: Stream sequence to start at, for the policy "by_start_sequence".
        opt_start_time: Time to start at, for the policy "by_start_time", as an aware ``datetime`` or RFC 3339 string.
        ack_policy: Which messages must be acknowledged.
        ack_wait: How long the server waits for an acknowledgement before it redelivers the message, in seconds.
            Defaults to 30.
        max_deliver: Maximum number of deliveries of a message, or -1 (the default) for no limit.
        backoff: How long to wait before each redelivery, as a list of seconds. The first value replaces ``ack_wait``,
            and the last one applies to all further redeliveries.
        filter_subject: Deliver only messages of this subject, which may contain wildcards.
        filter_subjects: Deliver only messages of these subjects, which may contain wildcards.
        replay_policy: How fast stored messages are delivered.
        rate_limit_bps: Maximum delivery rate in bits per second. For push consumers.
        sample_freq: Percentage of acknowledgements that the server reports in advisories, as a string such as "100".
        max_waiting: Maximum number of waiting pull requests. For pull consumers. Defaults to 512.
        max_ack_pending: Maximum number of delivered but unacknowledged messages, or -1 for no limit. While it is
            reached, the server delivers no further messages. Usually defaults to 1,000.
        flow_control: Whether the server waits for responses from the subscriber, so that a slow subscriber isn't
            flooded. For push consumers. It requires ``idle_heartbeat``.
        headers_only: Whether to deliver headers (with an additional ``Nats-Msg-Size``) but no payloads.
        max_batch: Maximum number of messages that a pull request may ask for.
        max_expires: Maximum time that a pull request may wait, in seconds.
        max_bytes: Maximum number of bytes that a pull request may ask for.
        deliver_subject: Subject that messages are delivered to. Setting it makes the consumer a push consumer.
        deliver_group: Queue group whose members share the messages. For push consumers.
        idle_heartbeat: If there are no messages for this many seconds, the server sends a heartbeat. For push
            consumers.
        inactive_threshold: If there is no subscriber or pull request for this many seconds, the server removes the
            consumer. Defaults to 5 for an ephemeral consumer. By default, a durable consumer is never removed.
        num_replicas: Number of replicas of the consumer's state, or 0 for as many as the stream has.
        mem_storage: Whether the consumer's state is stored in memory.
        metadata: Key-value pairs supplied by the user. Keys that start with ``_nats.`` are reserved for the server.
        pause_until: Time until which no messages are delivered.
        priority_groups: Names of the priority groups. Their requests are served according to ``priority_policy``.
        priority_policy: How the pull requests of a priority group share the messages.
        priority_timeout: If a pinned client sends no pull request for this many seconds, it is unpinned. Defaults to
            120.
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
        """Filter subjects as a list, from whichever of the two fields is set.

        The list is empty if the consumer delivers messages of all subjects.
        """
        return self.filter_subjects or ([self.filter_subject] if self.filter_subject else [])


class SequenceInfo(Model, frozen=True, kw_only=True):
    """A position in the deliveries of a consumer. It is part of `ConsumerInfo`.

    Attributes:
        consumer_seq: Consumer sequence, which counts deliveries.
        stream_seq: Stream sequence of the message.
        last_active: Time at which the position last changed, or None if it has never changed.
    """

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Time | None = None


class PriorityGroupState(Model, frozen=True, kw_only=True):
    """State of a priority group of a consumer. It is part of `ConsumerInfo`.

    Attributes:
        group: Name of the priority group.
        pinned_client_id: ID of the current pin, or None if no client is pinned.
        pinned_ts: Time at which the client was pinned, or None if no client is pinned.
    """

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: Time | None = None


class ConsumerInfo(Model, frozen=True, kw_only=True):
    """Configuration and state of a consumer, as reported by the server. Returned by `Consumer.info`.

    Attributes:
        stream_name: Name of the stream.
        name: Name of the consumer.
        created: Time at which the consumer was created. It changes if the consumer is deleted and recreated.
        config: Configuration of the consumer, including the server's defaults.
        delivered: Position of the last delivery.
        ack_floor: Position up to which all messages have been acknowledged.
        num_ack_pending: Number of messages delivered but not yet acknowledged.
        num_redelivered: Number of unacknowledged messages that were delivered more than once.
        num_waiting: Number of pull requests that are waiting for messages.
        num_pending: Number of messages that match the filter and haven't been delivered yet.
        cluster: Servers that have replicas of the consumer, or None if the server isn't part of a cluster.
        push_bound: Whether there is a subscriber on the deliver subject. Always false for pull consumers.
        paused: Whether delivery is paused.
        pause_remaining: How long a pause still lasts, in seconds. None if the consumer isn't paused.
        priority_groups: State of each priority group, or None if there are none.
        ts: Time at which the server collected this information, or None if the server doesn't report it.
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
        """Whether this is a push consumer, which has a deliver subject. Otherwise it is a pull consumer."""
        return bool(self.config.deliver_subject)

    @property
    def is_durable(self) -> bool:
        """Whether the consumer is durable, so by default the server keeps it even while it has no readers."""
        return bool(self.config.durable_name)


def user_set(config: ConsumerConfig) -> dict[str, Any]:
    """Return a mapping of the fields that are not None, including the fields in ``extra``."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "extra"}
    return {name: value for name, value in (config.extra | fields).items() if value is not None}
