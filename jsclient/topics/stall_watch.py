"""The watch of a reader of a topic from which nothing comes: it looks at the stream, and costs nothing per record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._runtime.context import Context
from ..errors import ClosedError, DisconnectedError, JetStreamError, PermissionDeniedError
from ..protocol.consumers.stall import Look, StallTracker

__all__ = ["StreamStallWatch"]


class StreamStallWatch:
    """Polls a reader while its program waits for a record, and looks at the stream when none comes.

    A reader of a topic replaces what pushes to it, and reads the history without pushes: only the stream can make it
    stand still.

    Args:
        context: The context of the handle; its ``stall_after`` None: never look.
        stream: The name of the stream.
        progress: A number that changes when a record arrives.
        waits: Whether the program waits for a record now.
        failure: Why the history could not be read for a while; None: it can be.
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
        self._looking = False
        self._asks = 0

    def asked(self) -> None:
        """The program begins to wait for a record."""
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
            elif not self._looking:
                self._looking = True
                self._context.tasks.start(self._look(tracker, step), "look why nothing comes")
        if not tracker.is_idle(now):
            self._handle = asyncio.get_running_loop().call_later(tracker.interval, self._poll)

    async def _look(self, tracker: StallTracker, look: Look) -> None:
        """Ask for the state of the stream, and tell what it shows, unless a record comes meanwhile."""
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
            self._looking = False
        if self._tracker is None or self._progress() != progress:
            return
        now = self._context.connection.now()
        for event in tracker.looked(
            now, findings, stood_for=look.stood_for, stream=self._stream, consumer=""
        ):
            self._context.emit(event)
        if denied:
            self.close()  # each look would be another denial
