"""Drift: differences between a stream or consumer and the requested configuration, and the update that removes them.

Fields that are not set are neither compared nor changed, and unknown fields of the server stay unchanged. Values are
compared as on the wire, after the server has applied its defaults, so that a configuration never differs from what was
created from it:

- false, 0, empty and absent are the same;
- if the server replaces 0 (or less) by a default, 0 (or less) equals any value. A limit of -1 that the server does not
  replace is compared like any other value;
- times are compared as instants, lists whose order has no meaning as sets, ``filter_subject`` and ``filter_subjects``
  as one set;
- ``backoff`` replaces ``ack_wait``, and the ack policy ``flow_control`` sets flow control and its own
  heartbeat;
- metadata keys of the server (``_nats.``) and ``jsclient.subscriber`` (who created a consumer) do not count.

Source: nats-server server/consumer.go (setConsumerConfigDefaults).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from ...errors import ConfigError
from ..wire.codec import to_wire
from ..wire.units import parse_time_ns
from .consumer import ConsumerConfig, user_set
from .stream_config import StreamConfig

__all__ = [
    "OnDrift",
    "changed_consumer",
    "changed_stream",
    "check_on_drift",
    "config_mismatches",
    "consumer_drift",
    "stream_mismatches",
]

OnDrift: TypeAlias = Literal["error", "update", "ignore"]
"""What to do if an existing configuration differs from the requested one."""


def check_on_drift(on_drift: str) -> None:
    """Raise `ConfigError` if ``on_drift`` is not one of the values of `OnDrift`."""
    if on_drift not in ("error", "update", "ignore"):
        raise ConfigError(f"on_drift is {on_drift!r:.60}: it must be error, update or ignore")


_RESERVED: Final = ("_nats.", "jsclient.subscriber")


def _own_metadata(value: dict[str, str]) -> dict[str, str] | None:
    return {key: text for key, text in value.items() if not key.startswith(_RESERVED)} or None


def _comparable(forms: Mapping[str, Callable[[Any], Any]], name: str, value: Any) -> Any:
    """Normalize a value for comparison. Return None if the value is equivalent to an absent value."""
    if not value:
        return None
    convert = forms.get(name)
    return convert(value) if convert else value


# --- consumers -------------------------------------------------------------------------------------------

_NOT_COMPARED: Final = frozenset({"name", "deliver_subject"})
_REPLACED: Final = frozenset(  # fields in which the server replaces 0 or less by its default
    {"ack_wait", "max_waiting", "max_batch", "max_expires", "max_bytes", "inactive_threshold", "num_replicas",
     "priority_timeout"}
)  # fmt: skip
_UNLIMITED: Final = frozenset({"max_deliver", "max_ack_pending"})  # 0 means the default, -1 or less no limit
_SET_BY_FLOW_CONTROL_POLICY: Final = frozenset({"flow_control", "idle_heartbeat"})
_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "idle_heartbeat": lambda value: max(value, 0) or None,
    "max_ack_pending": lambda value: max(value, -1),
    "max_deliver": lambda value: max(value, -1),
    "metadata": _own_metadata,
    "opt_start_time": parse_time_ns,
    "pause_until": parse_time_ns,
    "priority_groups": frozenset,
    "priority_policy": lambda value: None if value == "none" else value,
    "sample_freq": lambda value: value.removesuffix("%"),
}


def config_mismatches(expected: ConsumerConfig, current: ConsumerConfig) -> list[tuple[str, Any, Any]]:
    """Return how the configuration of a consumer differs from a requested configuration.

    `JetStream.subscribe` uses the same rules to decide whether it can use an existing consumer.

    Args:
        expected: The requested configuration. Fields that are None may have any value.
        current: The existing configuration, from the server.

    Returns:
        A ``(field, expected value, current value)`` tuple for each difference. Empty if the consumer matches. ``name``
        and ``deliver_subject`` aren't compared, because consumers are looked up by name, and may deliver to any
        subject.
    """
    want, have, differing = to_wire(expected), to_wire(current), []
    for name, value in user_set(expected).items():
        if name in _NOT_COMPARED or _is_overruled(name, value, expected, current):
            continue
        if name in ("filter_subject", "filter_subjects"):
            same = set(expected.filters) == set(current.filters)
        else:
            same = _comparable(_FORMS, name, want[name]) == _comparable(_FORMS, name, have.get(name))
        if not same:
            differing.append((name, value, getattr(current, name, current.extra.get(name))))
    return differing


def _is_overruled(name: str, value: Any, config: ConsumerConfig, actual: ConsumerConfig) -> bool:
    """Return whether the server replaces this value of ``config``, so it doesn't count as a difference."""
    if name in _REPLACED and value <= 0:
        return True
    if name in _UNLIMITED and value == 0:
        return True
    if name == "ack_wait" and config.backoff and actual.ack_wait == config.backoff[0]:
        return True
    return name in _SET_BY_FLOW_CONTROL_POLICY and config.ack_policy == "flow_control"


def consumer_drift(expected: ConsumerConfig, current: ConsumerConfig) -> list[tuple[str, Any, Any]]:
    """Like `config_mismatches`, but also compare ``deliver_subject``."""
    different = config_mismatches(expected, current)
    if expected.deliver_subject is not None and expected.deliver_subject != current.deliver_subject:
        different.append(("deliver_subject", expected.deliver_subject, current.deliver_subject))
    return different


def changed_consumer(expected: ConsumerConfig, current: ConsumerConfig) -> ConsumerConfig:
    """Return a copy of ``current`` with the fields that are set in ``expected``."""
    changes = {field: value for field, value in user_set(expected).items() if field not in expected.extra}
    if "filter_subject" in changes or "filter_subjects" in changes:
        # Both fields set the filters, and the server accepts only one of them. If only one is given, reset the other.
        changes = {"filter_subject": None, "filter_subjects": None} | changes
    return current.replace(**changes, extra=current.extra | expected.extra)


# --- streams ---------------------------------------------------------------------------------------------


def _limit(value: int) -> int | None:
    return None if value == -1 else value


_STREAM_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "max_bytes": _limit,
    "max_consumers": _limit,
    "max_msg_size": _limit,
    "max_msgs": _limit,
    "max_msgs_per_subject": _limit,
    "metadata": _own_metadata,
    "subjects": frozenset,
}


def stream_mismatches(expected: StreamConfig, current: StreamConfig) -> list[tuple[str, Any, Any]]:
    """Return ``(field, requested, existing)`` for every field that is set in ``expected`` and differs in the stream."""
    want, have = to_wire(expected), to_wire(current)
    return [
        (name, getattr(expected, name, value), getattr(current, name, have.get(name)))
        for name, value in want.items()
        if not (name in ("duplicate_window", "num_replicas") and value == 0)  # 0 means the server's default
        and _comparable(_STREAM_FORMS, name, value) != _comparable(_STREAM_FORMS, name, have.get(name))
    ]


def changed_stream(expected: StreamConfig, current: StreamConfig) -> StreamConfig:
    """Return a copy of ``current`` with the fields that are set in ``expected`` and differ."""
    changes = {
        field: value
        for field, value, _ in stream_mismatches(expected, current)
        if field not in expected.extra
    }
    return current.replace(**changes, extra=current.extra | expected.extra)
