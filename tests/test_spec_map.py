"""Every item of the five systems is shown by a test, and the maps of the documentation have each once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ITEMS = {"J": 114, "A": 77, "P": 67, "S": 54, "T": 43}
IDS = [f"{system}{number}" for system, count in ITEMS.items() for number in range(1, count + 1)]
PIPELINE = [f"L{number}" for number in range(1, 41)]  # marked as tests show them; without a map so far
MAPS = {"J": ROOT / "docs" / "spec-map.md", "APST": ROOT / "docs" / "patterns-map.md"}


def marked(path: Path) -> list[tuple[str, str]]:
    """The ids in ``covers(...)`` of a file, each with where it stands. `pytest.param(marks=…)` counts too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "covers":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: an id is a text"
                found.append((argument.value, f"{path.relative_to(ROOT)}:{node.lineno}"))
    return found


@cache
def shown() -> dict[str, list[str]]:
    """Where each id is shown."""
    places: dict[str, list[str]] = defaultdict(list)
    for folder in ("tests", "integration"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for which, place in marked(path):
                places[which].append(place)
    return places


def test_every_item_has_a_test():
    places = shown()
    assert [which for which in IDS if which not in places] == []


def test_no_mark_names_item_does_not_exist():
    odd = {which: places for which, places in shown().items() if which not in {*IDS, *PIPELINE}}
    assert odd == {}


def test_a_mark_is_an_id():
    for which, places in shown().items():
        assert re.fullmatch(r"[A-Z]+[0-9]+", which), f"{which!r} at {places}"


def test_finder_finds_marks_and_nothing_else():
    assert marked(ROOT / "tests" / "support" / "virtual.py") == []
    found = marked(ROOT / "tests" / "protocol" / "consumers" / "test_subscribe_binding.py")
    assert {"J27", "J36"} <= {which for which, _ in found}, "marks of functions and of parameters"


@pytest.mark.parametrize("systems", MAPS)
def test_spec_map_complete(systems: str) -> None:
    text = MAPS[systems].read_text(encoding="utf-8")
    listed = re.findall(r"^\|\s*\**([A-Z][0-9]+)\**\s*\|", text, re.MULTILINE)
    assert sorted(listed) == sorted(which for which in IDS if which[0] in systems)
    assert "none yet" not in text
