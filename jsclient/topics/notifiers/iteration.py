"""Notifiers and subscriptions: two ways for any number of consumers to read a sequence of values.

An *iteration* is a sequence of values that may end once. It either finishes with a completion, or fails with a reason.
A producer creates the iteration, and consumers read it in order as an asynchronous iterable:

- A `Notifier` is lossy. Each read returns the newest value, and the values in between are never sent. The end is never
  skipped.
- An `IterationSubscription` is lossless. It returns every value from its start to the end.

Both read from a *source*, so they work in the same way in this process (`jsclient.kits.make_notifier_kit`,
`jsclient.kits.make_subscription_kit`) and on a server. The producer neither knows its consumers nor waits for them.

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
    """A state published by a `Producer`, and the number of the state. Returned by `Notifier.get_update_since`.

    ``value`` is the state. Pass ``update_count`` to `Notifier.get_update_since` to wait for the next state. After the
    producer has finished, ``value`` is the value passed to `Producer.finish`, and ``update_count`` is None.
    """

    value: Any
    update_count: int | None


class IterationObserver(Protocol):
    """Interface of an object that follows an iteration. `observe_iteration` calls its methods.

    An observer may leave out any of the methods. If a method returns an awaitable, the awaitable is awaited before the
    next call. Other results are ignored. A `Producer` or `TopicPublisher` as observer forwards the iteration to others.
    """

    def update_state(self, state: Any, /) -> Any:
        """Called with each value of the iteration, after the iterator has returned the value."""

    def finish(self, completion: Any, /) -> Any:
        """Called once when the iteration finishes, with the value passed to `Producer.finish`, or with None."""

    def fail(self, reason: Any, /) -> Any:
        """Called once when the iteration fails, with the exception or other value that explains why."""


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
    """Publishes an iteration: a sequence of values that may end once, by finishing or by failing.

    A kit consists of a producer and the object from which consumers read, a `Notifier` or an `IterationSubscription`.
    The producer doesn't know its consumers and never waits for them.

    Each method publishes immediately, even if you don't await its result, and calls take effect in order. Await the
    result to wait until the value has been stored, and to get its number, which grows from value to value. If a value
    can't be stored and nobody awaits the result, the event `PublishFailed` and the next call report the error.

    If the iteration has ended, each method raises `ClosedError`. A value that can't be encoded raises `ConfigError`. In
    both cases, nothing is published.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Callable[[Kind, Any], Awaitable[int]]) -> None:
        self._publish = publish

    def update_state(self, state: Any, /) -> Awaitable[int]:
        """Publish ``state`` as the next value."""
        return self._publish(Kind.VALUE, state)

    def finish(self, completion: Any = None, /) -> Awaitable[int]:
        """End the iteration successfully. Consumers receive ``completion`` as the result of the iteration."""
        return self._publish(Kind.FINISH, completion)

    def fail(self, reason: Any, /) -> Awaitable[int]:
        """End the iteration with a failure. Consumers raise ``reason``, or `IterationFailed` if it isn't an exception.

        If the kit has a codec, as on a server, an exception is stored as text, with its type name and message.
        Consumers then raise `IterationFailed` with this text as the reason.
        """
        return self._publish(Kind.FAIL, reason)


class Notifier:
    """Lets any number of consumers read the latest state that a `Producer` has published.

    A slow consumer skips states, but always gets the latest one, and never misses the end. Use a notifier for state,
    such as the current price, and an `IterationSubscription` if every value counts.

    ``async for state in notifier`` returns the current state first, and then the latest state after each change. The
    loop stops when the producer finishes the iteration, and raises the reason if the producer fails.
    """

    __slots__ = ("_source",)

    def __init__(self, source: NotifierSource) -> None:
        self._source = source

    def __aiter__(self) -> NotifierIterator:
        return NotifierIterator(self._source)

    async def get_update_since(self, previous_update_count: Any = None) -> UpdateRecord:
        """Return the current state, or wait for the next one if you already have the current state::

            record = await notifier.get_update_since()
            record = await notifier.get_update_since(record.update_count)  # waits for a change

        If there is no state yet, the call waits for the first one. After the producer has finished, every call returns
        the value passed to `Producer.finish`, with None as the count. If the call is cancelled, no state is lost.

        Args:
            previous_update_count: The ``update_count`` of the previous result. If it is the count of the current state,
                the call waits for the next one. Otherwise, for example with None, it returns the current state.

        Raises:
            Exception: The producer failed, and this exception is the reason.
            IterationFailed: The producer failed, and the reason isn't an exception.
        """
        entry = await self._source.entry_after(previous_update_count)
        if entry.kind is Kind.FAIL:
            raise_reason(entry)
        return UpdateRecord(entry.value, entry.number if entry.kind is Kind.VALUE else None)

    async def completion(self) -> Any:
        """Wait until the producer finishes the iteration, and return the value passed to `Producer.finish`.

        If the producer fails, the call raises the reason.
        """
        count = None
        while True:
            record = await self.get_update_since(count)
            count = record.update_count
            if count is None:
                return record.value

    async def get_sharable_notifier_internals(self) -> Any:
        """Return a reference to this notifier, from which another notifier for the same states can be created.

        * If the states are stored on a server, the reference is a JSON-compatible dict. You can send it to a different
          process. Pass the dict to `JetStream.make_notifier`.
        * If the states are stored in memory, the reference is valid only in this process. Pass the reference to
          `jsclient.kits.make_notifier`.
        """
        return await self._source.internals()


