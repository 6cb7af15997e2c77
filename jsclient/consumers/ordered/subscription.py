"""Ordered push subscriptions: ``subscribe(ordered=True)``. Source: ADR-17, ADR-15 §Ordered Consumers."""

from __future__ import annotations

from typing import Any

from ..._runtime.calls import create_consumer
from ..._runtime.connection.connection import HoldingSink, Inbox, Lifecycle
from ..._runtime.context import Context
from ..._runtime.handle import State
from ...errors import ConfigError, JetStreamError
from ...protocol.consumers.ordered import OrderedTracker
from ...protocol.consumers.subscribe import Binding
from ...protocol.events import ErrorRaised
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.stream import StreamInfo
from ...protocol.models.stream_config import RetentionPolicy
from ..push.subscription import DRAIN_TIMEOUT, Callback, Subscription
from .recreate import ConsumerRecreator, ReaderOperations

__all__ = ["OrderedSubscription"]

# Default limit of the buffer, in bytes as the server counts them. Messages of 128 B need about twice as much memory.
MAX_BYTES = 12 * 1024 * 1024


class OrderedSubscription(Subscription):
    """A push subscription that delivers every message exactly once and in order.

    Returned by `JetStream.subscribe` with ``ordered=True``. You read it like any other `Subscription`.

    If a message may have been lost on the way, the subscription replaces its consumer with a new one that starts after
    the last message received. It then emits the event `ConsumerReset`, and the property ``consumer`` changes. Messages
    don't need acks, and their ack methods do nothing.
    """

    def __init__(
        self,
        context: Context,
        tracker: OrderedTracker,
        binding: Binding,
        config: ConsumerConfig,
        *,
        callback: Callback | None,
        max_bytes: int | None,
    ) -> None:
        super().__init__(
            context,
            tracker,
            binding,
            callback=callback,
            auto_ack=False,
            delete_on_close=True,
            received=self._reset_if_needed,
            taken=self._report_capacity,
        )
        self._tracker = tracker
        self._max_bytes = max_bytes or MAX_BYTES
        self._deliver_subject = binding.deliver_subject or ""
        self._intake = HoldingSink()
        self._next: tuple[Inbox, HoldingSink] | None = None  # of the consumer that is being created
        reader = ReaderOperations(
            is_open=lambda: self._state is State.OPEN,
            let_go=self._let_go,
            create=self._create,
            discard=self._discard,
            use=self._use_next,
            reset=self._reset_if_needed,
            fail=self._fail_reading,
            emit=self._buffer.emit,
        )
        self._recreator = ConsumerRecreator(context, tracker, config, reader)
        self._buffer.stall_watch.reset_error = lambda: self._recreator.error

    @property
    def subject(self) -> str:
        """NATS subject that the current consumer delivers to. It changes when the consumer is replaced."""
        return self._deliver_subject

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user needs to open an ordered subscription like this one.

        The result can be pasted into the server's configuration. The user must subscribe to the same subject, with the
        argument ``stream`` and with ``ordered=True``.

        The permissions include creating consumers. The user can therefore read the whole stream, and have it delivered
        to any subject of the account. Give the permissions only to users whom you trust.

        Args:
            dead_letter: Must be None, because an ordered subscription has no dead letters.
            inbox_prefix: The inbox prefix of the user's connection. Give each user a different prefix, so that no user
                can read the messages of another user.

        Raises:
            ConfigError: ``dead_letter`` is given.
            InvalidNameError: ``inbox_prefix`` isn't a valid subject.
        """
        from ...protocol.consumers.rights import ordered_rights

        if dead_letter is not None:
            raise ConfigError("an ordered subscription has no dead letters: leave dead_letter out")
        return ordered_rights(self._context.api, self.stream, inbox_prefix=inbox_prefix)

    def begin_reading(self, inbox: Inbox, intake: HoldingSink, info: ConsumerInfo) -> None:
        """Start reading from the consumer described by ``info``.

        For internal use. `JetStream.subscribe` calls this method once. If messages are missed, later consumers replace
        this one.
        """
        self._switch_to(inbox, intake, info)
        self.start_reading(inbox, intake)
        self._recreator.remember_stream(self._bound)

    def _bound(self, stream: StreamInfo) -> None:
        """Limit the buffer, unless the stream removes messages when they are delivered.

        A message that doesn't fit in the buffer is dropped and read again later, so it must remain in the stream.
        """
        if stream.config.retention in {None, RetentionPolicy.LIMITS}:
            self._tracker.bound(self._max_bytes)

    def _reset_if_needed(self) -> None:
        if self._tracker.cursor.wants is not None:
            self._buffer.hide()
            self._recreator.recreate_if_needed()

    def _report_capacity(self) -> None:
        if self._tracker.cursor.wants is not None:
            self._reset_if_needed()
            self._recreator.capacity.set()

    def _follow_connection(self, what: Lifecycle) -> None:
        super()._follow_connection(what)
        if what is Lifecycle.CONNECTED:
            # The messages in flight were lost with the connection. Replace the consumer now, instead of waiting for a
            # missing heartbeat.
            self._tracker.cursor.consumer_lost("the connection was replaced")
            self._reset_if_needed()

    def _look_up_consumer(self) -> None:
        """Do nothing, because a deleted consumer is simply replaced."""

    def _check_consumer(self) -> None:
        """Do nothing, because the consumer is replaced anyway after a missed heartbeat."""

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving messages, and wait until those already received have been handled.

        While draining, a gap in the deliveries doesn't cause the consumer to be recreated, as it would during normal
        reading. The messages after the gap are then not delivered. If the call is cancelled, the drain continues in the
        background.

        Args:
            timeout: How long to wait, in seconds. After that, a running callback is cancelled, and the messages that
                haven't been handled are dropped. Defaults to 30.

        Raises:
            RequestTimeoutError: The callback didn't finish within ``timeout`` seconds. The subscription is closed
                anyway.
            ClosedError: The connection was closed during the drain.
        """
        self._recreator.stop_recreating()
        await super().drain(timeout)

    def _end_subscription(self) -> None:
        super()._end_subscription()
        self._recreator.stop_recreating()

    def _switch_to(self, inbox: Inbox, intake: HoldingSink, info: ConsumerInfo) -> None:
        self._intake, self._deliver_subject = intake, inbox.subject
        self._tracker.recreated(info.name, info.delivered.stream_seq, self._context.connection.now())
        self._buffer.show()

    async def _let_go(self) -> None:
        self._intake.close()
        await self._stop_listening()

    async def _create(self, config: ConsumerConfig, timeout: float) -> ConsumerInfo:
        context = self._context
        # Use a new deliver subject, so that late messages of the old consumer can't be mistaken for new ones.
        subject, intake = context.connection.new_inbox(), HoldingSink()
        inbox = await context.connection.subscribe(subject, intake)
        self._next = inbox, intake
        config = config.replace(deliver_subject=subject)
        try:
            return await create_consumer(
                context, self.stream, config, timeout=timeout, what="reset the ordered consumer"
            )
        except BaseException:
            await self._discard()
            raise

    async def _discard(self) -> None:
        if self._next is not None:
            (inbox, _), self._next = self._next, None
            await self._context.connection.unsubscribe(inbox)

    def _use_next(self, info: ConsumerInfo) -> None:
        assert self._next is not None
        (inbox, intake), self._next = self._next, None
        self._switch_to(inbox, intake, info)
        self._listen(inbox, intake)
        self._buffer.watch()

    async def _fail_reading(self, error: JetStreamError) -> None:
        """End the subscription with an error. It is raised once the buffered messages have been read."""
        if self._callback is None:
            self._tracker.fail(error)
        else:
            self._buffer.emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))
        self._keep_consumer()
        await self._stop_listening()
        self._end_subscription()
