"""The tasks that handle messages, and the timer for keep-alives and handler timeouts."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, TypeAlias

from ..._runtime.context import Context
from ..._runtime.handlers import Threads, is_coroutine_function
from ..._runtime.loop_watch import LoopWatch
from ..._runtime.tasks import Signal, Timer
from ...errors import JetStreamError
from ...protocol.consumers.worker.worker import CANCEL_TIMEOUT, Phase, Work, Workload
from ..message import Message, begin_attempt
from .settling import Settling

__all__ = ["Caller", "Crew", "Handler", "Slot", "Why"]

_RECONNECT = 1.0  # seconds that a worker which ends waits for the connection, to send its acks

Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]


class Why(Enum):
    """Why a worker cancelled a handler."""

    OVERDUE = auto()  # it exceeded handler_timeout
    STOPPED = auto()  # the worker is stopping


class Slot:
    """One of the tasks that handle messages."""

    __slots__ = ("_cancels", "handling", "latest", "task", "wake", "why", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.wake: Signal = Signal()
        self.work: Work[Message] | None = None
        self.latest: Work[Message] | None = None  # the one that is handled, or was until now
        self.handling: bool = False  # the handler is running, so a cancellation reaches only it
        self.why: Why | None = None
        self._cancels = 0

    def cancel(self, why: Why) -> None:
        """Cancel the handler, but not its task."""
        if self.handling and self.task is not None:
            self.why = why
            self._cancels += 1
            self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task itself was cancelled from outside."""
        return self.task is not None and self.task.cancelling() > self._cancels

    def begin(self) -> None:
        """The handler is about to be called."""
        self.handling, self.why = True, None

    def end(self) -> None:
        """The handler has ended: withdraw our cancellations from the task."""
        self.handling = False
        for _ in range(self._cancels):
            assert self.task is not None
            self.task.uncancel()
        self._cancels = 0


class Caller:
    """Calls a handler."""

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self._threads = None if is_coroutine_function(handler) else Threads(concurrency)

    async def call(self, slot: Slot, message: Message) -> BaseException | None:
        """Call the handler. Returns what it raised, even a ``BaseException``; None if it returned."""
        slot.begin()
        try:
            if self._threads is None:
                result = self._handler(message)
            else:
                result = await self._in_thread(self._threads, slot, message)
            if inspect.isawaitable(result):
                await result
        except GeneratorExit:
            raise  # this coroutine is being closed and must not await
        except BaseException as error:  # noqa: BLE001  the worker decides
            return error
        finally:
            slot.end()
        return None

    async def _in_thread(self, threads: Threads, slot: Slot, message: Message) -> Any:
        future = threads.begin(self._handler, message)
        while True:
            try:
                result, error = await asyncio.shield(future)
            except asyncio.CancelledError:
                if slot.why is not Why.OVERDUE or slot.is_cancelled:
                    future.cancel()
                    raise
                continue  # a thread cannot be interrupted; its slot stays taken until it ends
            if error is not None:
                raise error
            return result

    def close(self) -> None:
        """Refuse further calls. A function still running in a thread continues there."""
        if self._threads is not None:
            self._threads.close()


_left: set[asyncio.Task[None]] = set()  # handlers that resist cancellation: referenced until they end


