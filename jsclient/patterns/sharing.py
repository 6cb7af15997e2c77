"""Notifiers and subscriptions at other sites: made of what the first one shares, they read from the source."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Generic, Protocol, TypeVar

from ..errors import ConfigError
from .iteration import Entry, IterationSubscription, Notifier, NotifierSource, Reader, SubscriptionSource

__all__ = ["NotifierInternals", "SubscriptionInternals", "make_notifier", "make_subscription"]

SourceT = TypeVar("SourceT")
SourceT_co = TypeVar("SourceT_co", covariant=True)


class _Internals(Protocol[SourceT_co]):
    @property
    def source(self) -> SourceT_co: ...


class NotifierInternals:
    """What a notifier shares, in this process."""

    __slots__ = ("source",)

    def __init__(self, source: NotifierSource) -> None:
        self.source = source


class SubscriptionInternals:
    """What a subscription shares, in this process."""

    __slots__ = ("source",)

    def __init__(self, source: SubscriptionSource) -> None:
        self.source = source


def make_notifier(internals: NotifierInternals | Awaitable[NotifierInternals]) -> Notifier:
    """A notifier here, of what `Notifier.get_sharable_notifier_internals` gives, or will give.

    It reads from the source, not by way of the notifier that was shared, and can be shared in turn.
    """
    return Notifier(_PromisedNotifier(_Promise(internals, NotifierInternals)))


def make_subscription(
    internals: SubscriptionInternals | Awaitable[SubscriptionInternals],
) -> IterationSubscription:
    """A subscription here, of what `IterationSubscription.get_sharable_subscription_internals` gives, or will give.

    It starts where that one does, reads from the source itself, and can be shared in turn.
    """
    return IterationSubscription(_PromisedSubscription(_Promise(internals, SubscriptionInternals)))


class _Promise(Generic[SourceT]):
    """The source of internals that are here, or are to come. They are waited for once, when somebody first reads."""

    __slots__ = ("_given", "_kind", "_task")

    def __init__(self, given: Any, kind: type[_Internals[SourceT]]) -> None:
        if not inspect.isawaitable(given):
            _check(given, kind)
        self._given = given
        self._kind = kind
        self._task: asyncio.Future[Any] | None = None

    async def source(self) -> SourceT:
        if isinstance(self._given, self._kind):
            return self._given.source
        if self._task is None:
            self._task = asyncio.ensure_future(self._given)
        # One reader that is cancelled must not take it from the others.
        found = await asyncio.shield(self._task)
        _check(found, self._kind)
        self._given = found
        source: SourceT = found.source
        return source


def _check(given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise ConfigError(f"{type(given).__name__} is not what was shared: {kind.__name__} is needed")


class _PromisedNotifier(NotifierSource):
    __slots__ = ("_promise",)

    def __init__(self, promise: _Promise[NotifierSource]) -> None:
        self._promise = promise

    async def entry_after(self, count: Any) -> Entry:
        return await (await self._promise.source()).entry_after(count)

    async def internals(self) -> Any:
        return await (await self._promise.source()).internals()


class _PromisedSubscription(SubscriptionSource):
    __slots__ = ("_promise",)

    def __init__(self, promise: _Promise[SubscriptionSource]) -> None:
        self._promise = promise

    def reader(self, position: Any) -> Reader:
        return _PromisedReader(self._promise, position)

    async def internals(self, position: Any) -> Any:
        return await (await self._promise.source()).internals(position)


class _PromisedReader(Reader):
    __slots__ = ("_position", "_promise", "_reader")

    def __init__(self, promise: _Promise[SubscriptionSource], position: Any) -> None:
        self._promise = promise
        self._position = position
        self._reader: Reader | None = None

    @property
    def position(self) -> Any:
        return self._position if self._reader is None else self._reader.position

    async def read(self) -> Entry:
        if self._reader is None:
            source = await self._promise.source()
            if self._reader is None:  # else another read at the same time has made it
                self._reader = source.reader(self._position)
        return await self._reader.read()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
