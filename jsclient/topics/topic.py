"""`Topic`: an ordered log under a subject, and its readers.

The readers differ in the records that they may skip. `Topic.latest` reads only the newest record of a subject, and
`Topic.table` keeps a mapping of the newest records. `Topic.each` reads every record from its start, and `Topic.since`
every record after a saved position. `Topic.epochs` reads each epoch completely or not at all.
`Topic.work` delivers each message to one worker until it is acked.
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
    """A reader that is not open yet: await it, use it with ``async with``, or loop over it with ``async for``."""

    _how = f"{Opening._how}; or loop over it with 'async for'"  # noqa: SLF001  its own class

    async def __aiter__(self) -> AsyncIterator[Record]:
        async with await self as reader:  # each loop has its own reader
            async for record in reader:
                yield record


class Topic:
    """An ordered log under a subject. `JetStream.topic` creates it, and sends no request before first use.

    Attributes:
        subject: The subject of its records. It may have wildcards, except for publishing.
    """

    def __init__(self, manager: StreamManager, subject: str, stream: str | None) -> None:
        self._manager = manager
        self._context = manager._context  # noqa: SLF001  shared by all handles
        self.subject: str = check_filter_subject(subject)
        self._stream = None if stream is None else check_stream_name(stream)

    if not TYPE_CHECKING:
        __reduce__ = no_pickle

    def __repr__(self) -> str:
        return f"<Topic {self.subject}>"

    async def log(self) -> StreamLog:
        """Return the log of the topic: the records of this subject in its stream.

        Raises:
            NoMatchingStreamError: No stream, or more than one, has the subject. StreamNotFoundError: The named stream
                does not exist. Also any request error.
        """
        return await find_log(self._context, self.subject, self._stream)

    async def _log_with_history(self, likely: str | None = None) -> StreamLog:
        """Like `log`, but raises `ConfigError` if the stream keeps no history, since its retention is not by limits."""
        log = await find_log(self._context, self.subject, self._stream, likely=likely)
        check_retention(log.config)
        return log

    async def create(self, **fields: Unpack[StreamFields]) -> StreamLog:
        """Create a stream for the topic if none exists. An existing stream is not changed.

        The new stream allows direct gets, and republishes the subject, so that the server keeps no state for readers.

        Args:
            fields: Further fields of its configuration: ``max_age``, ``storage``, ``num_replicas`` and so on.

        Raises:
            NoMatchingStreamError: Several streams have the subject. ConfigError: The retention of the existing stream
                is not by limits. Also any request error.
        """
        stream = await stream_for(self._manager, self.subject, self._stream, dict(fields))
        return StreamLog(self._context, stream, self.subject)

    def publisher(
        self, *, chained: bool = False, max_in_flight: int = 4000, timeout: float | None = None
    ) -> Opening[TopicPublisher]:
        """Return a publisher of the topic, which can also end it: ``async with topic.publisher() as pub``.

        Args:
            chained: Each record names its predecessor, and the server stores it only after the predecessor. So there
                are no gaps, even if records are lost in transit. The stream must have no other publisher: another
                publisher ends the chain with `ProducerFencedError`.
            max_in_flight: Records that may be in flight, or 1 for chained records on a replicated stream.
            timeout: Seconds within which each record must be stored, including restarts of servers. The default is the
                timeout of this connection. A record whose answer is lost is sent again if it has a ``msg_id`` or is
                chained.

        Raises:
            InvalidNameError: The subject has wildcards. ClosedError: The topic has ended.
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
        """Read every record after a start, in order, once, across restarts of servers and reconnects.

        A slow reader delays no other client, because it reads the history.

        Args:
            start: ``"first"`` reads all stored records, ``"now"`` new records only. A `Position`, its JSON token, or a
                ``datetime`` reads the records strictly after it.
            push: How the server pushes new records. ``"republish"`` needs no state on the server, but the stream must
                republish the subject. ``"consumer"`` needs a consumer, which the readers of this connection with the
                same subject share. With None there are no pushes, and the reader reads the history when it is idle.
                ``"auto"`` selects the first of these that is available. For a topic with wildcards, ``"republish"``
                keeps order within each subject only, and records may be repeated after resuming from a position.
                ``"consumer"`` and None keep one order, and ``"auto"`` does not select ``"republish"`` then.
            quiet: Seconds without a record after which the history is read, because a push may be lost.
            allow_truncated: Skip records that were removed before they were read, and report them with the event
                `HistoryTruncated`. Otherwise `HistoryTruncatedError` is raised.
            max_pending: Records in the local queue.
            heartbeat: Seconds between signs of life. After three of them without a sign, the event `HeartbeatMissed` is
                reported: a server is frozen, or the server of the reader's consumer is cut off from the others.
            after: A stream sequence in place of ``start``, such as `Record.seq` or the ``up_to_seq`` of
                `Stream.get_last_messages`. Records strictly after it are read. Unlike a `Position`, a sequence does not
                show that the stream was recreated.

        Opening the reader raises `NoMatchingStreamError`, `PositionInvalidError`, `ConfigError` if the retention of the
        stream is not by limits (use `work`), and the errors of any request. For a replicated stream,
        `PositionInvalidError` for a position after the end takes 10 s.
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
        """Read every record strictly after a saved `TopicReader.position`, or its JSON token.

        The call is equivalent to `each` with this start.

        Raises:
            PositionInvalidError: ``position`` is not a position token. Also the errors of `each`.
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
        """Read the newest record now and after each change, for ``async for``. Skipped records are never sent.

        If the stream republishes the subject, readers need no state on the server. Otherwise this process uses one
        ephemeral consumer while a reader waits.

        If the subject has wildcards, the reader returns the newest record of each subject, and then the newest record
        of each subject that has changed. A slow reader skips older records. Such a reader keeps a `table` open from its
        first read until it is closed, so use ``async with``.

        If the stream was deleted and created again, the reader continues with the new stream. It cannot detect this if
        the new stream already has a record with a later sequence than the last returned record. `Record.position` still
        names the deleted stream then, and `since` raises `PositionInvalidError` for it. Create a new reader in that
        case.

        Args:
            quiet: Seconds of waiting after which the newest record is requested again, because a push may be lost.

        Raises:
            ConfigError: ``quiet`` is not a time. The first read raises `NoMatchingStreamError`, `ConfigError` for the
                same reasons as `each`, and the errors of any request.
        """
        return LatestReader(partial(self._newest, check_seconds("quiet", quiet)), self._context)

    async def _newest(self, quiet: float) -> NewestSource:
        log = await self._log_with_history()
        if not log.is_one_subject:
            return SeveralSubjects(await open_table(log, check=quiet, quiet=quiet))
        # with codec "", records are returned without decoding
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
        """Keep a mapping from each subject to its newest record: ``async with topic.table() as table``.

        It opens with a snapshot (direct gets with server 2.11 and at most 1,024 subjects, otherwise a consumer) and
        then follows the log with a reader.

        Args:
            push, quiet, heartbeat: See `each`.
            check: Seconds between checks for messages that a purge, a deletion or a limit removed from the stream. If
                there are any, the sequences of the newest messages are read again, without payloads. This takes at
                most a millisecond for each subject: 20 s for 20,000 subjects.

        Raises:
            ConfigError: An argument is not a time. Opening the table raises the errors of `each`.
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
        order: Order[Any] = Int(),  # noqa: B008  it has no state
        *,
        partitions: int | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """Use this topic for epochs. Several publishers write it, and subscribers receive an epoch completely or not.

        See `JetStream.epochs`.
        """
        name = check_topic(self.subject)
        stream = check_stream_name(name.replace(".", "_") if self._stream is None else self._stream)
        return EpochTopic(StreamHome(self._manager, name, stream), order, partitions=partitions, codec=codec)

    def work(self, group: str, **config: Unpack[ConsumerFields]) -> Opening[PullSubscription]:
        """Deliver each message to one worker of a group, and again until it is acked.

        ``async with topic.work("billing") as work: await work.run(handler)``, in any number of processes. The group is
        a durable consumer: it is kept when all workers have stopped, and continues from its position.

        Args:
            group: The name of the group.
            config: Further fields of its `ConsumerConfig`, such as ``ack_wait`` and ``max_deliver``.

        Raises:
            InvalidNameError: The group is not a valid consumer name. Opening the subscription raises the errors of
                `JetStream.pull_subscribe`.
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
