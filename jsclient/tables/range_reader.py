"""Readers for a range of a stream.

`ConsumerRange` reads through an ordered pull consumer (ADR-17), which is recreated when necessary. `DirectRange` uses
direct gets (ADR-31) and needs no consumer. Both return messages in batches, and raise an error if messages were removed
from the stream before they were read.
"""

from __future__ import annotations

import abc
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from .._runtime.retry import Retry, RetryPolicy
from ..consumers.ordered.puller import OrderedPuller
from ..errors import (
    AnswerLostError,
    ClosedError,
    HistoryTruncatedError,
    MessageNotFoundError,
    PositionInvalidError,
    RequestTimeoutError,
)
from ..protocol.consumers.ack import sequences
from ..protocol.consumers.fetch import Pull
from ..protocol.consumers.ordered import ordered_pull_config
from ..protocol.consumers.status import Ending
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.models.message import read_stored_message
from ..protocol.models.stream import StreamInfo
from ..protocol.streams.direct_get import direct_sequence
from ..protocol.wire.codec import from_wire
from ..protocol.wire.frames import Frame
from ..streams.stream import Stream
from .ranges import SequenceRange
from .removal import Removal

__all__ = ["ConsumerRange", "DirectRange", "RangeReader", "RangeTracker", "sequences_between"]

T = TypeVar("T")

_LOOK = 1.0  # seconds between checks of the head of the stream
_FIRST_DOUBT, _LONGEST_DOUBT = 0.25, 5.0  # seconds without a message before asking the leader for more
_STALLED = 120.0  # seconds without a message, although the stream has one, before the read fails
_RETRY = RetryPolicy(0.05, 1.0, patience=30.0)
_ATTEMPT = 2.0  # timeout of one attempt in seconds
_PAGE = 20_000  # messages per direct get
_EXPIRES, _HEARTBEAT = 30.0, 5.0  # expiry and heartbeat of a pull request in seconds
_FORGOTTEN = 30.0  # inactivity threshold of the consumer in seconds
_OVERHEAD = 64 * 1024  # bytes for subject, reply and headers in addition to the largest payload


@dataclass(slots=True)
class RangeTracker:
    """The progress of reading one range, from ``first`` to ``last`` inclusive. Does no I/O.

    A range ends when a message after it arrives, or when the server reports that no message is pending. A replica may
    lag, so the stream's leader has to confirm that report. Messages that were removed before they were read leave only
    a gap in the sequences. Deleted messages and messages that match no filter leave the same gap. The reader therefore
    checks the head of the stream periodically. Messages in a gap *before* the head may have been lost.
    """

    first: int
    last: int
    position: int = field(init=False)  # every message of the range up to here was delivered or does not exist
    is_over: bool = field(init=False)  # the range has ended
    _gap: int = 0  # start of the first gap since the last check of the head, or 0 without a gap

    def __post_init__(self) -> None:
        self.position = self.first - 1
        self.is_over = self.last < self.first

    @property
    def remaining(self) -> int:
        """Maximum number of messages left to read."""
        return 0 if self.is_over else self.last - self.position

    def take_messages(self, messages: list[T], sequence: Callable[[T], int]) -> list[T]:
        """Return the messages that belong to the range. The messages must be in order, without duplicates."""
        if not self._gap:
            whole = bisect_left(
                range(len(messages)), 1, key=lambda i: int(sequence(messages[i]) - i > self.position + 1)
            )
            if whole < len(messages):
                self._gap = self.position + 1 + whole
        last = sequence(messages[-1])
        if last >= self.last:
            messages = messages[: bisect_right(messages, self.last, key=sequence)]
            self.is_over = True  # all later messages are outside the range
        self.position = min(last, self.last)
        return messages

    def next_found(self, seq: int | None) -> bool:
        """Handle the sequence of the next message that the leader has, or None if it has no more messages.

        Returns whether the message is in the range. If it is not, the range ends.
        """
        if seq is not None and seq <= self.last:
            return True
        self._gap = self._gap or self.position + 1
        self.position, self.is_over = self.last, True
        return False

    def lost_from(self, first_seq: int) -> int | None:
        """Compare gaps with the head of the stream. Returns the first sequence that may have been lost, or None.

        A gap at or after ``first_seq`` cannot be a loss. The head has not reached the gap, so its messages were deleted
        or did not match.
        """
        gap, self._gap = self._gap, 0
        return gap if gap and first_seq > gap else None


def _sequence(frame: Frame) -> int:
    return sequences(frame[1])[0]


