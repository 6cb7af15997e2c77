"""Writes the maps of requirements and tests: each statement of maps.toml with the tests that verify it.

    python docs/_tools/maps.py            writes the pages
    python docs/_tools/maps.py --check    exit code 1 if one is out of date

The tests are found by their marks, such as ``covers("J26")``, ``row(64)`` and ``guarantee("each.slow")``.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from marked import ROOT, marked

DATA = Path(__file__).with_name("maps.toml")
NAMES = (
    "spec-map",
    "patterns-map",
    "spark-map",
    "buckets-map",
    "objects-map",
    "interop-map",
    "conformance",
    "guarantee-table",
)
WRITTEN = "<!-- Written by docs/_tools/maps.py. -->"


@cache
def data() -> dict[str, Any]:
    """The statements of all pages."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def path_of(name: str) -> Path:
    """The file of a page."""
    return ROOT / "docs" / f"{name}.md"


def page(name: str) -> str:
    """The text of a page."""
    return _matrix(data()[name]) if "cells" in data()[name] else _table(data()[name])


def _table(data: dict[str, Any]) -> str:
    """A page of tables: below each heading the statements with their tests."""
    tests, columns = marked(data["mark"]), data["columns"]
    title, _, introduction = data["introduction"].strip().partition("\n\n")
    blocks, rows = [title, WRITTEN, introduction], list[str]()
    header = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in [*data["rows"], ""]:
        if isinstance(row, list):
            rows.append(f"| {' | '.join(row)} | {_shown(tests.get(row[0], []), data['tests'])} |")
            continue
        if rows:
            blocks.append("\n".join(header + rows))
            rows = []
        blocks.append(row)
    return "\n\n".join(blocks).rstrip() + "\n"


def _matrix(data: dict[str, Any]) -> str:
    """A page of one table with a column for each reader, and a table of the tests of its cells."""
    tests, readers, cells = marked(data["mark"]), data["readers"], data["cells"]
    lines = [WRITTEN, "", f"| | {' | '.join(f'`{reader}`' for reader in readers)} |"]
    lines.append("|" + "---|" * (len(readers) + 1))
    for column, heading in data["columns"].items():
        row = (cells[f"{reader}.{column}"] for reader in readers)
        lines.append(f"| **{heading}** | {' | '.join(row)} |")
    lines += ["", "The tests for each cell:", "", "| cell | tests |", "|---|---|"]
    for cell in cells:
        reader, column = cell.split(".")
        lines.append(f"| `{reader}`: {data['columns'][column]} | {_shown(tests.get(cell, []), 'names')} |")
    return "\n".join(lines) + "\n"


def _shown(tests: list[str], how: str) -> str:
    """The tests of a statement: their names, or only their files, which change less often."""
    if not tests:
        return "none yet"
    if how == "names":
        return "<br>".join(f"`{test}`" for test in tests)
    return ", ".join(f"`{file}`" for file in sorted({test.partition("::")[0] for test in tests}))


def main() -> int:
    """Write the pages, or compare them with what would be written."""
    pages = {path_of(name): page(name) for name in NAMES}
    if sys.argv[1:] != ["--check"]:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    if stale:
        print(f"{', '.join(stale)}: out of date; run docs/_tools/maps.py")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
