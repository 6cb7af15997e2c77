"""Stores dead letters, and finds messages whose final delivery was never acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..._runtime.context import Context
from ..._runtime.nats.connection import Inbox
from ..._runtime.publish import publish
from ..._runtime.tasks import Signal
from ...errors import ConfigError, JetStreamError, MessageNotFoundError, NoMatchingStreamError
from ...protocol.consumers.worker.dead_letter import (
    Origin,
    dead_letter_headers,
    dead_letter_id,
    dead_letter_subject,
    exhausted_subject,
    read_exhausted,
)
from ...protocol.consumers.worker.work_rules import default_delay
from ...protocol.consumers.worker.worker import DeliveriesExhaustedError
from ...protocol.events import DeadLettered, DeadLetterFailed, Event
from ...protocol.models.consumer import ConsumerConfig
from ...protocol.models.message import read_stored_message
from ...protocol.wire.frames import Frame
from ...protocol.wire.headers import Headers
from ...protocol.wire.names import subjects_overlap

__all__ = ["DeadLetters"]

_MOST = 10_000  # advisories that may be queued
_TRIES = 5  # attempts to store the message of an advisory


class DeadLetters:
    """The dead letters of one consumer."""

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        pattern: str,
        *,
        emit: Callable[[Event], None],
        in_hand: Callable[[int], bool],
    ) -> None:
        self._context = context
        self._stream, self._consumer = stream, consumer
        self.pattern = pattern
        self._emit = emit
        self._in_hand = in_hand
        self._inbox: Inbox | None = None
        self._exhausted: deque[tuple[int, int]] = deque()  # stream sequences and deliveries, from advisories
        self._arrived = Signal()
        self._reading: asyncio.Task[None] | None = None
        self.found: int = 0  # stored because of an advisory

    async def check(self, config: ConsumerConfig) -> None:
        """Refuse a subject that no stream holds, or that this consumer would receive itself.

        Raises:
            NoMatchingStreamError, ConfigError: The subject is refused. It is accepted if the server cannot be asked.
        """
        try:
            answer = await self._context.call(
                self._context.api.stream_names(), {"subject": self.pattern}, what="stream names"
            )
        except JetStreamError:
            return  # no permission to ask
        names = answer.get("streams") or []
        if not names:
            raise NoMatchingStreamError(self.pattern)
        filters = config.filters or [">"]
        if self._stream in names and any(subjects_overlap(one, self.pattern) for one in filters):
            raise ConfigError(
                f"dead_letter is {self.pattern!r}: the consumer would receive its own dead letters"
            )

    async def store(
        self, origin: Origin, data: bytes, headers: Headers, error: BaseException, *, timeout: float
    ) -> str:
        """Publish a dead letter, once; returns its subject. Raises as a publish does."""
        subject = dead_letter_subject(self.pattern, origin.subject)
        await publish(
            self._context,
            subject,
            data,
            headers=dead_letter_headers(headers, origin, error),
            msg_id=dead_letter_id(origin),
            timeout=timeout,
        )
        return subject

    async def listen(self) -> None:
        """Subscribe to the advisories about unacknowledged final deliveries, sent when a client reads next."""
        subject = exhausted_subject(self._stream, self._consumer)
        queue = f"dead-letters.{self._consumer}"  # one of the workers is enough
        self._inbox = await self._context.connection.subscribe(subject, self._receive, queue)
        self._reading = self._context.tasks.start(self._read(), "find unacknowledged messages")

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            exhausted = read_exhausted(frame[3])
            if exhausted is not None and not self._in_hand(exhausted[0]):
                if len(self._exhausted) >= _MOST:
                    self._failed(exhausted[0], ConfigError("too many messages ran out of deliveries at once"))
                    continue
                self._exhausted.append(exhausted)
        self._arrived.set()

    async def _read(self) -> None:
        while True:
            while not self._exhausted:
                await self._arrived.wait()
            seq, deliveries = self._exhausted[0]
            await self._rescue(seq, deliveries)
            self._exhausted.popleft()

    async def _rescue(self, seq: int, deliveries: int) -> None:
        error = DeliveriesExhaustedError(f"delivered {deliveries} times and never settled")
        for attempt in range(1, _TRIES + 1):
            try:
                origin, dead_letter = await self._copy(seq, deliveries, error)
            except MessageNotFoundError:
                return  # acked late, or removed by the stream's limits
            except JetStreamError as failure:
                self._failed(seq, failure)
                await asyncio.sleep(default_delay(attempt))
            else:
                self.found += 1
                self._emit(
                    DeadLettered(
                        stream=self._stream,
                        consumer=self._consumer,
                        error=error,
                        subject=origin.subject,
                        stream_seq=seq,
                        attempt=deliveries,
                        dead_letter=dead_letter,
                    )
                )
                return

    async def _copy(self, seq: int, deliveries: int, error: BaseException) -> tuple[Origin, str]:
        api = self._context.api
        answer = await self._context.call(api.stream_msg_get(self._stream), {"seq": seq}, what="get message")
        stored = read_stored_message(answer)
        origin = Origin(self._stream, self._consumer, stored.subject, seq, stored.time_ns, deliveries)
        timeout = self._context.timeout
        return origin, await self.store(origin, stored.data, stored.headers, error, timeout=timeout)

    def _failed(self, seq: int, error: JetStreamError) -> None:
        self._emit(
            DeadLetterFailed(
                stream=self._stream,
                consumer=self._consumer,
                error=error,
                stream_seq=seq,
                dead_letter=self.pattern,
            )
        )

    async def close(self) -> None:
        """Unsubscribe. Messages of advisories that are not stored yet are reported as `DeadLetterFailed`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        for seq, _ in self._exhausted:
            self._failed(seq, ConfigError("the worker stopped before it was stored"))
        self._exhausted.clear()
        if self._inbox is not None:
            await self._context.connection.unsubscribe(self._inbox)
