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
    """The methods of `JetStream` for topics."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """The topic of a subject: an ordered log with its readers. No request is sent before first use.

        Args:
            subject: May have wildcards, except for publishing.
            stream: The stream; by default the one that holds the subject on first use.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """The events of a subject: publish them, read their history, and subscribe from a position.

        No request is sent before first use.

        Args:
            subject: May have wildcards, except for publishing.
            stream: The stream; by default the one that holds the subject on first use.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid. On first use also `ConfigError`: the
                retention of the stream is not by limits, so it keeps no history.

        Source: P3Sub
        """
        from .event_history import EventSource

        return EventSource(self.topic(subject, stream=stream)._kept_log)  # noqa: SLF001  one room

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
        """A topic of epochs from several publishers: subscribers read all or nothing of an epoch.

        No request is sent before first use. The first publisher creates the topic, or `EpochTopic.create`.

        Args:
            name: Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: The times of epochs; by default integers >= 0.
            partitions: The number of partitions, each with one publisher; by default those of the existing topic, or
                one for a new topic.
            stream: The stream; by default one with the name of the topic, with ``_`` in place of ``.``.
            codec: Encodes the data; JSON by default.

        Raises:
            InvalidNameError: The name of the topic or of the stream is invalid. ConfigError: A number is out of range.

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
        """Create an updater, and a notifier whose consumers, in any process, read its newest state.

        A call of the updater starts to store the state at once; awaiting the result returns the stream sequence. A
        failure that is not awaited is reported with the event `PublishFailed` and raised by the next call. A kit of a
        subject with states continues after them; of two concurrent producers one is refused.

        Consumers need no state on the server between reads. While consumers of a connection wait, they share one NATS
        subscription for one message.

        Args:
            subject: The subject of the states. It holds one iteration; after its end no state can follow.
            initial: A first state. None is a state.
            stream: The stream; by default the one that holds the subject. If none exists, one is created with one
                message per subject, direct gets, and republishing to ``jsc.push.<subject>``. An existing stream is not
                changed; if it does not republish, consumers share one ephemeral consumer per connection.
            codec: Encodes the states; JSON by default. States that it cannot decode are skipped, see `RecordSkipped`.
            quiet: Seconds of waiting after which the newest state is requested again, because a push may be lost.
            timeout: Seconds after which a state that could not be stored has failed, including restarts of servers.
            fields: Further fields of a stream that is created: ``storage``, ``num_replicas`` and so on.

        Raises:
            ConfigError: The initial state cannot be encoded, the stream does not hold the subject, or its retention is
                not by limits. InvalidNameError: The subject is invalid. ClosedError: An initial state is given, and the
                iteration has ended. ProducerFencedError: Another producer is active. And those of any request.

        Cancelled: the stream may have been created, and the initial state stored.
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
        """Create a publication, and a subscription whose consumers, in any process, read all of its values.

        Later consumers read them as well, as long as the stream keeps them. If values were removed before a consumer
        read them, it raises `HistoryTruncatedError` and never skips them.

        Arguments and errors as for `notifier_kit`; a stream that is created keeps all messages, unless ``fields`` limit
        them.

        Args:
            push: How new values are pushed: by the republished subject or a consumer per iterator, as the stream allows
                ("auto"); None: no pushes.
            quiet: Seconds without a value after which the history is read.
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
        """Create a notifier from the descriptor of a kit on a server, or from an awaitable of one.

        It reads from the stream itself, and can be shared in turn.

        Args:
            internals: The result of `Notifier.get_sharable_notifier_internals`, perhaps sent as JSON.
            codec: The codec of the kit, if it is not JSON.
            quiet: As for `notifier_kit`.

        Raises:
            ConfigError: It is not such a descriptor, or has another codec. An awaitable raises on first read.
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
        """Create a subscription from the descriptor of a kit on a server, or from an awaitable of one.

        It starts at the same position, reads from the stream itself, and can be shared in turn. Otherwise as
        `make_notifier`; ``push`` and ``quiet`` as for `subscription_kit`.

        Raises:
            PositionInvalidError: Its start is invalid. On first read: the stream was recreated.
        """
        from .notifiers.iteration import IterationSubscription, source_of
        from .notifiers.kits import subscription_source

        find = partial(subscription_source, self._context, codec=codec, push=push, quiet=quiet)
        return IterationSubscription(source_of(internals, find))
