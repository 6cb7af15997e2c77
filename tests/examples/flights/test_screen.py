"""What is shown: averages, rankings, rates, lines that fit."""

from __future__ import annotations

import io

import pytest

from examples.flights.flights import FlightSums
from examples.flights.proof import Claim, pace, summary
from examples.flights.screen import PlainScreen, Rate, RunState, WorkerView, in_words, line
from jsclient.protocol.events import Disconnected

ROWS = [
    ("UA", "EWR", "IAH", 100, 90, 900),
    ("DL", "EWR", "IAH", 10, 10, 500),
    ("DL", "JFK", "LAX", 120, 120, -120),
    ("F9", "LGA", "DEN", 2, 1, 300),
    ("XX", "LGA", "LEX", 1, 0, 0),
]


def test_routes_ranked_by_flights():
    assert [(name, s.flights) for name, s in FlightSums(ROWS).busiest_routes(2)] == [
        ("JFK-LAX", 120),
        ("EWR-IAH", 110),
    ]


def test_averages_of_landed_flights():
    tally = FlightSums(ROWS)
    assert [(name, s.average_delay) for name, s in tally.latest_carriers(9, 90)] == [
        ("UA", 10.0),
        ("DL", pytest.approx(380 / 130)),
    ]
    assert [(name, s.average_delay) for name, s in tally.latest_routes(1, 1)] == [("LGA-DEN", 300.0)]


def test_never_landed_no_average():
    assert "LGA-LEX" not in [name for name, _ in FlightSums(ROWS).latest_routes(9, 0)]


def test_tallies_equal_when_all_sums():
    assert FlightSums(ROWS) == FlightSums(reversed(ROWS))
    assert FlightSums(ROWS) != FlightSums(ROWS[:-1])
    changed = [*ROWS[:-1], ("XX", "LGA", "LEX", 1, 1, 0)]
    assert FlightSums(ROWS) != FlightSums(changed)


def test_rate_of_last_seconds():
    rate = Rate(window=2.0)
    for now, count in [(0.0, 0), (1.0, 1000), (2.0, 2000), (3.0, 2000), (4.0, 2000)]:
        rate.at(now, count)
    assert rate.value == 0
    rate.at(5.0, 2200)
    assert rate.value == pytest.approx(100)


def test_text_at_end_fits_narrow_terminal():
    claims = [Claim(True, "a"), Claim(False, "b")]
    closing = pace(336_776, 16, published=100.0, counted=100.0, acked=105.0, whole=110.0)
    text = summary(FlightSums(ROWS), {"UA": "A Name That Is Much Too Long"}, claims, closing)
    assert max(map(len, text)) <= 79
    assert "[ok] a" in text
    assert "[FAILED] b" in text


def test_summary_of_one_flight_in_no_time():
    text = summary(
        FlightSums([ROWS[-1]]), {}, [], pace(1, 1, published=0.0, counted=0.0, acked=0.0, whole=0.0)
    )
    assert any("LGA-LEX" in row for row in text)


def test_plain_lines_and_phases():
    out = io.StringIO()
    screen = PlainScreen(out)
    progress = RunState(phase="reading", where="a server", total=10)
    screen.start()
    for elapsed in (0.0, 1.0, 2.9, 3.0, 3.1):
        progress.elapsed = elapsed
        screen.show(progress)
    progress.phase, progress.published, progress.counted = "replaying", 5, 4
    progress.workers = [WorkerView(1, 11, "killed"), WorkerView(2, 12, "working")]
    screen.show(progress)
    screen.stop()
    lines = out.getvalue().splitlines()
    assert [row.split()[0] for row in lines] == ["a", "0.0", "3.0", "3.1"]
    assert lines[-1] == line(progress)
    assert "processed 4 of 10" in lines[-1]
    assert lines[-1].endswith("workers 1")


def test_event_is_described_in_one_line():
    assert in_words(Disconnected(reason="gone\nfor now")) == "Disconnected: reason gone for now"


def test_processed_counts_as_stored():
    assert RunState(published=500, counted=600).stored == 600
    assert RunState(published=500, counted=400).stored == 500
