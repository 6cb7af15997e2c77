"""The expected results, computed from the files without Spark, pandas or a stream. Pure, except for reading files."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from ..flights import Flight, FlightsError
from .rows import Statistic, Weather

__all__ = ["Cancelled", "Statistics", "cancelled_flights", "read_weather", "recount"]

Cancelled: TypeAlias = tuple[str, str, int, str, str]
"""Planned departure, carrier, number, origin, destination."""

Statistics: TypeAlias = dict[tuple[str, str], Statistic]
"""By origin and hour."""


def read_weather(path: Path) -> dict[tuple[str, str], Weather]:
    """The weather by origin and local hour. At the end of summer time an hour occurs twice, and the first one counts.

    Raises:
        FlightsError: The file is missing, broken, or has other columns.
    """
    first: dict[tuple[str, str], tuple[str, Weather]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
                key = row["origin"], f"{day}T{int(row['hour']):02}:00"
                weather = Weather(*(_number(row[name]) for name in Weather._fields))
                when = row["time_hour"]  # UTC
                if key not in first or when < first[key][0]:
                    first[key] = when, weather
    except FileNotFoundError:
        raise FlightsError(f"{path} is missing") from None
    except KeyError as error:
        raise FlightsError(f"{path} has no column {error}") from None
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise FlightsError(f"{path} cannot be read: {error}") from error
    return {key: weather for key, (_, weather) in first.items()}


def _number(text: str) -> float | None:
    return None if text in {"NA", ""} else float(text)


def recount(flights: Iterable[Flight], weather: Mapping[tuple[str, str], Weather]) -> Statistics:
    """The statistics by origin and hour."""
    planned: Counter[tuple[str, str]] = Counter()
    delays: dict[tuple[str, str], list[int]] = {}
    for flight in flights:
        key = flight.origin, f"{flight.scheduled[:13]}:00"
        planned[key] += 1
        left = delays.setdefault(key, [])
        if flight.dep_delay is not None:
            left.append(flight.dep_delay)
    return {
        (origin, hour): Statistic(
            hour,
            origin,
            count,
            count - len(left),
            sum(left) / len(left) if left else None,
            max(left) if left else None,
            *weather.get((origin, hour), Weather()),
        )
        for (origin, hour), count in planned.items()
        for left in [delays[origin, hour]]
    }


def cancelled_flights(flights: Iterable[Flight]) -> Counter[Cancelled]:
    """The flights that never left."""
    return Counter(
        (f.scheduled, f.carrier, f.flight, f.origin, f.dest) for f in flights if f.dep_delay is None
    )
