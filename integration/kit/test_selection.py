"""Which cases of a parametrized test `check` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from integration.kit.selection import spread

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import sys
sys.path.append({root!r})
import pytest
from integration.kit.selection import mark_further_cases

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_further_cases(items)
"""

TESTS = """
import pytest

@pytest.mark.core_cases(2)
@pytest.mark.parametrize("case", range(6))
def test_expensive(case): ...

@pytest.mark.parametrize("case", range(3))
def test_cheap(case): ...
"""


@pytest.mark.parametrize(
    ("count", "most", "indexes"), [(6, 2, [0, 3]), (7, 3, [0, 2, 4]), (5, 1, [0]), (3, 5, [0, 1, 2])]
)
def test_spread(count: int, most: int, indexes: list[int]) -> None:
    assert spread(count, most) == indexes


def test_further_cases_are_left_to_full(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  full\n  core_cases(n)\n", encoding="utf-8")

    def collect(*arguments: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        return {line.partition("::")[2] for line in run.stdout.splitlines() if "::" in line}

    everything = collect()
    assert len(everything) == 9
    assert everything - collect("-m", "not full") == {f"test_expensive[{case}]" for case in (1, 2, 4, 5)}
