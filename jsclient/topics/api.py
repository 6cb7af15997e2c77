"""The part of `JetStream` that creates topics, events, epochs and kits."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import UNSET

from ..streams.api import StreamManager

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
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
    """The methods of `JetStream` that create topics, events, epochs and kits."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """Return a topic, which treats the messages of a subject as an ordered log.

        Choose the kind of reader that you need from the methods of `Topic`::

            async with js.topic("orders.eu").since(saved) as reader:
                async for record in reader:
                    await handle(record.data)

        The call itself sends no request. The stream is looked up when the topic is used for the first time.

        Args:
            subject: The subject of the records. It may contain wildcards, but then the topic can only be read.
            stream: The name of the stream. By default, the stream that stores the subject is looked up.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """Return a source of events, which publishes events, reads their history, and opens subscriptions.

        A subscriber saves the position after the last event that it has handled. It can resume from this position
        later, even in another process, without missing an event.

        The call itself sends no request. The stream is looked up when the source is used for the first time. The first
        use raises `ConfigError` if the stream keeps no history, because its retention isn't by limits.

        Args:
            subject: The subject of the events. It may contain wildcards, but then `EventSource.publish` needs a
                subject.
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

        The call itself sends no request. The topic is created when its first publisher is opened, or by
        `EpochTopic.create`.

        Args:
            name: The name of the topic. Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: The type and order of the times of epochs. By default, times are integers starting at 0.
            partitions: The number of partitions. Each partition has one publisher. By default, an existing topic keeps
                its number, and a new topic has one partition.
            stream: The name of the stream. By default, this is the name of the topic, with each ``.`` replaced by
                ``_``.
            codec: The codec of the data, JSON by default.

        Raises:
            InvalidNameError: The name of the topic or of the stream is invalid.
            ConfigError: A number is out of range.

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
        """Create an updater that publishes states, and a notifier whose consumers read the newest state.

        Consumers can run in any process. Share the notifier with them by its descriptor, which
        `Notifier.get_sharable_notifier_internals` returns.

        Calling a method of the updater starts to store the state at once. Awaiting the result waits until the state is
        stored, and returns its stream sequence. If the result isn't awaited, a failure is reported with the event
        `PublishFailed` and raised by the next call.

        If the subject already has states, the kit continues after them. Only one producer may be active at a time. The
        server refuses the states of a second one, which then raises `ProducerFencedError`.

        The server keeps no state for a consumer between reads. All consumers of a connection that wait for the next
        state share one NATS subscription.

        If the call is cancelled, the stream may have been created, and the initial state may have been stored.

        Args:
            subject: The subject of the states. It stores a single iteration: after its end, no state can be published.
            initial: The first state. If it is omitted, consumers wait until a state is published. None is a valid
                state.
            stream: The name of the stream. By default, the stream that stores the subject is looked up. If none exists,
                a stream is created. It keeps one message per subject, allows direct gets, and republishes to
                ``jsc.push.<subject>``. An existing stream is never changed. If it doesn't republish, the consumers of a
                connection share an ephemeral JetStream consumer.
            codec: The codec of the states, JSON by default. Messages that it cannot decode are skipped and reported
                with the event `RecordSkipped`.
            quiet: The number of seconds that a consumer waits before it requests the newest state again. This limits
                the delay when a push is lost.
            timeout: The number of seconds within which a state must be stored. Attempts continue during this time if
                servers restart.
            fields: Further configuration of a new stream, such as ``storage`` and ``num_replicas``.

        Raises:
            ConfigError: The initial state cannot be encoded, the stream does not store the subject, or its retention
                isn't by limits.
            InvalidNameError: The subject is invalid.
            ClosedError: An initial state is given, but the iteration has ended.
            ProducerFencedError: Another producer is active. Also any request error.
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
        """Create a publication that publishes values, and a subscription whose consumers read all of them.

        Consumers can run in any process. A consumer that starts late reads the earlier values too, as long as the
        stream still stores them. If values were removed before a consumer has read them, the consumer raises
        `HistoryTruncatedError`. It never skips values silently.

        The other arguments and the errors are the same as for `notifier_kit`, except that a new stream keeps all
        messages, unless ``fields`` limit them.

        Args:
            push: How the server pushes new values. ``"auto"`` reads the republished subject if the stream republishes,
                and creates a consumer for each iterator otherwise. With None, values aren't pushed, and the history is
                read at intervals.
            quiet: The number of seconds without a new value after which the history is read.
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

        The notifier reads directly from the stream, so the process that created the kit may have ended. It can be
        shared again in the same way.

        Args:
            internals: The result of `Notifier.get_sharable_notifier_internals`, which may have been sent as JSON. It
                can also be an awaitable that returns this result. In this case, errors are raised by the first read.
            codec: The codec of the kit. It can be omitted for JSON.
            quiet: See `notifier_kit`.

        Raises:
            ConfigError: ``internals`` isn't the descriptor of a notifier, or it names another codec.
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

        The subscription starts at the position in the descriptor and reads directly from the stream. It can be shared
        again in the same way.

        Args:
            internals: The result of `IterationSubscription.get_sharable_subscription_internals`, or an awaitable that
                returns this result. See `make_notifier`.
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
