"""Functions for ``foreachBatch`` that settle a whole batch, confirmed by the server, or keep it from being redelivered.

The rows need the column ``reply``, which the source provides in queue mode. Settling a batch evaluates the DataFrame
again, so cache a batch that is not deterministic. Batches read in queue mode are deterministic.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ..._runtime.calls import consumer_info
from ...errors import ConfigError, JetStreamError, PermissionDeniedError
from ...protocol.consumers.ack import AckKind, Metadata, ack_payload, read_jsack
from ...protocol.events import ClaimsLapsed
from ...protocol.models.consumer import AckPolicy
from ...protocol.wire.checks import check_seconds
from ...tables.server_options import ServerOptions, not_permitted
from ...tables.session import Session, context_of, session
from ..queue.claims import effective_ack_wait
from ..registering import register_once
from .bulk_ack import check_replies, confirm, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ack_batch", "heartbeat", "nak_batch", "term_batch"]

_FORMAT = "jetstream_settle"
_PAYLOAD = "jsclient.settle.payload"  # internal option, passed along with the connection options


def ack_batch(
    df: DataFrame,
    servers: str | Mapping[str, str],
    *,
    on: str = "executors",
    policy: str = "each",
) -> int:
    """Ack all messages of a batch, and wait until the server has processed the acks.

    Use this in queries that read in mode ``queue`` with ``ackOn="manual"``. Call `ack_batch` at the end of
    ``foreachBatch``, after the results have been stored. If the job fails earlier, the server redelivers the messages::

        def handle(df, batch_id):
            df.write.mode("append").saveAsTable("orders")
            ack_batch(df, "nats://127.0.0.1:4222")

    Args:
        df: A DataFrame with a ``reply`` column. With the policy "all", it also needs a ``consumer_sequence`` column.
        servers: Comma-separated URLs, or a mapping of connection options, named as in the streaming source.
        on: Where to send acks from. "executors", the default, sends them from the executors that hold the rows.
            "driver" collects the reply subjects on the driver first. This is faster, but the batch must fit into the
            driver's memory, at about 100 bytes per row.
        policy: Which messages to ack. "each", the default, acks each message. "all" acks only the latest message of
            each consumer, always from the driver. This implicitly acks all earlier messages, including those outside
            the batch. It requires consumers with the ack policy "all".

    Returns:
        The number of acked messages. With "executors" or the policy "all", this is the number of rows. With "driver",
        it excludes messages whose deliveries the server no longer knows of, because it crashed. The server redelivers
        these messages, and the event `ClaimsLapsed` reports them.

    Raises:
        ConfigError: A column is missing, an option is invalid, or the consumer has a different ack policy.
        NotJetStreamMessageError: A value in the ``reply`` column isn't the reply subject of a JetStream message.
        NoRespondersError: The consumer no longer exists.
        RequestTimeoutError, DisconnectedError: Some acks may not have been processed. Acking again is safe.

    An error on an executor is raised as Spark's exception, with the original error in its text.
    """
    if policy not in {"each", "all"}:
        raise ConfigError(f"policy is {policy!r}: it must be 'each' or 'all'")
    if policy == "all":
        return _ack_highest(df, servers)
    return _settle(df, servers, AckKind.ACK.value, on)


def nak_batch(
    df: DataFrame, servers: str | Mapping[str, str], *, on: str = "executors", delay: float | None = None
) -> int:
    """Nak all messages of a batch, so that the server redelivers them.

    Use this if the batch can't be processed now but may be processed later. If Spark retries a task, the messages of
    the task may be nak'ed and redelivered more than once.

    Args:
        df: A DataFrame with a ``reply`` column.
        servers: Comma-separated URLs, or a mapping of connection options, named as in the streaming source.
        on: Where to send the naks from. "executors", the default, sends them from the executors that hold the rows.
            "driver" collects the reply subjects on the driver first.
        delay: How long the server waits before it redelivers the messages, in seconds. By default, it doesn't wait.

    Returns:
        The number of messages that were nak'ed. With "driver", this excludes messages whose deliveries the server no
        longer knows of, because it crashed. The server redelivers these messages too.

    Raises:
        ConfigError: The column is missing, or an option is invalid.
        NotJetStreamMessageError: A value in the ``reply`` column isn't the reply subject of a JetStream message.
        NoRespondersError: The consumer no longer exists.
        RequestTimeoutError, DisconnectedError: Some naks may not have been processed. You may call the function again.

    An error on an executor is raised as Spark's exception, with the original error in its text.
    """
    return _settle(df, servers, ack_payload(AckKind.NAK, delay=delay), on)


def term_batch(
    df: DataFrame, servers: str | Mapping[str, str], *, on: str = "executors", reason: str | None = None
) -> int:
    """Terminate all messages of a batch, so that the server never redelivers them.

    Use this for messages that can't be processed, however often they are retried.

    Args:
        df: A DataFrame with a ``reply`` column.
        servers: Comma-separated URLs, or a mapping of connection options, named as in the streaming source.
        on: Where to send the terms from. "executors", the default, sends them from the executors that hold the rows.
            "driver" collects the reply subjects on the driver first.
        reason: A single line of text, included in the server's advisories. Omitted by default.

    Returns:
        The number of terminated messages. With "driver", this excludes messages whose deliveries the server no longer
        knows of, because it crashed. The server redelivers these messages.

    Raises:
        ConfigError: The column is missing, or an option is invalid.
        NotJetStreamMessageError: A value in the ``reply`` column isn't the reply subject of a JetStream message.
        NoRespondersError: The consumer no longer exists.
        RequestTimeoutError, DisconnectedError: Some messages may not have been terminated. Calling the function again
            is safe.

    An error on an executor is raised as Spark's exception, with the original error in its text.
    """
    return _settle(df, servers, ack_payload(AckKind.TERM, reason=reason), on)


def _settle(df: DataFrame, servers: str | Mapping[str, str], payload: bytes, on: str) -> int:
    connect = ServerOptions.of(servers)
    need(df, "reply")
    if on == "driver":
        return _settle_here(session(connect), replies_of(df), payload)
    if on != "executors":
        raise ConfigError(f"on is {on!r}: it must be 'executors' or 'driver'")
    return _settle_there(df, servers, payload)


def need(df: DataFrame, *columns: str) -> None:
    """Raise `ConfigError` if the batch lacks one of these columns."""
    for column in columns:
        if column not in df.columns:
            raise ConfigError(
                f"the batch has no column {column!r}, without which it cannot be acked: keep it (it has "
                f"{', '.join(df.columns)}), or ack before it is left out"
            )


def replies_of(df: DataFrame) -> list[bytes]:
    """Collect the replies of all rows on the driver.

    Raises:
        ConfigError: A row has no reply.
        NotJetStreamMessageError: A reply is not a JSAck subject.
    """
    return _bytes(df.select("reply").toArrow().column(0))


def _bytes(column: Any) -> list[bytes]:
    if column.null_count:
        raise ConfigError(f"{column.null_count} rows have a null 'reply': a row without it cannot be acked")
    replies: list[bytes] = column.cast(pa.binary()).to_pylist()
    check_replies(replies)
    return replies


def _settle_here(opened: Session, replies: list[bytes], payload: bytes) -> int:
    try:
        unknown = opened.run(settle(opened.js, replies, payload))
    except PermissionDeniedError as error:
        raise not_permitted("servers", error, "messages are acked") from error
    if unknown:
        opened.run(_report_lapsed(opened, len(unknown)))
    return len(replies) - len(unknown)


async def _report_lapsed(opened: Session, count: int) -> None:
    reason = "the server lost the record of these deliveries"
    context_of(opened.js).emit(ClaimsLapsed(count=count, reason=reason))


def _settle_there(df: DataFrame, servers: str | Mapping[str, str], payload: bytes) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    options = {"servers": servers} if isinstance(servers, str) else dict(servers)
    spark = df.sparkSession
    register_once(spark, _SettleSource)
    # Spark looks up formats only in the active session of the thread. Creating a DataFrame makes this session the
    # active one.
    spark.createDataFrame([], "reply string")
    counted = Observation()
    observed = df.select("reply").observe(counted, count(lit(1)).alias("messages"))
    writer = observed.write.format(_FORMAT).options(**options)
    writer.option(_PAYLOAD, base64.b64encode(payload).decode()).mode("append").save()
    return int(counted.get["messages"])


class _SettleSource(DataSource):
    """Sink that settles messages on the executors. It does not need pandas, and works under Spark Connect."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001  Spark's signature
        options = {name: value for name, value in self.options.items() if name.lower() != _PAYLOAD}
        payload = next(value for name, value in self.options.items() if name.lower() == _PAYLOAD)
        return _SettleWriter(ServerOptions.of(options), base64.b64decode(payload))


