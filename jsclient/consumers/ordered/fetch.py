"""One fetch from an ordered consumer: a request, and another one when the consumer was made anew.

Source: ADR-37 §Fetch, ADR-17.
"""

from __future__ import annotations

from ...errors import ClosedError, DisconnectedError, JetStreamError
from ...protocol.consumers.fetch import MARGIN, Pull, not_answered
from ...protocol.consumers.status import Ending
from ...protocol.wire.frames import Frame, frame_size
from ..message import Message
from ..pull.fetch import Batch
from .puller import OrderedPuller

__all__ = ["ordered_fetch"]

_ANSWERED = frozenset({Ending.NO_MESSAGES, Ending.EXPIRED, Ending.MAX_BYTES})


async def ordered_fetch(puller: OrderedPuller, pull: Pull, expires: float) -> Batch:
    """What `OrderedConsumer.fetch` does, once its arguments are checked."""
    fetch = _Fetch(puller, pull, expires)
    try:
        ending, error = await fetch.run()
    except BaseException:
        puller.front.extendleft(reversed(fetch.frames))
        raise
    finally:
        puller.tracker.request = None  # what is owed still counts
    if error is not None and not fetch.frames:
        raise error
    return Batch([Message(frame, puller.channel) for frame in fetch.frames], ending, error)


class _Fetch:
    """What it has, what it waits for."""

    def __init__(self, puller: OrderedPuller, pull: Pull, expires: float) -> None:
        self.frames: list[Frame] = []
        self._puller = puller
        self._pull = pull  # all that is wanted
        self._expires = expires
        self._deadline = puller.context.connection.now() + expires
        self._size = 0

    async def run(self) -> tuple[Ending, JetStreamError | None]:
        puller, connection, tracker = self._puller, self._puller.context.connection, self._puller.tracker
        tracker.rest()
        while True:
            if not self._collect():
                return Ending.MAX_BYTES, None
            if len(self.frames) >= self._pull.batch:
                return Ending.FULL, None
            now = connection.now()
            if (outcome := self._outcome(now)) is not None:
                return outcome
            tracker.buffer.tick(now)
            if self._may_ask and (missing := self._missing) > 0:
                self._ask(missing, now)
            if not await puller.changed.wait_until(self._wake_at()):
                puller.carry_out(tracker.tick_request(connection.now()))

    def _collect(self) -> bool:
        """Take what waits. False: the next message would pass ``max_bytes``."""
        front, limit, frames = self._puller.front, self._pull.max_bytes, self.frames
        if limit is None and len(frames) + len(front) <= self._pull.batch:
            frames.extend(front)
            front.clear()
        while front and len(frames) < self._pull.batch:
            size = frame_size(front[0])
            if limit is not None and self._size + size > limit:
                return False
            self._size += size
            frames.append(front.popleft())
        return True

    def _outcome(self, now: float) -> tuple[Ending, JetStreamError | None] | None:
        """How it ends, if it does now."""
        puller, request = self._puller, self._puller.tracker.request
        if puller.error is not None:
            return Ending.DELETED, puller.error
        if puller.nothing_comes:
            return Ending.CLOSED, ClosedError("the ordered consumer was closed while a fetch was under way")
        if request is not None and request.ending is not None:
            if request.ending in _ANSWERED and request.settled:
                return request.ending, None
            if request.ending is Ending.REFUSED:
                return request.ending, request.error
            self._puller.tracker.request = request = None  # another one for the rest, as soon as there may be
        waits_for_word = request is not None and puller.tracker.cursor.wants is None
        if now >= self._deadline + (MARGIN if waits_for_word else 0.0):
            return self._overdue()
        return None

    def _overdue(self) -> tuple[Ending, JetStreamError | None]:
        puller = self._puller
        if not puller.context.connection.is_connected:
            return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
        if puller.remaker.trouble is not None:
            return Ending.DELETED, puller.remaker.trouble  # the consumer is gone, and no other could be made
        if self._pull.no_wait:
            return Ending.SILENT, not_answered(self._expires)
        return Ending.EXPIRED, None

    @property
    def _may_ask(self) -> bool:
        tracker = self._puller.tracker
        if tracker.request is not None or tracker.cursor.wants is not None:
            return False
        return tracker.buffer.online and tracker.buffer.paused_until is None

    @property
    def _missing(self) -> int:
        """How many to ask for. What an earlier call asked for, and did not wait for, is still to come."""
        owed = 0 if self._pull.no_wait else self._puller.tracker.buffer.owed
        return self._pull.batch - len(self.frames) - owed

    def _ask(self, missing: int, now: float) -> None:
        pull = self._pull
        room = None if pull.max_bytes is None else pull.max_bytes - self._size
        left = self._deadline - now
        if pull.no_wait:
            asked = Pull(missing, None, room, no_wait=True)
        elif left > 0:
            beat = pull.idle_heartbeat
            beat = None if beat is None or beat > left / 2 else beat
            asked = Pull(missing, max(left, 0.001), room, idle_heartbeat=beat)
        else:
            return
        self._puller.carry_out([self._puller.tracker.fetch(asked, now)])

    def _wake_at(self) -> float:
        tracker = self._puller.tracker
        moments = [self._deadline]
        if tracker.request is not None and tracker.cursor.wants is None:
            deadline = tracker.request.deadline
            moments = [self._deadline + MARGIN, *([] if deadline is None else [deadline])]
        if tracker.buffer.paused_until is not None:
            moments.append(tracker.buffer.paused_until)
        return min(moments)
