"""From when on a stream is near its limit of consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jsclient.protocol.models.consumer_limit import consumer_limit, near_consumer_limit


def info(count: int, limit: int | None) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(max_consumers=limit), state=SimpleNamespace(consumer_count=count)
    )


@pytest.mark.parametrize(
    ("count", "limit", "version", "expected"),
    [
        (0, 10, "2.10.0", (10, 0)),
        (8, 10, "2.10.0", (10, 0)),
        (9, 10, "2.10.0", (10, 10)),
        (10, 10, "2.15.0", (10, 10)),
        (899, -1, "2.15.0", (1000, 0)),
        (900, -1, "2.15.0", (1000, 1000)),
        (1001, None, "2.15.0", (0, 0)),
        (950, 0, "2.12.0", (0, 0)),
    ],
)
def test_limit(count: int, limit: int | None, version: str, expected: tuple[int, int]) -> None:
    stream = info(count, limit)
    assert (consumer_limit(stream, version), near_consumer_limit(stream, version)) == expected
