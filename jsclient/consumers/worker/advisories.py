"""Stores dead letters for messages whose last delivery was not acked. The server announces them with advisories.

An advisory can be forged by any user who may publish to its subject, so each advisory is compared with the state of the
consumer. If they contradict each other, the advisory isn't rejected immediately, because an old leader may answer
during an election. The contradiction must last for `CERTAIN` seconds. Other advisories are handled in the meantime.

If the state of the consumer can't be requested, the dead letter is stored and marked as unverified. An unnecessary dead
letter is only a copy, while a missing one is a loss. No message is terminated because of an advisory.

A flood of advisories does little harm. Each message is decided only once, even if many advisories mention it.
Advisories about messages that this worker has acked or dead-lettered are ignored. The event `AdvisoryRefused` counts
ignored advisories.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..._runtime.calls import consumer_info
from ..._runtime.connection.connection import Inbox
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
from ...protocol.consumers.worker.seq_set import SeqSet
from ...protocol.consumers.worker.work_rules import default_delay
from ...protocol.events import AdvisoryRefused
from ...protocol.models.back_doubt import CERTAIN
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.message import StoredMessage, read_stored_message
from ...protocol.wire.frames import Frame
from .settling import DeadLetters, dead_lettered
from .sources import Source

__all__ = ["Advisories"]

_MOST: Final = 250_000  # maximum number of messages that wait for a decision
_TRIES: Final = 5  # number of attempts to request the state of the consumer
_TURN: Final = 100  # number of decisions after which other tasks may run
_NAMED: Final = 100  # number of messages that `close` reports one by one
_AGAIN: Final = 2.0  # seconds between two checks of a contradiction
# Minimum interval of requests for the state, in seconds, so that many advisories share an answer.
_APART: Final = 0.25
_DENIED: Final = 60.0  # how long to wait before a denied request for the state is repeated, in seconds


@dataclass(slots=True, eq=False)
class _Case:
    """An advisory that awaits a decision, which needs a state of the consumer requested after ``since``."""

    advisory: Exhausted
    since: float
    contradicted: float | None = None  # time at which the state has first contradicted the advisory
    reason: str = ""
    failures: int = 0
    not_stored: int = 0  # number of failed attempts to store the dead letter


class Advisories:
    """Handles the advisories about messages of one consumer that have reached ``max_deliver``.

    Args:
        is_held: Returns True if the worker still has the message with a given sequence, and will settle it.
        done: Sequences of the messages that the worker has acked or dead-lettered.
    """

    def __init__(
        self,
        source: Source,
        letters: DeadLetters,
        config: ConsumerConfig,
        *,
        is_held: Callable[[int], bool],
        done: SeqSet,
    ) -> None:
        self._source = source
        self._context = source.context
        self._now = source.context.connection.now
        self._letters = letters
        self._is_held = is_held
        self._done = done
        self._waiting: set[int] = set()  # sequences of the messages that wait for a decision
        self._configs = [config]  # every configuration of the consumer since the start of the worker
        self._inbox: Inbox | None = None
        self._new: deque[_Case] = deque()
        self._later: deque[_Case] = deque()  # cases to be decided later, ordered by ``since``
        self._current: _Case | None = None
        self._arrived = Signal()
        self._reading: asyncio.Task[None] | None = None
        self._requested_at = float("-inf")
        self._answer: ConsumerInfo | JetStreamError | None = None
        self._refused = self._lost = 0
        self._created: datetime | None = None

    async def listen(self) -> None:
        """Subscribe to the advisories, which the server sends when a message can't be redelivered any more."""
        subject = exhausted_subject(self._source.stream, self._source.consumer)
        queue = f"dead-letters.{self._source.consumer}"  # only one worker of the consumer needs each advisory
        self._inbox = await self._context.connection.subscribe(subject, self._receive_advisories, queue)
        self._reading = self._context.tasks.start(self._read_cases(), "find unacknowledged messages")

    def _receive_advisories(self, frames: list[Frame]) -> None:
        now = self._now()
        # Reject as many advisories as possible without a request, so that a flood of advisories does little harm.
        for frame in frames:
            advisory = read_exhausted(frame[3])
            if advisory is None:
                self._refuse_advisory(0, "it is malformed")
            elif (advisory.stream, advisory.consumer) != (self._source.stream, self._source.consumer):
                self._refuse_advisory(
                    advisory.seq, f"it names consumer {advisory.consumer!r} of stream {advisory.stream!r}"
                )
            elif advisory.seq in self._done:
                self._refuse_advisory(
                    advisory.seq, "this worker has acked the message or stored its dead letter"
                )
            elif advisory.seq in self._waiting:
                self._refuse_advisory(advisory.seq, "the message is being decided already")
            elif not self._is_held(advisory.seq):
                self._keep(_Case(advisory, now))
        self._arrived.set()

    def _keep(self, case: _Case) -> None:
        if len(self._waiting) >= _MOST:
            if not self._later:
                self._lose(case)
                return
            oldest = self._later.popleft()
            self._waiting.discard(oldest.advisory.seq)
            self._refuse_advisory(
                oldest.advisory.seq, f"too many advisories: {oldest.reason or 'no decision yet'}"
            )
        self._waiting.add(case.advisory.seq)
        self._new.append(case)

    def _lose(self, case: _Case) -> None:
        """Drop an advisory because too many are waiting.

        A drop is reported if the number of drops is a power of two.
        """
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:
            text = f"{_MOST} messages that ran out of deliveries wait already ({self._lost} passed over)"
            self._letters.failed(case.advisory.seq, ConfigError(text))

    async def _read_cases(self) -> None:
        decided = 0
        while True:
            if self._later and self._later[0].since <= self._now():
                case = self._later.popleft()
            elif self._new:
                case = self._new.popleft()
            else:
                await self._arrived.wait_until(self._later[0].since if self._later else None)
                continue
            self._current = case
            if await self._decide(case):
                self._waiting.discard(case.advisory.seq)
            self._current = None
            decided += 1
            if decided % _TURN == 0:
                await asyncio.sleep(0)  # most decisions don't wait, so other tasks would be blocked for long

    async def _decide(self, case: _Case) -> bool:
        """Decide about an advisory. Returns False if that isn't possible yet."""
        if case.advisory.seq in self._done:
            return True  # the message has been acked since the advisory arrived
        answer = await self._state(case)
        if isinstance(answer, ConsumerInfo):
            unverified = ""
            reason = refutation(case.advisory, answer, self._limits)
            if reason:
                return self._contradicted(case, reason)
        elif isinstance(answer, PermissionDeniedError) or case.failures >= _TRIES:
            unverified = f"{type(answer).__name__}: {answer}"
        else:
            case.failures += 1
            self._put_off(case, default_delay(case.failures))
            return False
        return await self._rescue(case, unverified)

    async def _state(self, case: _Case) -> ConsumerInfo | JetStreamError:
        """Return the state of the consumer, or the error if it can't be requested.

        An earlier answer is enough to confirm the advisory. Only a recent answer can contradict it.
        """
        answer = self._answer
        if answer is not None and self._requested_at >= case.since:
            return answer
        if isinstance(answer, ConsumerInfo) and not refutation(case.advisory, answer, self._limits):
            return answer
        if isinstance(answer, PermissionDeniedError) and self._now() < self._requested_at + _DENIED:
            return answer
        await asyncio.sleep(max(0.0, self._requested_at + _APART - self._now()))
        self._requested_at = self._now()
        try:
            info = await consumer_info(self._context, self._source.stream, self._source.consumer)
        except JetStreamError as error:
            self._answer = error
            return error
        self._answer = info
        if self._created is not None and info.created != self._created:
            # The consumer was recreated and delivers all messages again. Forget which ones are done. Otherwise, this
            # worker would refuse the advisories about messages that have failed again.
            self._done.clear()
        self._created = info.created
        if info.config not in self._configs:
            self._configs.append(info.config)
        return info

    @property
    def _limits(self) -> set[int]:
        return {config.max_deliver for config in self._configs if config.max_deliver is not None}

    def _contradicted(self, case: _Case, reason: str) -> bool:
        """Refuse an advisory and return True if the contradiction has lasted long enough. Otherwise check it later."""
        now = self._now()
        if case.contradicted is None:
            case.contradicted = now
        if now - case.contradicted >= CERTAIN:
            self._refuse_advisory(case.advisory.seq, reason)
            return True
        case.reason = reason
        self._put_off(case, _AGAIN)
        return False

    def _put_off(self, case: _Case, delay: float) -> None:
        case.since = self._now() + delay
        at = len(self._later)
        while at and self._later[at - 1].since > case.since:
            at -= 1
        self._later.insert(at, case)

    def _refuse_advisory(self, seq: int, reason: str) -> None:
        self._refused += 1
        # Report the first refusal, and then each time their number has doubled. A flood of forged advisories must not
        # become a flood of events.
        if self._refused & (self._refused - 1) == 0:
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

    async def _rescue(self, case: _Case, unverified: str) -> bool:
        """Store the dead letter of a message. Returns False if that has failed and must be repeated."""
        seq, deliveries = case.advisory.seq, case.advisory.deliveries
        try:
            stored = await self._stored(seq)
            if not unverified and not passes(stored.subject, self._configs):
                # The filters may have changed after the delivery. The server applies max_deliver to the message anyway,
                # so the advisory may still be genuine.
                unverified = f"the consumer's filters exclude {stored.subject!r}"
            error = _exhausted(deliveries, unverified)
            origin = Origin(
                self._source.stream, self._source.consumer, stored.subject, seq, stored.time_ns, deliveries
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
            # The message was acked late, or was removed by a limit of the stream. In both cases, there is nothing left
            # to store.
            return True
        except JetStreamError as failure:
            case.not_stored += 1
            case.reason = f"{type(failure).__name__}: {failure}"
            if case.not_stored & (case.not_stored - 1) == 0:
                self._letters.failed(seq, failure)
            self._put_off(case, default_delay(case.not_stored))
            return False
        self._done.add(seq)
        self._source.emit(dead_lettered(origin, error, deliveries, where))
        return True

    async def _stored(self, seq: int) -> StoredMessage:
        subject = self._context.api.stream_msg_get(self._source.stream)
        return read_stored_message(await self._context.call(subject, {"seq": seq}, what="get message"))

    async def close(self) -> None:
        """Unsubscribe. The event `DeadLetterFailed` reports the messages that still wait for a decision."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        # Report at most `_NAMED` messages one by one, and the remaining ones in a single event.
        cases = [*([self._current] if self._current else ()), *self._new, *self._later]
        for case in cases[:_NAMED]:
            why = f": {case.reason}" if case.reason else ""
            self._letters.failed(
                case.advisory.seq, ConfigError(f"the worker stopped before it was stored{why}")
            )
        if more := cases[_NAMED:]:
            text = f"the worker stopped before it and {len(more) - 1} more were stored"
            self._letters.failed(more[0].advisory.seq, ConfigError(text))
        self._new.clear()
        self._later.clear()
        self._waiting.clear()
        self._current = None
        if self._inbox is not None:
            await self._context.connection.unsubscribe(self._inbox)


def _exhausted(deliveries: int, unverified: str) -> DeliveriesExhaustedError:
    text = f"delivered {deliveries} times and never settled"
    return DeliveriesExhaustedError(f"{text} (unverified: {unverified})" if unverified else text)
