"""Finds the tests that carry a mark such as ``covers("J26")`` or ``row(64)``, by reading them."""

import ast
import re
from collections import defaultdict
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
    """The tests of a file, each with its marks and their ids. Each file is read once.

    A test carries the marks of its decorators, of its class and of the module, and those in the lists of parameters
    that its decorators name. A class without tests of its own (a state machine, a suite it inherits) is a test itself.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = {name: node.value for node in tree.body for name in _names(node)}
    return _in_body(tree.body, _ids(values["pytestmark"], values) if "pytestmark" in values else [], values)


def _in_body(
    body: list[ast.stmt], common: list[tuple[str, str]], values: dict[str, ast.AST]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """The tests in the body of a module or a class."""
    found = []
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        marks = [*common, *(mark for one in node.decorator_list for mark in _ids(one, values))]
        if isinstance(node, ast.ClassDef):
            tests = _in_body(node.body, marks, values)
            found += tests or ([(node.name, marks)] if node.name.startswith("Test") else [])
        elif node.name.startswith("test"):
            rows = [("row", one) for one in _of_docstring(ast.get_docstring(node))]
            found.append((node.name, [*marks, *rows]))
    return found


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement gives a value, with or without a type."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _ids(node: ast.AST, values: dict[str, ast.AST]) -> list[tuple[str, str]]:
    """The marks in an expression and their ids, those of a parametrized case too, also where the list has a name."""
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            found += [(part.func.attr, str(one.value)) for one in part.args if isinstance(one, ast.Constant)]
        elif isinstance(part, ast.Name) and part.id in values:
            rest = {name: value for name, value in values.items() if name != part.id}
            found += _ids(values[part.id], rest)
    return found


def _of_docstring(text: str | None) -> list[str]:
    found = _ROWS.match(text or "")
    return [] if found is None else re.findall(r"\d+", found[1])
