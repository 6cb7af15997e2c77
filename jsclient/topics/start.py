"""Where a reader begins: what a user may say of it, and the position that is meant."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, TypeAlias

from ..errors import ConfigError
from ..protocol.topics.position import Position
from ..protocol.wire.units import format_time, parse_time_ns
from .log import Log

__all__ = ["Start", "check_count", "deadline_of", "start_position"]

Start: TypeAlias = Position | datetime | str
"""Where to begin: "first", with the first record there is; "now", with what comes from now on; after a position, or the
JSON token of one; or after a time."""


def check_count(what: str, value: Any) -> int:
    """A whole number of 1 or more. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} is {value!r:.40}: it must be a whole number of 1 or more")
    return value


def deadline_of(timeout: Any, now: float) -> float | None:
    """When a timeout is over; None: never. Raises `ConfigError`: it is no number of seconds."""
    if timeout is None:
        return None
    # NaN is none that the event loop could wait for.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is {timeout!r:.40}: seconds, or None, are needed")
    return now + timeout


async def start_position(log: Log, start: Start, *, allow_truncated: bool = False) -> Position:
    """The position that is meant.

    Raises:
        PositionInvalidError: It is of another stream, or of another one that had its name, or lies behind its end.
        HistoryTruncatedError: Records after that time were removed. ConfigError: It is no start.
    """
    if isinstance(start, datetime):
        return await log.after_time(parse_time_ns(format_time(start)), allow_truncated=allow_truncated)
    if isinstance(start, str) and start.startswith("{"):
        start = Position.from_json(start)
    if not isinstance(start, Position) and start not in ("first", "now"):
        raise ConfigError(
            f"{start!r:.60} is no start: a Position or its JSON token, a datetime, 'first' or 'now' is needed"
        )
    extent = await log.extent()
    if isinstance(start, Position):
        extent.check(start)
        return start
    return extent.start if start == "first" else extent.end
