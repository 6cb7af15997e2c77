"""Notifiers and subscriptions: two ways for any number of consumers to read a sequence of values.

An *iteration* is a sequence of values that may end once. It either finishes with a completion, or fails with a reason.
A producer creates the iteration, and consumers read it in order as an asynchronous iterable:

- A `Notifier` is lossy. Each read returns the newest value, and the values in between are never sent. The end is never
  skipped.
- An `IterationSubscription` is lossless. It returns every value from its start to the end.

Both read from a *source*, so they work in the same way in this process (`jsclient.kits.make_notifier_kit`,
`jsclient.kits.make_subscription_kit`) and on a server. Producer and consumers are separate: neither gives access to the
other, and the producer neither knows its consumers nor waits for them.

Source: Agoric's notifier package, first form (seed 000), and decisions D13 to D16.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from msgspec import UNSET

from ...errors import ClosedError, ConfigError, IterationFailed
from ...protocol.topics.record import Kind

__all__ = [
    "NO_STATE",
    "IterationObserver",
    "IterationReader",
    "IterationSubscription",
    "Member",
    "Notifier",
    "NotifierInternals",
    "NotifierIterator",
    "NotifierKit",
    "NotifierSource",
    "Producer",
    "SubscriptionInternals",
    "SubscriptionIterator",
    "SubscriptionKit",
    "SubscriptionSource",
    "UpdateRecord",
    "make_notifier",
    "make_subscription",
    "raise_reason",
    "source_of",
]


NO_STATE: Final = UNSET
"""The default for an initial state. It differs from None, because None is a valid state."""


class Member(NamedTuple):
    """A member of an iteration: a value, the completion, or the reason for a failure.

    Attributes:
        kind: Which of the three the member is.
        value: The value, completion or reason.
        number: A number that increases from member to member.
        traceback: The traceback of a reason that is an exception, or None.
    """

    kind: Kind
    value: Any
    number: int
    traceback: TracebackType | None = None


class UpdateRecord(NamedTuple):
    """A state of an iteration. Returned by `Notifier.get_update_since`.

    ``value`` is the state, or the completion if the iteration has finished. Pass ``update_count`` to
    `Notifier.get_update_since` to wait for the next state. It is None after the end.
    """

    value: Any
    update_count: int | None


class IterationObserver(Protocol):
    """An object to which `observe_iteration` forwards an iteration.

    A `Producer` is an observer. An observer may lack some of the methods. An awaitable that a method returns is
    awaited.
    """

    def update_state(self, state: Any, /) -> Any:
        """Called with each value of the iteration."""

    def finish(self, completion: Any, /) -> Any:
        """Called with the completion when the iteration has finished."""

    def fail(self, reason: Any, /) -> Any:
        """Called with the reason when the iteration has failed."""


class NotifierSource(Protocol):
    """The source of a notifier, from which consumers read only the newest member."""

    async def entry_after(self, count: Any) -> Member:
        """Return the newest member. If it is the value with the number ``count``, wait for the next member."""

    async def internals(self) -> Any:
        """Return a shareable reference to the source."""


class IterationReader(Protocol):
    """The position of a consumer in an iteration."""

    @property
    def position(self) -> Any:
        """The position before the member that `read_member` returns next."""

    async def read_member(self) -> Member:
        """Wait for the next member and return it. After the end, return the last member again.

        If the call is cancelled, no member is lost.
        """

    async def close(self) -> None:
        """Release the resources of the reader."""


class SubscriptionSource(Protocol):
    """The source of a subscription, from which consumers read every member."""

    async def reader(self, position: Any) -> IterationReader:
        """Open a reader at ``position``, or at the start of the source if ``position`` is None.

        If the call is cancelled, no reader stays open.
        """

    async def internals(self, position: Any) -> Any:
        """Return a shareable reference to the source from ``position`` on."""


def raise_reason(entry: Member) -> NoReturn:
    """Raise the reason of a failed iteration.

    A reason that isn't an exception is wrapped in `IterationFailed`. The same applies to exceptions that would end an
    iterator or cancel a task.
    """
    reason = entry.value
    if isinstance(reason, Exception) and not isinstance(reason, StopIteration | StopAsyncIteration):
        raise reason.with_traceback(entry.traceback)
    raise IterationFailed(reason)


class Producer:
    """The producing side of a kit: the updater of a notifier kit, or the publication of a subscription kit.

    A call takes effect immediately, even if its result isn't awaited, and calls take effect in order. Awaiting the
    result waits until the member has been stored, and returns its number.

    If the iteration has ended, each method raises `ClosedError`. If the value can't be encoded, it raises
    `ConfigError`. In both cases, nothing is published.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Callable[[Kind, Any], Awaitable[int]]) -> None:
        self._publish = publish

    def update_state(self, state: Any, /) -> Awaitable[int]:
        """Publish ``state`` as the next value."""
        return self._publish(Kind.VALUE, state)

    def finish(self, completion: Any = None, /) -> Awaitable[int]:
        """End the iteration. Consumers receive ``completion`` as its result."""
        return self._publish(Kind.FINISH, completion)

    def fail(self, reason: Any, /) -> Awaitable[int]:
        """End the iteration with a failure. Consumers raise ``reason``, which is an exception or any other value."""
        return self._publish(Kind.FAIL, reason)


