"""Claiming messages from a durable consumer, on the driver.

A claim is a delivery that was pulled and is not yet acked. Its payload is dropped: executors read it from the stream.
Everything here runs on the engine's loop.
"""

from __future__ import annotations

import time

from ...client import JetStream
from ...consumers.consumer import Consumer
from ...consumers.message import Message
from ...consumers.pull.fetch import Batch
from ...errors import (
    ConfigError,
    ConsumerNotFoundError,
    JetStreamError,
    MessageNotFoundError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from ...protocol.consumers.status import Ending
from ...protocol.models.consumer import ConsumerInfo
from ...protocol.wire.header_names import MSG_SIZE
from ...streams.direct_get import get_directly
from ...streams.stream import Stream
from ..acks.bulk_ack import context_of
from ..options.source import SourceOptions
from ..options.values import not_permitted
from .claims import ClaimCollector, QueueOffset, ack_form, check_queue
from .lease import Holder

__all__ = ["Claimer", "open_queue"]

_PULL = 2000  # messages per pull
_BLIND_PULL = 16  # the same with headers_only: the byte limit does not cover the omitted payloads
_MOST = 100_000  # claims per batch without other limits
_MOST_RUNS = 10_000  # runs per batch, to keep its offset small
_LONGEST_WAIT = 10.0  # seconds per waiting pull
_LOOK = 5.0  # seconds without a message after which the consumer is looked up


async def open_queue(js: JetStream, options: SourceOptions) -> tuple[Stream, Consumer]:
    """Look up and check the stream and the consumer of a query.

    Raises:
        ConfigError: An option does not fit the stream, the consumer or the permissions of this user.
    """
    name, consumer_name = options.stream, options.consumer or ""
    option, why = "stream", "the stream is looked up"
    try:
        stream = await js.stream(name)
        option, why = "consumer", "the consumer is looked up"
        consumer = await stream.consumer(consumer_name)
        check_queue(stream.config, consumer.cached_info, options.ack_on)
        option, why = "stream", "executors read what was claimed by direct get"
        try:
            await get_directly(context_of(js), name, {"seq": max(1, stream.cached_info.state.first_seq)})
        except MessageNotFoundError:
            pass
    except StreamNotFoundError as error:
        raise ConfigError(
            f"option 'stream': there is no stream {name!r}: create it, or correct the name"
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
    """Claims messages for one query.

    Attributes:
        pending: Messages pending on the consumer, as last reported.
    """

    def __init__(self, js: JetStream, consumer: Consumer, options: SourceOptions, holder: Holder) -> None:
        self._context = context_of(js)
        self._consumer = consumer
        self._options = options
        self._holder = holder
        self._config = consumer.config
        self._idle = False  # the last pull returned nothing, so the next one may wait
        self._seen_at = self._now()  # monotonic seconds: when the consumer was last known to exist
        self._again: list[bytes] = []  # replies of redelivered messages that were processed before
        self.pending: int = consumer.cached_info.num_pending

    @property
    def most(self) -> int:
        """The default limit of claims per batch."""
        bound = self._config.max_ack_pending or 0
        return min(bound, _MOST) if bound > 0 else _MOST

    # --- claiming ----------------------------------------------------------------------------------------------

    async def claim(self, batch: int, most: int, most_bytes: int | None, wait: float) -> QueueOffset | None:
        """Claim the available messages, up to the limits. Returns None if nothing is available.

        Args:
            batch: Number of the batch.
            most: Maximum number of messages.
            most_bytes: Maximum size in bytes; the first message may exceed it.
            wait: Seconds to wait for the first message; 0: do not wait.

        Raises:
            ConfigError: This user may not pull or ack.
            JetStreamError: As `Consumer.fetch`, if nothing was claimed before the error.
        """
        holder = self._holder
        holder.keep()
        collector = holder.collecting = ClaimCollector()
        began, at, size = self._now(), int(time.time() * 1000), 0
        try:
            while collector.count < most and collector.run_count < _MOST_RUNS:
                room = None if most_bytes is None else most_bytes - size
                if room is not None and room <= 0:
                    break
                wanted = most - collector.count
                if room is not None and self._config.headers_only:
                    wanted = min(wanted, _BLIND_PULL)
                first = not collector.count
                messages = await self._pull(wanted, room, wait if first else 0.0, first=first)
                for message in messages:
                    self._add(collector, message)
                    size += self._size(message)
                if not messages:
                    break
        except PermissionDeniedError as error:
            raise not_permitted("consumer", error, "messages are claimed by pulls") from error
        except JetStreamError:
            # The claims so far form a batch; the error recurs with the next one.
            if not collector.count:
                raise
        finally:
            holder.collecting = None
        await self._ack_again()
        if not collector.count:
            await self._see()
            return None
        self.pending = collector.last_pending
        offset = QueueOffset(batch, collector.finish(), *holder.form, holder.made, at)
        await holder.hold(offset, began)
        return offset

    async def _ack_again(self) -> None:
        """Ack messages that were redelivered after they had been processed."""
        if self._again:
            try:
                await self._holder.ack(self._again)
                self._again = []
            except JetStreamError as error:
                self._context.report(error)  # retried with the next batch

    async def _pull(self, most: int, room: int | None, wait: float, *, first: bool) -> Batch:
        most = min(most, _PULL, self._config.max_batch or most)
        wait = min(wait, _LONGEST_WAIT, self._config.max_expires or wait)
        bound = self._config.max_bytes
        most_bytes = min(size for size in (self._options.fetch_max_bytes, room, bound) if size and size > 0)
        if not self._idle:
            got = await self._fetch(most, most_bytes, first=first)
            self._idle = not got
            if got or not wait:
                return got
        if not wait:
            return await self._fetch(most, most_bytes, first=first)
        got = await self._consumer.fetch(1, expires=wait)
        self._idle = not got
        return got

    async def _fetch(self, most: int, most_bytes: int, *, first: bool) -> Batch:
        got = await self._consumer.fetch(most, no_wait=True, max_bytes=most_bytes)
        if first and not got and got.ending is Ending.MAX_BYTES:
            # The first message is larger than the byte limit of a pull.
            return await self._consumer.fetch(1, no_wait=True)
        return got

    def _add(self, collector: ClaimCollector, message: Message) -> None:
        data, forgotten = message.metadata, self._holder.forgotten
        if forgotten and data.stream_seq in forgotten:
            forgotten.discard(data.stream_seq)
            self._again.append(message.reply.encode("utf-8", "surrogateescape"))
            return
        if not collector.count:
            self._holder.form = ack_form(message.reply)
        collector.add(data.stream_seq, data.consumer_seq, data.num_delivered, data.num_pending)

    async def _see(self) -> None:
        """Check at intervals that the consumer still exists: older servers do not report its deletion to a pull."""
        if self._now() >= self._seen_at + _LOOK:
            await self.outstanding()

    async def is_empty(self) -> bool:
        """Whether the consumer can deliver nothing now. Raises `JetStreamError` as any request."""
        info = await self._info()
        bound = self._config.max_ack_pending or 0
        full = bound > 0 and info.num_ack_pending >= bound
        return not info.num_pending or full or info.paused

    async def outstanding(self) -> int:
        """The number of messages that are pending, or delivered but not acked."""
        info = await self._info()
        return info.num_pending + info.num_ack_pending

    async def _info(self) -> ConsumerInfo:
        info = await self._consumer.info()
        self.pending, self._seen_at = info.num_pending, self._now()
        if info.created is not None:
            self._holder.made = info.created.isoformat()  # the consumer may have been recreated
        return info

    async def close(self) -> None:
        """Close the consumer's subscription."""
        await self._consumer.close()

    def _size(self, message: Message) -> int:
        """Size of a message in bytes, including a payload that headers_only omits."""
        size = message.size
        if self._config.headers_only:
            left_out = message.headers.get(MSG_SIZE, "")
            size += int(left_out) if left_out.isascii() and left_out.isdecimal() and len(left_out) < 12 else 0
        return size

    def _now(self) -> float:
        return self._context.connection.now()
