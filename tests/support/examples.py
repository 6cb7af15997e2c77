"""How many examples hypothesis tries. A part of them is enough for each change: `full` tries all."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "examples"]

VARIABLE = "JSCLIENT_TEST_EXAMPLES"
"""The environment variable that is "all" in the sessions of `full`."""

_PART = 4


def examples(most: int) -> int:
    """All of them, or a quarter."""
    return most if os.environ.get(VARIABLE) == "all" else max(1, most // _PART)
