"""Topics, and what is built on them: the part of `JetStream` that hands them out."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .._runtime.context import Context
from ..protocol.epochs.frontier import Int, Order
from ..protocol.wire.names import check_filter_subject, check_stream_name
from ..streams.api import StreamManager
from .notifiers.iteration import NO_STATE, IterationSubscription, Notifier

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from ..protocol.topics.value_codec import Codec
    from .epochs.topic import EpochTopic
    from .event_history import EventSource
    from .log_reader import Push
    from .notifiers.kits import StreamNotifierKit, StreamSubscriptionKit
    from .stream_log import StreamLog
    from .topic import Topic

__all__ = ["Topics"]


class Topics(StreamManager):
    """What `JetStream` does with topics."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """The topic under a subject: an ordered log with its readers. Nothing is asked of the server yet.

        Args:
            subject: Wildcards are allowed for who only reads.
            stream: The stream; by default the one that holds the subject when the topic is used.

        Raises:
            InvalidNameError: That is no subject, or no name of a stream.
        """
        from .topic import Topic

        return Topic(self, subject, stream)

    # --- events with a history -----------------------------------------------------------------------------

    def events(self, subject: str, *, stream: str | None = None) -> EventSource:
        """The events of a subject: publish, read their history, subscribe from a position on, pushed or not.

        Nothing is asked of the server yet.

        Args:
            subject: Wildcards are allowed for who only reads.
            stream: The stream; by default the one that holds the subject at the first use.

        Raises:
            InvalidNameError: That is no subject, or no name of a stream. At the first use also `ConfigError`: the
                stream keeps messages for its consumers only, so there is no history.

        Source: P3Sub
        """
        from .event_history import EventSource

        check_filter_subject(subject)
        if stream is not None:
            check_stream_name(stream)
        return EventSource(partial(_with_history, self._context, subject, stream))

    # --- epochs --------------------------------------------------------------------------------------------

    def epochs(
        self,
        name: str,
        order: Order[Any] = Int(),  # noqa: B008  it has no state
        *,
        partitions: int | None = None,
        stream: str | None = None,
        codec: Codec | None = None,
    ) -> EpochTopic[Any]:
        """A topic whose data comes in epochs, from several publishers: of an epoch subscribers see all or nothing.

        Nothing is asked of the server yet. The first publisher makes the topic, or `EpochTopic.create`.

        Args:
            name: Partition 2 has the subjects ``<name>.2.data`` and ``<name>.2.frontier``.
            order: Which times epochs have; by default whole numbers from 0 on.
            partitions: How many publishers there can be; by default as many as the topic has, or one if it is made.
            stream: Where it lies; by default in a stream of its name, with ``_`` in place of ``.``.
            codec: How data travels, JSON by default.

        Raises:
            InvalidNameError: That is no subject, or no name of a stream. ConfigError: A number out of range.

        Source: Strymon
        """
        from .epochs.schema import check_topic
        from .topic import Topic

        return Topic(self, check_topic(name), stream).epochs(order, partitions=partitions, codec=codec)

    # --- notifiers and subscriptions -----------------------------------------------------------------------

    async def notifier_kit(
        self,
        subject: str,
        *,
        initial: Any = NO_STATE,
        stream: str | None = None,
        codec: Codec | None = None,
        quiet: float = 30.0,
        timeout: float = 60.0,
        **fields: Any,
    ) -> StreamNotifierKit:
        """An updater, and a notifier whose consumers, wherever they are, see its newest state.

        A call of the updater starts to store the state at once; awaited, it gives the stream sequence. What failed and
        was not awaited is told as `PublishFailed`, and raised by the next call. Who makes a kit of a subject that has
        states goes on after them; of two that do so at the same time one is refused.

        Consumers cost the server nothing while they do not ask. Where they wait, a NATS subscription for one message
        is made, for all of this connection that wait.

        Args:
            subject: Where the states are stored. One iteration has it; the end is the last that it ever has.
            initial: A state to begin with. None is a state.
            stream: The stream; by default the one that holds the subject. If there is none it is made, with one message
                per subject, direct gets, and republishing to ``jsc.push.<subject>``. A stream that is there is left as
                it is; where it does not republish, consumers wait by one consumer per connection.
            codec: How states travel, JSON by default.
            quiet: Seconds of waiting after which the newest state is asked for again: a push may be lost.
            timeout: Seconds after which a state that could not be stored has failed. Restarts of the server pass.
            fields: What else a stream that is made has: ``storage``, ``num_replicas`` and so on.

        Raises:
            ConfigError: The subject or the initial state may not pass; or the stream does not hold the subject, or does
                not keep messages. ClosedError: There is an initial state, and the iteration has ended.
            ProducerFencedError: Another one produces at the same time. And those of any request.

        Cancelled: the stream may have been made, and the initial state be stored.
        """
        from .notifiers.kits import open_notifier_kit

        return await open_notifier_kit(
            self,
            self._context,
            subject,
            initial=initial,
            stream=stream,
            codec=codec,
            quiet=quiet,
            timeout=timeout,
            fields=fields,
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
        **fields: Any,
    ) -> StreamSubscriptionKit:
        """A publication, and a subscription whose consumers, wherever they are, see all of its values.

        Also those who come later, as long as the stream keeps the values. Where it has removed some that a consumer
        has not seen, that one gets `HistoryTruncatedError`, never a hole.

        Arguments, and what is raised, as of `notifier_kit`; a stream that is made keeps everything, unless ``fields``
        say otherwise.

        Args:
            push: How iterators of the subscription are told of new values: by the republished subject or by a consumer
                each, as the stream has it ("auto"); None: they ask when it is quiet.
            quiet: Seconds without a value after which the history is asked.
        """
        from .notifiers.kits import open_subscription_kit

        return await open_subscription_kit(
            self,
            self._context,
            subject,
            stream=stream,
            codec=codec,
            push=push,
            quiet=quiet,
            timeout=timeout,
            fields=fields,
        )

    def make_notifier(
        self,
        internals: Mapping[str, Any] | Awaitable[Mapping[str, Any]],
        *,
        codec: Codec | None = None,
        quiet: float = 30.0,
    ) -> Notifier:
        """A notifier here, of the descriptor that one on a server shares, or of something to be awaited for it.

        It reads from the stream itself, and can be shared in turn.

        Args:
            internals: What `Notifier.get_sharable_notifier_internals` of such a kit gives; it may have passed as JSON.
            codec: That of the kit, if it is not JSON.
            quiet: As of `notifier_kit`.

        Raises:
            ConfigError: It is no such descriptor, or of another codec. Where it is still to come: when it is read.
        """
        from .notifiers.kits import notifier_source
        from .notifiers.sharing import notifier_of

        find = partial(notifier_source, self._context, codec=codec, quiet=quiet)
        return notifier_of(internals, find)

    def make_subscription(
        self,
        internals: Mapping[str, Any] | Awaitable[Mapping[str, Any]],
        *,
        codec: Codec | None = None,
        push: Push = "auto",
        quiet: float = 30.0,
    ) -> IterationSubscription:
        """A subscription here, of the descriptor that one on a server shares, or of something to be awaited for it.

        It starts where that one does, reads from the stream itself, and can be shared in turn. Otherwise as
        `make_notifier`; ``push`` and ``quiet`` as of `subscription_kit`.

        Raises:
            PositionInvalidError: Its start is none. Where the stream was made anew: when it is read.
        """
        from .notifiers.kits import subscription_source
        from .notifiers.sharing import subscription_of

        find = partial(subscription_source, self._context, codec=codec, push=push, quiet=quiet)
        return subscription_of(internals, find)


async def _with_history(context: Context, subject: str, stream: str | None) -> StreamLog:
    """A log whose records stay when they were read."""
    from .stream_log import find_log
    from .topic_stream import check_retention

    log = await find_log(context, subject, stream)
    check_retention(log.config)
    return log
