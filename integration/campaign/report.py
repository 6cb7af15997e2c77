"""What a part of the campaign found: figures, predicates, and one report of them as text and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Predicate:
    """A statement about a run that must be true.

    Attributes:
        name: The statement.
        holds: Whether the statement is true.
        found: What was measured.
        known: The issue that lists it as open. It is expected to fail. If the statement is true, the mark must be
            removed.
    """

    name: str
    holds: bool
    found: str = ""
    known: str = ""

    @property
    def verdict(self) -> str:
        if self.known:
            return "no longer fails" if self.holds else "expected failure"
        return "holds" if self.holds else "FAILS"

    @property
    def is_fine(self) -> bool:
        return self.holds != bool(self.known)


@dataclass
class Outcome:
    """One kind of publisher or reader in one run: its parameters, and the statements about it."""

    part: str
    kind: str
    seed: int
    ran: dict[str, Any] = field(default_factory=dict)
    predicates: list[Predicate] = field(default_factory=list)

    def check(self, name: str, holds: object, found: object = "", *, known: str = "") -> None:
        """Add a predicate."""
        self.predicates.append(Predicate(name, bool(holds), shortened(found), known))

    def none_of(self, name: str, found: Iterable[object], *, known: str = "") -> None:
        """Add a predicate that is true if the list is empty. What is ``known`` may not be found in a short run."""
        some = list(found)
        text = f"{len(some)}: {some[:5]}" if some else "0"
        self.check(name, not some, text, known=known if some else "")

    @property
    def is_fine(self) -> bool:
        return all(predicate.is_fine for predicate in self.predicates)


def shortened(found: object, limit: int = 600) -> str:
    text = str(found)
    return text if len(text) <= limit else f"{text[:limit]}…"


@dataclass
class Report:
    """All outcomes of a campaign."""

    options: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[Outcome, Predicate]]:
        return [(one, p) for one in self.outcomes for p in one.predicates if not p.is_fine]

    @property
    def known(self) -> list[tuple[Outcome, Predicate]]:
        """The expected failures."""
        return [(one, p) for one in self.outcomes for p in one.predicates if p.known and not p.holds]

    def text(self) -> str:
        lines = ["jsclient campaign", *self.notes, f"options: {json.dumps(self.options)}", ""]
        for outcome in self.outcomes:
            lines += told(outcome)
        count = sum(len(one.predicates) for one in self.outcomes)
        lines.append(
            f"{count} predicates: {count - len(self.failures) - len(self.known)} hold, "
            f"{len(self.known)} expected failures, {len(self.failures)} failures"
        )
        lines += [
            f"  {one.part} / {one.kind} (seed {one.seed}): {p.name}: {p.found}" for one, p in self.failures
        ]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        return json.dumps(
            {
                "options": self.options,
                "notes": self.notes,
                "passed": not self.failures,
                "outcomes": [asdict(one) for one in self.outcomes],
            },
            indent=1,
            default=str,
        )

    def write(self, file: Path) -> None:
        """Write the text to ``file``, and the JSON beside it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text(), encoding="utf-8")
        file.with_suffix(".json").write_text(self.json(), encoding="utf-8")


def told(outcome: Outcome) -> list[str]:
    """The lines of one outcome."""
    figures = ", ".join(f"{name} {figure}" for name, figure in outcome.ran.items())
    lines = [f"{outcome.part} / {outcome.kind} (seed {outcome.seed}): {shortened(figures, 1000)}"]
    for one in outcome.predicates:
        mark = f" [{one.known}]" if one.known else ""
        lines.append(f"  {one.verdict:16} {one.name}{mark}{': ' if one.found else ''}{one.found}")
    return [*lines, ""]


def machine() -> str:
    """The Python and the system of this run."""
    return f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
