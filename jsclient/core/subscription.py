"""Subscriptions to plain messages: `Core.subscribe`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .._runtime.connection.connection import Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.handle import ReadHandle, State
from .._runtime.handlers import Threads, is_coroutine_function
from .._runtime.tasks import Signal
from ..errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, RequestTimeoutError
from ..protocol.core.tracker import CoreTracker
from ..protocol.events import HandlerFailed
from ..protocol.wire.checks import check_count, check_seconds, deadline_of
from ..protocol.wire.frames import Frame
from .handler_tasks import HandlerTasks
from .message import CoreMessage, ReplyChannel

__all__ = ["CoreCallback", "CoreSubscription"]

CoreCallback: TypeAlias = Callable[[CoreMessage], Awaitable[object] | object]
"""The handler of a message: a coroutine function, or a plain function, which is called in a thread."""

DRAIN_TIMEOUT = 30.0  # seconds
_CANCEL_TIMEOUT = 1.0  # seconds that a cancelled callback has to end


class CoreSubscription(ReadHandle[CoreMessage]):
    """A subscription to plain messages: read it with `next` or ``async for``, or give it a callback.

    Created by `Core.subscribe`. A message that arrives while no connection exists, or while the buffer is full, is
    lost, because core NATS delivers at most once. The connection restores the subscription after a reconnect.
    """

    def __init__(
        self,
        context: Context,
        subject: str,
        *,
        queue: str,
        callback: CoreCallback | None,
        concurrency: int,
        tracker: CoreTracker,
        channel: ReplyChannel,
    ) -> None:
        self._context = context
        self._subject = subject
        self._queue = queue
        self._tracker = tracker
        self._channel = channel
        self._callback = callback
        self._threads: Threads | None = None
        self._handlers: HandlerTasks[Frame] | None = None
        if callback is not None:
            if not is_coroutine_function(callback):
                self._threads = Threads(concurrency)
            self._handlers = HandlerTasks(
                context, tracker.front, self._call, concurrency=concurrency, name=f"callback of {subject}"
            )
        self._arrived = Signal()
        self._inbox: Inbox | None = None
        self._earlier = 0  # messages that arrived on earlier connections
        self._all_arrived = False  # whether no more messages will arrive
        self._ending: asyncio.Task[None] | None = (
            None  # the task of the drain, or of the end after the last expected message
        )

    @property
    def subject(self) -> str:
        """The subject, which may have wildcards."""
        return self._subject

    @property
    def queue(self) -> str:
        """The queue group, or ""."""
        return self._queue

    @property
    def pending(self) -> int:
        """The number of messages that have arrived and wait to be read."""
        return self._tracker.pending

    @property
    def pending_bytes(self) -> int:
        """The size of the pending messages in bytes, as the server counts them."""
        return self._tracker.pending_bytes

    @property
    def received(self) -> int:
        """The number of messages that have arrived, including dropped messages."""
        return self._tracker.received

    @property
    def dropped(self) -> int:
        """The number of messages dropped because the buffer was full (see the event `SlowConsumer`)."""
        return self._tracker.dropped

    def __repr__(self) -> str:
        group = f", queue {self._queue!r}" if self._queue else ""
        return f"<CoreSubscription {self._subject!r}{group} {self._state.value}>"

    async def open(self) -> None:
        """Subscribe. For the library's own use."""
        self._context.attach(self, self._note_connection, self._denied)
        try:
            self._inbox = await self._context.connection.subscribe(
                self._subject, self._receive_messages, self._queue
            )
        except BaseException:
            self._end_subscription()
            raise

    async def next(self, timeout: float | None = None) -> CoreMessage:
        """Wait for the next message.

        Args:
            timeout: Seconds. None waits without a limit.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds.
            PermissionDeniedError: The server denies this user the subscription. Messages can arrive again after a
                reconnect, if the user has the permission then.
            ClosedError: The subscription has ended, and all its messages were read.
            ConfigError: The subscription has a callback.

        If the call is cancelled, no message is lost: the next call returns it.
        """
        if self._callback is not None:
            raise ConfigError("cannot read from a subscription that has a callback")
        front = self._tracker.front
        if not front:
            deadline = deadline_of(timeout, self._context.connection.now())
            while not front:
                self._check_open()
                if not await self._arrived.wait_until(deadline) and not front:
                    raise RequestTimeoutError("no message", timeout, self._context.connection.problem)
        message = CoreMessage(front.popleft(), self._channel)
        if not front and self._all_arrived:
            self._end_subscription()
        return message

    async def __anext__(self) -> CoreMessage:
        front = self._tracker.front
        # `next` must check for the end after it takes the last message
        if len(front) > 1 and self._callback is None:
            return CoreMessage(front.popleft(), self._channel)
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _check_open(self) -> None:
        if self._all_arrived or self._state is State.CLOSED:
            raise ClosedError("the subscription is closed: subscribe again, on an open connection")
        if self._inbox is not None and (denied := self._inbox.denied) is not None:
            raise denied

    def _receive_messages(self, frames: list[Frame]) -> None:
        """The sink of the NATS subscription: it receives its messages."""
        tracker = self._tracker
        for event in tracker.receive(frames):
            self._context.emit(event)
        if self._handlers is not None:
            self._handlers.wake()
        else:
            self._arrived.set()
        if tracker.after is not None and tracker.is_complete:
            self._end_after_last()

    def _note_connection(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end_subscription()
            return
        if what is Lifecycle.DISCONNECTED:
            self._earlier = self._tracker.received
        elif self._inbox is not None:
            self._inbox.denied = None  # the server checks the permission again
        self._limit()

    def _denied(self, error: PermissionDeniedError) -> None:
        if error.operation == "subscribe" and error.subject == self._subject:
            self._arrived.set()

    async def _call(self, frame: Frame) -> None:
        """Call the callback with a message. An exception is reported as an event."""
        message = CoreMessage(frame, self._channel)
        callback = self._callback
        assert callback is not None
        try:
            if self._threads is None:
                await callback(message)  # type: ignore[misc]  # it is a coroutine function
            else:
                await self._threads.call(callback, message)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._report_handler(message, error)
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            self._report_handler(message, error)

    def _report_handler(self, message: CoreMessage, error: BaseException) -> None:
        self._context.emit(HandlerFailed(error=error, subject=message.subject))

    async def unsubscribe(self, after: int | None = None) -> None:
        """End the subscription, at once or after a number of messages. Calling it again does nothing.

        Without ``after`` the messages in the buffer are dropped, and a running callback is not interrupted.

        Args:
            after: The number of messages, counted from the start of the subscription. Messages that have arrived can
                still be read, and so can later messages up to this number. Reading ends after the last of them.

        Raises:
            ConfigError: ``after`` is not a positive integer.
        """
        if after is not None:
            self._tracker.after = check_count("after", after)
            if self._state is State.OPEN:
                self._limit()
                if self._tracker.is_complete:
                    self._end_after_last()
            return
        if self._state is not State.CLOSED:
            self._tracker.drop_messages()
            self._end_subscription()
            await self._stop_listening()

    async def close(self) -> None:
        """End the subscription, and drop the messages in its buffer. The same as `unsubscribe`."""
        await self.unsubscribe()

    def _limit(self) -> None:
        """Let the server end the subscription after the last expected message, so that a queue group gets the rest."""
        after = self._tracker.after
        if after is not None and self._inbox is not None and not self._tracker.is_complete:
            self._context.connection.end_after(self._inbox, after, earlier=self._earlier)

    def _end_after_last(self) -> None:
        if self._state is State.OPEN:
            self._state = State.DRAINING
            deadline = self._context.connection.now() + DRAIN_TIMEOUT
            self._ending = self._context.tasks.start(
                self._finish_drain(deadline, DRAIN_TIMEOUT), "end after the last message"
            )

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving, and let all arrived messages be handled.

        With a callback it returns when all messages are handled. Otherwise it returns when all messages in flight have
        arrived. They can still be read with `next` or an iteration, which then end. A second call waits for the same
        drain. A call from the callback starts the drain and returns at once.

        Args:
            timeout: Seconds in total. Callbacks that still run then are cancelled.

        Raises:
            RequestTimeoutError: The callbacks did not end in time. The subscription is closed.

        Cancelled: the drain continues in the background.
        """
        check_seconds("timeout", timeout)
        itself = self.has(asyncio.current_task())  # a callback that waited would wait for its own end
        if self._state is State.OPEN:
            self._state = State.DRAINING
            self._ending = self._context.tasks.start(self._drain(timeout), "drain", awaited=not itself)
        if self._ending is not None and not itself:
            await asyncio.shield(self._ending)

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the callback runs in this task. For the library's own use."""
        return self._handlers is not None and self._handlers.has(task)

    async def _drain(self, timeout: float) -> None:
        deadline = self._context.connection.now() + timeout
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._context.connection.drain(inbox, timeout)
        await self._finish_drain(deadline, timeout)

    async def _finish_drain(self, deadline: float, timeout: float) -> None:
        """Wait for the callbacks, or let the buffer be read, after the last message has arrived."""
        await self._stop_listening()
        self._all_arrived = True
        handlers = self._handlers
        if handlers is None:
            if not self._tracker.front:
                self._end_subscription()
            self._arrived.set()
            return
        handlers.end_tasks()
        in_time = await handlers.join(max(0.0, deadline - self._context.connection.now()))
        if not in_time:
            self._tracker.drop_messages()
            await handlers.cancel(_CANCEL_TIMEOUT)
        self._end_subscription()
        if not in_time:
            raise RequestTimeoutError("drain: the callback did not end", timeout)

    async def _stop_listening(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._context.connection.unsubscribe(inbox)

    def _end_subscription(self) -> None:
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._context.detach(self, self._note_connection, self._denied)
        for event in self._tracker.end_queue():
            self._context.emit(event)
        if self._handlers is not None:
            self._handlers.end_tasks()
        if self._threads is not None:
            self._threads.close()
        self._arrived.set()

    async def abandon(self) -> None:
        """End the subscription because the connection closes. A running callback has a second to end."""
        try:
            await self.unsubscribe()
        except JetStreamError:
            pass  # the connection is down: the server has forgotten the subscription
        handlers = self._handlers
        if handlers is None or handlers.has(self._context.closer):  # a callback would wait for its own end
            return
        if not await handlers.join(_CANCEL_TIMEOUT):
            await handlers.cancel(_CANCEL_TIMEOUT)
