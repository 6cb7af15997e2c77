"""The worker: takes messages, calls handlers with bounded concurrency, and settles every message. Source: ADR-15.

`Workload` (protocol) decides which message is handled next, which are kept alive and how each is settled; this module
takes messages, calls handlers, and ends in order. One task takes messages, ``concurrency`` tasks handle them, one timer
serves all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..._runtime.context import Context, as_reported
from ..._runtime.handle import no_pickle
from ..._runtime.nats.connection import Lifecycle
from ..._runtime.tasks import Signal
from ...errors import ClosedError, JetStreamError
from ...protocol.consumers.worker.seq_set import SeqSet
from ...protocol.consumers.worker.work_rules import WorkOptions, WorkRules
from ...protocol.consumers.worker.worker import WorkCounts, Workload
from ...protocol.events import WorkerFailed
from ..message import Message
from ..stall_watch import Handling
from .advisories import Advisories
from .handler_pool import Crew, Handler
from .settling import DeadLetters, Settling
from .sources import Source

__all__ = ["Key", "Stops", "Worker"]

Key: TypeAlias = Callable[[Message], Hashable | None]

_MOST_KEPT = 10_000  # messages of a push subscription kept alive beyond the capacity
_LAST_WORDS = 2.0  # seconds beyond the grace, for messages interrupted in their last delivery


_log = logging.getLogger("jsclient.worker")


class Worker(Coroutine[Any, Any, WorkCounts]):
    """A running worker. Made by ``run`` of a subscription or consumer.

    ``await worker`` waits for its end and returns its `WorkCounts`; a task or an ``asyncio.TaskGroup`` can do so, too.
    ``async with`` runs it for the duration of the block: entering raises why it cannot start, as `wait`, and if it
    fails later the block is cancelled and leaving raises the error.
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
        self._crew: Crew | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._afterwards: asyncio.Task[None] | None = None  # the source's
        self._over = Signal()
        self._holding = False  # the feeder must not be cancelled: messages it holds would be lost
        self._stop_at: float | None = None  # monotonic seconds: handlers may run until then
        self._is_over = False
        self._waiter: Generator[Any, None, WorkCounts] | None = None  # of a task that was given the worker
        self._drained = False
        self._awaited = False
        self._begun = Signal()  # it has started, or has failed to
        self._block: asyncio.Task[Any] | None = None  # the task in the block of ``async with``
        self._cancels_block = False
        self._error: BaseException | None = None
        loop = asyncio.get_running_loop()
        name = f"jsclient:worker of {source.stream}/{source.consumer}"
        self.task: asyncio.Task[None] = loop.create_task(self._run(), name=name)
        self.task.add_done_callback(self._report_unawaited)
        context.open.add(self)

    @property
    def counts(self) -> WorkCounts:
        """The counts so far; they are updated while it runs."""
        return self._counts

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self.task.done()

    def __repr__(self) -> str:
        return f"<Worker of {self._source.stream}/{self._source.consumer} {self._counts}>"

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one of those that handle messages. For the library's own use."""
        return self._crew is not None and self._crew.has(task)

    def stop(self, grace: float | None = None) -> None:
        """Stop taking messages, return waiting ones, let running handlers finish. Does not wait: use ``await worker``.

        Args:
            grace: Seconds until running handlers are cancelled and their messages returned; by default that of
                ``run``. Calling it again can shorten it.
        """
        at = self._context.connection.now() + (self._options.grace if grace is None else grace)
        self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
        if self._crew is not None:
            self._crew.settling.deadline = self._stop_at + _LAST_WORDS
        elif not self._is_over:
            self.task.cancel()  # it has not started
        self._end_soon()

    def _end_soon(self) -> None:
        self._is_over = True
        self._over.set()
        if self._crew is not None:
            self._crew.changed.set()

    async def wait(self) -> WorkCounts:
        """Wait for the end; as ``await worker``.

        Raises:
            ConsumerDeletedError: The consumer was deleted.
            StatusError, PermissionDeniedError, ApiError, RequestTimeoutError: It could not start or continue.
            NoMatchingStreamError: No stream holds the dead-letter subject.
            ConfigError: The consumer does not ack messages one by one, or would receive its own dead letters.
            BaseException: A handler raised one that is not an ``Exception`` (``SystemExit``).

        All held messages were settled or returned before it raises.
        Cancelled: as `stop`, and it returns only at the end; a second cancellation also cancels running handlers.
        """
        self._awaited = True
        cancelled = False
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError:
                self.stop(0.0 if cancelled else None)
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

    def send(self, value: Any, /) -> Any:
        """Used by tasks."""
        self._waiter = self._waiter or self.__await__()
        return self._waiter.send(value)

    def throw(self, *error: Any) -> Any:
        """Used by tasks."""
        self._waiter = self._waiter or self.__await__()
        return self._waiter.throw(*error)

    def close(self) -> None:
        """Used by tasks that cannot start: stop."""
        if self._waiter is not None:
            self._waiter.close()
        self.stop()

    def exception(self) -> BaseException | None:
        """The error that ended it, as `wait` raises it; None while it runs and after an ordinary end."""
        return self._error if self.task.done() else None

    async def __aenter__(self) -> Self:
        try:
            while self._crew is None and not self.task.done():
                await self._begun.wait()
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
            if block.cancelling():  # by others as well
                return
        self.stop()
        await self.wait()

    def _cancel_block(self) -> None:
        """It has failed: what the block waits for may never come."""
        if self._block is not None:
            self._awaited = self._cancels_block = True
            self._block.cancel()

    async def abandon(self) -> None:
        """The connection is closing: stop."""
        self.stop()
        if not self.has(self._context.closer) and not self.has(asyncio.current_task()):
            await asyncio.wait({self.task})

    def _report_unawaited(self, task: asyncio.Task[None]) -> None:
        """Report an error that no caller awaits."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._error = bug
        self._begun.set()
        if self._error is not None:
            self._cancel_block()
        if self._error is not None and not self._awaited:
            source, error = self._source, as_reported(self._error)
            source.emit(WorkerFailed(stream=source.stream, consumer=source.consumer, error=error))

    async def _run(self) -> None:
        """Run to the end. A cancellation makes it end faster, and is not propagated; `wait` raises instead."""
        try:
            await self._begin()
            while not self._is_over:
                await self._over.wait()
        except asyncio.CancelledError:
            self.stop(0.0)
        except Exception as error:  # noqa: BLE001  raised by `wait`
            self._error = error
        ending = asyncio.get_running_loop().create_task(self._end(), name="jsclient:end of a worker")
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                self.stop(0.0)
        self._context.open.discard(self)
        ending.result()

    async def _begin(self) -> None:
        context, source = self._context, self._source
        config = await source.config()
        rules = WorkRules(self._options, config)
        for doubt in rules.doubts():
            _log.warning("worker of consumer %r of stream %r: %s", source.consumer, source.stream, doubt)
        load = Workload[Message](rules, self._counts)
        letters: DeadLetters | None = None
        done: SeqSet | None = None
        if self._options.dead_letter is not None:
            letters = DeadLetters(source, self._options.dead_letter)
            await letters.check(config)
            if rules.server_limit is not None:
                done = SeqSet()
                self._advisories = Advisories(source, letters, config, in_hand=load.holds, done=done)
                await self._advisories.listen()
        settling = Settling(source, load, letters=letters, ack_sync=self._ack_sync)
        settling.done = done
        source.open(rules)
        self._crew = Crew(
            context, load, settling, self._handler, on_stop=self._stop_now, name=self.task.get_name()
        )
        self._feeder = self._help(self._feed(self._crew), "take messages for a worker")
        self._help(self._watch(), "check that the consumer exists")
        self._stops.open()
        source.watch.add(self._handling)
        context.connection.add_listener(self._lifecycle, settling.denied)
        self._begun.set()

    def _handling(self) -> Handling:
        """What it does, for the watch that looks why nothing comes."""
        counts, load = self._counts, None if self._crew is None else self._crew.load
        running = [] if load is None else load.running
        held = 0 if load is None else load.rules.capacity - load.room
        ended = counts.handled + counts.failed + counts.dead_lettered + counts.terminated
        waiting = self._source.pending + counts.waiting
        held += self._source.pending
        if load is None:
            return Handling([], waiting, held, ended)
        keeps_alive = self._options.keep_alive
        return Handling([*running], waiting, held, ended, load.rules.ack_wait(1), keeps_alive, self._describe)

    def _describe(self, ident: Hashable) -> str:
        """The message that a handler has, for events."""
        for work in () if self._crew is None else self._crew.load.held:
            if (*work.ident, work.began) == ident:
                return f"message {work.message.subject!r} (stream sequence {work.ident[0]}, attempt {work.attempt})"
        return "a message"

    def _help(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"jsclient:{name}")
        self._helpers.append(task)
        return task

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED and self._crew is not None:
            self._crew.load.reconnected(self._context.connection.now())
            self._crew.tick()

    def _stop_now(self, error: BaseException | None) -> None:
        """A handler raised a ``BaseException``, or its task was cancelled."""
        self._error = self._error or error
        self.stop(0.0)

    async def _watch(self) -> None:
        self._error = await self._source.deleted()
        self._end_soon()

    async def _feed(self, crew: Crew) -> None:
        try:
            while not self._is_over:
                if crew.load.room > 0:
                    self._accept(await self._source.next(), crew)
                else:
                    await self._make_room(crew)
        except ClosedError:
            self._drained = self._source.drained
        except Exception as error:  # noqa: BLE001  raised by `wait`
            self._error = error
        self._end_soon()

    async def _make_room(self, crew: Crew) -> None:
        """Wait for capacity. After a while, take over waiting messages, to keep them alive before ``ack_wait`` ends."""
        load, now = crew.load, self._context.connection.now
        patience = now() + load.rules.hold
        while load.room <= 0 and not self._is_over:
            if not await crew.changed.wait_until(patience):
                self._holding = True
                for message in await self._source.hold(_MOST_KEPT + load.room):
                    self._accept(message, crew)
                self._holding = False
                patience = now() + load.rules.hold

    def _accept(self, message: Message, crew: Crew) -> None:
        try:
            meta = message.metadata
        except JetStreamError as error:
            self._source.report(error)
            return
        key: Hashable | None = None
        broken: Exception | None = None
        if self._key is not None:
            try:
                key = self._key(message)
                hash(key)
            except Exception as error:  # noqa: BLE001  a user's function may raise anything
                key, broken = None, error
        now = self._context.connection.now()
        work = crew.load.add(message, (meta.stream_seq, meta.timestamp_ns), meta.num_delivered, key, now)
        if work is not None:
            work.broken = broken
        crew.wake()

    async def _end(self) -> None:
        await self._end_feeder()
        crew = self._crew
        if crew is not None:
            load = crew.load
            if self._drained:
                while not load.idle and self._stop_at is None:
                    await crew.changed.wait()
            if not (self._drained and load.idle):
                if self._stop_at is None:
                    self.stop()
                await self._give_back(crew)
                crew.hurry()
                while not load.idle and await crew.changed.wait_until(self._stop_at):
                    crew.hurry()
                if not load.idle:
                    await crew.interrupt()
            await crew.close()
            await crew.settling.close()
            self._context.connection.remove_listener(self._lifecycle, crew.settling.denied)
        if self._advisories is not None:
            await self._advisories.close()
        await self._stops.close()
        self._source.watch.forget(self._handling)
        for task in self._helpers:
            task.cancel()
        if self._helpers:
            await asyncio.wait(self._helpers)
        if not self.task.cancelling():  # else the event loop ends: as at `close`, a durable consumer stays
            self._afterwards = self._source.over()

    async def _end_feeder(self) -> None:
        if self._feeder is not None:
            if not self._holding:
                self._feeder.cancel()
            await asyncio.wait({self._feeder})

    async def _give_back(self, crew: Crew) -> None:
        """Return waiting messages to the server, after ending the source: it would request them again."""
        back = crew.load.stop()
        assert self._stop_at is not None
        left = max(1.0, self._stop_at - self._context.connection.now())
        try:
            async with asyncio.timeout(left):
                for message in await self._source.end(left):
                    self._accept(message, crew)
        except (TimeoutError, JetStreamError):
            pass  # the server delivers them again after ack_wait
        await crew.settling.give_back([*back, *crew.load.stop()])


class Stops:
    """Watches an event and signals. The first one stops with the configured grace, a second signal at once."""

    def __init__(
        self, event: asyncio.Event | None, signals: Collection[int], stop: Callable[[float | None], None]
    ) -> None:
        self._event = event
        self._wanted = tuple(signals)
        self._stop = stop
        self._signals: list[int] = []  # those that have our handler
        self._signalled = False
        self._waiting: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start watching. Raises the errors of ``add_signal_handler``."""
        loop = asyncio.get_running_loop()
        if self._event is not None:
            self._waiting = loop.create_task(self._wait(self._event), name="jsclient:stop a worker")
        for number in self._wanted:
            loop.add_signal_handler(number, self._on_signal)
            self._signals.append(number)

    async def _wait(self, event: asyncio.Event) -> None:
        await event.wait()
        self._stop(None)

    def _on_signal(self) -> None:
        self._stop(0.0 if self._signalled else None)
        self._signalled = True

    async def close(self) -> None:
        """Stop watching."""
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signals.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
