"""Whether a server is too old for something that it would not refuse but overlook, as servers do with headers."""

from __future__ import annotations

import re

from ...errors import ConfigError

__all__ = ["check_server", "is_at_least"]

_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


def is_at_least(version: str, minimum: tuple[int, int]) -> bool:
    """Whether a server that says this of itself is that version or a later one; where it says nothing of use, it is."""
    found = _VERSION.match(version)
    return not found or (int(found[1]), int(found[2])) >= minimum


def check_server(version: str, minimum: tuple[int, int], what: str) -> None:
    """Refuse what the server connected to would overlook.

    Args:
        version: As the server said it; where it says nothing of use, nothing is refused.
        minimum: The first version that knows, major and minor.
        what: What is wanted.

    Raises:
        ConfigError: The server is older.
    """
    if not is_at_least(version, minimum):
        raise ConfigError(
            f"{what} needs nats-server {minimum[0]}.{minimum[1]}; {version} is connected, which does not know it"
        )
