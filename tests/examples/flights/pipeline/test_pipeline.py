"""The Spark part without Spark: the recount, the comparison that must be able to fail, and what is shown and kept."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import msgspec
import pytest

import jsclient
from examples.flights.__main__ import main
from examples.flights.flights import Flight, FlightsError
from examples.flights.pipeline import running
from examples.flights.pipeline.pipeline import closing, kept
from examples.flights.pipeline.results import (
    COLUMNS,
    Rebooking,
    Statistic,
    Weather,
    cancelled_flights,
    check_rebooked,
    check_statistics,
    end_of_flights,
    read_weather,
    recount,
    weather_table,
)
from examples.flights.pipeline.running import SECRET, spark_access, without_user
from examples.flights.pipeline.watching import reason
from examples.flights.pipeline.words import BatchDone, DriverFailed, DriverJob, FromDriver, SparkIsUp
from examples.flights.screen import PipelineView, RunState, StageView, line

HEADER = (
    "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
)
FIRST = "EWR,2013,11,3,1,51.98,39,61,310,6.9,NA,0,1009.8,10,2013-11-03T05:00:00Z"
AGAIN = "EWR,2013,11,3,1,50,39,65,290,5.7,NA,0.1,1010.5,NA,2013-11-03T06:00:00Z"
WINDY = "JFK,2013,1,1,5,NA,NA,NA,NA,1048.36,NA,0.01,NA,2.5,2013-01-01T10:00:00Z"


def flight(scheduled="2013-01-01T05:15", origin="EWR", delay: int | None = 0, number=1) -> Flight:
    return Flight(scheduled, "UA", number, None, origin, "IAH", delay, delay, 100)


@pytest.fixture
def weather(tmp_path):
    def write(*lines: str):
        path = tmp_path / "weather.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


# --- the recount


def test_weather_by_origin_and_hour(weather):
    assert read_weather(weather(HEADER, WINDY)) == {
        ("JFK", "2013-01-01T05:00"): Weather(None, 1048.36, 0.01, 2.5)
    }


@pytest.mark.parametrize("lines", [(FIRST, AGAIN), (AGAIN, FIRST)])
def test_of_hour_comes_twice_first_counts(weather, lines):
    assert read_weather(weather(HEADER, *lines)) == {
        ("EWR", "2013-11-03T01:00"): Weather(51.98, 6.9, 0.0, 10.0)
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((HEADER.replace("visib", "sight"), FIRST), "no column 'visib'"),
        ((HEADER, FIRST.replace("51.98", "warm")), "cannot be read"),
        ((HEADER, "EWR,2013"), "cannot be read"),
    ],
)
def test_broken_weather_file_refused(weather, lines, said):
    with pytest.raises(FlightsError, match=said):
        read_weather(weather(*lines))


def test_missing_weather_file_reported(tmp_path):
    with pytest.raises(FlightsError, match="is missing"):
        read_weather(tmp_path / "weather.csv")


def test_flights_counted_by_hour():
    flights = [
        flight("2013-01-01T05:00", delay=-3),
        flight("2013-01-01T05:59", delay=10),
        flight("2013-01-01T05:30", delay=None),
        flight("2013-01-01T06:00", delay=1),
        flight("2013-01-01T05:30", "JFK", None),
    ]
    actual = recount(flights, {("EWR", "2013-01-01T05:00"): Weather(39.0, 10.4, 0.0, 10.0)})
    assert actual == {
        ("EWR", "2013-01-01T05:00"): Statistic(
            "2013-01-01T05:00", "EWR", 3, 1, 3.5, 10, 39.0, 10.4, 0.0, 10.0
        ),
        ("EWR", "2013-01-01T06:00"): Statistic(
            "2013-01-01T06:00", "EWR", 1, 0, 1.0, 1, None, None, None, None
        ),
        ("JFK", "2013-01-01T05:00"): Statistic(
            "2013-01-01T05:00", "JFK", 1, 1, None, None, None, None, None, None
        ),
    }
    assert cancelled_flights(flights) == {
        ("2013-01-01T05:30", "UA", 1, "EWR", "IAH"): 1,
        ("2013-01-01T05:30", "UA", 1, "JFK", "IAH"): 1,
    }


def test_cancelled_flight_subject():
    assert flight(delay=None).subject("flights") == "flights.EWR.UA.cancelled"


def test_end_closes_every_window():
    assert end_of_flights(flight("2013-12-31T23:59")).scheduled == "2014-01-04T23:59"


# --- the comparison


EXPECTED = recount([flight(), flight("2013-01-01T07:00"), flight(origin="JFK", delay=None)], {})


def test_equal_rows_in_any_order_hold():
    claim = check_statistics("Parquet", reversed(EXPECTED.values()), EXPECTED)
    assert str(claim) == "[ok] Parquet: 3 rows of 10 columns, each equal to the recount"


@pytest.mark.parametrize("column", COLUMNS)
def test_difference_in_any_column_found(column):
    rows = list(EXPECTED.values())
    before = getattr(rows[0], column)
    changed = f"{before}x" if isinstance(before, str) else (before or 0) + 1
    rows[0] = msgspec.structs.replace(rows[0], **{column: changed})
    assert not check_statistics("stream", rows, EXPECTED).holds


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*EXPECTED.values()][1:], "1 missing, as EWR 2013-01-01T05:00"),
        ([*EXPECTED.values(), next(iter(EXPECTED.values()))], "1 more than once, as EWR 2013-01-01T05:00"),
        (
            [*EXPECTED.values(), *recount([flight(origin="LGA")], {}).values()],
            "1 not expected, as LGA 2013-01-01T05:00",
        ),
        ([], "3 missing"),
    ],
)
def test_rows_missing_twice_or_strange_reported(rows, said):
    claim = check_statistics("stream", rows, EXPECTED)
    assert not claim.holds
    assert said in claim.text


WORK = [flight(number=number, delay=None) for number in (1, 2, 2)]
DONE = [
    Rebooking(sequence, f.scheduled, f.carrier, f.flight, f.origin, f.dest)
    for sequence, f in enumerate(WORK, 1)
]


def rebooked(found, *, pending=0, unacked=0):
    return check_rebooked(found, cancelled_flights(WORK), pending=pending, unacked=unacked)


def test_work_done_once_holds():
    assert rebooked(reversed(DONE)).holds
    assert not rebooked(DONE, pending=1).holds
    assert not rebooked(DONE, unacked=1).holds


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (DONE[1:], "1 missing, as 2013-01-01T05:15 UA 1 EWR IAH"),
        ([*DONE, DONE[0]], "1 more than once, as 1"),
        ([*DONE, DONE[0]._replace(sequence=9)], "1 not expected"),
        ([DONE[0], DONE[1], DONE[1]], "1 more than once, as 2"),
    ],
)
def test_work_missing_or_done_twice_reported(found, said):
    claim = rebooked(found)
    assert not claim.holds
    assert said in claim.text


def test_row_of_another_shape_refused():
    row = msgspec.structs.asdict(next(iter(EXPECTED.values())))
    assert msgspec.convert(row, Statistic).key == ("EWR", "2013-01-01T05:00")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**row, "flights": None}, Statistic)


# --- access, needs, options


@pytest.mark.parametrize(
    ("urls", "options", "environment"),
    [
        (["nats://h:1", "h2"], {"servers": "nats://h:1,nats://h2"}, {}),
        (
            ["tls://me:secret@h:1"],
            {"servers": "tls://h:1", "user": "me", "passwordEnv": SECRET},
            {SECRET: "secret"},
        ),
        (
            ["nats://secret@h", "nats://h2"],
            {"servers": "nats://h,nats://h2", "tokenEnv": SECRET},
            {SECRET: "secret"},
        ),
    ],
)
def test_password_does_not_become_option(urls, options, environment):
    assert spark_access(urls) == (options, environment)
    assert "secret" not in json.dumps(options)


def test_url_shown_without_user():
    assert without_user("a:b@h:1") == "nats://h:1"


@pytest.fixture
def spark_is_there(monkeypatch):
    original = importlib.util.find_spec
    ours = ("pyspark", "pyarrow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in ours or original(name))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.3.0")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: "/bin/java")
    monkeypatch.setattr(running, "java_release", lambda _: 17)


@pytest.mark.usefixtures("spark_is_there")
def test_why_spark_left_out_said_in_line(monkeypatch):
    assert running.why_not() is None
    with monkeypatch.context() as changed:
        changed.setattr(importlib.util, "find_spec", lambda _: None)
        assert running.why_not() == 'pyspark and pyarrow not installed: pip install "jsclient[spark]"'
    with monkeypatch.context() as changed:
        changed.setattr(importlib.metadata, "version", lambda _: "4.1.9")
        assert "4.1.9 is older than 4.2" in running.why_not()
    with monkeypatch.context() as changed:
        changed.setattr("shutil.which", lambda _: None)
        assert "no Java found" in running.why_not()
    for release, said in ((11, "is Java 11: Spark needs Java 17"), (None, "does not run")):
        with monkeypatch.context() as changed:
            changed.setattr(running, "java_release", lambda _, release=release: release)
            assert said in running.why_not()


@pytest.mark.parametrize(
    ("reported", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025', 25),
        ("", None),
    ],
)
def test_release_of_java_read_from_says(tmp_path, reported, release):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{reported}' >&2\n")
    java.chmod(0o755)
    assert running.java_release(str(java)) == release


def test_java_does_not_run_no_release(tmp_path):
    assert running.java_release(str(tmp_path / "java")) is None


def test_progress_file_needs_spark(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["--spark-progress", str(tmp_path / "none" / "p.json")])
    assert ended.value.code == 2
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setattr("examples.flights.command.find_data", lambda: tmp_path)
    monkeypatch.setattr("examples.flights.command.find_server", lambda: None)
    assert main(["--plain", "--no-spark", "--spark-progress", str(tmp_path / "p.json")]) == 2
    assert "needs the Spark part, which is skipped: --no-spark" in capsys.readouterr().err


# --- what is shown and kept


def test_driver_says_arrives():
    for word in (SparkIsUp("4.3.0", "17"), BatchDone("a", 0, 1, 2.0, {"addBatch": 3}), DriverFailed("why")):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(word), type=FromDriver) == word
    setup = DriverJob({"servers": "a"}, {SECRET: "b"}, *"cdefghi", 1, 2, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(setup), type=DriverJob) == setup


def test_batch_done_again_counts_once():
    view = PipelineView({"a": StageView("a", "does", 20, "running")}, state="running")
    for number, rows in ((0, 5), (1, 5), (1, 5), (2, 0)):
        view.enter(BatchDone("a", number, rows, 100.0 + number, {"addBatch": 1}, 3, number // 2), 1.5)
    stage = view.stages["a"]
    assert (stage.rows, stage.batches, stage.rate, view.late) == (10, 3, 101.0, 1)
    stage.out = 4
    assert view.line() == "Spark running: a 10 of 20 (3 batches, 101/s, 4 out)"
    assert line(RunState(elapsed=2.0, published=5, pipeline=view)) == f"   2.0 s  {view.line()}"
    view.happened("killed", 2.0)
    stored = kept(view, {"flights": 20})
    assert json.loads(json.dumps(stored)) == stored
    assert [entry.get("event", entry.get("batch")) for entry in stored["log"]] == [0, 1, 1, 2, "killed"]
    assert stored["queries"]["a"]["rows"] == 10


@pytest.mark.parametrize(("reported", "batches"), [([4, 6], 2), ([4, 4], 3)])
def test_ended_query_has_read_all(reported, batches):
    stage = StageView("a", "does", 10, "running", rows_by_batch=dict(enumerate(reported)))
    stage.end()
    assert (stage.state, stage.rows, stage.batches) == ("done", 10, batches)


def test_weather_shows_in_departures():
    rows = [
        Statistic("h", "EWR", 4, 1, 10.0, 20, 1.0, 1.0, 0.0, 10.0),
        Statistic("h", "JFK", 1, 1, None, None, 1.0, 1.0, 0.2, 1.0),
        Statistic("h", "LGA", 2, 0, -1.0, 0, 1.0, 1.0, 0.0, 2.0),
        Statistic("i", "LGA", 2, 0, 5.0, 5, None, None, None, None),
    ]
    table = [text.split() for text in weather_table(rows)[1:]]
    assert table == [
        ["dry,", "clear", "4", "flights", "25.0%", "+10.0"],
        ["low", "visibility", "2", "flights", "0.0%", "-1.0"],
        ["rain", "or", "snow", "1", "flights", "100.0%", "-"],
        ["not", "known", "2", "flights", "0.0%", "+5.0"],
    ]


def test_last_lines_count_starts():
    view = PipelineView({"a": StageView("a", "does")})
    view.happened("up", 1.0)
    view.happened("up", 2.0)
    text = closing(view, SparkIsUp("4.3.0", "17"), ran=5.0, whole=10.0)
    assert text == ["Spark 4.3.0: 0 rows in 0 batches in 5.0 s, including 2 starts;", "10.0 s in all."]


def test_reason_prefers_jsclient_error():
    text = (
        "[STREAM_FAILED] Query x terminated\nTraceback (most recent call last):\n"
        '  File "x.py", line 1\njsclient.errors.StreamNotFoundError: there is no stream S\nJVM stacktrace:\n'
        "org.apache.spark.SparkException: Job aborted\n"
    )
    assert reason(RuntimeError(text)) == "StreamNotFoundError: there is no stream S"
    py4j = "An error occurred while calling o2.start.\n: org.apache.spark.SparkException: no room\n\tat x"
    assert reason(RuntimeError(py4j)) == "SparkException: no room"
    assert reason(RuntimeError("\n  it broke\nmore")) == "RuntimeError: it broke"
    assert reason(RuntimeError()) == "RuntimeError: "


def test_driver_imports_this_jsclient(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    paths = running._environment()["PYTHONPATH"].split(os.pathsep)
    assert (Path(paths[0]) / "jsclient" / "__init__.py").samefile(jsclient.__file__)
    assert paths[1:] == ["/elsewhere"]
