"""Publishing columns: thousands of prepared messages per call, without a future for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from .._runtime.context import Context
from .._runtime.nats.wire import CHUNK
from .._runtime.publish import check_payload, check_subject, headers_and_ids
from ..errors import ConfigError, JetStreamError, NoRespondersError, PublishManyError
from ..protocol.publishing.in_flight import ATTEMPT, MAX_BYTES, InFlight
from ..protocol.publishing.publish_window import NEVER
from ..protocol.wire.checks import check_count, check_seconds
from .ack_window import AckWindow, FailureSink
from .admission import YIELD_AFTER, Limits

if TYPE_CHECKING:
    from ..protocol.models.publish import PubAck

__all__ = ["BulkPublisher", "Failed", "PublishedMany", "RowsTicket", "Tally", "publish_many"]

_BURST = 1000  # messages at most between two checks of the limits and the clock


class Failed(NamedTuple):
    """A message that was not stored, or whose outcome is unknown."""

    row: int
    entry: InFlight[RowsTicket]
    error: JetStreamError


@dataclass(slots=True)
class Tally:
    """The counts of the acked messages of a publisher.

    Attributes:
        stored: Messages that were acked, including duplicates.
        duplicates: Messages whose id was stored before.
        first_seq, last_seq: The smallest and the largest sequence, without duplicates; 0: none.
        streams: The names of the streams.
    """

    stored: int = 0
    duplicates: int = 0
    first_seq: int = 0
    last_seq: int = 0
    streams: set[str] = field(default_factory=set)
    acks: list[PubAck] = field(default_factory=list)  # not counted yet
    unwanted: list[None] = field(default_factory=list)  # not empty: closed, so nothing is sent again

    def count(self) -> None:
        """Count the new acks."""
        acks = self.acks
        self.stored += len(acks)
        new = [ack.seq for ack in acks if not ack.duplicate]
        self.duplicates += len(acks) - len(new)
        if new:
            first, last = min(new), max(new)
            self.last_seq = max(self.last_seq, last)
            if not self.first_seq or first < self.first_seq:
                self.first_seq = first
        self.streams.update({ack.stream for ack in acks})
        acks.clear()


class RowsTicket:
    """The ticket of the messages of one call of `BulkPublisher.send`, with their rows.

    Its methods are methods of lists: calls between Python functions for each ack would dominate the cost.
    """

    __slots__ = ("done", "first", "rows", "set_result")

    def __init__(self, tally: Tally, first: int, rows: Sequence[int]) -> None:
        self.first: int = first  # number of the first message
        self.rows: Sequence[int] = rows
        self.set_result: Callable[[PubAck], None] = tally.acks.append
        self.done: Callable[[], int] = tally.unwanted.__len__


class _RowFailures(FailureSink["RowsTicket"]):
    """Collects failures with their rows."""

    def __init__(self) -> None:
        self.failures: list[Failed] = []

    def add(self, entry: InFlight[RowsTicket], error: JetStreamError, now: float) -> None:
        ticket = entry.ticket
        self.failures.append(Failed(ticket.rows[entry.number - ticket.first], entry, error))


class BulkPublisher:
    """Publishes columns through the window of `Publisher`, and counts. One caller at a time.

    Limits, retries within the deadline, and reconnects are those of `Publisher`. The caller must examine ``failures``,
    which contains the failed messages with their rows.
    """

    def __init__(
        self, context: Context, *, max_in_flight: int, max_bytes: int, timeout: float, repeatable: bool
    ) -> None:
        """
        Args:
            timeout: Seconds for each message, and for the wait for a connection.
            repeatable: All messages have an id: one whose outcome is unknown is sent again within the timeout.
        """
        out = context.connection.outbox
        if out is None:
            raise ConfigError("columns need a connection that `jsclient.connect` opened")
        self._out = out
        self._timeout, self._repeatable = timeout, repeatable
        self.tally: Tally = Tally()
        self._failures = _RowFailures()
        self._acks: AckWindow[RowsTicket] = AckWindow(
            context,
            self._failures,
            Limits(max_in_flight, max_bytes),
            after_event=self.tally.count,
        )
        self._admission, self._window = self._acks.admission, self._acks.window

    @property
    def failures(self) -> list[Failed]:
        """The failed messages; the caller may replace the list."""
        return self._failures.failures

    @failures.setter
    def failures(self, failures: list[Failed]) -> None:
        self._failures.failures = failures

    @property
    def sent(self) -> int:
        """Messages sent so far; the number of the last one."""
        return self._acks.number

    @property
    def resent(self) -> int:
        """The number of times that a message was sent again."""
        return self._window.resent

    @property
    def refused(self) -> Failed | None:
        """The oldest message in flight, if nothing has responded to it; None otherwise."""
        entry = next(iter(self._window.in_flight.values()), None)
        if entry is None or entry.trouble is None or not entry.trouble.refused:
            return None
        ticket = entry.ticket
        return Failed(ticket.rows[entry.number - ticket.first], entry, NoRespondersError.of_publish(entry.to))

    @property
    def in_flight(self) -> int:
        return len(self._window.in_flight)

    async def send(
        self,
        rows: Sequence[int],
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> None:
        """Send messages in order; wait only for room. After a failure it stops: see ``sent``.

        Args:
            rows: The names of the messages in ``failures``.
            subjects, headers, payloads: Columns of the same length, sent unchanged. Subjects must be checked before;
                header blocks are complete, or empty.

        Raises:
            MaxPayloadError: The message after the last one sent is larger than the server's limit.
            RequestTimeoutError: No connection in time.
            ClosedError, PermissionDeniedError: Nothing more can be sent.

        Cancelled: the publishes sent so far continue.
        """
        done, count = 0, len(payloads)
        acks, admission, window = self._acks, self._admission, self._window
        ticket = RowsTicket(self.tally, acks.number + 1, rows)
        while done < count and not self.failures:
            size = len(headers[done]) + len(payloads[done])
            now = acks.loop.time()
            room = admission.max_in_flight - len(window.in_flight)
            wanted = window.size + size
            if (not admission.clear or room <= 0 or now > admission.yield_at) or (
                wanted > admission.watch and admission.too_much(wanted)
            ):
                acks.connection.check_size(size)
                await acks.enter(subjects[done].decode(), size, self._timeout)
                if self.failures:
                    return
                now = acks.loop.time()
                admission.yield_at = now + YIELD_AFTER
                room = admission.max_in_flight - len(window.in_flight)
            elif admission.yield_at == NEVER:
                admission.yield_at = now + YIELD_AFTER
            end = min(count, done + min(room, _BURST))
            done += self._burst(ticket, now, subjects[done:end], headers[done:end], payloads[done:end])

    def _burst(
        self,
        ticket: RowsTicket,
        now: float,
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> int:
        """Send the messages that the limits allow, at least one. Returns their number."""
        acks, window = self._acks, self._window
        prefix, small, most = acks.prefix, acks.small, self._admission.max_bytes
        in_flight, size = window.in_flight, window.size
        deadline = now + self._timeout
        repeatable = self._repeatable
        due = min(deadline, now + ATTEMPT) if repeatable else deadline
        before = number = acks.number
        commands: list[bytes] = []
        written = 0
        try:
            for to, header, data in zip(subjects, headers, payloads, strict=True):
                head = len(header)
                both = head + len(data)
                if both > small:
                    acks.connection.check_size(both)
                size += both
                written += both
                if (size > most or written > CHUNK) and number > before:
                    size -= both
                    break
                number += 1
                reply = b"%b%d" % (prefix, number)
                if head:
                    commands.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply, head, both, header, data))
                else:
                    commands.append(b"PUB %b %b %d\r\n%b\r\n" % (to, reply, both, data))
                in_flight[reply] = InFlight(ticket, to, header, data, both, number, deadline, due, repeatable)
        finally:
            acks.number, window.size = number, size
            if commands:
                self._out.write(b"".join(commands))
            if due < window.look_at:
                acks.look_at(due)
        return number - before

    async def settle(self) -> None:
        """Wait until no message is in flight. Cancelled: the publishes continue."""
        while self._window.in_flight:
            await self._acks.changed.wait()

    async def close(self) -> None:
        """Release the connection. The outcome of messages in flight is unknown."""
        self.tally.unwanted.append(None)
        await self._acks.end()


class PublishedMany(msgspec.Struct, frozen=True):
    """The result of `JetStream.publish_many`: all messages are stored.

    Attributes:
        stored: Number of messages, including duplicates.
        duplicates: Messages whose id was stored before.
        first_seq, last_seq: The smallest and the largest sequence, without duplicates; 0: none.
    """

    stored: int
    duplicates: int
    first_seq: int
    last_seq: int


async def publish_many(
    context: Context,
    subject: str,
    payloads: Iterable[bytes],
    *,
    headers: Mapping[str, str | Sequence[str]] | None,
    msg_ids: Iterable[str] | None,
    max_in_flight: int,
    timeout: float | None,
) -> PublishedMany:
    """See `JetStream.publish_many`."""
    check_count("max_in_flight", max_in_flight)
    if isinstance(payloads, str | bytes | bytearray | memoryview) or not isinstance(payloads, Iterable):
        raise ConfigError(
            f"payloads is {type(payloads).__name__}: an iterable of payloads is needed, such as a list of bytes"
        )
    to, common = check_subject(subject), headers_and_ids(headers, None, None)[0]
    bulk = BulkPublisher(
        context,
        max_in_flight=max_in_flight,
        max_bytes=MAX_BYTES,
        timeout=context.timeout if timeout is None else check_seconds("timeout", timeout),
        repeatable=msg_ids is not None,
    )
    unsent: JetStreamError | None = None
    try:
        try:
            waiting, ids = iter(payloads), None if msg_ids is None else iter(msg_ids)
            while not bulk.failures and (chunk := list(islice(waiting, _BURST))):
                # All of a chunk is checked before any of it is sent.
                data = [check_payload(payload) for payload in chunk]
                blocks = [common] * len(data) if ids is None else _blocks(headers, ids, len(data))
                rows = range(bulk.sent, bulk.sent + len(data))
                await bulk.send(rows, [to] * len(data), blocks, data)
        except JetStreamError as error:
            unsent = error
        await bulk.settle()
    finally:
        await bulk.close()
    tally, failures = (
        bulk.tally,
        [(failed.row, failed.error) for failed in sorted(bulk.failures, key=lambda failed: failed.row)],
    )
    if unsent is not None:
        failures.append((bulk.sent, unsent))
    if failures:
        raise PublishManyError(failures, bulk.sent, tally.stored) from failures[0][1]
    return PublishedMany(tally.stored, tally.duplicates, tally.first_seq, tally.last_seq)


def _blocks(headers: Mapping[str, str | Sequence[str]] | None, ids: Iterable[str], count: int) -> list[bytes]:
    """Header blocks with the next ``count`` ids. Raises `ConfigError` if there are fewer."""
    found = list(islice(ids, count))
    if len(found) < count:
        raise ConfigError("there are fewer msg_ids than payloads; each payload needs one")
    return [headers_and_ids(headers, msg_id, None)[0] for msg_id in found]
