"""`Topic`, an ordered log under a subject, and its readers.

The readers differ in which records they may skip. `Topic.latest` reads only the newest record of a subject, and
`Topic.table` keeps a mapping of the newest records. `Topic.each` reads every record from a start, and `Topic.since`
reads every record after a saved position. `Topic.epochs` reads each epoch completely or not at all. `Topic.work`
delivers each message to one worker until it is acked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .._runtime.handle import Opening, no_pickle
from ..consumers.opening import open_pull_subscription
from ..consumers.pull.subscription import PullSubscription
from ..errors import ConfigError
from ..protocol.consumers.subscribe_request import SubscribeRequest
from ..protocol.epochs.frontier import Int, Order
from ..protocol.epochs.records import check_topic
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
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
from .latest import LatestReader, NewestSource, OneSubject, SeveralSubjects
from .log import HEARTBEAT, Push, ReadOptions, SequenceStart, Start
from .log_reader import open_reader
from .notifiers.descriptors import notifier_descriptor
from .notifiers.newest import newest_log
from .notifiers.stream_notifier import StreamNotifier
from .publisher import TopicPublisher
from .stream_log import StreamLog, check_retention, find_log, stream_for
from .table import TopicTable, open_table
from .topic_reader import TopicReader

if TYPE_CHECKING:
    from ..protocol.models.consumer import ConsumerFields
    from ..protocol.models.stream_config import StreamFields

__all__ = ["Opening", "ReaderOpening", "Topic"]

T = TypeVar("T", bound=Hashable)


class ReaderOpening(Opening[TopicReader]):
    """A reader that hasn't been opened yet. Returned by `Topic.each` and `Topic.since`.

    Open the reader with ``async with`` or ``await``. ``async for`` also opens a reader, and closes it at the end of the
    loop. Each ``async for`` opens a new reader, so a second loop starts at the beginning again.
    """

    _how = f"{Opening._how}; or loop over it with 'async for'"  # noqa: SLF001  attribute of a base class

    async def __aiter__(self) -> AsyncIterator[Record]:
        # Open a new reader for each loop, so that a second loop starts from the beginning again.
        async with await self as reader:
            async for record in reader:
                yield record


class Topic:
    """A subject seen as an ordered log, which can be read in several ways. Created by `JetStream.topic`.

    Choose the reader that fits the data:

    - `each` returns every record, and `since` every record after a saved position.
    - `latest` returns only the latest record, and `table` keeps the latest record of every subject.
    - `work` shares the messages among several workers.
    - `Topic.epochs` delivers records in groups, each of them completely or not at all.

    Creating a topic sends no request. The stream is looked up when one of the methods needs it.

    Attributes:
        subject: The subject of the records. If it contains wildcards, the topic can only be read.
    """

    def __init__(self, manager: StreamManager, subject: str, stream: str | None) -> None:
        self._manager = manager
        self._context = manager._context  # noqa: SLF001  shared by all handles of a connection
        self.subject: str = check_filter_subject(subject)
        self._stream = None if stream is None else check_stream_name(stream)

    if not TYPE_CHECKING:
        __reduce__ = no_pickle

    def __repr__(self) -> str:
        return f"<Topic {self.subject}>"

    async def log(self) -> StreamLog:
        """Look up the stream, and return the log from which the readers of this topic read.

        Use the log for single requests, such as `StreamLog.last`. You don't need it to open a reader.

        Raises:
            NoMatchingStreamError: No stream stores the subject, or several streams store parts of it.
            StreamNotFoundError: The topic was created with the name of a stream that doesn't exist.
            ConfigError: The topic was created with the name of a stream that doesn't store the subject.
            RequestTimeoutError: The server didn't answer in time.

        May also raise any other request error.
        """
        return await find_log(self._context, self.subject, self._stream)

    async def _log_with_history(self, likely: str | None = None) -> StreamLog:
        """Like `log`, but raise `ConfigError` if the stream keeps no history, because its retention isn't by limits."""
        log = await find_log(self._context, self.subject, self._stream, likely=likely)
        check_retention(log.config)
        return log

    async def create(self, **fields: Unpack[StreamFields]) -> StreamLog:
        """Create a stream for the topic, unless a stream already stores its subject.

        Call `create` before the first use of a topic if you don't manage streams yourself. The new stream allows direct
        gets and republishes the subject, so readers need no consumer on the server. An existing stream is never
        changed.

        Args:
            fields: Further configuration of a new stream, such as ``max_age``, ``storage`` and ``num_replicas``.

        Returns:
            The log of the topic in the new or existing stream.

        Raises:
            NoMatchingStreamError: Several streams store parts of the subject.
            ConfigError: The existing stream stores only a part of the subject, or its retention isn't ``limits``, so it
                wouldn't keep records after they were read.

        May also raise any request error.
        """
        stream = await stream_for(self._manager, self.subject, self._stream, dict(fields))
        return StreamLog(self._context, stream, self.subject)

    def publisher(
        self, *, chained: bool = False, max_in_flight: int = 4000, timeout: float | None = None
    ) -> Opening[TopicPublisher]:
        """Open a publisher, which publishes records to the topic and can end the topic.

        Use it with ``async with``, which waits at the end until all records have been stored::

            async with topic.publisher() as publisher:
                for reading in readings:
                    await publisher.publish(reading)

        Args:
            chained: If true, the server stores each record only directly after the previous one. When a record is lost
                in transit, the records after it are refused and then sent again, so the topic has no gap and keeps its
                order. No other client may publish to the stream, or `ProducerFencedError` is raised.
            max_in_flight: Maximum number of records that are sent but not yet acked. If the stream is replicated,
                chained records are always sent one at a time.
            timeout: How long to keep trying to store a record, in seconds, including restarts of servers. Defaults to
                the timeout of the connection. If an ack is lost, the record is sent again only if it is chained or has
                a ``msg_id``. Any other record might be stored twice.

        Raises:
            InvalidNameError: The subject contains wildcards.
            ClosedError: The topic has ended. Raised when the publisher is opened.

        Opening the publisher may also raise any error of `log`.
        """
        check_publish_subject(self.subject)
        opened = partial(
            TopicPublisher.open, self.log, chained=chained, max_in_flight=max_in_flight, timeout=timeout
        )
        return Opening(opened, "publisher()")

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
        """Read every record exactly once and in order, across reconnects and restarts of servers.

        Iterate over the result, or open the reader with ``async with`` if you need its methods::

            async for record in topic.each("now"):
                print(record.subject, record.data)

        A slow reader doesn't delay other clients, and its memory is bounded. When its local queue is full, it leaves
        the following records in the stream and reads them later.

        Args:
            start: Where to start. ``"first"`` reads all stored records, and ``"now"`` only new records. A `Position`,
                its JSON token, or a ``datetime`` reads the records strictly after it.
            push: How the server pushes new records. ``"republish"`` uses a plain NATS subscription and no state on the
                server, but the stream must republish the subject. ``"consumer"`` creates a consumer, which is shared by
                all readers of this connection with the same subject. With None, records aren't pushed, and the reader
                checks the stream at intervals. ``"auto"`` selects the first of these ways that is available. If the
                subject contains wildcards, ``"republish"`` keeps the order only within each subject, and may repeat
                records after resuming from a position, so ``"auto"`` doesn't select it for such a topic.
            quiet: If no record arrives for this many seconds, check the stream for records whose push was lost. This
                limits the delay that a lost push can cause.
            allow_truncated: If true, skip records that were removed from the stream before they were read, and report
                them with the event `HistoryTruncated`. By default, `HistoryTruncatedError` is raised.
            max_pending: Maximum number of records in the local queue.
            heartbeat: Interval between heartbeats of the server, in seconds. If three in a row are missing, the event
                `HeartbeatMissed` is reported. This happens when a server is frozen, or when the server of the reader's
                consumer is cut off from the cluster.
            after: A stream sequence to use instead of ``start``, such as `Record.seq` or the ``up_to_seq`` of
                `Stream.get_last_messages`. The reader starts with the record after this sequence. Prefer a `Position`
                if the stream may be created again, because a sequence doesn't show which stream it belongs to.

        Raises:
            ConfigError: An argument is invalid. Opening the reader also raises this error if the stream doesn't keep
                records after they were read, because its retention isn't ``limits``. Use `work` for such a stream.
            NoMatchingStreamError: Opening the reader found no stream that stores the subject, or several streams that
                store parts of it.
            PositionInvalidError: Opening the reader found that the position is in a different stream, or after the end
                of the stream. If the stream is replicated, this check takes at least 10 seconds.

        Opening the reader may also raise any request error.
        """
        check_seconds("heartbeat", heartbeat)
        if after is not None:
            check_count("after", after, 0)
            if start != "first":
                raise ConfigError("start and after are given: omit one of them")
            start = SequenceStart(after)
        options = {"push": push, "quiet": quiet, "max_pending": max_pending, "heartbeat": heartbeat}
        opened = partial(self._open_reader, start, allow_truncated=allow_truncated, **options)
        return ReaderOpening(opened, "each()")

    def since(self, position: Position | str, **options: Unpack[ReadOptions]) -> ReaderOpening:
        """Read every record after a saved position.

        This is the way to continue after a restart, even in a different process::

            async with topic.since(load_position()) as reader:
                async for record in reader:
                    await handle(record)
                    save_position(reader.position.to_json())

        It is equivalent to ``topic.each(position)``, and takes the other arguments of `each`.

        Args:
            position: The `TopicReader.position` at which to resume, or the JSON token returned by its ``to_json()``.

        Raises:
            PositionInvalidError: ``position`` is a string, but not the JSON token of a position.
            ConfigError: ``position`` is neither a position nor a string, for example None because nothing was saved
                yet. Use `each` the first time.

        Opening the reader raises the errors described by `each`.
        """
        if isinstance(position, str):
            position = Position.from_json(position)
        if not isinstance(position, Position):
            raise ConfigError(
                f"position is {type(position).__name__}: a Position or its JSON token is needed; "
                "without a saved position, start with each()"
            )
        return self.each(position, **options)

    async def _open_reader(self, start: Start, **options: Any) -> TopicReader:
        log = await self._log_with_history(likely=start.stream if isinstance(start, Position) else None)
        return TopicReader(await open_reader(log, start, extent=log.known_extent, **options))

    def latest(self, *, quiet: float = 30.0) -> LatestReader:
        """Read the latest record, and then the latest record after each change.

        Use `latest` for state, where only the most recent record matters. A slow reader skips the records in between,
        and the server never sends them::

            async for record in topic.latest():
                show(record.data)

        If the stream republishes the subject, the server keeps no state for the reader. Otherwise, all readers of a
        connection share an ephemeral consumer while they wait.

        If the subject contains wildcards, the reader first returns the latest record of each subject, and then the
        latest record of each subject that changes. Such a reader keeps a `table` open from its first read until it is
        closed, so use it with ``async with``.

        If the stream is deleted and created again, the reader continues with the new stream. However, the reader can't
        notice the change if the new stream already contains a later sequence than the last record returned. The
        `Record.position` of further records then refers to the deleted stream, so `since` raises `PositionInvalidError`
        for such a position. Create a new reader to get valid positions again.

        Args:
            quiet: If a waiting reader receives nothing for this many seconds, it requests the latest record again. This
                limits the delay that a lost push can cause.

        Raises:
            ConfigError: ``quiet`` isn't a valid duration. The first read also raises this error if the stream doesn't
                keep records after they were read.

        The first read looks up the stream, so it may also raise `NoMatchingStreamError` and any request error.
        """
        return LatestReader(partial(self._newest, check_seconds("quiet", quiet)), self._context)

    async def _newest(self, quiet: float) -> NewestSource:
        log = await self._log_with_history()
        if not log.is_one_subject:
            return SeveralSubjects(await open_table(log, check=quiet, quiet=quiet))
        # The reader returns records and never decodes them, so the descriptor names no codec.
        at = notifier_descriptor(self._context, log.handle, self.subject, "")
        context = self._context.without_stall_watches()  # the reader has its own watch
        newest = newest_log(context, at, quiet=quiet, origin=log.origin)
        return OneSubject(StreamNotifier(newest, JsonCodec(), quiet=quiet), log)

    def table(
        self,
        *,
        push: Push = "auto",
        quiet: float = 30.0,
        check: float = 30.0,
        heartbeat: float = HEARTBEAT,
    ) -> Opening[TopicTable]:
        """Open a table, which maps each subject of the topic to its latest record and is kept current.

        Use it when you need random access to the current state. Reading the table sends no request::

            async with topic.table() as table:
                print(table["sensors.7"].data)

        Opening the table reads a snapshot of the latest records. After that, the table follows the topic like a reader.
        With nats-server 2.11 or later and at most 1,024 subjects, the snapshot takes a single direct get. Otherwise, a
        consumer delivers it.

        Args:
            push: How the server pushes new records. See `each` for the values.
            quiet: If no record arrives for this many seconds, check the stream for records whose push was lost.
            heartbeat: Interval between heartbeats of the server, in seconds. See `each`.
            check: Interval between checks for messages that were removed from the stream by a purge, a deletion or a
                limit, in seconds. If messages were removed, the table is compared with the stream, without reading
                payloads. A large table is compared less often, with a pause of at least one millisecond for each
                subject, which is 20 seconds for 20,000 subjects.

        Raises:
            ConfigError: An argument isn't a valid duration.

        Opening the table may raise any error described by `each`.
        """
        options = {"push": push, "quiet": quiet, "heartbeat": check_seconds("heartbeat", heartbeat)}
        return Opening(partial(self._table, check_seconds("check", check), options), "table()")

    async def _table(self, check: float, options: dict[str, Any]) -> TopicTable:
        return await open_table(await self._log_with_history(), check=check, **options)

    @overload
    def epochs(self, *, partitions: int | None = None, codec: Codec | None = None) -> EpochTopic[int]: ...
    @overload
    def epochs(
        self, order: Order[T], *, partitions: int | None = None, codec: Codec | None = None
    ) -> EpochTopic[T]: ...
    def epochs(
        self,
        order: Order[Any] = Int(),  # noqa: B008  the default has no state
        *,
        partitions: int | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """Return an epoch topic named after the subject of this topic.

        An epoch topic delivers records in groups, and each group completely or not at all. This method is a shortcut
        for `JetStream.epochs`, which explains the arguments.
        """
        name = check_topic(self.subject)
        stream = check_stream_name(name.replace(".", "_") if self._stream is None else self._stream)
        return EpochTopic(StreamHome(self._manager, name, stream), order, partitions=partitions, codec=codec)

    def work(self, group: str, **config: Unpack[ConsumerFields]) -> Opening[PullSubscription]:
        """Join a group of workers that share the messages of the topic.

        Each message is delivered to one worker of the group. If the worker doesn't ack it in time, the message is
        redelivered, possibly to a different worker. Run the same code in as many processes as you need::

            async with topic.work("billing") as work:
                await work.run(handler)

        A durable consumer stores the progress of the group. The consumer remains when all workers have stopped, so
        later workers continue where the group stopped.

        Args:
            group: Name of the group, which becomes the name of the durable consumer.
            config: Further configuration of the consumer, such as ``ack_wait`` and ``max_deliver``.

        Raises:
            InvalidNameError: ``group`` isn't a valid name for a consumer.

        Opening the subscription may raise any error of `JetStream.pull_subscribe`.
        """
        request = SubscribeRequest(
            subject=self.subject,
            stream=self._stream,
            durable=check_consumer_name(group, "group"),
            config=ConsumerConfig(**config),
            pull=True,
        )
        return Opening(partial(self._work, request), "work()")

    async def _work(self, request: SubscribeRequest) -> PullSubscription:
        return await open_pull_subscription(self._context, request, delete_on_close=False)
