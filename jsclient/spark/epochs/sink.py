"""The sink that writes each micro-batch as an epoch. Tasks write rows, and the driver commits or aborts the epoch."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ..._runtime.retry import PATIENT, Retry
from ...client import JetStream
from ...errors import ConfigError, TopicMismatchError
from ...protocol.epochs.frontier import Int
from ...protocol.epochs.records import EPOCH, PRODUCER, make_schema, order_name
from ...protocol.topics.record_codec import KIND
from ...protocol.topics.value_codec import JsonCodec
from ...tables.session import session
from ...topics.epochs.home import StreamHome
from ..options.epochs import EpochSinkOptions
from ..options.sink import SinkOptions
from ..sink.partition_writer import Outcome, PartitionWriter, WritePlan
from ..sink.row_columns import RowShape, rows_shape
from ..sink.shared_rows import refuse_different
from ..sink.spark_writer import Written, batch_text, make_audible, summary, write_all
from ..task_context import Task, check_epoch, current_task, epoch_of
from .ownership import Owned, SinkTopic, WriteAttempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["EpochStreamWriter", "EpochWritten"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_OWN_HEADERS = frozenset({EPOCH, PRODUCER, KIND})


@dataclass(frozen=True)
class EpochWritten(Written):
    """The result of a task that writes an epoch."""

    query: str = ""
    run: str = ""  # the id of the attempt to write the batch
    # The topic's partition that contains the rows, or -1 if there were no rows or all of them were already stored.
    topic_partition: int = -1


class EpochStreamWriter(DataSourceStreamArrowWriter):
    """Writer for the micro-batches of a streaming query. Each batch is an epoch, whose time is the batch's number.

    Args:
        options: The options of the sink.
        schema: The schema of the rows.
        query: The name of the query for the log, or "" if it has no name.

    Raises:
        ConfigError: Rows of this schema cannot be written with these options.
    """

    def __init__(self, options: EpochSinkOptions, schema: StructType, query: str = "") -> None:
        self._options = options
        self._query = query
        self._shape = rows_shape(schema, options.write)
        if self._shape.has_subject:
            raise ConfigError(
                "the rows have a column 'subject', but those of an epoch go to the subjects of the topic: drop it"
            )
        self._ids = options.write.ids(column=self._shape.has_id)
        self._run = uuid.uuid4().hex[:12]  # the same for all tasks and their retries

    def __getstate__(self) -> dict[str, object]:
        # Spark pickles this object only to send it to tasks, so create the topic here, before the first task runs.
        js = session(self._options.write.connect)
        js.run(Retry(PATIENT).run(lambda: _topic(js.js, self._options)))
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EpochWritten:
        task = current_task()
        query, epoch = epoch_of()
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return EpochWritten(task.partition, epoch, Outcome(), query, self._run)
        opened = session(self._options.write.connect)
        attempt = WriteAttempt.of_epoch(query, self._run, epoch)
        plan = epoch_plan(self._options.write, self._shape, self._ids, attempt)

        async def begin() -> tuple[PartitionWriter | None, int]:
            return await open_writer(opened.js, plan, attempt, task, await _topic(opened.js, self._options))

        writer, partition = opened.run(Retry(PATIENT).run(begin))
        if writer is None:
            rows = first.num_rows + sum(batch.num_rows for batch in batches)
            return EpochWritten(task.partition, epoch, Outcome(rows=rows, skipped=rows), query, self._run)
        outcome = write_all(opened, writer, first, batches)
        return EpochWritten(task.partition, epoch, outcome, query, self._run, partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = [result for result in messages if isinstance(result, EpochWritten)]
        if not written:
            return  # no task has run, and the next batch completes this epoch as well
        check_epoch(batchId, (result.epoch for result in written))
        attempt = WriteAttempt.of_epoch(written[0].query, written[0].run, batchId)
        refuse_different(written)
        partitions = {result.topic_partition for result in written}
        opened = session(self._options.write.connect)

        async def complete() -> None:
            topic = await _topic(opened.js, self._options)
            # Partition 0 decides whether the batch is committed. Once it is completed, the batch is never written
            # again.
            await topic.complete(0, attempt, written=0 in partitions)
            await asyncio.gather(
                *(
                    topic.complete(one, attempt, written=one in partitions)
                    for one in range(1, topic.partitions)
                )
            )

        opened.run(Retry(PATIENT).run(complete))
        make_audible()
        batch = batch_text(self._query, batchId)
        log.info("%s is an epoch of topic %r: %s", batch, self._options.topic, summary(written))
        if unmatched := sum(result.outcome.unmatched for result in written):
            log.warning(
                "%s was replayed with other rows: epoch %d of topic %r has %d more, which an earlier try has "
                "stored. Rows that only changed their partitions are known with dedupScope=epoch, or a column msg_id",
                batch,
                batchId,
                self._options.topic,
                unmatched,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = [one for one in messages if isinstance(one, EpochWritten)]
        log.warning(
            "%s failed, so epoch %d of topic %r stays open, and is not read until the batch is repeated. Its "
            "successful tasks: %s",
            batch_text(self._query, batchId),
            batchId,
            self._options.topic,
            summary(written),
        )


async def _topic(js: JetStream, options: EpochSinkOptions) -> SinkTopic:
    """Return the topic, which is created if it does not exist.

    Raises:
        ConfigError: The topic's times are not integers >= 0, or its stream does not keep epochs whole.
        TopicMismatchError: The topic has a different number of partitions.
    """
    home, order = StreamHome(js, options.topic, options.stream), Int()
    schema = await home.make(make_schema(order, JsonCodec(), options.partitions or 1), {})
    if schema.order != order_name(order):
        raise ConfigError(
            f"option 'epochs': the times of topic {options.topic!r} have the order {schema.order!r}, but the numbers "
            "of batches are integers from 0 on (Int)"
        )
    if options.partitions not in (None, schema.partitions):
        raise TopicMismatchError(options.topic, [("partitions", options.partitions, schema.partitions)])
    return SinkTopic(js, home.stream, options.topic, order, schema.partitions)


def epoch_plan(options: SinkOptions, shape: RowShape, ids: str, attempt: WriteAttempt) -> WritePlan:
    """Return the plan by which the tasks of an attempt write rows.

    The prefix of message ids differs between attempts, so that a late message of another attempt never makes a row of
    this attempt a duplicate.
    """
    prefix = f"{attempt.query}.{attempt.epoch:x}.{attempt.run}.".encode()
    # A repeated batch may move rows to other partitions, whose subjects differ, so ids must not depend on subjects.
    return WritePlan(options, shape, ids, attempt.query, attempt.epoch, None, prefix, subject_in_ids=False)


def _known(prefix: bytes, ids: list[str]) -> dict[bytes, int]:
    """Return the rows that attempts of the batch have stored under these ids, for `PartitionWriter.stored`."""
    query, epoch, _, own = prefix.decode().split(".", 3)
    known: dict[bytes, int] = {}
    for id_ in ids:
        parts = id_.split(".", 3)
        if parts[:2] != [query, epoch] or len(parts) < 4:
            continue  # the id belongs to another batch
        if parts[3].startswith(own):
            known[parts[3].removeprefix(own).encode()] = 1
    return known


async def open_writer(
    js: JetStream, plan: WritePlan, attempt: WriteAttempt, task: Task, topic: SinkTopic
) -> tuple[PartitionWriter | None, int]:
    """Take a partition of the topic and open its writer.

    Returns:
        The writer, or None if the batch is already committed, and the number of the partition.

    Raises:
        ProducerFencedError: Another query owns the topic.
    """
    partition = task.partition % topic.partitions
    if await topic.is_completed(attempt):
        return None, partition
    # If rows may move between partitions, another attempt may have stored them in any partition, so take over all
    # partitions.
    partitions = [partition] if plan.by_task else [*range(topic.partitions)]
    owned: dict[int, Owned] = {number: await topic.take_partition(number, attempt) for number in partitions}
    shape = replace(plan.shape, subject=topic.subject(partition), has_subject=False)
    line = f"{EPOCH}: {attempt.epoch}\r\n{PRODUCER}: {owned[partition].entry.producer}\r\n".encode()
    writer = PartitionWriter(js, replace(plan, shape=shape, line=line, reserved=_OWN_HEADERS), task)
    try:
        for number, last in owned.items():
            again = task.attempt > 0
            if again or last.may_have(attempt.epoch):
                ids = await topic.stored(number, attempt, last, also_own=again)
                writer.stored |= _known(writer.prefix, ids)
    except BaseException:
        await writer.close()
        raise
    return writer, partition
