"""Ordered subscriptions: every message once, in order, whatever happens. Source: ADR-17, ADR-15 §Ordered Consumers."""

from __future__ import annotations

from collections import deque

from ..._runtime.context import Context
from ..._runtime.holding_sink import Intake
from ..._runtime.nats.connection import Inbox, Lifecycle
from ...errors import JetStreamError
from ...protocol.consumers.ordered import OrderedTracker
from ...protocol.consumers.subscribe import Binding
from ...protocol.events import ErrorRaised
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.wire.codec import from_wire, to_wire
from ...protocol.wire.frames import Frame
from ..push.reader import State
from ..subscription import DRAIN_TIMEOUT, Callback, Subscription
from .recreate import Reader, Remaker

__all__ = ["OrderedSubscription"]


class OrderedSubscription(Subscription):
    """A subscription that makes itself a new consumer whenever the present one cannot be trusted.

    It holds no consumer of long standing: acks do nothing, and ``consumer`` changes with each reset, which is told as
    the event `ConsumerReset`.
    """

    _tracker: OrderedTracker

    def __init__(
        self,
        context: Context,
        tracker: OrderedTracker,
        binding: Binding,
        config: ConsumerConfig,
        *,
        callback: Callback | None,
    ) -> None:
        super().__init__(context, tracker, binding, callback=callback, auto_ack=False, delete_on_close=True)
        self._config = config
        self._deliver_subject = binding.deliver_subject or ""
        self._intake = Intake()
        self._next: tuple[Inbox, Intake] | None = None  # of the consumer that is being made
        reader = Reader(
            is_open=lambda: self._state is State.OPEN,
            let_go=self._let_go,
            create=self._create,
            discard=self._discard,
            use=self._use_new,
            give_up=self._give_up,
            emit=self._emit,
        )
        self._remaker = Remaker(context, tracker, config, reader)

    @property
    def subject(self) -> str:
        """The NATS subject that the present consumer delivers to; it changes with each reset."""
        return self._deliver_subject

    def _receive(self, frames: list[Frame]) -> None:
        super()._receive(frames)
        self._reset_if_wanted()

    def _tick(self) -> None:
        super()._tick()
        self._reset_if_wanted()

    def _taken(self) -> None:
        if self._tracker.wants is not None:
            self._remaker.room.set()

    def _lifecycle(self, what: Lifecycle) -> None:
        super()._lifecycle(what)
        if what is Lifecycle.CONNECTED:
            # Whatever was under way is lost: do not wait for a heartbeat to say so.
            self._tracker.lost("the connection was made anew")
            self._reset_if_wanted()

    def _reset_if_wanted(self) -> None:
        if self._tracker.wants is not None:
            self._ready = deque()  # until the reset, who makes room is to say so
            self._remaker.look()

    def _check_consumer(self) -> None:
        """Silence makes a new consumer; nobody needs to know whether the old one is there."""

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """As `Subscription.drain`; no new consumer is made any more."""
        self._remaker.stop()
        await super().drain(timeout)

    def _end(self) -> None:
        super()._end()
        self._remaker.stop()

    # --- its consumers -----------------------------------------------------------------------------------------

    def begin(self, inbox: Inbox, intake: Intake, info: ConsumerInfo) -> None:
        """Bound for the first time. For the library's own use."""
        self._watch(inbox, self._config)
        self._use(inbox, intake, info)
        self._remaker.remember_stream()

    def _use(self, inbox: Inbox, intake: Intake, info: ConsumerInfo) -> None:
        self._inbox, self._intake, self._deliver_subject = inbox, intake, inbox.subject
        self._tracker.recreated(info.name, info.delivered.stream_seq, self._context.connection.now())
        if not self._has_callback:
            self._ready = self._tracker.front
        intake.open(self._receive)

    async def _let_go(self) -> None:
        self._intake.close()
        await self._stop_listening()

    async def _create(self, config: ConsumerConfig) -> ConsumerInfo:
        """The consumer delivers to a subject of its own from the moment it is made."""
        context = self._context
        subject, intake = context.connection.new_inbox(), Intake()
        inbox = await context.connection.subscribe(subject, intake)
        self._next = inbox, intake
        body = {"stream_name": self.stream, "config": to_wire(config.replace(deliver_subject=subject))}
        try:
            answer = await context.call(
                context.api.consumer_create(self.stream), body, what="reset the ordered consumer"
            )
            return from_wire(ConsumerInfo, answer)
        except BaseException:
            await self._discard()
            raise

    async def _discard(self) -> None:
        if self._next is not None:
            (inbox, _), self._next = self._next, None
            await self._context.connection.unsubscribe(inbox)

    def _use_new(self, info: ConsumerInfo) -> None:
        assert self._next is not None
        (inbox, intake), self._next = self._next, None
        self._use(inbox, intake, info)
        self._timer.set(self._tracker.deadline)

    async def _give_up(self, error: JetStreamError) -> None:
        """It cannot be read any more: what waits is still to be taken, then the error."""
        if self._callback is None:
            self._tracker.fail(error)
        else:
            self._emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))
        self._deletes = False
        await self._stop_listening()
        self._end()
