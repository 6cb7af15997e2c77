"""The continuous pull reader behind ``messages()``: it keeps a bounded buffer filled. Source: ADR-37 §Consume."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

import msgspec

from ._runtime.connection import Lifecycle
from ._runtime.consumer_calls import is_gone, nak_all
from ._runtime.reader_inbox import ReaderInbox
from ._runtime.timer import Timer
from .errors import (
    ClosedError,
    ConfigError,
    ConsumerDeletedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    PullLimitError,
    RequestTimeoutError,
)
from .message import Message
from .protocol.events import ConsumerDeleted, ErrorRaised, Event, HeartbeatMissed
from .protocol.frames import Frame, frame_size, is_control, is_data
from .protocol.headers import Headers, Status, parse_headers
from .protocol.heartbeat import HeartbeatMonitor
from .protocol.pull import HEARTBEATS_ALLOWED, Pull, PullBuffer, check_pull, default_heartbeat, encode_pull
from .protocol.status import Meaning, classify
from .pull import Puller

__all__ = ["Messages"]

_BELIEVED_AFTER = 5.0  # seconds of "no responders" before the server is asked whether the consumer is gone


class Messages:
    """An endless iteration over a consumer's messages; ``async for``, `next`, `stop`, `drain`.

    Nothing is asked for before the first message is. It survives reconnects (it asks again at once), leader changes
    and lost requests; it ends with an error when the consumer is deleted or refuses what is asked. What could be of
    interest but needs no action is told as events.
    """

    def __init__(
        self,
        puller: Puller,
        *,
        max_messages: int | None,
        max_bytes: int | None,
        threshold_messages: int | None,
        expires: float,
        idle_heartbeat: float | None,
    ) -> None:
        if max_messages is None:
            max_messages = 500 if max_bytes is None else 1_000_000
        if idle_heartbeat is None:
            idle_heartbeat = default_heartbeat(expires)
        check_pull(max_messages, expires, max_bytes, idle_heartbeat)
        threshold = max_messages // 2 if threshold_messages is None else threshold_messages
        if (
            isinstance(threshold, bool)
            or not isinstance(threshold, int)
            or not 0 <= threshold <= max_messages
        ):
            raise ConfigError(
                f"threshold_messages is {threshold_messages!r}: it must be 0 to max_messages ({max_messages})"
            )
        self._puller = puller
        self._context = puller.context
        self._pull = Pull(max_messages, expires, max_bytes, idle_heartbeat=idle_heartbeat)
        self._buffer = PullBuffer(max_messages, min(threshold, max_messages - 1), max_bytes)
        self._monitor = (
            None if idle_heartbeat is None else HeartbeatMonitor(idle_heartbeat, HEARTBEATS_ALLOWED)
        )
        self._frames: deque[Frame] = deque()
        self._error: JetStreamError | None = None
        self._inbox = ReaderInbox(puller.context.connection, self._receive)
        self._timer: Timer | None = None
        self._state = "new"  # new, open, draining, closed
        self._flushing = False  # draining: what is under way still arrives
        self._refused_since: float | None = None
        self._told_stuck = False  # that the next message is larger than max_bytes
        self._starting = asyncio.Lock()

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be taken."""
        return len(self._frames)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._state == "closed"

    # --- reading ---------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: Seconds; None waits as long as it takes. The reader goes on after a timeout.

        Raises:
            RequestTimeoutError: No message came in ``timeout`` seconds.
            ConsumerDeletedError, StatusError: It cannot go on; what had arrived was delivered before.
            ClosedError: It was stopped, or drained and is empty.

        Cancelled: no message is lost; the next call gets it.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if self._state == "new":
            await self._open()
        while True:
            message = self._take()
            if message is not None:
                return message
            if self._error is not None:
                error = self._error
                await self.stop()
                raise error
            if self._state != "open" and not self._flushing:
                await self.stop()
                raise ClosedError("the reader is closed")
            if not await self._puller.changed.wait_until(deadline):
                message = self._take()
                if message is not None:
                    return message
                raise RequestTimeoutError("no message", timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """As `next`, for ``async for``. Not a generator: one that was cancelled would end and lose the rest."""
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _take(self) -> Message | None:
        if self._puller.leftover and self._state == "open":
            return Message(self._puller.leftover.popleft(), self._puller.channel)
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._buffer.taken(frame_size(frame))
        if self._state == "open":
            self._ask()
        return Message(frame, self._puller.channel)

    # --- running ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        async with self._starting:
            if self._state != "new":
                return
            if self._puller.is_closed:
                raise ClosedError("the subscription is closed")
            connection = self._context.connection
            await self._inbox.open()
            if self._state != "new":  # stopped meanwhile
                await self._inbox.close()
                return
            self._state = "open"
            self._timer = Timer(self._tick)
            connection.add_listener(self._lifecycle)
            connection.denied.append(self._denied)
            self._context.open.add(self)
            self._puller.readers.add(self)
            if connection.is_connected:
                self._connected()

    def _connected(self) -> None:
        self._buffer.connected()
        if self._monitor is not None:
            self._monitor.heard(self._context.connection.now())
        self._ask()

    def _denied(self, error: PermissionDeniedError) -> None:
        if self._error is None and self._puller.is_denied(error, self._inbox.inbox):
            self._error = error
            self._puller.changed.set()

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            if self._inbox.inbox is not None:
                self._connected()
        elif what is Lifecycle.DISCONNECTED:
            self._buffer.disconnected()
            self._context.tasks.start(self._change_inbox(), "change the inbox of a reader")
        else:
            self._state = "closed"
        self._arm()
        self._puller.changed.set()

    async def _change_inbox(self) -> None:
        """The server keeps pulls as long as somebody listens: those from before would come on top of the new ones."""
        async with self._starting:
            if self._state != "open":
                return
            await self._inbox.close()
            await self._inbox.open()
            if self._state != "open":  # ended meanwhile
                await self._inbox.close()
            elif self._context.connection.is_connected:
                self._connected()

    def _ask(self) -> None:
        wanted = self._buffer.ask() if self._error is None else None
        if wanted is not None:
            pull = msgspec.structs.replace(self._pull, batch=wanted[0], max_bytes=wanted[1])
            subject = self._context.api.consumer_next(self._puller.stream, self._puller.consumer)
            try:
                self._context.connection.send(subject, encode_pull(pull), reply=self._inbox.next_reply())
            except JetStreamError:
                self._buffer.disconnected()  # it will be asked for at the reconnect
        self._arm()

    def _receive(self, frames: list[Frame]) -> None:
        if self._state == "closed":
            return
        now = self._context.connection.now()
        if self._monitor is not None:
            self._monitor.heard(now)
        for frame in frames:
            if is_data(frame):
                self._refused_since, self._told_stuck = None, False
                self._buffer.delivered(frame_size(frame))
                self._frames.append(frame)
            elif is_control(frame):
                status, fields = parse_headers(frame[2])
                if status is not None:
                    self._on_status(status, fields, now)
            else:
                self._puller.foreign_message(frame)
        if self._state == "open":
            self._ask()
        self._puller.changed.set()

    def _on_status(self, status: Status, fields: Headers, now: float) -> None:
        verdict = classify(status.code, status.description)
        if verdict.ending is None:
            return
        stuck = self._buffer.ended(verdict.meaning, verdict.ending, fields, now)
        if verdict.error is None:
            self._refused_since = None
            if stuck and not self._told_stuck:
                self._told_stuck = True
                self._puller.emit(self._raised(PullLimitError(status.code, status.description)))
            return
        error = verdict.error(status.code, status.description, verdict.retryable)
        if verdict.meaning is not Meaning.RETRY:
            self._error = error
        elif isinstance(error, NoRespondersError):
            if self._refused_since is None:
                self._refused_since = now
                self._puller.emit(self._raised(error))
            elif now - self._refused_since >= _BELIEVED_AFTER:
                self._refused_since = now
                self._context.tasks.start(self._is_it_gone(), "is the consumer there")
        else:
            self._puller.emit(self._raised(error))

    async def _is_it_gone(self) -> None:
        """Nobody answers pulls: that the consumer does not exist is an end, anything else is not."""
        puller = self._puller
        if await is_gone(self._context, puller.stream, puller.consumer):
            puller.emit(ConsumerDeleted(stream=puller.stream, consumer=puller.consumer))
            self._error = ConsumerDeletedError(409, "Consumer Deleted")
            puller.changed.set()

    def _raised(self, error: JetStreamError) -> Event:
        return ErrorRaised(stream=self._puller.stream, consumer=self._puller.consumer, error=error)

    def _tick(self) -> None:
        now = self._context.connection.now()
        self._buffer.tick(now)
        monitor = self._monitor
        if monitor is not None and self._buffer.online and now >= monitor.deadline:
            if not self._buffer.owed:
                monitor.heard(now)  # nothing was asked for, so silence is right
            elif (silent := monitor.tick(now)) is not None:
                stream, consumer = self._puller.stream, self._puller.consumer
                self._puller.emit(HeartbeatMissed(stream=stream, consumer=consumer, silent_for=silent))
                self._buffer.silent()
                self._context.tasks.start(self._is_it_gone(), "is the consumer there")
        if self._state == "open":
            self._ask()

    def _arm(self) -> None:
        if self._timer is None:
            return
        moments = [self._buffer.paused_until] if self._buffer.paused_until is not None else []
        if self._monitor is not None and self._buffer.online:
            moments.append(self._monitor.deadline)
        self._timer.set(min(moments) if moments and self._state == "open" and self._error is None else None)

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End now. What waits untaken goes back to the server at once (nak). Calling it again does nothing."""
        if self._state == "closed" and self._inbox.inbox is None:
            return
        self._state = "closed"
        if self._timer is not None:
            self._timer.cancel()
        connection = self._context.connection
        connection.remove_listener(self._lifecycle)
        if self._denied in connection.denied:
            connection.denied.remove(self._denied)
        self._context.open.discard(self)
        self._puller.readers.discard(self)
        self._puller.changed.set()
        await self._inbox.close()
        frames, self._frames = self._frames, deque()
        if self._puller.silent:
            # Without acks the server would not deliver them again: the next reader of this handle gets them.
            self._puller.leftover.extend(frames)
            return
        await nak_all(connection, frames)

    async def drain(self) -> None:
        """Ask for nothing more; what has arrived can still be taken, then the iteration ends."""
        if self._state == "open":
            self._state = "draining"
            if self._timer is not None:
                self._timer.cancel()
            self._flushing = True
            try:
                await self._inbox.drain(self._context.timeout)
            finally:
                self._flushing = False
                self._puller.changed.set()
        elif self._state == "new":
            self._state = "closed"

    abandon = stop  # when the connection is closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
