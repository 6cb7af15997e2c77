"""The buffer of a push subscription, from which messages are read or passed to the callback. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from itertools import repeat
from types import CoroutineType
from typing import Self, TypeAlias

from ..._runtime.connection.speedups import CallbackRun
from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ..._runtime.handlers import Threads, await_suspended, is_coroutine_function
from ..._runtime.loop_watch import LoopWatch
from ..._runtime.tasks import Signal, Timer
from ...errors import ClosedError, ConfigError, DisconnectedError, JetStreamError, RequestTimeoutError
from ...protocol.consumers.push import AnswerFlowControl, Command, PushTracker
from ...protocol.events import Event, HandlerFailed, HandlerSlow
from ...protocol.wire.checks import deadline_of
from ...protocol.wire.frames import Frame
from ..message import AckChannel, DeliveredMessage, Message
from ..stall_watch import Handling, StallWatch

__all__ = ["Batches", "Callback", "PushBuffer"]

Callback: TypeAlias = Callable[[Message], Awaitable[None] | None]

_TURN = 0.005  # callbacks yield to other tasks after this many seconds
_FAST = 8  # while callbacks are fast, the clock is read only once for this many messages
# While this many callbacks together take less than a quarter of _TURN, the clock is read only once for all of them.
# With a larger number, callbacks that suddenly become slow would block the event loop for too long.
_FASTEST = 16


class PushBuffer:
    """Receives the messages, statuses and heartbeats of a push subscription, and buffers them until they are read.

    Attributes:
        tracker: Implements the protocol without I/O. The buffer carries out its commands.
        channel: Shared by the messages for sending acks.
        log: The recent events of the subscription.
        ready: Queue from which readers may take messages directly, without calling `take_message`. Empty while direct
            reads aren't allowed.
        watching: True while missing heartbeats are reported.
        heard: Set to True when frames arrive. The subscription resets the flag to detect silence.
        ended: True once no more messages will arrive. Messages in the buffer can still be read.
        stall_watch: Checks the consumer when no message arrives for a while.
    """

    def __init__(
        self,
        context: Context,
        tracker: PushTracker,
        channel: AckChannel,
        *,
        has_callback: bool,
        silent: Callable[[], None],
        emptied: Callable[[], None],
        received: Callable[[], None] | None = None,
        taken: Callable[[], None] | None = None,
    ) -> None:
        """Create a buffer.

        Args:
            silent: Called when heartbeats are missing.
            emptied: Called when a reader reads past the last message.
            received: Called after frames have arrived.
            taken: Called after messages were read, because the buffer then has more capacity.
        """
        self.tracker = tracker
        self.channel = channel
        self.log: EventLog = EventLog()
        self.ready: deque[Frame] = deque() if has_callback else tracker.front
        self.watching = True
        self.heard: bool = True
        self.ended: bool = False
        self._context = context
        self._has_callback = has_callback
        self._silent, self._emptied, self._received, self._taken = silent, emptied, received, taken
        self._arrived = Signal()
        self._idle = False  # True while the task of the callback waits for messages
        # True once a callback has blocked the event loop. The clock is then read after each call.
        self._blocks = False
        # Time at which the clock was last read, before one or several calls of the callback.
        self._began = 0.0
        self._latest: Message | None = None  # the message that was last passed to the callback
        self._each = 1  # number of calls after which the clock is read again
        self._timer = Timer(self._tick_heartbeat)
        self._now = asyncio.get_running_loop().time
        self.stall_watch: StallWatch = StallWatch(context, self)
        if has_callback:
            self.stall_watch.workers.append(self._handling)

    @property
    def stream(self) -> str:
        """Name of the stream of the subscription."""
        return self.tracker.stream

    @property
    def consumer(self) -> str:
        """Name of the current consumer of the subscription."""
        return self.tracker.consumer

    @property
    def arrived(self) -> int:
        """Total number of messages received."""
        return self.tracker.received

    @property
    def is_awaited(self) -> bool:
        """True while a reader or the task of the callback is waiting for a message."""
        return self._arrived.is_awaited

    def _handling(self) -> Handling:
        """Return the activity of the callback. Messages are identified by the number of messages taken so far."""
        tracker = self.tracker
        taken = tracker.received - tracker.pending
        running: list[tuple[Hashable, float]] = [] if self._idle or not taken else [(taken, self._now())]
        return Handling(running, tracker.pending, None, taken, subject_of=self._describe)

    # Usually readers take messages directly from the tracker's deque, because that is fastest. While an ordered
    # subscription replaces its consumer, it must know when capacity becomes free. It then hides the deque, so that
    # readers call `take_message`.

    def hide(self) -> None:
        """Make readers call `take_message` for each message."""
        self.ready = deque()

    def show(self) -> None:
        """Let readers take messages directly from `ready` again."""
        if not self._has_callback:
            self.ready = self.tracker.front

    def receive_frames(self, frames: list[Frame]) -> None:
        """Process the frames that arrive. The connection calls this method."""
        tracker = self.tracker
        self.heard = True
        if commands := tracker.receive(frames, self._now()):
            self._carry_out(commands)
        if tracker.front or tracker.waits:
            self._arrived.set()
        if self._received is not None:
            self._received()

    def watch(self) -> None:
        """Start or restart the heartbeat timer."""
        self._timer.set(self.tracker.deadline)

    def _tick_heartbeat(self) -> None:
        commands = self.tracker.tick(self._now())
        self._carry_out(commands)
        if commands:
            self._silent()
        self._timer.set(self.tracker.deadline if self.watching else None)
        if self._received is not None:
            self._received()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, AnswerFlowControl):
                try:
                    self._context.connection.send(command.subject.decode("utf-8", "surrogateescape"))
                except JetStreamError:
                    # Not fatal, because the server repeats the request in its next heartbeat.
                    self.tracker.flow.not_sent(command.subject)
            else:
                self.emit(command.event)

    def emit(self, event: Event) -> None:
        """Report an event to the subscription and to the connection's ``on_event``."""
        self.log.add_event(event)
        self._context.emit(event)

    def end_buffer(self) -> None:
        """Record that no more messages will arrive, and wake up all readers."""
        self.ended = True
        self._carry_out(self.tracker.end_queue())
        self.stall_watch.close()
        self._timer.cancel()
        self._arrived.set()

    async def next(self, timeout: float | None) -> Message:
        """See `Subscription.next`."""
        if self._has_callback:
            raise ConfigError("cannot read from a subscription that has a callback")
        deadline = deadline_of(timeout, self._now())
        while (message := self.take_message()) is None:
            if self.ended:
                self._emptied()
                raise ClosedError("the subscription is closed: subscribe again, on an open connection")
            self.stall_watch.asked()
            if not await self._arrived.wait_until(deadline):
                # Look once more. A message may have arrived in the event loop iteration in which the timeout expired.
                message = self.take_message()
                if message is not None:
                    return message
                raise RequestTimeoutError("no message", timeout, self._context.connection.problem)
        return message

    async def next_batch(self, max_messages: int) -> list[Message]:
        """See `Subscription.next_batch`."""
        batch, front, channel = [await self.next(None)], self.tracker.front, self.channel
        while (free := max_messages - len(batch)) > 0:
            if front:
                batch.extend(
                    [DeliveredMessage(front.popleft(), channel) for _ in range(min(free, len(front)))]
                )
                continue
            try:
                message = self.take_message()
            except JetStreamError as error:
                self.tracker.put_back(error)  # raising it now would lose the messages of this batch
                break
            if message is None:
                break
            batch.append(message)
        return batch

    def _reach_messages(self) -> bool:
        """Answer flow control requests that precede the next message. Returns True if there is a next message."""
        front = self.tracker.front
        while not front and (commands := self.tracker.reach_frames()):
            self._carry_out(commands)
        if self._taken is not None:
            self._taken()
        return bool(front)

    def take_message(self) -> Message | None:
        """Answer flow control requests that precede the next message, then return that message or None."""
        while True:
            frame, commands = self.tracker.take_frame()
            if commands:
                self._carry_out(commands)
            if frame is None and commands:
                continue
            if self._taken is not None:
                self._taken()
            return None if frame is None else DeliveredMessage(frame, self.channel)

    async def call(self, callback: Callback, *, auto_ack: bool) -> None:
        """Pass messages to the callback, one after the other, until the subscription ends."""
        threads = None if is_coroutine_function(callback) else Threads(1)
        watch = LoopWatch(self._handled, self._handler_slow)
        try:
            await self._call(callback, threads, watch, auto_ack=auto_ack)
        finally:
            watch.close()
            if threads is not None:
                threads.close()

    async def _call(
        self, callback: Callback, threads: Threads | None, watch: LoopWatch[Message | None], *, auto_ack: bool
    ) -> None:
        front, compiled = self.tracker.front, self.channel.reader.callback_run
        # The compiled loop handles coroutine functions only, and doesn't ack messages.
        calls: CallbackRun | None = None
        if threads is None and not auto_ack and compiled is not None:
            calls = compiled(front, DeliveredMessage, self.channel, callback, CoroutineType)
        self.stall_watch.asked()
        since, self._each = self._note_call(watch), 1
        while True:
            if not front and not self._reach_messages():
                if self.ended:
                    return
                await self._wait_idle()
                since, self._each = self._note_call(watch), 1
                continue
            if calls is not None:
                await self._call_compiled_run(calls)
            else:
                await self._call_run(callback, threads, auto_ack=auto_ack)
            began, moment = self._began, self._note_call(watch)
            self._each = 1 if self._blocks else _next_run(self._each, moment - began)
            # Callbacks that never wait would block the event loop, so let other tasks run after each turn.
            if moment - since > _TURN:
                if self._taken is not None:
                    self._taken()
                await asyncio.sleep(0)
                self._began = since = self._now()

    async def _wait_idle(self) -> None:
        self._idle = True
        self.stall_watch.asked()
        await self._arrived.wait()
        self._idle = False

    async def _call_run(self, callback: Callback, threads: Threads | None, *, auto_ack: bool) -> None:
        """Pass messages to the callback until it is time to read the clock again."""
        front, channel = self.tracker.front, self.channel
        take_frame = front.popleft
        for _ in repeat(None, self._each):
            if not front:  # checked each time, because the callback may have unsubscribed
                return
            message = self._latest = DeliveredMessage(take_frame(), channel)
            try:
                if threads is None:
                    await callback(message)  # type: ignore[misc]  # its function is a coroutine function
                else:
                    await threads.call(callback, message)
                if auto_ack:
                    await self._ack(message)
            except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001  a user's callback may raise anything
                self._callback_failed(message, error)

    async def _ack(self, message: Message) -> None:
        """Ack a message. While the client is disconnected, wait for the reconnect.

        Raises `ClosedError` if the connection is closed.
        """
        while True:
            try:
                return await message.ack()
            except DisconnectedError:
                await self._context.connection.wait_connected(None)

    async def _call_compiled_run(self, calls: CallbackRun) -> None:
        """Like `_call_run`, but with a compiled loop.

        The compiled loop can neither wait nor handle errors. It returns when a coroutine has to wait, and raises the
        exception of the callback. This method takes care of both, then resumes the loop.
        """
        front, remaining = self.tracker.front, self._each
        while front and remaining:
            try:
                try:
                    awaited = calls.call_run(remaining)
                finally:
                    self._latest, remaining = calls.message, calls.remaining
                if awaited is not None:
                    await (await_suspended(*awaited) if len(awaited) == 2 else awaited[0])
            except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001  a user's callback may raise anything
                self._callback_failed(calls.message, error)

    def _callback_failed(self, message: Message, error: BaseException) -> None:
        """Report the exception that a callback has raised.

        A `CancelledError` is raised again if this task was cancelled. Otherwise, the callback has raised it, and it
        is reported like any other exception.
        """
        if isinstance(error, asyncio.CancelledError):
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise error
            error = asyncio.CancelledError("the handler was cancelled")
        self._handler_failed(message, error)

    def _note_call(self, watch: LoopWatch[Message | None]) -> float:
        """Read the clock before a call of the callback, and return the time."""
        moment = self._now()
        if moment >= watch.due:
            watch.check_loop(moment)
        self._began = moment
        return moment

    def _handled(self) -> list[tuple[float, Message | None]]:
        # If the clock was read once for several calls, it is unknown which of them is blocking the event loop.
        return [] if self._idle else [(self._began, self._latest if self._each == 1 else None)]

    def _describe(self, _: Hashable) -> str:
        message = self._latest
        if message is None:
            return "a message"
        data = message.metadata
        return (
            f"message {message.subject!r} (stream sequence {data.stream_seq}, attempt {data.num_delivered})"
        )

    def _handler_slow(self, blocked: float, count: int, message: Message | None) -> None:
        self._blocks = True
        self.emit(
            HandlerSlow(
                stream=self.tracker.stream,
                consumer=self.tracker.consumer,
                blocked=blocked,
                count=count,
                subject="" if message is None else message.subject,
                stream_seq=0 if message is None else _numbers(message)[0],
            )
        )

    def _handler_failed(self, message: Message, error: BaseException) -> None:
        sequence, attempt = _numbers(message)
        self.emit(
            HandlerFailed(
                stream=self.tracker.stream,
                consumer=self.tracker.consumer,
                error=error,
                subject=message.subject,
                stream_seq=sequence,
                attempt=attempt,
            )
        )


def _next_run(count: int, took: float) -> int:
    """Return the number of calls before the clock is read again, given that ``count`` calls took ``took`` seconds."""
    if took > _TURN:
        return 1
    return _FASTEST if took * _FASTEST * 4 < count * _TURN else _FAST


def _numbers(message: Message) -> tuple[int, int]:
    """Return the stream sequence and the attempt of a message, or zeros if the message isn't from a stream."""
    try:
        return message.metadata.stream_seq, message.attempt
    except JetStreamError:
        return 0, 0


class Batches:
    """The iterator that `Subscription.batches` returns."""

    def __init__(self, buffer: PushBuffer, max_messages: int) -> None:
        self._buffer = buffer
        self._max_messages = max_messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        try:
            return await self._buffer.next_batch(self._max_messages)
        except ClosedError:
            raise StopAsyncIteration from None
