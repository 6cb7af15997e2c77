"""Finds the messages whose last delivery was not acked, through the server's advisories, and dead-letters them.

Any user who may publish to the advisory's subject can forge one, so each is compared with the consumer's state. The
contradiction of one answer is not final: during an election an old leader may answer. It must last for `_CERTAIN`
seconds; meanwhile other advisories are handled. If the state cannot be had, the dead letter is written and marked:
one too many is a copy, one too few a loss. Nothing is terminated because of an advisory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._runtime.calls import consumer_info
from ..._runtime.nats.connection import Inbox
from ..._runtime.tasks import Signal
from ...errors import ConfigError, JetStreamError, MessageNotFoundError, PermissionDeniedError
from ...protocol.consumers.worker.dead_letter import (
    Exhausted,
    Origin,
    exhausted_subject,
    passes,
    read_exhausted,
    refutation,
)
from ...protocol.consumers.worker.reasons import DeliveriesExhaustedError
from ...protocol.consumers.worker.work_rules import default_delay
from ...protocol.events import AdvisoryRefused
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.message import StoredMessage, read_stored_message
from ...protocol.wire.frames import Frame
from .settling import DeadLetters, dead_lettered
from .sources import Source

__all__ = ["Advisories"]

_MOST: Final = 10_000  # advisories that may be queued
_TRIES: Final = 5  # attempts to ask about the consumer, and to store the message
_CERTAIN: Final = 10.0  # seconds for which the consumer's state must contradict an advisory
_AGAIN: Final = 2.0  # seconds between its comparisons
_APART: Final = 0.25  # seconds between questions about the consumer: those that arrive meanwhile share one
_DENIED: Final = 60.0  # seconds for which the question is not repeated after it was denied


@dataclass(slots=True, eq=False)
class _Case:
    """An advisory to be decided. ``since``: its decision needs an answer to a question sent after this moment."""

    advisory: Exhausted
    since: float
    contradicted: float | None = None  # since when
    reason: str = ""
    failures: int = 0


class Advisories:
    """The advisories about one consumer. ``in_hand``: whether the worker holds the message of a sequence."""

    def __init__(
        self, source: Source, letters: DeadLetters, config: ConsumerConfig, *, in_hand: Callable[[int], bool]
    ) -> None:
        self._source = source
        self._context = source.context
        self._now = source.context.connection.now
        self._letters = letters
        self._in_hand = in_hand
        self._configs = [config]  # the different ones that the consumer is known to have had
        self._inbox: Inbox | None = None
        self._new: deque[_Case] = deque()
        self._later: deque[_Case] = deque()  # to be decided again, in the order of ``since``
        self._current: _Case | None = None
        self._arrived = Signal()
        self._reading: asyncio.Task[None] | None = None
        self._asked = float("-inf")
        self._answer: ConsumerInfo | JetStreamError | None = None
        self._refused = 0

    async def listen(self) -> None:
        """Subscribe to the advisories, which the server sends when a client next reads."""
        subject = exhausted_subject(self._source.stream, self._source.consumer)
        queue = f"dead-letters.{self._source.consumer}"  # one of the workers is enough
        self._inbox = await self._context.connection.subscribe(subject, self._receive, queue)
        self._reading = self._context.tasks.start(self._read(), "find unacknowledged messages")

    def _receive(self, frames: list[Frame]) -> None:
        now = self._now()
        for frame in frames:
            advisory = read_exhausted(frame[3])
            if advisory is None:
                self._refuse(0, "it is malformed")
            elif (advisory.stream, advisory.consumer) != (self._source.stream, self._source.consumer):
                self._refuse(
                    advisory.seq, f"it names consumer {advisory.consumer!r} of stream {advisory.stream!r}"
                )
            elif not self._in_hand(advisory.seq):
                self._keep(_Case(advisory, now))
        self._arrived.set()

    def _keep(self, case: _Case) -> None:
        if len(self._new) + len(self._later) >= _MOST:
            if not self._later:
                self._letters.failed(
                    case.advisory.seq, ConfigError("too many messages ran out of deliveries at once")
                )
                return
            doubtful = self._later.popleft()
            self._letters.failed(
                doubtful.advisory.seq, ConfigError(f"too many advisories: {doubtful.reason}")
            )
        self._new.append(case)

    async def _read(self) -> None:
        while True:
            if self._later and self._later[0].since <= self._now():
                self._current = self._later.popleft()
            elif self._new:
                self._current = self._new.popleft()
            else:
                await self._arrived.wait_until(self._later[0].since if self._later else None)
                continue
            await self._decide(self._current)
            self._current = None

    async def _decide(self, case: _Case) -> None:
        answer = await self._state(case)
        if isinstance(answer, ConsumerInfo):
            unverified = ""
            if self._contradicted(case, refutation(case.advisory, answer, self._limits)):
                return
        elif isinstance(answer, PermissionDeniedError) or case.failures >= _TRIES:
            unverified = f"{type(answer).__name__}: {answer}"
        else:
            case.failures += 1
            self._put_off(case, default_delay(case.failures))
            return
        await self._rescue(case, unverified)

    async def _state(self, case: _Case) -> ConsumerInfo | JetStreamError:
        """The consumer's state, or why it cannot be had. An older answer is enough if it confirms the advisory."""
        answer = self._answer
        if answer is not None and self._asked >= case.since:
            return answer
        if isinstance(answer, ConsumerInfo) and not refutation(case.advisory, answer, self._limits):
            return answer
        if isinstance(answer, PermissionDeniedError) and self._now() < self._asked + _DENIED:
            return answer
        await asyncio.sleep(max(0.0, self._asked + _APART - self._now()))
        self._asked = self._now()
        try:
            info = await consumer_info(self._context, self._source.stream, self._source.consumer)
        except JetStreamError as error:
            self._answer = error
            return error
        self._answer = info
        if info.config not in self._configs:
            self._configs.append(info.config)
        return info

    @property
    def _limits(self) -> set[int]:
        return {config.max_deliver for config in self._configs if config.max_deliver is not None}

    def _contradicted(self, case: _Case, reason: str) -> bool:
        """Whether there is a ``reason`` to refuse the advisory: then it is refused, or decided again later."""
        if not reason:
            return False
        now = self._now()
        if case.contradicted is None:
            case.contradicted = now
        if now - case.contradicted >= _CERTAIN:
            self._refuse(case.advisory.seq, reason)
        else:
            case.reason = reason
            self._put_off(case, _AGAIN)
        return True

    def _put_off(self, case: _Case, delay: float) -> None:
        case.since = self._now() + delay
        at = len(self._later)
        while at and self._later[at - 1].since > case.since:
            at -= 1
        self._later.insert(at, case)

    def _refuse(self, seq: int, reason: str) -> None:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the first one and each doubling
            source = self._source
            self._source.emit(
                AdvisoryRefused(
                    stream=source.stream,
                    consumer=source.consumer,
                    reason=reason,
                    stream_seq=seq,
                    count=self._refused,
                )
            )

    async def _rescue(self, case: _Case, unverified: str) -> None:
        seq, deliveries = case.advisory.seq, case.advisory.deliveries
        for attempt in range(1, _TRIES + 1):
            try:
                stored = await self._stored(seq)
                if not unverified and not passes(stored.subject, self._configs):
                    # They may have been changed after its delivery: the server applies max_deliver to it all the same.
                    unverified = f"the consumer's filters exclude {stored.subject!r}"
                error = _exhausted(deliveries, unverified)
                origin = Origin(
                    self._source.stream,
                    self._source.consumer,
                    stored.subject,
                    seq,
                    stored.time_ns,
                    deliveries,
                )
                where = await self._letters.store(
                    origin,
                    stored.data,
                    stored.headers,
                    error,
                    timeout=self._context.timeout,
                    unverified=unverified,
                )
            except MessageNotFoundError:
                return  # acked late, or removed by the stream's limits
            except JetStreamError as failure:
                self._letters.failed(seq, failure)
                await asyncio.sleep(default_delay(attempt))
            else:
                self._source.emit(dead_lettered(origin, error, deliveries, where))
                return

    async def _stored(self, seq: int) -> StoredMessage:
        subject = self._context.api.stream_msg_get(self._source.stream)
        return read_stored_message(await self._context.call(subject, {"seq": seq}, what="get message"))

    async def close(self) -> None:
        """Unsubscribe. Messages of advisories that are not decided yet are reported as `DeadLetterFailed`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        for case in (*([self._current] if self._current else ()), *self._new, *self._later):
            why = f": {case.reason}" if case.reason else ""
            self._letters.failed(
                case.advisory.seq, ConfigError(f"the worker stopped before it was stored{why}")
            )
        self._new.clear()
        self._later.clear()
        self._current = None
        if self._inbox is not None:
            await self._context.connection.unsubscribe(self._inbox)


def _exhausted(deliveries: int, unverified: str) -> DeliveriesExhaustedError:
    text = f"delivered {deliveries} times and never settled"
    return DeliveriesExhaustedError(f"{text} (unverified: {unverified})" if unverified else text)