class RangeReader(abc.ABC):
    """Base class for readers that return the messages of one range, in order, each once.

    Args:
        stream: The stream to read.
        first, last: Stream sequences, inclusive.
        subjects: Subject filters. Empty for all messages.
        created: When the stream was created. If it is recreated under the same name, reading fails. With None, the
            stream's cached info is used.
        check_loss: Whether to raise an error if messages were removed before they were read.
        may_supersede: If true, messages that were superseded or expired by themselves don't count as lost.
        since: The time after which the messages of the range were stored, or None if unknown.
        max_bytes: Bytes to request at a time.
        max_messages: Messages to request at a time, or None for as many as the range has.
        headers_only: Whether payloads are omitted. The header ``Nats-Msg-Size`` then has their size. A direct get
            returns payloads anyway.

    Attributes:
        lost: Number of sequences that were removed before they were read, if ``check_loss`` is false. At most this many
            messages were lost.
        headers_only: The argument of the same name.
    """

    def __init__(
        self,
        stream: Stream,
        first: int,
        last: int,
        *,
        subjects: Sequence[str] = (),
        created: datetime | None = None,
        check_loss: bool = True,
        may_supersede: bool = False,
        since: datetime | None = None,
        max_bytes: int = 8 * 1024 * 1024,
        max_messages: int | None = None,
        headers_only: bool = False,
    ) -> None:
        self._context = context = stream._context  # noqa: SLF001  internal to this package
        self._stream = stream
        self._subjects = list(subjects)
        self._created = created or stream.cached_info.created
        self._check_loss = check_loss
        self._may_supersede = may_supersede
        self._since = since
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self.headers_only: bool = headers_only
        self._range = RangeTracker(first, last)
        self.lost: int = 0  # sequences that were removed before they were read, if that is not an error
        self._looked_at = context.connection.now()

    @abc.abstractmethod
    async def read_messages(self, limit: int) -> list[Frame]:
        """Receive the next messages. An empty list means that the range has ended.

        Returns ``limit`` messages or more if they arrive quickly, and otherwise at least one.

        Raises:
            HistoryTruncatedError: Messages were removed before they were read.
            PositionInvalidError: The stream was deleted and recreated.
            RequestTimeoutError: The stream has more messages, but none arrives.
            JetStreamError: A request failed, for example with `StreamNotFoundError` or `StatusError`.
        """

    async def close(self) -> None:  # noqa: B027  not every reader holds resources
        """Release all resources. Calling it again does nothing."""

    @property
    def _at_once(self) -> int:
        """The maximum number of messages to request."""
        remaining = self._range.remaining
        return remaining if self._max_messages is None else min(remaining, self._max_messages)

    async def _look(self, *, now: float | None = None) -> None:
        """Check the head of the stream for lost messages, if a check is due at ``now``.

        Without ``now``, the check is always made.
        """
        if now is not None and now < self._looked_at + _LOOK:
            return
        self._looked_at = self._context.connection.now()
        answer = await self._call(self._context.api.stream_info(self._stream.name), None, "stream info")
        info = from_wire(StreamInfo, answer)
        if info.created != self._created:
            raise PositionInvalidError(
                f"stream {self._stream.name!r} was recreated at {info.created}: "
                f"the range to be read belongs to the one of {self._created}"
            )
        lost = self._range.lost_from(info.state.first_seq)
        if lost is None:
            return
        largest = self._context.connection.max_payload
        if self._may_supersede and Removal.from_info(info).is_harmless(self._since, largest):
            return
        if self._check_loss:
            raise HistoryTruncatedError(info.state.first_seq, lost, self._stream.name)
        self.lost += max(0, min(info.state.first_seq - 1, self._range.position) - lost + 1)

    async def _call(self, subject: str, body: Any, what: str) -> dict[str, Any]:
        """Send a request, with retries while a server or the stream leader is unavailable."""
        timeout = min(self._context.timeout, _ATTEMPT)
        return await Retry(_RETRY).run(lambda: self._context.call(subject, body, timeout=timeout, what=what))

    async def _more_is_there(self) -> bool:
        """Ask the stream's leader whether the range has another message. If not, the range ends."""
        following = self._range.position + 1
        found: int | None = None
        for subject in self._subjects or [">"]:
            body = {"seq": following, "next_by_subj": subject}
            try:
                answer = await self._call(
                    self._context.api.stream_msg_get(self._stream.name), body, "get message"
                )
            except MessageNotFoundError:
                continue
            seq = read_stored_message(answer).seq
            found = seq if found is None else min(found, seq)
        return self._range.next_found(found)


