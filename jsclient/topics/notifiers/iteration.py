"""Notifiers and subscriptions: two ways for any number of consumers to read a sequence of values.

An *iteration* is a sequence of values that may end once: it finishes with a completion, or fails with a reason. A
producer creates it. Consumers read it, in order, as an asynchronous iterable:

- A `Notifier` is lossy: each read returns the newest value, and the values in between are never sent. The end is never
  skipped.
- An `IterationSubscription` is lossless: it returns every value from its start to the end.

The facets work on a *source*, so they are the same for an iteration in this process (`jsclient.kits.make_notifier_kit`,
`jsclient.kits.make_subscription_kit`) and on a server. Producer and consumers are separate: neither gives access to
the other, and the producer does not know its consumers or wait for them.

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
"""The default for an initial state, because None is a state."""


class Member(NamedTuple):
    """A member of an iteration, which is a value, the completion, or the reason for a failure.

    ``number`` increases from member to member. ``traceback`` belongs to a reason that is an exception.
    """

    kind: Kind
    value: Any
    number: int
    traceback: TracebackType | None = None


class UpdateRecord(NamedTuple):
    """A state, and the count with which to request the next state. The count is None after the last state."""

    value: Any
    update_count: int | None


class IterationObserver(Protocol):
    """Receives an iteration. A producer is an observer, and so is any object with some of these methods."""

    def update_state(self, state: Any, /) -> Any:
        """Receive a new value."""

    def finish(self, completion: Any, /) -> Any:
        """Receive the completion."""

    def fail(self, reason: Any, /) -> Any:
        """Receive the reason for a failure."""


class NotifierSource(Protocol):
    """An iteration of which consumers read only the newest member."""

    async def entry_after(self, count: Any) -> Member:
        """Return the newest member. If it is the value with this number, wait for the next member."""

    async def internals(self) -> Any:
        """Return a shareable reference to the source."""


class IterationReader(Protocol):
    """A consumer's position in an iteration, and its reads."""

    @property
    def position(self) -> Any:
        """The position before the member that `read_member` returns next."""

    async def read_member(self) -> Member:
        """Wait for the next member. After the end, return the end again. Cancelling the call loses no member."""

    async def close(self) -> None:
        """Release the resources of the reader."""


class SubscriptionSource(Protocol):
    """An iteration of which consumers read every member."""

    async def reader(self, position: Any) -> IterationReader:
        """Open a reader at ``position``, or at the source's start for None. A cancelled call opens no reader."""

    async def internals(self, position: Any) -> Any:
        """Return a shareable reference to the source from this position on."""


def raise_reason(entry: Member) -> NoReturn:
    """Raise the reason of a failure. A reason that is not an exception is raised inside `IterationFailed`.

    Exceptions that would end an iterator or cancel a task are wrapped in `IterationFailed` as well.
    """
    reason = entry.value
    if isinstance(reason, Exception) and not isinstance(reason, StopIteration | StopAsyncIteration):
        raise reason.with_traceback(entry.traceback)
    raise IterationFailed(reason)


class Producer:
    """The producing side of a kit, called updater or publication.

    Calls take effect at once and in order, even if their results are not awaited. Awaiting the result waits until the
    member is stored, and returns its number.

    Each call raises `ClosedError` if the iteration has ended, and `ConfigError` if the value cannot be encoded. No
    member is published then.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Callable[[Kind, Any], Awaitable[int]]) -> None:
        self._publish = publish

    def update_state(self, state: Any, /) -> Awaitable[int]:
        """Publish a value."""
        return self._publish(Kind.VALUE, state)

    def finish(self, completion: Any = None, /) -> Awaitable[int]:
        """End the iteration with a completion."""
        return self._publish(Kind.FINISH, completion)

    def fail(self, reason: Any, /) -> Awaitable[int]:
        """End the iteration with the reason for a failure: an exception, or any other value."""
        return self._publish(Kind.FAIL, reason)


class Notifier:
    """The consuming side of a kit, which reads the newest state.

    ``async for state in notifier`` returns the current state, and then after each change the newest state. It ends when
    the iteration finishes, and raises the reason when it fails.
    """

    __slots__ = ("_source",)

    def __init__(self, source: NotifierSource) -> None:
        self._source = source

    def __aiter__(self) -> NotifierIterator:
        return NotifierIterator(self._source)

    async def get_update_since(self, previous_update_count: Any = None) -> UpdateRecord:
        """Return the current state. If the argument is its count, wait for the next state.

        If no state exists, the call waits for the first state. After the end it returns the completion, with the count
        None. Cancelling the call loses no state.

        Args:
            previous_update_count: The ``update_count`` of the last result. Any value other than the current count
                requests the current state.

        Raises:
            Exception: The reason, if the iteration has failed. `IterationFailed` if the reason is not an exception.
        """
        entry = await self._source.entry_after(previous_update_count)
        if entry.kind is Kind.FAIL:
            raise_reason(entry)
        return UpdateRecord(entry.value, entry.number if entry.kind is Kind.VALUE else None)

    async def completion(self) -> Any:
        """Wait for the end, and return the completion. Raises the reason of a failure."""
        count = None
        while True:
            record = await self.get_update_since(count)
            count = record.update_count
            if count is None:
                return record.value

    async def get_sharable_notifier_internals(self) -> Any:
        """Return a shareable reference for `jsclient.kits.make_notifier`, in this or another process."""
        return await self._source.internals()


class SubscriptionIterator(AsyncIterator[Any]):
    """An iterator over a subscription. A cancelled read loses no value.

    Attributes:
        completion: The completion after it was read, None before.
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
        """Return a subscription that starts at the position of this iterator."""
        reader = self._reader
        return IterationSubscription(self._source, self._start if reader is None else reader.position)

    async def aclose(self) -> None:
        """Stop reading, and release the resources on the server."""
        self._closed = True
        if self._reader is not None:
            await self._reader.close()


