"""Publishing many messages without waiting for each ack: `JetStream.publisher`. Source: ADR-22."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

from .._runtime.context import Context
from .._runtime.handle import Handle
from .._runtime.nats.wire import CHUNK
from .._runtime.publish import (
    check_payload,
    check_subject,
    headers_and_ids,
    known_subjects,
    message_headers,
)
from ..errors import ApiError, FailedPublishInfo, JetStreamError, PublishesFailedError
from ..protocol.events import Event, PublishFailed
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import ATTEMPT, MAX_BYTES, MAX_IN_FLIGHT, InFlight
from ..protocol.publishing.publish_window import NEVER, PublishWindow
from ..protocol.wire.checks import check_count, check_seconds
from ..protocol.wire.header_names import MSG_ID
from ..protocol.wire.headers import encode_headers, parse_headers
from .ack_window import AckWindow, FailureSink
from .admission import YIELD_AFTER, Limits

__all__ = ["OVERDUE", "PublishFuture", "Publisher", "UnretrievedFailures"]

OVERDUE = 10.0  # seconds after which a failure that was not retrieved is reported as an event


class PublishFuture(asyncio.Future[PubAck]):
    """The future of an ack. It becomes a `FailedPublish` if the publish fails."""

    __slots__ = ()


class FailedPublish(PublishFuture):
    """A failed publish that informs its publisher when the failure is retrieved.

    A future is turned into one only when it fails, so that awaiting an ack costs no Python call.
    """

    __slots__ = ()
    unretrieved: UnretrievedFailures | Reported  # where the failure is counted

    def _retrieve(self) -> None:
        _become(PublishFuture, self)
        self.unretrieved.retrieved(self)

    def result(self) -> PubAck:
        self._retrieve()
        return PublishFuture.result(self)

    def exception(self) -> BaseException | None:
        self._retrieve()
        return PublishFuture.exception(self)

    def __await__(self) -> Generator[Any, None, PubAck]:
        self._retrieve()
        return PublishFuture.__await__(self)

    __iter__ = __await__


FutureT = TypeVar("FutureT", bound=PublishFuture)


class Reported:
    """The number of failures that were reported as events, and not retrieved since."""

    def __init__(self) -> None:
        self.count: int = 0

    def retrieved(self, _: PublishFuture) -> None:
        self.count -= 1


class _Failure(NamedTuple):
    overdue: float  # monotonic seconds
    subject: str
    error: JetStreamError
    number: int
    header: bytes

    @property
    def info(self) -> FailedPublishInfo:
        msg_id = parse_headers(self.header)[1].get(MSG_ID)
        return FailedPublishInfo(self.subject, self.error, self.number, msg_id)


_Failed: TypeAlias = tuple[PublishFuture, _Failure]


class UnretrievedFailures(FailureSink[PublishFuture]):
    """The failures of a publisher, until they are retrieved, raised by `take`, or reported as events.

    Events report failures after `OVERDUE` seconds, earlier if more than ``kept`` wait, and when the publisher closes.
    """

    def __init__(self, emit: Callable[[Event], None], kept: int) -> None:
        self._emit = emit
        self._kept = kept
        self._failures: dict[PublishFuture, _Failure] = {}  # oldest first
        self._reported = Reported()

    def add(self, entry: InFlight[PublishFuture], error: JetStreamError, now: float) -> None:
        """Set the failure of a publish. No-op if its future was cancelled."""
        future = entry.ticket
        if not future.done():
            future.set_exception(error)
            _mark(future, self)
            self._failures[future] = _Failure(now + OVERDUE, entry.to, error, entry.number, entry.header)

    def retrieved(self, future: PublishFuture) -> None:
        del self._failures[future]

    @property
    def look_at(self) -> float:
        """When to call `tick`."""
        if len(self._failures) > self._kept:
            return 0.0
        return next(iter(self._failures.values())).overdue if self._failures else float("inf")

    def tick(self, now: float) -> None:
        """Report the failures that are overdue or too many."""
        excess = len(self._failures) - self._kept
        report: list[_Failed] = []
        for future, failure in self._failures.items():
            if failure.overdue > now and len(report) >= excess:
                break
            report.append((future, failure))
        self._report(report)

    def note_on(self, error: Exception) -> None:
        """Add a note to another error: how many there are, with those that were reported, and the first of them."""
        count = len(self._failures) + self._reported.count
        if count:
            one = next(iter(self._failures.values()), None)
            first = f", the first: {one.subject!r}: {one.error}" if one else ""
            failed = f"{count:,} other publishes failed, or their outcome is unknown"
            error.add_note(f"{failed}{first}; PublishFailed events report them")

    def take(self) -> tuple[list[FailedPublishInfo], int]:
        """The failures to raise now, and the number of those that were reported as events since the last call."""
        found = [failure.info for failure in self._failures.values()]
        for future in self._failures:
            _silence(future)
        self._failures.clear()
        reported, self._reported = self._reported.count, Reported()
        return found, reported

    def close(self) -> None:
        """Report all that remain."""
        self._report(list(self._failures.items()))

    def _report(self, failed: list[_Failed]) -> None:
        """Emit one event per kind of error."""
        kinds: dict[tuple[type, int], list[_Failure]] = {}
        for future, failure in failed:
            del self._failures[future]
            _silence(future)
            _mark(future, self._reported)
            code = failure.error.err_code if isinstance(failure.error, ApiError) else 0
            kinds.setdefault((type(failure.error), code), []).append(failure)
        self._reported.count += len(failed)
        for found in kinds.values():
            self._emit(PublishFailed(subject=found[0].subject, error=found[0].error, count=len(found)))


def _silence(future: PublishFuture) -> None:
    """The publisher reports the failure, so asyncio must not log it as never retrieved."""
    PublishFuture.exception(_become(PublishFuture, future))


def _mark(future: PublishFuture, where: UnretrievedFailures | Reported) -> None:
    _become(FailedPublish, future).unretrieved = where


def _become(kind: type[FutureT], future: Any) -> FutureT:
    future.__class__ = kind
    return cast("FutureT", future)


_KEPT = 1000  # failures that are kept until they are retrieved or raised, at least


class Publisher(Handle):
    """Publishes without waiting for each ack. Created by `JetStream.publisher`.

    `publish` returns a future as soon as the message is sent; it waits only while the window is full. Messages are sent
    in the order of the calls. Every future is done within the timeout of its publish: with a `PubAck`, or with an error
    of `JetStream.publish`.

    Leaving ``async with`` waits for all publishes in flight. It raises a `PublishesFailedError` for the failures that
    were not retrieved, by awaiting the future or by its ``result()`` or ``exception()``; `flush` does so, too. If an
    exception leaves the block, a note on it has their number, and the first.

    Source: ADR-22
    """

    def __init__(
        self,
        context: Context,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_bytes: int | None = MAX_BYTES,
        timeout: float | None = None,
        room_timeout: float | None = None,
        resend: bool = True,
        window: PublishWindow[PublishFuture] | None = None,
        after_event: Callable[[], None] | None = None,
    ) -> None:
        check_count("max_in_flight", max_in_flight)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        if room_timeout is not None and room_timeout != 0:
            check_seconds("room_timeout", room_timeout)
        self._timeout = context.timeout if timeout is None else check_seconds("timeout", timeout)
        self._resend = resend
        self._context = context
        self._out = context.connection.outbox
        self._failures = UnretrievedFailures(context.emit, max(_KEPT, max_in_flight))
        self.acks: AckWindow[PublishFuture] = AckWindow(
            context,
            self._failures,
            Limits(
                max_in_flight,
                NEVER if max_bytes is None else max_bytes,
                NEVER if room_timeout is None else room_timeout,
            ),
            window=window,
            after_event=after_event,
        )
        self._loop = self.acks.loop
        self._admission, self._window = self.acks.admission, self.acks.window

    @property
    def in_flight(self) -> int:
        """Publishes that were sent, or wait to be sent again, and whose outcome is not known."""
        return len(self._window.in_flight)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of their headers and payloads."""
        return self._window.size

    @property
    def waiting(self) -> int:
        """Calls of `publish` that wait for room, or for a connection."""
        return self._admission.gate.waiting

    @property
    def published(self) -> int:
        """Messages sent so far."""
        return self.acks.number - self.acks.unsent

    @property
    def stored(self) -> int:
        """Messages that were acked."""
        return self._window.stored

    @property
    def failed(self) -> int:
        """Messages that were refused, or whose outcome is unknown."""
        return self.acks.failed

    @property
    def resent(self) -> int:
        """The number of times that a message was sent again."""
        return self._window.resent

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for new messages."""
        return self._admission.closed

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f"<Publisher{state}: {self.in_flight} in flight, {self.stored} stored, {self.failed} failed>"

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub", "all"] | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message and return the future of its ack; while the window is full, wait for room first.

        Args:
            timeout: Seconds from the sending until the future is done, and before that for a connection; by default the
                timeout of the publisher.

        For all other arguments see `JetStream.publish`.

        Raises:
            TooManyInFlightError: No room within ``room_timeout``. Nothing was sent.
            RequestTimeoutError: No connection within the timeout. Nothing was sent.
            InvalidNameError, ConfigError, MaxPayloadError, ClosedError: Nothing was sent.

        The future raises the errors of `JetStream.publish` for a message that was sent.

        Cancelled: nothing was sent (over a nats-py connection of your own it may have been). Cancelling the future does
        not undo the publish: its place becomes free with the ack or at its deadline.
        """
        to = (type(subject) is str and known_subjects.get(subject)) or check_subject(subject)
        if type(data) is not bytes:
            data = check_payload(data)
        header, repeatable = b"", False
        if (
            (expected_stream is None and expected_last_seq is None and ttl is None)
            and (expected_last_subject_seq is None and expected_last_subject_seq_subject is None)
            and (rollup is None and (expected_last_msg_id is None or msg_id is not None))
        ):
            if headers is not None or msg_id is not None:
                header, repeatable = headers_and_ids(headers, msg_id, expected_last_msg_id)
        elif merged := message_headers(
            self._context,
            headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_subject_seq_subject=expected_last_subject_seq_subject,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
        ):
            header, repeatable = encode_headers(merged), MSG_ID in merged
        timeout = self._timeout if timeout is None else check_seconds("timeout", timeout)
        acks, admission, window, out = self.acks, self._admission, self._window, self._out
        size, now = len(header) + len(data), self._loop.time()
        if size > acks.small:
            acks.connection.check_size(size)
        if out is not None and not out.scheduled:
            admission.yield_at = now + YIELD_AFTER  # the first one in this iteration of the loop
        wanted = window.size + size
        if (not admission.clear or len(window.in_flight) >= admission.max_in_flight) or (
            now > admission.yield_at or (wanted > admission.watch and admission.too_much(wanted))
        ):
            await acks.enter(subject, size, timeout)
            wanted, now = window.size + size, self._loop.time()
            admission.yield_at = now + YIELD_AFTER
        deadline, repeatable = now + timeout, repeatable and self._resend
        due = min(deadline, now + ATTEMPT) if repeatable else deadline
        future = PublishFuture(loop=self._loop)
        acks.number = number = acks.number + 1
        reply = b"%b%d" % (acks.prefix, number)
        entry = InFlight(future, to, header, data, size, number, deadline, due, repeatable)
        if out is None:
            return await self._send_slowly(reply, entry)
        if header:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply, len(header), size, header, data)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (to, reply, size, data)
        if out.scheduled and out.size < CHUNK:
            out.commands.append(command)
            out.size += len(command)
        else:
            out.write(command)
        window.in_flight[reply] = entry
        window.size = wanted
        if due < window.look_at:
            acks.look_at(due)
        return future

    async def _send_slowly(self, reply: bytes, entry: InFlight[PublishFuture]) -> asyncio.Future[PubAck]:
        try:
            await self.acks.send_slowly(reply, entry)
        except asyncio.CancelledError:
            entry.ticket.cancel()
            raise
        return entry.ticket

    async def flush(self) -> None:
        """Wait for the outcome of all messages sent so far.

        Raises:
            PublishesFailedError: Publishes failed, and their failures were not retrieved.

        Cancelled: the publishes continue.
        """
        await self.acks.settled()
        self._raise_failures()

    def _raise_failures(self) -> None:
        failures, reported = self._failures.take()
        if failures or reported:
            raise PublishesFailedError(failures, reported) from (failures[0][1] if failures else None)

    async def close(self) -> None:
        """End it now. Publishes in flight fail with `ClosedError`: whether they were stored is unknown.

        Failures that were not retrieved are reported as `PublishFailed` events. Call `flush` first to wait for acks.
        """
        await self.acks.end()

    async def __aenter__(self) -> Self:
        self.acks.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self.acks.idle()
            if error is None:
                self._raise_failures()
            elif isinstance(error, Exception):
                self._failures.note_on(error)
        finally:
            await self.acks.end()
