"""Every file that docs/explanation/architecture.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"


def test_architecture_files_exist() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 100
    assert sorted(name for name in named if not (ROOT / "jsclient" / name).is_file()) == []
