"""Notifiers and subscriptions: two ways to tell any number of consumers of a sequence of values.

An *iteration* is a sequence of values that may end once: it finishes with a completion, or fails with a reason. A
producer makes it; consumers see it, in order, as an asynchronous iterable:

- a `Notifier` is lossy: who asks gets the newest value. All that lay between is never sent. The end is always seen.
- an `IterationSubscription` is lossless: every value from where it starts, to the end.

The facets here are the same whether the iteration is in this process (`jsclient.make_notifier_kit`,
`jsclient.make_subscription_kit`) or elsewhere: they work on a *source*. Producer and consumers are apart: neither can
be had from the other, and the producer knows nothing of who listens, and waits for nobody.

Source: Agoric's notifier package, first form (seed 000); decisions D13 to D16.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from ...errors import ClosedError, IterationFailed
from ...protocol.topics.record import Kind

__all__ = [
    "NO_STATE",
    "Entry",
    "IterationObserver",
    "IterationSubscription",
    "Notifier",
    "NotifierIterator",
    "NotifierKit",
    "NotifierSource",
    "Producer",
    "Reader",
    "SubscriptionIterator",
    "SubscriptionKit",
    "SubscriptionSource",
    "UpdateRecord",
    "raise_reason",
]


NO_STATE: Final = object()
"""Stands for a first state that is not given, since None is a state."""


class Entry(NamedTuple):
    """A member of an iteration: a value, its completion, or the reason of its failure.

    ``number`` grows from each to the next. ``traceback`` is that of a reason which is an exception.
    """

    kind: Kind
    value: Any
    number: int
    traceback: TracebackType | None = None


class UpdateRecord(NamedTuple):
    """What a notifier gives: the state, and what to ask with for the next one, None if there is none."""

    value: Any
    update_count: int | None


class IterationObserver(Protocol):
    """What an iteration is reported to. A producer is one; so may be any object with some of these methods."""

    def update_state(self, state: Any, /) -> Any:
        """There is a new value."""

    def finish(self, completion: Any, /) -> Any:
        """The iteration is complete."""

    def fail(self, reason: Any, /) -> Any:
        """The iteration has failed."""


# --- what the facets work on -----------------------------------------------------------------------------


class NotifierSource(Protocol):
    """An iteration of which the newest member counts."""

    async def entry_after(self, count: Any) -> Entry:
        """The newest member, if it is not the value with this number; else the next one, when it comes."""

    async def internals(self) -> Any:
        """What to give to somebody else who wants to read it."""


class Reader(Protocol):
    """A consumer's place in an iteration."""

    @property
    def position(self) -> Any:
        """Where it stands: before the member that `read` gives next."""

    async def read(self) -> Entry:
        """The next member, when it is there; the end again and again. Cancelled: nothing was read."""

    async def close(self) -> None:
        """Nothing more will be read."""


class SubscriptionSource(Protocol):
    """An iteration of which every member counts."""

    async def reader(self, position: Any) -> Reader:
        """Open a reader at ``position``; None: at the start of the source. Cancelled: nothing is left open."""

    async def internals(self, position: Any) -> Any:
        """What to give to somebody else who wants to read from there."""


def raise_reason(entry: Entry) -> NoReturn:
    """Raise the reason of a failure: an exception as it is, anything else in `IterationFailed`.

    So is an exception that would mean something else where it is raised: that an iterator is at its end, or a task is
    cancelled.
    """
    reason = entry.value
    if isinstance(reason, Exception) and not isinstance(reason, StopIteration | StopAsyncIteration):
        raise reason.with_traceback(entry.traceback)
    raise IterationFailed(reason)


# --- producing -------------------------------------------------------------------------------------------


class Producer:
    """The producing facet of a kit, called updater or publication.

    Each call takes effect at once and in order, without being awaited. What it returns can be awaited: the number of
    the member, when it is stored where consumers find it.

    Each raises `ClosedError` if the iteration has ended, and `ConfigError` if the value cannot be
    passed on; nothing was published then.
    """

    __slots__ = ("_publish",)

    def __init__(self, publish: Callable[[Kind, Any], Awaitable[int]]) -> None:
        self._publish = publish

    def update_state(self, state: Any, /) -> Awaitable[int]:
        """A new value, for all consumers."""
        return self._publish(Kind.VALUE, state)

    def finish(self, completion: Any = None, /) -> Awaitable[int]:
        """The iteration ends well, and this is its completion."""
        return self._publish(Kind.FINISH, completion)

    def fail(self, reason: Any, /) -> Awaitable[int]:
        """The iteration ends for this reason: an exception, or anything else."""
        return self._publish(Kind.FAIL, reason)


# --- consuming -------------------------------------------------------------------------------------------