class Crew:
    """``concurrency`` tasks. Each takes the next message that may be handled, and settles it."""

    def __init__(
        self,
        context: Context,
        load: Workload[Message],
        settling: Settling,
        handler: Handler,
        *,
        on_stop: Callable[[BaseException | None], None],
        name: str,
    ) -> None:
        self.changed: Signal = settling.changed  # a message was settled, or its ack waits for the connection
        self._context = context
        self.load: Workload[Message] = load
        self.settling: Settling = settling
        self._on_stop = on_stop
        self._caller = Caller(handler, load.rules.options.concurrency)
        self._timer = Timer(self.tick)
        self._watch = LoopWatch(self._handled, settling.slow)
        self._idle: deque[Slot] = deque()
        self._closing = False  # no new message is started
        self._slots = [Slot() for _ in range(load.rules.options.concurrency)]
        for slot in self._slots:
            slot.task = asyncio.get_running_loop().create_task(self._work(slot), name=name)

    def has(self, task: asyncio.Task[object] | None) -> bool:
        """Whether a task is one of these."""
        return task is not None and any(slot.task is task for slot in self._slots)

    def wake(self) -> None:
        """Wake a task if a message is ready, and set the timer."""
        if self.load.ready and self._idle:
            self._idle.popleft().wake.set()
        deadline = self.load.deadline
        if deadline is not None:  # an idle timer may fire once, which costs less than cancelling it each time
            self._timer.set(deadline)

    async def _work(self, slot: Slot) -> None:
        load, connection = self.load, self._context.connection
        while not self._closing:
            now = connection.now()
            work = load.start(now)
            if now >= self._watch.due:
                self._watch.look(now)
            if work is None:
                slot.latest = None
                self._idle.append(slot)
                await slot.wake.wait()
                continue
            slot.work = slot.latest = work
            self.wake()  # others, if there is more
            try:
                await self._handle(slot, work)
            finally:
                slot.work = None
                load.released(work)
                self.wake()
                self.changed.set()

    def _handled(self) -> list[tuple[float, Work[Message]]]:
        return [(slot.latest.began, slot.latest) for slot in self._slots if slot.latest is not None]

    async def _handle(self, slot: Slot, work: Work[Message]) -> None:
        settling = self.settling
        if work.doomed is not None:
            await settling.bury(work, work.doomed)
            return
        error: BaseException | None = work.broken
        if error is None:
            if work.repeats:
                begin_attempt(work.message, work.attempt)
            error = await self._caller.call(slot, work.message)
        self.load.ended(work)
        if work.abandoned:
            return  # abandoned meanwhile
        if error is None or isinstance(error, Exception):
            await settling.ended(work, error)
            return
        if isinstance(error, asyncio.CancelledError) and not slot.is_cancelled:
            if slot.why is None:
                await settling.ended(work, error)  # cancelled by the handler itself, or by what it awaited
                return
            if slot.why is Why.OVERDUE:
                await settling.ended(work, self._overdue())
                return
        if slot.why is not Why.STOPPED:
            self._closing = True
            self._on_stop(None if isinstance(error, asyncio.CancelledError) else error)
        await settling.interrupted(work)

    def _overdue(self) -> TimeoutError:
        return TimeoutError(f"the handler ran longer than {self.load.rules.options.handler_timeout} s")

    def tick(self) -> None:
        """Carry out what is due."""
        due = self.load.tick(self._context.connection.now())
        tasks = self._context.tasks
        if due.keep_alive:
            tasks.start(self._report_progress(due.keep_alive), "keep messages alive")
        for slot in self._slots if due.overdue else ():
            if slot.work in due.overdue:
                slot.cancel(Why.OVERDUE)
        for work in due.stuck:
            tasks.start(self._abandon(work), "abandon a handler")
        self.wake()

    async def _abandon(self, work: Work[Message]) -> None:
        """Its handler ignores its cancellation: settle the message without it."""
        await self.settling.ended(work, self._overdue(), stuck=True)
        self.changed.set()

    @staticmethod
    async def _report_progress(works: list[Work[Message]]) -> None:
        for work in works:
            if work.phase is not Phase.SETTLED:
                try:
                    await work.latest.in_progress()
                except JetStreamError:
                    return  # disconnected: repeated for all at the reconnect

    def hurry(self) -> None:
        """The worker ends, and no handler runs: acks have a moment more to wait for the connection."""
        if self.settling.waits and not any(slot.handling for slot in self._slots):
            self.settling.reconnect_by(self._context.connection.now() + _RECONNECT)

    async def interrupt(self) -> None:
        """Cancel running handlers, and settle all held messages; takes `CANCEL_TIMEOUT` plus the acks."""
        self._closing = True
        self.settling.reconnect_by(self._context.connection.now())  # what was handled is not returned below
        for slot in self._slots:
            slot.cancel(Why.STOPPED)
        until = self._context.connection.now() + CANCEL_TIMEOUT
        while any(slot.work is not None for slot in self._slots):
            if not await self.changed.wait_until(until):
                break
        for slot in self._slots:
            if slot.work is not None and slot.task is not None:
                slot.work.abandoned = True
                slot.task.cancel()  # blocked in an ack, or resisting its first cancellation
        await asyncio.sleep(0)
        for work in self.load.held:
            await self.settling.interrupted(work)

    async def close(self) -> None:
        """End the tasks; those whose handler does not end keep running unattended."""
        self._closing = True
        self._timer.cancel()
        self._watch.close()
        for slot in self._idle:
            slot.wake.set()
        self._caller.close()
        _, late = await asyncio.wait({slot.task for slot in self._slots if slot.task}, timeout=CANCEL_TIMEOUT)
        for task in late:
            _left.add(task)
            task.add_done_callback(_left.discard)
