"""Every type in a public signature can be imported by its name."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jsclient
from jsclient._exports import SOURCES
from tests.test_exports import REFERENCE, exported, public_names

NAMES = {path.rpartition(".")[2] for path in public_names()}

PRIVATE = {
    "Backend": "`Engine` takes a `jsclient.JetStream` or a `jsclient.peers.LocalHub`",
    "Connection": "`JetStream` takes a client of nats-py, or the connection that `connect` has opened",
    "Frame": "what the wire has, for readers of whole batches",
    "Home": "of a method that the reference hides",
    "HoldingSink": "of methods that the reference hides",
    "Inbox": "of methods that the reference hides",
    "MissingRule": "the rule of its own that a log inherits",
    "NoOptions": "has no keys, so that an unknown argument is an error that names the likely one",
    "Reader": "the core without input and output, which may change",
    "StreamStallWatch": "what a log of a stream has, and no other log",
    "_Inbox": "of a method that only the engine calls",
}
"""Types that a program does not need to name, and why."""

CONSTRUCTED = set(re.findall(r"^\.\. autoclass:: [\w.]+?(\w+)$", REFERENCE, re.MULTILINE))
"""Classes that the reference documents with their arguments. The library makes all others."""


@functools.cache
def imported_for_checkers(module: str) -> dict[str, str]:
    """The modules from which a module imports names, blocks for type checkers included."""
    path = sys.modules[module].__file__
    assert path is not None
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_ours(module: str, name: str) -> bool:
    """Whether a name in a module is a class or an alias of jsclient. Type variables do not count."""
    value = getattr(sys.modules[module], name, None)
    if isinstance(value, typing.TypeVar | typing.ParamSpec | types.ModuleType):
        return False
    if isinstance(value, type) and not isinstance(value, types.GenericAlias):
        return SOURCES.get(value, value.__module__).startswith("jsclient")
    source = imported_for_checkers(module).get(name)
    if source is not None:
        return source.startswith((".", "jsclient"))
    return value is not None  # an alias that the module defines


def annotations(kind: Any) -> Iterator[tuple[str, str, str]]:
    """The module, the name and each annotation of the public methods and properties of a class, or of a function."""
    members = vars(kind).items() if isinstance(kind, type) else [(kind.__name__, kind)]
    for name, member in members:
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if not inspect.isfunction(function) or (name.startswith("_") and name != "__init__"):
            continue
        if name == "__init__" and kind.__name__ not in CONSTRUCTED:
            continue
        for text in function.__annotations__.values():
            if isinstance(text, str):
                yield function.__module__, f"{kind.__name__}.{name}", text


def types_in(annotation: str) -> Iterator[str]:
    """The names of an annotation. The parts of a ``Literal`` are values."""
    todo: list[ast.AST] = [ast.parse(annotation, mode="eval").body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            todo.append(ast.parse(node.value, mode="eval").body)
        elif not (isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal"):
            todo.extend(ast.iter_child_nodes(node))


def private_types() -> dict[str, set[str]]:
    """Names of types that no public module has, with the signatures that mention them."""
    private: dict[str, set[str]] = {}
    for value in exported().values():
        if not (isinstance(value, type) or inspect.isfunction(value)):
            continue
        for module, where, annotation in annotations(value):
            sys.modules.get(module) or importlib.import_module(module)
            for name in types_in(annotation):
                if name not in NAMES and not hasattr(__builtins__, name) and is_ours(module, name):
                    private.setdefault(name, set()).add(where)
    return private


def test_types_of_signatures_are_public() -> None:
    assert private_types().keys() == PRIVATE.keys()


@pytest.mark.parametrize("name", jsclient.typing.__all__)
def test_types_have_one_name(name: str) -> None:
    assert getattr(jsclient.typing, name) is not None
    assert name not in jsclient.__all__
