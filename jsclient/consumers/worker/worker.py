"""Workers, which call a handler with messages, with bounded concurrency, and ack them afterwards. Source: ADR-15.

`Workload`, which has no I/O, decides which message is handled next, which messages must be kept alive, and what happens
to a message at the end. This module does the I/O. A worker has one task that takes messages from the source, up to
``concurrency`` tasks that handle them, and one timer for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..._runtime.connection.connection import Lifecycle
from ..._runtime.context import Context, as_reported
from ..._runtime.handle import body_error_first, no_pickle
from ..._runtime.tasks import Signal
from ...errors import ClosedError, JetStreamError
from ...protocol.consumers.worker.prefetch import Waiting
from ...protocol.consumers.worker.seq_set import SeqSet
from ...protocol.consumers.worker.work_rules import WorkOptions, WorkRules
from ...protocol.consumers.worker.worker import WorkCounts, Workload
from ...protocol.events import WorkerFailed
from ..message import Message
from ..stall_watch import Handling
from .advisories import Advisories
from .handler_pool import Handler, HandlerPool
from .settling import DeadLetters, Settling
from .sources import Source

__all__ = ["Key", "Stops", "Worker"]

Key: TypeAlias = Callable[[Message], Hashable | None]

_MOST_KEPT = 10_000  # maximum number of messages beyond the capacity for which a worker reports progress
_INTERRUPTED_TIMEOUT = 2.0  # how long dead letters may still be stored after the grace period, in seconds

_log = logging.getLogger("jsclient.worker")


class Worker(Coroutine[Any, Any, WorkCounts]):
    """Calls a handler with each message. Returned by the method ``run`` of a subscription or consumer.

    ``await worker`` waits until the worker has ended and returns its `WorkCounts`. ``asyncio.TaskGroup.create_task``
    also accepts the worker. If nobody waits for the worker, the event `WorkerFailed` reports its error. ``async with
    worker`` stops it at the end of the block. If the worker fails earlier, the block is cancelled and raises its error.
    """

    if not TYPE_CHECKING:
        __reduce__ = no_pickle

    def __init__(
        self,
        context: Context,
        source: Source,
        handler: Handler,
        options: WorkOptions,
        *,
        key: Key | None = None,
        ack_sync: bool = False,
        stop: asyncio.Event | None = None,
        stop_signals: Collection[int] = (),
    ) -> None:
        self._context = context
        self._source = source
        self._handler = handler
        self._options = options
        self._key = key
        self._ack_sync = ack_sync
        self._stops = Stops(stop, stop_signals, self.stop)
        self._counts = WorkCounts()
        self._advisories: Advisories | None = None
        self._pool: HandlerPool | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []
        # The task that deletes the consumer at the end. `wait` awaits it.
        self._afterwards: asyncio.Task[None] | None = None
        self._over = Signal()
        self._waiting = Waiting(context.connection.now())
        self._pull = 0  # number of messages that the source requests at a time
        # True while the feeder takes over messages. Cancelling the feeder then would lose the messages.
        self._holding = False
        self._stop_at: float | None = None  # time when handlers are cancelled, in monotonic seconds
        self._is_over = False
        self._waiter: Generator[Any, None, WorkCounts] | None = None  # the `wait` that a task runs
        self._drained = False
        self._awaited = False
        self._started = Signal()  # set when the worker has started, or has failed to start
        self._block: asyncio.Task[Any] | None = None  # the task that is in an ``async with`` block
        self._cancels_block = False
        self._error: BaseException | None = None
        loop = asyncio.get_running_loop()
        name = f"jsclient:worker of {source.stream}/{source.consumer}"
        self.task: asyncio.Task[None] = loop.create_task(self._run_work(), name=name)
        self.task.add_done_callback(self._report_unawaited)
        context.open.add(self)

    @property
    def counts(self) -> WorkCounts:
        """Numbers of messages handled, failed and so on since the worker started. They are updated while it runs."""
        return self._counts

    @property
    def is_running(self) -> bool:
        """Whether the worker is still running. It remains True while handlers finish after `stop`."""
        return not self.task.done()

    def __repr__(self) -> str:
        return f"<Worker of {self._source.stream}/{self._source.consumer} {self._counts}>"

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is running a handler of this worker. Always false for None. For internal use."""
        return self._pool is not None and self._pool.has(task)

    def stop(self, grace: float | None = None) -> None:
        """Stop taking messages, and return the messages in the buffer to the server.

        This method returns immediately. Use ``await worker`` to wait until the running handlers have ended.

        Args:
            grace: How many seconds running handlers have to finish. Handlers that take longer are cancelled, and their
                messages are returned. Defaults to the value passed to ``run``. Call `stop` again to shorten the time.
        """
        at = self._context.connection.now() + (self._options.grace if grace is None else grace)
        self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
        if self._pool is not None:
            self._pool.settling.deadline = self._stop_at + _INTERRUPTED_TIMEOUT
        elif not self._is_over:
            self.task.cancel()  # the worker is still starting
        self._end_soon()

    def _end_soon(self) -> None:
        self._is_over = True
        self._over.set()
        if self._pool is not None:
            self._pool.changed.set()

    async def wait(self) -> WorkCounts:
        """Wait until the worker has ended, like ``await worker``, and return its counts.

        Raises:
            ConsumerDeletedError: The consumer was deleted.
            StatusError, PermissionDeniedError, ApiError, RequestTimeoutError: A request that the worker needs failed.
            NoMatchingStreamError: No stream has the dead-letter subject.
            ConfigError: The consumer has no individual acks, or would receive its own dead letters.
            BaseException: A handler raised an exception such as ``SystemExit``, which isn't an ``Exception``.

        When an error is raised, all messages of the worker have been acked or returned to the server.

        If the call is cancelled, it calls `stop` and waits for the end of the worker. If it is cancelled again, the
        running handlers are cancelled too.
        """
        self._awaited = True
        cancelled = False
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError:
                self.stop(0.0 if cancelled else None)  # after a second cancellation, don't wait for handlers
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if self._afterwards is not None:
            await asyncio.wait({self._afterwards})
        if self._error is not None:
            raise self._error
        return self._counts

    def __await__(self) -> Generator[Any, None, WorkCounts]:
        return self.wait().__await__()

    # `send`, `throw` and `close` are the coroutine protocol, so that a worker can be passed to ``create_task``.
    def send(self, value: Any, /) -> Any:
        self._waiter = self._waiter or self.__await__()
        return self._waiter.send(value)

    def throw(self, *error: Any) -> Any:
        self._waiter = self._waiter or self.__await__()
        return self._waiter.throw(*error)

    def close(self) -> None:
        """Called by ``asyncio`` if a task of the worker is cancelled before it starts. To stop a worker, use `stop`."""
        if self._waiter is not None:
            self._waiter.close()
        self.stop()

    def exception(self) -> BaseException | None:
        """Return the error that ended the worker, or None if the worker is still running or has ended normally."""
        return self._error if self.task.done() else None

    async def __aenter__(self) -> Self:
        try:
            while self._pool is None and not self.task.done():
                await self._started.wait()
        except asyncio.CancelledError:
            self.stop(0.0)
            raise
        if self.task.done():
            await self.wait()
        self._block = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if self._cancels_block and block is not None:
            block.uncancel()
            if block.cancelling():  # another task has cancelled the block as well, which takes precedence
                return
        self.stop()
        cancelled = error if isinstance(error, asyncio.CancelledError) and not self._cancels_block else None
        with body_error_first(cancelled, self):
            await self.wait()

    def _cancel_block(self) -> None:
        """Cancel the ``async with`` block after a failure, because the block could wait for the worker forever."""
        if self._block is not None:
            self._awaited = self._cancels_block = True
            self._block.cancel()

    async def abandon(self) -> None:
        """Stop the worker because the connection is closing. For internal use."""
        self.stop()
        if not self.has(self._context.closer) and not self.has(asyncio.current_task()):
            await asyncio.wait({self.task})

    def _report_unawaited(self, task: asyncio.Task[None]) -> None:
        """Report the error that ended the worker as an event if the application doesn't await the worker."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._error = bug
        self._started.set()
        if self._error is not None:
            self._cancel_block()
        if self._error is not None and not self._awaited:
            source, error = self._source, as_reported(self._error)
            source.emit(WorkerFailed(stream=source.stream, consumer=source.consumer, error=error))

    async def _run_work(self) -> None:
        """Run the worker until it ends. If this task is cancelled, the worker stops without waiting for handlers."""
        try:
            await self._begin_work()
            while not self._is_over:
                await self._over.wait()
        except asyncio.CancelledError:
            self.stop(0.0)
        except Exception as error:  # noqa: BLE001  `wait` raises it
            self._error = error
        ending = asyncio.get_running_loop().create_task(self._end_work(), name="jsclient:end of a worker")
        # Use a separate task, because messages would remain unsettled if a cancellation interrupted the end.
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                self.stop(0.0)
        self._context.open.discard(self)
        ending.result()

    async def _begin_work(self) -> None:
        context, source = self._context, self._source
        config = await source.config()
        rules = WorkRules(self._options, config)
        for warning in rules.doubts():
            _log.warning("worker of consumer %r of stream %r: %s", source.consumer, source.stream, warning)
        load = Workload[Message](rules, self._counts, config)
        letters: DeadLetters | None = None
        done: SeqSet | None = None
        if self._options.dead_letter is not None:
            letters = DeadLetters(source, self._options.dead_letter)
            await letters.check_subject(config)
            if rules.server_limit is not None:
                done = SeqSet()
                self._advisories = Advisories(source, letters, config, is_held=load.holds, done=done)
                await self._advisories.listen()
        settling = Settling(source, load, letters=letters, ack_sync=self._ack_sync)
        settling.done = done
        source.open_source(rules)
        self._pull = load.prefetch.pull
        self._pool = HandlerPool(
            context,
            load,
            settling,
            self._handler,
            refill=self._refill,
            on_stop=self._stop_now,
            name=self.task.get_name(),
        )
        self._feeder = self._help(self._feed(self._pool), "take messages for a worker")
        if (deleted := source.deleted()) is not None:
            self._help(self._end_when(deleted), "check that the consumer exists")
        self._stops.open()
        source.watch.add_worker(self._handling)
        context.connection.add_listener(self._resume_work, settling.denied)
        self._started.set()

    def _handling(self) -> Handling:
        """Return the activity of the worker, for the `StallWatch`."""
        counts, load = self._counts, None if self._pool is None else self._pool.load
        running = [] if load is None else load.running
        held = 0 if load is None else len(load.held)
        ended = counts.handled + counts.failed + counts.dead_lettered + counts.terminated
        waiting = self._source.pending + counts.waiting
        held += self._source.pending
        if load is None:
            return Handling([], waiting, held, ended)
        keeps_alive = self._options.keep_alive
        return Handling([*running], waiting, held, ended, load.rules.ack_wait(1), keeps_alive, self._describe)

    def _describe(self, ident: Hashable) -> str:
        """Describe the message with this id, for events."""
        for work in () if self._pool is None else self._pool.load.held:
            if (*work.ident, work.began) == ident:
                return f"message {work.message.subject!r} (stream sequence {work.ident[0]}, attempt {work.attempt})"
        return "a message"

    def _help(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"jsclient:{name}")
        self._helpers.append(task)
        return task

    def _resume_work(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED and self._pool is not None:
            self._pool.load.reconnected(self._context.connection.now())
            self._pool.tick_work()

    def _stop_now(self, error: BaseException | None) -> None:
        """Stop immediately, because a handler raised a ``BaseException`` or its task was cancelled."""
        self._error = self._error or error
        self.stop(0.0)

    async def _end_when(self, deleted: Coroutine[Any, Any, JetStreamError]) -> None:
        self._error = await deleted
        self._end_soon()

    async def _feed(self, pool: HandlerPool) -> None:
        try:
            while not self._is_over:
                if pool.load.room > 0:
                    self._accept([await self._source.next()])
                    self._refill()
                else:
                    await self._wait_for_capacity(pool)
        except ClosedError:
            self._drained = self._source.drained
        except Exception as error:  # noqa: BLE001  `wait` raises it
            self._error = error
        self._end_soon()

    async def _wait_for_capacity(self, pool: HandlerPool) -> None:
        """Wait for capacity. Messages in the buffer of the source are taken over before their ``ack_wait`` is over."""
        load, waiting, hold, now = (
            pool.load,
            self._waiting,
            pool.load.rules.hold,
            self._context.connection.now,
        )
        not_before = 0.0  # prevents a busy loop if the source has more messages than can be taken over
        while load.room <= 0 and not self._is_over:
            if await pool.hungry.wait_until(max(waiting.since + hold, not_before)):
                continue
            # Check again, because tasks may have taken messages since the timeout expired.
            if load.room <= 0 and waiting.since + hold <= now():
                self._holding = True
                self._accept(await self._source.hand_over(_MOST_KEPT + load.room))
                self._holding = False
                not_before = now() + hold
            self._note_taken(0)

    def _refill(self) -> None:
        """Take received messages from the source, as many as the capacity allows."""
        assert self._pool is not None
        free, prefetch = self._pool.load.room, self._pool.load.prefetch
        if free > 0 and not self._is_over and (messages := self._source.take_available(free)):
            self._accept(messages)
        if self._pull != prefetch.pull:
            self._pull = prefetch.pull
            self._source.resize(prefetch.pull)

    def _note_taken(self, count: int) -> None:
        self._waiting.taken(count, self._source.pending, self._context.connection.now())

    def _accept(self, messages: list[Message]) -> None:
        pool = self._pool
        assert pool is not None
        now, add = self._context.connection.now(), pool.load.add_message
        for message in messages:
            try:
                meta = message.metadata
            except JetStreamError as error:
                self._source.report_error(error)
                continue
            key, broken = (None, None) if self._key is None else _key_of(self._key, message)
            work = add(message, (meta.stream_seq, meta.timestamp_ns), meta.num_delivered, key, now)
            if broken is not None and work is not None:
                work.broken = broken
        self._note_taken(len(messages))
        pool.wake(1)  # one task is enough if its handler never waits. If it waits, the pool wakes up more

    async def _end_work(self) -> None:
        await self._end_feeder()
        pool = self._pool
        if pool is not None:
            load = pool.load
            # After a drain, the messages that were taken are handled without a time limit, unless `stop` sets one.
            if self._drained:
                while not load.idle and self._stop_at is None:
                    await pool.changed.wait()
            if not (self._drained and load.idle):
                if self._stop_at is None:
                    self.stop()
                await self._give_back(pool)
                pool.hurry()
                while not load.idle and await pool.changed.wait_until(self._stop_at):
                    pool.hurry()
                if not load.idle:
                    await pool.interrupt()
            await pool.close()
            await pool.settling.close()
            self._context.connection.remove_listener(self._resume_work, pool.settling.denied)
        if self._advisories is not None:
            await self._advisories.close()
        await self._stops.close()
        self._source.watch.forget_worker(self._handling)
        for task in self._helpers:
            task.cancel()
        if self._helpers:
            await asyncio.wait(self._helpers)
        if not self.task.cancelling():  # otherwise the event loop is ending, and a durable consumer is kept
            self._afterwards = self._source.over()

    async def _end_feeder(self) -> None:
        if self._feeder is not None:
            if not self._holding:
                self._feeder.cancel()
            await asyncio.wait({self._feeder})

    async def _give_back(self, pool: HandlerPool) -> None:
        """Close the source, so that it can't request messages again, then return messages without a handler."""
        back = pool.load.stop_starting()
        assert self._stop_at is not None
        remaining = max(1.0, self._stop_at - self._context.connection.now())
        try:
            async with asyncio.timeout(remaining):
                self._accept(await self._source.end_source(remaining))
        except (TimeoutError, JetStreamError):
            # The messages in the source can't be returned. That loses nothing, because the server redelivers them after
            # ack_wait.
            pool.wake()
        await pool.settling.give_back([*back, *pool.load.stop_starting()])


