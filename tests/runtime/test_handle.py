"""``async with`` and ``async for`` of handles."""

from __future__ import annotations

import pytest

from jsclient._runtime.handle import AsyncClosing, UntilClosed
from jsclient.errors import ClosedError, ConfigError
from tests.support.virtual import virtual


class Handle(AsyncClosing, UntilClosed[int]):
    def __init__(self, *items: int | Exception) -> None:
        self.items = list(items)
        self.closed = False

    async def next(self) -> int:
        item = self.items.pop(0) if self.items else ClosedError("closed")
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        self.closed = True


@virtual
async def test_async_with_closes():
    with pytest.raises(ValueError, match="inside"):
        async with Handle() as handle:
            raise ValueError("inside")
    assert handle.closed


@virtual
async def test_async_for_ends_when_closed():
    assert [item async for item in Handle(1, 2)] == [1, 2]


@virtual
async def test_async_for_raises_other_errors():
    with pytest.raises(ConfigError):
        [item async for item in Handle(1, ConfigError("x"))]
