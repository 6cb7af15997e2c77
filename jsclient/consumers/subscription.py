"""Push subscriptions: `JetStream.subscribe`. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from .._runtime.calls import consumer_info, is_missing, nak_all
from .._runtime.context import Context
from .._runtime.handle import ReadHandle, State
from .._runtime.nats.connection import HoldingSink, Inbox, Lifecycle
from .._runtime.tasks import Timer
from ..errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, RequestTimeoutError
from ..protocol.consumers.priority import GroupOptions
from ..protocol.consumers.push import PushTracker
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import ConsumerDeleted, DeleteFailed, Event
from ..protocol.models.consumer import AckPolicy, ConsumerInfo
from ..protocol.wire.checks import check_count
from ..protocol.wire.frames import Frame
from .ending import delete_created, warn_of_deletion
from .message import AckChannel, DeliveredMessage, Message
from .push.buffer import Batches, Callback, PushBuffer
from .worker.run import Running

if TYPE_CHECKING:
    from .worker.sources import Source
    from .worker.worker import Worker

__all__ = ["Callback", "Subscription"]

DRAIN_TIMEOUT = 30.0  # seconds
_FLUSH_TIMEOUT = 1.0  # seconds
_CANCEL_TIMEOUT = 1.0  # seconds that a cancelled handler has to end
_LOOK = 2.5  # seconds without a message after which a subscription without heartbeats looks for its consumer


class Subscription(ReadHandle[Message], Running):
    """A push subscription: read it with `next`, ``async for`` or `batches`, `run` a worker, or give it a callback.

    Made by `JetStream.subscribe`. It handles statuses itself: heartbeats, flow control and gaps; noteworthy ones are
    reported through `events` and the connection's ``on_event``. Errors (409, 503, unknown statuses) are raised from
    `next` and the iterations, or reported as events if there is a callback; the subscription continues.
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
        self._looks: Timer | None = None
        self._inbox: Inbox | None = None
        self._runner: asyncio.Task[None] | None = None  # of the callback, or of a worker
        self._draining: asyncio.Task[None] | None = None  # or the worker's, which drains in it
        self._deleting: asyncio.Task[None] | None = None  # after a drain

    @property
    def stream(self) -> str:
        """The stream it reads from."""
        return self._buffer.tracker.stream

    @property
    def consumer(self) -> str:
        """The consumer it reads through. An ordered subscription replaces it when necessary."""
        return self._buffer.tracker.consumer

    @property
    def subject(self) -> str:
        """The NATS subject that the consumer delivers to."""
        return self._binding.deliver_subject or ""

    @property
    def queue(self) -> str | None:
        """The queue group, if any."""
        return self._binding.queue

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer; by default it deletes it at its end."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be read."""
        return self._buffer.tracker.pending

    @property
    def pending_bytes(self) -> int:
        """Their bytes, as the server counts them."""
        return self._buffer.tracker.pending_bytes

    @property
    def dropped(self) -> int:
        """Messages dropped because the queue was full (see the event `SlowConsumer`)."""
        return self._buffer.tracker.dropped

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """The permissions of a user that reads from this consumer, in the form of the server's configuration.

        The user binds to the existing consumer, with the arguments ``stream`` and ``consumer``, and may neither create
        nor delete one. Like all permissions to send a request, these let a user store the answer elsewhere:
        see "What each right lets a user do" in the documentation.

        Args:
            dead_letter: That of `run`, for a worker.
            inbox_prefix: That of the user's connection. With one of its own, no other user can read its messages.

        Raises:
            InvalidNameError: ``dead_letter`` or ``inbox_prefix`` is not a subject.
        """
        from ..protocol.consumers.rights import push_rights

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
        """Ask the server for the consumer's current state.

        Args:
            timeout: Seconds, for a health check for instance; by default the timeout of `connect`.

        Raises:
            ConsumerNotFoundError: It was deleted.
            RequestTimeoutError: No answer within the timeout. And those of any request.
        """
        return await consumer_info(self._context, self.stream, self.consumer, timeout=timeout)

    def events(self) -> AsyncIterator[Event]:
        """The events of this subscription: the recent ones, then each new one, until it ends."""
        return self._buffer.log.read()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: Seconds; None waits without limit.

        Raises:
            RequestTimeoutError: No message came in ``timeout`` seconds.
            StatusError: The server sent an error status at this position; the next call continues after it.
            ClosedError: The subscription is closed, or drained and empty.
            ConfigError: The subscription has a callback.

        Cancelled: no message is lost; the next call gets it.
        """
        return await self._buffer.next(timeout)

    async def __anext__(self) -> Message:
        """As `next`, for ``async for``. Not a generator: a cancelled one would end and lose the remaining messages."""
        buffer = self._buffer
        if buffer.ready:
            return DeliveredMessage(buffer.ready.popleft(), buffer.channel)
        try:
            return await buffer.next(None)
        except ClosedError:
            raise StopAsyncIteration from None

    def batches(self, max_messages: int = 1000) -> AsyncIterator[list[Message]]:
        """Iterate over arrived messages, 1 to ``max_messages`` at a time, until the subscription ends.

        Raises as `next`. The batch belongs to the caller; flow control requests among its messages are answered when
        the batch is made.
        """
        return Batches(self._buffer, check_count("max_messages", max_messages))

    async def next_batch(self, max_messages: int = 1000) -> list[Message]:
        """Wait for a message; return it and all others that have arrived, up to ``max_messages``. Raises as `next`."""
        return await self._buffer.next_batch(max_messages)

    def _source(self, group: GroupOptions) -> Source:
        if given := [name for name, value in group.items() if value is not None]:
            raise ConfigError(f"{given[0]} is given: only pull consumers have priority groups")
        if self._state is not State.OPEN:
            raise ClosedError("the subscription is closed")
        if self._runner is not None and not self._runner.done():
            raise ConfigError("the subscription has a callback or a worker: its messages go there")
        from .worker.sources import PushSource

        return PushSource(
            self._context,
            self,
            emit=self._buffer.emit,
            known=self._binding.config,
            watch=self._buffer.stall_watch,
            receive_rest=self._end_with_worker,
            over=self._worker_ended,
        )

    def _started(self, worker: Worker) -> None:
        self._runner = worker.task

    def start(self, inbox: Inbox, intake: HoldingSink) -> None:
        """Start reading, once bound. For the library's own use."""
        self._context.attach(self, self._lifecycle)
        heartbeat = self._buffer.tracker.heartbeat
        if heartbeat is not None:
            heartbeat.heard(self._context.connection.now())
        self._looks = Timer(self._look)
        self._look()
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
        intake.open(self._buffer.receive)

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end()
        elif what is Lifecycle.CONNECTED:
            # Without interest the server may have removed it meanwhile; without heartbeats nothing else reveals that.
            self._check_consumer()

    def _look(self) -> None:
        """Look for the consumer when a heartbeat is missing, or without heartbeats, as in a queue group, when an
        interval has passed without a message: otherwise nothing tells that somebody deleted it."""
        assert self._looks is not None
        now, heartbeat = self._context.connection.now(), self._buffer.tracker.heartbeat
        if heartbeat is not None:
            is_silent, again = heartbeat.look(now)
        else:
            is_silent, again = not self._buffer.heard, now + _LOOK
            self._buffer.heard = False
        if self._inbox is not None and is_silent:
            self._check_consumer()
        self._looks.set(again)

    def _stop_looking(self) -> None:
        if self._looks is not None:
            self._looks.cancel()

    def _check_consumer(self) -> None:
        """After silence: report a deleted consumer, once."""
        if not self._checking and self._context.connection.is_connected:
            self._checking = True
            self._context.tasks.start(self._ask_for_consumer(), "check that the consumer exists")

    async def _ask_for_consumer(self) -> None:
        if await self._is_gone():
            self._stop_looking()
            self._buffer.emit(ConsumerDeleted(stream=self.stream, consumer=self.consumer))
            return  # and never ask again
        self._checking = False

    async def _is_gone(self) -> bool:
        """Whether the consumer does not exist, or only another one of its name, which delivers elsewhere."""
        try:
            info = await consumer_info(self._context, self.stream, self.consumer)
        except PermissionDeniedError:
            self._stop_looking()
            return False
        except JetStreamError as error:
            return is_missing(error)
        return info.config.deliver_subject != self._binding.deliver_subject

    # Ending. `unsubscribe` drops what waits; `drain` first has it handled: it stops listening, waits for the callback,
    # the worker or the reader (`_emptied`), and then deletes the consumer in the background.

    async def unsubscribe(self) -> None:
        """Stop: drop what waits, and delete the consumer if this subscription created it.

        If the consumer stays, waiting messages that can be acked are returned to the server (nak). A running handler is
        not interrupted. Calling it again does nothing.

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted; the subscription is
                closed anyway.
        """
        if self._state is State.CLOSED:
            return
        self._end()
        # If the consumer stays, the server must learn of the lost interest before another subscriber binds to it.
        await self._stop_listening(flush=not self._deletes, timeout=_FLUSH_TIMEOUT)
        await self._give_back(self._buffer.tracker.clear())
        if self._deletes:
            self._deletes = False
            await self._delete()

    close = unsubscribe

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving, let all arrived messages be handled, then delete the consumer if it was created here.

        With a callback or a worker it returns when all messages are handled. Otherwise it returns when all messages in
        flight have arrived; they can still be read with `next` or an iteration, which then end, and the consumer is
        deleted after that. A failed deletion is reported as the event `DeleteFailed`.

        Args:
            timeout: Seconds in total; messages not handled by then are abandoned.

        Raises:
            RequestTimeoutError: The handler did not end in time; the subscription is closed.
            ClosedError: The connection was closed meanwhile.

        Calling it again waits for the same end. Called from the callback itself, it only starts.
        Cancelled: it continues in the background.
        """
        itself = self._is_handler(asyncio.current_task())
        if self._state is State.OPEN:
            self._state, self._buffer.watching = State.DRAINING, False
            self._stop_looking()
            self._draining = self._context.tasks.start(self._drain(timeout), "drain", awaited=not itself)
        if self._draining is None or itself:
            return
        try:
            await asyncio.shield(self._draining)
            await self._deleted()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._draining.cancelled() and (task is None or not task.cancelling()):
                raise ClosedError("the connection was closed while draining") from None
            raise

    def _is_handler(self, *tasks: asyncio.Task[Any] | None) -> bool:
        """Whether one of these is the callback, or a handler of a worker, which cannot wait for itself."""
        return any(
            task is not None and (task is self._runner or any(one.has(task) for one in self._workers()))
            for task in tasks
        )

    async def _drain(self, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        await self._receive_rest(timeout)
        if self._runner is not None:
            await self._finish_runner(deadline, timeout)
            return
        if not self._buffer.tracker.waits:
            self._emptied()
        await self._deleted()

    async def _receive_rest(self, timeout: float) -> None:
        try:
            await self._stop_listening(flush=True, timeout=timeout)
        finally:
            self._buffer.end()

    # A worker drains in its own task: a task that is started while the event loop ends would remain pending.

    async def _end_with_worker(self, timeout: float) -> None:
        """Receive what is in flight, then nothing more; a no-op during a drain."""
        if self._state is State.OPEN:
            self._state, self._buffer.watching = State.DRAINING, False
            self._stop_looking()
            self._draining = self._runner
            await self._receive_rest(timeout)

    def _worker_ended(self) -> asyncio.Task[None] | None:
        """Finish `_end_with_worker`; returns the deletion of the consumer."""
        if self._draining is self._runner:
            self._end_for_good()
        return self._deleting

    async def _finish_runner(self, deadline: float, timeout: float) -> None:
        assert self._runner is not None
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._runner}, timeout=max(left, 0.0))
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
        """The last message was read. A worker may still have some to handle before the consumer is deleted."""
        if self._runner is None or self._runner.done():
            self._end_for_good()

    def _end_for_good(self) -> None:
        """All is handled: end, and delete the consumer in the background."""
        if self._state is State.DRAINING:
            self._state = State.CLOSED
            if self._deletes:
                self._deletes = False
                self._deleting = self._context.tasks.start(self._delete_and_report(), "delete after drain")
            self._end()

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
        """Have the server redeliver these messages elsewhere at once."""
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

    def _end(self) -> None:
        self._state, self._buffer.watching = State.CLOSED, False
        self._stop_looking()
        self._context.detach(self, self._lifecycle)
        self._buffer.end()
        if self._deleting is None:  # else it may still report a failure
            self._buffer.log.close()

    async def abandon(self) -> None:
        """The connection is closing: end, and delete an ephemeral consumer created here."""
        # A drain asked for its deletion.
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
