"""Publishes many prepared messages with one call, without a future for each message."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from .._runtime.connection.speedups import chosen
from .._runtime.connection.wire import CHUNK
from .._runtime.context import Context
from ..errors import (
    ConfigError,
    JetStreamError,
    MaxPayloadError,
    NoRespondersError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from ..protocol.publishing.burst_window import Burst, BurstWindow
from ..protocol.publishing.in_flight import ATTEMPT, InFlight
from ..protocol.publishing.progress import Progress
from ..protocol.publishing.publish_window import NEVER
from ..protocol.wire.commands import BurstCommands, burst_commands, large_command
from .ack_window import AckWindow, FailureSink
from .admission import YIELD_AFTER, Limits

if TYPE_CHECKING:
    from ..protocol.models.publish import AckRun, PubAck

__all__ = ["BulkPublisher", "Failed", "RowsTicket", "Tally"]

_BURST = 1000  # maximum number of messages between two checks of the limits and the clock
_INDICES = [b"%d" % index for index in range(_BURST)]  # last tokens of the reply subjects


class Failed(NamedTuple):
    """A message that was not stored, or whose outcome is unknown because no acknowledgement arrived."""

    row: int
    entry: InFlight[RowsTicket]
    error: JetStreamError


@dataclass(slots=True)
class Tally:
    """Counts the acknowledged messages of a publisher.

    Attributes:
        stored: Number of messages that have been acknowledged, including duplicates.
        duplicates: Number of messages that the stream had already stored, according to their IDs.
        first_seq, last_seq: Smallest and largest stream sequence of the messages that are not duplicates, or 0.
        streams: Names of the streams that have stored the messages.
    """

    stored: int = 0
    duplicates: int = 0
    first_seq: int = 0
    last_seq: int = 0
    streams: set[str] = field(default_factory=set)
    acks: list[PubAck] = field(default_factory=list)  # acknowledgements not counted yet
    runs: list[AckRun] = field(default_factory=list)  # runs of acknowledgements not counted yet
    # Called with new acks before they are counted.
    on_acks: Callable[[list[PubAck]], None] | None = None
    # Called with the stream and the sequences of a run of acks before they are counted.
    on_run: Callable[[str, list[int]], None] | None = None
    # Not empty once the publisher has been closed. After that, messages must not be sent again.
    unwanted: list[None] = field(default_factory=list)

    def count_acks(self) -> None:
        """Count the acknowledgements that have arrived since the last call."""
        for stream, sequences in self.runs:
            if self.on_run is not None:
                self.on_run(stream, sequences)
            self.stored += len(sequences)
            self._extend(min(sequences), max(sequences))
            self.streams.add(stream)
        self.runs.clear()
        if self.acks:
            self._count_acks(self.acks)

    def _count_acks(self, acks: list[PubAck]) -> None:
        if self.on_acks is not None:
            self.on_acks(acks)
        self.stored += len(acks)
        new = [ack.seq for ack in acks if not ack.duplicate]
        self.duplicates += len(acks) - len(new)
        if new:
            self._extend(min(new), max(new))
        self.streams.update({ack.stream for ack in acks})
        acks.clear()

    def _extend(self, first: int, last: int) -> None:
        self.last_seq = max(self.last_seq, last)
        if not self.first_seq or first < self.first_seq:
            self.first_seq = first


class RowsTicket:
    """Takes the place of a future for all messages of one call of `BulkPublisher.send`.

    Its methods are bound methods of lists, because calling a Python function for each acknowledgement would be much
    slower.
    """

    __slots__ = ("done", "first", "rows", "set_result")

    def __init__(self, tally: Tally, first: int, rows: Sequence[int]) -> None:
        self.first: int = first  # the number of the first message
        self.rows: Sequence[int] = rows
        self.set_result: Callable[[PubAck], None] = tally.acks.append
        self.done: Callable[[], int] = tally.unwanted.__len__


class _RowFailures(FailureSink["RowsTicket"]):
    """Collects the failed messages of a `BulkPublisher`."""

    def __init__(self) -> None:
        self.failures: list[Failed] = []

    def add_failure(self, entry: InFlight[RowsTicket], error: JetStreamError, now: float) -> None:
        ticket = entry.ticket
        self.failures.append(Failed(ticket.rows[entry.number - ticket.first], entry, error))


class _Columns:
    """The columns of one call, and the sizes of the messages, which are needed for each burst."""

    __slots__ = ("ends", "headers", "heads", "payloads", "sizes", "subjects")

    def __init__(
        self, subjects: Sequence[bytes], headers: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        self.subjects, self.headers, self.payloads = subjects, headers, payloads
        self.heads: list[int] = list(map(len, headers))
        self.sizes: list[int] = list(map(add, self.heads, map(len, payloads)))
        self.ends: list[int] = list(accumulate(self.sizes))  # bytes up to and including each message


class BulkPublisher:
    """Publishes columns of messages, and counts the acknowledgements. Only one task may use an instance at a time.

    Limits, retries and reconnects are handled as in `Publisher`. Failures are not raised, so the caller must check
    ``failures``.
    """

    def __init__(
        self, context: Context, *, max_in_flight: int, max_bytes: int, timeout: float, repeatable: bool
    ) -> None:
        """Create the publisher.

        Args:
            timeout: Without progress for this many seconds, messages fail. It also limits the time to wait for a
                reconnect, or for a connection that doesn't accept data.
            repeatable: True if all messages have an ID, so that they can be sent again if an acknowledgement is
                missing.
        """
        out = context.connection.outbox
        if out is None:
            raise ConfigError("columns need a connection that `jsclient.connect` opened")
        self._out = out
        self._compiled: BurstCommands | None = chosen().burst_commands
        self._timeout, self._repeatable = timeout, repeatable
        self.tally: Tally = Tally()
        self._failures = _RowFailures()
        self._progress = Progress(timeout)
        self._window: BurstWindow[RowsTicket] = BurstWindow(
            secrets.token_hex(11),
            context.answered,
            acks=self.tally.acks,
            runs=self.tally.runs,
            progress=self._progress,
            join_acks=chosen().join_acks,
        )
        self._acks: AckWindow[RowsTicket] = AckWindow(
            context,
            self._failures,
            Limits(max_in_flight, max_bytes),
            window=self._window,
            after_event=self.tally.count_acks,
        )
        self._admission = self._acks.admission

    @property
    def failures(self) -> list[Failed]:
        """Messages that have failed. The caller may replace the list."""
        return self._failures.failures

    @failures.setter
    def failures(self, failures: list[Failed]) -> None:
        self._failures.failures = failures

    @property
    def sent(self) -> int:
        """Number of messages sent so far."""
        return self._acks.number

    @property
    def resent(self) -> int:
        """Number of times that a message was sent again."""
        return self._window.resent

    @property
    def refused(self) -> Failed | None:
        """The oldest message in flight, if it is being sent again because no stream has responded, otherwise None."""
        self._window.expand()
        entry = next(iter(self._window.in_flight.values()), None)
        if entry is None or entry.recovery is None or not entry.recovery.refused:
            return None
        ticket = entry.ticket
        return Failed(ticket.rows[entry.number - ticket.first], entry, NoRespondersError.of_publish(entry.to))

    @property
    def in_flight(self) -> int:
        return self._window.count

    async def send(
        self,
        rows: Sequence[int],
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> None:
        """Send messages in order, and wait while the window is full.

        If a message fails, the call stops sending. ``sent`` is then the number of messages that were sent.

        Args:
            rows: Numbers by which ``failures`` identifies the messages.
            subjects, headers, payloads: Columns of the same length, which are sent unchanged. The caller must check
                the subjects. Headers are complete header blocks, or empty.

        Raises:
            MaxPayloadError: The first unsent message exceeds the server's size limit.
            RequestTimeoutError: The client did not reconnect in time, or the connection did not accept data.
            PermissionDeniedError: The user lacks a required permission.
            ClosedError: The connection is closed.

        If the call is cancelled, the messages sent so far remain in flight.
        """
        self._come_back()
        try:
            await self._send_rows(rows, subjects, headers, payloads)
        finally:
            self._progress.pause(self._acks.loop.time())

    def _come_back(self) -> None:
        window = self._window
        self._progress.begin(self._acks.loop.time(), in_flight=window.count > 0)
        if window.count and self._progress.gives_up_at < window.next_check:
            self._acks.next_check(self._progress.gives_up_at)

    async def _send_rows(
        self,
        rows: Sequence[int],
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> None:
        acks, admission, window = self._acks, self._admission, self._window
        columns = _Columns(subjects, headers, payloads)
        ticket = RowsTicket(self.tally, acks.number + 1, rows)
        done, count, sizes = 0, len(payloads), columns.sizes
        while done < count and not self.failures:
            size = sizes[done]
            now = acks.loop.time()
            free = admission.max_in_flight - window.count
            total = window.size + size
            if (not admission.clear or free <= 0 or now > admission.yield_at) or (
                total > admission.watch and admission.too_much(total)
            ):
                acks.connection.check_size(size)
                await self._enter(subjects[done].decode(), size)
                if self.failures:
                    return
                now = acks.loop.time()
                admission.yield_at = now + YIELD_AFTER
                free = admission.max_in_flight - window.count
            elif admission.yield_at == NEVER:
                admission.yield_at = now + YIELD_AFTER
            end = self._end_of_burst(columns, done, min(count, done + min(free, _BURST)))
            self._burst(ticket, now, columns, slice(done, end))
            done = end

    async def _enter(self, subject: str, size: int) -> None:
        """Wait until a message may be sent, or until a message in flight has failed."""
        acks, began = self._acks, self._acks.loop.time()
        now, until = began, began + self._timeout
        while True:
            remaining = max(0.0, min(until, self._progress.gives_up_at) - now)
            try:
                return await acks.enter(subject, size, remaining, remaining)
            except (TooManyInFlightError, RequestTimeoutError) as error:
                now = acks.loop.time()
                if now < min(until, self._progress.gives_up_at):
                    continue  # another message has been stored in the meantime, so the deadline has moved
                if isinstance(error, RequestTimeoutError):
                    raise
                # No messages are in flight after the timeout, so the wait was for the connection. Say so in the error.
                if self.failures:
                    return None
                text = f"publish to {subject!r}: the connection took no more bytes for {now - began:.3g} s"
                raise RequestTimeoutError(f"{text}; nothing was sent", why=acks.connection.problem) from error

    def _burst(self, ticket: RowsTicket, now: float, columns: _Columns, part: slice) -> None:
        """Send a part of the columns."""
        acks, window = self._acks, self._window
        sizes = columns.sizes[part]
        count, number = len(sizes), acks.number + 1
        acks.number += count
        begin = b"%b%d_" % (acks.prefix, number)
        replies = [begin + index for index in _INDICES[:count]]
        deadline = now + self._timeout
        due = min(deadline, now + ATTEMPT) if self._repeatable else deadline
        burst = Burst(
            ticket,
            replies,
            columns.subjects[part],
            columns.headers[part],
            columns.payloads[part],
            sizes,
            number,
            deadline,
            due,
            self._repeatable,
        )
        window.add_burst(burst, sum(sizes))
        self._write(burst, columns.heads[part])
        if (next_check := min(due, self._progress.gives_up_at)) < window.next_check:
            acks.next_check(next_check)

    def _write(self, burst: Burst[RowsTicket], heads: list[int]) -> None:
        """Write the commands that publish a burst. ``heads`` contains the sizes of its header blocks."""
        subjects, replies, headers, payloads = burst.subjects, burst.replies, burst.headers, burst.payloads
        if len(payloads) == 1 and len(payloads[0]) > CHUNK:
            self._out.write_parts(*large_command(subjects[0], replies[0], headers[0], payloads[0]))
        elif self._compiled is not None:
            self._out.write(self._compiled(list(subjects), replies, list(headers), list(payloads)))
        else:
            self._out.write(burst_commands(subjects, replies, headers, payloads, heads, burst.sizes))

    def _end_of_burst(self, columns: _Columns, start: int, stop: int) -> int:
        """Return the end of the burst that begins at ``start``. The end is at most ``stop``.

        A burst has at least one message.

        Raises:
            MaxPayloadError: The message at ``start`` exceeds the server's size limit.
        """
        acks, sizes = self._acks, columns.sizes
        free = min(self._admission.max_bytes - self._window.size, CHUNK)
        before = columns.ends[start - 1] if start else 0
        end = max(start + 1, bisect_right(columns.ends, before + free, start, stop))
        # End the burst before a message that is too large, so that the valid messages are sent. The next burst begins
        # with the large message and raises the error.
        if max(sizes[start:end]) > acks.small:
            for index in range(start, end):
                if sizes[index] > acks.small:
                    try:
                        acks.connection.check_size(sizes[index])
                    except MaxPayloadError:
                        if index == start:
                            raise
                        return index
        return end

    async def settle(self) -> None:
        """Wait until no message is in flight. If the call is cancelled, the messages remain in flight."""
        self._come_back()
        try:
            while self._window.count:
                await self._acks.changed.wait()
        finally:
            self._progress.pause(self._acks.loop.time())

    async def close(self) -> None:
        """Release the connection. Messages in flight may or may not have been stored."""
        self.tally.unwanted.append(None)
        await self._acks.end_window()
