"""The reading side of a push subscription: drives the tracker, hands out messages. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import Enum
from typing import Self

from ..._runtime.calls import consumer_info, is_gone
from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ..._runtime.timer import Timer
from ..._runtime.wakeup import Signal
from ...errors import (
    ClosedError,
    ConfigError,
    JetStreamError,
    RequestTimeoutError,
)
from ...protocol.consumers.push import Answer, Command, PushTracker
from ...protocol.consumers.subscribe import Binding
from ...protocol.events import ConsumerDeleted, Event
from ...protocol.models.consumer import ConsumerInfo
from ...protocol.wire.frames import Frame
from ..message import AckChannel, Message

__all__ = ["PushReader", "State"]


class State(Enum):
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class PushReader:
    """What a push subscription receives, and how it is taken. `Subscription` adds callbacks and its end."""

    def __init__(self, context: Context, tracker: PushTracker, binding: Binding) -> None:
        self._context = context
        self._tracker = tracker
        self._binding = binding
        self._has_callback = False
        self._ready = (
            tracker.front
        )  # what can be taken without more ado; another one, empty, where there is some
        self._channel = AckChannel(context.connection, context.requests, context.timeout)
        self._log = EventLog()
        self._arrived = Signal()
        self._timer = Timer(self._tick)
        self._state = State.OPEN
        self._flushing = False  # draining: what is under way still arrives
        self._checking = False

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def stream(self) -> str:
        """The stream it reads from."""
        return self._tracker.stream

    @property
    def consumer(self) -> str:
        """The consumer it reads through. An ordered subscription changes it when it must."""
        return self._tracker.consumer

    @property
    def subject(self) -> str:
        """The NATS subject that the consumer delivers to."""
        return self._binding.deliver_subject or ""

    @property
    def queue(self) -> str | None:
        """The queue group, if it is in one."""
        return self._binding.queue

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer (and so deletes it at its end, unless told not to)."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be taken."""
        return self._tracker.pending

    @property
    def pending_bytes(self) -> int:
        """Their bytes, as the server counts them."""
        return self._tracker.pending_bytes

    @property
    def dropped(self) -> int:
        """Messages dropped because the queue was full (see the event `SlowConsumer`)."""
        return self._tracker.dropped

    @property
    def is_closed(self) -> bool:
        """Whether no more messages will come."""
        return self._state is State.CLOSED

    @property
    def _nothing_comes(self) -> bool:
        return self._state is State.CLOSED or (self._state is State.DRAINING and not self._flushing)

    def __repr__(self) -> str:
        return f"<Subscription {self.stream}/{self.consumer} {self._state.value}>"

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's present state. Raises `ConsumerNotFoundError` and those of any request."""
        return await consumer_info(self._context, self.stream, self.consumer)

    def events(self) -> AsyncIterator[Event]:
        """The events of this subscription: those of late that were kept, then each new one, until it ends."""
        return self._log.read()

    # --- reading ---------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Raises:
            RequestTimeoutError: No message came in ``timeout`` seconds.
            StatusError: The server sent an error status at this place; asking again goes on behind it.
            ClosedError: The subscription is closed, or drained and empty.
            ConfigError: The subscription has a callback.

        Cancelled: no message is lost; the next call gets it.
        """
        if self._has_callback:
            raise ConfigError("the subscription has a callback: its messages go there")
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while (message := self._take()) is None:
            if self._nothing_comes:
                self._emptied()
                raise ClosedError("the subscription is closed")
            if not await self._arrived.wait_until(deadline):
                message = self._take()
                if message is not None:
                    return message
                raise RequestTimeoutError("no message", timeout)
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """As `next`, for ``async for``. Not a generator: one that was cancelled would end and lose the rest."""
        if self._ready:
            return Message(self._ready.popleft(), self._channel)
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def batches(self, max_messages: int = 1000) -> AsyncIterator[list[Message]]:
        """Iterate over what has arrived, 1 to ``max_messages`` messages at a time, until the subscription ends.

        Raises as `next`. A batch that was handed over is the caller's; flow control of messages in it is answered when
        the batch is made.
        """
        if isinstance(max_messages, bool) or max_messages < 1:
            raise ConfigError(f"max_messages is {max_messages!r}: it must be 1 or more")
        return _Batches(self, max_messages)

    async def next_batch(self, max_messages: int = 1000) -> list[Message]:
        """Wait for a message; it and what else has arrived, ``max_messages`` at most. Raises as `next`."""
        batch, front, channel = [await self.next()], self._tracker.front, self._channel
        while (room := max_messages - len(batch)) > 0:
            if front:
                batch.extend([Message(front.popleft(), channel) for _ in range(min(room, len(front)))])
                continue
            try:
                message = self._take()
            except JetStreamError as error:
                self._tracker.put_back(error)  # for the next call: this batch is not lost
                break
            if message is None:
                break
            batch.append(message)
        return batch

    def _take(self) -> Message | None:
        """The next message that waits. Flow control on the way is answered."""
        self._taken()
        while True:
            frame, commands = self._tracker.take()
            if commands:
                self._carry_out(commands)
            if frame is not None:
                return Message(frame, self._channel)
            if not self._tracker.waits:
                return None

    def _taken(self) -> None:
        """Messages left the queue."""

    def _emptied(self) -> None:
        """Somebody asked for more after the end, and all has been taken."""

    # --- receiving -------------------------------------------------------------------------------------------

    def _receive(self, frames: list[Frame]) -> None:
        tracker = self._tracker
        commands = tracker.receive(frames, self._context.connection.now())
        if commands:
            self._carry_out(commands)
        if tracker.waits:
            self._arrived.set()

    def _tick(self) -> None:
        commands = self._tracker.tick(self._context.connection.now())
        self._carry_out(commands)
        if commands:
            self._check_consumer()
        self._timer.set(self._tracker.deadline if self._state is State.OPEN else None)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Answer):
                try:
                    self._context.connection.send(command.subject.decode("utf-8", "surrogateescape"))
                except JetStreamError:
                    self._tracker.flow.not_sent(command.subject)  # heartbeats will say that it is missing
            else:
                self._emit(command.event)

    def _emit(self, event: Event) -> None:
        self._log.add(event)
        self._context.emit(event)

    def _check_consumer(self) -> None:
        """Silence: is the consumer still there? Told once, by name, if it is not."""
        if not self._checking and self._context.connection.is_connected:
            self._checking = True
            self._context.tasks.start(self._ask_for_consumer(), "is the consumer there")

    async def _ask_for_consumer(self) -> None:
        if await is_gone(self._context, self.stream, self.consumer):
            self._emit(ConsumerDeleted(stream=self.stream, consumer=self.consumer))
            return  # and do not ask again
        self._checking = False


class _Batches:
    """The iteration in batches."""

    def __init__(self, reader: PushReader, max_messages: int) -> None:
        self._reader = reader
        self._max_messages = max_messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        try:
            return await self._reader.next_batch(self._max_messages)
        except ClosedError:
            raise StopAsyncIteration from None
