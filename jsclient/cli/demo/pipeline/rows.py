"""The rows that the pipeline computes. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..flights import Flight

__all__ = ["COLUMNS", "Rebooking", "Statistic", "Weather", "statistic_of"]


class Weather(NamedTuple):
    """The weather at an airport in an hour, in °F, mph, inches and miles; None: not measured."""

    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


class Statistic(msgspec.Struct, frozen=True):
    """The departures from an airport in an hour. As JSON it is the payload of a message.

    ``hour`` is local time, as in "2013-01-01T05:00". Delays are in minutes, of the ``flights`` that left; None if all
    of them were ``cancelled``.
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


def statistic_of(row: dict[str, Any]) -> Statistic:
    """The statistic in a row of a Parquet file.

    Raises:
        msgspec.ValidationError: The row has other columns or types.
    """
    return msgspec.convert(row, Statistic)


class Rebooking(NamedTuple):
    """A cancelled flight whose passengers are to be rebooked. ``sequence`` is its stream sequence."""

    sequence: int
    scheduled: str
    carrier: str
    flight: int
    origin: str
    dest: str

    @classmethod
    def of(cls, sequence: int, flight: Flight) -> Rebooking:
        return cls(sequence, flight.scheduled, flight.carrier, flight.flight, flight.origin, flight.dest)
