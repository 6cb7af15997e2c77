"""How many consumers a stream may have, as far as a client can know."""

from __future__ import annotations

from typing import Final

from ..wire.checks import is_at_least
from .stream import StreamInfo

__all__ = ["DEFAULT_CONSUMERS", "consumer_limit", "near_consumer_limit"]

DEFAULT_CONSUMERS: Final = 1_000
"""The setting default_max_consumers of nats-server 2.15. It applies to streams without ``max_consumers``."""

_NEAR: Final = 0.9  # warn when the number of consumers reaches this fraction of the limit


def consumer_limit(info: StreamInfo, version: str) -> int:
    """Return the limit of a stream on a server of this version, or 0 if there is none or it is unknown.

    The server does not report its default, which its operator may have changed.
    """
    most = info.config.max_consumers or 0
    if most > 0:
        return most
    # If the stream has more consumers than the default allows, the operator must have changed the default, so the limit
    # is unknown.
    has_default = is_at_least(version, (2, 15)) and info.state.consumer_count <= DEFAULT_CONSUMERS
    return DEFAULT_CONSUMERS if has_default else 0


def near_consumer_limit(info: StreamInfo, version: str) -> int:
    """Return the limit of a stream that has almost as many consumers as it may have, or 0."""
    limit = consumer_limit(info, version)
    return limit if limit and info.state.consumer_count >= _NEAR * limit else 0
