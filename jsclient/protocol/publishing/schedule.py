"""Checks scheduled messages before they are sent, and returns their headers.

The server reports every mistake in a pattern with the same error (10189), so the fields of a cron pattern are checked
here, and the error names the wrong field. A time outside 1970 to 2262 does not fit into the nanoseconds of the
server. It would fire immediately or never.

Source: ADR-51; nats-server server/scheduler.go, server/cron.go, server/stream.go.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from ...errors import ConfigError
from ..wire.header_names import (
    SCHEDULE,
    SCHEDULE_NEXT,
    SCHEDULE_ROLLUP,
    SCHEDULE_SOURCE,
    SCHEDULE_TARGET,
    SCHEDULE_TIME_ZONE,
    SCHEDULE_TTL,
    SCHEDULER,
)
from ..wire.headers import ttl_header
from ..wire.names import check_publish_subject
from ..wire.units import format_time, parse_time_ns, seconds_to_ns

__all__ = ["check_cron", "ending_headers", "schedule_headers"]

_NS: Final = 1_000_000_000
_MAX_NS: Final = 2**63 - 1
_LONGEST_INTERVAL: Final = 100 * 366 * 86_400 * _NS  # so that "now + interval" is before the year 2262

_PREDEFINED: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+)*")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("seconds", 0, 59),
    _Field("minutes", 0, 59),
    _Field("hours", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 6, _DAYS),
)


def schedule_headers(
    subject: str,
    target: str,
    *,
    at: datetime | str | None = None,
    every: float | timedelta | None = None,
    cron: str | None = None,
    time_zone: str | tzinfo | None = None,
    source: str | None = None,
    ttl: float | timedelta | str | None = None,
    rollup: str | None = None,
) -> dict[str, str]:
    """Return the headers that make a message on ``subject`` a schedule. See `JetStream.schedule`.

    Raises:
        ConfigError: An argument is not valid.
        InvalidNameError: A subject is not valid.
    """
    check_publish_subject(subject)
    check_publish_subject(target)
    if target == subject:
        raise ConfigError(f"the target {target!r} is the subject of the schedule: give another one")
    headers = {SCHEDULE: _pattern(at, every, cron), SCHEDULE_TARGET: target}
    if time_zone is not None:
        if cron is None:
            raise ConfigError("time_zone is given without cron: leave it out with at and every")
        headers[SCHEDULE_TIME_ZONE] = _zone(time_zone)
    if source is not None:
        # The server copies the last message of the source. If the source were one of these subjects, that message would
        # be the schedule itself or an earlier copy.
        if check_publish_subject(source) in (subject, target):
            raise ConfigError(
                f"the source {source!r} is the subject or the target of the schedule: give another one"
            )
        headers[SCHEDULE_SOURCE] = source
    if (ttl_text := ttl_header(ttl)) is not None:
        headers[SCHEDULE_TTL] = ttl_text
    if rollup is not None:
        if rollup != "sub":
            raise ConfigError(f"rollup is {rollup!r:.60}: a schedule needs 'sub'")
        headers[SCHEDULE_ROLLUP] = rollup
    return headers


def ending_headers(schedule: str, subject: str) -> dict[str, str]:
    """Return the headers with which a message on ``subject`` ends ``schedule`` atomically.

    Raises:
        ConfigError: Both subjects are the same.
        InvalidNameError: A subject is not valid.
    """
    check_publish_subject(schedule)
    if check_publish_subject(subject) == schedule:
        raise ConfigError(f"{subject!r} is the subject of the schedule: the message would be removed with it")
    return {SCHEDULER: schedule, SCHEDULE_NEXT: "purge"}


def check_cron(pattern: str) -> str:
    """Return ``pattern`` if it is a valid cron pattern of the server.

    A pattern has six fields, separated by spaces: seconds, minutes, hours, day of month (1 to 31), month (1 to 12, or
    ``jan`` to ``dec``), day of week (0 to 6 from Sunday, or ``sun`` to ``sat``). A field is ``*``, a number or a
    range ``1-5``, optionally with a step ``*/5``, or several of these, separated by commas. Alternatively the pattern
    is a word: ``@yearly``, ``@annually``, ``@monthly``, ``@weekly``, ``@daily``, ``@midnight``, ``@hourly``.

    Raises:
        ConfigError: The pattern is not valid. The text names the field.
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"cron is {type(pattern).__name__}: it must be a str of six fields")
    if pattern in _PREDEFINED:
        return pattern
    if pattern.startswith("@"):
        words = ", ".join(_PREDEFINED)
        raise ConfigError(f"cron: {pattern!r:.60} is not one of {words}; use the arguments at and every")
    # The server splits at any white space. Refuse white space other than spaces, because it only looks like a space.
    if not pattern.isascii() or not pattern.isprintable():
        raise ConfigError(f"cron: {pattern!r:.60} has a character that is not allowed in a field")
    fields = pattern.split()
    if len(fields) != len(_FIELDS):
        raise ConfigError(
            f"cron: {pattern!r:.60} has {len(fields)} fields; six are needed: seconds, minutes, hours, day of month, "
            "month, day of week"
        )
    for text, field in zip(fields, _FIELDS, strict=True):
        for part in text.split(","):
            if problem := _problem(part, field):
                raise ConfigError(f"cron: {field.name} {text!r:.60}: {problem}")
    return pattern


