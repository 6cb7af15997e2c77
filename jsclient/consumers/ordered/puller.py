"""Sends the requests of an ordered pull consumer, and replaces its consumer if necessary. Source: ADR-17, ADR-37."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

from ..._runtime.calls import consumer_info, create_consumer, delete_consumer
from ..._runtime.connection.connection import Lifecycle
from ..._runtime.connection.speedups import chosen
from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ..._runtime.handle import State
from ..._runtime.matching import check_match
from ..._runtime.tasks import Signal, Timer
from ...errors import (
    ConsumerExistsError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.consumers.consume import Command, SendPull
from ...protocol.consumers.fetch import Pull, encode_pull
from ...protocol.consumers.ordered_consume import OrderedConsume
from ...protocol.consumers.push import Emit
from ...protocol.events import DeleteFailed, Event
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo, DeliverPolicy
from ...protocol.wire.frames import Frame
from ..message import AckChannel, DeliveredMessage, Message
from ..pull.puller import ReaderInbox
from ..stall_watch import StallWatch
from .recreate import ConsumerRecreator, ReaderOperations

__all__ = ["OrderedPuller"]

_MARK = "jsclient.reader"  # metadata key whose value identifies the reader that has created a consumer
_NAMES = 100  # number of consumer names to try, because another reader may use the same prefix


class OrderedPuller:
    """Receives the messages of a stream in order.

    `OrderedConsumer` and the other readers that need every message of a stream are built on this class.

    Attributes:
        front: The messages in the buffer.
        changed: Set after every arrival and change of state, to wake up readers.
        error: The error that has permanently ended the reader, or None.
        num_pending: Number of messages that were pending for the first consumer when it was created.
        arrived: Total number of messages received.
        watch: Checks the consumer when no message arrives for a while.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        config: ConsumerConfig,
        *,
        name_prefix: str | None,
        max_reset_attempts: int | None,
    ) -> None:
        self.context = context
        self.channel: AckChannel = AckChannel(
            context.connection, context.requests, context.timeout, silent=True
        )
        self._prefix, self._mark = name_prefix or secrets.token_hex(11), ""
        if name_prefix is not None:
            # Mark our consumers. Another client may use the same prefix, and its consumers must not be deleted.
            self._mark = secrets.token_hex(11)
            config = config.replace(metadata={**(config.metadata or {}), _MARK: self._mark})
        self.config = config
        self._serial = 0
        self.tracker: OrderedConsume = OrderedConsume(
            stream,
            "",
            Pull(1),
            0,
            keeps_policy=config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT,
            inactive_threshold=config.inactive_threshold or float("inf"),
            runs=chosen().runs,
        )
        self.front: deque[Frame] = self.tracker.front
        self.changed: Signal = Signal()
        self.log: EventLog = EventLog()
        self.error: JetStreamError | None = None
        self.num_pending: int = 0
        self.arrived: int = 0
        self.state: State = State.NEW
        self._flushing = False  # True during a drain, until the messages in flight have arrived
        self._ending: asyncio.Task[None] | None = None
        self._inbox = ReaderInbox(context.connection, self._receive_frames)
        self._timer = Timer(self._tick_tracker)
        reader = ReaderOperations(
            is_open=lambda: self.state is State.OPEN,
            let_go=self._inbox.close,
            create=self._create,
            discard=self._inbox.close,
            use=self._use,
            reset=lambda: self.carry_out([]),
            fail=self._fail_reading,
            emit=self.emit,
        )
        self.recreator: ConsumerRecreator = ConsumerRecreator(
            context, self.tracker, config, reader, max_attempts=max_reset_attempts
        )
        self.watch: StallWatch = StallWatch(context, self, reset_error=lambda: self.recreator.error)

    @property
    def stream(self) -> str:
        return self.tracker.stream

    @property
    def consumer(self) -> str:
        return self.tracker.consumer

    @property
    def is_awaited(self) -> bool:
        """True while a call is waiting for a message."""
        return self.changed.is_awaited

    @property
    def nothing_comes(self) -> bool:
        """True if no more messages will arrive."""
        return self.state is not State.OPEN and not self._flushing

    def emit(self, event: Event) -> None:
        """Report an event to the reader and to the connection's ``on_event``."""
        self.log.add_event(event)
        self.context.emit(event)

    async def create_first_consumer(self) -> None:
        """Create the first consumer and start reading.

        May raise any error common to API requests. If the call fails or is cancelled, the consumer is deleted again.
        """
        connection = self.context.connection
        connection.check_open()
        info = await self._create(self.config)
        if not info.num_pending:
            await self._check_match(info)
        connection.check_open()  # if the connection was closed in the meantime, readers would wait forever
        self.state = State.OPEN
        self.context.attach(self, self._restart_consumer, self._end_denied)
        self.num_pending = info.num_pending
        self._use(info)
        self.recreator.remember_stream(created=info.created)

    async def _check_match(self, info: ConsumerInfo) -> None:
        """Delete the new consumer and raise an error if its filter can't match any subject of the stream."""
        try:
            await check_match(self.context, self.stream, self.config.filters)
        except BaseException:
            await self._inbox.close()
            self.context.tasks.start(self._delete(info.name), "undo create consumer")
            raise

    async def _create(self, config: ConsumerConfig, timeout: float | None = None) -> ConsumerInfo:
        info = await self._create_under_new_name(config, timeout)
        try:
            await self._inbox.open_inbox()
        except BaseException:
            self.context.tasks.start(self._delete(info.name), "undo create consumer")
            raise
        return info

    async def _create_under_new_name(self, config: ConsumerConfig, timeout: float | None) -> ConsumerInfo:
        remaining = _NAMES
        while True:
            self._serial += 1
            remaining -= 1
            name = f"{self._prefix}_{self._serial}"
            try:
                return await self._create_named(name, config.replace(name=name), timeout)
            except ConsumerExistsError:
                if not remaining:
                    raise

    async def _create_named(self, name: str, config: ConsumerConfig, timeout: float | None) -> ConsumerInfo:
        """Create the consumer. If the call is cancelled or not answered, delete the consumer in the background."""
        request = create_consumer(
            self.context, self.stream, config, timeout=timeout, what="create the ordered consumer"
        )
        creating = self.context.tasks.start(request, "create ordered consumer", awaited=True)
        try:
            return await asyncio.shield(creating)
        except (RequestTimeoutError, DisconnectedError, asyncio.CancelledError):
            self.context.tasks.start(self._undo(name, creating), "undo create consumer")
            raise

    async def _undo(self, name: str, creating: asyncio.Task[ConsumerInfo]) -> None:
        """Delete the consumer that an unanswered request may have created, unless another client owns its name."""
        await asyncio.wait({creating})
        if self._mark:
            try:
                info = await consumer_info(self.context, self.stream, name)
            except JetStreamError:
                return
            if (info.config.metadata or {}).get(_MARK) != self._mark:
                return
        elif self.state is State.OPEN and not self.context.connection.is_connected:
            # Without a connection, the consumer can't be deleted now. The recreator deletes it after the reconnect.
            self.recreator.leftover.add(name)
            return
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        """Try to delete a consumer, and report a failure. The server deletes it anyway after its inactive threshold."""
        if not name:
            return
        try:
            if not self.context.connection.is_connected:
                raise self.context.connection.away()
            await delete_consumer(self.context, self.stream, name)
        except JetStreamError as error:
            self.emit(DeleteFailed(stream=self.stream, consumer=name, error=error))

    def _use(self, info: ConsumerInfo) -> None:
        now = self.context.connection.now()
        self.carry_out(self.tracker.recreated(info.name, info.delivered.stream_seq, now))
        self.changed.set()

    async def _fail_reading(self, error: JetStreamError) -> None:
        """End the reader with an error. It is raised once the buffered messages have been read."""
        self.error = error
        self._end_reading()
        await self._inbox.close()
        self.log.close()

    def _receive_frames(self, frames: list[Frame]) -> None:
        if self.state is State.CLOSED:
            return
        before = len(self.front)
        commands = self.tracker.receive(frames, self.context.connection.now())
        self.arrived += len(self.front) - before
        self.carry_out(commands)
        self.changed.set()

    def _tick_tracker(self) -> None:
        self.carry_out(self.tracker.tick(self.context.connection.now()))

    def take_message(self) -> Message | None:
        """Return the next message from the buffer, or None if the buffer is empty."""
        if not self.front:
            return None
        frame, commands = self.tracker.take_frame()
        if commands:
            self.carry_out(commands)
        return DeliveredMessage(frame, self.channel)

    def replace_consumer(self, reason: str) -> None:
        """Replace the consumer, because it delivers nothing although it should."""
        self.tracker.cursor.consumer_lost(reason)
        self.carry_out([])

    def take_frames(self, limit: int) -> list[Frame]:
        """Return up to ``limit`` messages from the buffer, as raw frames."""
        frames, commands = self.tracker.take_many(limit)
        if commands:
            self.carry_out(commands)
        return frames

    def carry_out(self, commands: list[Command]) -> None:
        """Carry out the commands of the tracker. If the consumer is lost, start to recreate it."""
        tracker = self.tracker
        for command in commands:
            if isinstance(command, SendPull):
                self._send_pull(command)
            elif isinstance(command, Emit):
                self.emit(command.event)
        if tracker.cursor.wants is not None:
            self.recreator.recreate_if_needed()
        self._timer.set(tracker.deadline if self.state is State.OPEN else None)

    def _send_pull(self, ask: SendPull) -> None:
        connection, tracker = self.context.connection, self.tracker
        if tracker.is_forgotten(connection.now()):
            return
        try:
            connection.send(
                self.context.api.consumer_next(self.stream, self.consumer),
                encode_pull(ask.pull),
                reply=self._inbox.reply(ask.number),
            )
        except JetStreamError:
            # Drop this request. After the reconnect, a new consumer is created, and gets a new request.
            tracker.disconnected()

    def _restart_consumer(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            # The messages in flight were lost with the connection. Replace the consumer now, instead of waiting for a
            # missing heartbeat.
            self.tracker.cursor.consumer_lost("the connection was replaced")
        elif what is Lifecycle.DISCONNECTED:
            self.tracker.disconnected()
        else:
            self._end_reading()
            self.log.close()
        self.carry_out([])
        self.changed.set()

    def _end_denied(self, error: PermissionDeniedError) -> None:
        subject = self.context.api.consumer_next(self.stream, self.consumer)
        inbox = self._inbox.inbox
        if error.subject == subject or (inbox is not None and error.subject == inbox.subject):
            self.context.tasks.start(self._refuse_reading(error), "end a reader without permission")

    async def _refuse_reading(self, error: PermissionDeniedError) -> None:
        await self._fail_reading(error)
        await self._delete(self.consumer)

    async def stop_reading(self) -> None:
        """End the reader, drop the messages in the buffer, and delete the consumer."""
        self.front.clear()
        if self.state in {State.OPEN, State.DRAINING}:
            self._end_reading()
            self._ending = self.context.tasks.start(self._finish_reading(), "end of an ordered consumer")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    abandon = stop_reading  # called when the connection is closed

    async def drain(self) -> None:
        """Stop requesting messages, wait for the messages in flight, and delete the consumer."""
        if self.state is State.OPEN:
            self.state, self._flushing = State.DRAINING, True
            self.tracker.rest()
            self._timer.cancel()
            self.recreator.stop_recreating()
            self._ending = self.context.tasks.start(self._flush(), "drain of an ordered consumer")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _flush(self) -> None:
        try:
            await self._inbox.drain(self.context.timeout)
        finally:
            self._flushing = False
            self._end_reading()
        await self._finish_reading()

    async def _finish_reading(self) -> None:
        await self._inbox.close()
        await self.recreator.stopped()
        await self._delete(self.consumer)
        self.log.close()

    def _end_reading(self) -> None:
        self.state = State.CLOSED
        self.watch.close()
        self.tracker.rest()
        self._timer.cancel()
        self.recreator.stop_recreating()
        self.context.detach(self, self._restart_consumer, self._end_denied)
        self.changed.set()
