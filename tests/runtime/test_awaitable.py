"""A handle that opens with ``await`` and with ``async with``."""

from __future__ import annotations

import pytest

from jsclient._runtime.awaitable import Opening, opening
from jsclient._runtime.handle import AsyncClosing
from tests.support.virtual import virtual


class Handle(AsyncClosing):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.closed = False

    async def close(self) -> None:
        self.closed = True


@opening
async def opened(name: str) -> Handle:
    return Handle(name)


@virtual
async def test_await_opens():
    handle = await opened("a")
    assert (handle.name, handle.closed) == ("a", False)


@virtual
async def test_async_with_opens_and_closes():
    async with opened("a") as handle:
        assert not handle.closed
    assert handle.closed


@virtual
async def test_nothing_happens_before():
    calls = []

    async def open_it() -> Handle:
        calls.append(1)
        return Handle()

    closed = Opening(open_it)
    assert calls == []
    with pytest.raises(AttributeError, match=r"not open yet.*'name'"):
        closed.name  # noqa: B018  the access is the point
    await closed
    assert calls == [1]