def _pattern(at: datetime | str | None, every: float | timedelta | None, cron: str | None) -> str:
    if [at, every, cron].count(None) != 2:
        raise ConfigError("at, every and cron: exactly one is needed")
    if at is not None:
        return f"@at {_moment(at)}"
    if every is not None:
        return f"@every {_interval(every)}"
    assert cron is not None
    return check_cron(cron)


def _moment(at: datetime | str) -> str:
    try:
        text = format_time(at)
    except ConfigError as error:
        raise ConfigError(f"at: {error}") from None
    if not 0 <= parse_time_ns(text) <= _MAX_NS:
        raise ConfigError(f"at: {text} is not between 1970 and 2262, the range of the server")
    return text


def _interval(every: float | timedelta) -> str:
    ns = seconds_to_ns(every, what="every", minimum=1.0)
    if ns > _LONGEST_INTERVAL:
        raise ConfigError(f"every: {every!r} is more than 100 years: give a shorter interval")
    whole, fraction = divmod(ns, _NS)
    return f"{whole}s" if fraction == 0 else f"{whole}.{fraction:09d}".rstrip("0") + "s"


def _zone(zone: str | tzinfo) -> str:
    """Return the name of a zone, which is a str, ``ZoneInfo`` or ``datetime.UTC``. An offset has no name."""
    name = "UTC" if zone is UTC else getattr(zone, "key", zone)
    if not isinstance(name, str) or not _ZONE.fullmatch(name):
        raise ConfigError(
            f"time_zone: {name!r:.60} is not a valid name of a zone, such as 'Europe/Amsterdam'"
        )
    return name


def _problem(part: str, field: _Field) -> str:
    """Describe the mistake in an entry of a field, or return "" if the entry is valid."""
    span, slash, step = part.partition("/")
    low, dash, high = span.partition("-")
    if slash and (not _is_number(step) or int(step) == 0):
        return f"the step {step!r:.20} is not an integer >= 1"
    if low in ("*", "?"):  # to the server "?" means the same as "*"
        return f"{low!r} can be followed only by a step" if dash else ""
    ends = [_number(text, field) for text in ((low, high) if dash else (low,))]
    for text, number in zip((low, high), ends, strict=False):
        if number is None:
            known = f" or a name such as {field.names[1]!r}" if field.names else ""
            return f"{text!r:.20} is not a number{known}"
        if not field.low <= number <= field.high:
            return f"{number} is not within {field.low} to {field.high}"
    first, last = ends[0], ends[-1]
    assert first is not None
    assert last is not None
    return f"{span} runs backwards" if first > last else ""


def _number(text: str, field: _Field) -> int | None:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.low
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9
