"""What stands behind an ordered pull consumer: its inbox, its timer, and its consumers, one after the other.

Source: ADR-17, ADR-37.
"""

from __future__ import annotations

import asyncio
import secrets
from enum import Enum

from ..._runtime.calls import consumer_info, delete_consumer
from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ..._runtime.nats.connection import Lifecycle
from ..._runtime.timer import Timer
from ..._runtime.wakeup import Signal
from ...errors import (
    ConsumerExistsError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.consumers.consume import Ask, Command, Tell
from ...protocol.consumers.fetch import Pull, encode_pull
from ...protocol.consumers.ordered_consume import OrderedConsume
from ...protocol.events import DeleteFailed, Event
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo, DeliverPolicy
from ...protocol.wire.codec import from_wire, to_wire
from ...protocol.wire.frames import Frame
from ..message import AckChannel, Message
from ..pull.reader_inbox import ReaderInbox
from .recreate import Reader, Remaker

__all__ = ["OrderedPuller", "State"]

_MARK = "jsclient.reader"  # of the metadata
_NAMES = 100  # names that are tried, where another reader has the same prefix


class State(Enum):
    NEW = "new"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class OrderedPuller:
    """Reads one stream in order. Who reads, and how, is for those who use it.

    Attributes:
        front: The messages that wait.
        changed: Is set whenever there may be something new to see.
        error: Why it was given up.
        num_pending: Messages that its first consumer had to deliver when it was made.
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
        self.channel = AckChannel(context.connection, context.requests, context.timeout, silent=True)
        self._prefix, self._mark = name_prefix or secrets.token_hex(11), ""
        if name_prefix is not None:
            # Others may have the same prefix: a consumer that they made must not look like one of ours.
            self._mark = secrets.token_hex(11)
            config = config.replace(metadata={**(config.metadata or {}), _MARK: self._mark})
        self.config = config
        self._serial = 0
        self.tracker = OrderedConsume(
            stream,
            "",
            Pull(1),
            0,
            keeps_policy=config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT,
            inactive_threshold=config.inactive_threshold or float("inf"),
        )
        self.front = self.tracker.front
        self.changed = Signal()
        self.log = EventLog()
        self.error: JetStreamError | None = None
        self.num_pending = 0
        self.state = State.NEW
        self._flushing = False  # draining: what is under way still arrives
        self._ending: asyncio.Task[None] | None = None
        self._inbox = ReaderInbox(context.connection, self._receive)
        self._timer = Timer(self._tick)
        reader = Reader(
            is_open=lambda: self.state is State.OPEN,
            let_go=self._inbox.close,
            create=self._create,
            discard=self._inbox.close,
            use=self._use,
            give_up=self._give_up,
            emit=self.emit,
        )
        self.remaker = Remaker(context, self.tracker, config, reader, max_attempts=max_reset_attempts)

    @property
    def stream(self) -> str:
        return self.tracker.stream

    @property
    def consumer(self) -> str:
        return self.tracker.consumer

    @property
    def nothing_comes(self) -> bool:
        """Whether what waits is all that there will be."""
        return self.state is not State.OPEN and not self._flushing

    def emit(self, event: Event) -> None:
        """Tell the user."""
        self.log.add(event)
        self.context.emit(event)

    # --- its consumers ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Make the first consumer. Raises those of any request; nothing is left then."""
        connection = self.context.connection
        connection.check_open()
        info = await self._create(self.config)
        connection.check_open()  # closed meanwhile: nothing would ever wake who reads
        self.state = State.OPEN
        connection.add_listener(self._lifecycle)
        connection.denied.append(self._denied)
        self.context.open.add(self)
        self.num_pending = info.num_pending
        self._use(info)
        self.remaker.remember_stream()

    async def _create(self, config: ConsumerConfig) -> ConsumerInfo:
        info = await self._create_under_new_name(config)
        try:
            await self._inbox.open()
        except BaseException:
            self.context.tasks.start(self._delete(info.name), "undo create consumer")
            raise
        return info

    async def _create_under_new_name(self, config: ConsumerConfig) -> ConsumerInfo:
        left = _NAMES
        while True:
            self._serial += 1
            left -= 1
            name = f"{self._prefix}_{self._serial}"
            try:
                return await self._create_named(name, config.replace(name=name))
            except ConsumerExistsError:
                if not left:
                    raise

    async def _create_named(self, name: str, config: ConsumerConfig) -> ConsumerInfo:
        """Create it; it must not be left behind if nobody waits for it any more."""
        creating = self.context.tasks.start(
            self._request_create(name, config), "create ordered consumer", awaited=True
        )
        try:
            return await asyncio.shield(creating)
        except (RequestTimeoutError, DisconnectedError, asyncio.CancelledError):
            self.context.tasks.start(self._undo(name, creating), "undo create consumer")
            raise

    async def _request_create(self, name: str, config: ConsumerConfig) -> ConsumerInfo:
        subject = self.context.api.consumer_create_named(self.stream, name, config.filter_subject or "")
        body = {"stream_name": self.stream, "config": to_wire(config), "action": "create"}
        return from_wire(
            ConsumerInfo, await self.context.call(subject, body, what="create the ordered consumer")
        )

    async def _undo(self, name: str, creating: asyncio.Task[ConsumerInfo]) -> None:
        """It may have been made; by that name somebody else may have one, too."""
        await asyncio.wait({creating})
        if self._mark:
            try:
                info = await consumer_info(self.context, self.stream, name)
            except JetStreamError:
                return
            if (info.config.metadata or {}).get(_MARK) != self._mark:
                return
        elif self.state is State.OPEN and not self.context.connection.is_connected:
            self.remaker.left.add(name)
            return
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        """Best effort: the server removes it by itself after its inactive threshold."""
        if not name:
            return
        try:
            if not self.context.connection.is_connected:
                raise DisconnectedError("not connected to a server")
            await delete_consumer(self.context, self.stream, name)
        except JetStreamError as error:
            self.emit(DeleteFailed(stream=self.stream, consumer=name, error=error))

    def _use(self, info: ConsumerInfo) -> None:
        now = self.context.connection.now()
        self.carry_out(self.tracker.recreated(info.name, info.delivered.stream_seq, now))
        self.changed.set()

    async def _give_up(self, error: JetStreamError) -> None:
        """It cannot be read any more: what waits is still to be taken, then the error."""
        self.error = error
        self._end()
        await self._inbox.close()
        self.log.close()

    # --- running ---------------------------------------------------------------------------------------------

    def _receive(self, frames: list[Frame]) -> None:
        if self.state is State.CLOSED:
            return
        self.carry_out(self.tracker.receive(frames, self.context.connection.now()))
        self.changed.set()

    def _tick(self) -> None:
        self.carry_out(self.tracker.tick(self.context.connection.now()))

    def take(self) -> Message | None:
        """The next message that waits."""
        if not self.front:
            return None
        frame, commands = self.tracker.take()
        if commands:
            self.carry_out(commands)
        return Message(frame, self.channel)

    def carry_out(self, commands: list[Command]) -> None:
        """Do what the tracker says, and see whether it wants a new consumer."""
        tracker = self.tracker
        for command in commands:
            if isinstance(command, Ask):
                self._send(command)
            elif isinstance(command, Tell):
                self.emit(command.event)
        if tracker.cursor.wants is not None:
            self.remaker.look()
        self._timer.set(tracker.deadline if self.state is State.OPEN else None)

    def _send(self, ask: Ask) -> None:
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
            tracker.disconnected()  # a new consumer is asked at the reconnect

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            # Whatever was under way is lost: do not wait for a heartbeat to say so.
            self.tracker.cursor.lost("the connection was made anew")
        elif what is Lifecycle.DISCONNECTED:
            self.tracker.disconnected()
        else:
            self._end()
            self.log.close()
        self.carry_out([])
        self.changed.set()

    def _denied(self, error: PermissionDeniedError) -> None:
        subject = self.context.api.consumer_next(self.stream, self.consumer)
        inbox = self._inbox.inbox
        if error.subject == subject or (inbox is not None and error.subject == inbox.subject):
            self.context.tasks.start(self._refuse(error), "end a reader that may not read")

    async def _refuse(self, error: PermissionDeniedError) -> None:
        await self._give_up(error)
        await self._delete(self.consumer)

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End now, drop what waits, delete the consumer. Trouble with that is told as the event `DeleteFailed`."""
        self.front.clear()
        if self.state in {State.OPEN, State.DRAINING}:
            self._end()
            self._ending = self.context.tasks.start(self._finish(), "end of an ordered consumer")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    abandon = stop  # when the connection is closed

    async def drain(self) -> None:
        """Ask for nothing more; what is under way arrives, and what waits can be taken. The consumer is deleted."""
        if self.state is State.OPEN:
            self.state, self._flushing = State.DRAINING, True
            self.tracker.rest()
            self._timer.cancel()
            self.remaker.stop()
            self._ending = self.context.tasks.start(self._flush(), "drain of an ordered consumer")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _flush(self) -> None:
        try:
            await self._inbox.drain(self.context.timeout)
        finally:
            self._flushing = False
            self._end()
        await self._finish()

    async def _finish(self) -> None:
        await self._inbox.close()
        await self.remaker.stopped()
        await self._delete(self.consumer)
        self.log.close()

    def _end(self) -> None:
        """Nothing runs any more."""
        self.state = State.CLOSED
        self.tracker.rest()
        self._timer.cancel()
        self.remaker.stop()
        connection = self.context.connection
        connection.remove_listener(self._lifecycle)
        if self._denied in connection.denied:
            connection.denied.remove(self._denied)
        self.context.open.discard(self)
        self.changed.set()
