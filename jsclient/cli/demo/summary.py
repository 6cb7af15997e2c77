"""The summary at the end: flight statistics, proof and speed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from .proof import Claim
from .tally import Tally

__all__ = ["pace", "summary"]

_TOP = 5
_FULL_MINIMUM = 100  # landed flights that a route needs to be ranked, in the whole data set


def summary(
    tally: Tally, names: Mapping[str, str], proof: Sequence[Claim], closing: Sequence[str]
) -> list[str]:
    """The summary, in lines of at most 79 characters for the names and counts of the data set."""
    minimum = max(1, min(_FULL_MINIMUM, tally.flights // 1000))
    columns = [
        [
            "Busiest routes",
            *(f"{route:<8} {s.flights:>8,}" for route, s in tally.busiest_routes(_TOP)),
        ],
        [
            "by carrier",
            *(
                f"{f'{carrier} {names.get(carrier, str())}':<22.22} {s.average_delay:>+7.1f}"
                for carrier, s in tally.latest_carriers(_TOP, minimum)
            ),
        ],
        [
            "by route",
            *(f"{route:<8} {s.average_delay:>+13.1f}" for route, s in tally.latest_routes(_TOP, minimum)),
        ],
    ]
    over = f"{'':<20}Worst average delay on arrival, minutes ({minimum:,}+ landed)"
    table = [over, *(f"{a:<17}   {b:<30}   {c}".rstrip() for a, b, c in zip_longest(*columns, fillvalue=""))]
    return [*table, "", *(str(claim) for claim in proof), "", *closing]


def pace(
    flights: int, workers: int, *, published: float, counted: float, acked: float, whole: float
) -> list[str]:
    """The speed of the run.

    All times are in seconds. ``published``, ``counted`` and ``acked`` are measured from the first publish to the last
    publish ack, counted flight and ack; ``whole`` includes starting and reading.
    """
    crew = f"{workers} worker{'s' if workers != 1 else ''}"
    return [
        f"Published in {published:.1f} s ({_rate(flights, published)}/s), "
        f"processed in {counted:.1f} s ({_rate(flights, counted)}/s) by {crew},",
        f"all acked after {acked:.1f} s; {whole:.1f} s in all.",
    ]


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else "-"
