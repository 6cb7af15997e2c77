"""Read claimed messages on an executor by direct get, which neither needs nor affects a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..._runtime.retry import Retry, RetryPolicy
from ...client import JetStream
from ...errors import (
    JetStreamError,
    MessageNotFoundError,
    PermissionDeniedError,
    PositionInvalidError,
    RequestTimeoutError,
)
from ...protocol.consumers.ack import AckKind, ack_payload
from ...protocol.consumers.status import Ending
from ...protocol.events import ClaimsGone
from ...protocol.streams.direct_get import BATCH_GET_SERVER, direct_sequence, read_direct_answer
from ...protocol.wire.checks import is_at_least
from ...protocol.wire.codec import encode
from ...protocol.wire.frames import Frame
from ...protocol.wire.headers import inline_status
from ...streams.stream import Stream
from ...tables.columns import arrow_schema, direct_columns, record_batch
from ...tables.removal import Removal
from ...tables.server_options import ServerOptions, not_permitted
from ...tables.session import context_of, session
from ..acks.bulk_ack import settle
from .claims import ClaimMatch, ClaimMatcher, Run, Span, ack_subjects, claimed, spans

__all__ = ["ClaimPartition", "ClaimSpec", "read_claims"]

_PAGE = 20_000  # maximum number of messages per direct get
_AT_ONCE = 64  # maximum number of direct gets of single messages in flight
_RETRY = RetryPolicy(0.1, 0.1, patience=60.0)
# Headers that the reply to a batch request has, but the reply to a single direct get lacks.
_AS_IN_BATCH = b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The read settings that all tasks of a query share. They are pickled and sent to the executors."""

    connect: ServerOptions
    stream: str
    consumer: str
    subject: str | None  # the filter of the consumer, or None if it has no filter or several
    columns: tuple[str, ...]  # names of columns, in the order of the rows
    batch_rows: int  # maximum number of rows per record batch
    fetch_max_bytes: int  # bytes per request
    fail_on_data_loss: bool  # true if missing messages are an error
    # True if tasks terminate (+TERM) claims whose messages are missing from the stream. A missing message has no row,
    # so the user can't ack it, and the server would try to redeliver it forever.
    term_missing: bool
    created: str = ""  # when the stream was created, in ISO format


@dataclass
class ClaimPartition(InputPartition):
    """The claims that one task reads.

    If ``lapsed`` is True, other clients may have received some of the claims, or the batch was read before and some
    messages were acked. Missing messages then do not count as data loss. If ``acks_remove`` is True, acks of the batch
    remove its messages from the stream, and the batch may be read twice. Missing messages then count as lost only if a
    limit may have removed them.
    """

    runs: tuple[Run, ...]
    form: tuple[str, str]
    lapsed: bool = False
    acks_remove: bool = False


