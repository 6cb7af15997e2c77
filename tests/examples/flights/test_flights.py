"""The data set is read as it is, and what is wrong with it is said in a line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from examples.flights.flights import Flight, FlightsError, airline_names, find_data, read_flights

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
LANDED = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
CANCELLED = "2013,12,31,NA,1630,NA,NA,1815,NA,EV,4308,NA,EWR,RDU,NA,416,16,30,2013-12-31T21:00:00Z"


@pytest.fixture
def data(tmp_path):
    def write(*lines: str) -> Path:
        with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
            archive.writestr("flights.csv", "\n".join(lines))
        return tmp_path

    return write


def test_flight_sortable_departure(data):
    flight = next(read_flights(data(HEADER, LANDED)))
    assert flight == Flight("2013-01-01T05:15", "UA", 1545, "N14228", "EWR", "IAH", 2, 11, 1400)
    assert flight.subject("flights") == "flights.EWR.UA"


def test_cancelled_flight_no_delays(data):
    flight = next(read_flights(data(HEADER, CANCELLED)))
    assert (flight.scheduled, flight.tailnum) == ("2013-12-31T16:30", None)
    assert (flight.dep_delay, flight.arr_delay) == (None, None)


@pytest.mark.parametrize(
    ("time", "shown"), [("5", "00:05"), ("59", "00:59"), ("100", "01:00"), ("2359", "23:59")]
)
def test_short_time_after_midnight(data, time, shown):
    flight = next(read_flights(data(HEADER, LANDED.replace(",515,", f",{time},"))))
    assert flight.scheduled == f"2013-01-01T{shown}"


def test_columns_are_read_by_name(data):
    header, row = HEADER.split(","), LANDED.split(",")
    turned = data(",".join(reversed(header)), ",".join(reversed(row)))
    assert next(read_flights(turned)).carrier == "UA"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEADER, LANDED, "2013,1"], "line 3"),
        ([HEADER, LANDED.replace("1545", "x")], "line 2"),
        ([HEADER.replace("carrier", "airline"), LANDED], "no column carrier"),
        ([], "no column year"),
    ],
)
def test_broken_file_refused_by_line(data, lines, said):
    with pytest.raises(FlightsError, match=said):
        list(read_flights(data(*lines)))


def test_broken_or_missing_archive_refused(tmp_path):
    with pytest.raises(FlightsError, match="is missing"):
        list(read_flights(tmp_path))
    (tmp_path / "flights.csv.zip").write_bytes(b"no archive")
    with pytest.raises(FlightsError, match="cannot be read"):
        list(read_flights(tmp_path))
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("other.csv", "x")
    with pytest.raises(FlightsError, match="cannot be read"):
        list(read_flights(tmp_path))


def test_data_of_missing_package_is_none():
    assert find_data("a_package_that_nobody_has") is None


def test_package_is_located_without_import(tmp_path, monkeypatch):
    package = tmp_path / "package_that_breaks_when_imported"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_data(package.name) == package / "data"


def test_airline_names_shortened(tmp_path):
    assert airline_names(tmp_path) == {}
    (tmp_path / "airlines.csv").write_text("carrier,name\nF9,Frontier Airlines Inc.\nB6,JetBlue Airways\n")
    assert airline_names(tmp_path) == {"F9": "Frontier", "B6": "JetBlue"}
