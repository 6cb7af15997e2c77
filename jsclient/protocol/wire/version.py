"""Checks that a server is new enough for a feature that older servers would silently ignore."""

from __future__ import annotations

import re

from ...errors import ConfigError

__all__ = ["check_server", "is_at_least"]

_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


def is_at_least(version: str, minimum: tuple[int, int]) -> bool:
    """Whether a server of this version is ``minimum`` or later; True if the version cannot be parsed."""
    found = _VERSION.match(version)
    return not found or (int(found[1]), int(found[2])) >= minimum


def check_server(version: str, minimum: tuple[int, int], what: str) -> None:
    """Refuse a feature that the connected server would ignore.

    Args:
        version: As sent by the server; if it cannot be parsed, nothing is refused.
        minimum: The first version with the feature, major and minor.
        what: The feature.

    Raises:
        ConfigError: The server is older.
    """
    if not is_at_least(version, minimum):
        raise ConfigError(
            f"{what} needs nats-server {minimum[0]}.{minimum[1]}; the server is {version} and would ignore it"
        )
