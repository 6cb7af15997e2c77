"""Every row of docs/conformance.md is shown by tests that exist, and no mark names a row that does not."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"
ROWS = range(34, 141)


def listed() -> dict[int, list[str]]:
    """The rows of the page, each with its tests as ``file::test``."""
    results: dict[int, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| (\d+) \| .+ \| (.+) \|$", line)
        if row:
            assert int(row[1]) not in results, f"row {row[1]} stands twice"
            results[int(row[1])] = re.findall(r"`([^`]+)`", row[2])
    return results


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def shown() -> dict[str, list[str]]:
    """The tests of each row, by their marks."""
    sys.path.insert(0, str(ROOT / "docs" / "_tools"))
    try:
        from marked import marked
    finally:
        sys.path.remove(str(ROOT / "docs" / "_tools"))
    return marked("row")


def test_page_every_row_once_and_each_test():
    rows = listed()
    assert list(rows) == list(ROWS)
    assert [number for number, tests in rows.items() if not tests] == []


def test_every_test_page_names_exists():
    for number, tests in listed().items():
        for test in tests:
            file, _, name = test.partition("::")
            path = ROOT / file
            assert path.exists(), (
                f"row {number}: {file} is gone; python docs/_tools/maps.py writes the page anew"
            )
            assert name in functions(path), f"row {number}: {test} is gone; python docs/_tools/maps.py"


def test_rows_match_marks():
    actual = {int(row): tests for row, tests in shown().items()}
    assert [row for row in ROWS if row not in actual] == []
    assert {row: tests for row, tests in actual.items() if row not in ROWS} == {}


def test_finder_finds_marks_only(tmp_path, monkeypatch):
    assert "tests/protocol/consumers/test_status.py::test_the_catalogue" in shown()["49"]
    marked = sys.modules["marked"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.row(1, 2)\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.row(3))])\n"
        "def test_marked(x): ...\n"
        "def test_reported():\n"
        "    '''Rows 4, 5 and 6: what it shows; row 7 is another.'''\n"
        "def test_other():\n"
        "    '''Shows row 8.'''\n"
        "@pytest.mark.covers('J9')\n"
        "def test_covering(): ...\n"
    )
    monkeypatch.setattr(marked, "ROOT", tmp_path)
    assert sorted(marked.marked("row")) == ["1", "2", "3", "4", "5", "6"]
    assert marked.marked("row")["5"] == ["tests/test_some.py::test_reported"]
    assert marked.marked("covers") == {"J9": ["tests/test_some.py::test_covering"]}
