"""The language of the code, in counts that may only shrink: lower an allowance whenever a count is below it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.examples import examples
from tests.support.voice import Voice, voice_of

ROOT = Path(__file__).resolve().parents[1]

ALLOWED = {  # names in dialect per 1,000, semicolons per 1,000 words, branchy functions without a comment in percent
    "jsclient": (6.7, 0.7, 9.3),
    "tests": (2.0, 0.4, 6.0),
    "integration": (10.9, 0.3, 15.4),
    "benchmarks": (5.2, 0.0, 0.0),
}
ROOMS = [*ALLOWED] if examples(4) == 4 else ["jsclient", "tests"]
"""`full` counts all of them. Integration is large."""

METHODS_ALIKE = 21.5  # percent of the methods of jsclient whose name has six or more definitions
CLASSES_TWICE = 0  # public classes of jsclient that share a name with another class


@pytest.fixture(scope="module")
def voices() -> dict[str, Voice]:
    return {room: voice_of(sorted((ROOT / room).rglob("*.py"))) for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_habits_only_shrink(voices: dict[str, Voice], room: str) -> None:
    voice = voices[room]
    names, semicolons, silent = ALLOWED[room]
    assert voice.dialect_share <= names, voice.dialect.most_common(10)
    assert voice.semicolon_share <= semicolons
    assert voice.silent_share <= silent, voice.silent[:20]


def test_methods_have_names_of_their_own(voices: dict[str, Voice]) -> None:
    assert voices["jsclient"].alike_share <= METHODS_ALIKE, voices["jsclient"].methods.most_common(20)


def test_class_names_are_unique(voices: dict[str, Voice]) -> None:
    twice = [name for name, count in voices["jsclient"].classes.items() if count > 1]
    assert len(twice) <= CLASSES_TWICE, twice


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    of = function.args
    return {
        arg.arg for arg in (*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg)))
    }


def test_docstrings_name_parameters_that_exist():
    """A function that takes ``**more`` may describe what that has."""
    stale = []
    for path in sorted((ROOT / "jsclient").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.args.kwarg is not None:
                continue
            described = re.search(r"^Args:\n((?: +.*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            for names in re.findall(
                r"^    (\w+(?:, \w+)*): ", described[1] if described else "", re.MULTILINE
            ):
                stale += [
                    f"{path.name}:{node.lineno} {name}" for name in {*names.split(", ")} - parameters(node)
                ]
    assert stale == []
