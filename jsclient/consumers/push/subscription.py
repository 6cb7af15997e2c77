"""Push subscriptions: `JetStream.subscribe`. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from ..._runtime.calls import consumer_info, is_missing, nak_all
from ..._runtime.connection.connection import HoldingSink, Inbox, Lifecycle
from ..._runtime.context import Context
from ..._runtime.handle import ReadHandle, State
from ..._runtime.tasks import Timer
from ...errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, RequestTimeoutError
from ...protocol.consumers.priority import GroupOptions
from ...protocol.consumers.push import PushTracker
from ...protocol.consumers.subscribe import Binding
from ...protocol.events import ConsumerDeleted, DeleteFailed, Event
from ...protocol.models.consumer import AckPolicy, ConsumerInfo
from ...protocol.wire.checks import check_count
from ...protocol.wire.frames import Frame
from ..ending import delete_created, warn_of_deletion
from ..message import AckChannel, DeliveredMessage, Message
from ..worker.run import Running
from .buffer import Batches, Callback, PushBuffer

if TYPE_CHECKING:
    from ..worker.sources import Source
    from ..worker.worker import Worker

__all__ = ["Callback", "Subscription"]

DRAIN_TIMEOUT = 30.0  # seconds that `drain` waits for the handlers by default
_FLUSH_TIMEOUT = 1.0  # seconds to wait for the server to process the unsubscribe
_CANCEL_TIMEOUT = 1.0  # seconds that a cancelled handler has to end
_CHECK_AFTER = (
    2.5  # seconds without a message after which a subscription without heartbeats checks its consumer
)


class Subscription(ReadHandle[Message], Running):
    """A push subscription: read it with `next`, ``async for`` or `batches`, `run` a worker, or give it a callback.

    Created by `JetStream.subscribe`. It handles heartbeats, flow control and gaps itself, and reports what happens
    through `events` and the connection's ``on_event``. Errors (409, 503, unknown statuses) are raised from `next` and
    the iterations, or reported as events if there is a callback. The subscription continues.
    """

    def __init__(
        self,
        context: Context,
        tracker: PushTracker,
        binding: Binding,
        *,
        callback: Callback | None,
        auto_ack: bool,
        delete_on_close: bool | None,
        received: Callable[[], None] | None = None,
        taken: Callable[[], None] | None = None,
    ) -> None:
        self._context = context
        self._binding = binding
        self._callback = callback
        silent = binding.config is not None and binding.config.ack_policy == AckPolicy.NONE
        self._auto_ack = auto_ack and not silent
        self._buffer = PushBuffer(
            context,
            tracker,
            AckChannel(context.connection, context.requests, context.timeout, silent),
            has_callback=callback is not None,
            silent=self._check_consumer,
            emptied=self._emptied,
            received=received,
            taken=taken,
        )
        self._deletes = delete_on_close is not False and binding.created
        self._chosen = delete_on_close is True
        warn_of_deletion(binding, self._buffer.emit, delete_on_close=delete_on_close)
        self._checking = False
        self._check_timer: Timer | None = None
        self._inbox: Inbox | None = None
        self._runner: asyncio.Task[None] | None = None  # task of the callback or of a worker
        self._draining: asyncio.Task[None] | None = None  # the task of a worker that drains itself
        self._deleting: asyncio.Task[None] | None = None  # deletes the consumer after a drain

    @property
    def stream(self) -> str:
        """The stream that the subscription reads."""
        return self._buffer.tracker.stream

    @property
    def consumer(self) -> str:
        """The name of the consumer. An ordered subscription replaces its consumer when necessary."""
        return self._buffer.tracker.consumer

    @property
    def subject(self) -> str:
        """The NATS subject that the consumer delivers to."""
        return self._binding.deliver_subject or ""

    @property
    def queue(self) -> str | None:
        """The queue group, or None."""
        return self._binding.queue

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer. If so, it deletes the consumer at its end by default."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """The number of messages that have arrived and wait to be read."""
        return self._buffer.tracker.pending

    @property
    def pending_bytes(self) -> int:
        """The size of the pending messages in bytes, as the server counts them."""
        return self._buffer.tracker.pending_bytes

    @property
    def dropped(self) -> int:
        """The number of messages dropped because the buffer was full (see the event `SlowConsumer`)."""
        return self._buffer.tracker.dropped

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a user needs to read from this consumer, as in the server's configuration.

        The user binds to the existing consumer, with the arguments ``stream`` and ``consumer``, and may neither create
        nor delete a consumer. Like all permissions to send a request, these let a user store the answer elsewhere:
        see "What each right lets a user do" in the documentation.

        Args:
            dead_letter: The argument ``dead_letter`` of `run`, for a worker.
            inbox_prefix: The inbox prefix of the user's connection. With a different prefix for each user, no user can
                read another user's messages.

        Raises:
            InvalidNameError: ``dead_letter`` or ``inbox_prefix`` is not a subject.
        """
        from ...protocol.consumers.rights import push_rights

        return push_rights(
            self._context.api,
            self.stream,
            self.consumer,
            self._binding.config,
            self.subject,
            dead_letter=dead_letter,
            inbox_prefix=inbox_prefix,
        )

    def __repr__(self) -> str:
        return f"<Subscription {self.stream}/{self.consumer} {self._state.value}>"

    async def consumer_info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the consumer's current state from the server.

        Args:
            timeout: Seconds, for a health check for instance. The default is the timeout of `connect`.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: The server did not answer within the timeout.

        Also raises the errors of any API request.
        """
        return await consumer_info(self._context, self.stream, self.consumer, timeout=timeout)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of this subscription: first the recent events, then each new event until it ends."""
        return self._buffer.log.read_events()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: Seconds. None waits without a limit.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds.
            StatusError: The server sent an error status at this position. The next call continues after it.
            ClosedError: The subscription is closed, or drained and empty.
            ConfigError: The subscription has a callback.

        Cancelled: no message is lost. The next call returns it.
        """
        return await self._buffer.next(timeout)

    async def __anext__(self) -> Message:
        """Like `next`, for ``async for``. A generator would end if it is cancelled, and lose the remaining messages."""
        buffer = self._buffer
        if buffer.ready:
            return DeliveredMessage(buffer.ready.popleft(), buffer.channel)
        try:
            return await buffer.next(None)
        except ClosedError:
            raise StopAsyncIteration from None

    def batches(self, max_messages: int = 1000) -> AsyncIterator[list[Message]]:
        """Iterate over arrived messages, 1 to ``max_messages`` at a time, until the subscription ends.

        Raises the errors of `next`. The batch belongs to the caller. Flow control requests among its messages are
        answered when the batch is created.
        """
        return Batches(self._buffer, check_count("max_messages", max_messages))

    async def next_batch(self, max_messages: int = 1000) -> list[Message]:
        """Wait for a message. Return it with all others that have arrived, up to ``max_messages``.

        Raises the errors of `next`.
        """
        return await self._buffer.next_batch(max_messages)

    def take_arrived(self, most: int) -> list[Message]:
        """Take messages that have arrived, up to ``most``, without waiting. For the library's own use."""
        ready, channel = self._buffer.ready, self._buffer.channel
        return [DeliveredMessage(ready.popleft(), channel) for _ in range(min(most, len(ready)))]

    def _source(self, group: GroupOptions) -> Source:
        if options := [name for name, value in group.items() if value is not None]:
            raise ConfigError(f"{options[0]} is given: only pull consumers have priority groups")
        if self._state is not State.OPEN:
            raise ClosedError("the subscription is closed: subscribe again, on an open connection")
        if self._runner is not None and not self._runner.done():
            raise ConfigError("the subscription has a callback or a worker: its messages go there")
        from ..worker.sources import PushSource

        return PushSource(
            self._context,
            self,
            emit=self._buffer.emit,
            known=self._binding.config,
            watch=self._buffer.stall_watch,
            receive_remaining=self._end_with_worker,
            over=self._worker_ended,
        )

    def _started(self, worker: Worker) -> None:
        self._runner = worker.task

    def start_reading(self, inbox: Inbox, intake: HoldingSink) -> None:
        """Start reading after the consumer is bound. For the library's own use."""
        self._context.attach(self, self._follow_connection)
        heartbeat = self._buffer.tracker.heartbeat
        if heartbeat is not None:
            heartbeat.heard(self._context.connection.now())
        self._check_timer = Timer(self._look_up_consumer)
        self._look_up_consumer()
        self._buffer.watch()
        if self._callback is not None:
            self._runner = self._context.tasks.start(
                self._buffer.call(self._callback, auto_ack=self._auto_ack),
                f"callback of {self.stream}/{self.consumer}",
            )
        self._listen(inbox, intake)

    def _listen(self, inbox: Inbox, intake: HoldingSink) -> None:
        self._inbox = inbox
        self._buffer.stall_watch.subject = inbox.subject
        intake.open(self._buffer.receive_frames)

    def _follow_connection(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end_subscription()
        elif what is Lifecycle.CONNECTED:
            # The server may have removed the consumer meanwhile. Without heartbeats only this check shows it.
            self._check_consumer()

    def _look_up_consumer(self) -> None:
        """Check whether the consumer exists after a missing heartbeat or, without heartbeats, a silent interval.

        The server does not tell a subscriber that its consumer was deleted.
        """
        assert self._check_timer is not None
        now, heartbeat = self._context.connection.now(), self._buffer.tracker.heartbeat
        if heartbeat is not None:
            is_silent, next_check = heartbeat.check_heartbeat(now)
        else:
            is_silent, next_check = not self._buffer.heard, now + _CHECK_AFTER
            self._buffer.heard = False
        if self._inbox is not None and is_silent:
            self._check_consumer()
        self._check_timer.set(next_check)

    def _stop_checking(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _check_consumer(self) -> None:
        """After silence, check the consumer in the background. If it was deleted, report that once."""
        if not self._checking and self._context.connection.is_connected:
            self._checking = True
            self._context.tasks.start(self._check_exists(), "check that the consumer exists")

    async def _check_exists(self) -> None:
        if await self._is_deleted():
            self._stop_checking()
            self._buffer.emit(ConsumerDeleted(stream=self.stream, consumer=self.consumer))
            return  # ``_checking`` stays set, so that the consumer is not checked again
        self._checking = False

    async def _is_deleted(self) -> bool:
        """Return whether the consumer was deleted, or replaced by a consumer of this name that delivers elsewhere."""
        try:
            info = await consumer_info(self._context, self.stream, self.consumer)
        except PermissionDeniedError:
            self._stop_checking()
            return False
        except JetStreamError as error:
            return is_missing(error)
        return info.config.deliver_subject != self._binding.deliver_subject

    # Ending. `unsubscribe` drops the buffered messages. `drain` lets them be handled: it stops listening, waits for the
    # callback, the worker or the reader (`_emptied`), and then deletes the consumer in the background.

    async def unsubscribe(self) -> None:
        """End the subscription: drop buffered messages, and delete the consumer if this subscription created it.

        If the consumer stays, buffered messages that can be acked are returned to the server (nak). A running handler
        is not interrupted. Calling it again does nothing.

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted. The subscription is
                closed anyway.
        """
        if self._state is State.CLOSED:
            return
        self._end_subscription()
        # If the consumer stays, the server must process the unsubscribe before another subscriber binds to it.
        await self._stop_listening(flush=not self._deletes, timeout=_FLUSH_TIMEOUT)
        await self._give_back(self._buffer.tracker.clear())
        if self._deletes:
            self._deletes = False
            await self._delete()

    close = unsubscribe

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving, let all arrived messages be handled, then delete the consumer if it was created here.

        With a callback or a worker it returns when all messages are handled. Otherwise it returns when all messages in
        flight have arrived. They can still be read with `next` or an iteration, which then end. After that the consumer
        is deleted. A failed deletion is reported as the event `DeleteFailed`.

        Args:
            timeout: Seconds in total. Messages not handled by then are abandoned.

        Raises:
            RequestTimeoutError: The handler did not end in time. The subscription is closed.
            ClosedError: The connection was closed meanwhile.

        A second call waits for the same drain. A call from the callback itself starts the drain and returns at once.

        Cancelled: the drain continues in the background.
        """
        itself = self._is_handler(asyncio.current_task())  # a handler that waited would wait for its own end
        if self._state is State.OPEN:
            self._state, self._buffer.watching = State.DRAINING, False
            self._stop_checking()
            self._draining = self._context.tasks.start(self._drain(timeout), "drain", awaited=not itself)
        if self._draining is None or itself:
            return
        try:
            await asyncio.shield(self._draining)
            await self._deleted()
        except asyncio.CancelledError:
            # Either the caller was cancelled, or the drain itself, which happens only when the connection is closed.
            task = asyncio.current_task()
            if self._draining.cancelled() and (task is None or not task.cancelling()):
                raise ClosedError("the connection was closed while draining") from None
            raise

    def _is_handler(self, *tasks: asyncio.Task[Any] | None) -> bool:
        """Return whether one of these tasks is the callback or a handler of a worker, which cannot wait for itself."""
        return any(
            task is not None and (task is self._runner or any(worker.has(task) for worker in self._workers()))
            for task in tasks
        )

    async def _drain(self, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        await self._receive_remaining(timeout)
        if self._runner is not None:
            await self._finish_runner(deadline, timeout)
            return
        if not self._buffer.tracker.waits:
            self._emptied()
        await self._deleted()

    async def _receive_remaining(self, timeout: float) -> None:
        try:
            await self._stop_listening(flush=True, timeout=timeout)
        finally:
            self._buffer.end_buffer()

    # A worker drains in its own task: a new task started while the event loop ends would remain pending.

    async def _end_with_worker(self, timeout: float) -> None:
        """Receive the messages in flight, and stop listening. A no-op during a drain."""
        if self._state is State.OPEN:
            self._state, self._buffer.watching = State.DRAINING, False
            self._stop_checking()
            self._draining = self._runner
            await self._receive_remaining(timeout)

    def _worker_ended(self) -> asyncio.Task[None] | None:
        """Finish `_end_with_worker`. Returns the task that deletes the consumer, if there is one."""
        if self._draining is self._runner:
            self._end_for_good()
        return self._deleting

    async def _finish_runner(self, deadline: float, timeout: float) -> None:
        assert self._runner is not None
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._runner}, timeout=max(remaining, 0.0))
        handled = self._runner.done()
        if not handled:
            frames = self._buffer.tracker.clear()  # before cancelling: a handler may resist its cancellation
            self._runner.cancel()
            await asyncio.wait({self._runner}, timeout=_CANCEL_TIMEOUT)
            await self._give_back(frames)
        self._end_for_good()
        await self._deleted()
        if not handled:
            raise RequestTimeoutError("drain: the handler did not end", timeout)

    def _emptied(self) -> None:
        """Called when the last message was read. A worker may still handle messages: then it ends the subscription."""
        if self._runner is None or self._runner.done():
            self._end_for_good()

    def _end_for_good(self) -> None:
        """Close after all messages were handled, and delete the consumer in the background."""
        if self._state is State.DRAINING:
            self._state = State.CLOSED
            if self._deletes:
                self._deletes = False
                self._deleting = self._context.tasks.start(self._delete_and_report(), "delete after drain")
            self._end_subscription()

    async def _deleted(self) -> None:
        if self._deleting is not None:
            await asyncio.shield(self._deleting)

    async def _delete(self) -> None:
        emit = self._buffer.emit
        await delete_created(self._context, self._binding, self.consumer, emit, chosen=self._chosen)

    async def _delete_and_report(self) -> None:
        try:
            await self._delete()
        except JetStreamError as error:
            self._buffer.emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        finally:
            self._buffer.log.close()

    def _keep_consumer(self) -> None:
        self._deletes = False

    async def _give_back(self, frames: list[Frame]) -> None:
        """Nak these messages, so that the server redelivers them at once."""
        if self._deletes or self._buffer.channel.silent or not self._context.connection.is_connected:
            return
        await nak_all(self._context.connection, frames)

    async def _stop_listening(self, *, flush: bool = False, timeout: float = 0.0) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        connection = self._context.connection
        if flush:
            await connection.drain(inbox, min(timeout, self._context.timeout))
        else:
            await connection.unsubscribe(inbox)

    def _end_subscription(self) -> None:
        self._state, self._buffer.watching = State.CLOSED, False
        self._stop_checking()
        self._context.detach(self, self._follow_connection)
        self._buffer.end_buffer()
        if self._deleting is None:  # The deletion may still report a failure, so it closes the log itself.
            self._buffer.log.close()

    async def abandon(self) -> None:
        """End the subscription because the connection closes. Delete an ephemeral consumer that it created."""
        # A drain promised to delete even a durable consumer.
        keeps = self._binding.is_durable and self._state is not State.DRAINING
        self._deletes = self._deletes and not keeps and self._context.connection.is_connected
        await self._end_workers()
        runner = self._runner
        try:
            await self.unsubscribe()
        except JetStreamError as error:
            self._buffer.emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        if runner is not None and not self._is_handler(asyncio.current_task(), self._context.closer):
            _, late = await asyncio.wait({runner}, timeout=1.0)
            for task in late:
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)
