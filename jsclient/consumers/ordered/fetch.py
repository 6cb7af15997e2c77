"""One fetch from an ordered consumer: a request, and another one after each reset. Source: ADR-37 §Fetch, ADR-17."""

from __future__ import annotations

from ...errors import ClosedError, DisconnectedError, JetStreamError
from ...protocol.consumers.fetch import MARGIN, Pull, not_answered
from ...protocol.consumers.status import Ending
from ..pull.fetch import Collection, Fetch
from .puller import OrderedPuller

__all__ = ["OrderedFetch"]

_ANSWERED = frozenset({Ending.NO_MESSAGES, Ending.EXPIRED, Ending.MAX_BYTES})


class OrderedFetch(Fetch[OrderedPuller]):
    """Collects messages from the puller's buffer, with at most one request in flight.

    Endings that concern only a consumer (silence, deletion, a lost connection) do not end it: the puller replaces the
    consumer meanwhile, and the rest is requested from the new one.
    """

    def __init__(self, puller: OrderedPuller, wanted: Collection) -> None:
        super().__init__(puller, wanted, [puller.front])
        self._tracker = puller.tracker
        self._tracker.rest()

    def _outcome(self, now: float) -> tuple[Ending, JetStreamError | None] | None:
        puller, tracker, request = self._puller, self._tracker, self._tracker.request
        if puller.error is not None:
            return Ending.DELETED, puller.error
        if puller.nothing_comes:
            return Ending.CLOSED, ClosedError("the ordered consumer was closed while a fetch was in flight")
        if request is not None and request.ending is not None:
            if request.ending in _ANSWERED and request.settled:
                return request.ending, None
            if request.ending is Ending.REFUSED:
                return request.ending, request.error
            tracker.request = request = None  # request the rest as soon as possible
        awaits_status = request is not None and tracker.cursor.wants is None
        if now < self._wanted.deadline + (MARGIN if awaits_status else 0.0):
            return None
        if request is not None and awaits_status:
            # The status is overdue too. Its loss costs the consumer, or the messages owed would be awaited forever.
            puller.carry_out(tracker.tick_request(max(now, request.over_at)))
        if not puller.context.connection.is_connected:
            return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
        if puller.remaker.trouble is not None:  # the consumer is lost, and no new one could be created
            return Ending.DELETED, puller.remaker.trouble
        if self._wanted.pull.no_wait:
            return Ending.SILENT, not_answered(self._wanted.expires)
        return Ending.EXPIRED, None

    def _may_ask(self, now: float) -> bool:
        tracker, wanted = self._tracker, self._wanted
        tracker.buffer.tick(now)
        if tracker.request is not None or tracker.cursor.wants is not None:
            return False
        may = tracker.buffer.online and tracker.buffer.paused_until is None
        return may and (wanted.pull.no_wait or now < wanted.deadline)

    def _owed(self) -> int:
        """Messages owed to an earlier call that did not wait for them are still to come."""
        return 0 if self._wanted.pull.no_wait else self._tracker.buffer.owed

    async def _ask(self, pull: Pull, now: float) -> None:
        self._puller.carry_out([self._tracker.fetch(pull, now)])

    def _wake_at(self, now: float) -> float:
        tracker = self._tracker
        moments = [self._wanted.deadline]
        if tracker.request is not None and tracker.cursor.wants is None:
            deadline = tracker.request.deadline
            moments = [self._wanted.deadline + MARGIN, *([] if deadline is None else [deadline])]
        if tracker.buffer.paused_until is not None:
            moments.append(tracker.buffer.paused_until)
        return min(moments)

    def _tick(self, now: float) -> None:
        self._puller.carry_out(self._tracker.tick_request(now))

    def _release(self) -> None:
        self._tracker.request = None  # messages still owed go to the next call
