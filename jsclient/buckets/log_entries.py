"""Reading the messages of a bucket in order where the server creates no further consumer, by direct gets.

The reader of a topic does most of it: it listens to the subjects of the bucket, and reads what it hears of from the
stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from .._runtime.context import Context
from .._runtime.event_hub import EventLog
from ..errors import ConsumerLimitError
from ..protocol.events import ConsumerRefused, Event
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.models.stream import StreamInfo
from ..protocol.topics.record import Record
from ..protocol.wire.codec import from_wire
from ..protocol.wire.frames import Frame
from ..protocol.wire.header_names import MSG_SIZE
from ..protocol.wire.headers import encode_headers
from ..protocol.wire.names import subject_matches
from ..streams.stream import Stream
from ..topics.log_reader import LogReader, open_reader
from ..topics.snapshot import take_snapshot
from ..topics.stream_log import MAX_BYTES, StreamLog

__all__ = ["LogEntries", "common_filter"]

_PAGE: Final = 1000
_MEANWHILE: Final = (
    "the bucket is read by direct gets, which needs the right to subscribe to {subject!r} to be fast"
)


def common_filter(filters: Sequence[str]) -> str:
    """Return a filter that matches whatever one of these filters matches."""
    if len(filters) == 1:
        return filters[0]
    common: list[str] = []
    for tokens in zip(*(pattern.split(".") for pattern in filters), strict=False):
        if len(set(tokens)) > 1 or tokens[0] == ">":
            break
        common.append(tokens[0])
    return ".".join([*common, ">"])


class LogEntries:
    """The messages that a consumer with this configuration would deliver, as `BucketReader` needs them.

    Attributes:
        is_current: Whether all messages that existed at the opening were returned.
    """

    def __init__(
        self, context: Context, stream: str, config: ConsumerConfig, error: ConsumerLimitError
    ) -> None:
        self._context, self._stream, self._config = context, stream, config
        self._filters = config.filters or [">"]
        self._initial: deque[Record] = deque()
        self._read = self._end = (
            0  # sequence up to which initial messages were read, and that of the last of them
        )
        self._log: StreamLog | None = None
        self._reader: LogReader | None = None
        self._events = EventLog()
        self._refused = ConsumerRefused(
            stream=stream, error=error, meanwhile=_MEANWHILE.format(subject=common_filter(self._filters))
        )
        self.is_current: bool = False

    async def begin_entries(self) -> None:
        """Find out what exists. Raises `StreamNotFoundError`, and any error of an API request."""
        context = self._context
        answer = await context.call(context.api.stream_info(self._stream), None, what="look up the state")
        stream = Stream(context, from_wire(StreamInfo, answer))
        log = self._log = StreamLog(context, stream, common_filter(self._filters))
        log.newest_only = True  # a message that was replaced before it was read is no gap
        log.is_one_subject = False  # a message never ends a key, whatever its headers are
        extent = await log.extent()
        self._read = self._end = extent.last_seq
        policy = self._config.deliver_policy
        if policy == DeliverPolicy.LAST_PER_SUBJECT:
            newest, position = await take_snapshot(log)
            self._initial.extend(sorted(filter(self._matches, newest.values()), key=lambda one: one.seq))
            self._read = self._end = position.seq
        elif policy == DeliverPolicy.ALL:
            self._read = extent.start.seq
        elif policy == DeliverPolicy.BY_START_SEQUENCE:
            self._read = max((self._config.opt_start_seq or 1) - 1, 0)
        self._events.add_event(self._refused)
        context.emit(self._refused)
        await self._load_initial()

    def entry_events(self) -> AsyncIterator[Event]:
        """Iterate over the events of this reader."""
        return self._events.read_events()

    async def _load_initial(self) -> None:
        """Read further initial messages until one is there to be returned, or all were read."""
        assert self._log is not None
        while not self._initial and self._read < self._end:
            page = await self._log.history(self._read, _PAGE, MAX_BYTES)
            stored = [record for record in page.records if record.seq <= self._end]
            self._initial.extend(filter(self._matches, stored))
            self._read = stored[-1].seq if stored and page.more else self._end
        self.is_current = not self._initial and self._read >= self._end

    async def next_frame(self) -> tuple[Frame, bool]:
        """Return the frame of the next message, and whether it existed at the opening.

        Raises the errors of `Topic.each`. Cancelled: no message is lost.
        """
        if self._initial:
            record = self._initial.popleft()
            try:
                await self._load_initial()
            except BaseException:
                self._initial.appendleft(record)
                raise
            return self._as_delivered(record), True
        while True:
            record = await (await self._following()).next()
            if self._matches(record):
                return self._as_delivered(record), False

    async def _following(self) -> LogReader:
        """Return the reader of what comes after the initial messages."""
        if self._reader is None:
            assert self._log is not None
            extent = await self._log.extent()
            self._reader = await open_reader(self._log, extent.start.at(self._end))
        return self._reader

    def _matches(self, record: Record) -> bool:
        return any(subject_matches(pattern, record.subject) for pattern in self._filters)

    def _as_delivered(self, record: Record) -> Frame:
        """Return a record as a consumer would deliver it."""
        headers, data = record.headers, record.data
        if self._config.headers_only:
            headers, data = type(headers)([*headers.pairs(), (MSG_SIZE, str(len(data)))]), b""
        block = encode_headers(headers) if headers else b""
        pending = len(self._initial)
        reply = f"$JS.ACK.{self._stream}.direct.1.{record.seq}.{record.seq}.{record.time_ns}.{pending}"
        return record.subject.encode(), reply.encode(), block, data

    async def end_entries(self) -> None:
        """Stop reading."""
        self._events.close()
        if self._reader is not None:
            await self._reader.close()