class ConsumerRange(RangeReader):
    """Reader that uses an ordered pull consumer. The reply of each frame is a JSAck subject."""

    _puller: OrderedPuller | None = None
    _doubt = _FIRST_DOUBT
    _active_at = 0.0  # when the last message arrived or `_doubted` was last called, in monotonic seconds
    _received_at = 0.0  # when the last message arrived, in monotonic seconds

    async def read_messages(self, limit: int) -> list[Frame]:
        puller = self._puller or await self._create_consumer()
        connection, tracked = self._context.connection, self._range
        while not tracked.is_over:
            now = connection.now()
            await self._look(now=now)
            if puller.front and (len(puller.front) >= limit or not self._is_filling(puller)):
                if frames := await self._take(puller):
                    return frames
                continue
            if not await puller.changed.wait_until(
                min(self._active_at + self._doubt, self._looked_at + _LOOK)
            ):
                if puller.front:
                    if frames := await self._take(puller):
                        return frames
                elif connection.now() >= self._active_at + self._doubt:
                    await self._doubted(connection.now())
            self._see_end(puller)
        # Check once more before the end. Otherwise, the loss of messages removed since the last check would go
        # unnoticed.
        await self._look()
        return []

    async def close(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            await puller.stop_reading()

    async def _create_consumer(self) -> OrderedPuller:
        config = ConsumerConfig(
            filter_subjects=self._subjects or None,
            opt_start_seq=self._range.first,
            inactive_threshold=_FORGOTTEN,
            headers_only=self.headers_only or None,
        )
        puller = OrderedPuller(
            self._context,
            self._stream.name,
            ordered_pull_config(config),
            name_prefix=None,
            max_reset_attempts=None,
        )
        await Retry(_RETRY).run(puller.create_first_consumer)
        self._puller = puller
        connection = self._context.connection
        # Leave room for the largest message, because one that exceeds the requested bytes would never be delivered.
        room = max(2 * self._max_bytes, connection.max_payload + _OVERHEAD)
        pull = Pull(max(self._at_once, 1), _EXPIRES, room, idle_heartbeat=_HEARTBEAT)
        self._active_at = self._received_at = connection.now()
        if not puller.num_pending and not await self._more_is_there():
            return puller
        puller.carry_out(puller.tracker.read_continuously(pull, 0, connection.now()))
        return puller

    def _is_filling(self, puller: OrderedPuller) -> bool:
        """Return whether more messages are in flight."""
        buffer = puller.tracker.buffer
        return buffer.owed > 0 and puller.error is None and not puller.nothing_comes

    async def _take(self, puller: OrderedPuller) -> list[Frame]:
        """Take all buffered messages and request more, up to the end of the range."""
        tracker, tracked = puller.tracker, self._range
        waiting = [*puller.front]
        puller.front.clear()
        tracker.buffer.taken(tracker.runs.total_size(waiting), len(waiting))
        self._active_at = self._received_at = self._context.connection.now()
        self._doubt = _FIRST_DOUBT
        frames = tracked.take_messages(waiting, _sequence)
        if not tracked.is_over and not sequences(waiting[-1][1])[3]:
            await self._more_is_there()
        tracker.buffer.max_messages = self._at_once
        if not tracked.is_over:
            puller.carry_out(tracker.next_requests())
        return frames

    async def _doubted(self, now: float) -> None:
        """After a time without messages, ask the leader whether the range has ended.

        Raises `RequestTimeoutError` if the stream has had more messages for a long time, but none arrives.
        """
        self._active_at = now
        self._doubt = min(self._doubt * 2, _LONGEST_DOUBT)
        if await self._more_is_there() and now - self._received_at > _STALLED:
            raise RequestTimeoutError(
                f"stream {self._stream.name!r} has messages after {self._range.position}, but none arrives",
                _STALLED,
            )

    def _see_end(self, puller: OrderedPuller) -> None:
        error = puller.error or puller.tracker.error
        if error is not None and not puller.front:
            raise error
        if puller.nothing_comes and not puller.front:
            raise ClosedError("the connection was closed while a range of a stream was read")


class DirectRange(RangeReader):
    """Reader that uses direct gets, for streams on which no consumer can be created, or for small ranges.

    It needs nats-server 2.11, and supports at most one subject filter. The metadata of each frame is in its headers,
    see `direct_sequence`.
    """

    async def read_messages(self, limit: int) -> list[Frame]:
        tracked = self._range
        while not tracked.is_over:
            await self._look(now=self._context.connection.now())
            frames, ending = await Retry(_RETRY).run(self._page)
            kept = tracked.take_messages(frames, direct_sequence) if frames else []
            if ending is Ending.NO_MESSAGES and not tracked.is_over:
                await self._more_is_there()
            if kept:
                return kept
        await self._look()
        return []

    async def _page(self) -> tuple[list[Frame], Ending | None]:
        page = self._stream.get_batch(
            min(self._at_once, _PAGE),
            seq=self._range.position + 1,
            subject=self._subjects[0] if self._subjects else None,
            max_bytes=self._max_bytes,
            timeout=min(self._context.timeout, _ATTEMPT),
        )
        frames: list[Frame] = []
        try:
            async for together in page.frames():
                frames += together
        except AnswerLostError:
            if not frames:
                raise
        return frames, page.ending


async def sequences_between(
    stream: Stream, whole: SequenceRange, subjects: Sequence[str], created: datetime
) -> Sequence[int]:
    """Return the sequences of the messages in a range. The server sends no payloads.

    Raises the same errors as `RangeReader.read_messages`.
    """
    reader = ConsumerRange(
        stream,
        whole.first,
        whole.last,
        subjects=subjects,
        created=created,
        check_loss=False,
        headers_only=True,
    )
    found = array("q")
    try:
        while frames := await reader.read_messages(_PAGE):
            found.extend(map(_sequence, frames))
    finally:
        await reader.close()
    return found
