"""Performs the I/O of a fast ingest. It writes messages, many at a time, and receives the server's responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._runtime.connection.connection import Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.tasks import Signal, Timer
from ..errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from ..protocol.publishing.fast_ingest import IngestTracker
from ..protocol.wire.frames import Frame

__all__ = ["IngestChannel"]

PING_AFTER = 1.0
"""If no response arrives for this many seconds, a ping is sent."""

KEEP_ALIVE = 3.0
"""If no message is sent for this many seconds, a ping is. The server drops an ingest after 10 idle seconds."""

CHUNK = 256 * 1024
"""Number of bytes after which the write buffer is checked."""


class IngestChannel:
    """Sends messages in order, and passes the server's responses to a tracker.

    Messages written while the client is disconnected are sent after the reconnect. A ping then reveals whether messages
    were lost with the connection.
    """

    def __init__(self, context: Context, tracker: IngestTracker, timeout: float) -> None:
        self.tracker = tracker
        self.unsent: int = 0  # number of bytes written since the write buffer was last checked
        self.pongs: int = 0  # number of answers to pings
        self.is_open: bool = False
        self._context, self._connection = context, context.connection
        self.max_payload: int = self._connection.max_payload  # maximum size of headers and payload, in bytes
        self.timeout = timeout
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._changed = Signal()
        self._timer = Timer(self._keep_alive)
        self._frames: list[Frame] = []
        self._scheduled = False
        self._subject = b""  # subject of the first message, to which pings and the end are sent too
        self._ping_due = False
        self._seen = 0  # number of messages that were sent before the last run of `_keep_alive`

    async def open_inbox(self) -> None:
        """Subscribe to the responses, unless the channel is already subscribed or the ingest has ended."""
        async with self._opening:
            if self._inbox is None and not self.tracker.ended and self.tracker.failure is None:
                self._inbox = await self._connection.subscribe(
                    f"{self.tracker.inbox}.>", self._receive_answers
                )
                self._context.attach(self, self._resume_ingest, self._denied)
                self._timer.set(self._connection.now() + KEEP_ALIVE)
                self.is_open = True

    async def close(self) -> None:
        """Send the messages written so far, and unsubscribe from the responses."""
        self.flush()
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        self.is_open = False
        self._timer.cancel()
        self._context.detach(self, self._resume_ingest, self._denied)
        self._changed.set()
        await self._connection.unsubscribe(inbox)

    async def abandon(self) -> None:
        """End the ingest because the connection is closing, without waiting for the final acknowledgement."""
        self.flush()
        if not self.tracker.ended:
            self.tracker.fail_ingest(ClosedError("the connection was closed"))
            self.send_end()
        await self.close()

    def write(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Send a message at the end of this iteration of the event loop, together with other messages."""
        self.unsent += len(payload) + len(header)
        self._frames.append((subject, reply, header, payload))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        if not self._subject:
            self._subject = subject

    def write_many(self, frames: list[Frame], size: int) -> None:
        """Send several messages, with ``size`` bytes in total. See `write`."""
        self.unsent += size
        self._frames += frames
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        if not self._subject:
            self._subject = frames[0][0]

    def flush(self) -> None:
        """Send the messages that were written, unless the client is disconnected."""
        self._scheduled = False
        if self._frames and self._connection.is_connected:
            frames, self._frames = self._frames, []
            self._connection.send_frames(frames)

    def ping(self) -> None:
        """Ask the server how many messages it has stored, unless a ping is already in flight."""
        if self.tracker.no_stream is not None:
            return  # the server would start the ingest with this ping, instead of the first message
        if not self._ping_due and self._subject and self._connection.is_connected:
            self._ping_due = True
            self.write(self._subject, self.tracker.ping_reply(), b"", b"")

    def send_end(self) -> None:
        """Send the message that ends the ingest."""
        self.tracker.close()
        if self.tracker.failure is not None:
            self._frames.clear()
        if self._subject and self._connection.is_connected:
            self.write(self._subject, self.tracker.end_reply(), b"", b"")
            self.flush()

    def _receive_answers(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame[0].endswith(b".4.$FI"):
                self._ping_due = False
                # Don't count a response without a payload. It only means that no stream has responded.
                self.pongs += bool(frame[3])
            try:
                event = self.tracker.receive_answer(frame)
            except ProtocolError as error:
                self._context.report(error)
                continue
            if event is not None:
                self._context.emit(event)
        self.max_payload = self._connection.max_payload
        self._changed.set()

    def _resume_ingest(self, what: Lifecycle) -> None:
        self._ping_due, self.max_payload = False, self._connection.max_payload
        if what is Lifecycle.CLOSED:
            self.tracker.fail_ingest(ClosedError("the connection is closed"))
        elif what is Lifecycle.CONNECTED:
            self.flush()
            if self.tracker.closing:
                self.send_end()
            elif self.tracker.sent:
                self.ping()
        self._changed.set()

    def _denied(self, error: PermissionDeniedError) -> None:
        tracker = self.tracker
        refused = error.operation == "publish" and error.subject.encode() == self._subject
        if not tracker.accepted and (refused or error.subject.startswith(tracker.inbox)):
            tracker.fail_ingest(error)
            tracker.ended, tracker.complete = True, refused
            self._changed.set()

    def _keep_alive(self) -> None:
        if self.is_open:
            if self.tracker.sent == self._seen:
                self._ping_due = False  # don't wait for the previous ping, which may be lost
                self.ping()
            self._seen = self.tracker.sent
            self._timer.set(self._connection.now() + KEEP_ALIVE)

    async def room(self) -> None:
        """Wait until another message may be sent, or until the ingest has failed."""
        tracker, connection = self.tracker, self._connection
        await self.open_inbox()
        while tracker.failure is None and not tracker.closing:
            # Both the number of messages in flight and the size of the write buffer are limited.
            if tracker.sent >= tracker.limit:
                await self.until(lambda: tracker.sent < tracker.limit, self.ping)
            elif self.unsent <= CHUNK:
                return
            elif connection.is_connected:
                self.flush()
                try:
                    await connection.wait_for_space()
                except DisconnectedError:
                    continue
                self.unsent = 0
            else:
                await self.until(lambda: connection.is_connected, self.ping)

    async def until(self, done: Callable[[], bool], again: Callable[[], None]) -> None:
        """Wait until ``done`` returns True, or until the ingest has failed.

        ``again`` is called every second, to repeat a request that may have been lost. If there is no progress within
        the timeout, the ingest fails.
        """
        tracker, connection = self.tracker, self._connection
        now = connection.now()
        acked, deadline, repeat_at = tracker.acked, now + self.timeout, now + PING_AFTER
        while not (done() or tracker.failure is not None or tracker.ended):
            self.flush()
            await self._changed.wait_until(min(deadline, repeat_at))
            now = connection.now()
            if tracker.acked != acked:
                acked, deadline = tracker.acked, now + self.timeout
            elif now >= deadline:
                tracker.fail_ingest(self._silence())
            if now >= repeat_at:
                repeat_at, self._ping_due = now + PING_AFTER, False
                again()

    def _silence(self) -> JetStreamError:
        if not self._connection.is_connected:
            return self._connection.away()
        return RequestTimeoutError("fast ingest: no answer from the server", self.timeout)

    async def final(self) -> None:
        """Wait for the final acknowledgement, even if the ingest has failed. Give up after the timeout."""
        tracker, connection = self.tracker, self._connection
        deadline = connection.now() + self.timeout
        while not tracker.ended:
            now = connection.now()
            if now >= deadline or connection.is_closed:
                return
            if not await self._changed.wait_until(min(deadline, now + PING_AFTER)):
                self.send_end()
