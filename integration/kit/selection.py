"""Which cases of a parametrized test `check` runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

__all__ = ["mark_further_cases", "spread"]


def mark_further_cases(items: Sequence[pytest.Item]) -> None:
    """Mark cases of tests with the marker ``core_cases(n)`` as `full`, except for ``n`` of each test.

    These ``n`` are spread evenly over all cases, because the first parameter changes least often.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("core_cases") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for together in cases.values():
        marker = together[0].get_closest_marker("core_cases")
        assert marker is not None
        core = set(spread(len(together), marker.args[0]))
        for index, item in enumerate(together):
            if index not in core:
                item.add_marker(pytest.mark.full)


def spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` indexes, at equal distances, the first index included."""
    part = min(count, most)
    return [index * count // part for index in range(part)]
