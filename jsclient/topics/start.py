"""The start of a reader: the values that a user may pass, and the position that each means."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import Any, Final, TypeAlias

from .._runtime.retry import Retry
from ..errors import ConfigError, JetStreamError, PositionInvalidError
from ..protocol.topics.position import EndDoubt, Extent, Position
from ..protocol.wire.units import format_time, parse_time_ns
from .log import Log

__all__ = ["Start", "check_position", "deadline_of", "start_position"]

Start: TypeAlias = Position | datetime | str
"""Where a reader begins: "first", at the first stored record; "now", at the next record; after a position or its JSON
token; or after a time."""

_RECHECK: Final = 0.5  # seconds between two requests for an extent that is in doubt


def deadline_of(timeout: Any, now: float) -> float | None:
    """When a timeout ends; None: never. Raises `ConfigError` if it is not a number of seconds."""
    if timeout is None:
        return None
    # The event loop cannot wait for NaN.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is {timeout!r:.40}: a number of seconds or None is needed")
    return now + timeout


async def start_position(
    log: Log, start: Start, *, allow_truncated: bool = False, extent: Extent | None = None
) -> Position:
    """The position that a start means. ``extent``: that of the log, if it was requested just before.

    Raises:
        PositionInvalidError: As `check_position`. HistoryTruncatedError: Records after that time were removed.
        ConfigError: It is not a start. And those of any request.
    """
    if isinstance(start, datetime):
        return await log.after_time(parse_time_ns(format_time(start)), allow_truncated=allow_truncated)
    if isinstance(start, str) and start.startswith("{"):
        start = Position.from_json(start)
    if isinstance(start, Position):
        await check_position(log, start, extent)
        return start
    if start not in ("first", "now"):
        raise ConfigError(
            f"start is {start!r:.60}: 'first', 'now', a Position or its JSON token, or a datetime is needed"
        )
    extent = extent or await log.extent()
    return extent.start if start == "first" else extent.end


async def check_position(log: Log, position: Position, extent: Extent | None = None) -> None:
    """Check that a reader can continue from a position. Takes 10 s or more if that is in doubt; see `EndDoubt`.

    Raises:
        PositionInvalidError: The position is in another stream or incarnation, or after the end. And those of any
            request.
    """
    doubt, tries, now = EndDoubt(), Retry(), asyncio.get_running_loop().time
    in_doubt = False
    while True:
        try:
            extent = extent or await log.extent()
            if doubt.check(extent, position, now()):
                return
            extent, in_doubt = None, True
        except PositionInvalidError:
            raise
        except JetStreamError as error:
            doubt.interrupted()
            if not in_doubt or not await tries.again(error):
                raise
        else:
            await asyncio.sleep(_RECHECK)
        await log.wait_ready()
