"""A topic of epochs: `JetStream.epochs`."""

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
    """A topic whose data belongs to epochs, in one or more partitions. Created by `JetStream.epochs`.

    Subscribers receive an epoch completely or not at all. Each partition has one publisher at a time and any number of
    subscribers, which may start at any time.

    Source: Strymon's publish-subscribe protocol.
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
        """The name of the topic."""
        return self._home.topic

    @property
    def order(self) -> Order[T]:
        """The order of the topic's times."""
        return self._order

    def __repr__(self) -> str:
        return f"<EpochTopic {self.name}>"

    async def create(self, **stream: Unpack[StreamFields]) -> int:
        """Create the topic if it does not exist, and return its number of partitions.

        Args:
            stream: Fields of the stream, if it is created: ``num_replicas``, ``storage``, ``max_age``,
                ``duplicate_window``, ``allow_atomic`` … An existing stream with the name gets the topic's subjects and
                schema, and is not changed otherwise.

        Raises:
            TopicMismatchError: The topic exists with another order, codec or number of partitions.
            ConfigError: The stream's retention is not limits, or it has ``max_msgs_per_subject``. Also any request
                error.
        """
        schema = make_schema(self._order, self._codec, _ONE if self._partitions is None else self._partitions)
        return self._checked(await self._home.make(schema, dict(stream))).partitions

    def _checked(self, schema: Schema) -> Schema:
        schema.check_arguments(self.name, self._order, self._codec, self._partitions)
        self._schema = schema
        return schema

    async def partitions(self) -> int:
        """Return the number of partitions.

        Raises `TopicNotFoundError`, `TopicMismatchError`, and any error of a request.
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
        """Become the publisher of a partition. The topic is created if it does not exist.

        Use the call with ``await`` or ``async with``. The publisher continues from the state of the partition:
        completed epochs stay completed, active epochs stay open. Opening waits up to 30 s for a leader election or a
        restart of the server.

        Args:
            partition: The number of the partition.
            start: The least time of a new partition. By default the least time of the order.
            takeover: Fence a publisher that is alive. By default such a publisher is an error. A publisher that does
                not answer within a second, for example because its process was killed, is always fenced.
            max_in_flight: Messages that may be in flight.
            timeout: Seconds within which each message must be stored, across server restarts. The default is the
                timeout of this connection.

        Raises:
            PublisherExistsError: The partition has a publisher that is alive, and ``takeover`` is not set.
            HistoryTruncatedError: The partition has no frontier record, and records may have been removed. Pass
                ``start``.
            ProducerFencedError: Other producers keep taking the partition. Also the errors of `create`.
        """
        count = await self.create() if self._schema is None else self._schema.partitions
        check_partition(partition, count)
        if start is not None:
            self._order.encode(start)
        retry = Retry(PATIENT)
        # Taking the partition fences its publisher, so first find out whether the publisher is alive.
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
        """Subscribe to some partitions, by default all: ``await`` it, or use it with ``async with``.

        Cancelling the call leaves no subscription behind.

        Args:
            partitions: The numbers of the partitions.
            filter: ``"atomic"`` selects the epochs that are latent at the start. None selects everything, including
                parts of epochs that were active (``Data.whole`` is false). Times select like ``"atomic"``, without the
                epochs at or before one of these times.
            start: ``"now"`` starts with the epochs that are latent now, ``"first"`` with the oldest epochs that are
                stored in full. A position continues from the `EpochSubscription.position` of a subscription to the same
                partitions.
            wait: Wait until a publisher has written to each of the partitions. Otherwise raise `TopicNotFoundError`.
            timeout: Seconds to wait for publishers. By default there is no limit, and a long wait is reported with the
                event `PartitionsMissing`.
            push, quiet: See `LogReader`.

        Raises:
            TopicNotFoundError: The topic does not exist. RequestTimeoutError: It was not created in time.
            TopicMismatchError: It has another order, codec or number of partitions.
            ConfigError: A partition does not exist, or the position is of other partitions. PositionInvalidError: The
                position is of another order or another stream. Also any request error.
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

        Each publisher starts with the least time. Two publishers that are opened at the same moment may both publish.

        Args:
            partition: The number of the partition.
            takeover: End a publisher that is alive, whose next call raises `ProducerFencedError`. By default such a
                publisher is an error. A publisher that does not answer within a second counts as dead.
            beat: Seconds between signs of life. A subscriber that is silent for three of them is dropped.
            max_subscribers: The number of subscribers above which further subscribers are refused.
            reply_prefix: The prefix of the inboxes that are answered. A subscriber with another prefix is refused. By
                default ``_INBOX``, which includes ``_INBOX_guest``, and the inbox prefix of this connection.

        Raises:
            PublisherExistsError: The partition has a publisher that is alive, and ``takeover`` is not set.
            ConfigError: The partition does not exist, or the topic is in memory. Also any error of subscribing.
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
        """Subscribe to live publishers.

        The subscription returns whole epochs from now on, as long as no message is lost.

        Args:
            partitions, filter, timeout: See `subscribe`. By default, all partitions of this object.
            wait: Wait until all partitions have a publisher. Otherwise raise `TopicNotFoundError`. A long wait is
                reported with the event `PartitionsMissing`, also after a publisher has ended.
            beat: Seconds between two signs of life. A publisher that is silent for three of them is lost.

        Raises:
            TopicNotFoundError, RequestTimeoutError, TopicMismatchError, ConfigError: See `subscribe`.
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
    """Create a topic of epochs in this process, without a server.

    Args:
        name, order, partitions, codec: See `JetStream.epochs`.
        log: The log of the topic, which must accept ``<name>.>``. By default a new log.
    """
    home = MemoryHome(check_topic(name), MemoryLog(f"{name}.>") if log is None else log)
    return EpochTopic(home, order if order is not None else Int(), partitions=partitions, codec=codec)