@dataclass
class _Settled(WriterCommitMessage):
    """The number of messages that a task has settled."""

    count: int


class _SettleWriter(DataSourceArrowWriter):
    def __init__(self, connect: ServerOptions, payload: bytes) -> None:
        self._connect = connect
        self._payload = payload

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        replies = [reply for batch in iterator for reply in _bytes(batch.column(0))]
        return _Settled(_settle_here(session(self._connect), replies, self._payload))


# An SQL expression that cuts a JSAck subject after the name of the consumer. The subject has 9 tokens, or at least 11
# if it includes a domain and an account hash, so the name is token 4 or 6.
_CONSUMER = r"substring_index(reply, '.', if(size(split(reply, '[.]')) = 9, 4, 6))"


def _ack_highest(df: DataFrame, servers: str | Mapping[str, str]) -> int:
    from pyspark.sql.functions import count, expr, lit, max_by

    connect = ServerOptions.of(servers)
    need(df, "reply", "consumer_sequence")
    grouped = df.groupBy(expr(_CONSUMER).alias("consumer"))
    rows = grouped.agg(
        max_by("reply", "consumer_sequence").alias("reply"), count(lit(1)).alias("messages")
    ).toArrow()
    replies = _bytes(rows.column("reply"))
    opened = session(connect)
    for reply in replies:
        opened.run(_check_policy(opened, read_jsack(reply)))
    _settle_here(opened, replies, AckKind.ACK.value)
    return int(sum(rows.column("messages").to_pylist()))


