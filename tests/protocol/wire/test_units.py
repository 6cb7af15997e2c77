"""Seconds and nanoseconds, times and texts."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.wire.units import (
    format_time,
    ns_to_seconds,
    parse_both_times,
    parse_time,
    parse_time_ns,
    seconds_to_ns,
)

EXACT_NS = 2**23 * 10**9
TIMES = st.datetimes(timezones=st.timezones() | st.just(UTC))


@pytest.mark.parametrize(
    ("seconds", "ns"),
    [
        (0, 0),
        (1, 10**9),
        (30.0, 30 * 10**9),
        (1.001, 1_001_000_000),
        (0.1, 100_000_000),
        (1e-9, 1),
        (4e-10, 0),
        (6e-10, 1),
        (1 / 1024, 976_562),  # half a nanosecond more: to even
        (3 / 1024, 2_929_688),
        (timedelta(microseconds=1), 1000),
        (timedelta(days=10_000, microseconds=1), 864_000_000_000_001_000),
        (9_223_372_036, 9_223_372_036 * 10**9),
    ],
)
def test_seconds_become_nanoseconds(seconds, ns):
    assert seconds_to_ns(seconds) == ns


@given(st.integers(0, 99_999))
def test_no_millisecond_loses_nanosecond(milliseconds):
    assert seconds_to_ns(milliseconds / 1000) == milliseconds * 1_000_000


@given(st.integers(-EXACT_NS, EXACT_NS))
def test_nanoseconds_come_back(ns):
    assert seconds_to_ns(ns_to_seconds(ns), minimum=None) == ns


@pytest.mark.parametrize(
    "seconds",
    [
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        "1",
        b"1",
        None,
        1j,
        [1],
        1e300,
        10**30,
        10**400,
        -1,
        -0.001,
        timedelta(-1),
        timedelta.max,
    ],
)
def test_what_is_no_duration(seconds):
    with pytest.raises(ConfigError, match="wait"):
        seconds_to_ns(seconds, what="wait")


def test_least_value_callers():
    assert seconds_to_ns(-1.5, minimum=None) == -1_500_000_000
    assert seconds_to_ns(1, minimum=1.0) == 10**9
    with pytest.raises(ConfigError, match=r"ttl: 0\.5 is less than 1 s"):
        seconds_to_ns(0.5, what="ttl", minimum=1.0)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T22:30:00-01:30", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2024-02-29T12:00:00.123456789-07:00", 1_709_233_200_123_456_789),
        ("0001-01-01T00:00:00Z", -62_135_596_800 * 10**9),
        ("9999-12-31T23:59:59.999999999Z", 253_402_300_799_999_999_999),
    ],
)
def test_times_to_the_nanosecond(text, ns):
    assert parse_time_ns(text) == ns
    assert parse_both_times(text) == (parse_time(text), ns)
    moment = parse_time(text)
    assert moment.tzinfo is UTC
    assert moment == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)
    assert format_time(text) == text


NO_TIMES = [
    "",
    "now",
    "2024-01-01",
    "2024-01-01T00:00:00",
    "2024-01-01 00:00:00Z",
    "2024-01-01t00:00:00z",
    "2024-01-01T00:00:00.Z",
    "2024-01-01T00:00:00,5Z",
    "2024-01-01T00:00:00.1234567890Z",
    "2024-13-01T00:00:00Z",
    "2023-02-29T00:00:00Z",
    "2024-01-01T24:00:00Z",
    "2024-01-01T00:00:60Z",
    "2024-01-01T00:00:00+24:00",
    "2024-01-01T00:00:00+01:60",
    "2024-01-01T00:00:00+0100",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00+00:01",
    "9999-12-31T23:59:59-00:01",
    "2024-01-01T00:00:00Z\n",
    "٢٠٢٤-01-01T00:00:00Z",
    "\ud800",
]


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time(text):
    with pytest.raises(ConfigError):
        format_time(text)
    with pytest.raises(ProtocolError):
        parse_time(text)
    with pytest.raises(ProtocolError):
        parse_time_ns(text)


@pytest.mark.parametrize("value", [None, 7, b"2024-01-01T00:00:00Z", 1.5, [], {}])
def test_what_is_no_text(value):
    with pytest.raises(ConfigError):
        format_time(value)
    with pytest.raises(ProtocolError):
        parse_time(value)
    with pytest.raises(ProtocolError):
        parse_time_ns(value)


def test_time_without_zone_refused():
    with pytest.raises(ConfigError, match="no time zone"):
        format_time(datetime(2024, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"),
        (datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC), "2024-01-01T00:00:00.000005Z"),
        (datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2023-12-31T22:00:00Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_written_in_utc(value, text):
    assert format_time(value) == text


def test_time_beyond_calendar_refused():
    with pytest.raises(ConfigError, match="years"):
        format_time(datetime.min.replace(tzinfo=timezone(timedelta(hours=1))))


@given(TIMES)
def test_a_time_comes_back(value):
    try:
        text = format_time(value)
    except ConfigError:
        return
    assert parse_time(text) == value.astimezone(UTC)  # a local time that a clock change skips equals no other
    assert parse_time_ns(text) % 1000 == 0


@given(
    st.text()
    | st.from_regex(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
    )
)
def test_any_text_time_or_documented_error(text):
    try:
        moment = parse_time(text)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            parse_time_ns(text)
        return
    assert parse_time(format_time(moment)) == moment
