"""The tasks that handle messages, and the timer for keep-alives and handler timeouts."""

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

_RECONNECT = 1.0  # seconds that an ending worker waits for the connection in order to send its acks
_TURN = 0.005  # seconds that handlers may take before other tasks run
_IDLE = 10.0  # seconds without a message after which a task ends

Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]


class Why(Enum):
    """The reason why a worker cancelled a handler."""

    OVERDUE = auto()  # it exceeded handler_timeout
    STOPPED = auto()  # the worker is stopping


class HandlerTask:
    """A task that handles messages. It starts with one message, and ends after being idle for a while."""

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
        self.latest: Work[Message] | None = None  # the message being handled, or the last message handled
        self.handling: bool = False  # the handler is running, so a cancellation affects only the handler
        self.idle_since: float = 0.0  # monotonic seconds
        self.is_woken: bool = False  # the task was woken, and checks for a message
        self.leaves: bool = False  # the task ends instead of waiting for more messages
        self.why: Why | None = None
        self.cancels: int = 0  # number of times that `cancel` cancelled this handler

    def cancel(self, why: Why) -> None:
        """Cancel the handler. Its task continues with other messages."""
        if self.handling and self.task is not None:
            self.why = why
            self.cancels += 1
            self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task itself was cancelled from outside."""
        return self.task is not None and self.task.cancelling() > self.cancels

    def uncancel(self) -> None:
        """Undo the cancellations that `cancel` requested, after the handler has ended."""
        for _ in range(self.cancels):
            assert self.task is not None
            self.task.uncancel()
        self.cancels = 0


class Caller:
    """Calls the handler of a worker.

    Attributes:
        coroutine_function: The handler if it is a coroutine function. `call_plain` calls any other handler.
    """

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self.coroutine_function: Callable[[Message], Awaitable[object]] | None = None
        self._threads = Threads(concurrency)
        if is_coroutine_function(handler):
            self.coroutine_function = cast("Callable[[Message], Awaitable[object]]", handler)

    async def call_plain(self, slot: HandlerTask, message: Message) -> None:
        """Call a plain function in a thread, and await its result if it is awaitable. Raises any exception of it."""
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
                continue  # a thread cannot be interrupted, so its slot stays occupied until it ends
            if error is not None:
                raise error
            return result

    def close(self) -> None:
        """Refuse further calls. A function still running in a thread continues there."""
        self._threads.close()


_unending: set[asyncio.Task[None]] = set()  # handlers that resist cancellation: referenced until they end


class HandlerPool:
    """Runs at most ``concurrency`` tasks. Each takes the next message that may be handled, runs the handler, and
    settles it.

    Handlers that do not wait run one after another in one *turn* of the event loop, until the turn has taken 5 ms.
    Other tasks are woken once a turn. If all messages are handled by then, no task needs to be woken.
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
        """Create a pool. ``refill`` takes messages that have arrived, up to the capacity."""
        self.changed: Signal = settling.changed  # a message was settled, or its ack waits for the connection
        self.hungry: Signal = Signal()  # a task has become idle
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
        self._idle: list[
            HandlerTask
        ] = []  # the task that became idle last is woken first, so that the others can end
        self._woken = 0  # tasks that will check for a message
        self._turn_ends: float | None = None  # monotonic seconds; None: no message was started in this turn
        self._turn_over = False  # a task has used up the turn
        self._closing = False  # no new message is started

    def has(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether a task belongs to this pool."""
        return task is not None and any(slot.task is task for slot in self._slots)

    def wake(self, most: int | None = None) -> None:
        """Wake or start one task for each message that is ready, at most ``most``, and set the timer."""
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
        if deadline is not None:  # an idle timer may fire once, which costs less than cancelling it each time
            self._timer.set(deadline)

    def _start_task(self) -> None:
        slot = HandlerTask()
        self._slots.append(slot)
        self._set_woken(slot)
        slot.task = asyncio.get_running_loop().create_task(self._work(slot), name=self._name)
        slot.task.add_done_callback(partial(self._task_ended, slot))

    def _task_ended(self, slot: HandlerTask, task: asyncio.Task[None]) -> None:
        """Called when a task ended: it was idle for long, or was cancelled from outside while it was idle."""
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
            self.wake()  # a message may have arrived after the task had decided to end

    def _set_woken(self, slot: HandlerTask) -> None:
        if not slot.is_woken:
            slot.is_woken = True
            self._woken += 1

    def _clear_woken(self, slot: HandlerTask) -> None:
        if slot.is_woken:
            slot.is_woken = False
            self._woken -= 1

    async def _work(self, slot: HandlerTask) -> None:  # noqa: C901  one loop: calls for each message would cost the most
        """Handle messages one after another. The ordinary end of each is here, so that it costs the fewest calls."""
        load, now, watch, settling, changed = self.load, self._now, self._watch, self.settling, self.changed
        handler = self._caller.coroutine_function or partial(self._caller.call_plain, slot)
        acks_now = settling.acks_now
        slot.task = asyncio.current_task()  # with an eager task factory it runs before it is returned
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
                        raise  # this coroutine is being closed, so it must not await anything
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
                self.wake()  # it may be retried later, and the next message of its key may be ready
            finally:
                del error  # its traceback refers to this frame
                if slot.work is not None:
                    slot.work = None
                    load.released(work)
                if changed.waiters:
                    changed.set()

    def _next_turn(self) -> None:
        # A task that used up its turn continues with the next messages. If handlers wait, other tasks must help.
        most, self._turn_ends, self._turn_over = 1 if self._turn_over else None, None, False
        self.wake(most)

    async def _wait_idle(self, slot: HandlerTask, now: float) -> None:
        """Wait until there are more messages."""
        slot.latest = None
        slot.idle_since = now
        self._idle.append(slot)
        self._idle_timer.set(now + _IDLE)
        self.hungry.set()
        await slot.wake.wait()

    def _end_idle(self) -> None:
        """End the tasks that have been idle for a while."""
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
        """Settle a message that could not be acked at once."""
        settling = self.settling
        if work.final_error is not None:
            await settling.dead_letter(work, work.final_error)
            return
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

    def tick_work(self) -> None:
        """Send the keep-alives and cancel the handlers that are due."""
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
        """Settle a message whose handler ignores its cancellation."""
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
                    return  # disconnected: after the reconnect this is repeated for all messages

    def hurry(self) -> None:
        """Limit how long acks wait for the connection. Has an effect when the worker ends and no handler runs."""
        if self.settling.waits and not any(slot.handling for slot in self._slots):
            self.settling.reconnect_by(self._context.connection.now() + _RECONNECT)

    async def interrupt(self) -> None:
        """Cancel running handlers and settle all messages. Takes `CANCEL_TIMEOUT` at most, plus the acks."""
        self._closing = True
        # From now on no ack waits for the connection: handled messages must be settled before the loop below.
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
                slot.task.cancel()  # the task is blocked in an ack, or resisted its first cancellation
        await asyncio.sleep(0)
        for work in self.load.held:
            await self.settling.interrupted(work)

    async def close(self) -> None:
        """End the tasks. A task whose handler does not end keeps running unattended."""
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
