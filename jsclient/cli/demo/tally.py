"""Counts and delays of flights, by carrier and route. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .flights import Flight

__all__ = ["Row", "Sum", "Tally"]

Row: TypeAlias = tuple[str, str, str, int, int, int]
"""Carrier, origin, destination; flights, landed flights, minutes of arrival delay."""


@dataclass(slots=True)
class Sum:
    """A sum of flights. ``delay`` is the total arrival delay of the landed flights, in minutes."""

    flights: int = 0
    landed: int = 0
    delay: int = 0

    def add(self, flights: int, landed: int, delay: int) -> None:
        """Add counts."""
        self.flights += flights
        self.landed += landed
        self.delay += delay

    @property
    def average_delay(self) -> float:
        """Minutes; 0 if no flight landed."""
        return self.delay / self.landed if self.landed else 0.0


class Tally:
    """Sums by carrier, origin and destination. All are integers, so the order of additions does not matter."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._sums: dict[tuple[str, str, str], Sum] = {}
        self.merge(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self._sums == other._sums

    __hash__: None  # type: ignore[assignment]  # as __eq__ makes it

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        delay = flight.arr_delay
        place = (flight.carrier, flight.origin, flight.dest)
        self._sum(place).add(1, 0 if delay is None else 1, delay or 0)

    def merge(self, rows: Iterable[Row]) -> None:
        """Add the rows of another tally."""
        for carrier, origin, dest, flights, landed, delay in rows:
            self._sum((carrier, origin, dest)).add(flights, landed, delay)

    def _sum(self, place: tuple[str, str, str]) -> Sum:
        found = self._sums.get(place)
        if found is None:
            found = self._sums[place] = Sum()
        return found

    def rows(self) -> list[Row]:
        """All sums as rows, to be sent and merged into another tally."""
        return [(*place, s.flights, s.landed, s.delay) for place, s in self._sums.items()]

    @property
    def flights(self) -> int:
        """The number of counted flights."""
        return sum(s.flights for s in self._sums.values())

    def busiest_routes(self, top: int) -> list[tuple[str, Sum]]:
        """The routes with the most flights, in descending order."""
        ranked = sorted(self._by(_route), key=lambda entry: (-entry[1].flights, entry[0]))
        return ranked[:top]

    def latest_carriers(self, top: int, at_least: int = 1) -> list[tuple[str, Sum]]:
        """The carriers with the worst average delay, out of those with ``at_least`` landed flights."""
        return _latest(self._by(_carrier), top, at_least)

    def latest_routes(self, top: int, at_least: int = 1) -> list[tuple[str, Sum]]:
        """The routes with the worst average delay, out of those with ``at_least`` landed flights."""
        return _latest(self._by(_route), top, at_least)

    def _by(self, name: Callable[[str, str, str], str]) -> Iterator[tuple[str, Sum]]:
        groups: dict[str, Sum] = {}
        for place, s in self._sums.items():
            groups.setdefault(name(*place), Sum()).add(s.flights, s.landed, s.delay)
        yield from groups.items()


def _carrier(carrier: str, _origin: str, _dest: str) -> str:
    return carrier


def _route(_carrier: str, origin: str, dest: str) -> str:
    return f"{origin}-{dest}"


def _latest(groups: Iterable[tuple[str, Sum]], top: int, at_least: int) -> list[tuple[str, Sum]]:
    enough = [entry for entry in groups if entry[1].landed >= max(at_least, 1)]
    return sorted(enough, key=lambda entry: (-entry[1].average_delay, entry[0]))[:top]
