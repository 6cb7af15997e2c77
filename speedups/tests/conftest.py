"""Tests of the compiled scanner, which must be installed beside jsclient. The session `speedups` installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
if str(_ROOT) not in sys.path:
    # Append it to the end, so that an installed jsclient takes precedence over the checkout.
    sys.path.append(str(_ROOT))

BLOCKS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--streams", type=int, default=100_000, help="streams to compare (default: 100,000)")
    parser.addoption("--seed", type=int, default=0, help="the seed of the first stream (default: 0)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "block" in metafunc.fixturenames:
        first, size = metafunc.config.getoption("seed"), metafunc.config.getoption("streams") // BLOCKS
        metafunc.parametrize("block", [(first + number * size, size) for number in range(BLOCKS)], ids=str)
