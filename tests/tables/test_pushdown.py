"""Filters that are pushed down: what is read of a stream, and what Spark has to look at itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from jsclient.tables.pushdown import Narrowed, pushed


@dataclass(frozen=True)
class _Filter:
    attribute: tuple[str, ...]
    value: Any = None


class EqualTo(_Filter): ...


class GreaterThan(_Filter): ...


class GreaterThanOrEqual(_Filter): ...


class LessThan(_Filter): ...


class LessThanOrEqual(_Filter): ...


class In(_Filter): ...


class IsNotNull(_Filter): ...


class StringContains(_Filter): ...


class StringStartsWith(_Filter): ...


SEQ, SUBJECT, TIME = ("sequence",), ("subject",), ("timestamp",)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def narrow(*filters, direct=False, **start):
    return pushed(filters, Narrowed(**start), direct=direct)


def test_sequences():
    narrowed, remaining = narrow(GreaterThanOrEqual(SEQ, 100), LessThanOrEqual(SEQ, 199), IsNotNull(SEQ))
    assert narrowed == Narrowed(first=100, last=199)
    assert remaining == []
    assert narrow(GreaterThan(SEQ, 100), LessThan(SEQ, 199))[0] == Narrowed(first=101, last=198)
    assert narrow(EqualTo(SEQ, 7), GreaterThan(SEQ, 3))[0] == Narrowed(first=7, last=7)
    assert narrow(LessThan(SEQ, -5))[0].last < 1


def test_one_subject_and_several():
    assert narrow(EqualTo(SUBJECT, "a.b"))[0].subjects == ("a.b",)
    both = In(SUBJECT, ("a.c", "a.b", None))
    assert narrow(both)[0].subjects == ("a.b", "a.c")
    assert narrow(both, direct=True) == (Narrowed(), [both])


def test_subject_within_filters():
    assert narrow(EqualTo(SUBJECT, "a.b"), subjects=("a.*",))[0].subjects == ("a.b",)
    assert narrow(EqualTo(SUBJECT, "b.b"), subjects=("a.*",))[0].nothing
    assert narrow(EqualTo(SUBJECT, "a.b"), EqualTo(SUBJECT, "a.c"))[0].nothing


def test_prefix_of_whole_tokens():
    """``subject like 'a.b.%'`` is the filter ``a.b.>``: no message has a subject that ends with a dot."""
    assert narrow(StringStartsWith(SUBJECT, "a.b.")) == (Narrowed(subjects=("a.b.>",)), [])
    assert narrow(StringStartsWith(SUBJECT, "a.b."), direct=True) == (Narrowed(subjects=("a.b.>",)), [])


def test_prefix_within_filters():
    one = StringStartsWith(SUBJECT, "a.b.")
    assert narrow(one, subjects=("a.>",)) == (Narrowed(subjects=("a.b.>",)), [])
    assert narrow(one, subjects=("a.b.c", "a.x.>")) == (Narrowed(subjects=("a.b.c",)), [])
    assert narrow(one, subjects=("b.>",))[0].nothing
    # Messages of both filters are read without a filter, and Spark filters them as well.
    assert narrow(one, subjects=("*.*.c", "b.>")) == (Narrowed(subjects=("*.*.c",)), [one])
    assert narrow(one, EqualTo(SUBJECT, "a.b.c"))[0].subjects == ("a.b.c",)
    assert narrow(EqualTo(SUBJECT, "a.b.c"), one)[0].subjects == ("a.b.c",)
    assert narrow(one, EqualTo(SUBJECT, "a.c"))[0].nothing


@pytest.mark.parametrize("prefix", ["", "a", "a.b", ".", "a..", "a b.", "a.*.", "a.>.", "a.\ufffd."])
def test_spark_filters_by_prefix(prefix):
    """No filter of the server ends within a token, or stands for a token that is a wildcard."""
    one = StringStartsWith(SUBJECT, prefix)
    assert narrow(one) == (Narrowed(), [one])


@pytest.mark.parametrize("subject", ["", "a b", "a..b"])
def test_no_message_no_subject(subject):
    assert narrow(EqualTo(SUBJECT, subject))[0].nothing


@pytest.mark.parametrize("subject", ["a.*", "a.>", ">.a"])
def test_spark_filters_by_wildcard(subject):
    """A server stores a message with such a subject. In a comparison it is not a wildcard."""
    for one in (EqualTo(SUBJECT, subject), In(SUBJECT, ("a.b", subject))):
        assert narrow(one) == (Narrowed(), [one])


def test_spark_filters_by_subject_no_utf_8():
    one = EqualTo(SUBJECT, "a.\ufffd")
    assert narrow(one) == (Narrowed(), [one])


def test_time_filters_narrow_and_are_evaluated_again():
    filters = (GreaterThan(TIME, NOON), GreaterThanOrEqual(TIME, NOON.replace(hour=11)), LessThan(TIME, NOON))
    narrowed, remaining = narrow(*filters)
    assert narrowed.since == "2026-01-31T12:00:00Z"
    assert remaining == list(filters)


def test_spark_filters_by_unknown_predicates():
    filters = [
        StringContains(SUBJECT, "a"),
        EqualTo(("stream",), "S"),
        EqualTo(("headers", "x"), "y"),
        EqualTo(SEQ, None),
        IsNotNull(("data",)),
        In(SEQ, (1, 2)),
    ]
    assert narrow(*filters) == (Narrowed(), filters)
