"""`Topic`: an ordered log under a subject, and its readers.

The readers differ in the records that they may skip: `Topic.latest` reads only the newest record, `Topic.each` every
record from its start, `Topic.since` every record after a saved position, `Topic.epochs` all or nothing of each epoch.
`Topic.work` delivers each message to one worker until it is acked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from .._runtime.handle import Opening, ReadHandle, State
from ..consumers.opening import open_pull_subscription
from ..consumers.pull_subscription import PullSubscription
from ..errors import ClosedError, ConfigError, InvalidNameError, RequestTimeoutError
from ..protocol.consumers.subscribe_request import SubscribeRequest
from ..protocol.epochs.frontier import Int, Order
from ..protocol.epochs.records import check_topic
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.topics.position import Position
from ..protocol.topics.record import Kind, Record
from ..protocol.topics.value_codec import Codec, JsonCodec
from ..protocol.wire.checks import check_count, check_seconds
from ..protocol.wire.names import (
    check_consumer_name,
    check_filter_subject,
    check_publish_subject,
    check_stream_name,
)
from ..streams.api import StreamManager
from .epochs.home import StreamHome
from .epochs.topic import EpochTopic
from .log import HEARTBEAT, Push, SequenceStart, Start, deadline_of
from .log_reader import TopicReader, open_reader, raise_end
from .notifiers.descriptors import notifier_descriptor
from .notifiers.newest import newest_log
from .notifiers.stream_notifier import StreamNotifier
from .publisher import TopicPublisher
from .stream_log import StreamLog, check_retention, find_log, stream_for

__all__ = ["LatestReader", "Opening", "ReaderOpening", "Topic"]


class LatestReader(ReadHandle[Record]):
    """Reads the newest record of a topic, for ``async for``: the newest one since the last read, and always the end.

    Records that are not read are never sent. It ends when the topic's producer has finished, and raises
    `IterationFailed` with the reason when it has failed. A cancelled read loses nothing. Created by `Topic.latest`.

    Attributes:
        completion: The completion of the topic, once it was read; None before.
    """

    def __init__(self, find: Callable[[], Awaitable[StreamNotifier]]) -> None:
        self._find = find
        self._source: StreamNotifier | None = None
        self._seen = 0
        self._ended = False
        self.completion: bytes | None = None

    def __repr__(self) -> str:
        return f"<LatestReader at {self._seen}>"

    async def current(self) -> Record:
        """The newest record, even if it was returned before. Waits only if no record exists.

        `next` continues after it. Raises as `next`.
        """
        record = await self._record_after(None)
        self._seen = record.seq
        return record

    async def next(self, timeout: float | None = None) -> Record:
        """The newest record, once one exists that was not returned before.

        Raises:
            RequestTimeoutError: No record arrived in ``timeout`` seconds.
            ClosedError: The topic has ended, or the connection was closed.
            IterationFailed: The producer has failed, for the reason in the error. And permanent errors of the server.
        """
        try:
            async with asyncio.timeout_at(deadline_of(timeout, asyncio.get_running_loop().time())):
                record = await self._record_after(self._seen or None)
        except TimeoutError:
            raise RequestTimeoutError("a newer record", timeout or 0.0) from None
        self._seen = record.seq
        return record

    async def _record_after(self, count: int | None) -> Record:
        if self.is_closed:
            raise ClosedError("the reader is closed: no record can be read")
        if self._source is None:
            self._source = await self._find()
        record = await self._source.record_after(count)
        if record.is_last:
            self._ended = True
            self.completion = record.data if record.kind is Kind.FINISH else None
            raise_end(record)
        return record

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            if not self._ended and not self.is_closed:
                raise  # the connection was closed
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Stop reading. Between reads nothing is held on the server."""
        self._state = State.CLOSED


class ReaderOpening(Opening[TopicReader]):
    """A reader that is still to be opened: await it, use ``async with``, or loop over it with ``async for``."""

    _how = f"{Opening._how}; or loop over it with 'async for'"  # noqa: SLF001  its own class

    async def __aiter__(self) -> AsyncIterator[Record]:
        async with await self as reader:  # each loop has its own reader
            async for record in reader:
                yield record


