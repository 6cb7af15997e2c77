"""Which streams match a pattern of names, and what is logged of losses."""

from __future__ import annotations

import sys

import pytest

from jsclient.errors import PositionInvalidError
from jsclient.tables.lookup import LossPolicy, matches


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("ORDERS", "ORDERS", True),
        ("ORDERS_EU", "ORDERS", False),
        ("ORDERS_EU", "ORDERS_*", True),
        ("ORDERS_", "ORDERS_*", True),
        ("OLD_ORDERS_EU", "ORDERS_*", False),
        ("OLD_ORDERS_EU", "*_ORDERS_*", True),
        ("orders_eu", "ORDERS_*", False),
        ("A", "*", True),
        ("A[1]", "A[1]", True),
        ("A1", "A[1]", False),
        ("AB", "A?", False),
        ("A?", "A?", True),
        ("a" * 255, "*a" * 60 + "b", False),  # at once
    ],
)
def test_names_that_match(name, pattern, fits):
    assert matches(name, pattern) is fits


@pytest.mark.covers("L36")
def test_losses_are_logged_once_in_bounded_memory(caplog):
    policy = LossPolicy(fail=False)
    for number in range(2000):
        for _ in range(3):
            assert not policy.accept(PositionInvalidError(f"batch {number} is lost"))
    assert len(caplog.records) == 2000
    assert sum(map(sys.getsizeof, policy._logged)) < 20_000
