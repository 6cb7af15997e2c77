"""Push subscriptions: `JetStream.subscribe`. Source: ADR-15."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from .._runtime.calls import delete_consumer, nak_all
from .._runtime.context import Context
from .._runtime.holding_sink import Intake
from .._runtime.nats.connection import Inbox, Lifecycle
from ..errors import ClosedError, ConfigError, JetStreamError, RequestTimeoutError
from ..protocol.consumers.push import PushTracker
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import DeleteFailed, HandlerFailed
from ..protocol.models.consumer import AckPolicy, ConsumerConfig
from ..protocol.wire.frames import Frame
from .message import AckChannel, Message
from .push.reader import PushReader, State
from .worker.run import Running
from .worker.sources import PushSource, Source
from .worker.worker import Worker

__all__ = ["Callback", "Subscription"]

Callback: TypeAlias = Callable[[Message], Awaitable[None] | None]

DRAIN_TIMEOUT = 30.0  # seconds
_FLUSH_TIMEOUT = 1.0  # seconds
_CANCEL_TIMEOUT = 1.0  # seconds a handler gets to end when it is cancelled
_TURN = 0.005  # seconds a callback may go on before the event loop gets its turn


class Subscription(PushReader, Running):
    """A push subscription: ask with `next`, iterate, take `batches`, `run` a worker, or give a callback.

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
        super().__init__(context, tracker, binding)
        self._callback = callback
        if callback is not None:
            self._has_callback, self._ready = True, deque()
        self._auto_ack = auto_ack
        self._deletes = delete_on_close and binding.created
        self._inbox: Inbox | None = None
        self._finished: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    # --- running ---------------------------------------------------------------------------------------------

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end()
        elif what is Lifecycle.CONNECTED:
            # While nobody listened the server may have removed it; without heartbeats nothing else would tell.
            self._check_consumer()

    async def _run(self) -> None:
        """The callback's task: one message after the other."""
        callback = self._callback
        assert callback is not None
        front, channel, auto_ack = self._tracker.front, self._channel, self._auto_ack
        is_coroutine = inspect.iscoroutinefunction(callback)
        now = asyncio.get_running_loop().time
        since = now()
        while True:
            message = Message(front.popleft(), channel) if front else self._take()
            if message is None:
                if self._nothing_comes:
                    return
                await self._arrived.wait()
                since = now()
                continue
            try:
                result = callback(message)
                if is_coroutine or inspect.isawaitable(result):
                    await result  # type: ignore[misc]  # it is what its function says
                if auto_ack:
                    await message.ack()
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                self._handler_failed(message, asyncio.CancelledError("the handler was cancelled"))
            except Exception as error:  # noqa: BLE001  a user's callback may raise anything
                self._handler_failed(message, error)
            if not len(front) % 8 and now() - since > _TURN:  # not each time: the clock costs, too
                self._taken()
                await asyncio.sleep(0)
                since = now()

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

    def _source(self, group: Mapping[str, Any]) -> Source:
        if group:
            raise ConfigError(f"{next(iter(group))} is given: priority groups are of pull consumers")
        if self._state is not State.OPEN:
            raise ClosedError("the subscription is closed")
        if self._runner is not None and not self._runner.done():
            raise ConfigError("the subscription has a callback or a worker: its messages go there")
        known = None if self._binding.info is None else self._binding.info.config
        return PushSource(self._context, self, emit=self._emit, known=known)

    def _started(self, worker: Worker) -> None:
        self._runner = worker.task

    # --- ending ----------------------------------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        """Stop: drop what waits, and delete the consumer if this subscription created it.

        Messages that wait and can be acked are given back to the server (nak) where the consumer stays. A handler that
        runs is not interrupted. Calling it again does nothing.

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted; the subscription is
                closed all the same.
        """
        if self._state is State.CLOSED:
            return
        self._end()
        # Where the consumer stays, the server is to know that nobody listens before somebody binds to it again.
        await self._stop_listening(flush=not self._deletes, timeout=_FLUSH_TIMEOUT)
        await self._give_back(self._tracker.clear())
        if self._deletes:
            self._deletes = False
            await delete_consumer(self._context, self.stream, self.consumer)

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving, let everything that has arrived be taken, then delete the consumer if created here.

        With a callback or a worker it returns when all has been handled. Without one it returns when everything under
        way has arrived; what waits can still be taken with `next` or an iteration, which then end, and the consumer is
        deleted after that. Trouble with the deletion is told as the event `DeleteFailed`.

        Args:
            timeout: Seconds for the whole; after it, what was not handled is given up.

        Raises:
            RequestTimeoutError: The handler did not come to an end in time; the subscription is closed.
            ClosedError: The connection was closed meanwhile.

        Calling it again waits for the same end. From the callback itself it only begins.
        Cancelled: it goes on.
        """
        itself = self._is_handler(asyncio.current_task())
        if self._state is State.OPEN:
            self._state, self._flushing = State.DRAINING, True
            self._draining = self._context.tasks.start(self._drain(timeout), "drain", awaited=not itself)
        if self._draining is None or itself:
            return
        try:
            await asyncio.shield(self._draining)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._draining.cancelled() and (task is None or not task.cancelling()):
                raise ClosedError("the connection was closed while draining") from None
            raise

    def _is_handler(self, *tasks: asyncio.Task[Any] | None) -> bool:
        """Whether one of these is the callback, or a handler of a worker: it cannot be waited for."""
        return any(
            task is not None and (task is self._runner or any(one.has(task) for one in self._workers()))
            for task in tasks
        )

    async def _drain(self, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            await self._stop_listening(flush=True, timeout=timeout)
        finally:
            self._flushing = False
            self._timer.cancel()
            self._arrived.set()
        if self._runner is not None:
            await self._finish_runner(deadline, timeout)
            return
        if not self._tracker.waits:
            self._emptied()
        if self._finished is not None:
            await asyncio.shield(self._finished)

    async def _finish_runner(self, deadline: float, timeout: float) -> None:
        assert self._runner is not None
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._runner}, timeout=max(left, 0.0))
        handled = self._runner.done()
        if not handled:
            frames = self._tracker.clear()  # first, for a handler may not let itself be cancelled
            self._runner.cancel()
            await asyncio.wait({self._runner}, timeout=_CANCEL_TIMEOUT)
            await self._give_back(frames)
        self._end_for_good()
        if self._finished is not None:
            await asyncio.shield(self._finished)
        if not handled:
            raise RequestTimeoutError("drain: the handler did not come to an end", timeout)

    def _emptied(self) -> None:
        """All has been taken. What a worker took is to be handled before the consumer goes."""
        if self._runner is None or self._runner.done():
            self._end_for_good()

    def _end_for_good(self) -> None:
        """All has been handled: end, and delete the consumer in the background."""
        if self._state is State.DRAINING:
            self._state = State.CLOSED
            if self._deletes:
                self._deletes = False
                self._finished = self._context.tasks.start(self._delete_and_tell(), "delete after drain")
            self._end()

    async def _delete_and_tell(self) -> None:
        try:
            await delete_consumer(self._context, self.stream, self.consumer)
        except JetStreamError as error:
            self._emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        finally:
            self._log.close()

    async def _give_back(self, frames: list[Frame]) -> None:
        """Messages that nobody will take: let the server deliver them elsewhere at once."""
        if self._deletes or self._channel.silent or not self._context.connection.is_connected:
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
        """Nothing runs any more."""
        self._state = State.CLOSED
        self._timer.cancel()
        self._context.connection.remove_listener(self._lifecycle)
        self._context.open.discard(self)
        self._arrived.set()
        if self._finished is None:  # else its trouble is still to be told
            self._log.close()

    async def abandon(self) -> None:
        """The connection is being closed: end, and delete an ephemeral consumer that we made."""
        keeps = self._binding.is_durable and self._state is not State.DRAINING  # else its end was asked for
        self._deletes = self._deletes and not keeps and self._context.connection.is_connected
        await self._end_workers()
        runner = self._runner
        try:
            await self.unsubscribe()
        except JetStreamError as error:
            self._emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        if runner is not None and not self._is_handler(asyncio.current_task(), self._context.closer):
            _, late = await asyncio.wait({runner}, timeout=1.0)
            for task in late:
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)

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
