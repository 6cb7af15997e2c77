"""Every item of the seven systems is shown by a test, and the maps of the documentation have each once."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "docs" / "_tools"
ITEMS = {"J": 114, "A": 77, "P": 67, "S": 54, "T": 43, "L": 40, "K": 73, "O": 46, "I": 20}
IDS = [f"{system}{number}" for system, count in ITEMS.items() for number in range(1, count + 1)]
MAPS = {
    "J": "spec-map",
    "APST": "patterns-map",
    "L": "spark-map",
    "K": "buckets-map",
    "O": "objects-map",
    "I": "interop-map",
}
# A test that uses one of these, or a fixture that does, runs in a session of Spark.
SESSIONS = {"spark", "connect_spark", "standalone", "jobs", "java"}


@cache
def tool(name: str) -> dict[str, Any]:
    """The names that a tool of the documentation defines."""
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / f"{name}.py"))
    finally:
        sys.path.remove(str(TOOLS))


@cache
def shown() -> dict[str, list[str]]:
    """The tests of each id, as ``file::test``, by the finder that writes the pages."""
    return tool("maps")["marked"]("covers")


def written(path: Path) -> set[str]:
    """The ids in ``covers(...)`` of a file, wherever they stand."""
    calls = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.covers"]
    return {ast.literal_eval(argument) for mark in marks for argument in mark.args}


def fixtures_of(path: Path) -> dict[str, set[str]]:
    """The arguments of each function of a file: of a test or of a fixture those are fixtures."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {one.name: {argument.arg for argument in one.args.args} for one in functions}


def has_session(position: str) -> bool:
    """Whether a test needs a session of Spark, by its fixtures and the fixtures that they use."""
    path, _, test = position.partition("::")
    known: dict[str, set[str]] = {}
    for file in (*(folder / "conftest.py" for folder in reversed((ROOT / path).parents)), ROOT / path):
        known |= fixtures_of(file) if file.exists() else {}
    needed, remaining = {test}, [test]
    while remaining:
        more = known.get(remaining.pop(), set()) - needed
        needed |= more
        remaining += more
    return bool(needed & SESSIONS)


def test_every_item_has_a_test():
    positions = shown()
    assert [which for which in IDS if which not in positions] == []


def test_every_item_of_the_pipeline_has_a_test_with_spark():
    of_pipeline = [which for which in IDS if which[0] == "L"]
    assert [which for which in of_pipeline if not any(map(has_session, shown().get(which, [])))] == []


def test_no_mark_names_item_does_not_exist():
    odd = {which: positions for which, positions in shown().items() if which not in IDS}
    assert odd == {}


def test_a_mark_is_an_id():
    for which, positions in shown().items():
        assert re.fullmatch(r"[A-Z]+[0-9]+", which), f"{which!r} at {positions}"


def test_finder_finds_every_mark():
    """A mark that the finder passes over makes an item look untested: in a list of parameters, on a class."""
    of_file: dict[str, set[str]] = defaultdict(set)
    for which, positions in shown().items():
        for position in positions:
            of_file[position.partition("::")[0]].add(which)
    files = [path for folder in ("tests", "integration") for path in sorted((ROOT / folder).rglob("*.py"))]
    passed_over = {path.name: written(path) - of_file[path.relative_to(ROOT).as_posix()] for path in files}
    assert {name: ids for name, ids in passed_over.items() if ids} == {}


def test_finder_of_marks(tmp_path: Path) -> None:
    marks_in = tool("marked")["marks_in"]
    path = tmp_path / "test_some.py"
    path.write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.covers('J1')\n"
        "MORE = [pytest.param(1, marks=pytest.mark.covers('J2'))]\n"
        "CASES: list = [*MORE, pytest.param(2, marks=[pytest.mark.full, pytest.mark.covers('J3', 'J4')])]\n"
        "@pytest.mark.parametrize('x', CASES)\n"
        "def test_cases(x): ...\n"
        "@pytest.mark.covers('J5')\n"
        "class TestSuite(Suite): ...\n"
        "@pytest.mark.covers('J6')\n"
        "class TestOwn:\n"
        "    @pytest.mark.covers('J7')\n"
        "    async def test_own(self): ...\n"
        "def helper(): CASES\n"
    )
    covers = {test: {which for mark, which in marks if mark == "covers"} for test, marks in marks_in(path)}
    assert covers == {
        "test_cases": {"J1", "J2", "J3", "J4"},
        "TestSuite": {"J1", "J5"},
        "test_own": {"J1", "J6", "J7"},
    }


@pytest.mark.parametrize("systems", MAPS)
def test_spec_map_complete(systems: str) -> None:
    text = tool("maps")["path_of"](MAPS[systems]).read_text(encoding="utf-8")
    listed = re.findall(r"^\|\s*\**([A-Z][0-9]+)\**\s*\|", text, re.MULTILINE)
    assert sorted(listed) == sorted(which for which in IDS if which[0] in systems)
    assert "none yet" not in text


@pytest.mark.parametrize("map_of", MAPS.values())
def test_map_says_what_its_tool_says(map_of: str) -> None:
    """The words are defined in the tool, and each test that a row names carries its mark. A new test may be missing."""
    again = "python docs/_tools/maps.py writes the page again"
    lines = tool("maps")["path_of"](map_of).read_text(encoding="utf-8").splitlines()
    assert list(map(words, lines)) == list(map(words, tool("maps")["page"](map_of).splitlines())), again
    for line in lines:
        if row := re.match(r"\| ([A-Z]\d+) \|", line):
            claimed = set(re.findall(r"`([^`]+\.py)`", line.rpartition(" | ")[2]))
            assert claimed <= {position.partition("::")[0] for position in shown().get(row[1], [])}, (
                f"{row[1]}: {again}"
            )


def words(line: str) -> str:
    """A row without its tests."""
    return line.rpartition(" | ")[0] if re.match(r"\| [A-Z]\d+ \|", line) else line
