"""Push subscriptions, as returned by `JetStream.subscribe`. Source: ADR-15."""

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

DRAIN_TIMEOUT = 30.0  # default timeout of `drain`, in seconds
_FLUSH_TIMEOUT = 1.0  # how long `unsubscribe` waits for the server, in seconds
_CANCEL_TIMEOUT = 1.0  # how long a cancelled handler may take to end, in seconds
_CHECK_AFTER = 2.5  # without heartbeats, the consumer is checked after this many seconds without a message


class Subscription(ReadHandle[Message], Running):
    """A subscription to a push consumer. The server sends messages without requests. Returned by `JetStream.subscribe`.

    Read messages with `next`, ``async for`` or `batches`, handle them with `run`, or pass a callback to ``subscribe``.
    Heartbeats and flow control are handled automatically. Events are available from `events`, and are passed to the
    connection's ``on_event``. If the server sends an error status, the method that reads messages raises it. If there
    is a callback, the error is emitted as an event instead. In both cases the subscription continues.
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
        # The task that calls the callback, or the task of a worker.
        self._runner: asyncio.Task[None] | None = None
        # The task that runs the drain. It may be the task of a worker.
        self._draining: asyncio.Task[None] | None = None
        self._deleting: asyncio.Task[None] | None = None  # deletes the consumer after a drain

    @property
    def stream(self) -> str:
        """Name of the stream that the subscription reads."""
        return self._buffer.tracker.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer. It may change if the subscription is ordered."""
        return self._buffer.tracker.consumer

    @property
    def subject(self) -> str:
        """NATS subject to which the consumer delivers. `Message.subject` is the subject of the message itself."""
        return self._binding.deliver_subject or ""

    @property
    def queue(self) -> str | None:
        """Name of the queue group, or None if the subscription isn't part of one."""
        return self._binding.queue

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer. By default, the consumer is then deleted at the end."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """Number of messages that have been received and are waiting to be read or handled."""
        return self._buffer.tracker.pending

    @property
    def pending_bytes(self) -> int:
        """Total size of the pending messages in bytes, as the server counts it."""
        return self._buffer.tracker.pending_bytes

    @property
    def dropped(self) -> int:
        """Number of messages dropped since the start, because the buffer was full. `SlowConsumer` reports this."""
        return self._buffer.tracker.dropped

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the NATS permissions that a user needs to read from this consumer.

        You can paste the result into the server's configuration. The user can subscribe to the existing consumer, with
        ``stream`` and ``consumer``, but can't create or delete consumers. For the full effect of each permission, see
        "What each right lets a user do" in the documentation.

        Args:
            dead_letter: The value of ``dead_letter`` that the user passes to `run`, if the user runs a worker.
            inbox_prefix: The inbox prefix of the user's connection. Give each user a different prefix, so that users
                can't read each other's messages.

        Raises:
            InvalidNameError: ``dead_letter`` or ``inbox_prefix`` isn't a valid subject.
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
        """Request the current state and configuration of the consumer from the server.

        Args:
            timeout: How long to wait for the reply, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            RequestTimeoutError: The server didn't answer within the timeout.
            PermissionDeniedError: The user isn't allowed to request the state of the consumer.
        """
        return await consumer_info(self._context, self.stream, self.consumer, timeout=timeout)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the last 1,000 events of this subscription, then over new ones until the subscription ends."""
        return self._buffer.log.read_events()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message and return it.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds. You may call `next` again.
            StatusError: The server sent an error status. You may call `next` again for the message after it.
            ClosedError: The subscription was closed, or it was drained and all messages have been read.
            ConfigError: The subscription has a callback, so it passes all messages to the callback.

        If the call is cancelled, no message is lost, because the next call returns it. If the consumer is deleted, the
        event `ConsumerDeleted` reports this, but the call keeps waiting.
        """
        return await self._buffer.next(timeout)

    async def __anext__(self) -> Message:
        # This isn't an async generator, because cancelling a generator would end it and lose the buffered messages.
        buffer = self._buffer
        if buffer.ready:
            return DeliveredMessage(buffer.ready.popleft(), buffer.channel)
        try:
            return await buffer.next(None)
        except ClosedError:
            raise StopAsyncIteration from None

    def batches(self, max_messages: int = 1000) -> AsyncIterator[list[Message]]:
        """Iterate over lists of 1 to ``max_messages`` received messages. Faster than reading messages one by one.

        The iteration ends when the subscription ends, and raises the same errors as `next`.
        """
        return Batches(self._buffer, check_count("max_messages", max_messages))

    async def next_batch(self, max_messages: int = 1000) -> list[Message]:
        """Wait for at least one message, and return up to ``max_messages``. Raises the same errors as `next`."""
        return await self._buffer.next_batch(max_messages)

    def take_arrived(self, most: int) -> list[Message]:
        """Return up to ``most`` messages that have already arrived, without waiting. For internal use."""
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
            self.stream,
            self.consumer,
            subscription=self,
            emit=self._buffer.emit,
            known=self._binding.config,
            watch=self._buffer.stall_watch,
            receive_remaining=self._end_with_worker,
            over=self._worker_ended,
        )

    def _started(self, worker: Worker) -> None:
        self._runner = worker.task

    def start_reading(self, inbox: Inbox, intake: HoldingSink) -> None:
        """Start reading from the consumer. For internal use."""
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
            # The server may have removed the consumer. Without heartbeats, nothing else would reveal that.
            self._check_consumer()

    def _look_up_consumer(self) -> None:
        """Check that the consumer exists if nothing has arrived for a while. The server doesn't report its deletion."""
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
        """Check in the background that the consumer exists. If it was deleted, report that once."""
        if not self._checking and self._context.connection.is_connected:
            self._checking = True
            self._context.tasks.start(self._check_exists(), "check that the consumer exists")

    async def _check_exists(self) -> None:
        if await self._is_deleted():
            self._stop_checking()
            self._buffer.emit(ConsumerDeleted(stream=self.stream, consumer=self.consumer))
            return  # _checking remains True, so that the event is not emitted again
        self._checking = False

    async def _is_deleted(self) -> bool:
        """Return True if the consumer was deleted, or if a new consumer of its name delivers to another subject."""
        try:
            info = await consumer_info(self._context, self.stream, self.consumer)
        except PermissionDeniedError:
            self._stop_checking()
            return False
        except JetStreamError as error:
            return is_missing(error)
        return info.config.deliver_subject != self._binding.deliver_subject

    # There are two ways to end a subscription. `unsubscribe` drops the messages in the buffer. `drain` stops
    # receiving, and waits until the messages in the buffer have been handled or read (see `_emptied`). Both finally
    # delete the consumer, unless it must be kept.

    async def unsubscribe(self) -> None:
        """End the subscription now, and delete the consumer if this subscription created the consumer (see `created`).

        If the consumer isn't deleted, messages in the buffer are nak'ed, so the server delivers them again. A running
        handler isn't interrupted. Calling `unsubscribe` again does nothing.

        Raises:
            ApiError: The server refused to delete the consumer. The subscription is closed anyway.
            RequestTimeoutError, DisconnectedError: The consumer may still exist. The subscription is closed anyway.
        """
        if self._state is State.CLOSED:
            return
        self._end_subscription()
        # If the consumer is kept, wait for the server, because a new subscriber can bind to the consumer only then.
        await self._stop_listening(flush=not self._deletes, timeout=_FLUSH_TIMEOUT)
        await self._give_back(self._buffer.tracker.clear())
        if self._deletes:
            self._deletes = False
            await self._delete()

    close = unsubscribe

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving messages, and end the subscription once those already received have been handled.

        With a callback or a worker, `drain` returns once all messages have been handled. Otherwise, it returns once the
        messages in flight have arrived in the buffer, from which you can still read them. If this subscription created
        the consumer, the consumer is then deleted. If the deletion fails, the event `DeleteFailed` is emitted.

        Args:
            timeout: How long to wait, in seconds. After that, a running handler is cancelled. The messages that haven't
                been handled are nak'ed, so the server delivers them again, unless the consumer is deleted.

        Raises:
            RequestTimeoutError: Handlers didn't finish within ``timeout`` seconds. The subscription is closed anyway.
            ClosedError: The connection was closed during the drain.

        A second call waits for the same drain. If the callback itself calls `drain`, the call returns immediately. If
        the call is cancelled, the drain continues in the background.
        """
        itself = self._is_handler(asyncio.current_task())  # a handler must not wait for its own end
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
            # Tell a cancelled caller from a cancelled drain. The drain is cancelled when the connection is closed, and
            # the caller must then get an error.
            task = asyncio.current_task()
            if self._draining.cancelled() and (task is None or not task.cancelling()):
                raise ClosedError("the connection was closed while draining") from None
            raise

    def _is_handler(self, *tasks: asyncio.Task[Any] | None) -> bool:
        """Return True if one of these tasks runs the callback or a handler. It would wait for its own end."""
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

    # A worker's own task runs this drain. When asyncio.run() ends, it wouldn't wait for a task that is started then.

    async def _end_with_worker(self, timeout: float) -> None:
        """Stop listening once the messages in flight have arrived. Does nothing if a drain is already running."""
        if self._state is State.OPEN:
            self._state, self._buffer.watching = State.DRAINING, False
            self._stop_checking()
            self._draining = self._runner
            await self._receive_remaining(timeout)

    def _worker_ended(self) -> asyncio.Task[None] | None:
        """Close the subscription after `_end_with_worker`. Returns the task that deletes the consumer, or None."""
        if self._draining is self._runner:
            self._end_for_good()
        return self._deleting

    async def _finish_runner(self, deadline: float, timeout: float) -> None:
        assert self._runner is not None
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._runner}, timeout=max(remaining, 0.0))
        handled = self._runner.done()
        if not handled:
            # Take the messages first, because a handler that ignores its cancellation could still read them.
            frames = self._buffer.tracker.clear()
            self._runner.cancel()
            await asyncio.wait({self._runner}, timeout=_CANCEL_TIMEOUT)
            await self._give_back(frames)
        self._end_for_good()
        await self._deleted()
        if not handled:
            raise RequestTimeoutError("drain: the handler did not end", timeout)

    def _emptied(self) -> None:
        """Close the subscription when its last message was read, unless a worker is still handling messages."""
        if self._runner is None or self._runner.done():
            self._end_for_good()

    def _end_for_good(self) -> None:
        """Close the subscription at the end of a drain, and delete the consumer in the background."""
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
        # A running deletion may still report a failure, so leave the log open. The deletion closes it later.
        if self._deleting is None:
            self._buffer.log.close()

    async def abandon(self) -> None:
        """End the subscription because the connection is closing. A durable consumer is kept. For internal use."""
        # A drain deletes even a durable consumer, so the consumer isn't kept if closing interrupts a drain.
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
