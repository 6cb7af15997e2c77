"""The shape of the house: a concept a file, few files a folder, one meaning a name."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

import pytest

import jsclient

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "jsclient").rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
MAX_LINES, MAX_FUNCTION, MAX_MODULES, MAX_ROOMS, MAX_CHAIN = 500, 60, 22, 15, 18

# A list rather than code: every exception with its description.
LISTS = {"jsclient/errors.py"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", FILES, ids=name)
def test_file_size(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES or name(path) in LISTS, f"{lines} lines: perhaps two concepts"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_function_size(path):
    functions = [n for n in ast.walk(TREES[path]) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = {f.name: without_docstring(f) for f in functions if without_docstring(f) > MAX_FUNCTION}
    allowed = {"_scan"} if path.name == "wire.py" else set()  # the only loop over every byte
    assert set(too_long) <= allowed, too_long


@pytest.mark.parametrize("path", FILES, ids=name)
def test_module_docstring(path):
    assert ast.get_docstring(TREES[path])


@pytest.mark.parametrize(
    "path", [path for kind in ("*.py", "*.pyx") for path in sorted((ROOT / "speedups").rglob(kind))], ids=name
)
def test_speedups_file_size(path):
    text = path.read_text(encoding="utf-8")
    assert '"""' in text
    assert len(text.splitlines()) <= 200, "the compiled part is one loop, with its tests"


def test_folder_size():
    modules = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py":
            modules[name(path.parent)].append(path.name)
    assert {folder: len(names) for folder, names in modules.items() if len(names) > MAX_MODULES} == {}
    top = [entry for entry in (ROOT / "jsclient").iterdir() if not entry.name.startswith("_")]
    rooms = [entry.name for entry in top if entry.is_dir()]
    assert len(rooms) <= MAX_ROOMS
    assert len(top) - len(rooms) <= MAX_ROOMS, "modules and py.typed"


def classes() -> dict[str, list[str]]:
    """The modules that define each class."""
    actual = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                actual[node.name].append(name(path))
    return actual


def test_public_class_names_unique():
    public = {word for word in dir(jsclient) if not word.startswith("_")}
    for module in ("epochs", "errors", "events", "peers", "server", "spark", "testing"):
        public |= set((getattr(jsclient, module, None) and getattr(jsclient, module).__all__) or ())
    twice = {word: paths for word, paths in classes().items() if word in public and len(paths) > 1}
    assert twice == {}


def test_class_names_unique_in_room():
    twice = {}
    for word, paths in classes().items():
        rooms = [tuple(path.split("/")[1:-1]) for path in paths]
        if len(rooms) != len(set(rooms)):
            twice[word] = paths
    assert twice == {}


def test_import_chain():
    """The length of the longest chain of imports that a reader has to follow, without imports within functions."""
    imports = {module(path): eager_imports(path) & MODULES for path in FILES}

    @functools.cache
    def longest(start):
        return (start, *max((longest(one) for one in imports[start] - {start}), key=len, default=()))

    chain = max((longest(start) for start in imports), key=len)
    assert len(chain) <= MAX_CHAIN, " > ".join(chain)


def module(path: Path) -> str:
    return name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(path) for path in FILES}


def eager_imports(path: Path) -> set[str]:
    """The modules that an import of this module imports."""
    package = module(path).split(".")[: None if path.name == "__init__.py" else -1]
    results = set()

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                names = {f"{base}.{alias.name}" for alias in node.names}
                results.update(names & MODULES or {base})
            elif isinstance(node, ast.If):
                # imports for type checkers are not executed
                visit(node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node.body)
            elif isinstance(node, ast.Try):
                visit(node.body)

    visit(TREES[path].body)
    return results