class SubscriptionIterator(AsyncIterator[Any]):
    """Reads the values of a subscription. Returned by ``aiter(subscription)``. No value is lost if a read is cancelled.

    Attributes:
        completion: The value that the producer passed to `Producer.finish`. None until the iterator reaches the end.
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
        """Return a subscription whose consumers read the values that this iterator hasn't returned yet."""
        reader = self._reader
        return IterationSubscription(self._source, self._start if reader is None else reader.position)

    async def aclose(self) -> None:
        """Stop reading, and release the resources on the server. Further reads raise `ClosedError`."""
        self._closed = True
        if self._reader is not None:
            await self._reader.close()


class IterationSubscription:
    """Lets any number of consumers read every value that a `Producer` publishes, in order and at their own pace.

    Each ``async for value in subscription`` begins at the same value. It is the first value of the kit or, if the
    subscription was created by `SubscriptionIterator.subscribe`, the first value that the iterator hadn't returned. The
    loop stops when the producer finishes the iteration, and raises the reason if the producer fails.
    """

    __slots__ = ("_position", "_source")

    def __init__(self, source: SubscriptionSource, position: Any = None) -> None:
        self._source = source
        self._position = position

    def __aiter__(self) -> SubscriptionIterator:
        return SubscriptionIterator(self._source, self._position)

    async def completion(self) -> Any:
        """Read all values until the producer finishes, and return the value passed to `Producer.finish`.

        If the producer fails, the call raises the reason.
        """
        iterator = aiter(self)
        try:
            async for _ in iterator:
                pass
        finally:
            await iterator.aclose()
        return iterator.completion

    async def get_sharable_subscription_internals(self) -> Any:
        """Return a reference from which a new subscription with the same starting position can be created.

        For values on a server, the reference is a JSON-compatible dict for `JetStream.make_subscription` in any
        process. For values in memory, it is an object for `jsclient.kits.make_subscription`, valid in this process
        only.
        """
        return await self._source.internals(self._position)


class NotifierIterator(AsyncIterator[Any]):
    """Reads the latest state of a notifier after each change. Returned by ``aiter(notifier)``.

    Cancelling a read loses no state. If several tasks read from one iterator, each of them gets different states.

    Attributes:
        completion: The value that the producer passed to `Producer.finish`. None until the iterator reaches the end.
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
            # Don't return a state that a concurrent read has already returned. Wait for the next one instead.
            if self._count == requested or self._count is None or entry.number > self._count:
                self._count = entry.number
                return entry.value

    async def aclose(self) -> None:
        """Do nothing. Between reads, the iterator holds no resources that could be released."""


class NotifierKit(NamedTuple):
    """A pair that separates publishing a state from reading the latest one. Returned by `make_notifier_kit`.

    The ``updater`` publishes states and ends the iteration, so keep it to yourself. Give the ``notifier`` to
    consumers. With it, they can read the state but not change it.
    """

    updater: Producer
    notifier: Notifier


class SubscriptionKit(NamedTuple):
    """A pair of objects that separates publishing values from reading every value.

    Returned by `make_subscription_kit`. The ``publication`` publishes values and ends the iteration, so keep it to
    yourself. Give the ``subscription`` to consumers. With it, they can read values but not publish.
    """

    publication: Producer
    subscription: IterationSubscription


SourceT = TypeVar("SourceT")


class _Internals(Generic[SourceT]):
    __slots__ = ("source",)

    def __init__(self, source: SourceT) -> None:
        self.source: SourceT = source


class NotifierInternals(_Internals[NotifierSource]):
    """A reference to a notifier, valid in this process only. Returned by `Notifier.get_sharable_notifier_internals`."""

    __slots__ = ()


class SubscriptionInternals(_Internals[SubscriptionSource]):
    """A reference to a subscription, valid in this process only. Pass it to `jsclient.kits.make_subscription`."""

    __slots__ = ()


def make_notifier(internals: NotifierInternals | Awaitable[NotifierInternals]) -> Notifier:
    """Create an independent notifier that reads the same states as another notifier in this process.

    If the states are stored on a server, use `JetStream.make_notifier`.

    Args:
        internals: The reference returned by `Notifier.get_sharable_notifier_internals`, or an awaitable that returns
            it.

    Raises:
        ConfigError: ``internals`` isn't a reference to a notifier. If it is an awaitable, the first read raises this
            error.
    """
    return Notifier(source_of(internals, partial(_local, NotifierInternals)))


def make_subscription(
    internals: SubscriptionInternals | Awaitable[SubscriptionInternals],
) -> IterationSubscription:
    """Create a subscription with the same values and starting position as another subscription in this process.

    If the values are stored on a server, use `JetStream.make_subscription`.

    Args:
        internals: The reference returned by `IterationSubscription.get_sharable_subscription_internals`, or an
            awaitable that returns it.

    Raises:
        ConfigError: ``internals`` isn't a reference to a subscription. If it is an awaitable, the first read raises
            this error.
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
            internals = await asyncio.shield(self._task)  # other readers wait for this task as well
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
