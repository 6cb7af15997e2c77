"""Calls a handler: a coroutine function on the event loop, any other in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any, TypeAlias

from ..._runtime.tasks import Signal
from ...protocol.consumers.worker.worker import Work
from ..message import Message

__all__ = ["Caller", "Handler", "Slot", "Why"]

Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]


class Why(Enum):
    """Why a worker cancelled a handler."""

    OVERDUE = auto()  # it exceeded handler_timeout
    STOPPED = auto()  # the worker is stopping


class Slot:
    """One of the tasks that handle messages."""

    __slots__ = ("_cancels", "handling", "task", "wake", "why", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.wake: Signal = Signal()
        self.work: Work[Message] | None = None
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
        self._threads = (
            None
            if _is_coroutine_function(handler)
            else ThreadPoolExecutor(concurrency, thread_name_prefix="jsclient-worker")
        )

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

    async def _in_thread(self, threads: ThreadPoolExecutor, slot: Slot, message: Message) -> Any:
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(threads, context.run, self._try, message)
        while True:
            try:
                result, error = await asyncio.shield(future)
            except asyncio.CancelledError:
                if slot.why is not Why.OVERDUE or slot.is_cancelled:
                    raise
                continue  # a thread cannot be interrupted; its slot stays taken until it ends
            if error is not None:
                raise error
            return result

    def _try(self, message: Message) -> tuple[Any, BaseException | None]:
        # Carried as a value: a future cannot hold a StopIteration, and a SystemExit would end the thread.
        try:
            return self._handler(message), None
        except BaseException as error:  # noqa: BLE001  raised again on the event loop
            return None, error

    def close(self) -> None:
        """Refuse further calls. A function still running in a thread continues there."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _is_coroutine_function(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  whether an object's own method is a coroutine function
    )
