"""Watches topic readers that get no records, by checking the stream. A record that arrives causes no work here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._runtime.context import Context
from ..errors import ClosedError, DisconnectedError, JetStreamError, PermissionDeniedError
from ..protocol.consumers.stall import Look, StallTracker

__all__ = ["StreamStallWatch"]


class StreamStallWatch:
    """Polls a reader while its application waits for a record, and checks the stream when none arrives.

    A reader of a topic replaces a feed that fails, and without pushes it reads the history. So only the stream can
    stall it.

    Args:
        context: The context of the handle. If its ``stall_after`` is None, the stream is never checked.
        stream: The name of the stream.
        progress: Returns a number that changes when a record arrives.
        waits: Returns whether the application waits for a record now.
        failure: Returns why the history could not be read for a while, or None if it can be read.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        *,
        progress: Callable[[], int],
        waits: Callable[[], bool],
        failure: Callable[[], JetStreamError | None] = lambda: None,
    ) -> None:
        self._context = context
        self._stream = stream
        self._progress = progress
        self._waits = waits
        self._failure = failure
        self._tracker = None if context.stall_after is None else StallTracker(context.stall_after)
        self._handle: asyncio.TimerHandle | None = None
        self._diagnosing = False
        self._asks = 0

    def asked(self) -> None:
        """Record that the application starts to wait for a message."""
        self._asks += 1
        if self._handle is None and self._tracker is not None:
            self._poll()

    def close(self) -> None:
        """Stop watching."""
        self._tracker = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _poll(self) -> None:
        tracker, connection = self._tracker, self._context.connection
        self._handle = None
        if tracker is None or connection.is_closed:
            return
        now, connected = connection.now(), connection.is_connected
        # While disconnected, don't count the reader as waiting. The disconnection is reported by its own event.
        for step in tracker.poll(
            now,
            self._progress(),
            self._asks if connected else 0,
            asking=connected and self._waits(),
            stream=self._stream,
            consumer="",
        ):
            if not isinstance(step, Look):
                self._context.emit(step)
            elif not self._diagnosing:
                self._diagnosing = True
                self._context.tasks.start(self._diagnose(tracker, step), "look why nothing comes")
        if not tracker.is_idle(now):
            self._handle = asyncio.get_running_loop().call_later(tracker.interval, self._poll)

    async def _diagnose(self, tracker: StallTracker, request: Look) -> None:
        """Request the state of the stream, and report its findings, unless a record arrives in the meantime."""
        from ..consumers.look import stream_info
        from ..protocol.streams.diagnosis import cannot_look_at_stream, diagnose_stream

        progress, denied = self._progress(), False
        try:
            info = await stream_info(self._context, self._stream)
            findings = diagnose_stream(info, after=tracker.after, failure=self._failure())
        except (ClosedError, DisconnectedError):
            return
        except JetStreamError as error:
            denied = isinstance(error, PermissionDeniedError)
            findings = [cannot_look_at_stream(error, self._stream)]
        finally:
            self._diagnosing = False
        if self._tracker is None or self._progress() != progress:
            return
        now = self._context.connection.now()
        for event in tracker.looked(
            now, findings, stood_for=request.stood_for, stream=self._stream, consumer=""
        ):
            self._context.emit(event)
        if denied:
            self.close()  # every later request would be denied as well
