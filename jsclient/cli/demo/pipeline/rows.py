"""What the pipeline computes: the shapes of its results. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..flights import Flight

__all__ = ["COLUMNS", "Rebooking", "Statistic", "Weather", "statistic_of"]


class Weather(NamedTuple):
    """What was measured at an airport in an hour; None where it was not. °F, mph, inches, miles."""

    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


class Statistic(msgspec.Struct, frozen=True):
    """The departures from an airport in an hour. As JSON it is the payload of a message.

    ``hour`` is local time, as in "2013-01-01T05:00". Delays are minutes, of the ``flights`` that left; None where all
    were ``cancelled``.
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
        """What there is one of."""
        return self.origin, self.hour


COLUMNS: tuple[str, ...] = Statistic.__struct_fields__


def statistic_of(row: dict[str, Any]) -> Statistic:
    """From a row of a Parquet file.

    Raises:
        msgspec.ValidationError: It is another shape.
    """
    return msgspec.convert(row, Statistic)


class Rebooking(NamedTuple):
    """A cancelled flight whose passengers are to be rebooked. ``sequence`` is its place in the stream."""

    sequence: int
    scheduled: str
    carrier: str
    flight: int
    origin: str
    dest: str

    @classmethod
    def of(cls, sequence: int, flight: Flight) -> Rebooking:
        return cls(sequence, flight.scheduled, flight.carrier, flight.flight, flight.origin, flight.dest)