class IterationSubscription:
    """The consuming side of a kit, which reads every value from its start.

    ``async for value in subscription`` returns the values. The loop ends when the iteration finishes, and raises the
    reason when it fails. Each ``aiter`` begins at the start and reads at its own pace.
    """

    __slots__ = ("_position", "_source")

    def __init__(self, source: SubscriptionSource, position: Any = None) -> None:
        self._source = source
        self._position = position

    def __aiter__(self) -> SubscriptionIterator:
        return SubscriptionIterator(self._source, self._position)

    async def completion(self) -> Any:
        """Wait for the end, and return the completion. Raises the reason of a failure."""
        iterator = aiter(self)
        try:
            async for _ in iterator:
                pass
        finally:
            await iterator.aclose()
        return iterator.completion

    async def get_sharable_subscription_internals(self) -> Any:
        """Return a shareable reference for `jsclient.kits.make_subscription`, in this or another process."""
        return await self._source.internals(self._position)


class NotifierIterator(AsyncIterator[Any]):
    """An iterator over a notifier. Concurrent reads return different states. A cancelled read loses no state.

    Attributes:
        completion: The completion after it was read, None before.
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
            # Otherwise a concurrent read has returned this state already.
            if self._count == requested or self._count is None or entry.number > self._count:
                self._count = entry.number
                return entry.value

    async def aclose(self) -> None:
        """Do nothing, because the iterator has no resources between reads."""


class NotifierKit(NamedTuple):
    """Both sides of a lossy iteration: the updater and the notifier."""

    updater: Producer
    notifier: Notifier


class SubscriptionKit(NamedTuple):
    """Both sides of a lossless iteration: the publication and the subscription."""

    publication: Producer
    subscription: IterationSubscription


SourceT = TypeVar("SourceT")


class _Internals(Generic[SourceT]):
    __slots__ = ("source",)

    def __init__(self, source: SourceT) -> None:
        self.source: SourceT = source


class NotifierInternals(_Internals[NotifierSource]):
    """A shared reference to a notifier in this process."""

    __slots__ = ()


class SubscriptionInternals(_Internals[SubscriptionSource]):
    """A shared reference to a subscription in this process."""

    __slots__ = ()


def make_notifier(internals: NotifierInternals | Awaitable[NotifierInternals]) -> Notifier:
    """Create a notifier from the result of `Notifier.get_sharable_notifier_internals` in this process, or an awaitable.

    The notifier reads from the source itself, and can be shared again. For the descriptor of a kit on a server use
    `JetStream.make_notifier`.
    """
    return Notifier(source_of(internals, partial(_local, NotifierInternals)))


def make_subscription(
    internals: SubscriptionInternals | Awaitable[SubscriptionInternals],
) -> IterationSubscription:
    """Create a subscription from the result of `IterationSubscription.get_sharable_subscription_internals`.

    The argument may be an awaitable. The subscription starts at the same position, reads from the source itself, and
    can be shared again. For the descriptor of a kit on a server use `JetStream.make_subscription`.
    """
    return IterationSubscription(source_of(internals, partial(_local, SubscriptionInternals)))


def source_of(candidate: Any, find: Callable[[Any], SourceT]) -> SourceT | _Promised:
    """Return the source that a shared reference, or an awaitable reference, leads to.

    ``find`` may raise `ConfigError`.
    """
    return _Promised(candidate, find) if inspect.isawaitable(candidate) else find(candidate)


def _local(kind: type[_Internals[SourceT]], internals: object) -> SourceT:
    if not isinstance(internals, kind):
        raise ConfigError(f"internals is {type(internals).__name__}: {kind.__name__} is needed")
    return internals.source


class _Promised(NotifierSource, SubscriptionSource):
    """A source whose shared reference is still awaited. The first read awaits it, once for all readers."""

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
