"""Storing dead letters, and finding the messages whose last delivery nobody survived."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..._runtime.context import Context
from ..._runtime.nats.connection import Inbox
from ..._runtime.publish import publish
from ..._runtime.wakeup import Signal
from ...errors import ConfigError, JetStreamError, MessageNotFoundError, NoMatchingStreamError
from ...protocol.consumers.worker.dead_letter import (
    Origin,
    dead_letter_headers,
    dead_letter_id,
    dead_letter_subject,
    exhausted_subject,
    read_exhausted,
)
from ...protocol.consumers.worker.work import DeliveriesExhaustedError
from ...protocol.consumers.worker.work_rules import default_delay
from ...protocol.events import DeadLettered, DeadLetterFailed, Event
from ...protocol.models.consumer import ConsumerConfig
from ...protocol.models.message import read_stored_message
from ...protocol.wire.frames import Frame
from ...protocol.wire.headers import Headers
from ...protocol.wire.names import subjects_overlap

__all__ = ["DeadLetters"]

_MOST = 10_000  # advisories that may wait
_TRIES = 5  # to store what an advisory told


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
        self._told: deque[tuple[int, int]] = deque()
        self._arrived = Signal()
        self._reading: asyncio.Task[None] | None = None
        self.found = 0  # stored because of an advisory

    async def check(self, config: ConsumerConfig) -> None:
        """Refuse a subject that no stream holds, or that would bring the dead letters back to this consumer.

        Raises:
            NoMatchingStreamError, ConfigError: So it is. Where the server cannot be asked it is let pass.
        """
        try:
            answer = await self._context.call(
                self._context.api.stream_names(), {"subject": self.pattern}, what="stream names"
            )
        except JetStreamError:
            return  # this user may not ask
        names = answer.get("streams") or []
        if not names:
            raise NoMatchingStreamError(self.pattern)
        filters = config.filters or [">"]
        if self._stream in names and any(subjects_overlap(one, self.pattern) for one in filters):
            raise ConfigError(f"dead_letter is {self.pattern!r}: the consumer would get its own dead letters")

    async def store(
        self, origin: Origin, data: bytes, headers: Headers, error: BaseException, *, timeout: float
    ) -> str:
        """Publish a dead letter, once; the subject it is under. Raises as a publish does."""
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

    # --- what nobody survived ------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Hear of messages whose last delivery was not acked. The server says so when somebody reads on."""
        subject = exhausted_subject(self._stream, self._consumer)
        queue = f"dead-letters.{self._consumer}"  # one of the workers is enough
        self._inbox = await self._context.connection.subscribe(subject, self._receive, queue)
        self._reading = self._context.tasks.start(self._read(), "find messages that nobody settled")

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            told = read_exhausted(frame[3])
            if told is not None and not self._in_hand(told[0]):
                if len(self._told) >= _MOST:
                    self._failed(told[0], ConfigError("too many messages ran out of deliveries at once"))
                    continue
                self._told.append(told)
        self._arrived.set()

    async def _read(self) -> None:
        while True:
            while not self._told:
                await self._arrived.wait()
            seq, deliveries = self._told[0]
            await self._rescue(seq, deliveries)
            self._told.popleft()

    async def _rescue(self, seq: int, deliveries: int) -> None:
        error = DeliveriesExhaustedError(f"delivered {deliveries} times and never settled")
        for attempt in range(1, _TRIES + 1):
            try:
                origin, dead_letter = await self._copy(seq, deliveries, error)
            except MessageNotFoundError:
                return  # acked late, or gone with the stream's limits
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
        """Listen no more. What was told and is not stored yet is told as `DeadLetterFailed`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        for seq, _ in self._told:
            self._failed(seq, ConfigError("the worker stopped before it was stored"))
        self._told.clear()
        if self._inbox is not None:
            await self._context.connection.unsubscribe(self._inbox)
