"""What of a stream's configuration differs from what was asked for. Fields that were not set are not compared."""

from __future__ import annotations

from typing import Any

from ..codec import to_wire
from .stream_config import StreamConfig

__all__ = ["stream_mismatches"]

_UNLIMITED = frozenset({"max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"})
_SETS = frozenset({"subjects"})


def stream_mismatches(wanted: StreamConfig, found: StreamConfig) -> list[tuple[str, Any, Any]]:
    """``(field, wanted, found)`` of every field set in ``wanted`` that the stream has otherwise.

    The server leaves out what is zero, writes -1 for no limit, and adds metadata of its own.
    """
    want, have = to_wire(wanted), to_wire(found)
    return [
        (name, getattr(wanted, name, want[name]), getattr(found, name, have.get(name)))
        for name in want
        if _comparable(name, want[name]) != _comparable(name, have.get(name))
    ]


def _comparable(name: str, value: Any) -> Any:
    if name in _UNLIMITED and value in {0, -1}:
        return None
    if name in _SETS and isinstance(value, list):
        return frozenset(value)
    if name == "metadata" and isinstance(value, dict):
        value = {key: text for key, text in value.items() if not key.startswith("_nats.")}
    return value or None
