"""Converts the options that all kinds of buckets have in common to fields of the stream's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from ...errors import ConfigError
from ..models.stream_config import StoreCompression, StreamConfig
from ..wire.checks import check_seconds, no_such_name

__all__ = ["check_options", "seconds_of", "shared_fields", "user_metadata"]

_SAME_NAME: Final = (
    "description",
    "max_bytes",
    "storage",
    "num_replicas",
    "placement",
    "republish",
    "metadata",
    "allow_atomic",
    "extra",
)


def check_options(owner: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ``TypeError`` if an option does not exist, and `ConfigError` if both a mirror and sources are given."""
    known = list(known)
    for name in options:
        if name not in known:
            raise TypeError(no_such_name(owner, "option", name, known))
    if options.get("mirror") is not None and options.get("sources"):
        raise ConfigError("mirror and sources are both given: a bucket has one or the other")


def seconds_of(value: float | timedelta) -> float:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def shared_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream fields for the common options. Raises `ConfigError` if the TTL is not positive."""
    fields = {name: options[name] for name in _SAME_NAME if name in options}
    if options.get("compression"):
        fields["compression"] = StoreCompression.S2
    if (ttl := options.get("ttl")) is not None:
        check_seconds("ttl", seconds_of(ttl))
        fields["max_age"] = ttl
    return fields


def user_metadata(config: StreamConfig) -> dict[str, str]:
    """Return the metadata that the user has set, without the metadata that the server adds."""
    return {key: text for key, text in (config.metadata or {}).items() if not key.startswith("_nats.")}
