"""Counts Python calls: the cost of a path that depends neither on the machine nor on what else runs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Self

import jsclient

__all__ = ["Calls"]

_ROOT = str(Path(jsclient.__file__).parent) + "/"


class Calls:
    """Counts the calls of functions of jsclient within a ``with``. Each step of a coroutine is a call."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT):
            self.by_name[f"{code.co_filename.removeprefix(_ROOT)}: {code.co_qualname}"] += 1

    def each(self, count: int) -> float:
        """The calls for one of ``count`` messages, which the failure of an assertion shows by name."""
        return self.by_name.total() / count

    def __repr__(self) -> str:
        return "\n".join(f"{count:6} {name}" for name, count in self.by_name.most_common(30))
