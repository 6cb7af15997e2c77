"""Notifiers and subscriptions made from shared references: they read from the source itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ...errors import ConfigError
from .iteration import Entry, IterationSubscription, Notifier, NotifierSource, Reader, SubscriptionSource

__all__ = [
    "NotifierInternals",
    "SubscriptionInternals",
    "make_notifier",
    "make_subscription",
    "notifier_of",
    "subscription_of",
]

SourceT = TypeVar("SourceT")


class NotifierInternals:
    """A shared reference to a notifier in this process."""

    __slots__ = ("source",)

    def __init__(self, source: NotifierSource) -> None:
        self.source: NotifierSource = source


class SubscriptionInternals:
    """A shared reference to a subscription in this process."""

    __slots__ = ("source",)

    def __init__(self, source: SubscriptionSource) -> None:
        self.source: SubscriptionSource = source


def make_notifier(internals: NotifierInternals | Awaitable[NotifierInternals]) -> Notifier:
    """Create a notifier from the result of `Notifier.get_sharable_notifier_internals` in this process, or an awaitable.

    It reads from the source itself, and can be shared in turn. For the descriptor of a kit on a server use
    `JetStream.make_notifier`.
    """
    return notifier_of(internals, _local_notifier)


def make_subscription(
    internals: SubscriptionInternals | Awaitable[SubscriptionInternals],
) -> IterationSubscription:
    """Create a subscription from the result of `IterationSubscription.get_sharable_subscription_internals`.

    The argument may be an awaitable. The subscription starts at the same position, reads from the source itself, and
    can be shared in turn. For the descriptor of a kit on a server use `JetStream.make_subscription`.
    """
    return subscription_of(internals, _local_subscription)


def notifier_of(given: Any, find: Callable[[Any], NotifierSource]) -> Notifier:
    """A notifier from a shared reference; ``find`` returns its source, or raises `ConfigError`."""
    if inspect.isawaitable(given):
        return Notifier(_Promised(given, find))
    return Notifier(find(given))


def subscription_of(given: Any, find: Callable[[Any], SubscriptionSource]) -> IterationSubscription:
    """A subscription from a shared reference; ``find`` returns its source, or raises `ConfigError`."""
    if inspect.isawaitable(given):
        return IterationSubscription(_Promised(given, find))
    return IterationSubscription(find(given))


def _local_notifier(given: object) -> NotifierSource:
    if not isinstance(given, NotifierInternals):
        raise _wrong_type(given, NotifierInternals)
    return given.source


def _local_subscription(given: object) -> SubscriptionSource:
    if not isinstance(given, SubscriptionInternals):
        raise _wrong_type(given, SubscriptionInternals)
    return given.source


def _wrong_type(given: object, wanted: type) -> ConfigError:
    return ConfigError(f"internals is {type(given).__name__}: {wanted.__name__} is needed")


class _Promised(NotifierSource, SubscriptionSource, Generic[SourceT]):
    """A source that is still to come. It is awaited once, by the first read."""

    __slots__ = ("_find", "_found", "_given", "_task")

    def __init__(self, given: Awaitable[Any], find: Callable[[Any], SourceT]) -> None:
        self._given = given
        self._find = find
        self._found: Any = None
        self._task: asyncio.Future[Any] | None = None

    async def _source(self) -> Any:
        if self._found is None:
            if self._task is None:
                self._task = asyncio.ensure_future(self._given)
            given = await asyncio.shield(self._task)  # other readers wait for it as well
            if self._found is None:
                self._found = self._find(given)
        return self._found

    async def entry_after(self, count: Any) -> Entry:
        found: Entry = await (await self._source()).entry_after(count)
        return found

    async def reader(self, position: Any) -> Reader:
        reader: Reader = await (await self._source()).reader(position)
        return reader

    async def internals(self, *position: Any) -> Any:
        return await (await self._source()).internals(*position)
