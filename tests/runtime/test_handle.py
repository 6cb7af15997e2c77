"""Handles: ``async with``, ``async for``, and opening by ``await`` or ``async with``."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.handle import Handle, Opening, ReadHandle, opening
from jsclient.errors import ClosedError, ConfigError
from tests.support.virtual import virtual


class Numbers(ReadHandle[int]):
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
        async with Numbers() as handle:
            raise ValueError("inside")
    assert handle.closed


@virtual
async def test_async_for_ends_when_closed():
    assert [item async for item in Numbers(1, 2)] == [1, 2]


@virtual
async def test_async_for_raises_other_errors():
    with pytest.raises(ConfigError):
        [item async for item in Numbers(1, ConfigError("x"))]


class Thing(Handle):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.closed = False

    async def close(self) -> None:
        self.closed = True


@opening
async def opened(name: str) -> Thing:
    return Thing(name)


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

    async def open_it() -> Thing:
        calls.append(1)
        return Thing()

    closed = Opening(open_it, "open_it()")
    assert calls == []
    with pytest.raises(AttributeError, match=r"not awaited.*'name'"):
        closed.name  # noqa: B018  the access is the point
    await closed
    assert calls == [1]


@virtual
async def test_task_runs_it():
    assert (await asyncio.create_task(opened("a"))).name == "a"


@virtual
async def test_never_awaited_says_so():
    with pytest.warns(RuntimeWarning, match=r"opened\(\) was never awaited: 'async with"):
        opened("a")


def test_wrong_argument_names_right_one():
    with pytest.raises(TypeError, match=r"opened\(\) has no argument 'nam'; did you mean 'name'\?"):
        opened(nam="a")
