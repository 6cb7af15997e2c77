"""The claims at the end of a run, and whether they hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Ledger
from .tally import Tally

__all__ = ["Claim", "Killing", "claims"]


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
    ledger: Ledger, expected: Tally, *, stored: int, pending: int, ack_pending: int, killing: Killing | None
) -> list[Claim]:
    """Compare the ledger with the file and with the server's state.

    Args:
        ledger: The reports of the workers.
        expected: The sums over the flights of the file, computed without a server.
        stored: The number of messages in the stream.
        pending, ack_pending: The consumer's messages that are not delivered yet, and those without an ack.
        killing: The killed worker; None without a kill.
    """
    total = ledger.total
    done = total - ledger.lost
    found = [
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
        found += [Claim(True, redelivered), Claim(True, repeated)]
    else:
        percent = 100 * killing.counted / total
        returned = ledger.orphaned & ledger.repeated
        found += [
            Claim(
                bool(ledger.redelivered),
                f"{redelivered}: worker {killing.worker} was killed at {percent:.0f} %",
            ),
            Claim(returned == ledger.orphaned, f"{repeated}, {len(returned):,} of them because of the kill"),
        ]
    same = ledger.tally == expected
    found.append(Claim(same, f"flights and delays by carrier and route: {_matches(same=same)}"))
    return found


def _matches(*, same: bool) -> str:
    return "matches the file" if same else "differs from the file"
