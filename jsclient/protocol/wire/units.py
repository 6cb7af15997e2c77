"""Durations and times: seconds and ``datetime`` in Python, integer nanoseconds and RFC 3339 text on the wire.

Only this module converts units. Values sent to the server are never truncated. Times from the server are truncated to
the microseconds of ``datetime``, and ``parse_time_ns`` returns all digits.

Source: ADR-1 (data types); RFC 3339.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ...errors import ConfigError, ProtocolError

__all__ = [
    "GO_ZERO_TIME",
    "format_time",
    "format_time_ns",
    "ns_to_seconds",
    "parse_both_times",
    "parse_time",
    "parse_time_ns",
    "seconds_to_ns",
    "time_of",
]

GO_ZERO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
"""The time that the server sends for a time that is not set."""

_NS: Final = 1_000_000_000
_MAX_NS: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)


def seconds_to_ns(seconds: float | timedelta, *, what: str = "duration", minimum: float | None = 0.0) -> int:
    """Convert seconds to integer nanoseconds, rounded to the nearest.

    The conversion is exact both ways (``seconds_to_ns(ns_to_seconds(ns)) == ns``) up to 2**23 seconds, which is 97
    days. Beyond that a float cannot represent single nanoseconds. A ``timedelta`` is always exact.

    Args:
        seconds: Seconds, or a ``timedelta``. It must not be a bool, NaN or infinite.
        what: The name of the value in errors.
        minimum: The least value allowed in seconds, or None for no limit.

    Raises:
        ConfigError: The value is not a number of seconds, is below ``minimum``, or exceeds 63 bits of nanoseconds
            (292 years).
    """
    if isinstance(seconds, timedelta):
        ns = (seconds.days * 86_400 + seconds.seconds) * _NS + seconds.microseconds * 1000
    elif isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigError(
            f"{what}: a number of seconds or a timedelta is needed, not {type(seconds).__name__}"
        )
    elif not math.isfinite(seconds) if isinstance(seconds, float) else abs(seconds) > _MAX_NS:
        raise ConfigError(f"{what}: {seconds!r} is not a valid number of seconds")
    else:
        above, below = seconds.as_integer_ratio()
        ns, remainder = divmod(above * _NS, below)
        # Round exactly, and round halves to the even number, like round().
        if 2 * remainder > below or (2 * remainder == below and ns % 2):
            ns += 1
    if abs(ns) > _MAX_NS:
        raise ConfigError(f"{what}: {seconds!r} is more than 292 years")
    if minimum is not None and ns < minimum * _NS:
        raise ConfigError(f"{what}: {seconds!r} is less than {minimum:g} s")
    return ns


def ns_to_seconds(ns: int) -> float:
    """Convert integer nanoseconds to seconds, as the nearest float."""
    return ns / _NS


def format_time(value: datetime | str) -> str:
    """Format a time for the wire as RFC 3339. A ``datetime`` is converted to UTC, and a str is returned unchanged.

    Args:
        value: An aware ``datetime``, or RFC 3339 text (upper-case ``T`` and ``Z``, at most 9 digits of fraction).

    Raises:
        ConfigError: The ``datetime`` has no time zone, or the str is not such a time.
    """
    if isinstance(value, str):
        try:
            _parse(value)
        except ProtocolError as exc:
            raise ConfigError(str(exc)) from None
        return value
    if not isinstance(value, datetime):
        raise ConfigError(f"a datetime or RFC 3339 text is needed, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ConfigError(f"{value!r} has no time zone; set one, for example tzinfo=datetime.UTC")
    try:
        utc = value.astimezone(UTC)  # the offset may move the first or last day out of range
    except OverflowError:
        raise ConfigError(f"{value!r} is outside the years 1 to 9999 in UTC") from None
    return f"{utc.replace(tzinfo=None).isoformat()}Z"


def time_of(until: datetime | timedelta | float, now: datetime) -> datetime:
    """Return a ``datetime`` unchanged, or the time after a duration from now (seconds or a ``timedelta``, over 0).

    Raises:
        ConfigError: The value is neither, or the time is after the year 9999.
    """
    if isinstance(until, datetime):
        return until
    if not (ns := seconds_to_ns(until, what="until")):
        raise ConfigError(f"until: {until!r} is not in the future; a duration over 0 is needed")
    try:
        return now + timedelta(microseconds=ns // 1000)
    except OverflowError:
        raise ConfigError(f"until: {until!r} from now is beyond the year 9999") from None


def parse_time(text: str) -> datetime:
    """Parse a time. The result is aware, in UTC, and truncated to microseconds.

    Raises:
        ProtocolError: The text is not RFC 3339, or the time is outside the years 1 to 9999.
    """
    moment, ns = _parse(text)
    return moment + timedelta(microseconds=ns // 1000)


def parse_time_ns(text: str) -> int:
    """Parse a time as exact nanoseconds since 1970. They are negative before 1970.

    Raises:
        ProtocolError: The text is not RFC 3339, or the time is outside the years 1 to 9999.
    """
    moment, ns = _parse(text)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * _NS + ns


def parse_both_times(text: str) -> tuple[datetime, int]:
    """Return the results of `parse_time` and `parse_time_ns`, with the text parsed once."""
    moment, ns = _parse(text)
    since = moment - _EPOCH
    return moment + timedelta(microseconds=ns // 1000), (since.days * 86_400 + since.seconds) * _NS + ns


def format_time_ns(ns: int) -> str:
    """Format nanoseconds since 1970 as exact RFC 3339 text. Raises `ConfigError` beyond the year 9999."""
    seconds, fraction = divmod(ns, _NS)
    try:
        return f"{(_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}.{fraction:09}Z"
    except OverflowError:
        raise ConfigError(f"{ns} ns is beyond the year 9999") from None


def _parse(text: str) -> tuple[datetime, int]:
    """Return the whole second, in UTC, and the nanoseconds after it. Raises `ProtocolError`."""
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ProtocolError(f"{text!r:.60} is not an RFC 3339 time such as 2030-01-31T12:00:00.5Z")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    offset = timedelta()
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes)) * (1 if sign == "+" else -1)
    try:
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
        return local - offset, int((fraction or "").ljust(9, "0"))
    except (ValueError, OverflowError):
        raise ProtocolError(f"{text!r} is outside the years 1 to 9999") from None