async def _check_policy(opened: Session, of: Metadata) -> None:
    try:
        info = await consumer_info(context_of(opened.js), of.stream, of.consumer)
    except PermissionDeniedError as error:
        raise not_permitted("policy", error, "'all' looks at the consumer's ack policy") from error
    if info.config.ack_policy != AckPolicy.ALL:
        raise ConfigError(
            f"policy is 'all', but consumer {of.consumer!r} of stream {of.stream!r} has the ack policy "
            f"{str(info.config.ack_policy)!r}: use policy='each'"
        )


@contextmanager
def heartbeat(
    df: DataFrame, servers: str | Mapping[str, str], *, every: float | None = None
) -> Iterator[int]:
    """Prevent the messages of a batch from being redelivered while a ``with`` block runs.

    Use this around work that may take longer than the consumer's ``ack_wait``::

        with heartbeat(df, servers):
            slow_work(df)
        ack_batch(df, servers)

    The driver collects the replies (about 100 bytes per row). It sends in-progress acks before the block is entered,
    and periodically after that. If an ack fails later, an event reports the error and the ack is retried. If
    ``ack_wait`` expires in the meantime, a `ClaimsLapsed` event warns that the messages may be redelivered.

    Args:
        df: A DataFrame with a ``reply`` column.
        servers: Comma-separated URLs, or a mapping of connection options, named as in the streaming source.
        every: Interval between in-progress acks, in seconds. Defaults to a third of the consumers' shortest
            ``ack_wait``.

    Yields:
        How many messages the batch contains.

    Raises:
        ConfigError: The column is missing, an option is invalid, or the user isn't allowed to ack.

    May also raise any error of `ack_batch`.
    """
    if every is not None:
        check_seconds("every", every)
    opened = session(ServerOptions.of(servers))
    need(df, "reply")
    replies = replies_of(df)
    if not replies:
        yield 0
        return
    try:
        wait = opened.run(_ack_wait(opened, replies)) if every is None else None
        opened.run(settle(opened.js, replies, AckKind.IN_PROGRESS.value))
    except PermissionDeniedError as error:
        raise not_permitted("servers", error, "messages are kept alive") from error
    # Pause for a third of ack_wait, so that two acks in a row may fail before the messages are redelivered.
    pause = float(every) if every is not None else (wait or 0.0) / 3
    beating = opened.start(_beat(opened, replies, pause, wait))
    try:
        yield len(replies)
    finally:
        beating.cancel()


async def _ack_wait(opened: Session, replies: Sequence[bytes]) -> float:
    """Return the shortest ``ack_wait`` of the consumers of these replies, in seconds."""
    one_of_each = {reply.rsplit(b".", 5)[0]: reply for reply in replies}
    waits: list[float] = []
    for reply in one_of_each.values():
        of = read_jsack(reply)
        waits.append(effective_ack_wait(await consumer_info(context_of(opened.js), of.stream, of.consumer)))
    return min(waits)


async def _beat(opened: Session, replies: Sequence[bytes], pause: float, wait: float | None) -> None:
    context = context_of(opened.js)
    alive_at = context.connection.now()
    while not opened.js.is_closed:
        await asyncio.sleep(pause)
        sent_at = context.connection.now()
        try:
            await confirm(context, replies, AckKind.IN_PROGRESS.value, timeout=max(1.0, pause))
        except JetStreamError as error:
            context.report(error)
            continue
        late, alive_at = context.connection.now() - alive_at, sent_at
        if wait is not None and late > wait:
            reason = f"no sign of life for {late:.1f} s"
            context.emit(ClaimsLapsed(count=len(replies), reason=reason))
