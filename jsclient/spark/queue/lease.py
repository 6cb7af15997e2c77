"""Keeps claims alive on the driver while their batch runs, and settles them after its commit.

Everything here runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ...client import JetStream
from ...consumers.consumer import Consumer
from ...errors import (
    ClosedError,
    JetStreamError,
    PermissionDeniedError,
    PositionInvalidError,
)
from ...protocol.consumers.ack import AckKind, sequences
from ...protocol.events import ClaimsLapsed
from ...streams.stream import Stream
from ..acks.bulk_ack import confirm, context_of, settle
from ..options.source import SourceOptions
from ..options.values import not_permitted
from .claims import ClaimCollector, QueueOffset, Run, ack_subjects, claimed, covers, effective_ack_wait

__all__ = ["Holder"]

_LEAST_PAUSE = 0.05  # seconds between two in-progress acks


@dataclass(slots=True)
class _Held:
    """The claims of one batch that are kept alive."""

    offset: QueueOffset
    alive_at: float  # monotonic seconds: up to here all in-progress acks were in time
    doubtful: bool = False  # ack_wait may have expired, so the server may redeliver them until they are acked
    told: int = 0  # number reported as possibly redelivered


class Holder:
    """The open claims of one query.

    Attributes:
        made: When the consumer was created, as in an offset.
        collecting: Deliveries of the batch that is being claimed.
        form: The parts of their ack subjects; see `ack_form`.
        forgotten: Stream sequences of messages that were processed but could not be acked, since the server lost the
            delivery. They are acked when the server redelivers them.
        lapsed: Number of claims that other clients may have received as well.
    """

    def __init__(self, js: JetStream, stream: Stream, consumer: Consumer, options: SourceOptions) -> None:
        self._js = js
        self._context = context_of(js)
        self._stream = stream
        self._consumer = consumer
        self._options = options
        info = consumer.cached_info
        self.made: str = "" if info.created is None else info.created.isoformat()
        self._ack_wait = effective_ack_wait(info)
        self._held: dict[int, _Held] = {}
        self.collecting: ClaimCollector | None = None
        self.form: tuple[str, str] = ("", "")
        self.forgotten: set[int] = set()
        self._may_ack = False  # True once the server accepted an ack
        self._keeping: asyncio.Task[None] | None = None
        self.lapsed: int = 0

    async def hold(self, offset: QueueOffset, began: float) -> None:
        """Keep new claims alive. The first call awaits a confirmation, so missing permissions show early.

        Args:
            offset: The claims.
            began: When claiming began, in monotonic seconds.

        Raises:
            ConfigError: This user may not ack.
        """
        self._held[offset.batch] = _Held(offset, began)
        if self._may_ack:
            return
        first = next(ack_subjects(offset.runs, offset.form))
        try:
            await confirm(self._context, [first], AckKind.IN_PROGRESS.value, timeout=self._context.timeout)
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "what was claimed is acked") from error
        except JetStreamError:
            return  # retried with the next batch
        self._may_ack = True

    # --- keeping alive -----------------------------------------------------------------------------------------

    def holds(self, batch: int) -> bool:
        """Whether the claims of a batch are kept alive here."""
        return batch in self._held

    async def hold_again(self, offset: QueueOffset) -> bool:
        """Keep the claims of a checkpoint alive. Returns whether no other client can have received any of them.

        For claims older than ``ack_wait`` it returns False, since a checkpoint does not record how long they were kept
        alive.

        Raises:
            PositionInvalidError: The consumer was recreated, which voids the claims, and ``failOnDataLoss`` is set.
            ConfigError: This user may not ack.
            JetStreamError: As any request.
        """
        self.keep()
        info = await self._consumer.info()
        if offset.made != self.made:
            if self._options.fail_on_data_loss:
                raise PositionInvalidError(
                    f"consumer {info.name!r} of stream {info.stream_name!r} was made anew at {self.made}, and what "
                    f"the checkpoint claimed from the one of {offset.made} is claimed no more: set option "
                    "'failOnDataLoss' to false to read it all the same, without acks"
                )
            self._tell(claimed(offset.runs), "the consumer was made anew")
            return False
        asked = self._now()
        replies = list(ack_subjects(offset.runs, offset.form))
        try:
            await settle(self._js, replies, AckKind.IN_PROGRESS.value)
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "what was claimed is kept alive") from error
        held = self._held[offset.batch] = _Held(offset, asked)
        if time.time() * 1000 - offset.at <= self._ack_wait * 1000:
            return True
        await self._look_for_others(held, "the query was down for longer than ack_wait")
        return False

    async def _look_for_others(self, held: _Held, reason: str) -> None:
        """Report how many claims other clients may have received: at most the number of deliveries since."""
        held.doubtful = True
        info = await self._consumer.info()
        since = info.delivered.consumer_seq - held.offset.last_consumer_seq
        count = min(claimed(held.offset.runs), max(0, since))
        if count > held.told:
            self._tell(count - held.told, reason)
            held.told = count

    def _tell(self, count: int, reason: str) -> None:
        self.lapsed += count
        self._context.emit(
            ClaimsLapsed(stream=self._stream.name, consumer=self._consumer.name, count=count, reason=reason)
        )

    def keep(self) -> None:
        """Start sending in-progress acks, unless they are being sent."""
        if self._keeping is None or self._keeping.done():
            self._keeping = self._context.tasks.start(self._keep_alive(), "keep claims alive")

    async def _keep_alive(self) -> None:
        interval = pause = self._ack_wait / 3
        while not self._js.is_closed:
            await asyncio.sleep(max(pause, _LEAST_PAUSE))
            began = self._now()
            try:
                await self._sign_of_life(began)
                pause = interval - (self._now() - began)
            except ClosedError:
                return
            except JetStreamError as error:
                self._context.report(error)
                pause = min(interval, 1.0)

    async def _sign_of_life(self, asked: float) -> None:
        held = list(self._held.values())
        runs: list[Run] = [run for one in held for run in one.offset.runs]
        form = held[0].offset.form if held else self.form
        if self.collecting is not None:
            runs += self.collecting.runs()
        replies = list(ack_subjects(runs, form))
        await confirm(self._context, replies, AckKind.IN_PROGRESS.value, timeout=max(1.0, self._ack_wait / 3))
        answered = self._now()
        for one in held:
            late = answered - one.alive_at
            one.alive_at = asked
            if late > self._ack_wait and one.offset.batch in self._held:
                await self._look_for_others(one, f"no sign of life for {late:.1f} s")

    # --- settling ----------------------------------------------------------------------------------------------

    async def finish(self, offset: QueueOffset) -> None:
        """Settle the claims of a committed batch as ``ackOn`` says, and release them.

        Raises:
            ConfigError: This user may not ack or purge.
            RequestTimeoutError, DisconnectedError: Retries failed. Whether the claims are settled is unknown; they are
                still held.
        """
        if offset.made != self.made:
            self._tell(claimed(offset.runs), "the consumer was made anew")
        elif self._options.ack_on != "manual":
            held = self._held.get(offset.batch)
            if held is not None and held.doubtful:
                # The server redelivers expired claims to any client, despite later in-progress acks.
                await self._look_for_others(held, "they were delivered again during the batch")
            try:
                if self._options.ack_on != "purge" or not await self._purge(offset):
                    await self.ack(list(ack_subjects(offset.runs, offset.form)))
            except PermissionDeniedError as error:
                raise not_permitted("ackOn", error, "what was processed is settled") from error
        self._held.pop(offset.batch, None)

    async def ack(self, replies: list[bytes]) -> None:
        """Ack deliveries. Those that the server does not know are remembered, and acked when redelivered."""
        unknown = await settle(self._js, replies, AckKind.ACK.value)
        if unknown:
            self.forgotten.update(sequences(reply)[0] for reply in unknown)
            self._tell(len(unknown), "the server lost that it had delivered them")

    async def _purge(self, offset: QueueOffset) -> bool:
        """Purge the claimed messages, if that removes no others. Returns whether it did."""
        info = await self._stream.info()
        if not covers(offset.runs, info.state.first_seq):
            return False
        await self._stream.purge(seq=max(run.last for run in offset.runs) + 1)
        return True

    async def close(self) -> None:
        """Stop keeping claims alive."""
        if self._keeping is not None:
            self._keeping.cancel()
        self._held.clear()

    def _now(self) -> float:
        return self._context.connection.now()
