"""One fetch from an ordered consumer: a request, and another one after each reset. Source: ADR-37 §Fetch, ADR-17."""

from __future__ import annotations

from ...errors import ClosedError, DisconnectedError, JetStreamError
from ...protocol.consumers.fetch import MARGIN, not_answered
from ...protocol.consumers.status import Ending
from ..pull.fetch import Batch, Collection
from .puller import OrderedPuller

__all__ = ["ordered_fetch"]

_ANSWERED = frozenset({Ending.NO_MESSAGES, Ending.EXPIRED, Ending.MAX_BYTES})


async def ordered_fetch(puller: OrderedPuller, wanted: Collection) -> Batch:
    """See `OrderedConsumer.fetch`."""
    try:
        ending, error = await _OrderedFetch(puller, wanted).run()
    except BaseException:
        puller.front.extendleft(reversed(wanted.frames))
        raise
    finally:
        puller.tracker.request = None  # messages still owed go to the next call
    return wanted.batch(puller.channel, ending, error)


class _OrderedFetch:
    """Collects messages from the puller's buffer, with at most one request in flight.

    Endings that concern only a consumer (silence, deletion, a lost connection) do not end it: the puller replaces the
    consumer meanwhile, and the rest is requested from the new one.
    """

    def __init__(self, puller: OrderedPuller, wanted: Collection) -> None:
        self._puller = puller
        self._wanted = wanted

    async def run(self) -> tuple[Ending, JetStreamError | None]:
        puller, wanted, tracker = self._puller, self._wanted, self._puller.tracker
        connection = puller.context.connection
        tracker.rest()
        while True:
            if puller.front and not wanted.collect(puller.front):
                return Ending.MAX_BYTES, None
            if len(wanted.frames) >= wanted.pull.batch:
                return Ending.FULL, None
            now = connection.now()
            if (outcome := self._outcome(now)) is not None:
                return outcome
            tracker.buffer.tick(now)
            if (
                self._may_ask
                and (missing := self._missing) > 0
                and (wanted.pull.no_wait or now < wanted.deadline)
            ):
                puller.carry_out([tracker.fetch(wanted.request(missing, now), now)])
            if not await puller.changed.wait_until(self._wake_at()):
                puller.carry_out(tracker.tick_request(connection.now()))

    def _outcome(self, now: float) -> tuple[Ending, JetStreamError | None] | None:
        """How it ends, if it does now."""
        puller, request = self._puller, self._puller.tracker.request
        if puller.error is not None:
            return Ending.DELETED, puller.error
        if puller.nothing_comes:
            return Ending.CLOSED, ClosedError("the ordered consumer was closed while a fetch was in flight")
        if request is not None and request.ending is not None:
            if request.ending in _ANSWERED and request.settled:
                return request.ending, None
            if request.ending is Ending.REFUSED:
                return request.ending, request.error
            self._puller.tracker.request = request = None  # request the rest as soon as possible
        awaits_status = request is not None and puller.tracker.cursor.wants is None
        if now >= self._wanted.deadline + (MARGIN if awaits_status else 0.0):
            if request is not None and awaits_status:
                # The status is overdue too. Its loss costs the consumer, or the messages owed would be awaited forever.
                puller.carry_out(puller.tracker.tick_request(max(now, request.over_at)))
            return self._overdue()
        return None

    def _overdue(self) -> tuple[Ending, JetStreamError | None]:
        puller = self._puller
        if not puller.context.connection.is_connected:
            return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
        if puller.remaker.trouble is not None:
            return (
                Ending.DELETED,
                puller.remaker.trouble,
            )  # the consumer is lost, and no new one could be created
        if self._wanted.pull.no_wait:
            return Ending.SILENT, not_answered(self._wanted.expires)
        return Ending.EXPIRED, None

    @property
    def _may_ask(self) -> bool:
        tracker = self._puller.tracker
        if tracker.request is not None or tracker.cursor.wants is not None:
            return False
        return tracker.buffer.online and tracker.buffer.paused_until is None

    @property
    def _missing(self) -> int:
        """Messages to request. Those owed to an earlier call that did not wait for them are still to come."""
        wanted = self._wanted
        owed = 0 if wanted.pull.no_wait else self._puller.tracker.buffer.owed
        return wanted.pull.batch - len(wanted.frames) - owed

    def _wake_at(self) -> float:
        tracker = self._puller.tracker
        moments = [self._wanted.deadline]
        if tracker.request is not None and tracker.cursor.wants is None:
            deadline = tracker.request.deadline
            moments = [self._wanted.deadline + MARGIN, *([] if deadline is None else [deadline])]
        if tracker.buffer.paused_until is not None:
            moments.append(tracker.buffer.paused_until)
        return min(moments)
