"""A topic: an ordered log under a subject, and the readers that stand at a position in it.

The readers differ in what they may miss and how they learn of it: `Topic.latest` sees the newest record only,
`Topic.each` every one from its start, `Topic.since` every one after a position that outlives the process,
`Topic.epochs` all or nothing of each epoch, and of `Topic.work` each message goes to one worker until it is acked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from .._runtime.awaitable import Opening
from .._runtime.publish import check_time
from ..consumers.opening import open_pull_subscription
from ..consumers.pull_subscription import PullSubscription
from ..errors import ConfigError
from ..protocol.consumers.subscribe_request import SubscribeRequest
from ..protocol.epochs.frontier import Int, Order
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.streams.republish import republished_subject
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.topics.value_codec import Codec, JsonCodec
from ..protocol.wire.names import (
    check_consumer_name,
    check_filter_subject,
    check_publish_subject,
    check_stream_name,
)
from ..streams.api import StreamManager
from .epochs.home import StreamHome
from .epochs.schema import check_topic
from .epochs.topic import EpochTopic
from .log_reader import Push, Start, open_reader
from .notifiers.descriptors import NotifierDescriptor
from .notifiers.newest import newest_log
from .notifiers.stream_notifier import StreamNotifier
from .publisher import TopicPublisher
from .readers import LatestReader, TopicReader
from .stream_log import StreamLog, find_log
from .topic_stream import check_retention, stream_for

__all__ = ["Opening", "ReaderOpening", "Topic"]


class ReaderOpening(Opening[TopicReader]):
    """A reader of a topic: await it, use it with ``async with``, or loop over it at once with ``async for``."""

    _how = f"{Opening._how}; or loop over it with 'async for'"  # noqa: SLF001  its own class

    async def __aiter__(self) -> AsyncIterator[Record]:
        async with await self as reader:  # each loop has a reader of its own
            async for record in reader:
                yield record


class Topic:
    """An ordered log under a subject. Made by `JetStream.topic`; nothing is asked of the server before it is used.

    Attributes:
        subject: Which records; wildcards allowed, but not to publish.
    """

    def __init__(self, manager: StreamManager, subject: str, stream: str | None) -> None:
        self._manager = manager
        self._context = manager._context  # noqa: SLF001  what all handles are made of
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

    async def create(self, **fields: Any) -> StreamLog:
        """Make a stream for the topic, if there is none; one that is there is left as it is.

        It republishes the subject, so that readers cost the server nothing, and answers direct gets.

        Args:
            fields: What else its configuration is to have: ``max_age``, ``storage``, ``num_replicas`` and so on.

        Raises:
            NoMatchingStreamError: Several streams hold the subject. ConfigError: One does that has another retention
                than by limits. And those of any request.
        """
        stream = await stream_for(self._manager, self._context, self.subject, self._stream, fields)
        return StreamLog(self._context, stream, self.subject)

    # --- producing -------------------------------------------------------------------------------------------

    def publisher(
        self, *, chained: bool = False, max_in_flight: int = 4000, timeout: float | None = None
    ) -> Opening[TopicPublisher]:
        """Publish to the topic, and end it: ``async with topic.publisher() as pub``.

        Args:
            chained: Each record names the one before it, and the server stores none whose predecessor is not there: a
                hole cannot come to be, also where records are lost on their way. For one producer on a stream that has
                nothing else; another one ends it with `ProducerFencedError`.
            max_in_flight: Records that may be on their way at a time; 1 where they are chained on a replicated stream.
            timeout: Seconds within which each must be stored, over restarts of servers, too; by default that of this
                connection. One whose answer is lost is sent again if it has an id: ``msg_id``, or chained.

        Raises:
            ConfigError: The subject has wildcards. ClosedError: The topic has ended.
        """
        check_publish_subject(self.subject)
        opened = partial(
            TopicPublisher.open, self.log, chained=chained, max_in_flight=max_in_flight, timeout=timeout
        )
        return Opening(opened)

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
                None: no pushes, it asks when nothing came for a while. ``"auto"`` takes the first that there is. For a
                topic with wildcards ``"republish"`` keeps order within each subject only, and after a restart from a
                position records may come again; ``"consumer"`` and None keep it over all.
            quiet: Seconds without a record after which it asks whether pushes were lost.
            allow_truncated: Read on where records were removed before they were read; the event `HistoryTruncated`
                tells of it. Else that raises `HistoryTruncatedError`.
            max_pending: Records that may wait here.

        Raises: where it is opened, `NoMatchingStreamError`, `PositionInvalidError`, `ConfigError` of a stream that
            keeps messages for its consumers only (`work` is for those), and those of any request.
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
                f"position is {type(position).__name__}: a Position or its JSON token is needed; "
                "who has none yet begins with each()"
            )
        return self.each(position, **options)

    async def _open(self, start: Start, options: dict[str, Any]) -> TopicReader:
        log = await self.log()
        check_retention(log.config)
        return TopicReader(await open_reader(log, start, **options))

    def latest(self, *, quiet: float = 30.0) -> LatestReader:
        """The newest record, and then each time the newest since, for ``async for``. What lay between is never sent.

        Where the stream republishes the subject, the server keeps nothing of who reads; else there is one ephemeral
        consumer in this process, while somebody waits.

        Args:
            quiet: Seconds of waiting after which the newest is asked for again, because a push may be lost.

        Raises:
            InvalidNameError: The subject has wildcards. ConfigError: ``quiet`` is no time. Where it is first read:
                `NoMatchingStreamError`, `ConfigError` of a stream as `each`, and those of any request.
        """
        check_publish_subject(self.subject)
        return LatestReader(partial(self._notifier, check_time("quiet", quiet)))

    async def _notifier(self, quiet: float) -> StreamNotifier:
        log = await self.log()
        check_retention(log.config)
        at = NotifierDescriptor(
            stream=log.stream,
            subject=self.subject,
            republished=republished_subject(log.config.republish, self.subject) or "",
            direct=bool(log.config.allow_direct),
            codec="",  # records are given as they are stored
            api_prefix=self._context.api.prefix,
        )
        return StreamNotifier(newest_log(self._context, at, quiet=quiet), JsonCodec(), quiet=quiet)

    def epochs(
        self,
        order: Order[Any] = Int(),  # noqa: B008  it has no state
        *,
        partitions: int | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """The topic of epochs of this name: several publishers, and of an epoch subscribers see all or nothing.

        See `JetStream.epochs`.
        """
        name = check_topic(self.subject)
        stream = check_stream_name(name.replace(".", "_") if self._stream is None else self._stream)
        return EpochTopic(StreamHome(self._manager, name, stream), order, partitions=partitions, codec=codec)

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
