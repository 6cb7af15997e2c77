"""The proof at the end of a run: the ledger of counted flights, the claims and the summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .flights import FlightSums
from .reports import Report

__all__ = ["Claim", "Killing", "SequenceCounts", "claims", "pace", "summary"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with its numbers, and whether it holds."""

    holds: bool
    text: str

    def __str__(self) -> str:
        return f"[{'ok' if self.holds else 'FAILED'}] {self.text}"


@dataclass(frozen=True, slots=True)
class Killing:
    """The worker that was killed, and the number of flights counted by then."""

    worker: int
    counted: int


def claims(
    ledger: SequenceCounts,
    expected: FlightSums,
    *,
    stored: int,
    pending: int,
    ack_pending: int,
    killing: Killing | None,
) -> list[Claim]:
    """Compare the ledger with ``expected``, the sums of the file, and with the server's numbers of messages."""
    total = ledger.total
    done = total - ledger.lost
    claims_made = [
        Claim(
            done == total == ledger.count and not ledger.unexpected,
            f"{done:,} of {total:,} flights processed, {ledger.lost:,} lost (distinct stream sequences)"
            + (f", {len(ledger.unexpected):,} that were not published" if ledger.unexpected else ""),
        ),
        Claim(
            stored == total and pending == 0 and ack_pending == 0,
            f"the server agrees: {stored:,} stored, {pending:,} to be delivered, {ack_pending:,} not acked",
        ),
    ]
    redelivered = f"{len(ledger.redelivered):,} redelivered (num_delivered > 1)"
    repeated = f"{len(ledger.repeated):,} processed twice and counted once"
    if killing is None:
        claims_made += [Claim(True, redelivered), Claim(True, repeated)]
    else:
        percent = 100 * killing.counted / total
        returned = ledger.orphaned & ledger.repeated
        claims_made += [
            Claim(
                bool(ledger.redelivered),
                f"{redelivered}: worker {killing.worker} was killed at {percent:.0f} %",
            ),
            Claim(returned == ledger.orphaned, f"{repeated}, {len(returned):,} of them because of the kill"),
        ]
    same = ledger.tally == expected
    verdict = "matches the file" if same else "differs from the file"
    return [*claims_made, Claim(same, f"flights and delays by carrier and route: {verdict}")]


class SequenceCounts:
    """Counts each stream sequence from 1 to ``total`` once, even if it is delivered several times."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.tally: FlightSums = FlightSums()
        self.count: int = 0
        self.redelivered: set[int] = set()  # delivered with a num_delivered above 1
        self.repeated: set[int] = set()  # processed again after they had been counted
        self.orphaned: set[int] = set()  # counted, but their worker was killed before it could ack them
        self.unexpected: set[int] = set()  # outside of 1 to total
        self._counted = bytearray(total + 1)

    def enter(self, report: Report) -> list[int]:
        """Count a report, and return []. If some of its sequences are counted or unexpected, only return these."""
        counted, sequences = self._counted, report.sequences
        self.redelivered.update(report.redelivered)
        strange = [s for s in sequences if not 1 <= s <= self.total]
        if strange:
            self.unexpected.update(strange)
            return strange
        if known := [s for s in sequences if counted[s]]:
            self.repeated.update(known)
            return known
        for sequence in sequences:
            counted[sequence] = 1
        self.count += len(sequences)
        self.tally.merge(report.rows)
        return []

    @property
    def is_complete(self) -> bool:
        """Whether every flight was counted."""
        return self.count == self.total

    @property
    def lost(self) -> int:
        """The number of sequences that were not counted. Each sequence is checked."""
        return self._counted.count(0, 1)


_TOP = 5
_FULL_MINIMUM = 100  # landed flights that a route needs to be ranked, in the whole data set


def summary(
    tally: FlightSums, names: Mapping[str, str], proof: Sequence[Claim], closing: Sequence[str]
) -> list[str]:
    """Return the summary, in lines of at most 79 characters for the names and counts of the data set."""
    minimum = max(1, min(_FULL_MINIMUM, tally.flights // 1000))
    columns = [
        ["Busiest routes", *(f"{route:<8} {s.flights:>8,}" for route, s in tally.busiest_routes(_TOP))],
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
    """Describe the speed of the run, in seconds from the first publish to the last publish ack, flight and ack."""
    workers_text = f"{workers} worker{'s' if workers != 1 else ''}"
    return [
        f"Published in {published:.1f} s ({_rate(flights, published)}/s), "
        f"processed in {counted:.1f} s ({_rate(flights, counted)}/s) by {workers_text},",
        f"all acked after {acked:.1f} s; {whole:.1f} s in all.",
    ]


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else "-"