class Topic:
    """An ordered log under a subject. Created by `JetStream.topic`; no request is sent before first use.

    Attributes:
        subject: The subject of its records. It may have wildcards, except for publishing.
    """

    def __init__(self, manager: StreamManager, subject: str, stream: str | None) -> None:
        self._manager = manager
        self._context = manager._context  # noqa: SLF001  shared by all handles
        self.subject: str = check_filter_subject(subject)
        self._stream = None if stream is None else check_stream_name(stream)

    def __repr__(self) -> str:
        return f"<Topic {self.subject}>"

    async def log(self) -> StreamLog:
        """The log of the topic: the records of this subject in its stream.

        Raises:
            NoMatchingStreamError: Not exactly one stream holds the subject. StreamNotFoundError: The stream named does
                not exist. And those of any request.
        """
        return await find_log(self._context, self.subject, self._stream)

    async def _kept_log(self) -> StreamLog:
        """As `log`. Raises `ConfigError` if the retention of the stream is not by limits: it keeps no history."""
        log = await self.log()
        check_retention(log.config)
        return log

    async def create(self, **fields: Any) -> StreamLog:
        """Create a stream for the topic if none exists. An existing stream is not changed.

        The new stream republishes the subject, so that readers need no state on the server, and allows direct gets.

        Args:
            fields: Further fields of its configuration: ``max_age``, ``storage``, ``num_replicas`` and so on.

        Raises:
            NoMatchingStreamError: Several streams hold the subject. ConfigError: The retention of the existing stream
                is not by limits. And those of any request.
        """
        stream = await stream_for(self._manager, self.subject, self._stream, fields)
        return StreamLog(self._context, stream, self.subject)

    def publisher(
        self, *, chained: bool = False, max_in_flight: int = 4000, timeout: float | None = None
    ) -> Opening[TopicPublisher]:
        """Publish to the topic, and end it: ``async with topic.publisher() as pub``.

        Args:
            chained: Each record names its predecessor, and the server stores it only if that one is stored: there are
                no gaps, even if records are lost in transit. The stream must have no other publisher; another one ends
                the chain with `ProducerFencedError`.
            max_in_flight: Records that may be in flight; 1 for chained records on a replicated stream.
            timeout: Seconds within which each record must be stored, including restarts of servers; by default that of
                this connection. A record whose answer is lost is sent again if it has an id: ``msg_id``, or chained.

        Raises:
            InvalidNameError: The subject has wildcards. ClosedError: The topic has ended.
        """
        check_publish_subject(self.subject)
        opened = partial(
            TopicPublisher.open, self.log, chained=chained, max_in_flight=max_in_flight, timeout=timeout
        )
        return Opening(opened)

    def each(
        self,
        start: Start = "first",
        *,
        push: Push = "auto",
        quiet: float = 30.0,
        allow_truncated: bool = False,
        max_pending: int = 10_000,
        heartbeat: float = HEARTBEAT,
        after: int | None = None,
    ) -> ReaderOpening:
        """Read every record after a start, in order, once, across restarts of servers and reconnects.

        A slow reader delays no other client; it reads the history.

        Args:
            start: ``"first"``: all stored records; ``"now"``: new records only; a `Position` or its JSON token, or a
                ``datetime``: the records strictly after it.
            push: How the server pushes new records. ``"republish"`` needs no state on the server, but a stream that
                republishes the subject; ``"consumer"`` needs a consumer for each reader; None: no pushes, the reader
                reads the history when it is idle. ``"auto"`` selects the first that is available. For a topic with
                wildcards ``"republish"`` keeps order within each subject only, and records may be repeated after
                resuming from a position; ``"consumer"`` and None keep one order, and ``"auto"`` does not select
                ``"republish"`` then.
            quiet: Seconds without a record after which the history is read, because a push may be lost.
            allow_truncated: Skip records that were removed before they were read, and report them with the event
                `HistoryTruncated`. Otherwise `HistoryTruncatedError` is raised.
            max_pending: Records in the local queue.
            heartbeat: Seconds. After three of them without a sign of life, because a server is frozen or that of the
                reader's consumer is cut off from the others, the event `HeartbeatMissed` is reported.
            after: In place of ``start``: a stream sequence, such as `Record.seq` or the ``up_to_seq`` of
                `Stream.get_last_messages`. Records strictly after it are read. Unlike a `Position`, a sequence does not
                show that the stream was recreated.

        Raises: when it is opened, `NoMatchingStreamError`, `PositionInvalidError`, `ConfigError` if the retention of
            the stream is not by limits (use `work`), and those of any request. For a replicated stream,
            `PositionInvalidError` for a position after the end takes 10 s.
        """
        check_seconds("heartbeat", heartbeat)
        if after is not None:
            check_count("after", after, 0)
            if start != "first":
                raise ConfigError("start and after are given: omit one of them")
            start = SequenceStart(after)
        options = {"push": push, "quiet": quiet, "max_pending": max_pending, "heartbeat": heartbeat}
        return ReaderOpening(partial(self._open, start, allow_truncated=allow_truncated, **options))

    def since(self, position: Position | str, **options: Any) -> ReaderOpening:
        """Read every record strictly after a saved `TopicReader.position`, or its JSON token.

        The same as `each` with this start.

        Raises:
            PositionInvalidError: It is not a position token. And as `each`.
        """
        if isinstance(position, str):
            position = Position.from_json(position)
        if not isinstance(position, Position):
            raise ConfigError(
                f"position is {type(position).__name__}: a Position or its JSON token is needed; "
                "without a saved position, start with each()"
            )
        return self.each(position, **options)

    async def _open(self, start: Start, **options: Any) -> TopicReader:
        log = await self._kept_log()
        return TopicReader(await open_reader(log, start, extent=log.found, **options))

    def latest(self, *, quiet: float = 30.0) -> LatestReader:
        """Read the newest record, and then the newest since each read, for ``async for``. Others are never sent.

        If the stream republishes the subject, readers need no state on the server. Otherwise this process uses one
        ephemeral consumer while a reader waits.

        Args:
            quiet: Seconds of waiting after which the newest record is requested again, because a push may be lost.

        Raises:
            InvalidNameError: The subject has wildcards. ConfigError: ``quiet`` is not a time. On first read:
                `NoMatchingStreamError`, `ConfigError` as `each`, and those of any request.
        """
        if any(token in ("*", ">") for token in self.subject.split(".")):
            raise InvalidNameError(
                "subject",
                self.subject,
                "latest() reads one subject: for several, read Stream.get_last_messages(), then each(after=up_to_seq)",
            )
        return LatestReader(partial(self._notifier, check_seconds("quiet", quiet)))

    async def _notifier(self, quiet: float) -> StreamNotifier:
        log = await self._kept_log()
        # "": records are returned as they are stored
        at = notifier_descriptor(self._context, log.handle, self.subject, "")
        return StreamNotifier(
            newest_log(self._context, at, quiet=quiet, origin=log.origin), JsonCodec(), quiet=quiet
        )

    def epochs(
        self,
        order: Order[Any] = Int(),  # noqa: B008  it has no state
        *,
        partitions: int | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """The topic of epochs with this name: several publishers, and subscribers read all or nothing of an epoch.

        See `JetStream.epochs`.
        """
        name = check_topic(self.subject)
        stream = check_stream_name(name.replace(".", "_") if self._stream is None else self._stream)
        return EpochTopic(StreamHome(self._manager, name, stream), order, partitions=partitions, codec=codec)

    def work(self, group: str, **config: Any) -> Opening[PullSubscription]:
        """Deliver each message to one worker of a group, and again until it is acked.

        ``async with topic.work("billing") as work: await work.run(handler)``, in any number of processes. The group is
        a durable consumer: it is kept when all workers have stopped, and continues from its position.

        Args:
            group: The name of the group.
            config: Further fields of its `ConsumerConfig`, such as ``ack_wait`` and ``max_deliver``.

        Raises:
            InvalidNameError: The group is not a valid consumer name. When it is opened, as `JetStream.pull_subscribe`.
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
