"""The writers of the sink: Spark creates them on the driver, runs them in tasks, and commits or aborts the write.

Spark creates a writer for each epoch and pickles it to the tasks. It calls commit and abort on another instance, which
only has the commit messages of the tasks.

Spark doesn't collect metrics from sinks in Python: ``lastProgress`` contains only ``numOutputRows`` of the sink. Counts
and sequences are logged to the logger ``jsclient.spark`` in a process that Spark starts on the driver. Warnings appear
on the driver's standard error. Each commit also logs a line of level INFO, which appears there if the driver's
environment has ``JSCLIENT_SPARK_LOG=info``. For a batch write, it is also in ``python_worker_logs()`` if
``spark.sql.pyspark.worker.logging.enabled`` is on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..._runtime.retry import PATIENT, Retry
from ...client import JetStream
from ...errors import ConfigError, JetStreamError, PermissionDeniedError, StreamNotFoundError
from ...protocol.models.stream_config import RetentionPolicy
from ...protocol.wire.header_names import MSG_ID
from ...protocol.wire.names import subject_matches
from ...streams.stream import Stream
from ..engine import Session, session
from ..options.sink import SinkOptions
from ..task_context import check_epoch, current_task, epoch_of
from .ledger import LedgerPlace, ensure_bucket, forget
from .own_sequences import shared_sequence
from .partition_writer import Outcome, PartitionWriter, WritePlan
from .row_columns import ONE_ROW_A_MESSAGE, RowShape, rows_shape

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "JetStreamBatchWriter",
    "JetStreamStreamWriter",
    "Written",
    "batch_text",
    "look",
    "make_audible",
    "report_dropped_headers",
    "summary",
    "write_all",
]

log: logging.Logger = logging.getLogger("jsclient.spark")

_LOG = "JSCLIENT_SPARK_LOG"
_KEEPS_LOGS = (
    "PYSPARK_SPARK_SESSION_UUID"  # environment variable set when Spark captures the logs of Python workers
)

_looked: dict[tuple[SinkOptions, object], str | None] = {}  # names of target streams, cached per process


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task."""

    partition: int  # number of the partition
    epoch: int  # the epoch that the task has determined; -1 if it did not need to
    outcome: Outcome  # the result of writing the partition


