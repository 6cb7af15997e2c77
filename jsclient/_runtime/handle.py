"""Base classes of handles: ``async with`` closes a handle, ``async for`` reads until it is closed."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Generic, Self, TypeVar

from ..errors import ClosedError

__all__ = ["AsyncClosing", "UntilClosed"]

ItemT_co = TypeVar("ItemT_co", covariant=True)


class AsyncClosing(abc.ABC):
    """A handle for ``async with``: leaving the block closes it."""

    __slots__ = ()

    @abc.abstractmethod
    async def close(self) -> None:
        """End the handle and release what it holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class UntilClosed(abc.ABC, Generic[ItemT_co]):
    """A handle for ``async for``: the loop ends when `next` raises `ClosedError`.

    Not a generator: one that is cancelled ends and loses the rest.
    """

    __slots__ = ()

    @abc.abstractmethod
    async def next(self) -> ItemT_co:
        """Return the next item. Raises `ClosedError` after the last."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT_co:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None
