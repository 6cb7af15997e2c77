"""Checks of numbers that the caller gave. Each raises `ConfigError` with the name and the value."""

from __future__ import annotations

from ...errors import ConfigError

__all__ = ["check_count", "check_seconds"]


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return an integer from ``least`` to ``most``: messages, bytes, attempts. A bool is refused."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        bounds = f">= {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigError(f"{name} is {value!r:.60}: it must be an integer {bounds}")
    return value


def check_seconds(name: str, value: object) -> float:
    """Return a finite number of seconds over 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r:.60} s: it must be over 0")
    return value
