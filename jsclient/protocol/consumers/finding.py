"""One thing that a look at a server, a stream or a consumer has shown."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Level"]

Level: TypeAlias = Literal["ok", "note", "warning", "error", "unknown"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        code: A word for programs, such as ``"paused"``.
        level: ``"ok"``, ``"note"`` (nothing to do), ``"warning"``, ``"error"``, or ``"unknown"``: it could not be
            looked at.
        what: What is so, as a sentence.
        evidence: The figures that show it.
        fix: What to do; empty if there is nothing to do.
    """

    code: str
    level: Level
    what: str
    evidence: str = ""
    fix: str = ""
