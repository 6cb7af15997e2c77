"""docs/spec-map.md says which module and which tests belong to each statement of ADR-15, and is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def spec_map() -> Any:
    spec = importlib.util.spec_from_file_location("spec_map", ROOT / "docs" / "spec_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(spec_map: Any) -> list[tuple[int, str, str]]:
    return [item for item in spec_map.ITEMS if len(item) == 3]


def test_every_statement_is_there_once(rows: list[tuple[int, str, str]]) -> None:
    assert [number for number, _, _ in rows] == list(range(1, 115))


def test_every_module_exists(rows: list[tuple[int, str, str]]) -> None:
    for number, _, module in rows:
        path = ROOT / "jsclient" / module.replace(".", "/")
        assert path.with_suffix(".py").exists(), f"J{number}: {module}"


def test_every_statement_has_a_test(spec_map: Any, rows: list[tuple[int, str, str]]) -> None:
    covered = spec_map.covered()
    assert [number for number, _, _ in rows if not covered.get(f"J{number}")] == []


def test_the_page_is_up_to_date(spec_map: Any) -> None:
    assert spec_map.PAGE.read_text() == spec_map.page(), "run: python docs/spec_map.py"


def test_a_mark_is_found_wherever_it_may_stand(
    spec_map: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        'pytestmark = pytest.mark.covers("J1")\n\n'
        '@pytest.mark.covers("J2", "J3")\ndef test_a(): ...\n\n'
        'class TestB:\n    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers("J4"))])\n'
        "    async def test_b(self, x): ...\n"
    )
    monkeypatch.setattr(spec_map, "ROOT", tmp_path)
    a, b = "tests/test_it.py::test_a", "tests/test_it.py::test_b"
    assert spec_map.covered() == {"J1": [a, b], "J2": [a], "J3": [a], "J4": [b]}
