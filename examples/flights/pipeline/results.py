"""The results of the pipeline: read from the stream and from Parquet, recounted from the files, and compared."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from jsclient import JetStream

from ..flights import Flight, FlightsError
from ..proof import Claim

# --- rows ------------------------------------------------------------------------------------------------


class Weather(NamedTuple):
    """The weather at an airport in an hour, in °F, mph, inches and miles, or None if not measured."""

    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


class Statistic(msgspec.Struct, frozen=True):
    """The departures from an airport in an hour. As JSON it is the payload of a message.

    ``hour`` is local time, such as "2013-01-01T05:00". Delays are in minutes, of the ``flights`` that left, and None if
    all of them were ``cancelled``.
    """

    hour: str
    origin: str
    flights: int
    cancelled: int
    mean_delay: float | None
    max_delay: int | None
    temp: float | None
    wind_speed: float | None
    precip: float | None
    visib: float | None

    @property
    def key(self) -> tuple[str, str]:
        """Origin and hour, which identify the row."""
        return self.origin, self.hour


COLUMNS: tuple[str, ...] = Statistic.__struct_fields__


class Rebooking(NamedTuple):
    """A cancelled flight whose passengers are to be rebooked. ``sequence`` is its stream sequence."""

    sequence: int
    scheduled: str
    carrier: str
    flight: int
    origin: str
    dest: str


Cancelled: TypeAlias = tuple[str, str, int, str, str]
"""Planned departure, carrier, number, origin, destination."""

Statistics: TypeAlias = dict[tuple[str, str], Statistic]
"""The statistics by origin and hour."""


# --- what Spark has written ------------------------------------------------------------------------------


async def read_stream(js: JetStream, stream: str) -> list[Statistic]:
    """Read every message of a stream, in order.

    Raises:
        msgspec.MsgspecError: A message is not a valid statistic.
    """
    decode = msgspec.json.Decoder(Statistic).decode
    statistics: list[Statistic] = []
    last = (await (await js.stream(stream)).info()).state.last_seq
    if not last:
        return statistics
    async with js.ordered_consumer(stream) as reader:
        async for message in reader:
            statistics.append(decode(message.data))
            if message.metadata.stream_seq >= last:
                break
    return statistics


def read_archive(directory: Path) -> list[Statistic]:
    """Read the rows of the query `archive`. Blocks."""
    return [msgspec.convert(row, Statistic) for row in _rows(directory, COLUMNS)]


def read_rebooked(directory: Path) -> list[Rebooking]:
    """Read the rows of the query `rebooking`. Blocks."""
    return [Rebooking(**row) for row in _rows(directory, Rebooking._fields)]


def _rows(directory: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read the rows of every batch. Unfinished files of a killed driver are in directories that begin with "_"."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    for path in sorted(directory.glob("batch=*/part-*.parquet")):
        rows += parquet.ParquetFile(path).read(columns=list(columns)).to_pylist()
    return rows


# --- what the files say ----------------------------------------------------------------------------------


def read_weather(path: Path) -> dict[tuple[str, str], Weather]:
    """Read the weather by origin and local hour. At the end of summer time an hour occurs twice, and the first counts.

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
    """Recount the statistics by origin and hour."""
    planned: Counter[tuple[str, str]] = Counter()
    delays: dict[tuple[str, str], list[int]] = {}
    for flight in flights:
        key = flight.origin, f"{flight.scheduled[:13]}:00"
        planned[key] += 1
        departed = delays.setdefault(key, [])
        if flight.dep_delay is not None:
            departed.append(flight.dep_delay)
    return {
        (origin, hour): Statistic(
            hour,
            origin,
            count,
            count - len(departed),
            sum(departed) / len(departed) if departed else None,
            max(departed) if departed else None,
            *weather.get((origin, hour), Weather()),
        )
        for (origin, hour), count in planned.items()
        for departed in [delays[origin, hour]]
    }


def cancelled_flights(flights: Iterable[Flight]) -> Counter[Cancelled]:
    """Count the flights that never left."""
    return Counter(
        (f.scheduled, f.carrier, f.flight, f.origin, f.dest) for f in flights if f.dep_delay is None
    )


