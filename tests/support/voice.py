"""Counts habits of language in source files: names, prose, and branchy functions without a comment.

The counts find places. Whether a sentence is good is for a reader to say.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Voice", "voice_of"]

# Words of this project that stand for a noun of the field: `found` for a stream or a record, `left` for what remains.
_DIALECT = frozenset({
    "aside", "asked", "begun", "came", "crew", "doomed", "doubt", "doubted", "foreign", "found", "given",
    "gone", "heard", "homeless", "judged", "kept", "lane", "left", "look", "looked", "made", "patience",
    "place", "places", "rest", "room", "seat", "strangers", "told", "trouble", "wanted",
})  # fmt: skip
_LONG, _BRANCHES = 15, 5  # lines and branches of a function that owes its reader a comment
_ALIKE = 6  # definitions of a method's name
_BRANCHING = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.ExceptHandler, ast.IfExp, ast.BoolOp)
_NO_PROSE = re.compile(r"#\s*(type:|noqa|pragma|fmt:|---)")


@dataclass
class Voice:
    """The counts of some files."""

    names: int = 0
    dialect: Counter[str] = field(default_factory=Counter)
    words: int = 0
    semicolons: int = 0
    branchy: int = 0
    silent: list[str] = field(default_factory=list)  # branchy functions without a comment
    classes: Counter[str] = field(default_factory=Counter)  # public ones
    methods: Counter[str] = field(
        default_factory=Counter
    )  # definitions of each name, without special methods

    @property
    def dialect_share(self) -> float:
        """Names with a word of the dialect, per 1,000 names."""
        return 1000 * self.dialect.total() / max(self.names, 1)

    @property
    def semicolon_share(self) -> float:
        """Semicolons per 1,000 words of docstrings and comments."""
        return 1000 * self.semicolons / max(self.words, 1)

    @property
    def silent_share(self) -> float:
        """Branchy functions without a comment, in percent."""
        return 100 * len(self.silent) / max(self.branchy, 1)

    @property
    def alike_share(self) -> float:
        """Methods whose name has six or more definitions, in percent: a reader who jumps by name meets a list."""
        alike = sum(count for count in self.methods.values() if count >= _ALIKE)
        return 100 * alike / max(self.methods.total(), 1)


def voice_of(paths: list[Path]) -> Voice:
    """Count the habits of these files."""
    voice = Voice()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree, comments = ast.parse(text), dict(_comments(text))
        for prose in [*comments.values(), *_docstrings(tree)]:
            voice.words += len(re.findall(r"[A-Za-z']+", prose))
            voice.semicolons += prose.count(";")
        for node in ast.walk(tree):
            if (name := _name_bound_by(node)) is not None:
                voice.names += 1
                voice.dialect.update({word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)} & _DIALECT)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                voice.classes[node.name] += 1
            if isinstance(node, ast.ClassDef):
                functions = [
                    item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                voice.methods.update(item.name for item in functions if not item.name.startswith("__"))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_branchy(node):
                voice.branchy += 1
                # A comment above the first statement belongs to the docstring, not to a branch.
                if not any(node.body[0].lineno <= line <= (node.end_lineno or 0) for line in comments):
                    voice.silent.append(f"{path}:{node.lineno} {node.name}")
    return voice


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not _NO_PROSE.match(token.string):
            yield token.start[0], token.string.lstrip("# ")


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _name_bound_by(node: ast.AST) -> str | None:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Attribute(ctx=ast.Store()):
            return node.attr
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.arg():
            return node.arg
        case _:
            return None


def _is_branchy(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body or (function.end_lineno or 0) - body[0].lineno + 1 < _LONG:
        return False
    return sum(isinstance(node, _BRANCHING) for node in ast.walk(function)) >= _BRANCHES
