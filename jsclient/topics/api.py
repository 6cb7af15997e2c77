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
        """Return the topic of a subject: an ordered log with its readers. No request is sent before first use.

        Args:
            subject: May have wildcards, except for publishing.
            stream: The stream. By default the stream that has the subject on first use.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """Return the events of a subject, to publish them, read their history, and subscribe from a position.

        No request is sent before first use.

        Args:
            subject: May have wildcards, except for publishing.
            stream: The stream. By default the stream that has the subject on first use.

        Raises:
            InvalidNameError: The subject or the name of the stream is invalid. The first use raises `ConfigError` if
                the retention of the stream is not by limits, so that it keeps no history.

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
        """Return a topic of epochs from several publishers. Subscribers receive an epoch completely or not at all.

        No request is sent before first use. The first publisher creates the topic, or `EpochTopic.create` does.

        Args:
            name: The name of the topic. Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: The times of epochs, integers >= 0 by default.
            partitions: The number of partitions, each with one publisher. By default the number of the existing topic,
                or 1 for a new topic.
            stream: The stream. By default it has the name of the topic, with ``_`` in place of ``.``.
            codec: Encodes the data, as JSON by default.

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

        A call of the updater starts to store the state at once. Awaiting the result returns the stream sequence. A
        failure that is not awaited is reported with the event `PublishFailed` and raised by the next call. If the
        subject has states, the kit continues after them. If two producers are active at the same time, one of them is
        refused.

        Consumers need no state on the server between reads. While consumers of a connection wait, they share one NATS
        subscription for one message.

        Args:
            subject: The subject of the states. It has one iteration, and no state can follow its end.
            initial: A first state. None is a state.
            stream: The stream. By default the stream that has the subject. If none exists, a stream is created with one
                message per subject, direct gets, and republishing to ``jsc.push.<subject>``. An existing stream is not
                changed. If it does not republish, consumers share one ephemeral consumer per connection.
            codec: Encodes the states, as JSON by default. States that it cannot decode are skipped, see
                `RecordSkipped`.
            quiet: Seconds of waiting after which the newest state is requested again, because a push may be lost.
            timeout: Seconds after which a state that could not be stored has failed, including restarts of servers.
            fields: Further fields of a stream that is created: ``storage``, ``num_replicas`` and so on.

        Raises:
            ConfigError: The initial state cannot be encoded, the stream does not have the subject, or its retention is
                not by limits. InvalidNameError: The subject is invalid. ClosedError: An initial state is given, and the
                iteration has ended. ProducerFencedError: Another producer is active. Also any request error.

        If the call is cancelled, the stream may have been created, and the initial state stored.
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

        Consumers that start later also read earlier values, as long as the stream keeps them. If values were removed
        before a consumer read them, it raises `HistoryTruncatedError` and never skips them.

        Takes the arguments of `notifier_kit` and raises its errors. A stream that is created keeps all messages, unless
        ``fields`` limit them.

        Args:
            push: How new values are pushed. ``"auto"`` uses the republished subject or a consumer per iterator,
                whichever the stream allows. With None there are no pushes.
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
        """Create a notifier from a kit's descriptor, or from an awaitable that returns a descriptor.

        The notifier reads from the stream itself, and can be shared again.

        Args:
            internals: The result of `Notifier.get_sharable_notifier_internals`, perhaps sent as JSON.
            codec: The codec of the kit, if it is not JSON.
            quiet: See `notifier_kit`.

        Raises:
            ConfigError: ``internals`` is not such a descriptor, or names another codec. For an awaitable, the first
                read raises it.
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
        """Create a subscription from a kit's descriptor, or from an awaitable that returns a descriptor.

        The subscription starts at the position of the descriptor, reads from the stream itself, and can be shared
        again. See `make_notifier` for ``internals``, ``codec`` and errors, and `subscription_kit` for ``push`` and
        ``quiet``.

        Raises:
            PositionInvalidError: The start is invalid. The first read raises it if the stream was recreated.
        """
        from .notifiers.iteration import IterationSubscription, source_of
        from .notifiers.kits import subscription_source

        find = partial(subscription_source, self._context, codec=codec, push=push, quiet=quiet)
        return IterationSubscription(source_of(internals, find))