class Notifier:
    """The consuming facet that is told of the newest state.

    ``async for state in notifier`` gives the state that is current, then, each time, the newest since; it ends when the
    iteration finishes, and raises the reason when it fails.
    """

    __slots__ = ("_source",)

    def __init__(self, source: NotifierSource) -> None:
        self._source = source

    def __aiter__(self) -> NotifierIterator:
        return NotifierIterator(self._source)

    async def get_update_since(self, previous_update_count: Any = None) -> UpdateRecord:
        """The current state at once; with the count of the current state: the next one, when it comes.

        Before there is a state it is waited for. After the end it is the completion, with the count None, whatever is
        asked.

        Args:
            previous_update_count: The ``update_count`` of the last record. Any other than the most recent one, or
                none, asks for the current state.

        Raises:
            Exception: The iteration has failed, and this is the reason; `IterationFailed` with it where it is
                no exception.

        Cancelled: nothing is lost, ask again.
        """
        entry = await self._source.entry_after(previous_update_count)
        if entry.kind is Kind.FAIL:
            raise_reason(entry)
        return UpdateRecord(entry.value, entry.number if entry.kind is Kind.VALUE else None)

    async def completion(self) -> Any:
        """Wait for the end: the completion, or the reason raised."""
        count = None
        while True:
            record = await self.get_update_since(count)
            count = record.update_count
            if count is None:
                return record.value

    async def get_sharable_notifier_internals(self) -> Any:
        """What to give to another site: of it `jsclient.make_notifier` makes one that reads from the source."""
        return await self._source.internals()


class SubscriptionIterator(AsyncIterator[Any]):
    """A consumer's place in a subscription. Nothing is lost when a read is cancelled.

    Attributes:
        completion: The completion, once the iteration has finished and this was read; None before.
    """

    __slots__ = ("_closed", "_opening", "_reader", "_source", "_start", "completion")

    def __init__(self, source: SubscriptionSource, start: Any) -> None:
        self._source = source
        self._start = start
        self._opening = asyncio.Lock()
        self._reader: Reader | None = None
        self._closed = False
        self.completion: Any = None

    async def __anext__(self) -> Any:
        entry = await (self._reader or await self._open()).read()
        match entry.kind:
            case Kind.VALUE:
                return entry.value
            case Kind.FINISH:
                self.completion = entry.value
                raise StopAsyncIteration
            case _:
                raise_reason(entry)

    async def _open(self) -> Reader:
        async with self._opening:
            if self._closed:
                raise ClosedError("the iterator is closed: no value can be read")
            if self._reader is None:
                reader = await self._source.reader(self._start)
                if self._closed:  # meanwhile
                    await reader.close()
                self._reader = reader
            return self._reader

    def subscribe(self) -> IterationSubscription:
        """A subscription that starts at the position of this iterator."""
        reader = self._reader
        return IterationSubscription(self._source, self._start if reader is None else reader.position)

    async def aclose(self) -> None:
        """Stop reading, and release what is held on the server."""
        self._closed = True
        if self._reader is not None:
            await self._reader.close()


class IterationSubscription:
    """The consuming facet that is told of every value from where it starts.

    ``async for value in subscription`` gives them; it ends when the iteration finishes, and raises the reason when it
    fails. Each ``aiter`` starts anew and reads at its own pace.
    """

    __slots__ = ("_position", "_source")

    def __init__(self, source: SubscriptionSource, position: Any = None) -> None:
        self._source = source
        self._position = position

    def __aiter__(self) -> SubscriptionIterator:
        return SubscriptionIterator(self._source, self._position)

    async def completion(self) -> Any:
        """Wait for the end: the completion, or the reason raised."""
        iterator = aiter(self)
        try:
            async for _ in iterator:
                pass
        finally:
            await iterator.aclose()
        return iterator.completion

    async def get_sharable_subscription_internals(self) -> Any:
        """What to give to another site: of it `jsclient.make_subscription` makes one that reads from the source."""
        return await self._source.internals(self._position)


class NotifierIterator(AsyncIterator[Any]):
    """A consumer of a notifier. Reads at the same time get different states; a cancelled one loses nothing.

    Attributes:
        completion: The completion, once the iteration has finished and this was read; None before.
    """

    __slots__ = ("_count", "_source", "completion")

    def __init__(self, source: NotifierSource) -> None:
        self._source = source
        self._count: int | None = None
        self.completion: Any = None

    async def __anext__(self) -> Any:
        while True:
            asked = self._count
            entry = await self._source.entry_after(asked)
            if entry.kind is Kind.FAIL:
                raise_reason(entry)
            if entry.kind is Kind.FINISH:
                self.completion = entry.value
                raise StopAsyncIteration
            # Else another read at the same time was given this one.
            if self._count == asked or self._count is None or entry.number > self._count:
                self._count = entry.number
                return entry.value

    async def aclose(self) -> None:
        """Nothing more will be read."""


class NotifierKit(NamedTuple):
    """Both facets of an iteration of which the newest value counts."""

    updater: Producer
    notifier: Notifier


class SubscriptionKit(NamedTuple):
    """Both facets of an iteration of which every value counts."""

    publication: Producer
    subscription: IterationSubscription
