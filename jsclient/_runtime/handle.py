"""The base classes of handles, their states, and `Opening`, which opens a handle by ``await`` or ``async with``."""

from __future__ import annotations

import abc
import inspect
import logging
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from enum import Enum
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Self, TypeVar

from ..errors import ClosedError, JetStreamError
from ..protocol.wire.checks import no_such_name
from ..protocol.wire.nats_py import argument_hint, no_attribute

__all__ = [
    "Asking",
    "Handle",
    "Listing",
    "Opening",
    "ReadHandle",
    "State",
    "asking",
    "body_error_first",
    "listing",
    "no_pickle",
    "opening",
]

ItemT_co = TypeVar("ItemT_co", covariant=True)

_log = logging.getLogger("jsclient")


class State(Enum):
    """The state of a handle, which only moves forward.

    A drained reader is closed once its last message has been read.
    """

    NEW = "new"  # not opened yet. The handle is opened on first use
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


def no_pickle(self: object) -> NoReturn:
    """Raise ``TypeError``. Classes use it as their ``__reduce__``."""
    raise TypeError(
        f"{self!r} cannot be pickled or copied: it belongs to a connection of this process; pass names and data on, "
        "and connect in the other process"
    )


@contextmanager
def body_error_first(body: BaseException | None, handle: object) -> Generator[None]:
    """Let the exception of an ``async with`` block propagate even if closing the handle fails too.

    A failed close that replaced a cancellation would hide it from `asyncio`. A loop that tries again after each
    `JetStreamError` would then never end, and `asyncio.run` would wait for it.
    """
    try:
        yield
    except JetStreamError as failure:
        if body is None:
            raise
        text = f"closing {handle!r} failed, too: {failure}"
        _log.warning("%s", text)
        body.add_note(text)


class Handle(abc.ABC):
    """Base class of objects that must be closed, either with `close` or at the end of an ``async with`` block."""

    _state: State = State.OPEN

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    @property
    def is_closed(self) -> bool:
        """Whether the handle is closed."""
        return self._state is State.CLOSED

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' closed' if self.is_closed else ''}>"

    @abc.abstractmethod
    async def close(self) -> None:
        """End the handle and release its resources."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with body_error_first(error, self):
            await self.close()


class ReadHandle(Handle, Generic[ItemT_co]):
    """Base class of handles that are read with ``async for``. The loop ends when `next` raises `ClosedError`.

    A handle isn't an async generator, because cancelling a generator would end it and lose the remaining items.
    """

    @abc.abstractmethod
    async def next(self) -> ItemT_co:
        """Wait for the next item and return it. Raises `ClosedError` after the last one."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT_co:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None


T = TypeVar("T")
HandleT = TypeVar("HandleT", bound=AbstractAsyncContextManager[Any])

P = ParamSpec("P")


class Asking(Coroutine[Any, Any, T]):
    """A request that is sent when it is awaited. It can also be passed to ``asyncio.create_task``."""

    _how = "'await' sends the request"
    _read = _how

    def __init__(self, opened: Callable[[], Awaitable[T]], name: str) -> None:
        self._opened = opened
        self._name = name
        self._seen = False
        self._running: Generator[Any, None, T] | None = None

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            self._seen = True
            raise AttributeError(f"{self._name} was not awaited, and has no {name!r}: {self._how}")

        def __iter__(self) -> NoReturn:
            self._seen = True
            raise TypeError(f"{self._name} was not awaited, and 'for' cannot read it: {self._read}")

        def __enter__(self) -> NoReturn:
            self._seen = True
            raise TypeError(f"{self._name} was not awaited, and 'with' cannot open it: {self._how}")

        def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        self._seen = True
        return f"<{type(self).__name__}: {self._how}>"

    def __await__(self) -> Generator[Any, None, T]:
        self._seen = True
        self._running = running = self._opened().__await__()
        return running

    def _run(self) -> Generator[Any, None, T]:
        return self._running or self.__await__()

    def send(self, value: Any, /) -> Any:
        """Advance the request. Tasks call this, as part of the coroutine protocol."""
        return self._run().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the request. Tasks call this, as part of the coroutine protocol."""
        return self._run().throw(*error)

    def close(self) -> None:
        """End the request without opening the handle. Tasks call this, as part of the coroutine protocol."""
        self._run().close()

    def __del__(self) -> None:
        if not self.__dict__.get("_seen", True):
            warnings.warn(
                f"{self._name} was never awaited: {self._how}", RuntimeWarning, stacklevel=2, source=self
            )


class Opening(Asking[HandleT]):
    """A handle that isn't open yet. Returned by methods such as `JetStream.subscribe`.

    ``async with`` opens the handle, and closes it at the end of the block. ``await`` only opens the handle, so you have
    to close it yourself::

        async with js.subscribe("orders.>") as subscription:
            ...

        subscription = await js.subscribe("orders.>")

    You can also pass the `Opening` to ``asyncio.create_task``, like a coroutine. Nothing is sent before the handle is
    opened, and most errors are raised only then. If you await an `Opening` twice, it opens two handles.
    """

    _how = "'async with ... as name' opens it, and so does 'await'"
    _read = f"{_how}; 'async for' reads what it opens"
    _handle: HandleT | None = None

    async def __aenter__(self) -> HandleT:
        self._handle = await self
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(kind, error, trace)


def _no_argument(owner: str, name: str, known: Collection[str]) -> str:
    from ..protocol.models.consumer import ConsumerConfig

    is_field = "config" in known and name in ConsumerConfig.__struct_fields__
    if is_field and argument_hint(owner, name) is None:
        return (
            f"{owner} has no argument {name!r}, which is a field of the consumer; "
            f"use config=jsclient.ConsumerConfig({name}=...)"
        )
    return no_such_name(owner, "argument", name, known)


def opening(method: Callable[P, Coroutine[Any, Any, HandleT]]) -> Callable[P, Opening[HandleT]]:
    """Decorate a coroutine function that opens a handle. Calling it returns an `Opening`."""
    known = inspect.signature(method).parameters.keys() - {"self"}

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[HandleT]:
        for name in kwargs:
            if name not in known:
                raise TypeError(_no_argument(f"{method.__name__}()", name, known))
        return Opening(partial(method, *args, **kwargs), f"{method.__name__}()")

    return call


def asking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Asking[T]]:
    """Decorate a coroutine function. Calling it returns an `Asking`."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Asking[T]:
        return Asking(partial(method, *args, **kwargs), f"{method.__name__}()")

    return call


class Listing(AsyncIterator[T]):
    """An iterator over the items of a paged request, for ``async for``."""

    def __init__(self, items: AsyncGenerator[T, None], name: str) -> None:
        self._items = items
        self._name = name

    def __aiter__(self) -> AsyncIterator[T]:  # noqa: PYI034  returns the generator itself, which saves a call per item
        return self._items

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def aclose(self) -> None:
        """Stop reading."""
        await self._items.aclose()

    def __repr__(self) -> str:
        return f"<{self._text()}>"

    def _text(self) -> str:
        return f"{self._name} is read with 'async for', as in [item async for item in {self._name}]"

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept ``await`` and ``for``

        def __await__(self) -> NoReturn:
            raise TypeError(self._text())

        def __iter__(self) -> NoReturn:
            raise TypeError(self._text())

        def __enter__(self) -> NoReturn:
            raise TypeError(self._text())

        def __exit__(self, *_: object) -> None: ...


def listing(method: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, Listing[T]]:
    """Decorate an asynchronous generator. Calling it returns a `Listing`."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Listing[T]:
        return Listing(method(*args, **kwargs), f"{method.__name__}()")

    return call
