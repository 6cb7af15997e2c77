"""A result of a check of a server, a stream or a consumer."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Level"]

Level: TypeAlias = Literal["ok", "note", "warning", "error", "unknown"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a check has found out, such as a problem and its solution. Returned by `jsclient.doctor.examine`.

    Attributes:
        code: A fixed word that programs can test, such as ``"paused"``.
        level: ``"ok"``, ``"note"`` (no action is needed), ``"warning"``, ``"error"``, or ``"unknown"`` if the check
            failed.
        what: The result, as a sentence.
        evidence: The figures on which the result is based.
        fix: What to do, empty if no action is needed.
    """

    code: str
    level: Level
    what: str
    evidence: str = ""
    fix: str = ""
