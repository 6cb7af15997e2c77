"""Publish one partition. Each row ends up stored, rejected with an error, or counted as unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..._runtime.retry import PATIENT, Retry, RetryPolicy, is_transient
from ...client import JetStream
from ...errors import (
    ApiError,
    ClosedError,
    ConfigError,
    ConsumerLimitError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...publishing.bulk import BulkPublisher, Failed
from ...streams.stream import Stream
from ...tables.session import context_of
from ..options.sink import SinkOptions
from ..task_context import Task
from .column_ids import ColumnIds
from .earlier_runs import MISSING, EarlierRuns, NotRecordedError, RunLocation, why_removed, why_unseen
from .ledger import Ledger, LedgerLocation
from .message_ids import ContentIds, SourceIds, epoch_prefix
from .moved_rows import Checked, StoredRows
from .own_sequences import RowSequences, SequenceRanges
from .row_columns import RowMessages, RowReader, RowShape, set_headers, whole_headers
from .row_error import BadRow, RowError, advice, is_passing
from .row_keys import RowKeys
from .stored_ids import each_stored, stored_ids

__all__ = ["Outcome", "PartitionWriter", "WritePlan"]

_UNKNOWN = (RequestTimeoutError, DisconnectedError, ClosedError)  # the message may or may not be stored
_ROWS = 16_384  # rows prepared per step, which blocks the event loop for some milliseconds
_STEP = 1024 * 1024  # bytes of payloads prepared per step, which fit into the processor's cache
_LOOK = 1.5  # seconds without an ack after which the stream of the unanswered rows is looked up
# The limit of consumers may be reached for a moment, because other tasks have consumers too.
_READING = RetryPolicy(0.25, 1.0, patience=5.0, also=(ConsumerLimitError,))
_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # seconds before a retry


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The settings that all tasks of a write share."""

    options: SinkOptions
    shape: RowShape
    ids: str  # where message ids come from: "content", "source", "column" or "none"
    query: str
    epoch: int
    ledger: LedgerLocation | None
    prefix: bytes = b""  # common prefix of the message ids. If empty, it is made from query and epoch
    line: bytes = b""  # additional header lines of every message
    subject_in_ids: bool = True  # true if equal rows with different subjects get different ids
    reserved: frozenset[str] = frozenset()  # names of additional headers that rows cannot set
    runs: RunLocation | None = None  # the record of the runs of the batch, or None if no record is kept
    target: str | None = None  # name of the target stream, or None if it depends on the rows

    @property
    def by_task(self) -> bool:
        """Whether message ids identify rows only within their partition."""
        return self.ids == "content" and self.options.dedup_scope == "partition"

    def subject_in(self, target: Stream) -> str | None:
        """Return the subject that all rows have in the target, or None if it varies or is transformed."""
        if self.shape.has_subject or target.cached_info.config.subject_transform is not None:
            return None
        return self.shape.subject


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of writing a partition."""

    rows: int = 0  # number of rows, all of which are stored
    duplicates: int = 0  # rows that were already stored, according to the stream's duplicate window
    skipped: int = 0  # rows that were already stored, according to the ledger
    # Number of messages that an earlier run of the epoch stored in this partition, but that match none of its current
    # rows.
    unmatched: int = 0
    resent: int = 0  # number of messages that were sent again
    first_seq: int = 0  # first sequence of the newly stored messages, or 0 if no message is new
    last_seq: int = 0  # last sequence of the newly stored messages, or 0
    streams: tuple[str, ...] = ()  # names of the streams that store the messages
    dropped_headers: frozenset[str] = frozenset()  # names of the server's headers that were dropped from rows
    # Sequences of all rows by stream, or None if not recorded.
    sequences: dict[str, SequenceRanges] | None = None
    # The comparison with earlier runs of the batch, or None without a comparison.
    checked: Checked | None = None
    unchecked: str = ""  # the reason why the rows could not be compared with the rows of earlier runs, or ""
    keys: RowKeys | None = None  # keys of all rows with ids from a column, or None if not recorded
    # With IDs from a column: the reason why it is unknown whether rows were dropped as duplicates of messages with
    # different subjects, or "".
    unseen: str = ""


class PartitionWriter:
    """Publisher of the batches of one partition. Use it on the event loop, and not after an error.

    Attributes:
        prefix: The common prefix of the message ids.
        stored: Sequences of the rows that an earlier attempt has stored, by message id without the prefix.
    """

    def __init__(self, js: JetStream, plan: WritePlan, task: Task) -> None:
        options = plan.options
        self._js = js
        self._plan = plan
        self._task = task
        line, replaced = set_headers(plan.ids, options.expected_stream)
        self._line = line + plan.line
        self._reader = RowReader(
            plan.shape,
            replaced | plan.reserved,
            SourceIds(options.dedup_write),
            keep=options.headers == "keep",
        )
        self._bulk = BulkPublisher(
            context_of(js),
            max_in_flight=options.window,
            max_bytes=options.window_bytes,
            timeout=options.ack_timeout,
            repeatable=plan.ids != "none",
        )
        self._column = _column_ids(plan)
        self._sequences = RowSequences() if plan.ids == "source" else None
        if self._column is not None and plan.subject_in_ids:
            self._sequences = self._column.sequences
            self._bulk.tally.on_acks, self._bulk.tally.on_run = (
                self._column.add_acks,
                self._sequences.add_stored,
            )
        elif self._sequences is not None:
            self._bulk.tally.on_acks, self._bulk.tally.on_run = (
                self._sequences.add_acks,
                self._sequences.add_stored,
            )
        self._ids = _ids(plan, task)
        self.prefix: bytes = plan.prefix if self._ids is None else self._ids.prefix
        self.stored: dict[bytes, int] = {}
        self._earlier: StoredRows | None = None
        self._unchecked = ""
        self._rows = 0  # rows received
        self._skipped = 0
        self._taken: set[str] = set()  # subjects that got no response although a stream has them

    async def find_stored_rows(self, subject: str | None = None) -> None:
        """Find the rows that are already stored. Must be called before the first batch.

        Args:
            subject: The subject of the first row, which determines the target if the plan does not name it.
        """
        runs = self._plan.runs
        if runs is not None and self._plan.by_task:
            await Retry(PATIENT).run(lambda: self._look_for_earlier_runs(runs, subject))
        location = self._plan.ledger
        if location is None:
            return
        target = await self._js.stream(location.target)
        start = await Ledger(self._js, location, self._plan.epoch, self._task).begin_epoch(target)
        if start:
            self.stored = await stored_ids(target, start, self.prefix, self._plan.subject_in(target))

    async def _look_for_earlier_runs(self, location: RunLocation, subject: str | None) -> None:
        """Find the rows that earlier runs of the batch have stored, in any partition."""
        plan = self._plan
        try:
            name = plan.target or await _stream_of(self._js, subject)
            if name is None:
                return  # no stream was found, so the first row is refused when it is written
            target = await Retry(MISSING).run(lambda: self._js.stream(name))
            earlier = EarlierRuns(self._js, location, plan.epoch)
            sequences = await earlier.sequences(target)
        except (PermissionDeniedError, StreamNotFoundError, NotRecordedError) as error:
            self._unchecked = f"the record of runs cannot be used ({error})"
            return
        if not sequences:
            return
        if not sequences.start:
            self._unchecked = "the record of runs does not reach back to it"
            return
        self._unchecked = why_unseen(target, keeps_headers=plan.options.headers == "keep")
        if self._unchecked:
            return
        try:
            rows = await Retry(_READING).run(lambda: self._read_stored(target, sequences, earlier.time))
        except (ApiError, PermissionDeniedError) as error:
            if is_transient(error):
                raise
            self._unchecked = f"stream {name!r} cannot be read ({error})"
            return
        # The read doesn't notice that messages of the range were removed. Check for removals after the read, so that
        # messages removed while it ran are noticed too.
        self._unchecked = await why_removed(target, sequences)
        if not self._unchecked:
            self._earlier, self.stored = rows, rows.own

    async def _read_stored(self, target: Stream, sequences: range, began: int) -> StoredRows:
        plan = self._plan
        window = float(target.cached_info.config.duplicate_window or 0)
        # With a ledger, the user expects repetitions even after a long time, so they are not reported.
        old = began if plan.ledger is None and 0 < began < time.time() - window else 0
        prefix = epoch_prefix(plan.query, plan.epoch)
        rows = StoredRows(target.name, sequences, self._task.partition, old=old)
        async for suffix, sequence, _ in each_stored(target, sequences, prefix, plan.subject_in(target)):
            rows.add_row(suffix, sequence)
        return rows

    async def write(self, batch: pa.RecordBatch) -> None:
        """Publish a batch. Waits for capacity in the window, but not for the acks.

        Raises:
            RowError: A row cannot be published. No message remains in flight.
            JetStreamError: The connection failed.
        """
        step = _rows_of_step(batch.column(self._plan.shape.data))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            try:
                messages = self._reader.read_batch(part)
                if self._column is not None:
                    self._column.add_rows(messages, self._rows)
                tails = self._tails(messages)
            except BadRow as bad:
                raise await self._bad(bad, part) from None
            except ConfigError as error:
                raise await self._failed(error) from error
            blocks = whole_headers(self._line, self.prefix, tails, messages.blocks, part.num_rows)
            rows: Sequence[int] = range(self._rows, self._rows + part.num_rows)
            self._rows += part.num_rows
            subjects, payloads = messages.subjects, messages.payloads
            if (self.stored or self._earlier is not None) and tails is not None:
                kept = self._not_stored(tails)
                self._skipped += len(rows) - len(kept)
                rows = [rows[at] for at in kept]
                subjects, payloads = [subjects[at] for at in kept], [payloads[at] for at in kept]
                blocks = [blocks[at] for at in kept]
            await self._send_rows(rows, subjects, blocks, payloads)

    def _not_stored(self, tails: Sequence[bytes]) -> list[int]:
        """Return the indexes of the rows that the task has to publish."""
        if self._sequences is None:
            kept = [at for at, tail in enumerate(tails) if self.stored.pop(tail, None) is None]
            if self._earlier is None:
                return kept
            return [at for at in kept if not self._earlier.is_open(tails[at])]
        # Don't remove ids from `stored`, because another row may have the same id.
        known = [self.stored.get(tail, 0) for tail in tails]
        location = self._plan.ledger
        assert location is not None
        (self._column or self._sequences).add_stored(location.target, [seq for seq in known if seq])
        return [at for at, seq in enumerate(known) if not seq]

    def _tails(self, messages: RowMessages) -> list[bytes] | None:
        if self._ids is None:
            return messages.ids if self._plan.ids in ("column", "source") else None
        subjects = messages.subjects if self._plan.subject_in_ids else [b""] * len(messages.subjects)
        return self._ids.tails(subjects, messages.blocks, messages.payloads)

    async def finish(self) -> Outcome:
        """Wait until all rows are stored, close the publisher, and return the outcome.

        Raises:
            RowError: A row was rejected, or it is unknown whether a row is stored.
        """
        await self._settle()
        await self._recover()
        unseen = "" if self._column is None else await self._check_repetitions(self._column)
        tally = self._bulk.tally
        await self.close()
        return Outcome(
            rows=self._rows,
            duplicates=tally.duplicates,
            skipped=self._skipped,
            unmatched=len(self.stored) if self._plan.by_task else 0,
            resent=self._bulk.resent,
            first_seq=tally.first_seq,
            last_seq=tally.last_seq,
            streams=tuple(sorted(tally.streams)),
            dropped_headers=frozenset(self._reader.dropped),
            sequences=None if self._sequences is None else self._sequences.ranges(),
            checked=None if self._earlier is None else self._earlier.result(self.stored),
            unchecked=self._unchecked,
            keys=None if self._column is None else self._column.keys,
            unseen=unseen,
        )

    async def _check_repetitions(self, column: ColumnIds) -> str:
        """Compare rows with the messages that they repeat. Returns why some could not be read, or ""."""
        try:
            return await column.check_repetitions(self._js)
        except BadRow as bad:
            raise await self._error(bad.row, "", bad.column, bad.reason) from None
        except JetStreamError as error:
            raise await self._failed(error) from error

    async def close(self) -> None:
        """Close the publisher. The outcome of messages in flight remains unknown."""
        await self._bulk.close()

    async def publish(
        self, subjects: Sequence[bytes], blocks: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        """Publish complete messages, whose headers include their ids. Raises the same errors as `write`."""
        rows = range(self._rows, self._rows + len(payloads))
        self._rows += len(payloads)
        await self._send_rows(rows, subjects, blocks, payloads)

    async def _send_rows(
        self,
        rows: Sequence[int],
        subjects: Sequence[bytes],
        blocks: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> None:
        bulk, done, tries = self._bulk, 0, 0
        while done < len(rows):
            before = bulk.sent
            error: JetStreamError | None = None
            try:
                await bulk.send(rows[done:], subjects[done:], blocks[done:], payloads[done:])
            except JetStreamError as raised:
                error = raised
            done += bulk.sent - before
            tries = 0 if bulk.sent > before else tries
            await self._recover()
            if error is None:
                continue
            # The row at which sending stopped was not sent, so the error names that row.
            if not isinstance(error, RequestTimeoutError) or tries >= self._plan.options.retries:
                about = "data" if isinstance(error, MaxPayloadError) else ""
                raise await self._failed(error, rows[done], subjects[done].decode(), about) from error
            tries += 1
            await _pause(tries)

    async def _recover(self) -> None:
        """If messages have failed, wait for all other messages, and resend the failed messages.

        Raises `RowError` if an error is permanent, or if the retries are used up.
        """
        bulk, tries = self._bulk, 0
        while bulk.failures:
            await bulk.settle()
            failures, bulk.failures = sorted(bulk.failures, key=lambda one: one.row), []
            for one in failures:
                final = not is_passing(one.error) or tries >= self._plan.options.retries
                if final or (not tries and await self._has_no_stream(one)):
                    raise await self._refused_row(one, failures) from one.error
            tries += 1
            await _pause(tries)
            try:
                await self._again(failures)
            except JetStreamError as error:
                bulk.failures = failures
                raise await self._failed(error) from error
            await bulk.settle()

    async def _settle(self) -> None:
        """Wait until no message is in flight. Raises `RowError` early if no stream has the subject of a row."""
        settling = asyncio.ensure_future(self._bulk.settle())
        try:
            done, _ = await asyncio.wait({settling}, timeout=_LOOK)
            refused = None if done or self._bulk.tally.stored else self._bulk.refused
            if refused is not None and await self._has_no_stream(refused):
                raise RowError(
                    self._task.partition,
                    refused.row,
                    refused.entry.to,
                    "",
                    self._advice(refused.error),
                    self._skipped,
                    0,
                ) from None
            await settling
        finally:
            settling.cancel()

    async def _has_no_stream(self, one: Failed) -> bool:
        """Return whether a row got no response because no stream has its subject. Returns False if unknown."""
        if not isinstance(one.error, NoRespondersError) or one.entry.to in self._taken:
            return False
        try:
            names = await self._js.stream_name_by_subject(one.entry.to)
        except JetStreamError:
            return False
        if names:
            self._taken.add(one.entry.to)  # the stream has no leader at the moment
        return not names

    async def _again(self, failures: Sequence[Failed]) -> None:
        bulk = self._bulk
        before = bulk.sent
        try:
            await bulk.send(
                [one.row for one in failures],
                [one.entry.subject for one in failures],
                [one.entry.header for one in failures],
                [one.entry.payload for one in failures],
            )
        except RequestTimeoutError as error:  # still not connected
            at = bulk.sent - before
            bulk.failures += [Failed(one.row, one.entry, error) for one in failures[at:]]
        else:
            bulk.failures += failures[bulk.sent - before :]  # the rows after the one at which `send` stopped

    async def _bad(self, bad: BadRow, part: pa.RecordBatch) -> RowError:
        subject = self._plan.shape.subject or ""
        if self._plan.shape.has_subject:
            found = part.column("subject").cast(pa.binary())[bad.row].as_py()
            subject = subject if found is None else found.decode(errors="replace")
        return await self._error(self._rows + bad.row, subject, bad.column, bad.reason)

    async def _refused_row(self, one: Failed, failures: Sequence[Failed]) -> RowError:
        self._bulk.failures = list(failures)
        return await self._error(one.row, one.entry.to, "", self._advice(one.error))

    async def _failed(
        self, error: JetStreamError, row: int = -1, subject: str = "", column: str = ""
    ) -> RowError:
        return await self._error(row, subject, column, self._advice(error))

    def _advice(self, error: JetStreamError) -> str:
        return advice(error, self._plan.options.connect.servers)

    async def _error(self, row: int, subject: str, column: str, reason: str) -> RowError:
        """Wait until all other messages are settled, then build the error."""
        await self._bulk.settle()
        unknown = sum(isinstance(one.error, _UNKNOWN) for one in self._bulk.failures)
        return RowError(
            self._task.partition,
            row,
            subject,
            column,
            reason,
            self._bulk.tally.stored + self._skipped,
            unknown,
        )


def _rows_of_step(payloads: pa.Array) -> int:
    """Return how many rows to prepare together, given their mean size."""
    mean: int = payloads.nbytes // max(1, len(payloads))
    return max(1, min(_ROWS, _STEP // max(1, mean)))


def _column_ids(plan: WritePlan) -> ColumnIds | None:
    options = plan.options
    # Also look for ids if headers are kept, because the headers may contain ids.
    kept = plan.ids == "none" and options.headers == "keep" and plan.shape.has_headers
    if not kept and plan.ids != "column":
        return None
    # In epochs, an id identifies a row regardless of its subject, because the subject depends on the partition.
    in_epoch = not plan.subject_in_ids
    return ColumnIds(
        one_stream=in_epoch or plan.target is not None or options.expected_stream is not None,
        column="headers" if kept else "msg_id",
        with_subjects=not in_epoch,
    )


def _ids(plan: WritePlan, task: Task) -> ContentIds | None:
    if plan.ids != "content":
        return None
    prefix = plan.prefix or epoch_prefix(plan.query, plan.epoch)
    return ContentIds(prefix, task.partition if plan.by_task else None)


async def _stream_of(js: JetStream, subject: str | None) -> str | None:
    """Return the name of the stream that has a subject, or None if no stream has it or the subject is invalid."""
    if subject is None:
        return None
    try:
        names = await js.stream_name_by_subject(subject)
    except ConfigError:
        return None
    return names[0] if names else None


async def _pause(tries: int) -> None:
    await asyncio.sleep(min(_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE))
