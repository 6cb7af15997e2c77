"""The parts of the campaign, and what each run of one is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PARTS = {
    "chaos": 29, "rotation": 10, "healthy": 5, "spark": 10, "programs": 5, "fuzz": 15, "soak": 15, "hostile": 5,
    "strangers": 5, "flood": 1, "reconnects": 1,
}  # fmt: skip
"""Each part with its share of the time, in percent. The last four have cases or counts, and take what they take."""

LONG = {"spark": 5, "programs": 30}
"""Parts that run only if they are asked for, or if there are this many minutes for everything."""


@dataclass(frozen=True)
class Options:
    """What one run of a part is given: its seed, and about how many seconds it may take.

    ``reconnects`` is the number of connections that the part of this name loses.
    """

    seed: int
    seconds: float
    reconnects: int = 500


def share(part: str, chosen: Sequence[str], seconds: float) -> float:
    """The seconds of one part of those chosen."""
    return seconds * PARTS[part] / sum(PARTS[one] for one in chosen)
