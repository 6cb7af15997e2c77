"""Publishing columns: thousands of prepared messages a call, without a future for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from .._runtime.context import Context
from .._runtime.nats.write_buffer import CHUNK
from ..errors import ConfigError, JetStreamError
from ..protocol.publishing.in_flight import ATTEMPT, InFlight
from ..protocol.publishing.publish_window import NEVER, Failures
from ..protocol.wire.frames import Frame
from .ack_window import Window

if TYPE_CHECKING:
    from ..protocol.models.publish import PubAck
    from .admission import Entry

__all__ = ["BulkPublisher", "Failed", "Tally"]

_BURST = 1000  # messages at most between two looks at the bounds and at the clock
_YIELD_AFTER = 0.01  # seconds for which publishing keeps the event loop


class Failed(NamedTuple):
    """A message that is not stored, or not known to be."""

    row: int
    entry: Entry
    error: JetStreamError


class Tally:
    """What became of the messages of a publisher.

    Attributes:
        stored: Messages that were acked, with the duplicates.
        duplicates: Those of them whose id the stream knew.
        first_seq, last_seq: The smallest and the largest sequence of those that are no duplicates; 0: there is none.
        streams: Where.
    """

    __slots__ = ("acks", "duplicates", "first_seq", "last_seq", "stored", "streams", "unwanted")

    def __init__(self) -> None:
        self.stored = self.duplicates = self.first_seq = self.last_seq = 0
        self.streams: set[str] = set()
        self.acks: list[PubAck] = []  # not counted yet
        self.unwanted: list[None] = []  # not empty: nobody waits any more, so nothing is sent again

    def count(self) -> None:
        """Count the acks that came."""
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


class _Sending:
    """The ticket of the messages of one call: whose rows they are.

    Its methods are those of lists, because a call from Python to Python for each ack is what costs most there.
    """

    __slots__ = ("done", "first", "rows", "set_result")

    def __init__(self, tally: Tally, first: int, rows: Sequence[int]) -> None:
        self.first = first  # number of the first message
        self.rows = rows
        self.set_result = tally.acks.append
        self.done = tally.unwanted.__len__


class BulkPublisher(Window):
    """A window of publishes that is fed with columns, and counts. One caller at a time.

    It is the window of `Publisher`: bounds, resending within the deadline, reconnecting are the same. What failed waits
    in ``failures``, with its row; whoever feeds it looks there.
    """

    __slots__ = ("_repeatable", "_timeout", "failures", "tally")

    def __init__(
        self, context: Context, *, max_in_flight: int, max_bytes: int, timeout: float, repeatable: bool
    ) -> None:
        """
        Args:
            timeout: Seconds that each message may take, and that the wait for a connection may.
            repeatable: All messages have an id: one whose outcome is unknown is sent again within the timeout.
        """
        super().__init__(context, max_in_flight, max_bytes, NEVER)
        if self._out is None:
            raise ConfigError("columns are published over a connection that `jsclient.connect` opened")
        self._timeout, self._repeatable = timeout, repeatable
        self.tally = Tally()
        self.failures: list[Failed] = []

    @property
    def sent(self) -> int:
        """Messages sent so far; the number of the last one."""
        return self._number

    @property
    def resent(self) -> int:
        """How often a message was sent again."""
        return self._window.resent

    @property
    def in_flight(self) -> int:
        return len(self._window.in_flight)

    def _receive(self, frames: list[Frame]) -> None:
        super()._receive(frames)
        self.tally.count()

    def _fail(self, failures: Failures[asyncio.Future[PubAck]]) -> None:
        for entry, error in failures:
            self._failed += 1
            of = cast("_Sending", entry.ticket)
            self.failures.append(Failed(of.rows[entry.number - of.first], entry, error))
        self._after()

    async def send(
        self,
        rows: Sequence[int],
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> None:
        """Send messages, in order; wait only for room. As soon as one has failed it sends no more: see ``sent``.

        Args:
            rows: What the messages are called in ``failures``.
            subjects, headers, payloads: Columns of the same length. They go out as they are: subjects were checked,
                header blocks are whole, or empty.

        Raises:
            MaxPayloadError: This message is larger than the server takes. Those before it were sent.
            RequestTimeoutError: There was no connection in time.
            ClosedError, PermissionDeniedError: Nothing more can be sent.

        Cancelled: what was sent goes on.
        """
        done, count, window = 0, len(payloads), self._window
        # A window wants no more of a ticket than `Ticket` promises.
        ticket = cast("asyncio.Future[PubAck]", _Sending(self.tally, self._number + 1, rows))
        while done < count and not self.failures:
            size = len(headers[done]) + len(payloads[done])
            now = self._loop.time()
            room = self._max - len(window.in_flight)
            wanted = window.size + size
            if (not self._clear or room <= 0 or now > self._yield_at) or (
                wanted > self._watch and self._too_much(wanted)
            ):
                self._connection.check_size(size)
                await self._enter(subjects[done].decode(), size, self._timeout)
                if self.failures:
                    return
                now = self._loop.time()
                self._yield_at = now + _YIELD_AFTER
                room = self._max - len(window.in_flight)
            elif self._yield_at == NEVER:
                self._yield_at = now + _YIELD_AFTER
            end = min(count, done + min(room, _BURST))
            done += self._burst(ticket, now, subjects[done:end], headers[done:end], payloads[done:end])

    def _burst(
        self,
        ticket: asyncio.Future[PubAck],
        now: float,
        subjects: Sequence[bytes],
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> int:
        """Send what there is room for, one at least; how many were sent."""
        out, window, prefix, small = self._out, self._window, self._prefix, self._small
        assert out is not None
        in_flight, size, most = window.in_flight, window.size, self._max_bytes
        deadline = now + self._timeout
        repeatable = self._repeatable
        due = min(deadline, now + ATTEMPT) if repeatable else deadline
        before = number = self._number
        commands: list[bytes] = []
        written = 0
        try:
            for to, header, data in zip(subjects, headers, payloads, strict=True):
                head = len(header)
                both = head + len(data)
                if both > small:
                    self._connection.check_size(both)
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
            self._number, window.size = number, size
            if commands:
                out.write(b"".join(commands))
            if due < window.look_at:
                self._look_at(due)
        return number - before

    async def settle(self) -> None:
        """Wait until nothing is under way. Cancelled: it goes on."""
        while self._window.in_flight:
            await self._changed.wait()

    async def close(self) -> None:
        """Take nothing more, and let go of the connection. What is under way counts as unknown."""
        self.tally.unwanted.append(None)
        await self._end()
