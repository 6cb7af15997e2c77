"""Comparison of a consumer configuration set by the user with that of the server.

The server omits zero values and fills in its defaults, so:

- false, 0, empty and absent are the same;
- if the server replaces 0 (or less) by a default, 0 (or less) equals any value; a limit of -1 that it keeps is
  compared like any other value;
- times are compared as instants, durations as integer nanoseconds, enums by their wire word, lists whose order
  means nothing as sets, ``filter_subject`` and ``filter_subjects`` as one set;
- ``backoff`` replaces ``ack_wait``, and the ack policy ``flow_control`` sets flow control and its own
  heartbeat;
- metadata keys of the server (``_nats.``) do not count.

Source: nats-server server/consumer.go (setConsumerConfigDefaults).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..wire.units import format_time, parse_time_ns, seconds_to_ns
from .consumer import ConsumerConfig, user_set

__all__ = ["config_mismatches"]

_NOT_COMPARED: Final = frozenset({"name", "deliver_subject"})

_REPLACED: Final = frozenset(  # 0 or less: the server takes its default
    {"ack_wait", "max_waiting", "max_batch", "max_expires", "max_bytes", "inactive_threshold", "num_replicas",
     "priority_timeout"}
)  # fmt: skip

_UNLIMITED: Final = frozenset({"max_deliver", "max_ack_pending"})  # 0: the default; -1 or less: no limit

_SET_BY_FLOW_CONTROL_POLICY: Final = frozenset({"flow_control", "idle_heartbeat"})


def config_mismatches(wanted: ConsumerConfig, found: ConsumerConfig) -> list[tuple[str, Any, Any]]:
    """Every field that was set in ``wanted`` and differs in ``found``, the server's: (field, wanted, found).

    Values are compared after the server's defaulting, so a configuration never conflicts with a consumer created from
    it. Unset fields, ``name`` (which the lookup used) and ``deliver_subject`` (which may change) are not compared.
    Source: ADR-15 §Push Consumer active information.
    """
    differing = []
    for name, value in user_set(wanted).items():
        if name in _NOT_COMPARED or _is_overruled(name, value, wanted, found):
            continue
        there = getattr(found, name) if name in found.__struct_fields__ else found.extra.get(name)
        if name in ("filter_subject", "filter_subjects"):
            same = set(wanted.filters) == set(found.filters)
        else:
            same = _comparable(name, value) == _comparable(name, there)
        if not same:
            differing.append((name, value, there))
    return differing


def _is_overruled(name: str, value: Any, wanted: ConsumerConfig, found: ConsumerConfig) -> bool:
    """Whether the server replaces this value."""
    if name in _REPLACED and value <= 0:
        return True
    if name in _UNLIMITED and value == 0:
        return True
    if name == "ack_wait" and wanted.backoff and found.ack_wait == wanted.backoff[0]:
        return True
    return name in _SET_BY_FLOW_CONTROL_POLICY and wanted.ack_policy == "flow_control"


def _comparable(name: str, value: Any) -> Any:
    """A normalized value; None if it is equivalent to absent."""
    if not value:
        return None
    convert = _FORMS.get(name)
    return convert(value) if convert else value


def _own_metadata(value: dict[str, str]) -> dict[str, str] | None:
    return {key: text for key, text in value.items() if not key.startswith("_nats.")} or None


def _ns(value: float) -> int:
    return seconds_to_ns(value, minimum=None)


_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ack_wait": _ns,
    "backoff": lambda value: [_ns(item) for item in value],
    "idle_heartbeat": lambda value: _ns(max(value, 0)) or None,
    "inactive_threshold": _ns,
    "max_ack_pending": lambda value: max(value, -1),
    "max_deliver": lambda value: max(value, -1),
    "max_expires": _ns,
    "metadata": _own_metadata,
    "opt_start_time": lambda value: parse_time_ns(format_time(value)),
    "pause_until": lambda value: parse_time_ns(format_time(value)),
    "priority_groups": frozenset,
    "priority_policy": lambda value: None if value == "none" else value,
    "priority_timeout": _ns,
    "sample_freq": lambda value: value.removesuffix("%"),
}
