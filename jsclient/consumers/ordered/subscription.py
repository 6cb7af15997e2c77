"""Ordered subscriptions: every message once and in order. Source: ADR-17, ADR-15 §Ordered Consumers."""

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

# Bytes that may be buffered, as the server counts them. With messages of 128 B they take about twice as much memory.
MAX_BYTES = 12 * 1024 * 1024


class OrderedSubscription(Subscription):
    """A subscription that replaces its consumer whenever deliveries may be missing.

    Acks do nothing. ``consumer`` changes with each reset, which is reported as the event `ConsumerReset`.
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
        self._next: tuple[Inbox, HoldingSink] | None = None  # inbox of the consumer that is being created
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
        """The NATS subject that the current consumer delivers to. It changes with each reset."""
        return self._deliver_subject

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a user needs to read like this subscription, as in the server's configuration.

        The user passes the same subject, the argument ``stream``, and ``ordered=True``. It may create consumers: it
        can read the whole stream, and have it delivered to any subject of the account. Give these permissions only to
        users whom you trust.

        Args:
            dead_letter: Must be None: an ordered subscription has no dead letters.
            inbox_prefix: The inbox prefix of the user's connection. With a different prefix for each user, no user can
                read another user's messages.

        Raises:
            ConfigError: ``dead_letter`` is given.
            InvalidNameError: ``inbox_prefix`` is not a subject.
        """
        from ...protocol.consumers.rights import ordered_rights

        if dead_letter is not None:
            raise ConfigError("an ordered subscription has no dead letters: leave dead_letter out")
        return ordered_rights(self._context.api, self.stream, inbox_prefix=inbox_prefix)

    def begin_reading(self, inbox: Inbox, intake: HoldingSink, info: ConsumerInfo) -> None:
        """Start reading after the consumer is bound. For the library's own use."""
        self._switch_to(inbox, intake, info)
        self.start_reading(inbox, intake)
        self._recreator.remember_stream(self._bound)

    def _bound(self, stream: StreamInfo) -> None:
        """Limit the buffer if messages stay in the stream after their delivery, so that they can be read again."""
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
            # All messages in flight are lost: do not wait until a missing heartbeat shows it.
            self._tracker.cursor.consumer_lost("the connection was replaced")
            self._reset_if_needed()

    def _look_up_consumer(self) -> None:
        """Do nothing: a deleted consumer is replaced, not reported."""

    def _check_consumer(self) -> None:
        """Do nothing: a missed heartbeat already leads to a new consumer."""

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Like `Subscription.drain`. No new consumer is created meanwhile."""
        self._recreator.stop_recreating()
        await super().drain(timeout)

    def _end_subscription(self) -> None:
        super()._end_subscription()
        self._recreator.stop_recreating()

    # Each new consumer delivers to a new subject from its creation on, so messages of an abandoned consumer cannot mix
    # in.

    def _switch_to(self, inbox: Inbox, intake: HoldingSink, info: ConsumerInfo) -> None:
        self._intake, self._deliver_subject = intake, inbox.subject
        self._tracker.recreated(info.name, info.delivered.stream_seq, self._context.connection.now())
        self._buffer.show()

    async def _let_go(self) -> None:
        self._intake.close()
        await self._stop_listening()

    async def _create(self, config: ConsumerConfig, timeout: float) -> ConsumerInfo:
        context = self._context
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
        """End with an error, which is raised after the buffered messages were read."""
        if self._callback is None:
            self._tracker.fail(error)
        else:
            self._buffer.emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))
        self._keep_consumer()
        await self._stop_listening()
        self._end_subscription()
