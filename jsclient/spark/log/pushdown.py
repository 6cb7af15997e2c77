"""Filter pushdown for batch reads: filters on sequence, timestamp and subject are applied by the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ...errors import InvalidNameError
from ...protocol.wire.names import check_publish_subject, subject_matches
from ...protocol.wire.units import format_time

__all__ = ["Narrowed", "pushed"]

_MOST = 2**63 - 1
_MOST_SUBJECTS = 16  # limit of filters for one consumer

# Filters are recognized by class name, so this module can be tested without pyspark.
_FROM = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_TO = {"LessThan": -1, "LessThanOrEqual": 0}
_SAME = frozenset({"EqualTo", "EqualNullSafe"})


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The bounds of a read after pushdown."""

    first: int = 1  # first, last: sequences, inclusive
    last: int = _MOST
    since: str | None = None  # an RFC 3339 time; earlier messages are excluded
    subjects: tuple[str, ...] = ()  # subject filters; empty: all messages
    nothing: bool = False  # no message can match


def pushed(filters: Sequence[Any], narrowed: Narrowed, *, direct: bool) -> tuple[Narrowed, list[Any]]:
    """Apply Spark's filters to a read. Returns the narrowed read and the filters left to Spark.

    Args:
        filters: The filters, combined with AND.
        narrowed: The read without the filters.
        direct: The messages are read by direct get, which takes at most one subject.
    """
    left: list[Any] = []
    for one in filters:
        column, kind = getattr(one, "attribute", ()), type(one).__name__
        value = getattr(one, "value", None)
        after: Narrowed | None = None
        if column in {("sequence",), ("subject",), ("timestamp",)} and kind == "IsNotNull":
            continue  # these columns are never null
        if column == ("sequence",):
            after = _by_sequence(kind, value, narrowed)
        elif column == ("subject",):
            after = _by_subject(kind, value, narrowed, direct=direct)
        elif column == ("timestamp",):
            # Spark uses microseconds, the server nanoseconds, so Spark also evaluates the filter.
            narrowed = _by_time(kind, value, narrowed)
        if after is None:
            left.append(one)
        else:
            narrowed = after
    return narrowed, left


def _by_sequence(kind: str, value: Any, narrowed: Narrowed) -> Narrowed | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if kind in _SAME:
        return replace(narrowed, first=max(narrowed.first, value), last=min(narrowed.last, value))
    if kind in _FROM:
        return replace(narrowed, first=max(narrowed.first, value + _FROM[kind]))
    if kind in _TO:
        return replace(narrowed, last=min(narrowed.last, value + _TO[kind]))
    return None


def _by_time(kind: str, value: Any, narrowed: Narrowed) -> Narrowed:
    if not (kind in _FROM or kind in _SAME) or not isinstance(value, datetime):
        return narrowed
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    since = format_time(moment)
    if narrowed.since is not None and datetime.fromisoformat(narrowed.since) >= moment:
        return narrowed
    return replace(narrowed, since=since)


def _by_subject(kind: str, value: Any, narrowed: Narrowed, *, direct: bool) -> Narrowed | None:
    if kind in _SAME and isinstance(value, str):
        wanted = [value]
    elif kind == "In" and not direct and isinstance(value, tuple | list) and len(value) <= _MOST_SUBJECTS:
        wanted = sorted({one for one in value if isinstance(one, str)})
    else:
        return None
    if any("\ufffd" in one for one in wanted):
        return None  # the replacement character stands for invalid UTF-8
    found = tuple(one for one in wanted if _may_be(one, narrowed.subjects))
    return replace(narrowed, subjects=found, nothing=narrowed.nothing or not found)


def _may_be(subject: str, filters: tuple[str, ...]) -> bool:
    try:
        check_publish_subject(subject)
    except InvalidNameError:
        return False  # no message can have this subject
    return not filters or any(subject_matches(one, subject) for one in filters)
