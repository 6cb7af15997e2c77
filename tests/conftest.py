"""No server, no sleeping: async tests run in virtual time, on a fake connection (see tests/support)."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import hypothesis
import pytest

_HERE = Path(__file__).resolve().parent
if str(_HERE.parent) not in sys.path:
    # At the end: an installed jsclient must win over the checkout.
    sys.path.append(str(_HERE.parent))

from tests.support.examples import examples  # noqa: E402

hypothesis.settings.register_profile(
    "tests", max_examples=examples(120), deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            raise pytest.UsageError(f"{item.nodeid} would run in real time: mark it with @virtual")
