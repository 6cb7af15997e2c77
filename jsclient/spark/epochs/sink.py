"""The sink that writes each micro-batch as an epoch: its tasks write rows, the driver commits or aborts the batch."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ..._runtime.retry import PATIENT, Retry
from ...client import JetStream
from ...errors import ConfigError, JetStreamError, TopicMismatchError
from ...protocol.epochs.frontier import Int
from ...protocol.topics.value_codec import JsonCodec
from ...topics.epochs.home import StreamHome
from ...topics.epochs.schema import make_schema, order_name
from ..engine import session
from ..options.epochs import EpochSinkOptions
from ..sink.partition_writer import Outcome
from ..sink.row_columns import rows_shape
from ..sink.spark_writer import Written, make_audible, summary, write_all
from ..task_context import check_epoch, current_task, epoch_of
from .ownership import Attempt, SinkTopic
from .writing import EpochPartitionWriter, EpochPlan, open_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["EpochStreamWriter", "EpochWritten"]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("jsclient.spark")


@dataclass(frozen=True)
class EpochWritten(Written):
    """The result of a task.

    Attributes:
        query: The id of the query.
        run: The id of the attempt to write the batch.
        place: The partition of the topic that the rows were written to; -1: no rows, or all were stored already.
    """

    query: str = ""
    run: str = ""
    place: int = -1


class EpochStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a streaming query as one epoch, whose time is the batch's number."""

    def __init__(self, options: EpochSinkOptions, schema: StructType) -> None:
        """
        Raises:
            ConfigError: Rows of this schema cannot be written with these options.
        """
        self._options = options
        self._shape = rows_shape(schema, options.write)
        if self._shape.has_subject:
            raise ConfigError(
                "the rows have a column 'subject', but those of an epoch go to the subjects of the topic: drop it"
            )
        self._ids = options.write.ids(column=self._shape.has_id)
        self._run = uuid.uuid4().hex[:12]  # the same for all tasks and their retries

    def __getstate__(self) -> dict[str, object]:
        # Called only to send this object to tasks: the topic is created before the first task runs.
        js = session(self._options.write.connect)
        js.run(_patiently(lambda: _topic(js.js, self._options)))
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EpochWritten:
        task = current_task()
        query, epoch = epoch_of()
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return EpochWritten(task.partition, epoch, Outcome(), query, self._run)
        opened = session(self._options.write.connect)
        plan = EpochPlan(self._options.write, self._shape, self._ids, Attempt.of(query, self._run, epoch))

        async def begin() -> tuple[EpochPartitionWriter | None, int]:
            return await open_writer(opened.js, plan, task, await _topic(opened.js, self._options))

        writer, place = opened.run(_patiently(begin))
        if writer is None:
            rows = first.num_rows + sum(batch.num_rows for batch in batches)
            return EpochWritten(task.partition, epoch, Outcome(rows=rows, skipped=rows), query, self._run)
        outcome = write_all(opened, writer, first, batches)
        return EpochWritten(task.partition, epoch, outcome, query, self._run, place)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = [one for one in messages if isinstance(one, EpochWritten)]
        if not written:
            return  # no task ran: the next batch completes this epoch as well
        check_epoch(batchId, (one.epoch for one in written))
        attempt = Attempt.of(written[0].query, written[0].run, batchId)
        places = {one.place for one in written}
        opened = session(self._options.write.connect)

        async def complete() -> None:
            topic = await _topic(opened.js, self._options)
            # Partition 0 decides: once it is completed, the batch is not written again.
            await topic.complete(0, attempt, written=0 in places)
            await asyncio.gather(
                *(topic.complete(one, attempt, written=one in places) for one in range(1, topic.partitions))
            )

        opened.run(_patiently(complete))
        make_audible()
        log.info("batch %d is an epoch of topic %r: %s", batchId, self._options.topic, summary(written))
        if strangers := sum(one.outcome.strangers for one in written):
            log.warning(
                "batch %d was replayed with other rows: epoch %d of topic %r has %d more, which an earlier try has "
                "stored. Rows that only changed their partitions are known with dedupScope=epoch, or a column msg_id",
                batchId,
                batchId,
                self._options.topic,
                strangers,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = [one for one in messages if isinstance(one, EpochWritten)]
        log.warning(
            "batch %d failed, so epoch %d of topic %r is open: nobody reads it before the batch was repeated. Of its "
            "tasks that ended well %s",
            batchId,
            batchId,
            self._options.topic,
            summary(written),
        )


async def _topic(js: JetStream, options: EpochSinkOptions) -> SinkTopic:
    """The topic, created if it does not exist.

    Raises:
        ConfigError: Its times are not integers >= 0, or its stream does not keep epochs whole.
        TopicMismatchError: It has a different number of partitions.
        JetStreamError: As any request.
    """
    home, order = StreamHome(js, options.topic, options.stream), Int()
    schema = await home.make(make_schema(order, JsonCodec(), options.partitions or 1), {})
    if schema.order != order_name(order):
        raise ConfigError(
            f"option 'epochs': the times of topic {options.topic!r} have the order {schema.order!r}, but the numbers "
            "of batches are whole numbers from 0 on (Int)"
        )
    if options.partitions not in (None, schema.partitions):
        raise TopicMismatchError(options.topic, [("partitions", options.partitions, schema.partitions)])
    return SinkTopic(js, home.stream, options.topic, order, schema.partitions)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry while the error is transient."""
    retry = Retry(PATIENT)
    while True:
        try:
            return await ask()
        except JetStreamError as error:
            if not await retry.again(error):
                raise