def read_claims(spec: ClaimSpec, partition: ClaimPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all claims whose messages exist, each once.

    Raises:
        PositionInvalidError: Messages are missing and ``failOnDataLoss`` is set.
        ConfigError: The user may not use direct gets.
    """
    opened = session(spec.connect)
    schema = arrow_schema(spec.columns)
    reader = _ClaimReader(opened.js, spec, partition)
    while (rows := opened.run(reader.read_claims())) is not None:
        frames, matched = rows
        for start in range(0, len(frames), spec.batch_rows):
            end = start + spec.batch_rows
            columns = _columns(spec, partition.form, frames[start:end], matched, slice(start, end))
            yield record_batch(schema, columns)


def _columns(
    spec: ClaimSpec, form: tuple[str, str], frames: list[Frame], matched: ClaimMatch, rows: slice
) -> dict[str, Any]:
    numbers = matched.delivered[rows], matched.consumer_seqs[rows], matched.pending[rows]
    names = {*spec.columns, "sequence", "timestamp_ns"} if "reply" in spec.columns else spec.columns
    columns = direct_columns(frames, tuple(names), spec.stream, spec.created)
    columns["consumer"] = pa.repeat(spec.consumer, len(frames))
    columns["num_delivered"], columns["consumer_sequence"], columns["num_pending"] = numbers
    if "reply" in spec.columns:
        before, behind = form
        stored = columns["sequence"].to_pylist(), columns["timestamp_ns"].to_pylist()
        columns["reply"] = [
            f"{before}.{delivered}.{seq}.{consumer_seq}.{time_ns}.{pending}{behind}"
            for seq, time_ns, delivered, consumer_seq, pending in zip(*stored, *numbers, strict=True)
        ]
    return columns


class _ClaimReader:
    """Reader for the claims of one partition."""

    _stream: Stream

    def __init__(self, js: JetStream, spec: ClaimSpec, partition: ClaimPartition) -> None:
        self._js = js
        self._context = context_of(js)
        self._spec = spec
        self._partition = partition
        self._spans: list[Span] | None = None  # None before the spans are planned
        self._matcher: ClaimMatcher | None = None
        self._retry = Retry(_RETRY)  # renewed after each progress

    async def read_claims(self) -> tuple[list[Frame], ClaimMatch] | None:
        """Return the next messages and their claims, or None at the end."""
        while self._spans is None or self._spans or self._matcher is not None:
            try:
                if self._spans is None:
                    self._spans = await self._plan_spans()
                    continue
                if self._matcher is None:
                    self._span = self._spans.pop(0)
                    self._matcher = ClaimMatcher(self._span.runs)
                if not self._matcher.remaining:
                    await self._end_span(self._matcher, self._spans)
                    continue
                rows = await self._read_on(self._matcher)
            except PermissionDeniedError as error:
                raise not_permitted("stream", error, "executors read claimed messages") from error
            except JetStreamError as error:
                if not await self._retry.again(error):
                    raise
                continue
            # After progress, begin with a new time limit, so that later failures are retried just as long.
            if rows[0]:
                self._retry = Retry(_RETRY)
                return rows
        return None

    async def _plan_spans(self) -> list[Span]:
        self._stream = await self._js.stream(self._spec.stream)
        return spans(
            self._partition.runs,
            by_filter=self._spec.subject is not None,
            batches=is_at_least(self._js.server_version, BATCH_GET_SERVER),
        )

    async def _read_on(self, matcher: ClaimMatcher) -> tuple[list[Frame], ClaimMatch]:
        """Return the next messages of a span.

        No request may follow the match, because the messages would be lost if it failed.
        """
        frames, answered = await (self._singles(matcher) if self._span.singly else self._page(matcher))
        matched = matcher.match_messages(map(direct_sequence, frames))
        matcher.passed(answered)
        return [frames[index] for index in matched.indexes], matched

    async def _end_span(self, matcher: ClaimMatcher, remaining_spans: list[Span]) -> None:
        """Ask the stream's leader about the missing claims of a span. Claims whose messages it has are read again."""
        confirmed = await self._confirm_missing(matcher.missing)
        stored, self._matcher = _without(matcher.missing, confirmed), None
        if stored:
            remaining_spans.insert(0, Span(tuple(stored), singly=True))
        if confirmed:
            await self._report_missing(confirmed)
        if stored:
            lag = RequestTimeoutError("messages that a replica does not have yet", _RETRY.patience)
            if not await self._retry.again(lag):
                raise lag

    async def _page(self, matcher: ClaimMatcher) -> tuple[list[Frame], int]:
        """Return messages from the next claim on, and the sequence up to which they are complete, or 0 if unknown."""
        page = self._stream.get_batch(
            min(matcher.remaining, _PAGE),
            seq=matcher.next_seq,
            subject=self._spec.subject,
            max_bytes=self._spec.fetch_max_bytes,
        )
        frames = [frame async for together in page.frames() for frame in together]
        return frames, self._span.runs[-1].last if page.ending is Ending.NO_MESSAGES else 0

    async def _singles(self, matcher: ClaimMatcher) -> tuple[list[Frame], int]:
        """Return the messages of the next claims, one request each, and the sequence of the last of these claims."""
        following = matcher.next_seq
        seqs = (seq for run in self._span.runs for seq in range(max(run.stream_seq, following), run.last + 1))
        requested = list(islice(seqs, _AT_ONCE))
        context = self._context
        subject = context.api.direct_get(self._stream.name)
        answers = await asyncio.gather(
            *(
                context.requests.ask(
                    subject, encode({"seq": seq}), timeout=context.timeout, what="direct get", again=True
                )
                for seq in requested
            ),
            return_exceptions=True,
        )
        frames: list[Frame] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if inline_status(answer[2]):
                try:
                    # A stored message may have a status line too. Only an actual error of the server raises here.
                    read_direct_answer(answer)
                except MessageNotFoundError:
                    continue
            frames.append((*answer[:2], answer[2][:-2] + _AS_IN_BATCH, answer[3]))
        return frames, requested[-1]

    async def _confirm_missing(self, missing: list[Run]) -> list[Run]:
        """Return the claims whose messages the stream's leader does not have either. A replica may lag behind it."""
        confirmed: list[Run] = []
        # The leader has no message from `following` up to `next_stored`, exclusive. If `next_stored` is 0, it has no
        # later message at all.
        following, next_stored = 0, 0
        for run in missing:
            start = 0
            while start < run.count:
                seq = run.stream_seq + start
                if not following <= seq <= (next_stored or seq) or not following:
                    following, next_stored = seq, await self._next_of_leader(seq)
                if next_stored == seq:
                    start += 1
                    continue
                count = (min(run.last, next_stored - 1) if next_stored else run.last) - seq + 1
                confirmed.append(run.part(start, count))
                start += count
        return confirmed

    async def _next_of_leader(self, seq: int) -> int:
        try:
            return (await self._stream.get_next_message(">", seq)).seq
        except MessageNotFoundError:
            return 0

    async def _were_acked(self) -> bool:
        """Return True if only acks of the batch can have removed the missing messages, because no limit was reached."""
        if not self._partition.acks_remove:
            return False
        largest = self._context.connection.max_payload
        return not Removal.from_info(await self._stream.info()).reaches_limit(largest)

    async def _report_missing(self, missing: list[Run]) -> None:
        spec, partition = self._spec, self._partition
        count, first, last = claimed(missing), missing[0].stream_seq, missing[-1].last
        if spec.fail_on_data_loss and not partition.lapsed and not await self._were_acked():
            raise PositionInvalidError(
                f"{count} claimed messages of stream {spec.stream!r} no longer exist, from sequence {first} to {last}: "
                "they were deleted, purged or expired, or were acked before they were read (if a batch is read twice, "
                "persist it first); set option 'failOnDataLoss' to false to continue without them"
            )
        self._context.emit(
            ClaimsGone(
                stream=spec.stream,
                consumer=spec.consumer,
                count=count,
                first_stream_seq=first,
                last_stream_seq=last,
                lapsed=partition.lapsed,
            )
        )
        if spec.term_missing:
            replies = list(ack_subjects(missing, partition.form))
            try:
                await settle(self._js, replies, ack_payload(AckKind.TERM, reason="gone from the stream"))
            except JetStreamError as error:
                # If the acks fail, the server redelivers these claims later, although their messages don't exist. The
                # rows of this read are complete all the same, so only report the failure.
                self._context.report(error)


def _without(runs: list[Run], removed: list[Run]) -> list[Run]:
    """Return the claims in ``runs`` that are not in ``removed``."""
    sequences_removed = {seq for run in removed for seq in range(run.stream_seq, run.last + 1)}
    return [
        run.part(number, 1)
        for run in runs
        for number in range(run.count)
        if run.stream_seq + number not in sequences_removed
    ]
