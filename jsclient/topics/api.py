"""The methods of `JetStream` that create topics, event sources, epoch topics and kits."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import UNSET

from ..streams.api import StreamManager

if TYPE_CHECKING:  # handles are imported on first use, to keep `import jsclient` cheap
    from ..protocol.epochs.frontier import Order
    from ..protocol.models.stream_config import StreamFields
    from ..protocol.topics.value_codec import Codec
    from .epochs.topic import EpochTopic
    from .event_history import EventSource
    from .log import Push
    from .notifiers.iteration import IterationSubscription, Notifier
    from .notifiers.kits import StreamNotifierKit, StreamSubscriptionKit
    from .topic import Topic

__all__ = ["Topics"]

T = TypeVar("T", bound=Hashable)


class Topics(StreamManager):
    """Base class of `JetStream` that provides the methods for topics, event sources, epoch topics and kits."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """Return a topic, which treats the messages of a subject as an ordered log.

        The methods of the topic return different kinds of readers. Choose the one that you need::

            async with js.topic("orders.eu").since(saved) as reader:
                async for record in reader:
                    await handle(record.data)

        This call sends no request. The stream is looked up when the topic is used for the first time.

        Args:
            subject: The subject of the records. If it contains wildcards, the topic can only be read.
            stream: Name of the stream. By default, the stream that stores the subject is looked up.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """Return an event source, which publishes events, reads their history, and opens subscriptions.

        A subscriber saves the position after the last event that it has handled. It can later resume from this
        position, even in a different process, without missing an event.

        This call sends no request. The stream is looked up when the source is used for the first time. If the stream
        doesn't keep events after they were read, because its retention isn't ``limits``, the first use raises
        `ConfigError`.

        Args:
            subject: The subject of the events. If it contains wildcards, pass the subject of each event to
                `EventSource.publish`.
            stream: Name of the stream. By default, the stream that stores the subject is looked up.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.

        The design follows P3Sub, a protocol in which subscribers rely on the publisher's history and pushes are only
        hints.
        """
        from .event_history import EventSource

        return EventSource(self.topic(subject, stream=stream)._log_with_history)  # noqa: SLF001  same package

    @overload
    def epochs(
        self,
        name: str,
        order: None = None,
        *,
        partitions: int | None = None,
        stream: str | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[int]: ...
    @overload
    def epochs(
        self,
        name: str,
        order: Order[T],
        *,
        partitions: int | None = None,
        stream: str | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[T]: ...
    def epochs(
        self,
        name: str,
        order: Order[Any] | None = None,
        *,
        partitions: int | None = None,
        stream: str | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """Return a topic whose records are grouped into epochs, which subscribers receive completely or not at all.

        An epoch is all data with the same logical time. Several publishers can contribute data to it. The epoch is
        complete when all of them have advanced past its time. Use epochs when data is only meaningful as a whole, such
        as a snapshot of many sensors.

        This call sends no request. The topic is created when its first publisher is opened, or with
        `EpochTopic.create`.

        Args:
            name: Name of the topic. Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: The type and the order of the times of epochs. By default, times are integers that start at 0.
            partitions: Number of partitions. Each partition has one publisher. By default, an existing topic keeps its
                number of partitions, and a new topic has one partition.
            stream: Name of the stream. Defaults to the name of the topic, with each ``.`` replaced by ``_``.
            codec: Encodes and decodes the data. Defaults to JSON.

        Raises:
            InvalidNameError: The name of the topic or of the stream is invalid.
            ConfigError: The number of partitions is out of range.

        The design follows the publish-subscribe protocol of Strymon, a system for streaming analytics.
        """
        from ..protocol.epochs.frontier import Int
        from ..protocol.epochs.records import check_topic
        from .topic import Topic

        topic = Topic(self, check_topic(name), stream)
        return topic.epochs(Int() if order is None else order, partitions=partitions, codec=codec)

    async def notifier_kit(
        self,
        subject: str,
        *,
        initial: Any = UNSET,
        stream: str | None = None,
        codec: Codec | None = None,
        quiet: float = 30.0,
        timeout: float = 60.0,
        **fields: Unpack[StreamFields],
    ) -> StreamNotifierKit:
        """Publish a changing state on a subject, and let consumers in any process read the latest state.

        The kit consists of an updater, which publishes states, and a notifier, from which consumers read. A consumer
        that is slow skips states, but always gets the latest. To share the notifier with another process, send its
        descriptor, which `Notifier.get_sharable_notifier_internals` returns::

            kit = await js.notifier_kit("auction.7", initial={"bid": 0})
            await kit.updater.update_state({"bid": 100})

        Each method of the updater starts to store the state immediately. Awaiting its result waits until the state has
        been stored, and returns the stream sequence of the state. If you don't await the result and the state can't be
        stored, the event `PublishFailed` reports the error, and the next call raises it.

        If the subject already has states, the kit continues after them. Only one producer may be active at a time. If
        there are two, the server refuses the states of one of them, which then raises `ProducerFencedError`.

        The server keeps no state for a consumer between reads. All consumers of a connection that wait for the next
        state share one NATS subscription.

        If the call is cancelled, the stream may have been created, and the initial state may have been stored.

        Args:
            subject: The subject of the states. It can only be used once: after the producer has finished or failed, no
                state can be published to it.
            initial: The first state. None is a valid state. If it is omitted, consumers wait for the first update.
            stream: Name of the stream. By default, the stream that stores the subject is looked up. If there is none, a
                stream is created that keeps one message per subject, allows direct gets, and republishes to
                ``jsc.push.<subject>``. An existing stream is never changed. If it doesn't republish, the consumers of a
                connection share an ephemeral JetStream consumer.
            codec: Encodes and decodes the states. Defaults to JSON. A message that the codec can't decode is skipped,
                and the event `RecordSkipped` reports it.
            quiet: If a waiting consumer receives no push for this many seconds, it requests the latest state again.
                This limits the delay that a lost push can cause.
            timeout: How long to keep trying to store a state, in seconds, including restarts of servers.
            fields: Further configuration of a new stream, such as ``storage`` and ``num_replicas``.

        Raises:
            ConfigError: The initial state can't be encoded, the stream doesn't store the subject, or the retention of
                the stream isn't ``limits``.
            InvalidNameError: The subject is invalid.
            ClosedError: The producer of this subject has already finished or failed, but an initial state was given.
            ProducerFencedError: Another producer is active.

        May also raise any request error.
        """
        from .notifiers.kits import open_notifier_kit

        return await open_notifier_kit(
            self,
            subject,
            initial=initial,
            stream=stream,
            codec=codec,
            quiet=quiet,
            timeout=timeout,
            fields=dict(fields),
        )

    async def subscription_kit(
        self,
        subject: str,
        *,
        stream: str | None = None,
        codec: Codec | None = None,
        push: Push = "auto",
        quiet: float = 30.0,
        timeout: float = 60.0,
        **fields: Unpack[StreamFields],
    ) -> StreamSubscriptionKit:
        """Publish the values of an iteration on a subject, and let consumers in any process read all of them.

        The kit consists of a publication, which publishes values, and a subscription, from which consumers read. A
        consumer that starts late reads the earlier values too, as long as the stream still stores them. A consumer
        never skips values silently. If values were removed before it has read them, it raises `HistoryTruncatedError`.

        The remaining arguments and errors are the same as for `notifier_kit`. Unlike a stream created by
        `notifier_kit`, a new stream keeps all messages unless ``fields`` limit them.

        Args:
            push: How the server pushes new values. With ``"auto"``, consumers read the republished subject if the
                stream republishes, and each iterator creates a JetStream consumer if it doesn't. With None, values
                aren't pushed, and the history is read at intervals. See `Topic.each` for the other values.
            quiet: If no value arrives for this many seconds, check the history for values whose push was lost.
        """
        from .notifiers.kits import open_subscription_kit

        return await open_subscription_kit(
            self,
            subject,
            stream=stream,
            codec=codec,
            push=push,
            quiet=quiet,
            timeout=timeout,
            fields=dict(fields),
        )

    def make_notifier(
        self,
        internals: Mapping[str, Any] | Awaitable[Mapping[str, Any]],
        *,
        codec: Codec | None = None,
        quiet: float = 30.0,
    ) -> Notifier:
        """Create a notifier from the descriptor that another process has shared.

        The notifier reads directly from the stream, so the process that created the kit needn't run any more. The new
        notifier can be shared again.

        Args:
            internals: The descriptor returned by `Notifier.get_sharable_notifier_internals`, which may have been sent
                as JSON, or an awaitable that returns it.
            codec: The codec of the kit. It can be omitted for JSON.
            quiet: If a waiting consumer receives no push for this many seconds, it requests the latest state again.

        Raises:
            ConfigError: ``internals`` isn't the descriptor of a notifier, or it names a different codec. If it is an
                awaitable, the first read raises this error.
        """
        from .notifiers.iteration import Notifier, source_of
        from .notifiers.kits import notifier_source

        find = partial(notifier_source, self._context, codec=codec, quiet=quiet)
        return Notifier(source_of(internals, find))

    def make_subscription(
        self,
        internals: Mapping[str, Any] | Awaitable[Mapping[str, Any]],
        *,
        codec: Codec | None = None,
        push: Push = "auto",
        quiet: float = 30.0,
    ) -> IterationSubscription:
        """Create a subscription from the descriptor that another process has shared.

        The subscription starts at the position in the descriptor, and reads directly from the stream. The process that
        created the kit needn't run any more. The new subscription can be shared again.

        Args:
            internals: The descriptor returned by `IterationSubscription.get_sharable_subscription_internals`, which may
                have been sent as JSON, or an awaitable that returns it.
            codec: The codec of the kit. It can be omitted for JSON.
            push: How the server pushes new values. See `subscription_kit`.
            quiet: If no value arrives for this many seconds, check the history for values whose push was lost.

        Raises:
            ConfigError: ``internals`` isn't the descriptor of a subscription, or it names a different codec.
            PositionInvalidError: The position in the descriptor is invalid. If the stream was deleted and created
                again, the first read raises this error.
        """
        from .notifiers.iteration import IterationSubscription, source_of
        from .notifiers.kits import subscription_source

        find = partial(subscription_source, self._context, codec=codec, push=push, quiet=quiet)
        return IterationSubscription(source_of(internals, find))
