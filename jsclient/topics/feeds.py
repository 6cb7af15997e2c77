"""Feeds push the records of a stream to a reader: from a consumer, or from a republished subject.

Pushes are only hints. `ConsumerFeed` needs a consumer on the server for each filter, and shows gaps at once.
`RepublishFeed` needs no state on the server, because the stream republishes each record with the sequence of its
predecessor in the same subject. Any client that may publish to the republished subject can forge a record, so a reader
of one subject checks each jump of the sequence in the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._runtime.connection.connection import Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.retry import Retry
from .._runtime.tasks import Timer
from ..errors import JetStreamError
from ..protocol.consumers.monitors import HeartbeatMonitor
from ..protocol.consumers.push import foreign_message
from ..protocol.events import HeartbeatMissed
from ..protocol.topics.record_codec import RepublishedRecords
from ..protocol.wire.frames import Frame
from .log import Feed, Log, Receive

__all__ = ["FeedSubscription", "Foreign", "RepublishFeed"]


@dataclass(slots=True, eq=False)
class FeedSubscription:
    """Opens a feed, and retries transient errors. A feed is never closed while it is being opened.

    Attributes:
        log, feed, id: The log, the feed to open, and the id of the feed.
        receive: Receives the records.
        opened: Called once the feed is open.
        lost: Called when a push may have been missed. If it was missed while the feed was opened, the call directly
            follows the call of ``opened``.
        refused: Called with a permanent error, after which the feed is not open.
    """

    log: Log
    feed: Feed
    id: str
    receive: Receive
    opened: Callable[[], None]
    lost: Callable[[], None]
    refused: Callable[[JetStreamError], None]
    _is_opening: bool = False
    _is_open: bool = False
    _missed: bool = False
    _ended: bool = False
    _task: asyncio.Task[Any] | None = None

    def begin_feed(self) -> None:
        """Open the feed in the background."""
        self._task = self.log.tasks.start(self._run_feed(), "feed")

    async def end_feed(self) -> None:
        """Close the feed. If it is being opened, close it afterwards, in the background."""
        self._ended = True
        if self._is_open:
            self._is_open = False
            await self.feed.close(self.id)
        elif not self._is_opening and self._task is not None:
            self._task.cancel()

    async def _run_feed(self) -> None:
        tries = Retry()
        while not self._ended:
            try:
                await self.log.wait_ready()
                self._is_opening, self._missed = True, False
                try:
                    await self.feed.open(self.id, self.receive, self._may_miss)
                finally:
                    self._is_opening = False
            except JetStreamError as error:
                if self._ended or await tries.again(error):
                    continue
                self.refused(error)
                return
            # `end_feed` may have been called while the feed was being opened, and found no open feed. Close the feed
            # here.
            if self._ended:
                await self.feed.close(self.id)
                return
            self._is_open = True
            self.opened()
            if self._missed:
                self.lost()
            return

    def _may_miss(self) -> None:
        if self._is_open:
            self.lost()
        else:
            self._missed = True


class Foreign:
    """Counts frames that are neither data nor a status. Reports the first frame, then each time the count doubles."""

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._count = 0

    def dropped(self, frame: Frame) -> None:
        self._count += 1
        for report in foreign_message(self._stream, "", frame, self._count):
            self._context.emit(report.event)


class _Probe:
    """Checks that the server is alive while no record is pushed, with one round trip per heartbeat interval."""

    def __init__(self, context: Context, stream: str, heartbeat: float) -> None:
        self._context = context
        self._stream = stream
        self._monitor = HeartbeatMonitor(heartbeat)
        self._timer = Timer(self._check_push)
        self._now = asyncio.get_running_loop().time
        self._due = 0.0  # the time at which `_check_push` was to be called
        self._asking: asyncio.Task[None] | None = None
        self._ended = False

    def begin_probe(self) -> None:
        self.heard()
        self._due = self._monitor.last_activity + self._monitor.interval
        self._timer.set(self._due)

    def end_probe(self) -> None:
        self._ended = True
        self._timer.cancel()

    def heard(self) -> None:
        self._monitor.heard(self._now())

    def _check_push(self) -> None:
        connection, monitor = self._context.connection, self._monitor
        now = self._now()
        if not connection.is_connected:
            monitor.heard(now)  # not a missed heartbeat: the lost connection is reported by its own event
        elif now - self._due >= monitor.interval / 2:
            monitor.heard(now)  # not a missed heartbeat: the event loop was blocked and sent no request
        elif (silent := monitor.check_silence(now)) is not None:
            self._context.emit(HeartbeatMissed(stream=self._stream, silent_for=silent))
        is_quiet = now - monitor.last_activity >= monitor.interval / 2
        if is_quiet and connection.is_connected and (self._asking is None or self._asking.done()):
            self._asking = self._context.tasks.start(self._ping_server(), "look for a sign of life")
        self._due = max(min(now + monitor.interval, monitor.deadline), now + monitor.grace)
        self._timer.set(self._due)

    async def _ping_server(self) -> None:
        with suppress(JetStreamError):
            await self._context.connection.ping(self._monitor.allowed)
            if not self._ended:
                self.heard()


class RepublishFeed(Feed):
    """Subscriptions to the subject to which a stream republishes. They need no state on the server."""

    def __init__(self, context: Context, stream: str, subject: str, *, by_subject: bool) -> None:
        self.by_subject = by_subject
        self._context = context
        self._stream = stream
        self._subject = subject
        self._reading = RepublishedRecords(stream, jumps=by_subject)
        self._dropped = Foreign(context, stream)
        self._open: dict[str, tuple[Inbox, Callable[[Lifecycle], None], _Probe]] = {}

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        connection, self._reading.origin = self._context.connection, self.origin
        probe = _Probe(self._context, self._stream, self.heartbeat)
        inbox = await connection.subscribe(self._subject, partial(self._arrived, receive, probe))

        def listen(what: Lifecycle) -> None:
            if what is Lifecycle.CONNECTED:
                lost()

        connection.add_listener(listen)
        self._open[id] = inbox, listen, probe
        try:
            # Wait for the PONG. If the server denies the subscription, its error arrives before the PONG.
            await connection.ping(self._context.timeout)
            if inbox.denied is not None:
                raise inbox.denied
        except BaseException:
            await asyncio.shield(self.close(id))
            raise
        if id in self._open:
            probe.begin_probe()

    async def close(self, id: str) -> None:
        if id in self._open:
            inbox, listen, probe = self._open.pop(id)
            probe.end_probe()
            self._context.connection.remove_listener(listen)
            await self._context.connection.unsubscribe(inbox)

    def _arrived(self, receive: Receive, probe: _Probe, frames: list[Frame]) -> None:
        probe.heard()
        if records := self._reading.read_frames(frames, self._dropped.dropped):
            receive(records)
