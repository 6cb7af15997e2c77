"""Claim messages from a durable consumer on the driver, and keep claims alive until their batch is committed.

A claim is a delivery that was pulled and is not yet acked. Its payload is dropped, because executors read the message
from the stream. All code here runs on the event loop of the session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from ...client import JetStream
from ...consumers.message import Message
from ...consumers.pull.batch import Batch
from ...consumers.pull.consumer import Consumer
from ...errors import (
    ClosedError,
    ConfigError,
    ConsumerNotFoundError,
    JetStreamError,
    MessageNotFoundError,
    PermissionDeniedError,
    PositionInvalidError,
    StreamNotFoundError,
    counted,
)
from ...protocol.consumers.ack import AckKind, sequences
from ...protocol.consumers.status import Ending
from ...protocol.events import ClaimsLapsed
from ...protocol.models.consumer import ConsumerInfo
from ...protocol.wire.header_names import MSG_SIZE
from ...streams.direct_get import get_directly
from ...streams.stream import Stream
from ...tables.loss_policy import LossPolicy
from ...tables.server_options import not_permitted
from ...tables.session import context_of
from ...tables.source_options import SourceOptions
from ..acks.bulk_ack import confirm, settle
from .claims import (
    ClaimCollector,
    QueueOffset,
    Run,
    ack_form,
    ack_subjects,
    check_queue,
    claimed,
    covers,
    effective_ack_wait,
)
from .unclaimed import Unclaimed

__all__ = ["Claimer", "Holder", "open_queue"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_LEAST_PAUSE = 0.05  # minimum seconds between two in-progress acks
_PULL = 2000  # maximum number of messages per pull
_BLIND_PULL = 16  # the maximum with headers_only, where the byte limit ignores the omitted payloads
_MOST = 100_000  # maximum number of claims per batch without other limits
_MOST_RUNS = 10_000  # maximum number of runs per batch, which keeps its offset small
_LONGEST_WAIT = 10.0  # maximum seconds that a pull waits for messages
_LOOKUP_AFTER = 5.0  # seconds without a message after which the consumer is looked up


@dataclass(slots=True)
class _Held:
    """The claims of one batch that are kept alive."""

    offset: QueueOffset
    # Monotonic time when claiming began, or when the last in-progress acks that the server confirmed were sent.
    alive_at: float
    unconfirmed: bool = False  # true if ack_wait may have expired, so the server may redeliver claims
    reported: int = 0  # number of claims that were reported as lapsed


class Holder:
    """The open claims of one query.

    Attributes:
        made: The time when the consumer was created, in the format of an offset.
        collecting: Deliveries of the batch that is being claimed.
        form: The parts of the ack subjects of these deliveries, see `ack_form`.
        forgotten: Stream sequences of messages that were processed but could not be acked, because the server lost the
            delivery. They are acked when the server redelivers them.
        lapsed: Number of claims that other clients may have received as well.
        ack_wait: How long the server waits before it redelivers a message, in seconds.
    """

    def __init__(self, js: JetStream, stream: Stream, consumer: Consumer, options: SourceOptions) -> None:
        self._js = js
        self._context = context_of(js)
        self._stream = stream
        self._consumer = consumer
        self._options = options
        info = consumer.cached_info
        self.made: str = "" if info.created is None else info.created.isoformat()
        self.ack_wait: float = effective_ack_wait(info)
        self._held: dict[int, _Held] = {}
        self.collecting: ClaimCollector | None = None
        self.form: tuple[str, str] = ("", "")
        self.forgotten: set[int] = set()
        self._may_ack = False  # becomes True when the server accepts an ack
        self._keeping: asyncio.Task[None] | None = None
        self.lapsed: int = 0

    async def hold(self, offset: QueueOffset, began: float) -> None:
        """Keep new claims alive. The first call awaits a confirmation, so that a missing permission shows early.

        Args:
            offset: The claims.
            began: When claiming began, in monotonic seconds.

        Raises:
            ConfigError: The user may not ack.
        """
        self._held[offset.batch] = _Held(offset, began)
        if self._may_ack:
            return
        first = next(ack_subjects(offset.runs, offset.form))
        try:
            await confirm(self._context, [first], AckKind.IN_PROGRESS.value, timeout=self._context.timeout)
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "claimed messages are acked") from error
        except JetStreamError:
            return  # the next batch tries again
        self._may_ack = True

    @property
    def held(self) -> int:
        """The number of claims that this query keeps alive."""
        return sum(claimed(held.offset.runs) for held in self._held.values())

    def holds(self, batch: int) -> bool:
        """Return whether this process keeps the claims of a batch alive."""
        return batch in self._held

    async def hold_again(self, offset: QueueOffset) -> bool:
        """Keep the claims of a checkpoint alive. Returns whether no other client can have received any of them.

        For claims older than ``ack_wait`` the result is False, because a checkpoint does not record how long they were
        kept alive.

        Raises:
            PositionInvalidError: The consumer was recreated, which voids the claims, and ``failOnDataLoss`` is set.
            ConfigError: The user may not ack.
        """
        self.keep()
        info = await self._consumer.info()
        if offset.made != self.made:
            if self._options.fail_on_data_loss:
                raise PositionInvalidError(
                    f"consumer {info.name!r} of stream {info.stream_name!r} was recreated at {self.made}, so the "
                    f"claims of the checkpoint from the one of {offset.made} are void: set option 'failOnDataLoss' to "
                    "false to read the messages anyway, without acks"
                )
            self._report_lapsed(claimed(offset.runs), "the consumer was recreated")
            return False
        sent_at = self._now()
        replies = list(ack_subjects(offset.runs, offset.form))
        try:
            await settle(self._js, replies, AckKind.IN_PROGRESS.value)
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "claims are kept alive") from error
        held = self._held[offset.batch] = _Held(offset, sent_at)
        if time.time() * 1000 - offset.at <= self.ack_wait * 1000:
            return True
        await self._count_lapsed(held, "the query was down for longer than ack_wait")
        return False

    async def _count_lapsed(self, held: _Held, reason: str) -> None:
        """Report how many claims other clients may have received, which is at most the number of later deliveries."""
        held.unconfirmed = True
        info = await self._consumer.info()
        since = info.delivered.consumer_seq - held.offset.last_consumer_seq
        count = min(claimed(held.offset.runs), max(0, since))
        if count > held.reported:
            self._report_lapsed(count - held.reported, reason)
            held.reported = count

    def _report_lapsed(self, count: int, reason: str) -> None:
        self.lapsed += count
        self._context.emit(
            ClaimsLapsed(stream=self._stream.name, consumer=self._consumer.name, count=count, reason=reason)
        )

    def keep(self) -> None:
        """Start sending in-progress acks periodically, unless they are already being sent."""
        if self._keeping is None or self._keeping.done():
            self._keeping = self._context.tasks.start(self._keep_alive(), "keep claims alive")

    async def _keep_alive(self) -> None:
        interval = pause = self.ack_wait / 3
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

    async def _sign_of_life(self, sent_at: float) -> None:
        held = list(self._held.values())
        runs: list[Run] = [run for batch in held for run in batch.offset.runs]
        form = held[0].offset.form if held else self.form
        if self.collecting is not None:
            runs += self.collecting.runs()
        replies = list(ack_subjects(runs, form))
        await confirm(self._context, replies, AckKind.IN_PROGRESS.value, timeout=max(1.0, self.ack_wait / 3))
        answered = self._now()
        for batch in held:
            late = answered - batch.alive_at
            batch.alive_at = sent_at
            if late > self.ack_wait and batch.offset.batch in self._held:
                await self._count_lapsed(batch, f"no sign of life for {late:.1f} s")

    async def finish(self, offset: QueueOffset) -> None:
        """Settle the claims of a committed batch as ``ackOn`` requires, and release them.

        Raises:
            ConfigError: The user may not ack or purge.
            RequestTimeoutError, DisconnectedError: Retries failed. It is unknown whether the claims are settled. They
                are still kept alive.
        """
        if offset.made != self.made:
            self._report_lapsed(claimed(offset.runs), "the consumer was recreated")
        elif self._options.ack_on != "manual":
            held = self._held.get(offset.batch)
            if held is not None and held.unconfirmed:
                # In-progress acks can't recover expired claims, because the server may already have redelivered the
                # messages to a different client. Report these claims as lapsed.
                await self._count_lapsed(held, "they were delivered again during the batch")
            try:
                if self._options.ack_on != "purge" or not await self._purge(offset):
                    await self.ack(list(ack_subjects(offset.runs, offset.form)))
            except PermissionDeniedError as error:
                raise not_permitted("ackOn", error, "processed messages are settled") from error
        self._held.pop(offset.batch, None)

    async def ack(self, replies: list[bytes]) -> None:
        """Ack deliveries. If the server has lost a delivery, its message is remembered and acked when redelivered."""
        unknown = await settle(self._js, replies, AckKind.ACK.value)
        if unknown:
            self.forgotten.update(sequences(reply)[0] for reply in unknown)
            self._report_lapsed(len(unknown), "the server lost the record of these deliveries")

    async def _purge(self, offset: QueueOffset) -> bool:
        """Purge the claimed messages, unless a purge would remove other messages. Returns whether it was done."""
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


async def open_queue(js: JetStream, options: SourceOptions) -> tuple[Stream, Consumer]:
    """Look up the stream and the consumer of a query. Raises `ConfigError` if they do not fit the options."""
    name, consumer_name = options.stream, options.consumer or ""
    option, why = "stream", "the stream is looked up"
    try:
        stream = await js.stream(name)
        option, why = "consumer", "the consumer is looked up"
        consumer = await stream.consumer(consumer_name)
        check_queue(stream.config, consumer.cached_info, options.ack_on)
        option, why = "stream", "executors read claimed messages by direct get"
        # Only a request shows whether direct gets are permitted. The message needn't exist.
        try:
            await get_directly(context_of(js), name, {"seq": max(1, stream.cached_info.state.first_seq)})
        except MessageNotFoundError:
            pass
    except StreamNotFoundError as error:
        raise ConfigError(
            f"option 'stream': stream {name!r} does not exist: create it, or correct the name"
        ) from error
    except ConsumerNotFoundError as error:
        raise ConfigError(
            f"option 'consumer': stream {name!r} has no consumer {consumer_name!r}: create a durable pull consumer "
            "with the ack policy explicit, or correct the name"
        ) from error
    except PermissionDeniedError as error:
        raise not_permitted(option, error, why) from error
    return stream, consumer


class Claimer:
    """The part of a query's driver that claims messages.

    Attributes:
        pending: Number of messages pending on the consumer when it was last known.
        unclaimed: Detects messages that were removed before they could be claimed.
    """

    def __init__(
        self, js: JetStream, stream: Stream, consumer: Consumer, options: SourceOptions, holder: Holder
    ) -> None:
        self._context = context_of(js)
        self._consumer = consumer
        self._options = options
        self._holder = holder
        self._config = consumer.config
        self._idle = False  # true if the last pull returned no messages, so the next pull may wait
        self._seen_at = self._now()  # monotonic time when the consumer was last known to exist
        self._again: list[bytes] = []  # replies of redelivered messages that were already processed
        self.pending: int = consumer.cached_info.num_pending
        self._is_new = True  # true until the first message is claimed
        self._is_paused = False
        self.unclaimed: Unclaimed = Unclaimed(
            stream, consumer, LossPolicy(options.fail_on_data_loss), self._context.connection.max_payload
        )

    @property
    def most(self) -> int:
        """The default limit of claims per batch."""
        bound = self._config.max_ack_pending or 0
        return min(bound, _MOST) if bound > 0 else _MOST

    async def claim(self, batch: int, most: int, most_bytes: int | None, wait: float) -> QueueOffset | None:
        """Claim the available messages, up to the limits. Returns None if no message is available.

        Args:
            batch: Number of the batch.
            most: Maximum number of messages.
            most_bytes: Maximum size in bytes. The first message may exceed it.
            wait: How long to wait for the first message, in seconds. With 0, the call doesn't wait.

        Raises:
            ConfigError: The user may not pull or ack.
            UnclaimedRemovedError: Messages were removed before they could be claimed, and ``failOnDataLoss`` is set.
            JetStreamError: An error of `Consumer.fetch`, if no message was claimed before it.
        """
        holder = self._holder
        holder.keep()
        if self.unclaimed.applies and (self._is_new or self.pending):
            await self.unclaimed.check_gap(self._info)
        collector = holder.collecting = ClaimCollector()
        began, at, size = self._now(), int(time.time() * 1000), 0
        try:
            while collector.count < most and collector.run_count < _MOST_RUNS:
                free = None if most_bytes is None else most_bytes - size
                if free is not None and free <= 0:
                    break
                count = most - collector.count
                if free is not None and self._config.headers_only:
                    count = min(count, _BLIND_PULL)
                first = not collector.count
                messages = await self._pull(count, free, wait if first else 0.0, first=first)
                for message in messages:
                    self._add(collector, message)
                    size += self._size(message)
                if messages.error is not None:
                    self._context.report(messages.error)
                if not messages:
                    break
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "messages are claimed by pulls") from error
        except JetStreamError:
            # Don't lose the claims made so far. Return them as a batch, and let the next batch raise a lasting error.
            if not collector.count:
                raise
        finally:
            holder.collecting = None
        await self.unclaimed.look_at_gaps()
        self._is_new = False
        await self._ack_again()
        if not collector.count:
            await self._check_exists()
            return None
        self.pending = collector.last_pending
        offset = QueueOffset(batch, collector.finish(), *holder.form, holder.made, at)
        await holder.hold(offset, began)
        return offset

    async def _ack_again(self) -> None:
        """Ack messages that were redelivered after they had already been processed."""
        if self._again:
            try:
                await self._holder.ack(self._again)
                self._again = []
            except JetStreamError as error:
                self._context.report(error)  # the next batch tries again

    async def _pull(self, most: int, free: int | None, wait: float, *, first: bool) -> Batch:
        # The server refuses pulls that exceed the limits of the consumer, so stay within them.
        most = min(most, _PULL, self._config.max_batch or most)
        wait = min(wait, _LONGEST_WAIT, self._config.max_expires or wait)
        bound = self._config.max_bytes
        most_bytes = min(size for size in (self._options.fetch_max_bytes, free, bound) if size and size > 0)
        if not self._idle:
            messages = await self._fetch(most, most_bytes, first=first)
            self._idle = not messages
            if messages or not wait:
                return messages
        if not wait:
            return await self._fetch(most, most_bytes, first=first)
        messages = await self._consumer.fetch(1, expires=wait)
        self._idle = not messages
        return messages

    async def _fetch(self, most: int, most_bytes: int, *, first: bool) -> Batch:
        messages = await self._consumer.fetch(most, no_wait=True, max_bytes=most_bytes)
        if first and not messages and messages.ending is Ending.MAX_BYTES:
            # The first message is larger than the byte limit of a pull, so request it without a limit.
            return await self._consumer.fetch(1, no_wait=True)
        return messages

    def _add(self, collector: ClaimCollector, message: Message) -> None:
        data, forgotten = message.metadata, self._holder.forgotten
        if forgotten and data.stream_seq in forgotten:
            forgotten.discard(data.stream_seq)
            self._again.append(message.reply.encode("utf-8", "surrogateescape"))
            return
        if data.num_delivered == 1:
            self.unclaimed.delivered(data.consumer_seq, data.stream_seq)
        if not collector.count:
            self._holder.form = ack_form(message.reply)
        collector.add_delivery(data.stream_seq, data.consumer_seq, data.num_delivered, data.num_pending)

    async def _check_exists(self) -> None:
        """Check at intervals that the consumer exists, because older servers do not report its deletion to a pull."""
        if self._now() >= self._seen_at + _LOOKUP_AFTER:
            await self.outstanding()

    async def is_empty(self) -> bool:
        """Return True if no message is pending, or if the consumer is paused or has reached ``max_ack_pending``."""
        info = await self._info()
        bound = self._config.max_ack_pending or 0
        full = bound > 0 and info.num_ack_pending >= bound
        return not info.num_pending or full or info.paused

    async def held_by_others(self) -> int:
        """Return the number of messages that were delivered to other clients and are not acked."""
        return max(0, (await self._info()).num_ack_pending - self._holder.held)

    async def outstanding(self) -> int:
        """Return the number of messages that are pending, or delivered but not acked."""
        info = await self._info()
        return info.num_pending + info.num_ack_pending

    async def pending_up_to(self, seq: int) -> int:
        """Return how many pending messages may have a stream sequence of at most ``seq``."""
        info = await self._info()
        return min(info.num_pending, max(0, seq - info.delivered.stream_seq))

    async def _info(self) -> ConsumerInfo:
        info = await self._consumer.info()
        self.pending, self._seen_at = info.num_pending, self._now()
        self._log_pause(info)
        if info.created is not None:
            self._holder.made = info.created.isoformat()  # the consumer may have been recreated
        return info

    def _log_pause(self, info: ConsumerInfo) -> None:
        """Log a warning once for each pause of the consumer, because an AvailableNow query then ends without rows."""
        if info.paused and not self._is_paused:
            until = info.config.pause_until
            log.warning(
                "consumer %r of stream %r is paused%s: none of its %s is delivered before it is resumed",
                info.name,
                info.stream_name,
                f" until {until}" if until else "",
                counted(info.num_pending, "pending message"),
            )
        self._is_paused = info.paused

    async def close(self) -> None:
        """Close the consumer's subscription."""
        await self._consumer.close()

    def _size(self, message: Message) -> int:
        """Return the size of a message in bytes, including a payload that ``headers_only`` omits."""
        size = message.size
        if self._config.headers_only:
            omitted = message.headers.get(MSG_SIZE, "")
            size += int(omitted) if omitted.isascii() and omitted.isdecimal() and len(omitted) < 12 else 0
        return size

    def _now(self) -> float:
        return self._context.connection.now()
