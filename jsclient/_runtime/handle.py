"""Base classes of handles, their life, and `Opening`, which opens one by ``await`` or ``async with``."""

from __future__ import annotations

import abc
import inspect
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from enum import Enum
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Self, TypeVar

from ..errors import ClosedError
from ..protocol.wire.checks import no_such_name

__all__ = ["Handle", "Opening", "ReadHandle", "State", "opening"]

ItemT_co = TypeVar("ItemT_co", covariant=True)


class State(Enum):
    """The life of a handle. It moves only forward; a drained reader closes once its last message was taken."""

    NEW = "new"  # opened on first use
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class Handle(abc.ABC):
    """A handle with a life of its own; leaving ``async with`` closes it."""

    _state: State = State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._state is State.CLOSED

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' closed' if self.is_closed else ''}>"

    @abc.abstractmethod
    async def close(self) -> None:
        """End the handle and release what it holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ReadHandle(Handle, Generic[ItemT_co]):
    """A handle for ``async for``: the loop ends when `next` raises `ClosedError`.

    Not a generator: one that is cancelled ends and loses the rest.
    """

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


HandleT = TypeVar("HandleT", bound=AbstractAsyncContextManager[Any])

P = ParamSpec("P")


class Opening(Coroutine[Any, Any, HandleT]):
    """A handle that is not open yet: await it, or use it with ``async with``. A task can run it."""

    _how = "'async with ... as name' opens it, and so does 'await'"

    def __init__(self, opened: Callable[[], Awaitable[HandleT]], name: str = "") -> None:
        self._opened = opened
        self._name = name or "it"
        self._seen = False
        self._handle: HandleT | None = None
        self._running: Generator[Any, None, HandleT] | None = None

    if not TYPE_CHECKING:  # else a type checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            self._seen = True
            raise AttributeError(f"{self._name} was not awaited, and has no {name!r}: {self._how}")

    def __repr__(self) -> str:
        self._seen = True
        return f"<{type(self).__name__}: {self._how}>"

    def __await__(self) -> Generator[Any, None, HandleT]:
        self._seen = True
        self._running = running = self._opened().__await__()
        return running

    def _run(self) -> Generator[Any, None, HandleT]:
        return self._running or self.__await__()

    def send(self, value: Any, /) -> Any:
        """Used by tasks."""
        return self._run().send(value)

    def throw(self, *error: Any) -> Any:
        """Used by tasks."""
        return self._run().throw(*error)

    def close(self) -> None:
        """Used by tasks: open nothing."""
        self._run().close()

    def __del__(self) -> None:
        if not self.__dict__.get("_seen", True):
            warnings.warn(
                f"{self._name} was never awaited: {self._how}", RuntimeWarning, stacklevel=2, source=self
            )

    async def __aenter__(self) -> HandleT:
        self._handle = await self
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(kind, error, trace)


def opening(method: Callable[P, Coroutine[Any, Any, HandleT]]) -> Callable[P, Opening[HandleT]]:
    """Decorate a coroutine function that opens a handle: calling it returns an `Opening`."""
    known = inspect.signature(method).parameters.keys() - {"self"}

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[HandleT]:
        for name in kwargs:
            if name not in known:
                raise TypeError(no_such_name(f"{method.__name__}()", "argument", name, known))
        return Opening(partial(method, *args, **kwargs), f"{method.__name__}()")

    return call
