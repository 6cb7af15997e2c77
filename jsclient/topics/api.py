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
    """The methods of `JetStream` that create topics, event sources, epoch topics and kits."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """Return a topic, which treats the messages of a subject as an ordered log.

        The methods of the topic return different kinds of readers. Choose the one that you need::

            async with js.topic("orders.eu").since(saved) as reader:
                async for record in reader:
                    await handle(record.data)

        This call sends no request. The stream is looked up when the topic is used for the first time.

        Args:
            subject: The subject of the records. If it contains wildcards, the topic can only be read.
            stream: The name of the stream. By default, the stream that stores the subject is looked up.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """Return an event source, which publishes events, reads their history, and opens subscriptions.

        A subscriber saves the position after the last event that it has handled. It can later resume from this
        position, even in another process, without missing an event.

        This call sends no request. The stream is looked up when the source is used for the first time. If the stream
        keeps no history, because its retention isn't by limits, the first use raises `ConfigError`.

        Args:
            subject: The subject of the events. If it contains wildcards, pass the subject of each event to
                `EventSource.publish`.
            stream: The name of the stream. By default, the stream that stores the subject is looked up.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.

        Source: P3Sub
        """
        from .event_history import EventSource

        return EventSource(self.topic(subject, stream=stream)._log_with_history)  # noqa: SLF001  one room

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
        """Return a topic of epochs, whose subscribers receive each epoch completely or not at all.

        Several publishers can contribute data to an epoch. The epoch is completed when all of them have advanced past
        its time.

        This call sends no request. The topic is created when its first publisher is opened, or with
        `EpochTopic.create`.

        Args:
            name: The name of the topic. Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: The type and the order of the times of epochs. By default, times are integers that start at 0.
            partitions: The number of partitions. Each partition has one publisher. By default, an existing topic keeps
                its number of partitions, and a new topic has one partition.
            stream: The name of the stream. Defaults to the name of the topic, with each ``.`` replaced by ``_``.
            codec: Encodes and decodes the data. Defaults to JSON.

        Raises:
            InvalidNameError: The name of the topic or of the stream is invalid.
            ConfigError: The number of partitions is out of range.

        Source: Strymon
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
        """Create an updater, which publishes states, and a notifier, whose consumers read the newest state.

        Consumers can run in any process. To share the notifier with them, send them its descriptor, which
        `Notifier.get_sharable_notifier_internals` returns.

        A call of a method of the updater starts to store the state immediately. Awaiting the result waits until the
        state has been stored, and returns its stream sequence. If the result isn't awaited and the state can't be
        stored, the event `PublishFailed` reports the error, and the next call raises it.

        If the subject already has states, the kit continues after them. Only one producer may be active at a time. If
        there are two, the server refuses the states of one of them, which then raises `ProducerFencedError`.

        The server keeps no state for a consumer between reads. All consumers of a connection that wait for the next
        state share one NATS subscription.

        If the call is cancelled, the stream may have been created, and the initial state may have been stored.

        Args:
            subject: The subject of the states. It stores a single iteration. After the end of the iteration, no state
                can be published to it.
            initial: The first state. None is a valid state. If it is omitted, consumers wait for the first update.
            stream: The name of the stream. By default, the stream that stores the subject is looked up. If there is
                none, a stream is created that keeps one message per subject, allows direct gets, and republishes to
                ``jsc.push.<subject>``. An existing stream is never changed. If it doesn't republish, the consumers of a
                connection share an ephemeral JetStream consumer.
            codec: Encodes and decodes the states. Defaults to JSON. A message that the codec can't decode is skipped,
                and the event `RecordSkipped` reports it.
            quiet: Seconds that a consumer waits for a push before it requests the newest state again. This limits the
                delay when a push is lost.
            timeout: Seconds within which a state must be stored, including restarts of servers.
            fields: Further configuration of a new stream, such as ``storage`` and ``num_replicas``.

        Raises:
            ConfigError: The initial state can't be encoded, the stream doesn't store the subject, or the retention of
                the stream isn't by limits.
            InvalidNameError: The subject is invalid.
            ClosedError: The iteration has ended, but an initial state was given.
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
        """Create a publication, which publishes values, and a subscription, whose consumers read all values.

        Consumers can run in any process. A consumer that starts late reads the earlier values too, as long as the
        stream still stores them. A consumer never skips values silently. If values were removed before the consumer has
        read them, it raises `HistoryTruncatedError`.

        The arguments and errors that aren't listed are the same as those of `notifier_kit`. However, a new stream keeps
        all messages unless ``fields`` limit them.

        Args:
            push: How the server pushes new values. With ``"auto"``, consumers read the republished subject if the
                stream republishes, and each iterator creates a JetStream consumer if it doesn't. With None, values
                aren't pushed, and the history is read at intervals. See `Topic.each` for other values.
            quiet: Seconds without a new value after which the history is read.
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

        The notifier reads directly from the stream, so the process that created the kit may have ended. The new
        notifier can be shared again.

        Args:
            internals: The result of `Notifier.get_sharable_notifier_internals`, which may have been sent as JSON, or an
                awaitable that returns it.
            codec: The codec of the kit. It can be omitted for JSON.
            quiet: Seconds that a consumer waits for a push before it requests the newest state. See `notifier_kit`.

        Raises:
            ConfigError: ``internals`` isn't the descriptor of a notifier, or it names another codec. If it is an
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

        The subscription starts at the position in the descriptor, and reads directly from the stream. It can be shared
        again.

        Args:
            internals: The result of `IterationSubscription.get_sharable_subscription_internals`, which may have been
                sent as JSON, or an awaitable that returns it.
            codec: The codec of the kit. It can be omitted for JSON.
            push, quiet: See `subscription_kit`.

        Raises:
            ConfigError: ``internals`` isn't the descriptor of a subscription, or it names another codec.
            PositionInvalidError: The position in the descriptor is invalid. If the stream was recreated, the first read
                raises this error.
        """
        from .notifiers.iteration import IterationSubscription, source_of
        from .notifiers.kits import subscription_source

        find = partial(subscription_source, self._context, codec=codec, push=push, quiet=quiet)
        return IterationSubscription(source_of(internals, find))
