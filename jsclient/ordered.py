"""Ordered subscriptions: every message once, in order, whatever happens. Source: ADR-17, ADR-15 §Ordered Consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from ._runtime.connection import Inbox, Lifecycle
from ._runtime.context import Context
from ._runtime.intake import Intake
from ._runtime.signal import Signal
from .errors import (
    ApiError,
    ClosedError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    StreamNotFoundError,
)
from .protocol.codec import from_wire, to_wire
from .protocol.events import ConsumerReset, ErrorRaised
from .protocol.frames import Frame
from .protocol.models.consumer import ConsumerConfig, ConsumerInfo
from .protocol.models.stream import StreamInfo
from .protocol.ordered import OrderedTracker, restart_config
from .protocol.subscribe import Binding
from .push_reader import State
from .subscription import Callback, Subscription

__all__ = ["OrderedSubscription"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds between attempts to make a new consumer
_GONE_AFTER = 5.0  # seconds of "not found" on a healthy connection before it is believed


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
        self._intake = Intake()
        self._room = Signal()
        self._resetting: asyncio.Task[None] | None = None
        self._stream_created: Any = None

    def _receive(self, frames: list[Frame]) -> None:
        super()._receive(frames)
        self._reset_if_wanted()

    def _tick(self) -> None:
        super()._tick()
        self._reset_if_wanted()

    def _taken(self) -> None:
        if self._tracker.wants is not None:
            self._room.set()

    def _lifecycle(self, what: Lifecycle) -> None:
        super()._lifecycle(what)
        if what is Lifecycle.CONNECTED:
            # Whatever was under way is lost: do not wait for a heartbeat to say so.
            self._tracker.lost("the connection was made anew")
            self._reset_if_wanted()

    def _end(self) -> None:
        super()._end()
        self._room.set()

    def _check_consumer(self) -> None:
        """Silence makes a new consumer; nobody needs to know whether the old one is there."""

    # --- making a new consumer ---------------------------------------------------------------------------------

    def _reset_if_wanted(self) -> None:
        if self._tracker.wants is not None:
            self._ready = deque()  # until the reset, who makes room is to say so
        if self._tracker.wants is not None and self._resetting is None and self._state is State.OPEN:
            self._resetting = self._context.tasks.start(
                self._reset(), f"reset of the ordered reader of {self.stream}"
            )

    async def _reset(self) -> None:
        try:
            await self._try_until_made()
        finally:
            self._resetting = None
        self._timer.set(self._tracker.deadline if self._state is State.OPEN else None)
        self._reset_if_wanted()

    async def _try_until_made(self) -> None:
        pause, missing_since, told = _FIRST_PAUSE, None, False
        loop = asyncio.get_running_loop()
        while self._state is State.OPEN and self._tracker.wants is not None:
            while not self._tracker.may_recreate and self._state is State.OPEN:
                await self._room.wait()
            try:
                await self._context.connection.wait_connected(None)
                if self._state is not State.OPEN:
                    return
                await self._make_new(self._tracker.wants.reason)
            except ClosedError:
                return
            except DisconnectedError:
                missing_since = None
            except JetStreamError as error:
                if isinstance(error, StreamNotFoundError):
                    missing_since = missing_since or loop.time()
                    if loop.time() - missing_since >= _GONE_AFTER:
                        await self._give_up(error)
                        return
                else:
                    missing_since = None
                if not told:
                    self._emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))
                    told = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause, missing_since, told = _FIRST_PAUSE, None, False

    async def _make_new(self, reason: str) -> None:
        context, tracker = self._context, self._tracker
        self._intake.close()
        await self._stop_listening()
        if self.consumer:
            context.tasks.start(self._delete_old(self.consumer), "delete the old ordered consumer")
        doubtful = tracker.wants is not None and tracker.wants.doubtful
        # At the same time as the create: a reader is to go on within one round trip.
        stream = asyncio.ensure_future(self._stream_info()) if doubtful else None
        deliver_subject, intake = context.connection.new_inbox(), Intake()
        resume = tracker.resume_stream_seq
        config = restart_config(self._config, resume).replace(deliver_subject=deliver_subject)
        inbox = await context.connection.subscribe(deliver_subject, intake)
        try:
            body = {"stream_name": self.stream, "config": to_wire(config)}
            answer = await context.call(
                context.api.consumer_create(self.stream), body, what="reset the ordered consumer"
            )
            info = from_wire(ConsumerInfo, answer)
            began_again = await self._began_again(stream, info)
        except BaseException:
            await context.connection.unsubscribe(inbox)
            raise
        finally:
            if stream is not None:
                stream.cancel()
        if self._state is not State.OPEN or began_again:
            await context.connection.unsubscribe(inbox)
            await self._delete_old(info.name)
            return
        # Told before the messages that follow from it.
        self._emit(
            ConsumerReset(stream=self.stream, consumer=info.name, reason=reason, resume_stream_seq=resume)
        )
        self._use(inbox, intake, info)

    def _use(self, inbox: Inbox, intake: Intake, info: ConsumerInfo) -> None:
        self._inbox, self._intake = inbox, intake
        self._tracker.recreated(info.name, info.delivered.stream_seq, self._context.connection.now())
        if not self._has_callback:
            self._ready = self._tracker.front
        intake.open(self._receive)

    async def _began_again(self, asked: asyncio.Future[StreamInfo | None] | None, info: ConsumerInfo) -> bool:
        """Whether the stream is another one under the same name; then it is to be read from its start.

        In doubt after silence and reconnects, and when the new consumer starts before where we stand: that may also be
        a replica that lags, of which the tracker skips what we have had.
        """
        if asked is None:
            if self._tracker.is_in_place(info.delivered.stream_seq):
                return False
            stream = await self._stream_info()
        else:
            stream = await asked
        if stream is None:
            return False
        another = self._stream_created is not None and stream.created != self._stream_created
        if not another and stream.state.last_seq >= self._tracker.last_stream_seq:
            return False
        self._stream_created = stream.created
        self._emit(self._tracker.stream_began_again(stream.state.last_seq))
        return True

    async def _stream_info(self) -> StreamInfo | None:
        try:
            return from_wire(StreamInfo, await self._context.call(self._context.api.stream_info(self.stream)))
        except JetStreamError:
            return None  # not allowed, or not now: the check is an extra

    async def _delete_old(self, consumer: str) -> None:
        try:
            await self._context.call(self._context.api.consumer_delete(self.stream, consumer))
        except (ConsumerNotFoundError, StreamNotFoundError, DisconnectedError, ClosedError):
            pass
        except ApiError as error:
            self._emit(ErrorRaised(stream=self.stream, consumer=consumer, error=error))

    async def _give_up(self, error: JetStreamError) -> None:
        """It cannot be read any more: what waits is still to be taken, then the error."""
        if self._callback is None:
            self._tracker.fail(error)
        else:
            self._emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))
        self._deletes = False
        await self._stop_listening()
        self._end()

    # --- starting ----------------------------------------------------------------------------------------------

    def begin(self, inbox: Inbox, intake: Intake, info: ConsumerInfo) -> None:
        """Bound for the first time. For the library's own use."""
        self._watch(inbox, self._config)
        self._use(inbox, intake, info)
        self._context.tasks.start(self._remember_stream(), "when was the stream created")

    async def _remember_stream(self) -> None:
        info = await self._stream_info()
        if info is not None and self._stream_created is None:
            self._stream_created = info.created