class _Writer:
    """Common base of the batch writer and the stream writer."""

    _ascending = False  # whether epochs are written in order

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises `ConfigError` if rows of this schema cannot be written with these options."""
        self._options = options
        self._shape = rows_shape(schema, options)
        self._ids = options.ids(column=self._shape.has_id)
        self._run = uuid.uuid4().hex[:16]  # shared by all tasks and their retries
        self._target: str | None = None

    def __getstate__(self) -> dict[str, object]:
        # Look up the target only when pickling for tasks: commit runs in another process and doesn't need it.
        key = (self._options, self._shape)
        if key not in _looked:
            opened = session(self._options.connect)
            _looked[key] = opened.run(look(opened.js, self._options, self._shape, ids=self._ids))
        self._target = _looked[key]
        return self.__dict__

    def _ledger(self, query: str) -> LedgerPlace | None:
        options = self._options
        if options.exactly_once != "ledger" or self._target is None:
            return None
        ascending = self._ascending and options.fail_on_older_checkpoint
        return LedgerPlace(options.ledger, query, self._target, self._run, ascending)

    def _needs_epoch(self) -> bool:
        return self._ids == "content" or self._options.exactly_once == "ledger"

    def _place(self) -> tuple[str, int]:
        """The query and the epoch; "" and -1 if they are not needed."""
        raise NotImplementedError

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = current_task()
        query, epoch = self._place()
        plan = WritePlan(self._options, self._shape, self._ids, query, epoch, self._ledger(query))
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(task.partition, epoch, Outcome())  # an empty partition needs no connection
        opened = session(self._options.connect)

        async def begin() -> PartitionWriter:
            writer = PartitionWriter(opened.js, plan, task)
            try:
                await writer.begin()
            except BaseException:
                await writer.close()
                raise
            return writer

        return Written(task.partition, epoch, write_all(opened, opened.run(begin()), first, batches))


class JetStreamStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the epochs of a streaming query.

    Args:
        query: The name of the query, for the log; "" if it has none.
    """

    _ascending = True

    def __init__(self, options: SinkOptions, schema: StructType, query: str = "") -> None:
        """Raises `ConfigError` if rows of this schema cannot be written with these options."""
        super().__init__(options, schema)
        self._query = query

    def _place(self) -> tuple[str, int]:
        return epoch_of() if self._needs_epoch() else ("", -1)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        written = _written(messages)
        check_epoch(batchId, (one.epoch for one in written if one.epoch >= 0))
        _refuse_shared(written, self._options)
        _report(batch_text(self._query, batchId), written, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        _report_abort(batch_text(self._query, batchId), messages, self._ids)


class JetStreamBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame. Retried tasks store no row twice."""

    def _place(self) -> tuple[str, int]:
        key = self._options.dedup_key
        if key is None:
            return self._run, 0
        write = self._options.dedup_write
        return f"{key}#{write}" if write else key, self._options.dedup_batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = _written(messages)
        _refuse_shared(written, self._options)
        _report("write", written, self._options)
        if self._options.dedup_key is not None:
            return
        # Without a dedup key, this write is never repeated.
        if (place := self._ledger(self._run)) is not None:
            opened = session(self._options.connect)
            try:
                opened.run(forget(opened.js, place))
            except JetStreamError as error:
                log.warning("the ledger of this write was not deleted: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _report_abort("write", messages, self._ids)


def batch_text(query: str, batch: int) -> str:
    """What log lines call a batch."""
    return f"query {query}, batch {batch}" if query else f"batch {batch}"


def write_all(
    opened: Session, writer: PartitionWriter, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
) -> Outcome:
    """Write all batches of a partition and close the writer. Raises the errors of `PartitionWriter`."""
    try:
        # Read the next batch while this one is being published.
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


def _refuse_shared(written: Sequence[Written], options: SinkOptions) -> None:
    """Raise `ConfigError` if two rows share a message, so that one of them is not stored."""
    if not any(one.outcome.duplicates or one.outcome.skipped for one in written):
        return  # each row made a new message
    shared = shared_sequence({one.partition: one.outcome.sequences or {} for one in written})
    if shared is None:
        return
    first, second = shared.partitions
    rows = f"two rows of partition {first}" if first == second else f"rows of partitions {first} and {second}"
    opened = session(options.connect)

    async def about() -> str:
        message = await (await opened.js.stream(shared.stream)).get_message(shared.sequence)
        msg_id = message.headers.get(MSG_ID) if message.headers else None
        made_from = (msg_id or "").rpartition(".")[0]
        return f"have subject {message.subject!r} and are made from message {made_from}"

    try:
        what = opened.run(about())
    except JetStreamError as error:
        what = f"are made from one message (which one is unknown: {error})"
    raise ConfigError(
        f"{rows} {what}. Only one of them is stored, as message {shared.sequence} of stream {shared.stream!r}: "
        f"{ONE_ROW_A_MESSAGE}"
    )


def _report(what: str, written: Sequence[Written], options: SinkOptions) -> None:
    """Log a summary of the write, and a warning for each anomaly."""
    make_audible()
    log.info("%s: %s", what, summary(written))
    strangers = sum(one.outcome.strangers for one in written)
    if strangers:
        log.warning(
            "%s was replayed with other rows: %d messages that an earlier run has stored are not among the rows that "
            "their partitions have now. If rows have only changed places they are stored twice; dedupScope=epoch "
            "prevents that",
            what,
            strangers,
        )
    report_dropped_headers(what, written)
    if options.exactly_once == "none":
        resent = sum(one.outcome.resent for one in written)
        if resent and not options.dedup:
            log.warning("%s: %d messages were sent again without an id and may be stored twice", what, resent)


_told_headers: set[str] = set()


def report_dropped_headers(what: str, written: Sequence[Written], told: set[str] = _told_headers) -> None:
    """Warn of dropped headers of the server, once in this process for each name."""
    names = {name for one in written for name in one.outcome.dropped_headers} - told
    if names:
        told |= names
        log.warning(
            "%s: headers of the server were dropped from the rows: %s. In the target stream they would be commands, "
            "such as a TTL or an expected sequence. Option headers=keep publishes them",
            what,
            ", ".join(sorted(names)),
        )


def make_audible() -> None:
    """Configure logging in the process that Spark starts for a commit, since users can't do it there."""
    if log.level != logging.NOTSET:
        return
    if os.environ.get(_LOG, "").lower() == "info":
        log.setLevel(logging.INFO)
        if not log.hasHandlers():
            log.addHandler(logging.StreamHandler())
    elif _KEEPS_LOGS in os.environ:
        log.setLevel(logging.INFO)


def summary(written: Sequence[Written]) -> str:
    """Describe what was stored."""
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


async def look(js: JetStream, options: SinkOptions, shape: RowShape, *, ids: str) -> str | None:
    """Check that the target can store the rows with the guarantees of the options. Returns the name of its stream.

    None: it depends on the rows. Logs a warning if the guarantees are weakened, and creates the ledger's bucket if one
    is needed.

    Raises:
        ConfigError: The target cannot store the rows.
    """
    try:
        return await Retry(PATIENT).run(lambda: _look(js, options, shape, ids))
    except PermissionDeniedError as error:
        if options.exactly_once == "ledger":
            raise ConfigError(
                f"{error}: a ledger needs the JetStream API (STREAM.INFO, STREAM.CREATE of its bucket, consumers "
                "of the target)"
            ) from error
        log.warning("%s: so it is not known for how long the target remembers message ids", error)
        return options.expected_stream


async def _look(js: JetStream, options: SinkOptions, shape: RowShape, ids: str) -> str | None:
    stream = await _find(js, options, shape)
    if stream is None:
        if options.exactly_once == "ledger":
            raise ConfigError("option 'expectedStream' is missing: the ledger has to know where the rows go")
        return None
    config = stream.config
    if config.sealed or config.mirror is not None:
        raise ConfigError(f"stream {stream.name!r} takes no messages: it is sealed, or a mirror")
    if shape.subject is not None and not any(
        subject_matches(one, shape.subject) for one in config.subjects or ()
    ):
        raise ConfigError(
            f"option 'subject' is {shape.subject!r}, which stream {stream.name!r} does not take: "
            f"its subjects are {', '.join(config.subjects or ()) or 'none'}"
        )
    if options.exactly_once == "ledger":
        if config.retention != RetentionPolicy.LIMITS:
            raise ConfigError(
                f"stream {stream.name!r} removes consumed messages ({config.retention} retention), so a ledger cannot "
                "know which rows were stored: set option 'exactlyOnce' to 'window'"
            )
        await ensure_bucket(js, options.ledger, config.num_replicas or 1)
    if ids != "none":
        _judge_window(stream.name, float(config.duplicate_window or 0), options)
    return stream.name


async def _find(js: JetStream, options: SinkOptions, shape: RowShape) -> Stream | None:
    name = options.expected_stream
    if name is None:
        if shape.has_subject or shape.subject is None:
            return None
        names = await js.stream_name_by_subject(shape.subject)
        if not names:
            raise ConfigError(
                f"no stream takes the subject {shape.subject!r} of option 'subject': create one, "
                "or look at account, 'domain' and 'prefix'"
            )
        name = names[0]
    try:
        return await js.stream(name)
    except StreamNotFoundError as error:
        raise ConfigError(
            f"stream {name!r} of option 'expectedStream' does not exist: create it, "
            "or look at account, 'domain' and 'prefix'"
        ) from error


def _judge_window(name: str, window: float, options: SinkOptions) -> None:
    tries = options.ack_timeout * (options.retries + 1)
    if options.exactly_once == "window" and window < options.min_duplicate_window:
        log.warning(
            "stream %r remembers message ids for %g s: rows that are written again later than that, as after a "
            "restart, are stored twice. Raise its duplicate_window, use exactlyOnce=ledger, or lower "
            "minDuplicateWindow (%g s)",
            name,
            window,
            options.min_duplicate_window,
        )
    elif window < tries:
        log.warning(
            "stream %r remembers message ids for %g s, but a row may be tried for %g s (ackTimeout, retries), and be "
            "stored twice then",
            name,
            window,
            tries,
        )