class Notifier:
    """The consuming side of a notifier kit, which reads the newest state.

    ``async for state in notifier`` returns the current state first, and then the newest state after each change. The
    loop ends when the iteration has finished. If the iteration has failed, the loop raises the reason.
    """

    __slots__ = ("_source",)

    def __init__(self, source: NotifierSource) -> None:
        self._source = source

    def __aiter__(self) -> NotifierIterator:
        return NotifierIterator(self._source)

    async def get_update_since(self, previous_update_count: Any = None) -> UpdateRecord:
        """Return the current state. If ``previous_update_count`` is its count, wait for the next state.

        If there is no state yet, the call waits for the first one. After the iteration has finished, it returns the
        completion with the count None. If the call is cancelled, no state is lost.

        Args:
            previous_update_count: The ``update_count`` of the previous result. Any other value requests the current
                state.

        Raises:
            Exception: The iteration has failed, and this exception is the reason.
            IterationFailed: The iteration has failed, and the reason isn't an exception.
        """
        entry = await self._source.entry_after(previous_update_count)
        if entry.kind is Kind.FAIL:
            raise_reason(entry)
        return UpdateRecord(entry.value, entry.number if entry.kind is Kind.VALUE else None)

    async def completion(self) -> Any:
        """Wait until the iteration has finished, and return its completion. If it fails, raise the reason."""
        count = None
        while True:
            record = await self.get_update_since(count)
            count = record.update_count
            if count is None:
                return record.value

    async def get_sharable_notifier_internals(self) -> Any:
        """Return a reference from which others can create a notifier.

        If the kit is on a server, the reference is a dict that can be sent as JSON. Pass it to
        `JetStream.make_notifier` in any process. If not, pass it to `jsclient.kits.make_notifier` in this process.
        """
        return await self._source.internals()


class SubscriptionIterator(AsyncIterator[Any]):
    """Asynchronous iterator over a subscription. If a read is cancelled, no value is lost.

    Attributes:
        completion: The completion of the iteration, or None until the iterator has reached the end.
    """

    __slots__ = ("_closed", "_opening", "_reader", "_source", "_start", "completion")

    def __init__(self, source: SubscriptionSource, start: Any) -> None:
        self._source = source
        self._start = start
        self._opening = asyncio.Lock()
        self._reader: IterationReader | None = None
        self._closed = False
        self.completion: Any = None

    async def __anext__(self) -> Any:
        entry = await (self._reader or await self._open_reader()).read_member()
        match entry.kind:
            case Kind.VALUE:
                return entry.value
            case Kind.FINISH:
                self.completion = entry.value
                raise StopAsyncIteration
            case _:
                raise_reason(entry)

    async def _open_reader(self) -> IterationReader:
        async with self._opening:
            if self._closed:
                raise ClosedError("the iterator is closed: no value can be read")
            if self._reader is None:
                reader = await self._source.reader(self._start)
                if self._closed:  # `aclose` was called while the reader was opened
                    await reader.close()
                self._reader = reader
            return self._reader

    def subscribe(self) -> IterationSubscription:
        """Return a subscription that starts at the current position of this iterator."""
        reader = self._reader
        return IterationSubscription(self._source, self._start if reader is None else reader.position)

    async def aclose(self) -> None:
        """Stop reading, and release the resources on the server. Further reads raise `ClosedError`."""
        self._closed = True
        if self._reader is not None:
            await self._reader.close()


class IterationSubscription:
    """The consuming side of a subscription kit, which reads every value.

    ``async for value in subscription`` returns all values from the start of the subscription. The loop ends when the
    iteration has finished. If the iteration has failed, the loop raises the reason. Each iterator begins at the start
    and reads at its own pace.
    """

    __slots__ = ("_position", "_source")

    def __init__(self, source: SubscriptionSource, position: Any = None) -> None:
        self._source = source
        self._position = position

    def __aiter__(self) -> SubscriptionIterator:
        return SubscriptionIterator(self._source, self._position)

    async def completion(self) -> Any:
        """Wait until the iteration has finished, and return its completion. If it fails, raise the reason."""
        iterator = aiter(self)
        try:
            async for _ in iterator:
                pass
        finally:
            await iterator.aclose()
        return iterator.completion

    async def get_sharable_subscription_internals(self) -> Any:
        """Return a reference from which others can create a subscription with the same start.

        If the kit is on a server, the reference is a dict that can be sent as JSON. Pass it to
        `JetStream.make_subscription` in any process. If not, pass it to `jsclient.kits.make_subscription` in this
        process.
        """
        return await self._source.internals(self._position)


