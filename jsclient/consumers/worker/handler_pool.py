"""The tasks of a worker that call the handler, and the timer for keep-alives and handler timeouts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias, cast

from ..._runtime.context import Context
from ..._runtime.handlers import Threads, is_coroutine_function
from ..._runtime.loop_watch import LoopWatch
from ..._runtime.tasks import Signal, Timer, clock
from ...errors import JetStreamError
from ...protocol.consumers.worker.worker import CANCEL_TIMEOUT, Phase, Work, Workload
from ..message import Message, ack_now, begin_attempt
from .settling import Settling

__all__ = ["Caller", "Handler", "HandlerPool", "HandlerTask", "Why"]

_RECONNECT = 1.0  # how long the acks of a worker that is ending wait for a reconnect, in seconds
_TURN = 0.005  # handlers yield to other tasks after this many seconds
_IDLE = 10.0  # a task ends after it has been idle for this many seconds

Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]


class Why(Enum):
    """The reason why a worker has cancelled a handler."""

    OVERDUE = auto()  # the handler has exceeded handler_timeout
    STOPPED = auto()  # the worker is stopping and the grace period is over


class HandlerTask:
    """The state of a task that handles messages, one after the other. It ends after it has been idle for a while."""

    __slots__ = (
        "cancels",
        "handling",
        "idle_since",
        "is_woken",
        "latest",
        "leaves",
        "task",
        "wake",
        "why",
        "work",
    )

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.wake: Signal = Signal()
        self.work: Work[Message] | None = None
        # The message being handled, or the last one if there is none.
        self.latest: Work[Message] | None = None
        self.handling: bool = False  # True while the handler runs, which is when `cancel` has an effect
        self.idle_since: float = 0.0  # when the task became idle, in monotonic seconds
        self.is_woken: bool = False  # True between waking up the task and its search for a message
        self.leaves: bool = False  # True if the task should end instead of waiting for messages
        self.why: Why | None = None
        self.cancels: int = 0  # how many times `cancel` was called for the current handler

    def cancel(self, why: Why) -> None:
        """Cancel the handler that is running. The task itself continues with other messages."""
        if self.handling and self.task is not None:
            self.why = why
            self.cancels += 1
            self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """True if something other than `cancel` has cancelled the task."""
        return self.task is not None and self.task.cancelling() > self.cancels

    def uncancel(self) -> None:
        """Undo the calls of `cancel` after the handler has ended, so that the task can continue."""
        for _ in range(self.cancels):
            assert self.task is not None
            self.task.uncancel()
        self.cancels = 0


class Caller:
    """Calls the handler of a worker, which is either a coroutine function or a plain function.

    Attributes:
        coroutine_function: The handler if it is a coroutine function, otherwise None. Use `call_plain` in that case.
    """

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self.coroutine_function: Callable[[Message], Awaitable[object]] | None = None
        self._threads = Threads(concurrency)
        if is_coroutine_function(handler):
            self.coroutine_function = cast("Callable[[Message], Awaitable[object]]", handler)

    async def call_plain(self, slot: HandlerTask, message: Message) -> None:
        """Call a plain function in a thread, and await its result if that is awaitable. Raise its exceptions here."""
        result = await self._in_thread(slot, message)
        if inspect.isawaitable(result):
            await result

    async def _in_thread(self, slot: HandlerTask, message: Message) -> Any:
        future = self._threads.begin_call(self._handler, message)
        while True:
            try:
                result, error = await asyncio.shield(future)
            except asyncio.CancelledError:
                if slot.why is not Why.OVERDUE or slot.is_cancelled:
                    future.cancel()
                    raise
                # A thread can't be interrupted, so wait until it ends. Otherwise, more than `concurrency` threads would
                # run at a time.
                continue
            if error is not None:
                raise error
            return result

    def close(self) -> None:
        """Release the threads. A function that is still running continues in its thread."""
        self._threads.close()


# Tasks of handlers that ignore their cancellation. asyncio has only weak references to tasks, so without this set they
# could be garbage collected before they end.
_unending: set[asyncio.Task[None]] = set()


class HandlerPool:
    """Runs at most ``concurrency`` tasks. Each task takes a message, calls the handler, and settles the message.

    A handler that never waits is called many times in one iteration of the event loop, which is called a *turn*. A
    turn ends after 5 ms. Other tasks are woken up only then, and only if messages remain. This avoids switching
    between tasks when a single task can handle all messages.
    """

    def __init__(
        self,
        context: Context,
        load: Workload[Message],
        settling: Settling,
        handler: Handler,
        *,
        refill: Callable[[], None],
        on_stop: Callable[[BaseException | None], None],
        name: str,
    ) -> None:
        """Create a pool.

        Args:
            refill: Takes received messages from the source, as many as the capacity allows.
            on_stop: Called when a handler raises an exception that must end the worker, or when a task is cancelled.
        """
        self.changed: Signal = settling.changed  # set when a message is settled or an ack starts to wait
        self.hungry: Signal = Signal()  # set when a task becomes idle
        self._context = context
        self._now = clock(asyncio.get_running_loop())
        self.load: Workload[Message] = load
        self.settling: Settling = settling
        self._refill = refill
        self._on_stop = on_stop
        self._name = name
        self._concurrency = load.rules.options.concurrency
        self._caller = Caller(handler, self._concurrency)
        self._timer = Timer(self.tick_work)
        self._idle_timer = Timer(self._end_idle)
        self._watch = LoopWatch(self._handled, settling.slow)
        self._slots: list[HandlerTask] = []
        # A stack, so that tasks that aren't needed stay idle and eventually end.
        self._idle: list[HandlerTask] = []
        self._woken = 0  # number of tasks that were woken up and have not looked for a message yet
        self._turn_ends: float | None = None  # in monotonic seconds, None before the first message of a turn
        self._turn_over = False  # True if a turn has taken longer than _TURN
        self._closing = False  # True if no more messages may be handled

    def has(self, task: asyncio.Task[object] | None) -> bool:
        """Return True if a task belongs to this pool."""
        return task is not None and any(slot.task is task for slot in self._slots)

    def wake(self, most: int | None = None) -> None:
        """Wake up or start a task for each message that can be handled now, but at most ``most`` tasks."""
        if self._closing:
            return
        ready = self.load.startable
        missing = (ready if most is None or ready < most else most) - self._woken
        while missing > 0 and (self._idle or len(self._slots) < self._concurrency):
            if self._idle:
                slot = self._idle.pop()
                self._set_woken(slot)
                slot.wake.set()
            else:
                self._start_task()
            missing -= 1
        deadline = self.load.deadline
        # Without a deadline, let the timer fire without effect, which is cheaper than cancelling it every time.
        if deadline is not None:
            self._timer.set(deadline)

    def _start_task(self) -> None:
        slot = HandlerTask()
        self._slots.append(slot)
        self._set_woken(slot)
        slot.task = asyncio.get_running_loop().create_task(self._work(slot), name=self._name)
        slot.task.add_done_callback(partial(self._task_ended, slot))

    def _task_ended(self, slot: HandlerTask, task: asyncio.Task[None]) -> None:
        """Clean up after a task that was idle for long, has failed, or was cancelled."""
        self._slots.remove(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        self._clear_woken(slot)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if not self._closing:
                self._closing = True
                self._on_stop(error)
        else:
            self.wake()  # a message may have arrived between the decision to end and the end

    def _set_woken(self, slot: HandlerTask) -> None:
        if not slot.is_woken:
            slot.is_woken = True
            self._woken += 1

    def _clear_woken(self, slot: HandlerTask) -> None:
        if slot.is_woken:
            slot.is_woken = False
            self._woken -= 1

    async def _work(self, slot: HandlerTask) -> None:  # noqa: C901  function calls would be the main cost per message
        """Handle messages, one after the other. The common case of a message that is acked at once is inlined."""
        load, now, watch, settling, changed = self.load, self._now, self._watch, self.settling, self.changed
        handler = self._caller.coroutine_function or partial(self._caller.call_plain, slot)
        acks_now = settling.acks_now
        slot.task = asyncio.current_task()  # with an eager task factory, create_task has not returned yet
        while not self._closing and not slot.leaves:
            if slot.is_woken:
                self._clear_woken(slot)
            moment = now()
            if moment >= watch.due:
                watch.check_loop(moment)
            if self._turn_ends is None:
                self._turn_ends = moment + _TURN
                asyncio.get_running_loop().call_soon(self._next_turn)
            elif moment > self._turn_ends:
                self._turn_over = True
                self._set_woken(slot)
                await asyncio.sleep(0)
                continue
            if (work := load.start_work(moment)) is None:
                self._refill()
                if (work := load.start_work(moment)) is None:
                    await self._wait_idle(slot, moment)
                    continue
            slot.work = slot.latest = work
            message = work.message
            error: BaseException | None = work.broken
            try:
                if error is None and work.final_error is None:
                    if work.repeats:
                        begin_attempt(message, work.attempt)
                    slot.handling, slot.why = True, None
                    try:
                        await handler(message)
                    except GeneratorExit:
                        raise  # a coroutine that is being closed must not await anything
                    except BaseException as raised:  # noqa: BLE001  the worker decides
                        error = raised
                    finally:
                        slot.handling = False
                        if slot.cancels:
                            slot.uncancel()
                    is_plain = work.latest is message and not work.denied and not work.abandoned
                    if error is None and is_plain and acks_now and ack_now(message):
                        load.handled(work)
                        if settling.done is not None:
                            settling.done.add(work.ident[0])
                        slot.work = None
                        continue
                await self._settle(slot, work, error)
                self.wake()  # set the timer for a retry, and handle the next message with the same key
            finally:
                del error  # the traceback of the error refers to this frame, so avoid a reference cycle
                if slot.work is not None:
                    slot.work = None
                    load.released(work)
                if changed.waiters:
                    changed.set()

    def _next_turn(self) -> None:
        # Handlers that use up whole turns don't wait, so one task is enough. Otherwise, wake up as many tasks as
        # needed.
        most, self._turn_ends, self._turn_over = 1 if self._turn_over else None, None, False
        self.wake(most)

    async def _wait_idle(self, slot: HandlerTask, now: float) -> None:
        """Wait until the task is woken up because there are more messages."""
        slot.latest = None
        slot.idle_since = now
        self._idle.append(slot)
        self._idle_timer.set(now + _IDLE)
        self.hungry.set()
        await slot.wake.wait()

    def _end_idle(self) -> None:
        """End the tasks that have been idle for `_IDLE` seconds."""
        before = self._now() - _IDLE
        leaving = [slot for slot in self._idle if slot.idle_since <= before]
        self._idle = self._idle[len(leaving) :]
        for slot in leaving:
            slot.leaves = True
            slot.wake.set()
        if self._idle:
            self._idle_timer.set(self._idle[0].idle_since + _IDLE)
        elif self.load.idle:
            self.load.prefetch.rested()
            self._refill()

    def _handled(self) -> list[tuple[float, Work[Message]]]:
        return [(slot.latest.began, slot.latest) for slot in self._slots if slot.latest is not None]

    async def _settle(self, slot: HandlerTask, work: Work[Message], error: BaseException | None) -> None:
        """Settle a message, unless it was already acked in `_work`."""
        settling = self.settling
        if work.final_error is not None:
            await settling.dead_letter(work, work.final_error)
            return
        self.load.ended(work)
        if work.abandoned:
            return  # the message was settled without waiting for its handler
        if error is None or isinstance(error, Exception):
            await settling.ended(work, error)
            return
        if isinstance(error, asyncio.CancelledError) and not slot.is_cancelled:
            if slot.why is None:
                # The worker didn't cancel the handler. The cancellation came from within, so it counts as a failure.
                await settling.ended(work, error)
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

    def tick_work(self) -> None:
        """Send the keep-alives that are due, and cancel the handlers that have exceeded their timeout."""
        due = self.load.take_due(self._context.connection.now())
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
        """Settle a message as failed because its handler ignores the cancellation after a timeout."""
        await self.settling.ended(work, self._overdue(), stuck=True)
        self.changed.set()
        self.wake()

    @staticmethod
    async def _report_progress(works: list[Work[Message]]) -> None:
        for work in works:
            if work.phase is not Phase.SETTLED:
                try:
                    await work.latest.in_progress()
                except JetStreamError:
                    return  # while disconnected, all keep-alives fail. They are sent again after the reconnect

    def hurry(self) -> None:
        """Stop waiting for a reconnect soon, if the worker is ending and only acks are left to be sent."""
        if self.settling.waits and not any(slot.handling for slot in self._slots):
            self.settling.reconnect_by(self._context.connection.now() + _RECONNECT)

    async def interrupt(self) -> None:
        """Cancel the running handlers and settle all messages.

        Handlers have `CANCEL_TIMEOUT` seconds to end. If a handler doesn't end, its message is settled anyway.
        """
        self._closing = True
        # Acks that still wait for the connection give up now, because the loop below waits for their tasks.
        self.settling.reconnect_by(self._context.connection.now())
        for slot in self._slots:
            slot.cancel(Why.STOPPED)
        until = self._context.connection.now() + CANCEL_TIMEOUT
        while any(slot.work is not None for slot in self._slots):
            if not await self.changed.wait_until(until):
                break
        for slot in self._slots:
            if slot.work is not None and slot.task is not None:
                slot.work.abandoned = True
                # Cancel the task a second time. Either its ack is blocked, or the handler has ignored the first
                # cancellation.
                slot.task.cancel()
        await asyncio.sleep(0)
        for work in self.load.held:
            await self.settling.interrupted(work)

    async def close(self) -> None:
        """End the tasks. If a handler doesn't end, its task is left running."""
        self._closing = True
        self._timer.cancel()
        self._idle_timer.cancel()
        self._watch.close()
        for slot in self._idle:
            slot.wake.set()
        self._caller.close()
        tasks = {slot.task for slot in self._slots if slot.task}
        late = (await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT))[1] if tasks else ()
        for task in late:
            _unending.add(task)
            task.add_done_callback(_unending.discard)
