"""The watch of a reader from which nothing comes: one timer per handle, and no work per message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

from .._runtime.context import Context
from ..errors import JetStreamError
from ..protocol.consumers.stall import HandlerTimes, Look, StallTracker, handler_hangs
from ..protocol.events import ConsumerResumed, Event

__all__ = ["Handling", "StallWatch", "Watched"]


class Handling(NamedTuple):
    """What a worker or a callback does now."""

    running: list[tuple[Hashable, float]]  # what is handled, and since when
    waiting: int  # messages that wait for a handler
    held: int | None  # messages that are not settled; None: unknown
    ended: int  # handlers that have ended so far
    ack_wait: float | None = None  # seconds; None: handlers that hang are told by a look at the consumer
    keeps_alive: bool = False
    subject_of: Callable[[Hashable], str] | None = None  # the message that a handler has


class Watched(Protocol):
    """The reader that is watched."""

    @property
    def stream(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    @property
    def arrived(self) -> int:
        """Messages that have arrived so far."""

    @property
    def is_awaited(self) -> bool:
        """Whether its program waits for a message now."""

    def emit(self, event: Event) -> None: ...


class StallWatch:
    """Polls a reader while its program asks for messages, and looks at the consumer when none comes.

    Attributes:
        asks: Times that the program has asked for a message.
        trouble: Of a reader that replaces its consumer by itself: why it could not. Such a reader does not stand still
            only because its consumer is gone, or delivers elsewhere. None: it keeps its consumer.
        workers: What each worker of the reader does.
        subject: The subject that a push subscription listens on.
    """

    def __init__(
        self,
        context: Context,
        reader: Watched,
        *,
        pins: Callable[[], frozenset[str]] = frozenset,
        trouble: Callable[[], JetStreamError | None] | None = None,
    ) -> None:
        after = context.stall_after
        self._context = context
        self._reader = reader
        self._pins = pins
        self._tracker = None if after is None else StallTracker(after, context.looks)
        self._times = HandlerTimes()
        self._handle: asyncio.TimerHandle | None = None
        self._looking = False
        self._fits = (
            False  # the filter can match, and the stream is no copy: the stream is not asked for again
        )
        self.asks: int = 0
        self.subject: str = ""
        self.trouble: Callable[[], JetStreamError | None] | None = trouble
        self.workers: list[Callable[[], Handling]] = []

    def asked(self) -> None:
        """The program begins to wait for a message."""
        self.asks += 1
        if self._handle is None and self._tracker is not None:
            self._poll()

    def add(self, worker: Callable[[], Handling]) -> None:
        """A worker begins; its messages may have arrived, so that it waits for none."""
        self.workers.append(worker)
        self.asked()

    def forget(self, worker: Callable[[], Handling]) -> None:
        """A worker has ended."""
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
        """What grows as long as it goes on: redeliveries of what handlers hold are none."""
        return self._handling().ended if self.workers else self._reader.arrived

    def _hanging(self, now: float, work: Handling) -> list[Event]:
        """Handlers that hang, also while others go on. Costs no request: a worker knows its ack_wait."""
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

    @staticmethod
    def _message(work: Handling) -> str:
        """The message of the handler that has run longest."""
        if not work.running or work.subject_of is None:
            return ""
        ident, _ = min(work.running, key=lambda one: one[1])
        return work.subject_of(ident)

    def _handling(self) -> Handling:
        """What all workers do."""
        all_of_them = [worker() for worker in self.workers]
        if len(all_of_them) == 1:
            return all_of_them[0]
        held = [one.held for one in all_of_them if one.held is not None]
        return Handling(
            [item for one in all_of_them for item in one.running],
            sum(one.waiting for one in all_of_them),
            sum(held) if held else None,
            sum(one.ended for one in all_of_them),
        )

    async def _look(self, tracker: StallTracker, look: Look, running: float, work: Handling) -> None:
        """Ask the server, and tell what it shows, unless it goes on meanwhile."""
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
            subject=self.subject if self.trouble is None else "",
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
        if self.trouble is not None and seen.info is None and not seen.denied:
            error = self.trouble()
            if error is None:
                return  # the next consumer is being created
            seen = Seen([cannot_replace(error, reader.stream)])
        self._fits = self._fits or seen.fits
        findings = seen.findings
        if work.ack_wait is not None:  # those that hang are told without a look
            findings = [one for one in findings if one.code != "handler"]
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
            self.close()  # each look would be another denial