def _key_of(key: Key, message: Message) -> tuple[Hashable | None, Exception | None]:
    """Call the key function of the user. Return the key, or the exception if it failed or the key isn't hashable."""
    try:
        value = key(message)
        hash(value)
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        return None, error
    return value, None


class Stops:
    """Stops a worker when an event is set or a signal arrives. The second signal stops it without any grace."""

    def __init__(
        self, event: asyncio.Event | None, signals: Collection[int], stop: Callable[[float | None], None]
    ) -> None:
        self._event = event
        self._numbers = tuple(signals)
        self._stop = stop
        self._signals: list[int] = []  # the signals for which a handler is installed
        self._signalled = False
        self._waiting: asyncio.Task[None] | None = None

    def open(self) -> None:
        # ``add_signal_handler`` may raise an error, for example outside the main thread. Let the caller see it.
        loop = asyncio.get_running_loop()
        if self._event is not None:
            self._waiting = loop.create_task(self._wait(self._event), name="jsclient:stop a worker")
        for number in self._numbers:
            loop.add_signal_handler(number, self._on_signal)
            self._signals.append(number)

    async def _wait(self, event: asyncio.Event) -> None:
        await event.wait()
        self._stop(None)

    def _on_signal(self) -> None:
        self._stop(0.0 if self._signalled else None)
        self._signalled = True

    async def close(self) -> None:
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signals.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