class NotifierIterator(AsyncIterator[Any]):
    """Asynchronous iterator over a notifier. If a read is cancelled, no state is lost.

    Concurrent reads of one iterator return different states.

    Attributes:
        completion: The completion of the iteration, or None until the iterator has reached the end.
    """

    __slots__ = ("_count", "_source", "completion")

    def __init__(self, source: NotifierSource) -> None:
        self._source = source
        self._count: int | None = None
        self.completion: Any = None

    async def __anext__(self) -> Any:
        while True:
            requested = self._count
            entry = await self._source.entry_after(requested)
            if entry.kind is Kind.FAIL:
                raise_reason(entry)
            if entry.kind is Kind.FINISH:
                self.completion = entry.value
                raise StopAsyncIteration
            # If none of these conditions is true, a concurrent read has already returned this state.
            if self._count == requested or self._count is None or entry.number > self._count:
                self._count = entry.number
                return entry.value

    async def aclose(self) -> None:
        """Do nothing, because the iterator holds no resources between reads."""


class NotifierKit(NamedTuple):
    """The two sides of a lossy iteration. Returned by `jsclient.kits.make_notifier_kit`.

    The ``updater`` publishes states and ends the iteration, and consumers of the ``notifier`` read the newest state.
    """

    updater: Producer
    notifier: Notifier


class SubscriptionKit(NamedTuple):
    """The two sides of a lossless iteration. Returned by `jsclient.kits.make_subscription_kit`.

    The ``publication`` publishes values and ends the iteration, and consumers of the ``subscription`` read every value.
    """

    publication: Producer
    subscription: IterationSubscription


SourceT = TypeVar("SourceT")


class _Internals(Generic[SourceT]):
    __slots__ = ("source",)

    def __init__(self, source: SourceT) -> None:
        self.source: SourceT = source


class NotifierInternals(_Internals[NotifierSource]):
    """A reference to a notifier in this process. Returned by `Notifier.get_sharable_notifier_internals`."""

    __slots__ = ()


class SubscriptionInternals(_Internals[SubscriptionSource]):
    """A reference to a subscription. Returned by `IterationSubscription.get_sharable_subscription_internals`."""

    __slots__ = ()


def make_notifier(internals: NotifierInternals | Awaitable[NotifierInternals]) -> Notifier:
    """Create a notifier from a reference to a notifier in this process.

    The new notifier reads directly from the same source, and can be shared again. For a kit on a server, use
    `JetStream.make_notifier`.

    Args:
        internals: The result of `Notifier.get_sharable_notifier_internals`, or an awaitable that returns it.

    Raises:
        ConfigError: ``internals`` is not such a reference. If it is an awaitable, the first read raises this error.
    """
    return Notifier(source_of(internals, partial(_local, NotifierInternals)))


def make_subscription(
    internals: SubscriptionInternals | Awaitable[SubscriptionInternals],
) -> IterationSubscription:
    """Create a subscription from a reference to a subscription in this process.

    The new subscription starts at the same position, reads directly from the same source, and can be shared again. For
    a kit on a server, use `JetStream.make_subscription`.

    Args:
        internals: The result of `IterationSubscription.get_sharable_subscription_internals`, or an awaitable that
            returns it.

    Raises:
        ConfigError: ``internals`` is not such a reference. If it is an awaitable, the first read raises this error.
    """
    return IterationSubscription(source_of(internals, partial(_local, SubscriptionInternals)))


def source_of(candidate: Any, find: Callable[[Any], SourceT]) -> SourceT | _Promised:
    """Return the source to which a reference leads, or a source that awaits its reference on first use.

    May raise any error of ``find``, such as `ConfigError`.
    """
    return _Promised(candidate, find) if inspect.isawaitable(candidate) else find(candidate)


def _local(kind: type[_Internals[SourceT]], internals: object) -> SourceT:
    if not isinstance(internals, kind):
        raise ConfigError(f"internals is {type(internals).__name__}: {kind.__name__} is needed")
    return internals.source


class _Promised(NotifierSource, SubscriptionSource):
    """A source whose reference is an awaitable. The first read awaits it, and other reads wait for the same result."""

    __slots__ = ("_awaitable", "_find", "_resolved", "_task")

    def __init__(self, awaitable: Awaitable[Any], find: Callable[[Any], Any]) -> None:
        self._awaitable = awaitable
        self._find = find
        self._resolved: Any = None
        self._task: asyncio.Future[Any] | None = None

    async def _source(self) -> Any:
        if self._resolved is None:
            if self._task is None:
                self._task = asyncio.ensure_future(self._awaitable)
            internals = await asyncio.shield(self._task)  # other readers wait for it as well
            if self._resolved is None:
                self._resolved = self._find(internals)
        return self._resolved

    async def entry_after(self, count: Any) -> Member:
        entry: Member = await (await self._source()).entry_after(count)
        return entry

    async def reader(self, position: Any) -> IterationReader:
        reader: IterationReader = await (await self._source()).reader(position)
        return reader

    async def internals(self, *position: Any) -> Any:
        return await (await self._source()).internals(*position)
