"""Drift: differences between a stream or consumer and the requested configuration, and the update that removes them.

Fields that are not set are neither compared nor changed; unknown fields of the server are kept.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ...errors import ConfigError
from ..wire.codec import to_wire
from .consumer import ConsumerConfig, user_set
from .mismatch import config_mismatches
from .stream_config import StreamConfig

__all__ = [
    "OnDrift",
    "changed_consumer",
    "changed_stream",
    "check_on_drift",
    "consumer_drift",
    "stream_mismatches",
]

OnDrift: TypeAlias = Literal["error", "update", "ignore"]
"""What to do about a difference."""


def check_on_drift(on_drift: str) -> None:
    """Raises `ConfigError` for a word that `OnDrift` does not list."""
    if on_drift not in ("error", "update", "ignore"):
        raise ConfigError(f"on_drift is {on_drift!r:.60}: it must be error, update or ignore")


def consumer_drift(wanted: ConsumerConfig, found: ConsumerConfig) -> list[tuple[str, Any, Any]]:
    """``(field, wanted, found)`` of every field set in ``wanted`` that differs in the consumer."""
    different = config_mismatches(wanted, found)
    if wanted.deliver_subject is not None and wanted.deliver_subject != found.deliver_subject:
        different.append(("deliver_subject", wanted.deliver_subject, found.deliver_subject))
    return different


def changed_consumer(wanted: ConsumerConfig, found: ConsumerConfig) -> ConsumerConfig:
    """``found`` with the fields that are set in ``wanted``."""
    changes = {field: value for field, value in user_set(wanted).items() if field not in wanted.extra}
    if "filter_subject" in changes or "filter_subjects" in changes:
        # Two ways to say one thing: the server takes one of them at a time.
        changes = {"filter_subject": None, "filter_subjects": None} | changes
    return found.replace(**changes, extra=found.extra | wanted.extra)


_UNLIMITED = frozenset({"max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"})
_REPLACED = frozenset({"duplicate_window", "num_replicas"})  # 0: the server takes its default
_SETS = frozenset({"subjects"})


def stream_mismatches(wanted: StreamConfig, found: StreamConfig) -> list[tuple[str, Any, Any]]:
    """``(field, wanted, found)`` of every field set in ``wanted`` that differs in the stream.

    The server omits zero values, writes -1 for unlimited, and adds metadata of its own.
    """
    want, have = to_wire(wanted), to_wire(found)
    return [
        (name, getattr(wanted, name, want[name]), getattr(found, name, have.get(name)))
        for name in want
        if not (name in _REPLACED and want[name] == 0)
        and _comparable(name, want[name]) != _comparable(name, have.get(name))
    ]


def changed_stream(wanted: StreamConfig, found: StreamConfig) -> StreamConfig:
    """``found`` with the fields that are set in ``wanted`` and differ."""
    changes = {
        field: value for field, value, _ in stream_mismatches(wanted, found) if field not in wanted.extra
    }
    return found.replace(**changes, extra=found.extra | wanted.extra)


def _comparable(name: str, value: Any) -> Any:
    if name in _UNLIMITED and value in {0, -1}:
        return None
    if name in _SETS and isinstance(value, list):
        return frozenset(value)
    if name == "metadata" and isinstance(value, dict):
        value = {key: text for key, text in value.items() if not key.startswith("_nats.")}
    return value or None
