"""Comparison of the pipeline's results with the file, row by row. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..proof import Claim
from .rows import COLUMNS, Rebooking, Statistic

__all__ = ["check_rebooked", "check_statistics"]


def check_statistics(
    where: str, found: Iterable[Statistic], expected: Mapping[tuple[str, str], Statistic]
) -> Claim:
    """Compare rows with the expected ones: each must exist once, and be equal in every column."""
    rows: dict[tuple[str, str], list[Statistic]] = {}
    for row in found:
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
    found: Iterable[Rebooking],
    expected: Mapping[tuple[str, str, int, str, str], int],
    *,
    pending: int,
    unacked: int,
) -> Claim:
    """Compare the rebooked flights with the cancelled ones.

    Args:
        found: The rebooked flights.
        expected: The cancelled flights of the file.
        pending, unacked: The consumer's messages that are not delivered yet, and those without an ack.
    """
    rebooked = list(found)
    flights = Counter(tuple(row[1:]) for row in rebooked)
    sequences = Counter(row.sequence for row in rebooked)
    wanted: Counter[Any] = Counter(dict(expected))
    wrong = {
        "missing": list((wanted - flights).elements()),
        "not expected": list((flights - wanted).elements()),
        "more than once": [sequence for sequence, count in sequences.items() if count > 1],
    }
    acks = f"{pending:,} to be delivered, {unacked:,} not acked"
    if not any(wrong.values()):
        text = f"work list: {len(rebooked):,} cancelled flights rebooked once, those of the file; {acks}"
        return Claim(not pending and not unacked, text)
    return Claim(
        False, f"work list: {len(rebooked):,} rebooked of {wanted.total():,}; {acks}: {_differences(wrong)}"
    )


def _differences(wrong: Mapping[str, list[Any]]) -> str:
    """The number of differences of each kind, with the first as an example."""
    parts = [
        f"{len(keys):,} {kind}, as {' '.join(map(str, keys[0])) if isinstance(keys[0], tuple) else keys[0]}"
        for kind, keys in wrong.items()
        if keys
    ]
    return "; ".join(parts)
