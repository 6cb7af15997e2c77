"""Which streams match a pattern of names."""

from __future__ import annotations

import pytest

from jsclient.tables.lookup import matches


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
