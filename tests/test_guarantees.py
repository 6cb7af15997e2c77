"""Every cell of the table of guarantees is shown by a test that exists, and the page is up to date."""

from __future__ import annotations

import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent.parent / "docs" / "_tools"


@cache
def guarantees() -> dict[str, Any]:
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / "guarantees.py"))
    finally:
        sys.path.remove(str(TOOLS))


def test_cells_match_marks():
    shown = guarantees()["marked"]("guarantee")
    assert set(guarantees()["CELLS"]) == set(shown)


def test_the_table_is_whole():
    wanted = {
        f"{reader}.{column}" for reader in guarantees()["READERS"] for column in guarantees()["COLUMNS"]
    }
    assert set(guarantees()["CELLS"]) == wanted


def test_the_page_is_up_to_date():
    fresh = guarantees()["page"]()
    assert guarantees()["PAGE"].read_text(encoding="utf-8") == fresh, "run docs/_tools/guarantees.py"