# --- comparison and summary ------------------------------------------------------------------------------


def check_statistics(
    where: str, actual: Iterable[Statistic], expected: Mapping[tuple[str, str], Statistic]
) -> Claim:
    """Compare rows with the expected rows. Each must exist once, and be equal in every column."""
    rows: dict[tuple[str, str], list[Statistic]] = {}
    for row in actual:
        rows.setdefault(row.key, []).append(row)
    wrong = {
        "missing": [key for key in expected if key not in rows],
        "not expected": [key for key in rows if key not in expected],
        "more than once": [key for key, same in rows.items() if len(same) > 1],
        "different": [key for key, same in rows.items() if key in expected and set(same) != {expected[key]}],
    }
    count = sum(map(len, rows.values()))
    if not any(wrong.values()):
        return Claim(True, f"{where}: {count:,} rows of {len(COLUMNS)} columns, each equal to the recount")
    return Claim(False, f"{where}: {count:,} rows for {len(expected):,}: {_differences(wrong)}")


def check_rebooked(
    actual: Iterable[Rebooking],
    expected: Mapping[tuple[str, str, int, str, str], int],
    *,
    pending: int,
    unacked: int,
) -> Claim:
    """Compare the rebooked flights with the cancelled flights of the file. ``pending`` and ``unacked`` must be 0."""
    rebooked = list(actual)
    flights = Counter(tuple(row[1:]) for row in rebooked)
    sequences = Counter(row.sequence for row in rebooked)
    cancelled: Counter[Any] = Counter(dict(expected))
    wrong = {
        "missing": list((cancelled - flights).elements()),
        "not expected": list((flights - cancelled).elements()),
        "more than once": [sequence for sequence, count in sequences.items() if count > 1],
    }
    acks = f"{pending:,} to be delivered, {unacked:,} not acked"
    if not any(wrong.values()):
        text = f"work list: {len(rebooked):,} cancelled flights rebooked once, those of the file; {acks}"
        return Claim(not pending and not unacked, text)
    return Claim(
        False,
        f"work list: {len(rebooked):,} rebooked of {cancelled.total():,}; {acks}: {_differences(wrong)}",
    )


def _differences(wrong: Mapping[str, list[Any]]) -> str:
    """Return the number of differences of each kind, with the first as an example."""
    parts = [
        f"{len(keys):,} {kind}, as {' '.join(map(str, keys[0])) if isinstance(keys[0], tuple) else keys[0]}"
        for kind, keys in wrong.items()
        if keys
    ]
    return "; ".join(parts)


def end_of_flights(last: Flight) -> Flight:
    """Return a message after the last flight, days later, so that the watermark passes every hour with flights."""
    later = datetime.fromisoformat(last.scheduled) + timedelta(days=4)
    return Flight(later.isoformat(timespec="minutes"), "", 0, None, "", "", None, None, 0)


def weather_table(statistics: Iterable[Statistic]) -> list[str]:
    """Return a table of departures by the weather at the airport."""
    kinds = dict.fromkeys(("dry, clear", "low visibility", "rain or snow", "not known"), (0, 0, 0.0))
    for row in statistics:
        kind = _kind(row)
        flights, cancelled, delay = kinds[kind]
        minutes = (row.mean_delay or 0.0) * (row.flights - row.cancelled)
        kinds[kind] = flights + row.flights, cancelled + row.cancelled, delay + minutes
    lines = ["Departures by the weather at the airport     cancelled   delay, minutes"]
    for kind, (flights, cancelled, delay) in kinds.items():
        if flights:
            mean = f"{delay / (flights - cancelled):+.1f}" if flights > cancelled else "-"
            lines.append(f"{kind:<18} {flights:>9,} flights {cancelled / flights:>13.1%} {mean:>16}")
    return lines


def _kind(row: Statistic) -> str:
    if row.precip is None or row.visib is None:
        return "not known"
    if row.precip > 0:
        return "rain or snow"
    return "low visibility" if row.visib < 3 else "dry, clear"
