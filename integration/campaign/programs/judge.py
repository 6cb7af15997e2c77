"""The verdict on a program: what is stored, read over a plain socket, against what it has to store."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from integration.campaign.programs.expected import shares_a_message
from integration.campaign.programs.program import Program

Rows = Counter[tuple[str, str]]

DOCUMENTED = {
    "two rows of one message": r"made from (one )?message",
}
"""Errors with which a program may end, with a text that names the reason. What the pages say of them is in
`docs/explanation/spark-semantics.md`."""


@dataclass
class Verdict:
    """What came of a program.

    Attributes:
        kind: ``exact``, ``refused``, ``lost``, ``doubled``, ``failed``.
        about: The error, or the rows.
    """

    kind: str
    about: str = ""
    expected: int = 0
    found: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    struck: bool = False

    @property
    def is_fine(self) -> bool:
        return self.kind in {"exact", "refused"}


def judge(program: Program, expected: Rows, found: Rows, error: str | None) -> Verdict:
    """The verdict on what is stored once the program has ended, with an error or without."""
    missing, more = expected - found, found - expected
    counts = {"expected": expected.total(), "found": found.total()}
    about = f"missing {told(missing)}, too many {told(more)}"
    if error is not None:
        return _of_error(program, error, more, counts, about)
    if not missing and not more:
        return Verdict("exact", **counts)
    if missing:
        return Verdict("lost", about, **counts)
    return Verdict("doubled", about, **counts)


def _of_error(program: Program, error: str, more: Rows, counts: dict[str, int], about: str) -> Verdict:
    reason = reason_of(error)
    if re.search(DOCUMENTED["two rows of one message"], error) and shares_a_message(program) and not more:
        return Verdict("refused", reason, **counts)
    return Verdict("failed", f"{reason}; {about}", **counts)


def reason_of(error: str) -> str:
    """The line of an error that says why, without the frames of Python and Java."""
    lines = [line.strip() for line in error.splitlines()]
    named = [
        line
        for line in lines
        if re.match(r"[\w.]*(Error|Exception)\b.*: ", line) and "Spark" not in line[:40]
    ]
    return (named or lines or [""])[-1 if named else 0][:500]


def told(rows: Rows) -> str:
    """How many rows, with the first of them."""
    some = ", ".join(f"{subject} {data!r} x{count}" for (subject, data), count in sorted(rows.items())[:4])
    return f"{rows.total()} ({some})" if some else "0"
