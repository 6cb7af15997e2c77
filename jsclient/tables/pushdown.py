"""Filter pushdown for batch reads. The server applies filters on sequence, timestamp and subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..errors import InvalidNameError
from ..protocol.wire.names import check_publish_subject, subject_matches, subjects_overlap
from ..protocol.wire.units import format_time

__all__ = ["Narrowed", "pushed"]

_MOST = 2**63 - 1
_MOST_SUBJECTS = 16  # limit of filters for one consumer

# Filters are recognized by class name, so that this module can be tested without pyspark.
_FROM = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_TO = {"LessThan": -1, "LessThanOrEqual": 0}
_SAME = frozenset({"EqualTo", "EqualNullSafe"})


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The bounds of a read after pushdown."""

    first: int = 1  # first sequence
    last: int = _MOST  # last sequence, inclusive
    since: str | None = None  # an RFC 3339 time, before which messages are excluded
    subjects: tuple[str, ...] = ()  # subject filters, empty for all messages
    nothing: bool = False  # true if no message can match


def pushed(filters: Sequence[Any], narrowed: Narrowed, *, direct: bool) -> tuple[Narrowed, list[Any]]:
    """Apply Spark's filters to a read. Returns the narrowed read, and the filters that Spark still has to evaluate.

    Args:
        filters: The filters, combined with AND.
        narrowed: The read without the filters.
        direct: Whether the messages are read by direct get, which accepts at most one subject.
    """
    remaining: list[Any] = []
    for filter_ in filters:
        column, kind = getattr(filter_, "attribute", ()), type(filter_).__name__
        value = getattr(filter_, "value", None)
        after: Narrowed | None = None
        if column in {("sequence",), ("subject",), ("timestamp",)} and kind == "IsNotNull":
            continue  # these columns are never null
        if column == ("sequence",):
            after = _by_sequence(kind, value, narrowed)
        elif column == ("subject",):
            narrowed, needed = _by_subject(kind, value, narrowed, direct=direct)
            after = None if needed else narrowed
        elif column == ("timestamp",):
            # Spark compares microseconds and the server nanoseconds, so leave the exact comparison to Spark.
            narrowed = _by_time(kind, value, narrowed)
        if after is None:
            remaining.append(filter_)
        else:
            narrowed = after
    return narrowed, remaining


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


def _by_subject(kind: str, value: Any, narrowed: Narrowed, *, direct: bool) -> tuple[Narrowed, bool]:
    """Return the narrowed read, and whether Spark has to evaluate the filter as well."""
    if kind == "StringStartsWith" and isinstance(value, str):
        return _by_prefix(value, narrowed)
    named = _by_names(kind, value, narrowed, direct=direct)
    return (narrowed, True) if named is None else (named, False)


def _by_prefix(prefix: str, narrowed: Narrowed) -> tuple[Narrowed, bool]:
    """Apply a prefix of subjects. ``subject LIKE 'orders.eu.%'`` becomes the filter ``orders.eu.>``.

    The result is the same as of `_by_subject`. Spark evaluates a prefix that ends within a token, because a filter of
    the server cannot.
    """
    tokens = prefix.removesuffix(".")
    if tokens == prefix or "\ufffd" in prefix or not _is_plain(tokens):
        return narrowed, True
    within = f"{tokens}.>"
    if not narrowed.subjects or any(subject_matches(one, within) for one in narrowed.subjects):
        return replace(narrowed, subjects=(within,)), False
    overlapping = tuple(one for one in narrowed.subjects if subjects_overlap(one, within))
    # If a filter overlaps the prefix only partly, it also matches other messages, so Spark must filter them out.
    exact = all(subject_matches(within, one) for one in overlapping)
    return replace(narrowed, subjects=overlapping, nothing=narrowed.nothing or not overlapping), not exact


def _by_names(kind: str, value: Any, narrowed: Narrowed, *, direct: bool) -> Narrowed | None:
    if kind in _SAME and isinstance(value, str):
        subjects = [value]
    elif kind == "In" and not direct and isinstance(value, tuple | list) and len(value) <= _MOST_SUBJECTS:
        subjects = sorted({one for one in value if isinstance(one, str)})
    else:
        return None
    if any("\ufffd" in one or not {"*", ">"}.isdisjoint(one.split(".")) for one in subjects):
        # The replacement character stands for invalid UTF-8, so the real subject differs. The server would treat a
        # subject with wildcards as a filter, which matches other messages too.
        return None
    possible = tuple(one for one in subjects if _may_be(one, narrowed.subjects))
    return replace(narrowed, subjects=possible, nothing=narrowed.nothing or not possible)


def _is_plain(subject: str) -> bool:
    """Return whether a message can have this subject."""
    try:
        check_publish_subject(subject)
    except InvalidNameError:
        return False
    return True


def _may_be(subject: str, filters: tuple[str, ...]) -> bool:
    return _is_plain(subject) and (not filters or any(subject_matches(one, subject) for one in filters))
