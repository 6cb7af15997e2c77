"""Reads the messages of a bucket in order by direct gets, without a consumer.

This is used if the server creates no further consumer, and if a watch joins other watches that already share one.
Most of the work is done by the reader of a topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from .._runtime.context import Context
from .._runtime.event_hub import EventLog
from .._runtime.retry import Retry
from ..errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    PositionInvalidError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ..protocol.events import StreamReset
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.models.stream import StreamInfo
from ..protocol.topics.position import Extent, Position
from ..protocol.topics.quiet_timer import QuietTimer
from ..protocol.topics.record import Record
from ..protocol.wire.codec import from_wire
from ..protocol.wire.frames import Frame
from ..protocol.wire.header_names import MSG_SIZE
from ..protocol.wire.headers import encode_headers
from ..protocol.wire.names import subject_matches
from ..streams.stream import Stream
from ..topics.log import Push
from ..topics.log_reader import LogReader
from ..topics.snapshot import read_directly, take_snapshot
from ..topics.stream_log import StreamLog

__all__ = ["LogEntries", "common_filter"]

_RUN: Final = 500  # maximum number of messages that are returned together
_PENDING: Final = 1000  # maximum number of messages that are read ahead
_SHORTEST, _LONGEST = 0.25, 30.0  # shortest and longest silence in seconds before the history is read
_GONE_AFTER: Final = 5.0  # seconds for which the stream must be missing before the reader fails
_RECHECK: Final = 0.5  # seconds between two requests for a missing stream
_ANY: Final = 2**63
_CLOSED: Final = "the watch or its connection is closed"


def common_filter(filters: Sequence[str]) -> str:
    """Return a filter that matches every subject that one of these filters matches."""
    if len(filters) == 1:
        return filters[0]
    common: list[str] = []
    for tokens in zip(*(pattern.split(".") for pattern in filters), strict=False):
        if len(set(tokens)) > 1 or tokens[0] == ">":
            break
        common.append(tokens[0])
    return ".".join([*common, ">"])


class LogEntries:
    """The messages that a consumer with this configuration would deliver.

    Attributes:
        is_current: Whether all messages that existed at the opening were returned.
        incarnation: The creation time of the stream that is read, in the form that ordered readers use.
        restarts: How often the reader detected that the stream had been replaced or restored.
    """

    def __init__(
        self, context: Context, stream: str, config: ConsumerConfig, events: EventLog, *, push: Push
    ) -> None:
        """Prepare to read. ``push`` selects how the server announces further messages. See `Topic.each`."""
        self._context, self._stream, self._config = context, stream, config
        self._filters = config.filters or [">"]
        self._events, self._push = events, push
        # The newest message of each subject, if all of them are read together.
        self._snapshot: deque[Record] = deque()
        self._ahead: deque[Record] = deque()  # messages that have been read, but not returned yet
        self._end = 0  # sequence of the last message that existed at the opening
        self._after = 0  # sequence after which to begin, before the stream is looked up
        self._start: Position | None = None  # position at which the reader begins
        self._log: StreamLog | None = None
        self._reader: LogReader | None = None
        self._is_ended = False
        self.is_current: bool = False
        self.incarnation: str = ""
        self.restarts: int = 0

    @property
    def position(self) -> int:
        """The sequence up to which all messages were returned."""
        if self._ahead:
            return self._ahead[0].seq - 1
        if self._reader is not None:
            return self._reader.position.seq
        return self._after if self._start is None else self._start.seq

    # --- opening -----------------------------------------------------------------------------------------

    async def begin_entries(self, *, without_consumer: bool = False) -> bool:
        """Find out which messages exist, and read the first ones.

        Returns False if this needs a consumer although none may be created. Raises `StreamNotFoundError`, or any
        other error common to API requests. Reading has ended after an error.
        """
        try:
            if not await self._find_entries(without_consumer=without_consumer):
                return False
            if not self.is_current and not self._snapshot:
                self._ahead.extend(await self._read(self._end, gives_up=True))
        except BaseException:
            await self.end_entries()
            raise
        return True

    async def _find_entries(self, *, without_consumer: bool) -> bool:
        log, extent = await self._look_up()
        policy = self._config.deliver_policy
        if without_consumer and not log.reads_directly:
            return False
        if policy == DeliverPolicy.NEW:
            self._start, self.is_current = extent.end, True
            return True
        # A snapshot is needed only if the bucket keeps older messages. Otherwise, every stored message is the newest of
        # its subject.
        if policy == DeliverPolicy.LAST_PER_SUBJECT and log.config.max_msgs_per_subject != 1:
            snapshot = await (read_directly if without_consumer else take_snapshot)(log)
            if snapshot is None:
                return False
            self._snapshot.extend(sorted(filter(self._matches, snapshot.records.values()), key=_by_seq))
            self._start, self.is_current = snapshot.position, not self._snapshot
            return True
        by_seq = policy == DeliverPolicy.BY_START_SEQUENCE
        after = (self._config.opt_start_seq or 1) - 1 if by_seq else 0
        self._start = extent.start.at(min(after, extent.last_seq))
        await self._find_end(log)
        return True

    async def _look_up(self) -> tuple[StreamLog, Extent]:
        context = self._context
        answer = await context.call(context.api.stream_info(self._stream), None, what="look up the state")
        info = from_wire(StreamInfo, answer)
        log = StreamLog(context, Stream(context, info), common_filter(self._filters))
        log.newest_only = True  # a message that was replaced before it was read is not a gap
        log.is_one_subject = False  # no message ends the log, even if its headers mark the end of a topic
        self._log, self.incarnation = log, str(info.created)
        return log, log.read_extent(answer)

    async def _find_end(self, log: StreamLog) -> None:
        newest = await log.last()
        self._end = 0 if newest is None else newest.seq
        self.is_current = self.position >= self._end

    def continue_after(self, incarnation: str, seq: int) -> None:
        """Continue after a message of the stream with this incarnation. Later messages are returned as changes."""
        self.incarnation, self._after, self.is_current = incarnation, seq, True

    # --- reading -----------------------------------------------------------------------------------------

    async def next_frames(self, up_to: int | None = None, *, gives_up: bool = False) -> list[Frame]:
        """Return the frames of the next messages. All of them existed at the opening, or none of them.

        The list is empty if the last messages that existed were removed, or if all messages up to the sequence
        ``up_to`` were returned.

        May raise any error of `Topic.each`. If ``gives_up`` is True, `RequestTimeoutError` is raised if messages that
        exist cannot be read although the connection is up. If the call is cancelled, no message is lost.
        """
        if self._snapshot:
            count = min(_RUN, len(self._snapshot))
            records = [self._snapshot.popleft() for _ in range(count)]
            self.is_current = not self._snapshot
            return self._as_frames(records)
        if not self._ahead:
            self._ahead.extend(await self._read(up_to if self.is_current else self._end, gives_up=gives_up))
        if self.is_current:
            records = [*self._ahead]
            self._ahead.clear()
            return self._as_frames(records)
        records = []
        while self._ahead and self._ahead[0].seq <= self._end:
            records.append(self._ahead.popleft())
        self.is_current = bool(self._ahead) or self.position >= self._end
        return self._as_frames(records)

    async def _read(self, up_to: int | None, *, gives_up: bool) -> list[Record]:
        """Read further messages. If the stream was recreated, its messages are read from the start."""
        while True:
            reader = self._reader or await self._begin_reader()
            try:
                records = await self._next_batch(reader, up_to, gives_up=gives_up)
                if not records and reader.is_closed:
                    raise ClosedError(_CLOSED)
                return records
            except (PositionInvalidError, StreamNotFoundError):
                await self._begin_again()
                up_to = up_to if self.is_current else self._end

    async def _next_batch(self, reader: LogReader, up_to: int | None, *, gives_up: bool) -> list[Record]:
        """Wait for records. A reader repeats a request that fails without a limit, so look whether it has failed."""
        if not gives_up or up_to is None:
            return await reader.next_batch(_RUN, up_to=_ANY if up_to is None else up_to)
        context = self._context
        while True:
            limit = asyncio.timeout(context.timeout)
            try:
                async with limit:
                    return await reader.next_batch(_RUN, up_to=up_to)
            except TimeoutError:
                if not limit.expired():
                    raise
            if reader.failure is not None and context.connection.is_connected:
                raise RequestTimeoutError("stored messages", context.timeout) from reader.failure

    async def _begin_reader(self) -> LogReader:
        if self._log is None or self._start is None:
            incarnation = self.incarnation
            self._log, extent = await self._look_up_again()
            self._start = extent.start.at(self._after)
            if self.incarnation != incarnation:
                self._report_reset(extent)
                self._start = extent.start
        quiet = QuietTimer(_SHORTEST, _LONGEST)
        reader = LogReader(self._log, self._start, push=self._push, quiet=quiet, max_pending=_PENDING)
        self._reader = reader
        reader.begin()
        return reader

    async def _begin_again(self) -> None:
        """Read the stream from its start, because it was recreated. Raises `StreamNotFoundError` if it is gone."""
        incarnation, position = self.incarnation, self.position
        _, extent = await self._look_up_again()
        reader, self._reader = self._reader, None
        if self.incarnation == incarnation and extent.last_seq >= position:
            self._start = extent.start.at(position)  # the same stream, which was missing for a moment
        else:
            self._report_reset(extent)
            self._start = extent.start
            self._end = self._end if self.is_current else extent.last_seq
        if reader is not None:
            await reader.close()

    async def _look_up_again(self) -> tuple[StreamLog, Extent]:
        """Look up the stream, which may be missing for a while when it is recreated. Transient errors are retried."""
        connection, tries = self._context.connection, Retry()
        missing_since: float | None = None
        while True:
            self._check_open()
            with suppress(DisconnectedError):
                await connection.wait_connected(connection.now() + _RECHECK)
            if not connection.is_connected:
                continue
            now = connection.now()
            try:
                found = await self._look_up()
                self._check_open()
                return found
            except StreamNotFoundError:
                missing_since = now if missing_since is None else missing_since
                if now - missing_since >= _GONE_AFTER:
                    raise
                await asyncio.sleep(_RECHECK)
            except JetStreamError as error:
                missing_since = None
                if not await tries.again(error):
                    raise

    def _check_open(self) -> None:
        if self._is_ended:
            raise ClosedError(_CLOSED)

    def _report_reset(self, extent: Extent) -> None:
        self.restarts += 1
        event = StreamReset(stream=self._stream, last_stream_seq=self.position, stream_seq=extent.last_seq)
        self._events.add_event(event)
        self._context.emit(event)

    def follow_pushes(self) -> None:
        """Let the server announce further messages, because no other reader does so."""
        if self._push == "auto":
            return
        self._push = "auto"
        if self._reader is not None:
            self._reader.set_push("auto")

    def _matches(self, record: Record) -> bool:
        return any(subject_matches(pattern, record.subject) for pattern in self._filters)

    def _as_frames(self, records: list[Record]) -> list[Frame]:
        return [self._as_delivered(record) for record in records if self._matches(record)]

    def _as_delivered(self, record: Record) -> Frame:
        """Return a record as a consumer would deliver it."""
        headers, data = record.headers, record.data
        if self._config.headers_only:
            headers, data = type(headers)([*headers.pairs(), (MSG_SIZE, str(len(data)))]), b""
        block = encode_headers(headers) if headers else b""
        pending = len(self._snapshot)
        reply = f"$JS.ACK.{self._stream}.direct.1.{record.seq}.{record.seq}.{record.time_ns}.{pending}"
        return record.subject.encode(), reply.encode(), block, data

    async def end_entries(self) -> None:
        """Stop reading. A call that looks the stream up raises `ClosedError`."""
        self._is_ended = True
        if self._reader is not None:
            await self._reader.close()


def _by_seq(record: Record) -> int:
    return record.seq
