"""The module that a public class or function reports is the one from which programs import it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["SOURCES", "set_module"]

SOURCES: dict[object, str] = {}
"""The module in which each public class and function is defined, for documentation tools."""


def set_module(module: str, exported: Iterable[object]) -> None:
    """Set ``__module__`` of public classes and functions.

    Annotations of classes are resolved first: msgspec and `typing.get_type_hints` look names up in the module that a
    class reports.
    """
    for value in exported:
        SOURCES.setdefault(value, value.__module__)
        if isinstance(value, type) and "__annotations__" in vars(value):
            with suppress(NameError):  # an annotation names a class that only type checkers import
                value.__annotations__ = inspect.get_annotations(value, eval_str=True)
        value.__module__ = module
