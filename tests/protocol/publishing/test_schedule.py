"""Schedules on the wire, and what is refused before it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.publishing import schedule
from jsclient.protocol.publishing.schedule import check_cron, ending_headers, schedule_headers
from jsclient.protocol.wire.headers import encode_headers

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def pattern(**arguments):
    return schedule_headers("s", "t", **arguments)["Nats-Schedule"]


# --- the headers -----------------------------------------------------------------------------------------


def test_schedule_pattern_and_target():
    assert schedule_headers("s.1", "t.1", at=NOON) == {
        "Nats-Schedule": "@at 2030-01-31T12:00:00Z",
        "Nats-Schedule-Target": "t.1",
    }


def test_each_argument_header():
    assert schedule_headers(
        "s.1",
        "t.1",
        cron="0 30 6 * * mon-fri",
        time_zone="Europe/Amsterdam",
        source="u",
        ttl=60,
        rollup="sub",
    ) == {
        "Nats-Schedule": "0 30 6 * * mon-fri",
        "Nats-Schedule-Target": "t.1",
        "Nats-Schedule-Time-Zone": "Europe/Amsterdam",
        "Nats-Schedule-Source": "u",
        "Nats-Schedule-TTL": "60",
        "Nats-Schedule-Rollup": "sub",
    }


def test_message_can_end_schedule():
    assert ending_headers("s.1", "t.1") == {"Nats-Scheduler": "s.1", "Nats-Schedule-Next": "purge"}
    with pytest.raises(ConfigError, match="removed with it"):
        ending_headers("s.1", "s.1")
    for subjects in (("s.*", "t"), ("s", "t.>"), ("", "t"), ("s", "a b")):
        with pytest.raises(InvalidNameError):
            ending_headers(*subjects)


# --- once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOON, "2030-01-31T12:00:00Z"),
        (NOON.replace(microsecond=1), "2030-01-31T12:00:00.000001Z"),
        (datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2030-01-31T10:00:00Z"),
        (datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("UTC")), "2030-07-01T12:00:00Z"),
        ("2030-01-31T12:00:00.123456789+02:00", "2030-01-31T12:00:00.123456789+02:00"),
        (datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01T00:00:00Z"),
    ],
)
def test_time_is_written_exactly(at, text):
    assert pattern(at=at) == f"@at {text}"


@pytest.mark.parametrize(
    "at",
    [
        datetime(2030, 1, 31, 12),  # noqa: DTZ001  that is the point
        "2030-01-31",
        "2030-01-31T12:00:00",
        "tomorrow",
        1_900_000_000,
        timedelta(minutes=5),
        # Times that Go's nanoseconds cannot count: the schedule would fire now, or never.
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2263, 1, 1, tzinfo=UTC),
        "9999-12-31T23:59:59Z",
        "2030-01-31T12:00:00Z\r\nInjected: 1",
    ],
)
def test_what_is_no_moment(at):
    with pytest.raises(ConfigError, match=r"^at: "):
        pattern(at=at)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2262, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_any_moment_comes_back(at):
    text = pattern(at=at).removeprefix("@at ")
    assert datetime.fromisoformat(text) == at


# --- again and again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "text"),
    [
        (1, "1s"),
        (1.5, "1.5s"),
        (0.1 * 30, "3s"),
        (1.000_000_001, "1.000000001s"),
        (timedelta(minutes=5), "300s"),
        (timedelta(days=366), "31622400s"),
        (timedelta(seconds=1, microseconds=1), "1.000001s"),
    ],
)
def test_interval_duration_of_go(every, text):
    assert pattern(every=every) == f"@every {text}"


@pytest.mark.parametrize(
    "every",
    [0, 0.999, -1, math.nan, math.inf, True, "5m", timedelta(0), 101 * 366 * 86_400, 1e300, 10**400, [1]],
)
def test_what_is_no_interval(every):
    with pytest.raises(ConfigError, match=r"^every: "):
        pattern(every=every)


@given(st.floats(1.0, 1e9))
def test_any_interval_is_exact_to_nanosecond(every):
    text = pattern(every=every).removeprefix("@every ").removesuffix("s")
    whole, _, fraction = text.partition(".")
    assert int(whole) * 10**9 + int(fraction.ljust(9, "0")) == round(every * 1e9) or every > 2**23
    assert abs(float(text) - every) <= 1e-9 * max(1.0, every / 2**20)


# --- cron ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron",
    [
        "* * * * * *",
        "0 0 0 1 1 *",
        "59 59 23 31 12 6",
        "*/5 0-30/10 8-11 1,15 jan-mar mon,wed,FRI",
        "0 0 9 ? * 1-5",
        "5/10 0 0 * * *",
        "0  0   0 * * *",
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ],
)
def test_cron(cron):
    assert pattern(cron=cron) == cron


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("*/5 * * * *", "5 fields; six are needed: seconds"),
        ("* * * * * * 2030", "7 fields"),
        ("", "0 fields"),
        ("60 * * * * *", "seconds '60': 60 is not within 0 to 59"),
        ("* 60 * * * *", "minutes"),
        ("* * 24 * * *", "hours"),
        ("* * * 0 * *", "day of month"),
        ("* * * 32 * *", "day of month"),
        ("* * * * 13 *", "month"),
        ("* * * * 0 *", "month"),
        ("* * * * january *", "month 'january': 'january' is not a number or a name such as 'feb'"),
        ("* * * * * 7", "day of week '7': 7 is not within 0 to 6"),
        ("* * * * * jan", "day of week"),
        ("* * mon * * *", "'mon' is not a number$"),
        ("9-5 * * * * *", "runs backwards"),
        ("* * * * * fri-mon", "runs backwards"),
        ("*/0 * * * * *", "step '0'"),
        ("*/ * * * * *", "step ''"),
        ("*/a * * * * *", "step 'a'"),
        ("1/2/3 * * * * *", "step '2/3'"),
        ("1-2-3 * * * * *", "not a number"),
        ("*-5 * * * * *", "only by a step"),
        ("1,,2 * * * * *", "'' is not a number"),
        ("-1 * * * * *", "'' is not a number"),
        ("1- * * * * *", "'' is not a number"),
        ("+1 * * * * *", "not a number"),
        ("1e1 * * * * *", "not a number"),
        ("9" * 5000 + " * * * * *", "not a number"),
        ("² * * * * *", "character"),
        ("* * * * *\n*", "character"),
        ("* * * * *\t*", "character"),
        ("*\u00a0* * * * *", "character"),
        ("@every 5m", "use the arguments at and every"),
        ("@at 2030-01-31T12:00:00Z", "use the arguments at and every"),
        ("@HOURLY", "not one of @yearly"),
        (5, "int"),
        (b"@hourly", "bytes"),
    ],
)
def test_what_is_no_cron(cron, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        check_cron(cron)
    assert str(caught.value).startswith("cron")
    assert len(str(caught.value)) < 250


@given(st.text(max_size=40) | st.text("0123456789*/,-? janmofri@", max_size=40))
def test_any_text_is_cron_or_refused(text):
    try:
        check_cron(text)
    except ConfigError:
        return
    assert encode_headers({"Nats-Schedule": text}).count(b"\r\n") == 3


# --- the rest --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{}, {"at": NOON, "every": 1}, {"at": NOON, "every": 1, "cron": "@daily"}]
)
def test_one_of_three_says_when(arguments):
    with pytest.raises(ConfigError, match="at, every and cron: exactly one"):
        schedule_headers("s", "t", **arguments)


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Amsterdam", "Europe/Amsterdam"),
        ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ("Etc/GMT+5", "Etc/GMT+5"),
        ("UTC", "UTC"),
        ("Local", "Local"),
        (ZoneInfo("UTC"), "UTC"),
        (UTC, "UTC"),
    ],
)
def test_a_zone_has_a_name(zone, text):
    assert schedule_headers("s", "t", cron="@daily", time_zone=zone)["Nats-Schedule-Time-Zone"] == text


@pytest.mark.parametrize(
    "zone",
    ["", "+02:00", "../etc", "/UTC", "Europe/", "Europe/A B", "a\r\nb", 2, timezone(timedelta(hours=1))],
)
def test_what_is_no_zone(zone):
    with pytest.raises(ConfigError, match="time_zone"):
        schedule_headers("s", "t", cron="@daily", time_zone=zone)


def test_a_zone_is_for_cron_alone():
    for when in ({"at": NOON}, {"every": 5}):
        with pytest.raises(ConfigError, match="without cron"):
            schedule_headers("s", "t", time_zone="UTC", **when)


@pytest.mark.parametrize(
    "arguments",
    [
        {"subject": "s.*"},
        {"subject": ""},
        {"target": "t.>"},
        {"target": None},
        {"target": "a b"},
        {"source": "u.*"},
        {"source": "u\r\n"},
    ],
)
def test_subjects_are_literal(arguments):
    with pytest.raises(InvalidNameError, match="invalid subject"):
        schedule_headers(**{"subject": "s", "target": "t", "every": 1, **arguments})


@pytest.mark.parametrize("arguments", [{"target": "s"}, {"source": "s"}, {"source": "t"}])
def test_subjects_different_ones(arguments):
    with pytest.raises(ConfigError, match="another one"):
        schedule_headers(**{"subject": "s", "target": "t", "every": 1, **arguments})


def test_schedule_ttl_and_rollup():
    assert schedule_headers("s", "t", every=1, ttl=1.5)["Nats-Schedule-TTL"] == "2"
    assert schedule_headers("s", "t", every=1, ttl="never")["Nats-Schedule-TTL"] == "never"
    for arguments in ({"ttl": 0}, {"ttl": "5m"}, {"ttl": True}, {"rollup": "all"}, {"rollup": True}):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            schedule_headers("s", "t", every=1, **arguments)


def test_module_says_exports():
    assert schedule.__all__ == ["check_cron", "ending_headers", "schedule_headers"]
