"""Checks the consumer of a reader that receives no messages.

There is one timer per handle. Nothing is done per message, so a busy reader isn't slowed down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

from .._runtime.context import Context
from ..errors import JetStreamError
from ..protocol.consumers.stall import (
    HandlerTimes,
    Look,
    StallTracker,
    handler_hangs,
    nothing_to_deliver,
)
from ..protocol.events import ConsumerResumed, Event

__all__ = ["Handling", "StallWatch", "Watched"]

_log = logging.getLogger("jsclient.consumer")


class Handling(NamedTuple):
    """A snapshot of the activity of a worker or callback."""

    # Id of each message being handled, and the time when its handler started.
    running: list[tuple[Hashable, float]]
    waiting: int  # number of messages that have arrived and have no handler yet
    held: int | None  # number of messages without an ack, or None if it is unknown
    ended: int  # number of handlers that have ended since the start
    ack_wait: float | None = None  # in seconds, or None if it is unknown without a request to the server
    keeps_alive: bool = False  # True if the worker reports progress to the server before ack_wait is over
    subject_of: Callable[[Hashable], str] | None = None  # describes a message, given its id


class Watched(Protocol):
    """The interface that a reader provides to its `StallWatch`."""

    @property
    def stream(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    @property
    def arrived(self) -> int:
        """Total number of messages received so far."""

    @property
    def is_awaited(self) -> bool:
        """True while the application is waiting for a message."""

    def emit(self, event: Event) -> None: ...


class StallWatch:
    """Polls a reader while the application waits for a message, and checks the consumer if none arrives for a while.

    Attributes:
        asks: Number of times that the application has started to wait for a message.
        reset_error: A function that returns the error of the last attempt to replace the consumer of an ordered reader.
            None for other readers. An ordered reader isn't stalled merely because its consumer was deleted.
        workers: Functions that return the activity of each worker of the reader.
        subject: NATS subject of a push subscription.
    """

    def __init__(
        self,
        context: Context,
        reader: Watched,
        *,
        pins: Callable[[], frozenset[str]] = frozenset,
        reset_error: Callable[[], JetStreamError | None] | None = None,
    ) -> None:
        after = context.stall_after
        self._context = context
        self._reader = reader
        self._pins = pins
        self._tracker = None if after is None else StallTracker(after, context.looks)
        self._times = HandlerTimes()
        self._handle: asyncio.TimerHandle | None = None
        self._looking = False
        self._fits = False  # True once the info of the stream isn't needed for further checks
        self._said_idle = False
        self.asks: int = 0
        self.subject: str = ""
        self.reset_error: Callable[[], JetStreamError | None] | None = reset_error
        self.workers: list[Callable[[], Handling]] = []

    def asked(self) -> None:
        """Start polling, if necessary. Readers call this method before they wait for a message."""
        self.asks += 1
        if self._handle is None and self._tracker is not None:
            self._poll()

    def add_worker(self, worker: Callable[[], Handling]) -> None:
        """Register a function that returns the activity of a worker."""
        self.workers.append(worker)
        self.asked()

    def forget_worker(self, worker: Callable[[], Handling]) -> None:
        """Unregister the function of a worker that has ended."""
        if worker in self.workers:
            self.workers.remove(worker)

    def close(self) -> None:
        """Stop watching."""
        self._tracker = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _poll(self) -> None:
        tracker, reader, connection = self._tracker, self._reader, self._context.connection
        self._handle = None
        if tracker is None or connection.is_closed:
            return
        now, work = connection.now(), self._handling()
        running = self._times.seen(now, work.running)
        for event in self._hanging(now, work):
            reader.emit(event)
        # Don't count the time without a connection. The loss already has an event, and a stall would report it again.
        arrived = self._progress()
        asking = connection.is_connected and (reader.is_awaited or running > 0)
        asks = self.asks if connection.is_connected else 0
        for step in tracker.poll(
            now, arrived, asks, asking=asking, stream=reader.stream, consumer=reader.consumer
        ):
            if not isinstance(step, Look):
                reader.emit(step)
            elif not self._looking:
                self._looking = True
                self._context.tasks.start(self._look(tracker, step, running, work), "look why nothing comes")
        if work.running or not tracker.is_idle(now):
            self._handle = asyncio.get_running_loop().call_later(tracker.interval, self._poll)

    def _progress(self) -> int:
        """Return a number that increases whenever the reader makes progress.

        A worker makes progress when a handler ends. Arrivals don't count, because they may be redeliveries of the
        messages that its handlers are stuck on.
        """
        return self._handling().ended if self.workers else self._reader.arrived

    def _hanging(self, now: float, work: Handling) -> list[Event]:
        """Return events for handlers that have run longer than ``ack_wait``, even if other handlers make progress.

        A worker knows its ``ack_wait``, so this check needs no request to the server.
        """
        events: list[Event] = []
        if work.ack_wait is None:
            return events
        stream, consumer = self._reader.stream, self._reader.consumer
        late = self._times.hanging(now, work.ack_wait)
        if late:
            (ident, ran), others = late[0], len(late) - 1
            message = "a message" if work.subject_of is None else work.subject_of(ident)
            events.append(
                handler_hangs(
                    stream, consumer, message, ran, work.ack_wait, others=others, keeps_alive=work.keeps_alive
                )
            )
        if (stood_for := self._times.all_ended(now)) is not None:
            events.append(
                ConsumerResumed(stream=stream, consumer=consumer, reason="handler", stood_for=stood_for)
            )
        return events

    def _say_idle(self, text: str) -> None:
        """Log that there are no messages to deliver. It is logged only once, because most readers are often idle."""
        if text and not self._said_idle:
            self._said_idle = True
            _log.info("%s", text)

    @staticmethod
    def _message(work: Handling) -> str:
        """Describe the message whose handler has been running longest."""
        if not work.running or work.subject_of is None:
            return ""
        ident, _ = min(work.running, key=lambda item: item[1])
        return work.subject_of(ident)

    def _handling(self) -> Handling:
        """Return the combined activity of all workers."""
        work = [worker() for worker in self.workers]
        if len(work) == 1:
            return work[0]
        held = [each.held for each in work if each.held is not None]
        return Handling(
            [item for each in work for item in each.running],
            sum(each.waiting for each in work),
            sum(held) if held else None,
            sum(each.ended for each in work),
        )

    async def _look(self, tracker: StallTracker, look: Look, running: float, work: Handling) -> None:
        """Check the consumer on the server, and report the result unless the reader has made progress meanwhile."""
        from ..protocol.consumers.diagnosis import Local, cannot_replace
        from .look import Seen, look_at_consumer

        reader = self._reader
        progress = self._progress()
        local = Local(
            after=tracker.after,
            asks=reader.is_awaited or running == 0,
            received=reader.arrived,
            held=work.held,
            running=running,
            message=self._message(work),
            longest=self._times.longest,
            waiting=work.waiting,
            subject=self.subject if self.reset_error is None else "",
            pins=self._pins(),
            before=tracker.before,
        )
        try:
            seen = await look_at_consumer(
                self._context, reader.stream, reader.consumer, local, with_stream=not self._fits
            )
        finally:
            self._looking = False
        if seen is None or self._tracker is None or self._progress() != progress:
            return
        if self.reset_error is not None and seen.info is None and not seen.denied:
            error = self.reset_error()
            if error is None:
                return  # the next consumer is being created, so there is no problem to report
            seen = Seen([cannot_replace(error, reader.stream)])
        self._fits = self._fits or seen.fits
        findings = seen.findings
        if not findings and seen.info is not None and not self.workers:
            self._say_idle(nothing_to_deliver(seen.info, look.stood_for))
        if work.ack_wait is not None:  # `_hanging` has reported these handlers already
            findings = [finding for finding in findings if finding.code != "handler"]
        for event in tracker.looked(
            self._context.connection.now(),
            findings,
            stood_for=look.stood_for,
            stream=reader.stream,
            consumer=reader.consumer,
            info=seen.info,
            due=None if work.ack_wait is not None else seen.due,
        ):
            reader.emit(event)
        if seen.denied:
            self.close()  # every further check would fail with the same error
