"""Finds the tests that carry a mark such as ``covers("J26")`` or ``row(64)``, by reading them."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_ROWS = re.compile(r"Rows? (\d+(?:(?:, | and )\d+)*)")


def marked(mark: str) -> dict[str, list[str]]:
    """The tests of each id, as ``file::test``, in order of the files.

    A docstring that begins "Row 64:" or "Rows 64, 65 and 66:" is a mark ``row`` too.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for part in ("tests", "integration"):
        for path in sorted((ROOT / part).rglob("test_*.py")):
            for test, marks in marks_in(path):
                for identifier in dict.fromkeys(one for name, one in marks if name == mark):
                    found[identifier].append(f"{path.relative_to(ROOT).as_posix()}::{test}")
    return found


@cache
def marks_in(path: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """The tests of a file, each with its marks and their ids. Each file is read once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole = [node for node in tree.body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]]
    common = [mark for node in whole for mark in _ids(node.value)]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            marks = [mark for one in node.decorator_list for mark in _ids(one)]
            rows = [("row", one) for one in _of_docstring(ast.get_docstring(node))]
            found.append((node.name, [*common, *marks, *rows]))
    return found


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _ids(node: ast.AST) -> Iterable[tuple[str, str]]:
    """The marks in an expression and their ids, those of a parametrized case too."""
    return [
        (call.func.attr, str(argument.value))
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]


def _of_docstring(text: str | None) -> list[str]:
    found = _ROWS.match(text or "")
    return [] if found is None else re.findall(r"\d+", found[1])


def write(page: Path, text: str) -> None:
    """Write a page; with ``--check`` on the command line, only say by the exit code whether it is up to date."""
    if sys.argv[1:] != ["--check"]:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        sys.exit(f"{page.name} is out of date: run {sys.argv[0]}")
