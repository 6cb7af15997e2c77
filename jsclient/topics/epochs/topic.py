"""`EpochTopic`, which opens the publishers and subscriptions of a topic of epochs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack, overload

from ..._runtime.handle import opening
from ..._runtime.retry import PATIENT, Retry, is_transient
from ...errors import (
    ConfigError,
    JetStreamError,
    PublisherExistsError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from ...protocol.epochs.frontier import Int, Order
from ...protocol.epochs.records import (
    MAX_PARTITIONS,
    EpochPosition,
    Schema,
    check_partition,
    check_topic,
    make_schema,
)
from ...protocol.publishing.in_flight import MAX_IN_FLIGHT
from ...protocol.topics.value_codec import Codec, JsonCodec
from ...protocol.wire.checks import check_count, check_seconds
from ...protocol.wire.names import check_publish_subject
from ..log import Push
from ..memory_log import MemoryLog
from .events import Filter
from .history import EpochHistory, EpochStart, Wait
from .home import Home, MemoryHome
from .live_publisher import LivePublisher
from .live_subscription import LiveSubscription
from .publisher import PartitionPublisher
from .subscription import EpochSubscription

if TYPE_CHECKING:
    from ...protocol.models.stream_config import StreamFields

__all__ = ["EpochTopic", "memory_epochs"]

T = TypeVar("T", bound=Hashable)

_ONE: Final = 1


class EpochTopic(Generic[T]):
    """A topic whose records are grouped into epochs. Created by `JetStream.epochs`.

    An epoch is all data with the same logical time, such as a minute or the number of a snapshot. By default, a
    subscriber receives either all of an epoch or none of it, even if the data comes from several publishers.

    The topic is divided into partitions. Each partition has one publisher at a time, which sends data and then advances
    to a later time. This completes all earlier epochs in its partition. An epoch is complete once all partitions have
    completed it::

        topic = js.epochs("trades")
        async with topic.publisher() as publisher:
            await publisher.commit_epoch(0, ["first trade", "second trade"])

        async with topic.subscribe(start="first") as subscription:
            async for epoch in subscription.completed():
                print(epoch.time, epoch.items)

    Subscribers can start at any time. The design follows the publish-subscribe protocol of Strymon, a system for
    streaming analytics.
    """

    def __init__(
        self, home: Home, order: Order[T], *, partitions: int | None = None, codec: Codec | None = None
    ) -> None:
        if partitions is not None:
            check_count("partitions", partitions, 1, MAX_PARTITIONS)
        self._home, self._order, self._partitions = home, order, partitions
        self._codec = JsonCodec() if codec is None else codec
        self._schema: Schema | None = None

    @property
    def name(self) -> str:
        """Name of the topic, from which the subjects of its partitions are derived."""
        return self._home.topic

    @property
    def order(self) -> Order[T]:
        """The order of the times, which decides which epochs come before others. See `jsclient.epochs.Order`."""
        return self._order

    def __repr__(self) -> str:
        return f"<EpochTopic {self.name}>"

    async def create(self, **stream: Unpack[StreamFields]) -> int:
        """Create the topic if it doesn't exist, and return its number of partitions.

        You need to call `create` only to configure a new stream, because `publisher` creates a missing topic too. If
        the stream already exists, the subjects and the schema of the topic are added to its configuration, and nothing
        else is changed.

        Args:
            stream: Configuration of a new stream, such as ``num_replicas``, ``storage``, ``max_age``,
                ``duplicate_window`` and ``allow_atomic``.

        Raises:
            TopicMismatchError: The topic exists with a different order, codec or number of partitions.
            ConfigError: The stream might remove parts of an epoch, because its retention isn't ``limits``, or because
                it has ``max_msgs_per_subject``.

        May also raise any request error.
        """
        schema = make_schema(self._order, self._codec, _ONE if self._partitions is None else self._partitions)
        return self._checked(await self._home.make(schema, dict(stream))).partitions

    def _checked(self, schema: Schema) -> Schema:
        schema.check_arguments(self.name, self._order, self._codec, self._partitions)
        self._schema = schema
        return schema

    async def partitions(self) -> int:
        """Return the number of partitions, as stored on the server.

        Raises:
            TopicNotFoundError: The topic doesn't exist.
            TopicMismatchError: The topic exists with a different order, codec or number of partitions.

        May also raise any request error.
        """
        return self._checked(await self._home.schema()).partitions

    @opening
    async def publisher(
        self,
        partition: int = 0,
        *,
        start: T | None = None,
        takeover: bool = False,
        max_in_flight: int = MAX_IN_FLIGHT,
        timeout: float | None = None,
    ) -> PartitionPublisher[T]:
        """Become the publisher of a partition. The topic is created if it doesn't exist.

        Open the publisher with ``async with``, or await the call. The publisher continues from the stored state of the
        partition: completed epochs stay completed, and active epochs stay open. If the server restarts or elects a
        leader, the requests are retried for up to 30 seconds. After that, the error of the last request is raised.

        Args:
            partition: Number of the partition, counted from 0.
            start: Time at which the partition begins, if it is new or its stored state is missing. Otherwise, the
                argument has no effect. Defaults to the minimum time of the topic's `Order`, which is 0 for integers.
            takeover: What to do if another publisher of the partition is still alive. If true, take the partition from
                this publisher. If false, raise `PublisherExistsError`. A publisher that doesn't answer within a second,
                for example because its process was killed, is always replaced.
            max_in_flight: Maximum number of messages that are sent but not yet acked.
            timeout: How long to keep trying to store a message, in seconds, including restarts of the server. Defaults
                to the timeout of the connection.

        Raises:
            PublisherExistsError: Another publisher of the partition is alive, and ``takeover`` is false.
            HistoryTruncatedError: The stored state of the partition is missing, possibly because records were removed.
                Pass ``start`` to continue anyway.
            ProducerFencedError: Other publishers keep taking over the partition.

        May also raise any error of `create`.
        """
        count = await self.create() if self._schema is None else self._schema.partitions
        check_partition(partition, count)
        if start is not None:
            self._order.encode(start)
        retry = Retry(PATIENT)
        # Taking the partition would fence its publisher, so first check whether there is a live one.
        if not takeover and await retry.run(partial(self._home.has_publisher, partition)):
            raise PublisherExistsError(self.name, partition)
        outlet = self._home.outlet(partition, max_in_flight=max_in_flight, timeout=timeout)
        history = EpochHistory(self._home.log(partition), self._order, self.name)
        try:
            taken = await retry.run(partial(history.take_partition, partition, outlet.record, start=start))
            publisher = PartitionPublisher(history, outlet, taken, partition=partition, codec=self._codec)
            await publisher.announce(self._home)
        except BaseException:
            await outlet.close()
            raise
        if max_age := self._home.max_age:
            publisher.keep_record(max_age / 3)
        return publisher

    @opening
    async def subscribe(
        self,
        partitions: Sequence[int] | None = None,
        *,
        filter: Filter = "atomic",
        start: EpochStart | EpochPosition[T] = "now",
        wait: bool = True,
        timeout: float | None = None,
        push: Push = "auto",
        quiet: float = 30.0,
    ) -> EpochSubscription[T]:
        """Subscribe to some or all partitions. The result can be awaited or used in ``async with``.

        If the call is cancelled, no subscription stays open.

        Args:
            partitions: Numbers of the partitions. Defaults to all partitions.
            filter: Which epochs to return. ``"atomic"`` returns only complete epochs. It skips an epoch if some of its
                data was sent before the subscription started. ``None`` skips nothing, so parts of epochs already in
                progress are returned too, with ``Data.whole`` set to False. An iterable of times works like
                ``"atomic"``, and also skips all epochs at or before any of these times.
            start: ``"now"`` starts with the epochs that have no data yet, and ``"first"`` with the oldest epochs that
                are stored in full. To continue an earlier subscription to the same partitions, pass its
                `EpochSubscription.position`.
            wait: If true, wait until every partition has had a publisher. If false, raise `TopicNotFoundError` if the
                topic or a partition doesn't exist yet.
            timeout: How long to wait for the topic and its partitions, in seconds. By default, wait indefinitely. If
                the wait is long, the event `PartitionsMissing` is emitted.
            push: How the server pushes new records. See `Topic.each` for the values.
            quiet: If no record arrives for this many seconds, check the stream for records whose push was lost.

        Raises:
            TopicNotFoundError: The topic or one of the partitions doesn't exist yet, and ``wait`` is false.
            RequestTimeoutError: The topic or some of its partitions weren't created within ``timeout`` seconds.
            TopicMismatchError: The topic was created with a different order, codec or number of partitions.
            ConfigError: A partition number is out of range, or ``start`` is a position for different partitions.
            PositionInvalidError: ``start`` is a position for a different order or stream.

        May also raise any request error.
        """
        resume = None
        if isinstance(start, EpochPosition):
            resume, start = EpochPosition.from_json(start.to_json(), self._order), "now"
        if start not in ("now", "first"):
            raise ConfigError(f"start is {start!r:.40}, needs 'now', 'first' or an EpochPosition")
        async with self._within(timeout):
            chosen = self._check_partitions(partitions, await self._partition_count(partitions, wait=wait))
            log = self._home.log(chosen[0] if len(chosen) == 1 else None)
            subscription = EpochSubscription(
                EpochHistory(log, self._order, self.name),
                chosen,
                self._codec,
                filter=filter,
                resume=resume,
                options={"push": push, "quiet": quiet},
            )
            await subscription.begin_reading(start, wait=wait)
        return subscription

    # --- without a stream ------------------------------------------------------------------------------------

    async def live_publisher(
        self,
        partition: int = 0,
        *,
        takeover: bool = False,
        beat: float = 2.0,
        max_subscribers: int = 1000,
        reply_prefix: str | None = None,
    ) -> LivePublisher[T]:
        """Publish a partition to connected subscribers over plain NATS, without storing messages.

        Live publishing is faster than using a `publisher`, but data sent while no subscriber is connected is lost. No
        state is stored either, so each live publisher begins at the minimum time of the topic's `Order`, which is 0 for
        integers. Open the live publishers of a partition one after the other. If two are opened at the same moment,
        neither may find the other, and both publish.

        Args:
            partition: Number of the partition, counted from 0.
            takeover: What to do if another live publisher of the partition is still alive. If true, end this publisher,
                so its next call raises `ProducerFencedError`. If false, raise `PublisherExistsError`. A publisher that
                doesn't answer within a second is considered dead.
            beat: Interval between heartbeats, in seconds. A subscriber that sends no heartbeat for three times as long
                is disconnected. Defaults to 2 seconds.
            max_subscribers: Maximum number of connected subscribers. Further subscribers are refused.
            reply_prefix: The prefix that the inboxes of subscribers must have. Subscribers with other inboxes are
                refused. By default, ``_INBOX`` (which includes ``_INBOX_guest``) and the inbox prefix of this
                connection are accepted.

        Raises:
            PublisherExistsError: Another live publisher of the partition is alive, and ``takeover`` is false.
            ConfigError: The partition number is out of range, or the topic is in memory.

        May also raise any error that subscribing can raise.
        """
        check_partition(partition, self._partitions or _ONE)
        check_count("max_subscribers", max_subscribers)
        publisher = LivePublisher(
            self._home.context,
            self.name,
            partition,
            self._order,
            self._codec,
            beat=check_seconds("beat", beat),
            max_subscribers=max_subscribers,
            reply_prefix=None if reply_prefix is None else check_publish_subject(reply_prefix),
        )
        await publisher.begin_publishing(takeover=takeover)
        return publisher

    async def live_subscribe(
        self,
        partitions: Sequence[int] | None = None,
        *,
        filter: Filter = "atomic",
        wait: bool = True,
        timeout: float | None = None,
        beat: float = 2.0,
    ) -> LiveSubscription[T]:
        """Subscribe to the live publishers of the topic.

        The subscription returns whole epochs as long as no message is lost. After a loss, reading raises
        `EpochsLostError`, because live publishers store nothing that could be read again.

        Args:
            partitions: Numbers of the partitions. Defaults to all partitions with which this object was created.
            filter: Which epochs to return, with the same values as in `subscribe`.
            wait: What to do if some partitions have no live publisher yet. If true, wait for their publishers. If
                false, raise `TopicNotFoundError`. If the wait is long, the event `PartitionsMissing` is emitted. It is
                also emitted if a publisher ends later and the subscription waits long for the next one.
            timeout: How long to wait for the publishers, in seconds. By default, wait indefinitely.
            beat: Interval between heartbeats, in seconds. A publisher that is silent for three times as long is
                considered lost. Defaults to 2 seconds.

        Raises:
            TopicNotFoundError: Some partitions have no live publisher, and ``wait`` is false.
            RequestTimeoutError: Some partitions had no live publisher within ``timeout`` seconds.
            TopicMismatchError: A live publisher uses a different order or codec.
            ConfigError: A partition number is out of range, or the topic is in memory.
        """
        chosen = self._check_partitions(partitions, self._partitions or _ONE)
        subscription = LiveSubscription(
            self._home.context,
            self.name,
            self._order,
            chosen,
            self._codec,
            filter=filter,
            beat=check_seconds("beat", beat),
        )
        async with self._within(timeout):
            await subscription.begin_reading(wait=wait)
        return subscription

    @staticmethod
    def _check_partitions(partitions: Sequence[int] | None, count: int) -> tuple[int, ...]:
        chosen = tuple(range(count)) if partitions is None else tuple(dict.fromkeys(partitions))
        if not chosen:
            raise ConfigError("no partitions are given")
        for partition in chosen:
            check_partition(partition, count)
        return chosen

    @asynccontextmanager
    async def _within(self, timeout: float | None) -> AsyncIterator[None]:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            what = f"topic {self.name!r}, or some of its partitions"
            raise RequestTimeoutError(what, timeout or 0.0, self._home.problem) from None

    async def _partition_count(self, partitions: Sequence[int] | None, *, wait: bool) -> int:
        pauses = Wait(self._home.emit, self.name)
        requested = range(self._partitions or 0) if partitions is None else partitions
        while True:
            try:
                return await self.partitions()
            except JetStreamError as error:
                if not wait or not (isinstance(error, TopicNotFoundError) or is_transient(error)):
                    raise
                failure = error
            await pauses.again(failure, requested)


@overload
def memory_epochs(
    name: str,
    order: None = None,
    *,
    partitions: int | None = None,
    codec: Codec | None = None,
    log: MemoryLog | None = None,
) -> EpochTopic[int]: ...
@overload
def memory_epochs(
    name: str,
    order: Order[T],
    *,
    partitions: int | None = None,
    codec: Codec | None = None,
    log: MemoryLog | None = None,
) -> EpochTopic[T]: ...
def memory_epochs(
    name: str,
    order: Order[Any] | None = None,
    *,
    partitions: int | None = None,
    codec: Codec | None = None,
    log: MemoryLog | None = None,
) -> EpochTopic[Any]:
    """Create an epoch topic in this process, which needs no server. Use it in tests.

    Args:
        name: Name of the topic.
        order: The order of the times. Defaults to `Int`.
        partitions: Number of partitions. See `JetStream.epochs`.
        codec: Encodes and decodes the data. See `JetStream.epochs`.
        log: The log that stores the topic. It must accept the subject ``<name>.>``. Defaults to a new `MemoryLog`.

    Raises:
        InvalidNameError: The name of the topic is invalid.
        ConfigError: The number of partitions is out of range.
    """
    home = MemoryHome(check_topic(name), MemoryLog(f"{name}.>") if log is None else log)
    return EpochTopic(home, order if order is not None else Int(), partitions=partitions, codec=codec)
