"""`Topic`: an ordered log under a subject, and its readers.

The readers differ in the records that they may skip: `Topic.latest` reads only the newest record of a subject,
`Topic.table` keeps a mapping of them, `Topic.each` reads every record from its start, `Topic.since` every record after
a saved position, `Topic.epochs` all or nothing of each epoch.
`Topic.work` delivers each message to one worker until it is acked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from .._runtime.handle import Opening, no_pickle
from ..consumers.opening import open_pull_subscription
from ..consumers.pull_subscription import PullSubscription
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
from .log import HEARTBEAT, Push, SequenceStart, Start
from .log_reader import TopicReader, open_reader
from .notifiers.descriptors import notifier_descriptor
from .notifiers.newest import newest_log
from .notifiers.stream_notifier import StreamNotifier
from .publisher import TopicPublisher
from .stream_log import StreamLog, check_retention, find_log, stream_for
from .table import TopicTable, open_table

if TYPE_CHECKING:
    from ..protocol.models.consumer import ConsumerFields
    from ..protocol.models.stream_config import StreamFields

__all__ = ["Opening", "ReadOptions", "ReaderOpening", "Topic"]

T = TypeVar("T", bound=Hashable)


class ReadOptions(TypedDict, total=False):
    """Arguments of `Topic.each` that `Topic.since` takes too."""

    push: Push
    quiet: float
    allow_truncated: bool
    max_pending: int
    heartbeat: float


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

    if not TYPE_CHECKING:
        __reduce__ = no_pickle

    def __repr__(self) -> str:
        return f"<Topic {self.subject}>"

    async def log(self) -> StreamLog:
        """The log of the topic: the records of this subject in its stream.

        Raises:
            NoMatchingStreamError: Not exactly one stream holds the subject. StreamNotFoundError: The stream named does
                not exist. And those of any request.
        """
        return await find_log(self._context, self.subject, self._stream)

    async def _kept_log(self, likely: str | None = None) -> StreamLog:
        """As `log`. Raises `ConfigError` if the retention of the stream is not by limits: it keeps no history."""
        log = await find_log(self._context, self.subject, self._stream, likely=likely)
        check_retention(log.config)
        return log

    async def create(self, **fields: Unpack[StreamFields]) -> StreamLog:
        """Create a stream for the topic if none exists. An existing stream is not changed.

        The new stream republishes the subject, so that readers need no state on the server, and allows direct gets.

        Args:
            fields: Further fields of its configuration: ``max_age``, ``storage``, ``num_replicas`` and so on.

        Raises:
            NoMatchingStreamError: Several streams hold the subject. ConfigError: The retention of the existing stream
                is not by limits. And those of any request.
        """
        stream = await stream_for(self._manager, self.subject, self._stream, dict(fields))
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

        A slow reader delays no other client; it reads the history.

        Args:
            start: ``"first"``: all stored records; ``"now"``: new records only; a `Position` or its JSON token, or a
                ``datetime``: the records strictly after it.
            push: How the server pushes new records. ``"republish"`` needs no state on the server, but a stream that
                republishes the subject; ``"consumer"`` needs a consumer, which the readers of this connection with the
                same subject share; None: no pushes, the reader
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
        opened = partial(self._open, start, allow_truncated=allow_truncated, **options)
        return ReaderOpening(opened, "each()")

    def since(self, position: Position | str, **options: Unpack[ReadOptions]) -> ReaderOpening:
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
        log = await self._kept_log(likely=start.stream if isinstance(start, Position) else None)
        return TopicReader(await open_reader(log, start, extent=log.found, **options))

    def latest(self, *, quiet: float = 30.0) -> LatestReader:
        """Read the newest record, and then the newest since each read, for ``async for``. Others are never sent.

        If the stream republishes the subject, readers need no state on the server. Otherwise this process uses one
        ephemeral consumer while a reader waits.

        With wildcards: read the newest record of each subject, and then that of each subject that has changed; a slow
        reader skips older ones. Such a reader holds a `table` from its first read until it is closed: use
        ``async with``.

        If the stream was deleted and created again, the reader continues with the new one. If that already has a
        record with a later sequence than the last one returned, this cannot be seen: `Record.position` still names the
        deleted stream, and `since` raises `PositionInvalidError` for it. Create a new reader then.

        Args:
            quiet: Seconds of waiting after which the newest record is requested again, because a push may be lost.

        Raises:
            ConfigError: ``quiet`` is not a time. On first read: `NoMatchingStreamError`, `ConfigError` as `each`, and
                those of any request.
        """
        return LatestReader(partial(self._newest, check_seconds("quiet", quiet)), self._context)

    async def _newest(self, quiet: float) -> NewestSource:
        log = await self._kept_log()
        if not log.is_one_subject:
            return SeveralSubjects(await open_table(log, check=quiet, quiet=quiet))
        # "": records are returned as they are stored
        at = notifier_descriptor(self._context, log.handle, self.subject, "")
        context = self._context.without_stall_watches()  # the reader has one
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
        then follows with one reader.

        Args:
            push, quiet, heartbeat: As for `each`.
            check: Seconds between looks for messages that were removed from the stream by a purge, a deletion or a
                limit. If there are any, the sequences of the newest messages are read again, without payloads, at most
                once in a millisecond for each subject: 20 s for 20,000.

        Raises:
            ConfigError: An argument is not a time. When it is opened, as `each`.
        """
        options = {"push": push, "quiet": quiet, "heartbeat": check_seconds("heartbeat", heartbeat)}
        return Opening(partial(self._table, check_seconds("check", check), options), "table()")

    async def _table(self, check: float, options: dict[str, Any]) -> TopicTable:
        return await open_table(await self._kept_log(), check=check, **options)

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
        """The topic of epochs with this name: several publishers, and subscribers read all or nothing of an epoch.

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
            InvalidNameError: The group is not a valid consumer name. When it is opened, as `JetStream.pull_subscribe`.
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
