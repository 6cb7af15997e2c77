"""Every cell of the table of guarantees is shown by a test that exists, and the page is up to date."""

from __future__ import annotations

import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent.parent / "docs" / "_tools"


@cache
def maps() -> dict[str, Any]:
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / "maps.py"))
    finally:
        sys.path.remove(str(TOOLS))


def table() -> dict[str, Any]:
    return maps()["data"]()["guarantee-table"]


def test_cells_match_marks():
    assert set(table()["cells"]) == set(maps()["marked"]("guarantee"))


def test_the_table_is_whole():
    expected = {f"{reader}.{column}" for reader in table()["readers"] for column in table()["columns"]}
    assert set(table()["cells"]) == expected


def test_the_page_is_up_to_date():
    written = maps()["path_of"]("guarantee-table").read_text(encoding="utf-8")
    assert written == maps()["page"]("guarantee-table"), "run docs/_tools/maps.py"
