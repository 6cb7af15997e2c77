"""The writers of the sink. Spark creates them on the driver, runs them in tasks, and commits or aborts the write.

Spark creates a writer for each epoch and pickles it for the tasks. It calls commit and abort on another instance, which
only receives the commit messages of the tasks.

Spark does not collect metrics from sinks in Python. ``lastProgress`` contains only ``numOutputRows`` of the sink.
Counts and sequences are logged to the logger ``jsclient.spark`` in a process that Spark starts on the driver. Warnings
appear on the driver's standard error. Each commit also logs a line of level INFO, which appears there if the driver's
environment has ``JSCLIENT_SPARK_LOG=info``. For a batch write, the line is also in ``python_worker_logs()`` if
``spark.sql.pyspark.worker.logging.enabled`` is on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ...errors import JetStreamError
from ...tables.session import Session, session
from ..options.sink import SinkOptions
from ..task_context import check_epoch, current_task, epoch_of
from .earlier_runs import RunLocation
from .ledger import LedgerLocation, forget
from .partition_writer import Outcome, PartitionWriter, WritePlan
from .rest_of_batch import publish_remainder
from .row_columns import RowShape, rows_shape
from .shared_rows import refuse_shared
from .target import Target, look

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "JetStreamBatchWriter",
    "JetStreamStreamWriter",
    "Written",
    "batch_text",
    "make_audible",
    "report_dropped_headers",
    "summary",
    "write_all",
]

log: logging.Logger = logging.getLogger("jsclient.spark")

_LOG = "JSCLIENT_SPARK_LOG"
# Environment variable that is set if Spark captures the logs of Python workers.
_KEEPS_LOGS = "PYSPARK_SPARK_SESSION_UUID"

_looked: dict[tuple[SinkOptions, RowShape, bool], Target] = {}  # targets that this process has looked up
_MOST_LOOKED = 100


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task."""

    partition: int  # number of the partition
    epoch: int  # the epoch that the task has determined, or -1 if it did not need an epoch
    outcome: Outcome  # the result of writing the partition
    query: str = ""  # the query that the task has determined


class _Writer:
    """Common base of the batch writer and the stream writer."""

    _ascending = False  # true if epochs are written in order

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Prepare a write. Raises `ConfigError` if rows of this schema cannot be written with these options."""
        self._options = options
        self._shape = rows_shape(schema, options)
        self._ids = options.ids(column=self._shape.has_id)
        self._run = uuid.uuid4().hex[:16]  # shared by all tasks and their retries
        self._target = Target(None, keeps_runs=False)

    def __getstate__(self) -> dict[str, object]:
        # Look up the target as late as possible, when this object is pickled for tasks. Commits run in another process
        # and do not need the target. The batch number passed to `publish_batch` does not affect the target, so exclude
        # the number from the key.
        options = replace(self._options, dedup_key=None, dedup_batch=None, dedup_write=0)
        key = (options, self._shape, self._repeatable())
        if key not in _looked:
            while len(_looked) >= _MOST_LOOKED:
                del _looked[next(iter(_looked))]
            opened = session(self._options.connect)
            looking = look(opened.js, options, self._shape, ids=self._ids, repeatable=self._repeatable())
            _looked[key] = opened.run(looking)
        self._target = _looked[key]
        return self.__dict__

    def _ledger(self, query: str) -> LedgerLocation | None:
        options = self._options
        if options.exactly_once != "ledger" or self._target.stream is None:
            return None
        ascending = self._ascending and options.fail_on_older_checkpoint
        return LedgerLocation(options.ledger, query, self._target.stream, self._run, ascending)

    def _runs(self, query: str) -> RunLocation | None:
        """Return where a batch's runs are recorded, or None if no record is kept or this write cannot be repeated."""
        if not self._target.keeps_runs or not self._repeatable():
            return None
        subject = "" if self._shape.has_subject else self._shape.subject or ""
        return RunLocation(self._options.ledger, query, self._run, subject)

    def _plan(self, query: str, epoch: int) -> WritePlan:
        return WritePlan(
            self._options,
            self._shape,
            self._ids,
            query,
            epoch,
            self._ledger(query),
            runs=self._runs(query),
            target=self._target.stream,
        )

    def _repeatable(self) -> bool:
        """Return whether the write may be repeated under the same ids."""
        return True

    def _needs_epoch(self) -> bool:
        return self._ids == "content" or self._options.exactly_once == "ledger"

    def _location(self) -> tuple[str, int]:
        """Return the query and the epoch, or "" and -1 if they are not needed."""
        raise NotImplementedError

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = current_task()
        query, epoch = self._location()
        plan = self._plan(query, epoch)
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(task.partition, epoch, Outcome(), query)  # an empty partition needs no connection
        opened = session(self._options.connect)
        subject = first.column("subject")[0].as_py() if self._shape.has_subject else None

        async def begin() -> PartitionWriter:
            writer = PartitionWriter(opened.js, plan, task)
            try:
                await writer.find_stored_rows(subject or self._shape.subject)
            except BaseException:
                await writer.close()
                raise
            return writer

        return Written(task.partition, epoch, write_all(opened, opened.run(begin()), first, batches), query)

    def _end_epoch(self, what: str, epoch: int, written: Sequence[Written]) -> None:
        """Check that no row was lost, publish the rows that tasks left open, and log the result."""
        refuse_shared(written, self._options)
        unmatched = self._publish_remainder(what, epoch, written)
        _report(what, written, self._options, unmatched)

    def _publish_remainder(self, what: str, epoch: int, written: Sequence[Written]) -> int:
        """Publish the rows that tasks left open. Returns the number of stored rows that the batch no longer has."""
        _report_unchecked(what, written)
        _report_unseen(what, written)
        _report_old(what, written)
        tasks = {one.partition: one.outcome.checked for one in written if one.outcome.rows}
        if not any(one is not None and one.open for one in tasks.values()):
            return sum(one.outcome.unmatched for one in written)
        opened = session(self._options.connect)
        plan = self._plan(written[0].query, epoch)
        remainder = opened.run(publish_remainder(opened.js, plan, tasks))
        log.warning(
            "%s was repeated with rows in other partitions, or with equal rows in several partitions. Its rows were "
            "compared with the stored ones; the driver has published %d",
            what,
            remainder.row_count,
        )
        return remainder.missing


class JetStreamStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer for the epochs of a streaming query.

    Args:
        query: The name of the query for the log, or "" if it has no name.
    """

    _ascending = True

    def __init__(self, options: SinkOptions, schema: StructType, query: str = "") -> None:
        """Prepare the writer. Raises `ConfigError` if rows of this schema cannot be written with these options."""
        super().__init__(options, schema)
        self._query = query

    def _location(self) -> tuple[str, int]:
        return epoch_of() if self._needs_epoch() else ("", -1)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = _written(messages)
        check_epoch(batchId, (one.epoch for one in written if one.epoch >= 0))
        self._end_epoch(batch_text(self._query, batchId), batchId, written)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        _report_abort(batch_text(self._query, batchId), messages, self._ids)


class JetStreamBatchWriter(_Writer, DataSourceArrowWriter):
    """Writer for a DataFrame as a batch. Retried tasks store no row twice."""

    def _repeatable(self) -> bool:
        return self._options.dedup_key is not None

    def _location(self) -> tuple[str, int]:
        key = self._options.dedup_key
        if key is None:
            return self._run, 0
        write = self._options.dedup_write
        return f"{key}#{write}" if write else key, self._options.dedup_batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = _written(messages)
        self._end_epoch("write", self._options.dedup_batch or 0, written)
        if self._options.dedup_key is not None:
            return
        # Without a dedup key, this write is never repeated, so its record in the ledger can be removed.
        if (location := self._ledger(self._run)) is not None:
            opened = session(self._options.connect)
            try:
                opened.run(forget(opened.js, location))
            except JetStreamError as error:
                log.warning("the ledger of this write was not deleted: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _report_abort("write", messages, self._ids)


def batch_text(query: str, batch: int) -> str:
    """Return the text that names a batch in log lines."""
    return f"query {query}, batch {batch}" if query else f"batch {batch}"


def write_all(
    opened: Session, writer: PartitionWriter, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
) -> Outcome:
    """Write all batches of a partition and close the writer. Raises the same errors as `PartitionWriter`."""
    try:
        # Overlap the two steps: the iterator reads the next batch while this one is being published.
        writing = opened.start(writer.write(first))
        for batch in batches:
            _wait(writing)
            writing = opened.start(writer.write(batch))
        _wait(writing)
        return opened.run(writer.finish())
    except BaseException:
        with contextlib.suppress(Exception):
            opened.run(writer.close())
        raise


def _wait(writing: Future[None]) -> None:
    try:
        writing.result()
    except BaseException:
        writing.cancel()
        raise


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [one for one in messages if isinstance(one, Written)]


def _report(what: str, written: Sequence[Written], options: SinkOptions, unmatched: int) -> None:
    """Log a summary of the write, and a warning for each anomaly."""
    make_audible()
    log.info("%s: %s", what, summary(written))
    if unmatched:
        log.warning(
            "%s was replayed with other rows: %d messages that an earlier run has stored are not among its rows now. "
            "If their content differs each time, as with the current time, use a column msg_id or dedup=source",
            what,
            unmatched,
        )
    report_dropped_headers(what, written)
    if options.exactly_once == "none":
        resent = sum(one.outcome.resent for one in written)
        if resent and not options.dedup:
            log.warning("%s: %d messages were sent again without an id and may be stored twice", what, resent)


_reported_headers: set[str] = set()


def report_dropped_headers(
    what: str, written: Sequence[Written], reported: set[str] = _reported_headers
) -> None:
    """Warn about dropped headers of the server, once in this process for each name."""
    names = {name for one in written for name in one.outcome.dropped_headers} - reported
    if names:
        reported |= names
        log.warning(
            "%s: headers of the server were dropped from the rows: %s. In the target stream they would be commands, "
            "such as a TTL or an expected sequence. Option headers=keep publishes them",
            what,
            ", ".join(sorted(names)),
        )


_reported_unchecked: set[str] = set()


def _report_unchecked(what: str, written: Sequence[Written]) -> None:
    """Warn that moved rows would not be recognized, once in this process for each reason."""
    reasons = {one.outcome.unchecked for one in written} - {""}
    checked = {one.outcome.checked.stream for one in written if one.outcome.checked is not None}
    if checked and len(streams := checked.union(*(one.outcome.streams for one in written))) > 1:
        reasons.add(f"its rows go to several streams ({', '.join(sorted(streams))})")
    for reason in sorted(reasons - _reported_unchecked):
        _reported_unchecked.add(reason)
        log.warning(
            "%s: rows cannot be compared with those that earlier runs of the batch have stored, because %s. If it was "
            "repeated with rows in other partitions, they are stored twice. A column msg_id, dedup=source or "
            "dedupScope=epoch prevents that",
            what,
            reason,
        )


def _report_unseen(what: str, written: Sequence[Written]) -> None:
    """Warn about rows that the stream took for repetitions of messages, if the task could not compare the two."""
    for reason in sorted({one.outcome.unseen for one in written} - {""}):
        log.warning(
            "%s: the stream has left out rows whose msg_id it knew. Whether the stored messages have their subjects is "
            "unknown, because %s. If two rows with different subjects have one msg_id, one of them is not stored",
            what,
            reason,
        )


def _report_old(what: str, written: Sequence[Written]) -> None:
    """Warn about rows that were omitted because of a run long ago, perhaps of another program or checkpoint."""
    times = [one.outcome.checked.old for one in written if one.outcome.checked is not None]
    if latest := max(times, default=0):
        log.warning(
            "%s has rows that a run at %s had stored, so they are not stored again. That is right if the same batch is "
            "repeated. A new checkpoint, or another program, needs another query= or dedupKey",
            what,
            datetime.fromtimestamp(latest, UTC).isoformat(),
        )


def make_audible() -> None:
    """Configure logging in the process that Spark starts for a commit, because users cannot do it there."""
    if log.level != logging.NOTSET:
        return
    if os.environ.get(_LOG, "").lower() == "info":
        log.setLevel(logging.INFO)
        if not log.hasHandlers():
            log.addHandler(logging.StreamHandler())
    elif _KEEPS_LOGS in os.environ:
        log.setLevel(logging.INFO)


def summary(written: Sequence[Written]) -> str:
    """Return a sentence about the rows that were stored."""
    outcomes = [one.outcome for one in written]
    rows = sum(one.rows for one in outcomes)
    streams = sorted({name for one in outcomes for name in one.streams})
    first = min((one.first_seq for one in outcomes if one.first_seq), default=0)
    last = max((one.last_seq for one in outcomes), default=0)
    known = sum(one.duplicates for one in outcomes), sum(one.skipped for one in outcomes)
    text = f"{rows} rows of {len(outcomes)} partitions are stored"
    if first:
        text += f" in {', '.join(streams)}, sequences {first} to {last}"
    return f"{text}; {sum(known)} of them were before ({known[0]} by the window, {known[1]} by the ledger)"


def _report_abort(what: str, messages: Sequence[WriterCommitMessage | None], ids: str) -> None:
    written = _written(messages)
    then = (
        "without message ids they are stored again when it is repeated"
        if ids == "none"
        else "they are not stored again when it is repeated"
    )
    log.warning(
        "%s failed. Its successful tasks: %s; the errors of the others contain their counts. Messages cannot be taken "
        "back: %s",
        what,
        summary(written),
        then,
    )
