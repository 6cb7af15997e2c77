"""Queue mode: a streaming source that claims messages from a durable consumer.

The driver pulls deliveries and stores them in the offset as *claims*. Executors read the payloads by direct get. The
driver sends in-progress acks for the claims at intervals of a third of ``ack_wait``, and acks the claims when Spark
asks for the next offset. Spark does so only after the batch was committed. Unlike a call of ``commit``, this also
happens after the last batch. A batch that is retried, or a query that restarts from its checkpoint, gets exactly the
same claims.

A claim is exclusive while it is kept alive. If the driver is away for longer than ``ack_wait``, the server may
redeliver its messages to other clients. Each message is then handled at least once, and the event `ClaimsLapsed`
reports how many messages may be affected. A work queue removes a message that another client has acked meanwhile. Such
a message is skipped, and the event `ClaimsGone` reports it.

With ``ackOn`` "manual", the driver keeps claims alive, but `ack_batch` acks them. A work queue removes acked messages,
so a batch that is read again afterwards (by a second action, or after a failure) lacks them. ``persist`` the batch
first, or ack last.

Spark's ``asyncProgressTrackingEnabled`` must stay off. With this option, Spark asks for the next offset before a batch
is in its log, so acks would come too early. A source cannot read the option, but it rejects a checkpoint that skips a
batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..._runtime.retry import Retry, RetryPolicy
from ...errors import (
    ConfigError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    HeartbeatError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
)
from ...protocol.models.stream_config import RetentionPolicy
from ...streams.stream import Stream
from ...tables.session import Session, context_of, session
from ...tables.source_options import SourceOptions
from ...tables.tasks import pieces_of
from ..log.limits import read_limit
from .claimer import Claimer, Holder, open_queue
from .claims import QueueOffset, claimed, share_out
from .reading import ClaimPartition, ClaimSpec, read_claims

__all__ = ["QueueStreamReader"]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("jsclient.spark")

_OUTAGE = 120.0  # seconds to wait for an unavailable server
_PAUSE = 0.2  # seconds between two attempts
_LATE = 2.0  # seconds that the server may take to redeliver a message after ack_wait has expired
_RETRY = RetryPolicy(_PAUSE, _PAUSE, patience=_OUTAGE, also=(HeartbeatError,))


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of queue mode. The driver uses the reader, and executors use copies of it.

    Args:
        options: Options of the source.
        columns: Names of columns, in the order of the rows.

    Raises:
        ConfigError: An option does not fit the stream, the consumer or the permissions of the user.
        JetStreamError: The connection or a request failed.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        if options.ack_on == "manual" and "reply" not in columns:
            raise ConfigError(
                "option 'ackOn' is 'manual', but the schema has no column 'reply' to ack by: add it"
            )
        self._options = options
        self._driver: _Driver | None = None
        opened = session(options.connect)
        stream, consumer = opened.run(open_queue(opened.js, options))
        filters = consumer.config.filters
        self._removes_acked = stream.config.retention in (RetentionPolicy.WORKQUEUE, RetentionPolicy.INTEREST)
        self._spec = ClaimSpec(
            connect=options.connect,
            stream=options.stream,
            consumer=consumer.name,
            subject=filters[0] if len(filters) == 1 else None,
            columns=columns,
            batch_rows=options.batch_rows,
            fetch_max_bytes=options.fetch_max_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
            term_missing=options.ack_on == "manual",
            created="" if (created := stream.cached_info.created) is None else created.isoformat(),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return an initial offset without claims."""
        return QueueOffset(0, ()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return the limit that Spark requests. `latestOffset` also applies the other limit of the options."""
        return read_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Limit the query to the messages that are pending or unacked now."""
        self._on_driver(_Driver.prepare_available_now)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Settle the claims of the committed offset ``start``, and claim more messages.

        Returns ``start`` if there are no messages.
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        offset = QueueOffset.of_json(start)
        claims = self._on_driver(lambda driver: driver.latest(offset, rows, size))
        return start if claims is offset else claims.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Return stream, consumer, pending messages and lapsed claims for Spark's progress. Sends no request."""
        return None if self._driver is None else self._driver.report_progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ClaimPartition]:
        """Divide the claims of ``end`` among tasks. After a restart, also keep the claims alive again."""
        before, claims = QueueOffset.of_json(start), QueueOffset.of_json(end)
        if claims.batch == before.batch:
            return []
        if claims.batch != before.batch + 1:
            raise ConfigError(
                f"the checkpoint goes from batch {before.batch} to {claims.batch}: one was not written, as with "
                "'asyncProgressTrackingEnabled', which mode 'queue' cannot work with: turn it off"
            )
        ours = self._on_driver(lambda driver: driver.keep(claims))
        # When a batch is read again, messages that the user has acked may be gone from a work queue, which is no loss.
        # When this process has just claimed the batch, none of its messages has been acked yet, but a second action may
        # read the batch again later.
        acks_remove = self._options.ack_on == "manual" and self._removes_acked
        lapsed = not ours or (acks_remove and not self._on_driver(lambda driver: driver.has_claimed(claims)))
        parts = claims.parts or pieces_of(self._options, claimed(claims.runs))
        return [
            ClaimPartition(part, claims.form, lapsed, acks_remove) for part in share_out(claims.runs, parts)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition. See `read_claims`."""
        assert isinstance(partition, ClaimPartition)
        return read_claims(self._spec, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing. Spark calls this late, and not for the last batch, so `latestOffset` settles claims instead."""

    def stop(self) -> None:
        """Stop keeping claims alive. If Spark ends the process first, the effect is the same."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.session.run(driver.close())

    def _on_driver(self, work: Callable[[_Driver], Coroutine[Any, Any, T]]) -> T:
        if self._driver is None:
            opened = session(self._options.connect)
            self._driver = opened.run(_Driver.open_driver(opened, self._options))
        return self._driver.session.run(work(self._driver))


class _Driver:
    """The claims and the progress of a query on the driver. Its coroutines run on the event loop of the session."""

    def __init__(
        self, opened: Session, stream: Stream, claimer: Claimer, holder: Holder, options: SourceOptions
    ) -> None:
        self.session = opened
        self._stream = stream
        self.claimer = claimer
        self.holder = holder
        self._options = options
        self._handed_out: QueueOffset | None = None
        self._finished = 0  # the last batch that was settled
        # The remaining attributes are used only with AvailableNow.
        self._remaining: int | None = None  # how many messages remain to be claimed
        self._newest = 0  # the last sequence of the stream when the query started
        # The monotonic time after which the messages that other clients had claimed when the query started have either
        # been acked or been redelivered.
        self._others_until: float | None = None

    @classmethod
    async def open_driver(cls, opened: Session, options: SourceOptions) -> _Driver:
        stream, consumer = await open_queue(opened.js, options)
        holder = Holder(opened.js, stream, consumer, options)
        return cls(opened, stream, Claimer(opened.js, stream, consumer, options, holder), holder, options)

    async def close(self) -> None:
        await self.holder.close()
        await self.claimer.close()

    def report_progress(self) -> dict[str, Any]:
        handed = self._handed_out
        lost = self.claimer.unclaimed.lost
        return {
            "b": 0 if handed is None else handed.batch,
            "stream": self._options.stream,
            "consumer": self._options.consumer,
            "pending": self.claimer.pending,
            "lapsed": self.holder.lapsed,
        } | ({"lost": lost} if lost else {})

    async def prepare_available_now(self) -> None:
        self._newest = (await self._with_retries(self._stream.info)).state.last_seq
        self._remaining = await self._with_retries(self.claimer.outstanding)
        self._others_until = context_of(self.session.js).connection.now() + self.holder.ack_wait + _LATE

    async def has_claimed(self, claims: QueueOffset) -> bool:
        """Return whether this process has claimed these messages, rather than an earlier run of the query."""
        handed = self._handed_out
        return handed is not None and (handed.batch, handed.made) == (claims.batch, claims.made)

    async def keep(self, claims: QueueOffset) -> bool:
        """Keep claims alive. Returns whether no other client can have received any of them."""
        if self.holder.holds(claims.batch):
            return True
        return await self._with_retries(lambda: self.holder.hold_again(claims))

    async def latest(self, start: QueueOffset, rows: int | None, size: int | None) -> QueueOffset:
        handed = self._handed_out
        if handed is not None and handed.batch == start.batch + 1:
            return handed  # Spark has asked again before it runs the batch, so return the same claims
        if start.batch > self._finished and start.runs:
            await self._with_retries(lambda: self.holder.finish(start))
            self._finished = start.batch
        most = min(
            limit for limit in (rows, self._options.max_messages_per_trigger, self.claimer.most) if limit
        )
        sizes = [limit for limit in (size, self._options.max_bytes_per_trigger) if limit]
        if self._remaining is not None:
            # The server counts a stored message as pending with a short delay, so the first count may be too low. Count
            # again before the query ends.
            if not self._remaining:
                self._remaining = await self._with_retries(lambda: self.claimer.pending_up_to(self._newest))
            most = min(most, self._remaining)
        if not most:
            return start
        claims = await self._claim(start.batch + 1, most, min(sizes, default=None))
        if claims is None:
            return start
        if self._remaining is not None:
            self._remaining = max(0, self._remaining - claimed(claims.runs))
        parts = pieces_of(self._options, claimed(claims.runs))
        claims = msgspec.structs.replace(claims, parts=parts)
        self._handed_out = claims
        return claims

    async def _claim(self, batch: int, most: int, size: int | None) -> QueueOffset | None:
        claimer, connection = self.claimer, context_of(self.session.js).connection
        wait = 0.0 if self._remaining is not None else self._options.poll_interval
        deadline = connection.now() + _OUTAGE
        while True:
            claims = await self._with_retries(lambda: claimer.claim(batch, most, size, wait))
            if claims is not None or self._remaining is None:
                return claims
            # The pull may have returned nothing only because the server is slow. So end the query only if the consumer
            # is empty, and no message that was delivered to another client may come back.
            if await self._with_retries(claimer.is_empty):
                if not await self._with_retries(self._may_come_again):
                    return None
            elif connection.now() >= deadline:
                raise RequestTimeoutError("the consumer has messages, but none comes", _OUTAGE)
            await asyncio.sleep(_PAUSE)

    async def _may_come_again(self) -> bool:
        """Return whether the server may redeliver messages that other clients received before this run.

        Such a client may be an earlier run that was killed. The server redelivers its messages after ``ack_wait``,
        unless they are acked.
        """
        others = await self.claimer.held_by_others()
        if not others or self._others_until is None:
            return False
        if context_of(self.session.js).connection.now() < self._others_until:
            return True
        self._others_until = None
        log.warning(
            "consumer %r of stream %r: %d messages were delivered to other clients, which have not acked them; the "
            "query ends without them. The next run reads those that come back",
            self._options.consumer,
            self._options.stream,
            others,
        )
        return False

    async def _with_retries(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call ``ask``, and retry while the server is unavailable. Events of the connection report the outage."""
        retry = Retry(_RETRY)
        while True:
            try:
                return await ask()
            except JetStreamError as error:
                deleted = isinstance(error, ConsumerNotFoundError | ConsumerDeletedError)
                if deleted or (isinstance(error, NoRespondersError) and await self._was_deleted()):
                    raise ConfigError(
                        f"option 'consumer': {self._options.consumer!r} of stream {self._options.stream!r} was deleted "
                        "while the query ran"
                    ) from error
                if not await retry.again(error):
                    raise

    async def _was_deleted(self) -> bool:
        try:
            await self.claimer.outstanding()
        except ConsumerNotFoundError:
            return True
        except JetStreamError:
            pass
        return False
