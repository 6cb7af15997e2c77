"""Push subscriptions: `JetStream.subscribe`. Source: ADR-15."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Self, TypeAlias

from ._runtime.connection import Inbox, Lifecycle
from ._runtime.consumer_calls import consumer_info, delete_consumer
from ._runtime.context import Context
from ._runtime.events import EventLog
from ._runtime.intake import Intake
from ._runtime.signal import Signal
from ._runtime.timer import Timer
from .errors import ClosedError, ConfigError, ConsumerNotFoundError, JetStreamError, RequestTimeoutError
from .message import AckChannel, Message
from .protocol.ack import AckKind
from .protocol.events import ConsumerDeleted, DeleteFailed, Event, HandlerFailed
from .protocol.frames import Frame
from .protocol.models.consumer import AckPolicy, ConsumerConfig, ConsumerInfo
from .protocol.push import Answer, Command, PushTracker
from .protocol.subscribe import Binding

__all__ = ["Callback", "Subscription"]

Callback: TypeAlias = Callable[[Message], Awaitable[None] | None]

DRAIN_TIMEOUT = 30.0  # seconds
_YIELD_EVERY = 100  # messages a callback may take before the event loop gets its turn


class _State(Enum):
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class Subscription:
    """A push subscription: ask with `next`, iterate, take `batches`, or give a callback.

    Made by `JetStream.subscribe`. Statuses never come out of it: heartbeats, flow control and gaps are handled, what is
    worth knowing is told through `events` and the connection's ``on_event``. Errors (409, 503, unknown statuses) are
    raised from `next` and the iterations, or told as events where a callback is used; the subscription goes on.
    """

    def __init__(
        self,
        context: Context,
        tracker: PushTracker,
        binding: Binding,
        *,
        callback: Callback | None,
        auto_ack: bool,
        delete_on_close: bool,
    ) -> None:
        self._context = context
        self._tracker = tracker
        self._binding = binding
        self._callback = callback
        self._auto_ack = auto_ack
        self._deletes = delete_on_close and binding.created
        self._inbox: Inbox | None = None
        self._channel = AckChannel(context.connection, context.requests, context.timeout)
        self._log = EventLog()
        self._arrived = Signal()
        self._timer = Timer(self._tick)
        self._state = _State.OPEN
        self._finished: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
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
        return self._state is _State.CLOSED

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
        if self._callback is not None:
            raise ConfigError("the subscription has a callback: its messages go there")
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while (message := self._take()) is None:
            if self._state is not _State.OPEN:
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
        batch = [await self.next()]
        while len(batch) < max_messages and self._tracker.pending:
            message = self._take()
            if message is None:
                break
            batch.append(message)
        return batch

    def _take(self) -> Message | None:
        """The next message that waits. Flow control on the way is answered."""
        while True:
            frame, commands = self._tracker.take()
            if commands:
                self._carry_out(commands)
            if frame is not None:
                self._taken()
                return Message(frame, self._channel)
            if not self._tracker.waits:
                return None

    def _taken(self) -> None:
        """A message left the queue."""

    # --- running ---------------------------------------------------------------------------------------------

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
        self._timer.set(self._tracker.deadline if self._state is _State.OPEN else None)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Answer):
                try:
                    self._context.connection.send(command.subject.decode("utf-8", "surrogateescape"))
                except JetStreamError:
                    pass  # the connection is down: heartbeats will say that the answer is missing
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
        try:
            await self.consumer_info()
        except ConsumerNotFoundError:
            self._emit(ConsumerDeleted(stream=self.stream, consumer=self.consumer))
            return  # and do not ask again
        except JetStreamError:
            pass  # the alarm was told; why the server does not answer is not known
        self._checking = False

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end()

    async def _run(self) -> None:
        """The callback's task: one message after the other."""
        callback = self._callback
        assert callback is not None
        handled = 0
        while True:
            message = self._take()
            if message is None:
                if self._state is not _State.OPEN:
                    return
                await self._arrived.wait()
                continue
            try:
                result = callback(message)
                if inspect.isawaitable(result):
                    await result
                if self._auto_ack and not message.acked:
                    await message.ack()
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                self._handler_failed(message, asyncio.CancelledError("the handler was cancelled"))
            except Exception as error:  # noqa: BLE001  a user's callback may raise anything
                self._handler_failed(message, error)
            handled += 1
            if handled % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _handler_failed(self, message: Message, error: BaseException) -> None:
        try:
            sequence = message.metadata.stream_seq
        except JetStreamError:
            sequence = 0
        self._emit(
            HandlerFailed(
                stream=self.stream,
                consumer=self.consumer,
                error=error,
                subject=message.subject,
                stream_seq=sequence,
            )
        )

    # --- ending ----------------------------------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        """Stop: drop what waits, and delete the consumer if this subscription created it.

        Messages that wait and can be acked are given back to the server (nak) where the consumer stays. A handler that
        runs is not interrupted. Calling it again does nothing.

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted; the subscription is
                closed all the same.
        """
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        await self._stop_listening()
        await self._give_back(self._tracker.clear())
        self._end()
        if self._deletes:
            self._deletes = False
            await delete_consumer(self._context, self.stream, self.consumer)

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving, let everything that has arrived be taken, then delete the consumer if created here.

        With a callback it returns when all has been handled. Without one it returns when everything under way has
        arrived; what waits can still be taken with `next` or an iteration, which then end, and the consumer is deleted
        after that. Trouble with the deletion is told as the event `DeleteFailed`.

        Args:
            timeout: Seconds for the whole; after it, what was not handled is given up.

        Raises:
            RequestTimeoutError: The handler did not come to an end in time; the subscription is closed.
        """
        if self._state is not _State.OPEN:
            return
        self._state = _State.DRAINING
        deadline = asyncio.get_running_loop().time() + timeout
        await self._stop_listening(flush=True, timeout=timeout)
        self._timer.cancel()
        self._arrived.set()
        if self._runner is not None:
            if self._runner is not asyncio.current_task():
                await self._finish_runner(deadline, timeout)
            else:
                self._context.tasks.start(self._finish_later(deadline, timeout), "drain")
            return
        if not self._tracker.waits:
            self._emptied()
        if self._finished is not None:
            await asyncio.shield(self._finished)

    async def _finish_later(self, deadline: float, timeout: float) -> None:
        try:
            await self._finish_runner(deadline, timeout)
        except RequestTimeoutError as error:
            self._context.report(error)

    async def _finish_runner(self, deadline: float, timeout: float) -> None:
        assert self._runner is not None
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._runner}, timeout=max(left, 0.0))
        handled = self._runner.done()
        if not handled:
            self._runner.cancel()
            await asyncio.wait({self._runner})
            await self._give_back(self._tracker.clear())
        self._emptied()
        if self._finished is not None:
            await asyncio.shield(self._finished)
        if not handled:
            raise RequestTimeoutError("drain: the handler did not come to an end", timeout)

    def _emptied(self) -> None:
        """All has been taken: end for good, and delete the consumer in the background."""
        if self._state is _State.DRAINING:
            self._state = _State.CLOSED
            if self._deletes:
                self._deletes = False
                self._finished = self._context.tasks.start(self._delete_and_tell(), "delete after drain")
            self._end()

    async def _delete_and_tell(self) -> None:
        try:
            await delete_consumer(self._context, self.stream, self.consumer)
        except JetStreamError as error:
            self._emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))

    async def _give_back(self, frames: list[Frame]) -> None:
        """Messages that nobody will take: let the server deliver them elsewhere at once."""
        if self._deletes or self._channel.silent or not self._context.connection.is_connected:
            return
        for frame in frames:
            try:
                await self._context.connection.ack(frame[1], AckKind.NAK.value, settles=False)
            except JetStreamError:
                return  # ack_wait does the same, later

    async def _stop_listening(self, *, flush: bool = False, timeout: float = 0.0) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        connection = self._context.connection
        if flush:
            await connection.drain(inbox, min(timeout, self._context.timeout))
        else:
            await connection.unsubscribe(inbox)

    def _end(self) -> None:
        """Nothing runs any more."""
        self._state = _State.CLOSED
        self._timer.cancel()
        self._context.connection.remove_listener(self._lifecycle)
        self._context.open.discard(self)
        self._arrived.set()
        self._log.close()

    async def abandon(self) -> None:
        """The connection is being closed: end, and delete an ephemeral consumer that we made."""
        self._deletes = (
            self._deletes and not self._binding.is_durable and self._context.connection.is_connected
        )
        runner = self._runner
        try:
            await self.unsubscribe()
        except JetStreamError as error:
            self._emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        if runner is not None and runner is not asyncio.current_task():
            _, late = await asyncio.wait({runner}, timeout=1.0)
            for task in late:
                task.cancel()
                await asyncio.wait({task})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    # --- starting --------------------------------------------------------------------------------------------

    def start(self, inbox: Inbox, intake: Intake, config: ConsumerConfig) -> None:
        """Bound: read from now on. For the library's own use."""
        self._watch(inbox, config)
        intake.open(self._receive)

    def _watch(self, inbox: Inbox, config: ConsumerConfig) -> None:
        self._inbox = inbox
        silent = config.ack_policy == AckPolicy.NONE
        self._channel = AckChannel(
            self._context.connection, self._context.requests, self._context.timeout, silent
        )
        if silent:
            self._auto_ack = False
        if self._tracker.heartbeat is not None:
            self._tracker.heartbeat.heard(self._context.connection.now())
        self._timer.set(self._tracker.deadline)
        self._context.connection.add_listener(self._lifecycle)
        self._context.open.add(self)
        if self._callback is not None:
            self._runner = self._context.tasks.start(
                self._run(), f"callback of {self.stream}/{self.consumer}"
            )


class _Batches:
    """The iteration over a subscription in batches."""

    def __init__(self, subscription: Subscription, max_messages: int) -> None:
        self._subscription = subscription
        self._max_messages = max_messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        try:
            return await self._subscription.next_batch(self._max_messages)
        except ClosedError:
            raise StopAsyncIteration from None
