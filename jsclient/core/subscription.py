"""Subscriptions to plain messages, which `Core.subscribe` returns."""

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
from ..protocol.events import HandlerFailed, HandlerSlow
from ..protocol.wire.checks import check_count, check_seconds, deadline_of
from ..protocol.wire.frames import Frame
from .handler_tasks import HandlerTasks
from .message import CoreMessage, ReplyChannel

__all__ = ["CoreCallback", "CoreSubscription"]

CoreCallback: TypeAlias = Callable[[CoreMessage], Awaitable[object] | object]
"""A callback for messages. It is either a coroutine function, or a plain function, which is called in a thread."""

DRAIN_TIMEOUT = 30.0  # default timeout of `drain`, in seconds
_CANCEL_TIMEOUT = 1.0  # seconds to wait until a cancelled callback has ended


class CoreSubscription(ReadHandle[CoreMessage]):
    """A subscription to plain messages. Created by `Core.subscribe`.

    Read messages with `next` or ``async for``, unless you have passed a callback to ``subscribe``.

    Core NATS delivers messages at most once. Messages are lost while the client is disconnected and while the buffer is
    full. After a reconnect, the client restores the subscription.
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
                context,
                tracker.front,
                self._call,
                concurrency=concurrency,
                name=f"callback of {subject}",
                slow=self._callback_blocked,
            )
        self._arrived = Signal()
        self._inbox: Inbox | None = None
        self._earlier = 0  # messages that arrived on earlier connections, which the server doesn't count
        self._all_arrived = False  # True once no more messages will arrive
        # The task that runs a drain, or ends the subscription after the last expected message.
        self._ending: asyncio.Task[None] | None = None

    @property
    def subject(self) -> str:
        """Subject that was passed to `Core.subscribe`. It may contain wildcards."""
        return self._subject

    @property
    def queue(self) -> str:
        """Name of the queue group, or "" if the subscription isn't part of one."""
        return self._queue

    @property
    def pending(self) -> int:
        """Number of messages that have been received and are waiting to be read or passed to the callback."""
        return self._tracker.pending

    @property
    def pending_bytes(self) -> int:
        """Total size of the pending messages in bytes, including subjects and headers."""
        return self._tracker.pending_bytes

    @property
    def received(self) -> int:
        """Number of messages received since the subscription started, including dropped messages."""
        return self._tracker.received

    @property
    def dropped(self) -> int:
        """Number of messages lost since the subscription started, because the buffer was full.

        The event `SlowConsumer` also reports dropped messages, but counts from 1 again each time the buffer has had
        room.
        """
        return self._tracker.dropped

    def __repr__(self) -> str:
        group = f", queue {self._queue!r}" if self._queue else ""
        return f"<CoreSubscription {self._subject!r}{group} {self._state.value}>"

    async def open(self) -> None:
        """Send the subscription to the server. For internal use. `Core.subscribe` calls this method once."""
        self._context.attach(self, self._note_connection, self._denied)
        try:
            self._inbox = await self._context.connection.subscribe(
                self._subject, self._receive_messages, self._queue
            )
        except BaseException:
            self._end_subscription()
            raise

    async def next(self, timeout: float | None = None) -> CoreMessage:
        """Wait for the next message and return it.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds. You may call `next` again.
            PermissionDeniedError: The user isn't allowed to subscribe to this subject. The server checks permissions
                again after a reconnect.
            ClosedError: The subscription has ended, and all its messages have been read.
            ConfigError: The subscription has a callback, which receives all messages.

        If the call is cancelled, no message is lost, because the next call returns it.
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
        # Leave the last message in the buffer to `next`, which may have to end the subscription afterwards.
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
        """Process incoming messages. The connection calls this method."""
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
            self._inbox.denied = None  # the server checks permissions again after a reconnect
        self._limit()

    def _denied(self, error: PermissionDeniedError) -> None:
        if error.operation == "subscribe" and error.subject == self._subject:
            self._arrived.set()

    async def _call(self, frame: Frame) -> None:
        """Call the callback with a message. If the callback raises an exception, emit an event."""
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

    def _callback_blocked(self, blocked: float, count: int, frame: Frame | None) -> None:
        subject = "" if frame is None else CoreMessage(frame, self._channel).subject
        self._context.emit(HandlerSlow(blocked=blocked, count=count, subject=subject))

    async def unsubscribe(self, after: int | None = None) -> None:
        """End the subscription, either immediately or after a number of messages.

        If the subscription ends immediately, the messages in the buffer are dropped. A running callback isn't
        interrupted. After ``unsubscribe(after=n)``, another call can change the number, or end the subscription at
        once. Once the subscription has ended, further calls have no effect.

        Args:
            after: Number of messages after which the subscription ends, including those received before this call. The
                application can still read all of these messages. By default, the subscription ends immediately.

        Raises:
            ConfigError: ``after`` isn't a positive integer.
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
        """End the subscription and drop the messages in its buffer. Equivalent to `unsubscribe` without arguments."""
        await self.unsubscribe()

    def _limit(self) -> None:
        """Tell the server to end the subscription after the last expected message.

        Otherwise, the server would deliver further messages that other members of the queue group should receive.
        """
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
        """Stop receiving messages, and end the subscription once those already received have been handled.

        With a callback, `drain` returns once all messages have been handled. Without a callback, it returns once the
        messages in flight have arrived in the buffer, from which you can still read them.

        A second call waits for the same drain. If a callback calls `drain`, the call returns immediately. If the call
        is cancelled, the drain continues in the background.

        Args:
            timeout: Time limit of the whole drain, in seconds. After that, running callbacks are cancelled, and
                messages not yet passed to a callback are dropped. Defaults to 30.

        Raises:
            RequestTimeoutError: The callbacks didn't finish within ``timeout`` seconds. The subscription is closed
                anyway.
        """
        check_seconds("timeout", timeout)
        itself = self.has(asyncio.current_task())  # a callback must not wait for itself
        if self._state is State.OPEN:
            self._state = State.DRAINING
            self._ending = self._context.tasks.start(self._drain(timeout), "drain", awaited=not itself)
        if self._ending is not None and not itself:
            await asyncio.shield(self._ending)

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is running the callback. Always false for None. For internal use."""
        return self._handlers is not None and self._handlers.has(task)

    async def _drain(self, timeout: float) -> None:
        deadline = self._context.connection.now() + timeout
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._context.connection.drain(inbox, timeout)
        await self._finish_drain(deadline, timeout)

    async def _finish_drain(self, deadline: float, timeout: float) -> None:
        """Finish the drain after the last message has arrived.

        Wait until the callbacks have handled all messages. Without a callback, leave the messages in the buffer.
        """
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
        """End the subscription because the connection is closing. For internal use.

        The call waits up to a second for running callbacks, then cancels them.
        """
        try:
            await self.unsubscribe()
        except JetStreamError:
            pass  # without a connection, the subscription doesn't exist on the server
        handlers = self._handlers
        if handlers is None or handlers.has(self._context.closer):  # a callback must not wait for itself
            return
        if not await handlers.join(_CANCEL_TIMEOUT):
            await handlers.cancel(_CANCEL_TIMEOUT)
