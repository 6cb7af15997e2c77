"""A topic: an ordered log under a subject, and the readers that stand at a position in it.

The readers differ in what they may miss and how they learn of it: `Topic.latest` sees the newest record only,
`Topic.each` every one from its start, `Topic.since` every one after a position that outlives the process,
`Topic.epochs` all or nothing of each epoch, and of `Topic.work` each message goes to one worker until it is acked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ._runtime.context import Context
from .errors import ClosedError, ConfigError, IterationFailed
from .protocol.models.consumer import ConsumerConfig
from .protocol.names import (
    check_consumer_name,
    check_filter_subject,
    check_publish_subject,
    check_stream_name,
)
from .protocol.position import Position
from .protocol.record import Kind, Record
from .protocol.request import SubscribeRequest
from .pull_subscription import PullSubscription
from .reader import LogReader, Push, Start, open_reader
from .stream_log import StreamLog, find_log
from .subscribing import open_pull_subscription
from .topic_publisher import TopicPublisher

__all__ = ["Opening", "Topic", "TopicReader"]


HandleT = TypeVar("HandleT", bound=AbstractAsyncContextManager[Any])


class TopicReader:
    """Reads a topic, for ``async for``: each record once, in order, until the topic ends. Made by `Topic.each`.

    It ends when the topic's producer has finished, and raises `IterationFailed` with the reason when it has failed.
    A cancelled read loses nothing.

    Attributes:
        completion: What the producer finished with, once that was read; None before.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.completion: bytes | None = None

    @property
    def position(self) -> Position:
        """After the last record that was handed out. `Topic.since` goes on from there, in another process too."""
        return self._reader.position

    @property
    def pending(self) -> int:
        """Records that wait here."""
        return self._reader.pending

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._reader.is_closed

    def __repr__(self) -> str:
        return repr(self._reader).replace("LogReader", "TopicReader")

    def set_push(self, push: Push) -> None:
        """From now on have pushes, or only ask when it is quiet; see `Topic.each`. Nothing is lost by it."""
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """The next record.

        Raises:
            RequestTimeoutError: None came in ``timeout`` seconds.
            ClosedError: Nothing follows: the topic has ended, or this was closed.
            IterationFailed: The producer has failed; the reason is in it.
            HistoryTruncatedError: Records were removed before they were read; ``first_available`` is the first there.
            PositionInvalidError: The stream was made anew. And what the server refuses for good.
        """
        record = await self._reader.next(timeout)
        if record.is_last:
            if record.kind is Kind.FAIL:
                raise IterationFailed(record.data.decode(errors="replace"))
            self.completion = record.data
            raise ClosedError("the topic has ended")
        return record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Nothing more is read: what is held on the server is given back."""
        await self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Opening(Generic[HandleT]):
    """A handle that is yet to be opened: await it, or use it with ``async with``."""

    def __init__(self, opened: Callable[[], Awaitable[HandleT]]) -> None:
        self._opened = opened
        self._handle: HandleT | None = None

    def __await__(self) -> Generator[Any, None, HandleT]:
        return self._opened().__await__()

    async def __aenter__(self) -> HandleT:
        self._handle = await self._opened()
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(kind, error, trace)


class ReaderOpening(Opening[TopicReader]):
    """A reader of a topic: await it, use it with ``async with``, or loop over it at once with ``async for``."""

    async def __aiter__(self) -> AsyncIterator[Record]:
        async with self as reader:
            async for record in reader:
                yield record


class Topic:
    """An ordered log under a subject. Made by `JetStream.topic`; nothing is asked of the server before it is used.

    Attributes:
        subject: Which records; wildcards allowed, but not to publish.
    """

    def __init__(self, context: Context, subject: str, stream: str | None) -> None:
        self._context = context
        self.subject = check_filter_subject(subject)
        self._stream = None if stream is None else check_stream_name(stream)

    def __repr__(self) -> str:
        return f"<Topic {self.subject}>"

    async def log(self) -> StreamLog:
        """The log that it stands on: the stream's records of this subject.

        Raises:
            NoMatchingStreamError: Not exactly one stream holds the subject. StreamNotFoundError: The one that was
                named is not there. And those of any request.
        """
        return await find_log(self._context, self.subject, self._stream)

    # --- producing -------------------------------------------------------------------------------------------

    def publisher(self, *, chained: bool = False, max_in_flight: int = 4000) -> Opening[TopicPublisher]:
        """Publish to the topic, and end it: ``async with topic.publisher() as pub``.

        Args:
            chained: Each record names the one before it, and the server stores none whose predecessor is not there: a
                hole cannot come to be, also where records are lost on their way. For one producer on a stream that has
                nothing else; another one ends it with `ProducerFencedError`.
            max_in_flight: Records that may be on their way at a time.

        Raises:
            ConfigError: The subject has wildcards. ClosedError: The topic has ended.
        """
        check_publish_subject(self.subject)
        return Opening(partial(TopicPublisher.open, self.log, chained=chained, max_in_flight=max_in_flight))

    # --- reading ---------------------------------------------------------------------------------------------

    def each(
        self,
        start: Start = "first",
        *,
        push: Push = "auto",
        quiet: float = 30.0,
        allow_truncated: bool = False,
        max_pending: int = 10_000,
    ) -> ReaderOpening:
        """Every record from a start on, in order, once, whatever becomes of servers and connections.

        A slow reader slows nobody; it reads the history.

        Args:
            start: ``"first"``: all that is stored; ``"now"``: what comes from now on; after a `Position`; or after a
                ``datetime``.
            push: How the server tells of new records, which is a hint and no more: ``"republish"``, where the stream
                republishes the subject, costs the server nothing for a reader; ``"consumer"`` is a consumer for each;
                None: no pushes, it asks when nothing came for a while. ``"auto"`` takes the first that there is.
            quiet: Seconds without a record after which it asks whether pushes were lost.
            allow_truncated: Read on where records were removed before they were read; the event `HistoryTruncated`
                tells of it. Else that raises `HistoryTruncatedError`.
            max_pending: Records that may wait here.

        Raises: where it is opened, `NoMatchingStreamError`, `PositionInvalidError`, and those of any request.
        """
        options = {
            "push": push,
            "quiet": quiet,
            "allow_truncated": allow_truncated,
            "max_pending": max_pending,
        }
        return ReaderOpening(partial(self._open, start, options))

    def since(self, position: Position | str, **options: Any) -> ReaderOpening:
        """Every record strictly after a position that was kept: `TopicReader.position`, or its JSON token.

        All else as `each`.

        Raises:
            PositionInvalidError: The text is no position; or, where it is opened: the stream is another one.
        """
        if isinstance(position, str):
            position = Position.from_json(position)
        if not isinstance(position, Position):
            raise ConfigError(
                f"position is {type(position).__name__}: a Position or its JSON token is needed"
            )
        return self.each(position, **options)

    async def _open(self, start: Start, options: dict[str, Any]) -> TopicReader:
        return TopicReader(await open_reader(await self.log(), start, **options))

    def work(self, group: str, **config: Any) -> Opening[PullSubscription]:
        """Each message to one of the group's workers, redelivered until it is acked.

        ``async with topic.work("billing") as work: await work.run(handler)``. Any number of processes may do so. The
        group is a durable consumer: it stays when all have left, and goes on from there.

        Args:
            group: Its name.
            config: What else its `ConsumerConfig` is to have, such as ``ack_wait`` and ``max_deliver``.

        Raises:
            InvalidNameError: The group's name is no consumer name. Where it is opened, as `JetStream.pull_subscribe`.
        """
        request = SubscribeRequest(
            subject=self.subject,
            stream=self._stream,
            durable=check_consumer_name(group, "group"),
            config=ConsumerConfig(**config),
            pull=True,
        )
        return Opening(partial(self._work, request))

    async def _work(self, request: SubscribeRequest) -> PullSubscription:
        return await open_pull_subscription(self._context, request, delete_on_close=False)
